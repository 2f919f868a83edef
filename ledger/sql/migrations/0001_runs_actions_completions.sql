-- Runs, their actions, the domain keys that actions hold, and recorded model completions.
--
-- Lock order, everywhere: run, domain key, action. A statement that needs a later lock
-- before an earlier one is a deadlock waiting for load.

create table agent_runs (
    run_key            text        not null,
    workflow_id        text        not null,
    agent              text        not null,
    input_digest       text        not null,
    state              text        not null default 'running',
    epoch              integer     not null default 0,
    -- By the engine's clock, as all times of attempts are.
    opened_attempt_at  timestamptz not null,
    -- It orders an execution that goes on after the one that ended, which the clocks of two
    -- machines could not.
    ended_attempt_at   timestamptz,
    created_at         timestamptz not null default now(),
    constraint agent_runs_pkey primary key (run_key),
    -- running    -- opened by the run's first activity; claims succeed
    -- stopping   -- running -> stopping: a stop was asked for; nothing new starts
    -- undoing    -- running | stopping -> undoing: what stands is being undone
    -- ended      -- any -> ended; ended -> running when a reset or a retry goes on
    constraint agent_runs_state_is_known
        check (state in ('running', 'stopping', 'undoing', 'ended')),
    constraint agent_runs_ended_says_when
        check (state <> 'ended' or ended_attempt_at is not null)
);
create index agent_runs_by_workflow on agent_runs (workflow_id, created_at desc);

-- One row per action: the intent before the call, the outcome after it.
create table agent_actions (
    key                 text        not null,
    tool                text        not null,
    -- json, not jsonb: the text comes back as it was written. jsonb rewrites floats, merges
    -- keys and refuses NUL and lone surrogates.
    args                json        not null,
    status              text        not null default 'pending',
    result              json,
    created_at          timestamptz not null default now(),

    run_key             text        not null,
    position            text        not null,
    thread_id           text,

    -- What the downstream system is given; null for an action that is never sent.
    idempotency_key     text,
    domain_key          text,
    generation          integer     not null default 1,
    effect              text        not null,
    key_ttl             interval,

    requested_digest    text        not null,
    effective_digest    text        not null,

    -- Who may record: the token of the claim that dispatched last. A claim by another action
    -- that settles this one is told apart by claimed_by.
    claim_token         uuid,
    claimed_by          text,
    attempt_at          timestamptz,
    lease_until         timestamptz,
    tries               integer     not null default 0,
    -- Of the first dispatch: from then on the downstream system may know our key.
    dispatched_at       timestamptz,
    done_at             timestamptz,

    outcome             text,
    effect_possible     boolean,
    parked_at           timestamptz,
    parked_reason       text,
    duplicate_of        text,
    codec_version       smallint    not null default 1,

    constraint agent_actions_pkey primary key (key),
    constraint agent_actions_run_exists
        foreign key (run_key) references agent_runs (run_key),
    -- Bug prevented: two rows for one call, after a change of how keys are made.
    constraint agent_actions_one_per_position unique (run_key, position),
    -- pending -> done; done is final.
    constraint agent_actions_status_is_known check (status in ('pending', 'done')),
    constraint agent_actions_effect_is_known
        check (effect in ('idempotent', 'lookup', 'at_most_once')),
    -- Bug prevented: a half-written row that is taken for a result.
    constraint agent_actions_done_is_complete check (
        (status = 'done') = (outcome is not null and effect_possible is not null
                             and result is not null and done_at is not null)),
    constraint agent_actions_outcome_is_known check (outcome in ('ok', 'error')),
    -- Bug prevented: "ok" that is also "nothing happened", which would release its key.
    constraint agent_actions_ok_had_its_effect check (outcome <> 'ok' or effect_possible),
    -- Bug prevented: a call that nobody can fence, or that no lease protects.
    constraint agent_actions_dispatch_is_complete check (
        dispatched_at is null
        or (idempotency_key is not null and claim_token is not null and claimed_by is not null
            and attempt_at is not null and lease_until is not null)),
    -- Bug prevented: a settled action that still asks for a person.
    constraint agent_actions_parked_is_pending
        check (parked_at is null or status = 'pending'),
    constraint agent_actions_parked_says_why
        check ((parked_at is null) = (parked_reason is null)),
    constraint agent_actions_generation_counts_from_one check (generation >= 1)
)
-- A row is written twice. Room on its page, and no index on what changes, make the second
-- write a heap-only one (HOT).
with (fillfactor = 75);
create index agent_actions_parked on agent_actions (parked_at) where parked_at is not null;

-- Who holds a business fact; generation is the last one given out, 0 for none. The row
-- outlives the action: a key that was released keeps counting, since the provider would answer
-- an old key with an old answer.
-- held_by is no foreign key: retention may remove the action and must not release the key.
create table agent_domain_keys (
    domain_key  text    not null,
    generation  integer not null,
    held_by     text,
    constraint agent_domain_keys_pkey primary key (domain_key),
    constraint agent_domain_keys_held_has_generation
        check (generation >= 0 and (held_by is null or generation >= 1))
);

-- A model's completion, recorded before it is acted on; the first one stands.
create table agent_completions (
    run_key     text        not null,
    step        integer     not null,
    completion  json        not null,
    created_at  timestamptz not null default now(),
    constraint agent_completions_pkey primary key (run_key, step),
    constraint agent_completions_run_exists
        foreign key (run_key) references agent_runs (run_key)
);
