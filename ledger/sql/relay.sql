-- Named queries of the relay.
-- A line `-- name: purpose` starts each query; parameters are always bound.

-- take_due: take entries that are due, for a while: of many relays one gets each. Of those that
-- share an order_key only the first one: the others wait until it has an end.
with found as (
    select q.key from agent_relay q
     where q.due_at <= clock_timestamp() and q.tool = any(%(tools)s)
       -- Whether a workflow is alive can be found out in its own namespace only.
       and not exists (select from agent_actions a join agent_runs r using (run_key)
                        where a.key = q.key and r.namespace <> %(namespace)s)
       and (q.order_key is null or not exists (
            select from agent_relay e where e.order_key = q.order_key and e.seq < q.seq))
     order by q.due_at, q.seq
     limit %(limit)s
       for update of q skip locked
)
update agent_relay q set due_at = clock_timestamp() + %(taken_for)s
  from found where q.key = found.key
returning q.*;

-- count_start: a relay has begun with the entry; if that is lost, another try comes, later each
-- time. Not where the entry was changed meanwhile, or is about to be: a relay waits for nobody.
update agent_relay
   set starts = starts + 1,
       due_at = clock_timestamp() + least(%(first)s::interval * power(2, least(starts, 20)),
                                          %(most)s::interval)
 where key = (select key from agent_relay where key = %(key)s and due_at = %(taken_until)s
                for update skip locked);

-- get_relay_entry: what the relay has to do about an action, and whether it is the first of its
-- order.
select q.*, q.order_key is null or not exists (
           select from agent_relay e where e.order_key = q.order_key and e.seq < q.seq
       ) as first_in_order
  from agent_relay q where q.key = %(key)s;

-- dequeue_if_settled: delete the entry if its action has an end, and notify the next one of its
-- order; keep the entry for a person if the action is parked. The action is locked: what its own
-- transaction wrote is seen.
with action as (
    select a.key,
           a.status = 'done' and (q.why <> 'undo' or a.undone_by is not null
               or (select count(*) > 0 and bool_and(u.status = 'done' or u.parked_at is not null)
                     from agent_actions u where u.undoes = a.key)) as ended,
           a.parked_at is not null as parked
      from agent_actions a join agent_relay q using (key) where a.key = %(key)s
), dequeued as (
    delete from agent_relay using action
     where agent_relay.key = action.key and action.ended
    returning agent_relay.order_key
), kept as (
    update agent_relay set due_at = null from action
     where agent_relay.key = action.key and action.parked and not action.ended
)
select pg_notify('commitline_relay', order_key) from dequeued where order_key is not null;

-- define: what the tool's definition says of an intent, before it is sent for the first time.
update agent_actions
   set effect = %(effect)s, key_ttl = %(key_ttl)s, compensator = %(compensator)s
 where key = %(key)s and status = 'pending' and dispatched_at is null
   and commitline_wait_briefly()
returning *, clock_timestamp() as now;

-- park_unsettled: the relay could not settle it, time after time: a person does.
update agent_actions
   set parked_at = clock_timestamp(), parked_reason = %(reason)s
 where key = %(key)s and status = 'pending' and parked_at is null
   and (lease_until is null or lease_until <= clock_timestamp())
returning key;

-- leave_undo_to_person: the relay could not begin the undo, time after time.
update agent_relay set due_at = null where key = %(key)s and why = 'undo';

-- queue_again: a person has reopened the action: the relay tries it again.
insert into agent_relay (key, why, tool) select key, 'send', tool from agent_actions
 where key = %(key)s and status = 'pending'
on conflict (key) do update set why = 'send', due_at = clock_timestamp(), starts = 0;

-- notify_relay: an entry is due.
select pg_notify('commitline_relay', %(key)s);

-- get_now: the database's clock.
select clock_timestamp() as now;

-- take_runs: open runs whose workflows the relay looks at, those first that it saw longest ago.
update agent_runs r set looked_at = clock_timestamp()
  from (select run_key from agent_runs
         where state <> 'ended' and not starts_with(run_key, 'outbox/')
           and (namespace is null or namespace = %(namespace)s)
           and created_at < clock_timestamp() - interval '5 seconds'
           and (looked_at is null or looked_at < %(before)s)
         order by looked_at nulls first
         limit %(limit)s
           for update skip locked) found
 where r.run_key = found.run_key
returning r.*, clock_timestamp() as now;

-- end_lost: end a run whose workflow has ended without recording it. Not if the run's state has
-- changed since the relay looked: an undo may have begun.
update agent_runs
   set state = 'ended', workflow_status = %(workflow_status)s,
       ended_attempt_at = greatest(ended_attempt_at, %(ended_at)s::timestamptz)
 where run_key = %(run_key)s and state = %(state)s and state <> 'ended'
returning run_key;

-- park_lost: park what such a run left dispatched, where no worker can look it up.
update agent_actions
   set parked_at = clock_timestamp(), parked_reason = %(reason)s
 where run_key = %(run_key)s and status = 'pending' and parked_at is null
   and dispatched_at is not null and not relayed;

-- queue_lookups: the relay looks up what such a run left dispatched, once no attempt can be at
-- work on it. Not what its undo called: the next undo of the run goes on with that.
insert into agent_relay as q (key, why, tool, due_at)
select key, 'lookup', tool, greatest(lease_until, clock_timestamp())
  from agent_actions
 where run_key = %(run_key)s and status = 'pending' and parked_at is null
   and dispatched_at is not null and not starts_with(position, 'undo-') and not relayed
-- The entry was kept for a person, and the action was then reopened by an undo that was lost.
on conflict (key) do update set due_at = excluded.due_at where q.due_at is null;

-- list_relay: the queue, the next entry first.
select q.*, a.parked_reason, a.run_key, a.position,
       case when q.order_key is not null then (
           select e.key from agent_relay e where e.order_key = q.order_key and e.seq < q.seq
            order by e.seq limit 1) end as behind,
       clock_timestamp() as now
  from agent_relay q join agent_actions a using (key)
 order by q.due_at nulls last, q.seq
 limit %(limit)s;

-- list_lost: runs whose workflows ended without recording it, and what of them stands.
select r.run_key, r.workflow_id, r.agent, r.workflow_status, r.ended_attempt_at as ended_at,
       count(*) filter (where a.status = 'done' and a.effect_possible
                          and a.undone_by is null) as stands,
       count(*) filter (where a.status = 'pending' and a.dispatched_at is not null) as unknown
  from agent_runs r join agent_actions a using (run_key)
 where r.workflow_status is not null and r.workflow_status <> 'completed' and r.state = 'ended'
   and a.duplicate_of is null and a.undoes is null
 group by r.run_key
having count(*) filter (where a.effect_possible is not false and a.dispatched_at is not null
                          and a.undone_by is null) > 0
 order by r.ended_attempt_at desc, r.run_key
 limit %(limit)s;
