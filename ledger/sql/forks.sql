-- Named queries of forks, and of turns that another run left without an answer.
-- A line `-- name: purpose` starts each query; parameters are always bound.

-- close_run: another run goes on with its conversation: the run starts nothing any more. It is
-- inserted if a failover has lost its row.
insert into agent_runs (
    run_key, workflow_id, agent, input_digest, state, opened_attempt_at, ended_attempt_at,
    stopped_at, stop_reason, parent_key, owner)
values (%(run_key)s, %(workflow_id)s, '', '', 'ended', clock_timestamp(), clock_timestamp(),
        clock_timestamp(), %(reason)s, %(parent_key)s,
        case when %(parent_key)s::text is not null then '' end)
on conflict (run_key) do update
   -- What is being undone goes on being undone, and its undo ends it.
   set state = case agent_runs.state when 'undoing' then 'undoing' else 'ended' end,
       ended_attempt_at = greatest(agent_runs.ended_attempt_at, agent_runs.opened_attempt_at),
       stopped_at = coalesce(agent_runs.stopped_at, clock_timestamp()),
       stop_reason = coalesce(agent_runs.stop_reason, excluded.stop_reason);

-- domain_keys_of_turn: the domain keys of a model turn's calls that are under way, in the order in
-- which they are locked. Also those of dispatched calls: an attempt may hand its row back
-- meanwhile.
select domain_key from agent_actions
 where run_key = %(run_key)s and position = any(%(positions)s)
   and domain_key is not null and status = 'pending' and parked_at is null
 order by domain_key;

-- lock_turn_actions: the actions of a model turn that are under way. No parked ones: a settlement
-- locks an unknown action and then those that repeat it, which is another order.
select *, clock_timestamp() as now from agent_actions
 where run_key = %(run_key)s and position = any(%(positions)s)
   and status = 'pending' and parked_at is null
 order by key
   for update;

-- get_turn_actions: the actions of a model turn.
select *, clock_timestamp() as now from agent_actions
 where run_key = %(run_key)s and position = any(%(positions)s)
 order by key;

-- lock_claimed_for: the rows of other actions that calls of a run carried out, or carry out now.
select *, clock_timestamp() as now from agent_actions
 where claimed_by = any(%(keys)s) and claimed_by <> key
 order by key
   for update;

-- list_positions: the positions of a run's actions.
select key, position from agent_actions where run_key = %(run_key)s;

-- list_asked: the positions at which a run's calls wait for a person.
select position from agent_approvals
 where run_key = %(run_key)s and decision is null and withdrawn_at is null
union
select position from agent_questions
 where run_key = %(run_key)s and answered_at is null and replaced_at is null
   and withdrawn_at is null;

-- lock_run_to_fork: no other session claims in it, stops it or forks it until this has committed.
select *, clock_timestamp() as now from agent_runs where run_key = %(run_key)s for no key update;

-- written_by_others: another run that has written the conversation from this version on.
select run_key from agent_messages
 where thread_id = %(thread_id)s and version >= %(version)s and superseded_at is null
   and run_key <> %(run_key)s
 limit 1;

-- reopen_requests: take back the replies from this version on.
update agent_requests set reply = null, replied_version = null
 where thread_id = %(thread_id)s and replied_version >= %(version)s;

-- supersede: take back the messages from this version on.
update agent_messages set superseded_at = clock_timestamp()
 where thread_id = %(thread_id)s and version >= %(version)s and superseded_at is null;

-- supersede_states: take back the states from this version on.
update agent_states set superseded_at = clock_timestamp()
 where thread_id = %(thread_id)s and version >= %(version)s and superseded_at is null;

-- fork_thread: the fork is a commit of its own, so that what was under way before is stale.
update agent_threads
   set version = version + 1, written_by = %(run_key)s,
       forked_run = %(run_key)s, forked_step = %(step)s
 where thread_id = %(thread_id)s
returning version;

-- fork_run: open the next epoch.
update agent_runs set epoch = epoch + 1, fork_step = %(step)s
 where run_key = %(run_key)s
returning epoch;

-- reset_notices: the notices in messages that are taken back are pending again.
update agent_actions set notified_version = null
 where coalesce(thread_id, run_key) = %(thread_id)s and settled_at is not null
   and notified_version >= %(version)s;
