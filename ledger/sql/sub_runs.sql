-- Named queries of sub-agents' runs. Runs are locked from the top down: a parent before those
-- below it.
-- A line `-- name: purpose` starts each query; parameters are always bound.

-- lock_ancestors: a run and all above it, the topmost first. No other session changes their states
-- until this transaction has committed: a stop comes before it, or finds what it writes.
with recursive line as (
    select run_key, parent_key from agent_runs where run_key = %(run_key)s
    union
    select r.run_key, r.parent_key from agent_runs r join line on r.run_key = line.parent_key
)
select *, clock_timestamp() as now from agent_runs
 where run_key in (select run_key from line)
 order by length(run_key)
   for share;

-- lock_sub_run: no attempt claims in the run until this transaction has committed.
select *, clock_timestamp() as now from agent_runs where run_key = %(run_key)s for update;

-- insert_sub_run: register a run that another run's call begins.
insert into agent_runs (
    run_key, workflow_id, agent, input_digest, opened_attempt_at, parent_key, owner)
values (%(run_key)s, %(workflow_id)s, %(agent)s, %(input_digest)s, %(attempt_at)s,
        %(parent_key)s, %(workflow_id)s)
returning *, clock_timestamp() as now;

-- assign_sub_run: give the run to the workflow that its parent starts now. If it has ended, it
-- goes on.
update agent_runs
   set workflow_id = %(workflow_id)s, owner = %(workflow_id)s, opened_attempt_at = %(attempt_at)s,
       state = case when state = 'ended' and stopped_at is null
                         and ended_attempt_at < %(attempt_at)s
                    then 'running' else state end,
       cleared_at = null
 where run_key = %(run_key)s
returning *, clock_timestamp() as now;

-- unassign_sub_runs: no workflow acts for these runs any more.
update agent_runs
   set owner = '', opened_attempt_at = greatest(opened_attempt_at, %(attempt_at)s)
 where run_key = any(%(run_keys)s) and parent_key is not null;

-- runs_below: the runs of a run's sub-agents, and theirs, the upper ones first.
with recursive below as (
    select run_key from agent_runs where parent_key = %(run_key)s
    union
    select r.run_key from agent_runs r join below on r.parent_key = below.run_key
)
select *, clock_timestamp() as now from agent_runs
 where run_key in (select run_key from below)
 order by length(run_key), run_key;

-- close_runs: end these runs for good: their parent goes on without them, and nothing opens them
-- again.
update agent_runs
   set state = case state when 'undoing' then state else 'ended' end, owner = '',
       ended_attempt_at = greatest(ended_attempt_at, opened_attempt_at),
       stopped_at = coalesce(stopped_at, clock_timestamp()),
       stop_reason = coalesce(stop_reason, %(reason)s)
 where run_key = any(%(run_keys)s);

-- list_actions_of_tree: the actions of a run and of those below it, oldest first.
with recursive tree as (
    select run_key from agent_runs where run_key = %(run_key)s
    union
    select r.run_key from agent_runs r join tree on r.parent_key = tree.run_key
)
select *, clock_timestamp() as now from agent_actions
 where run_key in (select run_key from tree)
   and (not %(only_parked)s or parked_at is not null)
 order by created_at, key
 limit %(limit)s;
