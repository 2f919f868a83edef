-- What attempts leave behind for the next one, stops, and what a run is told later.

alter table agent_actions
    -- Tries that the tool itself failed. Dead workers and outages do not count.
    add column failures     integer     not null default 0,
    -- Until when an attempt so far may still send something. "Not found downstream" counts
    -- only after that.
    add column sent_until   timestamptz,
    -- The attempt that owns it asks the downstream system, and has sent nothing itself.
    add column asking       boolean     not null default false,
    -- The downstream system said that it is at work on this very request.
    add column in_progress  boolean     not null default false,
    -- When what was unknown became known, and the model turn that told its run.
    add column settled_at   timestamptz,
    add column notified_step    integer,
    -- Bug prevented: a tool that is called for ever, because its count started below zero.
    add constraint agent_actions_failures_count_from_zero check (failures >= 0),
    -- Bug prevented: a run that is told twice, at two turns, of one settlement.
    add constraint agent_actions_told_what_was_settled
        check (notified_step is null or settled_at is not null);

-- What a run has to be told.
create index agent_actions_settled on agent_actions (run_key) where settled_at is not null;
-- The calls that were answered with an unknown action.
create index agent_actions_repeats on agent_actions (duplicate_of)
    where duplicate_of is not null and parked_at is not null;

alter table agent_runs
    -- A stop is for ever: nothing opens the run again, no reset and no retry.
    add column stopped_at   timestamptz,
    add column stop_reason  text,
    -- Bug prevented: a run that may start nothing, with nobody who says why.
    add constraint agent_runs_stop_says_why
        check ((stopped_at is null) = (stop_reason is null));
