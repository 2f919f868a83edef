-- Named queries of what waits.
-- A line `-- name: purpose` starts each query; parameters are always bound.

-- count_waiting: how much waits of each kind, and for how many seconds the oldest has. Of each no
-- more than 100 rows are read, the newest ones of what people may have left for good.
with unknown as (
    select parked_at as since, duplicate_of from agent_actions
     where parked_at is not null
     order by created_at desc, key desc
     limit 100
), approval as (
    select requested_at as since, run_key, withdrawn_at, expires_at from agent_approvals
     where decision is null
     order by requested_at desc, key desc
     limit 100
), question as (
    select raised_at as since, run_key, withdrawn_at, expires_at from agent_questions
     where answered_at is null and replaced_at is null
     order by raised_at desc, key desc, number desc
     limit 100
), relay as (
    select due_at as since, waits_for from agent_relay
     where due_at <= (select clock_timestamp())
     order by due_at, seq
     limit 100
), waits as (
    select 'unknown' as kind, since from unknown where duplicate_of is null
    union all
    select 'approval', w.since from approval w join agent_runs r using (run_key)
     where w.withdrawn_at is null and r.state = 'running'
       and (w.expires_at is null or w.expires_at > clock_timestamp())
    union all
    select 'question', w.since from question w join agent_runs r using (run_key)
     where w.withdrawn_at is null and r.state = 'running'
       and (w.expires_at is null or w.expires_at > clock_timestamp())
    union all
    select 'relay', since from relay where waits_for is null
)
select kind, count(since) as number,
       coalesce(greatest(extract(epoch from clock_timestamp() - min(since)), 0), 0)
           as oldest_seconds
  from (values ('unknown'), ('approval'), ('question'), ('relay')) kinds (kind)
  left join waits using (kind)
 group by kind;

-- waiting_of_runs: what of these runs waits for a person, of each kind, and since when.
with open as (
    select run_key from agent_runs where run_key = any(%(run_keys)s) and state = 'running'
)
select run_key, 'unknown' as kind, count(*) as number, min(parked_at) as since
  from agent_actions
 where run_key = any(%(run_keys)s) and parked_at is not null and duplicate_of is null
 group by run_key
union all
select run_key, 'approval', count(*), min(requested_at)
  from agent_approvals join open using (run_key)
 where decision is null and withdrawn_at is null
   and (expires_at is null or expires_at > clock_timestamp())
 group by run_key
union all
select run_key, 'question', count(*), min(raised_at)
  from agent_questions join open using (run_key)
 where answered_at is null and replaced_at is null and withdrawn_at is null
   and (expires_at is null or expires_at > clock_timestamp())
 group by run_key
 order by run_key, kind;
