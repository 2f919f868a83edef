-- Named queries of undoing. A line `-- name: purpose` starts each; parameters are always bound.
-- A run's tree is the run and those that carry out its calls, at any depth.

-- lock_tree: the runs of a tree, kept as they are until this transaction ends; itself first.
with recursive tree as (
    select run_key, 0 as depth from agent_runs where run_key = %(run_key)s
    union all
    select r.run_key, tree.depth + 1 from agent_runs r join tree on r.parent_key = tree.run_key
)
select r.*, clock_timestamp() as now from agent_runs r join tree using (run_key)
 order by tree.depth, r.run_key
   for update of r;

-- may_undo: whether anything of these runs stands, or may, that a tool can take back; or is
-- accepted and not sent yet, which an undo calls off. Of that, where nobody has asked for the undo,
-- what a tool could take back once it is sent: the rest is sent whatever becomes of the run.
select exists (
    select from agent_actions
     where run_key = any(%(run_keys)s) and undone_by is null and duplicate_of is null
       and (status = 'pending' or effect_possible)
       and (compensator is not null and dispatched_at is not null
            or relayed and status = 'pending' and dispatched_at is null
               and (compensator is not null or %(asked_for)s))
) as found;

-- took_effect: whether a call of one of these tools took effect in these runs, or may have; a
-- receipt of another action's counts, too.
select exists (
    select from agent_actions
     where run_key = any(%(run_keys)s) and tool = any(%(tools)s) and undoes is null
       and (duplicate_of is not null or dispatched_at is not null)
       and (status = 'pending' or effect_possible)
) as found;

-- begin_undo: nothing goes forward in these runs from now on, for good.
update agent_runs
   set state = 'undoing', undo_began_at = clock_timestamp(), undo_ended_at = null,
       stopped_at = coalesce(stopped_at, clock_timestamp()),
       stop_reason = coalesce(stop_reason, %(why)s)
 where run_key = any(%(run_keys)s);

-- undo_rows: what can be taken back of a tree, and what was done to take it back.
with recursive tree as (
    select run_key from agent_runs where run_key = %(run_key)s
    union all
    select r.run_key from agent_runs r join tree on r.parent_key = tree.run_key
)
select a.*, clock_timestamp() as now from agent_actions a join tree using (run_key)
 where a.compensator is not null or a.undoes is not null
 order by a.created_at, a.key;

-- fate_rows: every action of a tree, without what it returned; of an undo, why it had no effect.
with recursive tree as (
    select run_key from agent_runs where run_key = %(run_key)s
    union all
    select r.run_key from agent_runs r join tree on r.parent_key = tree.run_key
)
select a.*,
       case when a.undoes is not null and a.outcome = 'error' then a.result
            when a.result is not null then 'null'::json end as result,
       clock_timestamp() as now
  from agent_actions a join tree using (run_key)
 order by a.created_at, a.key;

-- reliance: whether what an action did stands; see commitline_reliance.
select commitline_reliance(a) as reliance from agent_actions a where a.key = %(key)s;

-- park_pending: what is not known of these runs is a person's from now on.
update agent_actions
   set parked_at = clock_timestamp(),
       parked_reason = 'the run ended before it was known what became of this'
 where run_key = any(%(run_keys)s) and status = 'pending' and parked_at is null
   and dispatched_at is not null and not relayed;

-- end_undo: undoing is through.
update agent_runs
   set state = 'ended', undo_ended_at = clock_timestamp(),
       ended_attempt_at = greatest(ended_attempt_at, %(attempt_at)s)
 where run_key = any(%(run_keys)s);
