-- Named queries of exits: who brings an action to its end; see commitline_exit in the migration.
-- A line `-- name: purpose` starts each query; parameters are always bound.

-- without_exit: actions that nobody brings to an end. Looks at the runs that are not cleared, at what
-- repeats another action, and at what others rely on. An array, by which an index can be searched,
-- since the planner overrates how many runs these are.
with seen as (
    select key from agent_actions
     where relayed and status = 'pending' and run_key = any(array(
           select run_key from agent_runs
            where state <> 'ended' and not starts_with(run_key, 'outbox/')))
    union
    select key from agent_actions
     where status = 'pending' and parked_at is null and run_key = any(array(
           select run_key from agent_runs r
            where cleared_at is null and (state = 'ended' or workflow_id = 'outbox')
              -- An outbox may be long, and what is queued has an exit.
              and not exists (select from agent_relay q
                               where q.key = r.run_key || ':0' and q.due_at is not null)))
    union
    select key from agent_actions
     where status = 'done' and compensator is not null and undone_by is null
       and run_key = any(array(
           select run_key from agent_runs
            where cleared_at is null and state = 'ended' and undo_ended_at is not null))
    union
    select key from agent_actions where parked_at is not null and duplicate_of is not null
    union
    select key from agent_intents where relies
)
select a.*, clock_timestamp() as now from agent_actions a
 where a.key = any(array(select key from seen)) and commitline_exit(a) is null
 order by a.created_at, a.key
 limit %(limit)s;

-- calls_left: dispatched calls of workflows that are not ours and that the ledger has as open, on
-- which no attempt is at work; first those for the longest time. Their workflow may have ended.
select key, run_key from agent_actions
 where status = 'pending' and parked_at is null and dispatched_at is not null and not relayed
   and lease_until < clock_timestamp() and run_key = any(array(
       select run_key from agent_runs
        where state <> 'ended' and spec is null and parent_key is null
          and not starts_with(run_key, 'outbox/')))
 order by lease_until, key
 limit %(limit)s;

-- clear_runs: look at ended runs, those first that were seen longest ago, and clear those of which
-- each action has an end, or is left to a person; also what the relay is to undo. Returns whether one
-- of their actions has no exit.
-- An outbox may be long: at one of its runs it looks again after ten minutes.
with found as (
    select r.run_key, r.undo_ended_at
      from (values (false, %(before)s::timestamptz),
                   (true, %(before)s::timestamptz - interval '10 minutes')) due (outbox, before)
     cross join lateral (
           select run_key, undo_ended_at, coalesce(looked_at, '-infinity') as looked_at
             from agent_runs
            where cleared_at is null and (state = 'ended' or workflow_id = 'outbox')
              and (workflow_id = 'outbox') = due.outbox
              and coalesce(looked_at, '-infinity') < due.before
            order by coalesce(looked_at, '-infinity')
            limit %(limit)s
              for no key update skip locked) r
     order by r.looked_at
     limit %(limit)s
), seen as (
    select found.run_key,
           count(*) filter (where one.key is not null and exit is distinct from 'nobody') > 0 as open,
           count(*) filter (where one.key is not null and exit is null) > 0 as left_over
      from found
      left join lateral (
           -- That of most is found by itself, for a fraction of what the function costs.
           select a.key, case when exists (select from agent_relay q
                                            where q.key = a.key and q.due_at is not null)
                              then 'relay' else commitline_exit(a) end as exit
             from agent_actions a
            where a.run_key = found.run_key
              and (a.status = 'pending' and a.parked_at is null
                   or found.undo_ended_at < a.done_at and commitline_owes_undo(a))
           offset 0) one on true  -- offset 0: each is computed once
     group by found.run_key
)
update agent_runs r
   set looked_at = clock_timestamp(),
       cleared_at = case when not seen.open then clock_timestamp() end
  from seen
 where r.run_key = seen.run_key
returning r.run_key, seen.left_over;

-- unclear_run: an action of the run is tried again: the relay looks at the run again.
update agent_runs set cleared_at = null where run_key = %(run_key)s and cleared_at is not null;

-- queue_left_over: what the relay has to send, and has lost from its queue.
insert into agent_relay (key, why, tool)
select a.key, 'send', a.tool from agent_actions a
 where a.run_key = %(run_key)s and a.relayed and a.status = 'pending' and a.parked_at is null
   and commitline_exit(a) is null
on conflict (key) do update set why = 'send', due_at = clock_timestamp(), starts = 0;

-- queue_lost_undos: what the relay is to undo, and has lost from its queue.
insert into agent_relay (key, why, tool)
select a.key, 'undo', a.compensator
  from agent_actions a join agent_runs r using (run_key)
 where a.run_key = %(run_key)s and r.undo_ended_at < a.done_at and commitline_owes_undo(a)
on conflict (key) do nothing;

-- park_lost_undos: the undo of the run is lost, and no attempt at it is at work. The next undo of
-- the run goes on with these.
update agent_actions a
   set parked_at = clock_timestamp(),
       parked_reason = 'the undo of its run was lost: `commitline undo` goes on with it'
 where a.run_key = %(run_key)s and starts_with(a.position, 'undo-') and a.status = 'pending'
   and a.parked_at is null and a.dispatched_at is not null and commitline_exit(a) is null;

-- adopt_relied_on: intents of ended runs that somebody else relies on.
with found as materialized (
    select a.key
      from agent_intents i join agent_actions a using (key) join agent_runs r using (run_key)
     where i.relies and a.status = 'pending' and a.dispatched_at is null and a.parked_at is null
       and not a.relayed and r.state = 'ended'
     order by a.key
       for no key update of a skip locked
)
select key from found where commitline_adopt(key);

-- end_reliance: these actions have an end: nobody relies on them any more.
update agent_intents i set relies = false
  from (select i.key, i.role from agent_intents i
         where i.relies
           and not exists (select from agent_actions a where a.key = i.key and a.status = 'pending')
           for update skip locked) ended
 where i.key = ended.key and i.role = ended.role;

-- settle_left_repeats: what repeats an action that has an end by now. It ends with that; this finds
-- what was overlooked.
select commitline_settle_repeats(f.key)
  from (select distinct r.duplicate_of as key from agent_actions r
         where r.parked_at is not null and r.duplicate_of is not null) repeated
  join agent_actions f using (key)
 where f.status = 'done';
