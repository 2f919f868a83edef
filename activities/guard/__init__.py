"""One attempt at one call: claim it, call it at most once, record its outcome.

Read it in this order:

    interceptor       every activity comes through here; the guarded ones are attempted
    attempt           the story: request, claim, call, outcome, reply
    guarded_call      what is fixed about the call: header, limits, tries
    claim_request     what is claimed: arguments, keys, state
    stored_inputs     results of a plan's earlier steps, put into the arguments
    claims            claims until the ledger says who has the right to call
    invocation        the call itself, within its deadline
    outcome           what follows from its end: the table of what is known, unknown, tried again
    row               what is written on the claimed row
    question_record   the question of a call that stops to put one to a person
    read_attempt      the same story for a READ, which has no row
    ledger_write      a write that must finish although the call is cancelled or Postgres is away
    unforeseen        what it raised, as Temporal's failure: each one has an end
    start_later       what could not be started at all: the next attempt starts it
    lost_worker       what follows an attempt that was lost with its worker
    heartbeat, retry, worker_metrics

What differs between an agent's tool and anybody's activity is behind the `protocols`, which
`guarded_tool` implements, and `integrations.ruled_call` for other frameworks.
"""
