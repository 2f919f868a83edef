-- Undoing what a run did, runs of runs, and what the relay has to see to.

alter table agent_runs
    -- The run whose call this one carries out: a sub-agent's. Stop and undo reach it from there.
    add column parent_key    text,
    -- A stop that also undoes.
    add column compensate    boolean not null default false,
    -- When undoing began last, and when it was through: with everything undone, or a list of
    -- what stands.
    add column undo_began_at  timestamptz,
    add column undo_ended_at    timestamptz,
    -- How the workflow ended where the run could not say so itself: terminated, timed_out, …
    add column gone_as       text,
    -- Temporal's namespace; what lives in one is not to be found in another.
    add column namespace     text,
    -- When the relay looked last whether the workflow lives.
    add column looked_at     timestamptz,
    -- Bug prevented: a sub-agent's run that no stop and no undo reaches.
    add constraint agent_runs_parent_exists
        foreign key (parent_key) references agent_runs (run_key),
    -- Bug prevented: a run that a reset drives forward after what it did was taken back.
    add constraint agent_runs_undo_is_final
        check (undo_began_at is null or stopped_at is not null),
    add constraint agent_runs_undo_ended_had_begun
        check (undo_ended_at is null or undo_began_at is not null);
create index agent_runs_by_parent on agent_runs (parent_key) where parent_key is not null;
-- What the relay looks through.
create index agent_runs_open on agent_runs (looked_at nulls first) where state <> 'ended';

alter table agent_actions
    -- The tool that undoes it, as the tool said when it was called; newer code changes nothing.
    add column compensator  text,
    -- The action that this one undoes, and the one that undid this one.
    add column undoes       text,
    add column undone_by    text,
    -- When somebody had it tried again, or asked about, after it had been parked.
    add column reopened_at  timestamptz,
    -- Sent by the relay, whatever becomes of the run: the outbox's, or detached.
    add column relayed      boolean not null default false,
    -- Bug prevented: an undo of itself, which would free its own business fact.
    add constraint agent_actions_undoes_another check (undoes <> key and undone_by <> key);
create index agent_actions_undoing on agent_actions (undoes) where undoes is not null;

-- The relay's queue: actions that need somebody. A row goes when its action has an end.
create table agent_relay (
    key         text        not null,
    -- The order of the commits of those that share an order_key.
    seq         bigint      generated always as identity,
    -- send: nobody else sends it; ask: its run is gone; undo: it happened after its run's undo.
    why         text        not null,
    -- Who can see to it: a worker that has this tool.
    tool        text        not null,
    order_key   text,
    -- Not started before; null where it waits for a person.
    due_at      timestamptz default clock_timestamp(),
    -- How often a settling has been started.
    starts      integer     not null default 0,
    created_at  timestamptz not null default clock_timestamp(),
    constraint agent_relay_pkey primary key (key),
    constraint agent_relay_action_exists
        foreign key (key) references agent_actions (key) on delete cascade,
    constraint agent_relay_why_is_known check (why in ('send', 'ask', 'undo'))
);
create index agent_relay_due on agent_relay (due_at);
create index agent_relay_in_order on agent_relay (order_key, seq) where order_key is not null;
