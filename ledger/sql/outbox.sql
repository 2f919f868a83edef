-- Named queries of the outbox, and of listening for its notifications.
-- A line `-- name: purpose` starts each query; parameters are always bound.

-- intend: commit an action together with the caller's own rows; see commitline_intend in the
-- migration.
select action_key, verdict from commitline_intend(cast(%(request)s as json));

-- outcome_of: how an action ended, as far as the caller may know; see commitline_outcome in the
-- migration.
select * from commitline_outcome(%(key)s);

-- listen: get the notifications of due entries, and this listener's own probes.
listen commitline_relay; listen commitline_probe;

-- probe: notify every listener.
select pg_notify('commitline_probe', %(said)s);

-- alive: whether the connection is alive.
select 1;
