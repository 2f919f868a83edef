-- Named queries of the outbox. A line `-- name: purpose` starts each; parameters are bound.

-- intend: commit an action with what the caller's transaction commits; see commitline_intend.
select action_key, verdict, held_tool, held_args
  from commitline_intend(cast(%(request)s as json));

-- insert_intent: an action of a run that the relay sends.
insert into agent_actions (
    key, tool, args, run_key, position, thread_id, idempotency_key, domain_key, generation,
    effect, key_ttl, requested_digest, effective_digest, compensator, undoes, relayed)
values (
    %(key)s, %(tool)s, %(args)s::json, %(run_key)s, %(position)s, %(thread_id)s,
    %(idempotency_key)s, %(domain_key)s, %(generation)s, %(effect)s, %(key_ttl)s,
    %(requested_digest)s, %(effective_digest)s, %(compensator)s, %(undoes)s, true)
returning *, clock_timestamp() as now;

-- queue_intent: have the relay send it, as soon as this has committed.
with queued as (
    insert into agent_relay (key, why, tool) values (%(key)s, 'send', %(tool)s)
    returning key
)
select pg_notify('commitline_relay', key) from queued;

-- listen: hear of what the relay has to do, and of this listener's own probes.
listen commitline_relay; listen commitline_probe;

-- probe: say something that whoever listens has to hear.
select pg_notify('commitline_probe', %(said)s);

-- alive: whether the connection is.
select 1;
