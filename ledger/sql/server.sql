-- Named queries of the server itself.
-- A line `-- name: purpose` starts each query; parameters are always bound.

-- commits_at_risk: what may lose a commit. A role that may not see how a standby follows sees its
-- process; without synchronous_standby_names none is synchronous. Backups, archives of the log and
-- logical subscribers are no standbys.
select current_setting('fsync') as fsync,
       current_setting('full_page_writes') as full_page_writes,
       array(select coalesce(nullif(r.application_name, ''), 'pid ' || r.pid)
               from pg_stat_replication r
              where (r.sync_state = 'async'
                     or r.sync_state is null and current_setting('synchronous_standby_names') = '')
                and r.state is distinct from 'backup'
                and coalesce(r.application_name, '') not in ('pg_basebackup', 'pg_receivewal')
                and not exists (select from pg_replication_slots s
                                 where s.active_pid = r.pid and s.slot_type = 'logical')
              order by 1) as asynchronous;

-- blocking: the sessions that hold a session up, those first that began longest ago.
select a.pid, a.usename, a.application_name, a.state,
       extract(epoch from clock_timestamp() - a.xact_start)::float8 as seconds
  from unnest(pg_blocking_pids(%(pid)s)) as b (pid)
  join pg_stat_activity a on a.pid = b.pid
 order by a.xact_start nulls last, a.pid;

-- missing_grants: what the role may not do of what it needs, by table. A grant on some columns counts
-- as one, and so does a role that it inherits. What is not there is another matter.
select w.name, string_agg(w.command, ', ' order by w.command) as commands
  from unnest(%(tables)s::text[], %(commands)s::text[]) as w (name, command)
  join lateral (select to_regclass(w.name) as id) t on t.id is not null
 where not case w.command when 'delete' then has_table_privilege(t.id, w.command)
                          else has_any_column_privilege(t.id, w.command) end
 group by w.name
 order by w.name;

-- names_of_psycopg: the session's prepared statements that have the names that psycopg gives.
select name from pg_prepared_statements where name like '\_pg3\_%';
