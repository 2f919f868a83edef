-- Named queries of the relay.
-- A line `-- name: purpose` starts each query; parameters are always bound.

-- take_due: take entries that are due, for a while: of many relays one gets each. Of those that
-- share an order_key only the first one: the others wait until it has an end. These come back, too,
-- not taken, and are due no more until an entry before them is gone. Nothing here waits for a lock:
-- what is being ended at this moment, and what waits for that, is left to the next look.
-- (select clock_timestamp()) is one value, by which an index can be searched.
with due as (
    select q.*
      from unnest(%(tools)s::text[]) served (tool)
     cross join (select distinct unnest(array['', %(namespace)s::text])) own (namespace)
     cross join lateral (
           select * from agent_relay
            where tool = served.tool and namespace = own.namespace and waits_for is null
              and due_at <= (select clock_timestamp())
            order by due_at, seq
            limit %(limit)s
              for no key update skip locked) q
     order by q.due_at, q.seq
     limit %(limit)s
), first as (
    select key from due
     where order_key is null or not exists (
           select from agent_relay e where e.order_key = due.order_key and e.seq < due.seq)
     order by due_at, seq
     limit %(left)s
), behind as (
    select due.key, e.key as earlier
      from due
     cross join lateral (
           select key from agent_relay
            where order_key = due.order_key and seq < due.seq
            order by seq desc
            limit 1
              for key share skip locked) e
), waiting as (
    update agent_relay q set waits_for = behind.earlier from behind where q.key = behind.key
    returning q.*
), taken as (
    update agent_relay q set due_at = clock_timestamp() + %(taken_for)s
      from first where q.key = first.key
    returning q.*
)
-- In this order: what was taken a moment ago by the same statement cannot be locked.
select *, false as taken from waiting union all select *, true from taken order by seq;

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
-- order; keep the entry for a person if the action is parked, and return whether it is. Its row is
-- locked, so what its own transaction wrote is seen. A workflow may go on to show that it waits (shown).
with action as (
    select a.key,
           a.status = 'done' and (q.why <> 'undo' or not commitline_undo_is_open(a)) as ended,
           a.parked_at is not null as parked
      from agent_actions a join agent_relay q using (key) where a.key = %(key)s
), dequeued as (
    delete from agent_relay using action
     where agent_relay.key = action.key and action.ended
    returning agent_relay.order_key
), kept as (
    update agent_relay q set due_at = null, shown = q.shown or %(shown)s from action
     where q.key = action.key and action.parked and not action.ended
    returning q.key
), told as (
    select pg_notify('commitline_relay', order_key) from dequeued where order_key is not null
)
select exists (select from kept) as parked, (select count(*) from told) as told;

-- show_no_more: its workflow is at work on it again.
update agent_relay set shown = false where key = %(key)s and shown;

-- queue_parked: have a workflow show each action that waits for a person after its run has ended, the
-- longest waiting first; up to so many of them at a time. Of these tools alone: what no worker serves
-- would be due for ever.
insert into agent_relay (key, why, tool, shown)
select a.key, 'lookup', a.tool, true
  from agent_actions a join agent_runs r using (run_key)
 where a.parked_at is not null and a.duplicate_of is null
   and (r.state = 'ended' or r.workflow_id = 'outbox')
   and coalesce(r.namespace, %(namespace)s) = %(namespace)s and a.tool = any(%(tools)s)
   and not exists (select from agent_relay q where q.key = a.key)
 order by a.created_at, a.key
 limit greatest(0, %(most)s - (select count(*) from agent_relay where shown))
on conflict (key) do nothing
returning key;

-- drop_settled: what has an end, and is due for its open workflow alone, but nobody has taken it for
-- five minutes: no worker serves its tool any more. The next one of its order is notified. That
-- workflow looks once a day.
with dropped as (
    delete from agent_relay q using agent_actions a
     where q.shown and q.due_at < clock_timestamp() - interval '5 minutes'
       and q.namespace in ('', %(namespace)s) and a.key = q.key and a.status = 'done'
       and (q.why <> 'undo' or not commitline_undo_is_open(a))
    returning q.key, q.order_key
), told as (
    select pg_notify('commitline_relay', order_key) from dropped where order_key is not null
)
select key, (select count(*) from told) as told from dropped;

-- take_sweep: begin a sweep for a task queue, if one is due and no other worker is at it. A time that
-- is still to come, but for what a sweep is held, is of a clock that was wrong, and holds up nobody.
insert into agent_sweeps as s (namespace, task_queue, began_at, busy_until)
select %(namespace)s, %(task_queue)s, clock_timestamp(), clock_timestamp() + %(busy_for)s
 where not exists (
       select from agent_sweeps
        where namespace = %(namespace)s and task_queue = %(task_queue)s
          and (busy_until > clock_timestamp() or began_at > clock_timestamp() - %(every)s::interval)
          and busy_until <= clock_timestamp() + %(busy_for)s
          and began_at <= clock_timestamp())
on conflict (namespace, task_queue) do update
   set began_at = excluded.began_at, busy_until = excluded.busy_until
 where s.busy_until <= clock_timestamp() and s.began_at <= clock_timestamp() - %(every)s::interval
    or s.busy_until > clock_timestamp() + %(busy_for)s or s.began_at > clock_timestamp()
returning began_at;

-- keep_sweep: the worker that began a sweep is at it for so long yet.
update agent_sweeps set busy_until = clock_timestamp() + %(busy_for)s
 where namespace = %(namespace)s and task_queue = %(task_queue)s and began_at = %(began_at)s;

-- get_sweep: when the last sweep of a task queue began.
select began_at from agent_sweeps
 where namespace = %(namespace)s and task_queue = %(task_queue)s;

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
with found as (
    select r.run_key
      from (select distinct unnest(array['', %(namespace)s::text])) own (namespace)
     cross join lateral (
           select run_key, coalesce(looked_at, '-infinity') as looked_at from agent_runs
            where state <> 'ended' and not starts_with(run_key, 'outbox/')
              and coalesce(namespace, '') = own.namespace
              and coalesce(looked_at, '-infinity') < %(before)s
              and created_at < clock_timestamp() - interval '5 seconds'
            order by coalesce(looked_at, '-infinity')
            limit %(limit)s
              for update skip locked) r
     order by r.looked_at
     limit %(limit)s
)
update agent_runs r set looked_at = clock_timestamp()
  from found
 where r.run_key = found.run_key
returning r.*, clock_timestamp() as now;

-- end_lost: end a run whose workflow has ended without recording it. Not if the run's state has
-- changed since the relay looked: an undo may have begun. Nor if another workflow carries it out by
-- now, as a sub-agent's run whose parent was reset: no claim would open that again.
update agent_runs
   set state = 'ended', workflow_status = %(workflow_status)s,
       ended_attempt_at = greatest(ended_attempt_at, %(ended_at)s::timestamptz)
 where run_key = %(run_key)s and state = %(state)s and state <> 'ended'
   and workflow_id = %(workflow_id)s
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
       a.stands, a.unknown
  from agent_runs r
 cross join lateral (
       select count(*) filter (where status = 'done' and effect_possible
                                 and undone_by is null) as stands,
              count(*) filter (where status = 'pending' and dispatched_at is not null) as unknown,
              count(*) filter (where effect_possible is not false and dispatched_at is not null
                                 and undone_by is null) as left_over
         from agent_actions
        where run_key = r.run_key and duplicate_of is null and undoes is null) a
 where r.state = 'ended' and r.workflow_status <> 'completed' and a.left_over > 0
 order by r.ended_attempt_at desc, r.run_key
 limit %(limit)s;
