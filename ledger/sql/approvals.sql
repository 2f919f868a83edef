-- Named queries of approvals.
-- A line `-- name: purpose` starts each query; parameters are always bound.

-- request_approval: request it once, in a run that is running; the first request stands. Who
-- requests it again waits for it from now on.
with run as (
    select run_key from agent_runs
     where run_key = %(run_key)s and state = 'running'
       and (epoch <= %(epoch)s or fork_step > %(step)s)
       for share
)
insert into agent_approvals (
    key, generation, run_key, position, thread_id, tool, args, requested_digest, expires_at,
    waiting_workflow)
select %(key)s, %(generation)s, run.run_key, %(position)s, %(thread_id)s, %(tool)s, %(args)s::json,
       %(requested_digest)s, clock_timestamp() + %(expires_after)s::interval,
       %(waiting_workflow)s
  from run
on conflict (key, generation) do update set waiting_workflow = excluded.waiting_workflow
 where agent_approvals.decision is null;

-- wait_for_approval: this workflow waits for the decision from now on, until there is one.
update agent_approvals set waiting_workflow = %(waiting_workflow)s
 where key = %(key)s and decision is null
   and waiting_workflow is distinct from %(waiting_workflow)s;

-- get_approval: the newest approval of a call; `now` is the database's clock, by which it expires.
-- Whether its run acts is seen when it is decided: the next execution may open that again.
select a.*, r.workflow_id, false as run_over, clock_timestamp() as now
  from agent_approvals a join agent_runs r using (run_key)
 where a.key = %(key)s
 order by a.generation desc
 limit 1;

-- decide: the one decision, while it may still be made and the run may still act on it.
with run as (
    select r.run_key, r.workflow_id from agent_runs r join agent_approvals a using (run_key)
     where a.key = %(key)s and a.generation = %(generation)s and r.state = 'running'
       for share of r
)
update agent_approvals
   set decision = %(decision)s, decided_by = %(by)s, decided_at = clock_timestamp(),
       reason = %(reason)s, edited_args = %(edited_args)s::json
  from run
 where key = %(key)s and generation = %(generation)s and decision is null
   and withdrawn_at is null and (expires_at is null or expires_at > clock_timestamp())
returning agent_approvals.*, run.workflow_id, false as run_over, clock_timestamp() as now;

-- expire_approval: no person decided in time.
update agent_approvals
   set decision = 'expired', decided_by = 'nobody', decided_at = clock_timestamp()
 where key = %(key)s and decision is null and expires_at <= clock_timestamp();

-- withdraw_approvals: the run was forked to before these calls.
update agent_approvals set withdrawn_at = clock_timestamp()
 where run_key = %(run_key)s and position = any(%(positions)s) and decision is null
   and withdrawn_at is null;

-- list_approvals: those that wait for a person, or all; the longest waiting first.
select a.*, r.workflow_id, r.state <> 'running' as run_over, clock_timestamp() as now
  from agent_approvals a join agent_runs r using (run_key)
 where (%(run_key)s::text is null or a.run_key = %(run_key)s)
   and (not %(only_waiting)s
        or (a.decision is null and a.withdrawn_at is null and r.state = 'running'
            and (a.expires_at is null or a.expires_at > clock_timestamp())))
 order by a.requested_at, a.key
 limit %(limit)s;
