-- The named queries of the release before migration 0004, word for word: its workers go on
-- beside those of this one during a deploy.

-- open_run: register a run, or go on with one that a retry or a reset opens again.
insert into agent_runs (run_key, workflow_id, agent, input_digest, opened_attempt_at)
values (%(run_key)s, %(workflow_id)s, %(agent)s, %(input_digest)s, %(attempt_at)s)
on conflict (run_key) do update
    set input_digest = coalesce(nullif(agent_runs.input_digest, ''), excluded.input_digest),
        state = case
            when agent_runs.state = 'ended' and agent_runs.stopped_at is null
                 and agent_runs.ended_attempt_at < excluded.opened_attempt_at
            then 'running' else agent_runs.state end
returning *, clock_timestamp() as now;

-- stop_run: from this commit on the run starts nothing; one that is being undone is left alone.
-- A run that has not opened yet is kept from opening.
insert into agent_runs (
    run_key, workflow_id, agent, input_digest, state, opened_attempt_at, stopped_at, stop_reason)
values (%(run_key)s, %(workflow_id)s, %(agent)s, '', 'stopping', %(attempt_at)s,
        clock_timestamp(), %(reason)s)
on conflict (run_key) do update
    set state = case agent_runs.state when 'running' then 'stopping' else agent_runs.state end,
        stopped_at = coalesce(agent_runs.stopped_at, clock_timestamp()),
        stop_reason = coalesce(agent_runs.stop_reason, excluded.stop_reason)
returning *, clock_timestamp() as now;

-- end_run: close a run; a later attempt (by the engine's clock) may open it again.
update agent_runs
   set state = 'ended',
       ended_attempt_at = greatest(ended_attempt_at, %(attempt_at)s)
 where run_key = %(run_key)s
returning *, clock_timestamp() as now;

-- park_left_over: what a run that has ended leaves dispatched (a stop came between two tries)
-- is nobody's from now on: a person's.
update agent_actions
   set parked_at = clock_timestamp(),
       parked_reason = 'the run ended between two tries: the last one may have happened',
       -- A try that is known to be over protects nothing any more.
       lease_until = case when sent_until <= clock_timestamp() then clock_timestamp()
                          else lease_until end
 where run_key = %(run_key)s
   and status = 'pending' and parked_at is null and dispatched_at is not null
   -- Not what a younger execution (a reset's) has begun: it goes on with the run.
   and attempt_at <= %(attempt_at)s
   and (claimed_by = key or lease_until < clock_timestamp());

-- get_run: one run.
select *, clock_timestamp() as now from agent_runs where run_key = %(run_key)s;

-- list_runs: the newest runs, those of one workflow id if it is given.
select *, clock_timestamp() as now from agent_runs
 where %(workflow_id)s::text is null or workflow_id = %(workflow_id)s
 order by created_at desc, run_key
 limit %(limit)s;

-- lock_run: keep the run's state as it is until this claim has committed.
select * from agent_runs where run_key = %(run_key)s for share;

-- reopen_run: a claim by an execution that began after the end goes on with the run.
update agent_runs set state = 'running'
 where run_key = %(run_key)s and state = 'ended' and stopped_at is null
   and ended_attempt_at < %(attempt_at)s
returning *;

-- claim_new: the common case in one statement: the run runs, the action is new, its domain
-- key is free. No row back means that the case is another one; a unique violation on
-- agent_domain_keys means that somebody took the key at the same moment.
with run as (
    select run_key from agent_runs
     where run_key = %(run_key)s and state = 'running'
       for share
), action as (
    insert into agent_actions (
        key, tool, args, run_key, position, thread_id, idempotency_key, domain_key, effect,
        key_ttl, requested_digest, effective_digest, claim_token, claimed_by, attempt_at,
        lease_until, sent_until, tries, dispatched_at)
    select %(key)s, %(tool)s, %(args)s::json, run.run_key, %(position)s, %(thread_id)s,
           %(idempotency_key)s, %(domain_key)s::text, %(effect)s, %(key_ttl)s::interval,
           %(requested_digest)s, %(effective_digest)s, %(token)s::uuid, %(key)s,
           %(attempt_at)s::timestamptz, clock_timestamp() + %(lease)s::interval,
           clock_timestamp() + %(deadline)s::interval, 1, clock_timestamp()
      from run
     where not exists (select from agent_domain_keys where domain_key = %(domain_key)s)
       -- The same call of an earlier turn is unknown: see open_unknown.
       and (%(domain_key)s::text is not null or not exists (
            select from agent_actions
             where run_key = %(run_key)s and tool = %(tool)s
               and effective_digest = %(effective_digest)s
               and parked_at is not null and domain_key is null and duplicate_of is null
               and split_part(position, '.', 1) <> split_part(%(position)s, '.', 1)))
    on conflict (key) do nothing
    returning key, domain_key
), held as (
    insert into agent_domain_keys (domain_key, generation, held_by)
    select domain_key, 1, key from action where domain_key is not null
)
select key from action;

-- get_action: one action; `now` is the database's clock, by which leases are judged.
select *, clock_timestamp() as now from agent_actions where key = %(key)s;

-- lock_action: one action, locked until this claim has committed.
select *, clock_timestamp() as now from agent_actions where key = %(key)s for update;

-- lock_domain_key: make the key's row if there is none, and lock it.
insert into agent_domain_keys (domain_key, generation, held_by)
values (%(domain_key)s, 0, null)
on conflict (domain_key) do update set generation = agent_domain_keys.generation
returning generation, held_by;

-- hold_domain_key: give the key to an action, which sends this generation of it.
update agent_domain_keys set held_by = %(key)s, generation = %(generation)s
 where domain_key = %(domain_key)s;

-- release_domain_key: by proof only: the holder had no effect.
update agent_domain_keys set held_by = null
 where domain_key = %(domain_key)s and held_by = %(key)s;

-- insert_dispatched: an action that is called as soon as this has committed.
insert into agent_actions (
    key, tool, args, run_key, position, thread_id, idempotency_key, domain_key, generation,
    effect, key_ttl, requested_digest, effective_digest, claim_token, claimed_by, attempt_at,
    lease_until, sent_until, tries, dispatched_at)
values (
    %(key)s, %(tool)s, %(args)s::json, %(run_key)s, %(position)s, %(thread_id)s,
    %(idempotency_key)s, %(domain_key)s, %(generation)s, %(effect)s, %(key_ttl)s,
    %(requested_digest)s, %(effective_digest)s, %(token)s, %(key)s, %(attempt_at)s,
    clock_timestamp() + %(lease)s, clock_timestamp() + %(deadline)s, 1, clock_timestamp())
returning *, clock_timestamp() as now;

-- insert_settled: an action that is never called: it duplicates another, or was refused.
insert into agent_actions (
    key, tool, args, run_key, position, thread_id, idempotency_key, domain_key, generation,
    effect, key_ttl, requested_digest, effective_digest, duplicate_of, status, outcome,
    effect_possible, result, done_at, parked_at, parked_reason)
values (
    %(key)s, %(tool)s, %(args)s::json, %(run_key)s, %(position)s, %(thread_id)s,
    %(idempotency_key)s, %(domain_key)s, %(generation)s, %(effect)s, %(key_ttl)s,
    %(requested_digest)s, %(effective_digest)s, %(duplicate_of)s, %(status)s, %(outcome)s,
    %(effect_possible)s, %(result)s::json,
    case when %(status)s = 'done' then clock_timestamp() end,
    case when %(parked_reason)s::text is not null then clock_timestamp() end,
    %(parked_reason)s)
returning *, clock_timestamp() as now;

-- dispatch: call an action that stands: a mere intent, or one taken over.
update agent_actions
   set claim_token = %(token)s,
       claimed_by = %(claimed_by)s,
       attempt_at = %(attempt_at)s,
       lease_until = clock_timestamp() + %(lease)s,
       sent_until = greatest(sent_until, clock_timestamp() + %(deadline)s),
       asking = false,
       in_progress = false,
       tries = tries + 1,
       dispatched_at = coalesce(dispatched_at, clock_timestamp())
 where key = %(key)s and status = 'pending'
returning *, clock_timestamp() as now;

-- take_to_look_up: own an action in order to ask about it; until when it may be sent stays (where
-- an older release has not said so, it is the lease, which this overwrites).
update agent_actions
   set claim_token = %(token)s,
       claimed_by = %(claimed_by)s,
       attempt_at = %(attempt_at)s,
       sent_until = coalesce(sent_until, lease_until),
       lease_until = clock_timestamp() + %(lease)s,
       asking = true
 where key = %(key)s and status = 'pending'
returning *, clock_timestamp() as now;

-- send_after_lookup: it surely never happened; call it, if the asking run still runs.
with run as (
    select run_key from agent_runs
     where run_key = %(run_key)s and state = 'running'
       for share
)
update agent_actions
   set asking = false, in_progress = false, tries = tries + 1,
       lease_until = clock_timestamp() + %(lease)s,
       sent_until = clock_timestamp() + %(deadline)s
  from run
 where key = %(key)s and claim_token = %(token)s and status = 'pending' and parked_at is null
returning key;

-- fail_try: the tool failed the try of this claim, which is over unless its tool goes on. Set,
-- not added, so that a repeated statement does not count twice.
update agent_actions
   set failures = %(failures)s, in_progress = %(in_progress)s,
       sent_until = case when %(over)s then least(sent_until, clock_timestamp())
                         else sent_until end
 where key = %(key)s and claim_token = %(token)s and status = 'pending'
returning key;

-- open_unknown: another turn's equal call of a keyless tool, which is still unknown. Two equal
-- calls in one message (the part before the dot) are two calls. Locked: it must not become
-- known before the row that repeats it is there to be settled with it.
select *, clock_timestamp() as now from agent_actions
 where run_key = %(run_key)s and tool = %(tool)s and effective_digest = %(effective_digest)s
   and parked_at is not null and domain_key is null and duplicate_of is null
   and split_part(position, '.', 1) <> split_part(%(position)s, '.', 1)
 order by created_at, key
 limit 1
   for share;

-- settle: a person's word about an unknown action, and about the calls answered with it.
update agent_actions
   set status = 'done', outcome = %(outcome)s, effect_possible = %(effect_possible)s,
       result = %(result)s::json, done_at = clock_timestamp(),
       settled_at = case when parked_at is not null then clock_timestamp() end,
       parked_at = null, parked_reason = null,
       decided_by = %(by)s, decided_at = clock_timestamp()
 where status = 'pending'
   and (key = %(key)s or (duplicate_of = %(key)s and parked_at is not null))
returning *, clock_timestamp() as now;

-- hand_back: the attempt sent nothing; the row is an intent again. Not if an earlier attempt
-- may have sent something: this one dispatched it a second time, or only asks about it. Not if
-- somebody was told that it is unknown either: a record, or a person, settles that.
update agent_actions
   set claim_token = null, claimed_by = null, attempt_at = null, lease_until = null,
       sent_until = null, dispatched_at = null, tries = tries - 1,
       failures = greatest(failures, %(failures)s)
 where key = %(key)s and claim_token = %(token)s and status = 'pending' and tries = 1
   and not asking and parked_at is null
returning key;

-- record: the outcome, by the attempt that holds the claim; the first one stands.
update agent_actions
   set status = 'done', outcome = %(outcome)s, effect_possible = %(effect_possible)s,
       result = %(result)s::json, done_at = clock_timestamp()
 where key = %(key)s and claim_token = %(token)s and status = 'pending' and parked_at is null
returning key;

-- record_late: the same where the common case is not: by the attempt that holds the claim, of
-- an action that was told to be unknown meanwhile; and that it happened, by an attempt that
-- another one has taken over from and that nobody is at work for any more, which is true
-- whoever owns the row.
update agent_actions
   set status = 'done', outcome = %(outcome)s, effect_possible = %(effect_possible)s,
       result = %(result)s::json, done_at = clock_timestamp(),
       settled_at = case when parked_at is not null then clock_timestamp() end,
       parked_at = null, parked_reason = null
 where key = %(key)s and status = 'pending'
   and (claim_token = %(token)s
        or (%(outcome)s = 'ok' and dispatched_at is not null
            and (parked_at is not null or lease_until < clock_timestamp())))
returning key;

-- void_intent: nothing was sent, and its run, which does not run any more, never will.
update agent_actions
   set status = 'done', outcome = 'error', effect_possible = false,
       result = %(result)s::json, done_at = clock_timestamp()
 where key = %(key)s and status = 'pending' and dispatched_at is null and parked_at is null
returning key;

-- settle_repeats: the calls that were answered with an action that was unknown until now.
update agent_actions
   set status = 'done', outcome = %(outcome)s, effect_possible = %(effect_possible)s,
       result = %(result)s::json, done_at = clock_timestamp(),
       parked_at = null, parked_reason = null, settled_at = clock_timestamp()
 where duplicate_of = %(key)s and parked_at is not null;

-- park: not sent again by itself; a person settles it.
update agent_actions
   set parked_at = clock_timestamp(), parked_reason = %(reason)s,
       failures = coalesce(%(failures)s::integer, failures),
       -- The attempt that parks its own call is over; one that was lost may still be at work.
       lease_until = case when %(over)s then clock_timestamp() else lease_until end
 where key = %(key)s and status = 'pending' and parked_at is null
   and (%(token)s::uuid is null or claim_token = %(token)s)
returning *, clock_timestamp() as now;

-- list_actions: the actions of a run, or of all runs, oldest or newest first.
select *, clock_timestamp() as now from agent_actions
 where (%(run_key)s::text is null or run_key = %(run_key)s)
   and (not %(only_parked)s or parked_at is not null)
 order by case when %(newest_first)s then created_at end desc, created_at, key
 limit %(limit)s;

-- record_completion: the first completion of a model turn stands.
insert into agent_completions (run_key, step, completion)
values (%(run_key)s, %(step)s, %(completion)s::json)
on conflict (run_key, step) do nothing
returning completion::text;

-- get_completion: what the model answered at this turn, if it is recorded.
select completion::text from agent_completions
 where run_key = %(run_key)s and step = %(step)s;

-- pending_notices: what has been settled since the run was told that it is unknown, up to this turn.
select *, clock_timestamp() as now from agent_actions
 where run_key = %(run_key)s and settled_at is not null
   and (notified_step is null or notified_step = %(step)s)
 order by settled_at, key;

-- mark_notified: the model is told of them at this turn.
update agent_actions set notified_step = %(step)s
 where key = any(%(keys)s) and settled_at is not null and notified_step is null;
