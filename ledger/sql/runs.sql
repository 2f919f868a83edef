-- Named queries of runs.
-- A line `-- name: purpose` starts each query; parameters are always bound.

-- open_run: register a run, or go on with one that a retry or a reset opens again.
insert into agent_runs (
    run_key, workflow_id, agent, input_digest, opened_attempt_at, thread_id, spec,
    parent_key, owner, namespace, timeline)
values (%(run_key)s, %(workflow_id)s, %(agent)s, %(input_digest)s, %(attempt_at)s,
        %(thread_id)s, %(spec)s::json, %(parent_key)s, %(owner)s, %(namespace)s,
        case when %(lost)s then 'lost' else commitline_timeline() end)
on conflict (run_key) do update
    set agent = coalesce(nullif(agent_runs.agent, ''), excluded.agent),
        -- What the run has kept of its agent since it began; a deploy does not change it.
        spec = coalesce(agent_runs.spec, excluded.spec),
        thread_id = coalesce(agent_runs.thread_id, excluded.thread_id),
        input_digest = coalesce(nullif(agent_runs.input_digest, ''), excluded.input_digest),
        namespace = coalesce(agent_runs.namespace, excluded.namespace),
        state = case
            when agent_runs.state = 'ended' and agent_runs.stopped_at is null
                 and agent_runs.ended_attempt_at < excluded.opened_attempt_at
                 and agent_runs.owner is not distinct from excluded.owner
            then 'running' else agent_runs.state end,
        cleared_at = null,
        -- Its workflow is alive again: a reset or a retry goes on with the run.
        workflow_status = case
            when agent_runs.stopped_at is null
                 and agent_runs.ended_attempt_at < excluded.opened_attempt_at
            then null else agent_runs.workflow_status end
returning *, clock_timestamp() as now;

-- stop_run: from this commit on the run starts nothing. What is being undone goes on being undone.
-- A run that has not opened yet never opens.
insert into agent_runs (
    run_key, workflow_id, agent, input_digest, state, opened_attempt_at, stopped_at, stop_reason,
    compensate, parent_key, owner, namespace)
values (%(run_key)s, %(workflow_id)s, %(agent)s, '', 'stopping', %(attempt_at)s,
        clock_timestamp(), %(reason)s, %(compensate)s, %(parent_key)s, %(owner)s, %(namespace)s)
on conflict (run_key) do update
    set state = case agent_runs.state when 'running' then 'stopping' else agent_runs.state end,
        stopped_at = coalesce(agent_runs.stopped_at, clock_timestamp()),
        stop_reason = coalesce(agent_runs.stop_reason, excluded.stop_reason),
        compensate = agent_runs.compensate or excluded.compensate
returning *, clock_timestamp() as now;

-- stop_sub_runs: the runs of a run's sub-agents, and theirs, stop with it.
with recursive below as (
    select run_key from agent_runs where parent_key = %(run_key)s
    union
    select r.run_key from agent_runs r join below on r.parent_key = below.run_key
)
update agent_runs
   set state = case agent_runs.state when 'running' then 'stopping' else agent_runs.state end,
       stopped_at = coalesce(stopped_at, clock_timestamp()),
       stop_reason = coalesce(stop_reason, %(reason)s)
 where run_key in (select run_key from below);

-- end_run: end a run; a later attempt (by the engine's clock) may open it again. A run that is
-- being undone is ended by its undo. A sub-agent's run is not ended if another workflow owns it
-- now.
update agent_runs
   set state = case state when 'undoing' then state else 'ended' end, workflow_status = null,
       ended_attempt_at = greatest(ended_attempt_at, %(attempt_at)s)
 where run_key = %(run_key)s and (owner is null or owner = coalesce(%(owner)s::text, owner))
returning *, clock_timestamp() as now;

-- park_left_over: no attempt takes over what an ended run leaves dispatched (a stop came between
-- two tries): a person settles it.
update agent_actions
   set parked_at = clock_timestamp(),
       parked_reason = 'the run ended between two tries: the last one may have happened',
       -- A try that is known to be over needs its lease no longer.
       lease_until = case when sent_until <= clock_timestamp() then clock_timestamp()
                          else lease_until end
 where run_key = %(run_key)s
   and status = 'pending' and parked_at is null and dispatched_at is not null
   -- The relay sends these, whatever becomes of the run.
   and not relayed
   -- A younger execution (a reset's) has begun these, and goes on with the run.
   and attempt_at <= %(attempt_at)s
   and not exists (select from agent_runs where run_key = %(run_key)s and state = 'undoing')
   and (claimed_by = key or lease_until < clock_timestamp())
   -- The relay looks these up, or sends them.
   and not exists (select from agent_relay q where q.key = agent_actions.key
                                               and q.due_at is not null);

-- get_run: one run.
select *, clock_timestamp() as now from agent_runs where run_key = %(run_key)s;

-- known_runs: those of these runs that are there, by key, or a sub-agent's by its workflow.
select *, clock_timestamp() as now from agent_runs where run_key = any(%(run_keys)s)
union all
select *, clock_timestamp() as now from agent_runs
 where workflow_id = any(%(workflow_ids)s) and parent_key is not null;

-- get_timeline: what changes where the ledger becomes another one, or its server starts anew.
select commitline_timeline() as timeline;

-- get_begun: the newest run that a caller started under a workflow id; a sub-agent's has its own.
select *, clock_timestamp() as now from agent_runs
 where workflow_id = %(workflow_id)s and parent_key is null
   and coalesce(namespace, %(namespace)s) = %(namespace)s
 order by created_at desc, run_key
 limit 1;

-- list_runs: the newest runs; those of one workflow id, if it is given.
select *, clock_timestamp() as now from agent_runs
 where %(workflow_id)s::text is null or workflow_id = %(workflow_id)s
 order by created_at desc, run_key
 limit %(limit)s;

-- lock_run: no other session changes the run's state until this transaction has committed.
select *, clock_timestamp() as now from agent_runs where run_key = %(run_key)s for share;

-- reopen_run: an execution that began after the run's end goes on with it. A sub-agent's run goes
-- on only when its parent calls it again.
update agent_runs set state = 'running', workflow_status = null, cleared_at = null
 where run_key = %(run_key)s and state = 'ended' and stopped_at is null and parent_key is null
   and ended_attempt_at < %(attempt_at)s
returning *;
