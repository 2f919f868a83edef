-- Named queries of the relay. A line `-- name: purpose` starts each; parameters are always bound.

-- take_due: what is due, taken for a while: of many relays one gets it. Of those in order the
-- first only, which holds up the others until it has an end.
with found as (
    select q.key from agent_relay q
     where q.due_at <= clock_timestamp() and q.tool = any(%(tools)s)
       -- Whether a run goes on can be asked in its own namespace only.
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

-- count_start: a settling has begun; should it be lost, another one comes, later each time. Not
-- where it has ended meanwhile, and the row says something else by now.
update agent_relay
   set starts = starts + 1,
       due_at = clock_timestamp() + least(%(first)s * power(2, least(starts, 20)), %(most)s)
 where key = %(key)s and due_at = %(taken_until)s;

-- get_queued: what the relay has to do about an action, and whether it is its turn.
select q.*, q.order_key is null or not exists (
           select from agent_relay e where e.order_key = q.order_key and e.seq < q.seq
       ) as first_in_order
  from agent_relay q where q.key = %(key)s;

-- leave_if_settled: it has an end: gone from the queue, or kept for a person. Whoever waits in
-- order behind it is told. Under the action's lock: what is written with it is seen.
with action as (
    select a.key,
           a.status = 'done' and (q.why <> 'undo' or a.undone_by is not null
               or (select count(*) > 0 and bool_and(u.status = 'done' or u.parked_at is not null)
                     from agent_actions u where u.undoes = a.key)) as ended,
           a.parked_at is not null as parked
      from agent_actions a join agent_relay q using (key) where a.key = %(key)s
), gone as (
    delete from agent_relay using action
     where agent_relay.key = action.key and action.ended
    returning agent_relay.order_key
), kept as (
    update agent_relay set due_at = null from action
     where agent_relay.key = action.key and action.parked and not action.ended
)
select pg_notify('commitline_relay', order_key) from gone where order_key is not null;

-- call_off: an intent of a run that is over for good: nothing was sent, and nothing will be.
update agent_actions
   set status = 'done', outcome = 'error', effect_possible = false,
       result = %(result)s::json, done_at = clock_timestamp(),
       -- Its conversation was told that it is accepted.
       settled_at = case when relayed then clock_timestamp() end
 where key = %(key)s and status = 'pending' and dispatched_at is null
returning key, domain_key;

-- park_unsent: an intent that could not be sent, time after time; it is wanted still.
update agent_actions
   set parked_at = clock_timestamp(), parked_reason = %(reason)s
 where key = %(key)s and status = 'pending' and parked_at is null and dispatched_at is null
returning *, clock_timestamp() as now;

-- park_given_up: what cannot be settled, time after time, is a person's.
update agent_actions
   set parked_at = clock_timestamp(), parked_reason = %(reason)s
 where key = %(key)s and status = 'pending' and parked_at is null
   and (lease_until is null or lease_until <= clock_timestamp())
returning key;

-- leave_undo: an undo that cannot be begun, time after time, is a person's.
update agent_relay set due_at = null where key = %(key)s and why = 'undo';

-- get_now: the clock that counts.
select clock_timestamp() as now;

-- take_runs: open runs, those that nobody has looked at for the longest time first.
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

-- end_gone: its workflow has ended and could not say so: nothing older goes forward any more.
-- Not where it has come to another state since somebody looked: an undo has begun, say.
update agent_runs
   set state = 'ended', gone_as = %(gone_as)s,
       ended_attempt_at = greatest(ended_attempt_at, %(ended_at)s::timestamptz)
 where run_key = %(run_key)s and state = %(state)s and state <> 'ended'
returning run_key;

-- park_lost: what such a run left dispatched and that no worker of ours can ask about.
update agent_actions
   set parked_at = clock_timestamp(), parked_reason = %(reason)s
 where run_key = %(run_key)s and status = 'pending' and parked_at is null
   and dispatched_at is not null and not relayed;

-- queue_lost: what such a run left dispatched: somebody finds out, when no attempt can be at
-- work on it any more. Not undos: who undoes the run again goes on with those.
insert into agent_relay as q (key, why, tool, due_at)
select key, 'ask', tool, greatest(lease_until, clock_timestamp())
  from agent_actions
 where run_key = %(run_key)s and status = 'pending' and parked_at is null
   and dispatched_at is not null and undoes is null and not relayed
-- Kept for a person once, and then asked about again by an undo that was lost.
on conflict (key) do update set due_at = excluded.due_at where q.due_at is null;

-- queue_again: a person has reopened it: it is tried again.
insert into agent_relay (key, why, tool) select key, 'send', tool from agent_actions
 where key = %(key)s and status = 'pending'
on conflict (key) do update set why = 'send', due_at = clock_timestamp(), starts = 0;

-- notify_relay: there is something to do.
select pg_notify('commitline_relay', %(key)s);

-- list_relay: what the relay has to do, the next first.
select q.*, a.parked_reason, a.run_key, a.position, clock_timestamp() as now
  from agent_relay q join agent_actions a using (key)
 order by q.due_at nulls last, q.seq
 limit %(limit)s;

-- list_gone: runs whose workflows ended and could not say so, and what of them stands.
select r.run_key, r.workflow_id, r.agent, r.gone_as, r.ended_attempt_at,
       count(*) filter (where a.status = 'done' and a.effect_possible
                          and a.undone_by is null) as stands,
       count(*) filter (where a.status = 'pending' and a.dispatched_at is not null) as unknown
  from agent_runs r join agent_actions a using (run_key)
 where r.gone_as is not null and r.gone_as <> 'completed' and r.state = 'ended'
   and a.duplicate_of is null and a.undoes is null
 group by r.run_key
having count(*) filter (where a.effect_possible is not false and a.dispatched_at is not null
                          and a.undone_by is null) > 0
 order by r.ended_attempt_at desc, r.run_key
 limit %(limit)s;
