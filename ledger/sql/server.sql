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

-- session: what a new session of this role is like.
select current_setting('server_version') as version, pg_is_in_recovery() as standby,
       current_setting('default_transaction_read_only') = 'on' as read_only,
       (select json_object_agg(name, setting::bigint) from pg_settings
         where name in ('statement_timeout', 'transaction_timeout',
                        'idle_in_transaction_session_timeout')) as timeouts,
       (current_setting('max_connections')::int
        - current_setting('superuser_reserved_connections')::int
        - (select sum(numbackends) from pg_stat_database))::int as free,
       extract(epoch from clock_timestamp())::float8 as clock;

-- blocking: the sessions that hold a session up, those first that began longest ago.
select a.pid, a.usename, a.application_name, a.state,
       extract(epoch from clock_timestamp() - a.xact_start)::float8 as seconds
  from unnest(pg_blocking_pids(%(pid)s)) as b (pid)
  join pg_stat_activity a on a.pid = b.pid
 order by a.xact_start nulls last, a.pid;

-- applied_migrations: the migrations that the database has had.
select version, name from agent_schema_migrations;

-- ledger_schemas: the schema that has the ledger, and whether the role comes to it. Of several, the
-- one that the search_path leads to.
select n.nspname as name, current_user as role, current_setting('search_path') as search_path,
       pg_table_is_visible(c.oid) as visible, has_schema_privilege(n.oid, 'usage') as usable
  from pg_class c join pg_namespace n on n.oid = c.relnamespace
 where c.relname = 'agent_schema_migrations' and c.relkind = 'r' and c.relpersistence <> 't'
 order by visible desc, n.nspname
 limit 1;

-- shadowed_tables: the ledger's tables for which the search_path leads to another of the same name.
select c.relname as name, other.relnamespace::regnamespace::text as by
  from pg_class c join pg_namespace n on n.oid = c.relnamespace
  join pg_class other on other.oid = to_regclass(quote_ident(c.relname))
 where n.nspname = %(schema)s and c.relkind = 'r' and starts_with(c.relname, 'agent_')
   and other.oid <> c.oid
 order by 1;

-- missing_grants: what the role may not do of what it needs, by table, and which functions it may
-- not execute. A grant on some columns counts as one, and so does a role that it inherits. What is
-- not there is another matter, and so is a function for applications (`security definer`).
select w.name, string_agg(w.command, ', ' order by w.command) as commands
  from unnest(%(tables)s::text[], %(commands)s::text[]) as w (name, command)
  join lateral (select to_regclass(w.name) as id) t on t.id is not null
 where not case w.command when 'delete' then has_table_privilege(t.id, w.command)
                          else has_any_column_privilege(t.id, w.command) end
 group by w.name
 union all
select p.proname, 'execute'
  from pg_proc p join pg_class c on c.relnamespace = p.pronamespace
 where c.oid = to_regclass('agent_schema_migrations') and starts_with(p.proname, 'commitline_')
   and not p.prosecdef and p.prorettype <> 'trigger'::regtype
   and not has_function_privilege(p.oid, 'execute')
 order by 1;

-- names_of_psycopg: the session's prepared statements that have the names that psycopg gives.
select name from pg_prepared_statements where name like '\_pg3\_%';
