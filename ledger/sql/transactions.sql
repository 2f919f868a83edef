-- Named queries of transactions.
-- A line `-- name: purpose` starts each query; parameters are always bound.

-- begin: one round trip. The level is named, whatever the database or the role has by default: a
-- method locks, and then reads what others had committed by then.
begin isolation level read committed; select commitline_wait_briefly();
