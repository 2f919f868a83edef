-- Named queries of undoing. A run's tree is the run and those that carry out its calls, at any
-- depth.
-- A line `-- name: purpose` starts each query; parameters are always bound.

-- lock_tree: the runs of a tree, locked until this transaction has committed; the run itself
-- first.
with recursive tree as (
    select run_key, 0 as depth from agent_runs where run_key = %(run_key)s
    union all
    select r.run_key, tree.depth + 1 from agent_runs r join tree on r.parent_key = tree.run_key
)
select r.*, clock_timestamp() as now from agent_runs r join tree using (run_key)
 order by tree.depth, r.run_key
   for update of r;

-- may_undo: whether an undo of these runs has anything to do: an action stands, or may stand, that
-- a tool can undo; or the relay has not sent an action yet, which an undo calls off. Unless a
-- person requested the undo, only an action that a tool could undo is called off: the relay sends
-- the others whatever becomes of the run.
select exists (
    select from agent_actions
     where run_key = any(%(run_keys)s) and undone_by is null and duplicate_of is null
       and (status = 'pending' or effect_possible)
       and (compensator is not null and dispatched_at is not null
            or relayed and adopted_at is null and status = 'pending' and dispatched_at is null
               and (compensator is not null or %(requested)s))
) as found;

-- took_effect: whether a call of one of these tools took effect in these runs, or may have. A call
-- that was answered with another action's outcome counts, too.
select exists (
    select from agent_actions
     where run_key = any(%(run_keys)s) and tool = any(%(tools)s) and undoes is null
       and (duplicate_of is not null or dispatched_at is not null)
       and (status = 'pending' or effect_possible)
) as found;

-- begin_undo: these runs go forward no more, for good.
update agent_runs
   set state = 'undoing', undo_began_at = clock_timestamp(), undo_ended_at = null,
       undo_owner = %(by)s, cleared_at = null,
       stopped_at = coalesce(stopped_at, clock_timestamp()),
       stop_reason = coalesce(stop_reason, %(why)s)
 where run_key = any(%(run_keys)s);

-- take_over_undo: another workflow carries the undo of these runs out from now on.
update agent_runs set undo_owner = %(by)s
 where run_key = any(%(run_keys)s) and state = 'undoing' and undo_owner = %(after)s;

-- undo_rows: the actions of a tree that can be undone, and those that undo others, without their
-- arguments and results, which may be large (`a.*` would send them all the same): who undoes one
-- reads that one.
with recursive tree as (
    select run_key from agent_runs where run_key = %(run_key)s
    union all
    select r.run_key from agent_runs r join tree on r.parent_key = tree.run_key
)
select a.key, a.tool, a.status, a.created_at, a.run_key, a.position, a.thread_id,
       a.idempotency_key, a.domain_key, a.generation, a.effect, a.key_ttl,
       a.requested_digest, a.effective_digest, a.claim_token, a.claimed_by, a.attempt_at,
       a.unordered, a.lease_until, a.tries, a.dispatched_at, a.done_at, a.outcome, a.effect_possible,
       a.parked_at, a.parked_reason, a.duplicate_of, a.codec_version, a.decided_by,
       a.decided_at, a.failures, a.sent_until, a.looking_up, a.in_progress, a.settled_at,
       a.notified_version, a.compensator, a.undoes, a.undone_by, a.reopened_at, a.relayed,
       a.state_changes, a.undoes_domain_key, a.clocks_apart, a.live_undo_of, a.adopted_at,
       a.trace_parent, '{}'::json as args, case when a.result is not null then 'null'::json end as result,
       clock_timestamp() as now
  from agent_actions a join tree using (run_key)
 where a.compensator is not null or a.undoes is not null
 order by a.created_at, a.key;

-- fate_rows: every action of a tree, and the undos of these by other runs, without its result; of
-- an undo that failed, with its error.
with recursive tree as (
    select run_key from agent_runs where run_key = %(run_key)s
    union all
    select r.run_key from agent_runs r join tree on r.parent_key = tree.run_key
), own as (
    select a.key from agent_actions a join tree using (run_key)
)
select a.key, a.tool, a.status, a.created_at, a.run_key, a.position, a.thread_id,
       a.idempotency_key, a.domain_key, a.generation, a.effect, a.key_ttl,
       a.requested_digest, a.effective_digest, a.claim_token, a.claimed_by, a.attempt_at,
       a.unordered, a.lease_until, a.tries, a.dispatched_at, a.done_at, a.outcome, a.effect_possible,
       a.parked_at, a.parked_reason, a.duplicate_of, a.codec_version, a.decided_by,
       a.decided_at, a.failures, a.sent_until, a.looking_up, a.in_progress, a.settled_at,
       a.notified_version, a.compensator, a.undoes, a.undone_by, a.reopened_at, a.relayed,
       a.state_changes, a.undoes_domain_key, a.clocks_apart, a.live_undo_of, a.adopted_at,
       a.trace_parent, a.args,
       case when a.undoes is not null and a.outcome = 'error' then a.result
            when a.result is not null then 'null'::json end as result,
       clock_timestamp() as now
  from agent_actions a
 where a.key in (select key from own
                 union
                 -- An array, by which an index can be searched.
                 select key from agent_actions where undoes = any(array(select key from own)))
 order by a.created_at, a.key;

-- park_pending: a person settles what is still unknown of these runs.
update agent_actions
   set parked_at = clock_timestamp(),
       parked_reason = 'the run ended before it was known what became of this'
 where run_key = any(%(run_keys)s) and status = 'pending' and parked_at is null
   and dispatched_at is not null and not relayed;

-- end_undo: the undo of these runs is over.
update agent_runs
   set state = 'ended', undo_ended_at = clock_timestamp(),
       ended_attempt_at = greatest(ended_attempt_at, %(attempt_at)s)
 where run_key = any(%(run_keys)s);
