-- Named queries that read actions, and keep large results of reads.
-- A line `-- name: purpose` starts each query; parameters are always bound.

-- get_action: one action; `now` is the database's clock, by which leases are judged.
select *, clock_timestamp() as now from agent_actions where key = %(key)s;

-- lock_action: one action, locked until this transaction has committed.
select *, clock_timestamp() as now from agent_actions where key = %(key)s for update;

-- list_actions: the actions of a run, or of all runs, oldest or newest first.
select *, clock_timestamp() as now from agent_actions
 where (%(run_key)s::text is null or run_key = %(run_key)s)
   and (not %(only_parked)s or parked_at is not null)
 order by case when %(newest_first)s then created_at end desc, created_at, key
 limit %(limit)s;

-- find_actions: the newest actions of some runs or of all, of an agent's or a plan's runs, in a state.
select a.*, clock_timestamp() as now from agent_actions a
 where (%(run_keys)s::text[] is null or a.run_key = any(%(run_keys)s))
   and (%(agent)s::text is null
        or exists (select from agent_runs r where r.run_key = a.run_key and r.agent = %(agent)s))
   and (%(state)s::text is null or %(state)s = coalesce(
        a.outcome, case when a.parked_at is not null then 'unknown'
                        when a.dispatched_at is null then 'intent' else 'dispatched' end))
   -- Those have an index.
   and (%(state)s::text is distinct from 'unknown' or a.parked_at is not null)
 order by a.created_at desc, a.key
 limit %(limit)s;

-- put_value: keep a read's large result. Of two attempts the last one's stands: the model reads
-- it. The run of a plan has no conversation, and keeps its values all the same.
with thread as (
    select deleted_at from agent_threads where thread_id = %(thread_id)s for share
)
insert into agent_values (key, thread_id, value)
select %(key)s, %(thread_id)s, %(value)s::json
 where exists (select from thread where deleted_at is null)
    or not exists (select from thread)
       and exists (select from agent_runs where run_key = %(thread_id)s)
on conflict (key) do update set value = excluded.value;

-- get_value: a read's large result.
select value from agent_values where key = %(key)s;

-- keep_completion: keep a model's completion by its position; the first one stands, and comes back.
insert into agent_values (key, thread_id, value)
values (%(key)s, %(run_key)s, %(value)s::json)
on conflict (key) do update set value = agent_values.value
returning value;
