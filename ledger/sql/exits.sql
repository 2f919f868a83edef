-- Named queries of exits: which rows nobody brings to an end.
-- A line `-- name: purpose` starts each query; parameters are always bound.

-- without_exit: pending actions that nobody brings to an end; see commitline_exit in the migration.
select a.*, clock_timestamp() as now from agent_actions a
 where a.status = 'pending' and commitline_exit(a) is null
 order by a.created_at, a.key
 limit %(limit)s;
