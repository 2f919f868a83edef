-- The rows of bench/scale.py: what a ledger holds after a year with many users. Of 100 runs, 20 are
-- of the outbox, 5 are sub-agents', 75 are agents'; every other one of those belongs to a
-- conversation. `first` and `last` bound the runs of one step.

-- made: what the steps share: each run's number and what it is
create unlogged table made as
select n, mod(n, 100) as kind, mod(n, 100) < 20 as outbox, mod(n, 100) between 20 and 24 as sub,
       n > 0.99 * %(last)s as fresh, n > 0.99 * %(last)s and mod(n, 100) >= 20 as open,
       n > 0.5 * %(last)s as queued,
       clock_timestamp() - (%(last)s - n) * interval '80 seconds' - interval '1 minute' as at,
       case when mod(n, 100) < 20 then 'outbox/fact-' || n
            when mod(n, 100) < 25 then 'agent-' || (n + 40) || '/' || md5((n + 40)::text) || '/1.0'
            else 'agent-' || n || '/' || md5(n::text) end as run_key,
       case when mod(n, 100) >= 25 and mod(n, 2) = 0 then 'thread-' || (n / 20) end as thread_id
  from generate_series(%(first)s, %(last)s) n;
alter table made add primary key (n);
analyze made;

-- threads: conversations of ten runs
insert into agent_threads (thread_id, agent, version, created_at)
select thread_id, 'support', max(2 * (mod(n, 20) / 2) + 2), min(at) from made
 where thread_id is not null group by thread_id;

-- runs: runs
insert into agent_runs (
    run_key, workflow_id, agent, input_digest, state, opened_attempt_at, ended_attempt_at,
    created_at, thread_id, spec, parent_key, owner, workflow_status, namespace, looked_at,
    cleared_at)
select run_key, case when outbox then 'outbox' else 'agent-' || n end,
       case when outbox then 'outbox' else 'support' end, md5(n::text),
       case when outbox or open then 'running' else 'ended' end,
       at, at + interval '30 seconds', at, thread_id,
       case when not outbox then json_build_object('agent', 'support', 'tools', repeat(md5(n::text), 12)) end,
       case when sub then left(run_key, -4) end, case when sub then '' end,
       case when kind in (77, 78) and not open then 'terminated' end,
       case when outbox and kind <> 15 then null when kind = 15 then 'theirs' else 'default' end,
       case when open or not fresh then clock_timestamp() end,
       case when not (open or outbox and queued and kind <> 18 or mod(n, 4000) = 133)
            then clock_timestamp() end
  from made where n between %(first)s and %(last)s;

-- actions: actions
insert into agent_actions (
    key, tool, args, status, result, created_at, run_key, position, thread_id, idempotency_key,
    domain_key, effect, requested_digest, effective_digest, claim_token, claimed_by, attempt_at,
    lease_until, sent_until, tries, relayed, dispatched_at, done_at, outcome, effect_possible,
    duplicate_of, parked_at, parked_reason, settled_at, notified_version, compensator, undoes,
    undone_by)
select a.key, a.tool, json_build_object('order_id', m.n::text, 'cents', 4900, 'note', md5(a.key)),
       case when done then 'done' else 'pending' end,
       case when done then json_build_object('id', md5(a.key), 'text', repeat(md5(a.key), 4)) end,
       m.at, m.run_key, a.position, m.thread_id,
       coalesce(a.domain_key, left('cl_' || md5(a.key), 40)), a.domain_key,
       case a.tool when 'charge' then 'idempotent' when 'mail' then 'lookup' else 'at_most_once' end,
       md5(a.key), case when m.n > 1 and i = 2 then md5(a.key) else md5('same' || mod(m.n, 50000)) end,
       case when sent then gen_random_uuid() end, case when sent then a.key end,
       case when sent then m.at end,
       case when not sent then null when live then clock_timestamp() + interval '1 hour'
            else m.at + interval '15 minutes' end,
       case when not sent then null when live then clock_timestamp() + interval '1 hour'
            else m.at + interval '15 minutes' end,
       case when sent then 1 else 0 end, m.outbox, case when sent then m.at end,
       case when done then m.at + interval '1 second' end,
       case when done then case when failed then 'error' else 'ok' end end,
       case when done then not failed end,
       case when repeats then left(a.key, -3) || '0.0' end,
       case when parked then m.at + interval '1 minute' end,
       case when parked then 'an earlier attempt was lost after it was dispatched' end,
       case when undone or settled then m.at + interval '2 minutes' end,
       case when undone and mod(m.n, 7) <> 0 then 3 end,
       case when a.tool = 'charge' then 'refund' end,
       case when i = 3 then m.run_key || ':0.0' end,
       case when undone then m.run_key || ':undo-0.0' end
  from made m
 cross join lateral (
       select i, m.run_key || ':' || pos as key, pos as position,
              case when m.outbox then case when m.kind = 14 then 'legacy' else 'mail' end
                   else (array['charge', 'mail', 'ship', 'refund'])[i + 1] end as tool,
              case when m.outbox then 'fact-' || m.n
                   when i = 0 then 'order-' || m.n || '-charge' end as domain_key
         from generate_series(0, 3) i,
              lateral (select case when m.outbox then '0' when i = 3 then 'undo-0.0'
                                   else i || '.0' end as pos) p
        where case when m.outbox then i = 0 when i = 3 then mod(m.n, 100) = 55
                   else i < 2 or mod(m.n, 8) <> 0 end) a
 cross join lateral (
       select m.open and i = 2 as live,
              not m.outbox and i = 2 and mod(m.n, 50) = 31 as parked_run,
              m.outbox and m.queued and m.kind = 18 or m.outbox and m.queued and m.n = (
                  select min(n) from made where queued and kind < 8) as parked_outbox,
              not m.outbox and i = 2 and mod(m.n, 4000) = 133 as left_over,
              not m.outbox and i = 1 and mod(m.n, 50) = 43 as repeats,
              not m.outbox and i = 0 and mod(m.n, 100) = 55 as undone,
              not m.outbox and i = 2 and mod(m.n, 100) = 61 as settled,
              i < 3 and mod(m.n * 3 + i, 33) = 5 as refused) k
 cross join lateral (
       select parked_run and not m.open or parked_outbox as parked,
              not (m.outbox and m.queued) as sent,
              not (live or parked_run or parked_outbox or left_over or m.outbox and m.queued) as done,
              refused and not undone and not repeats as failed) s
 where m.n between %(first)s and %(last)s;

-- keys: business facts
insert into agent_domain_keys (domain_key, generation, held_by)
select a.domain_key, 1, case when a.effect_possible is not false and a.undone_by is null then a.key end
  from agent_actions a join made m using (run_key)
 where m.n between %(first)s and %(last)s and a.domain_key is not null;

-- messages: messages and requests
insert into agent_messages (thread_id, version, ordinal, role, message, run_key, step, epoch,
                            request_id, created_at)
select m.thread_id, 2 * (mod(m.n, 20) / 2) + 1 + (o / 2), mod(o, 2),
       (array['user', 'assistant', 'tool', 'assistant'])[o + 1],
       json_build_object('text', repeat(md5(m.n::text), 6)), m.run_key, o / 2, 0,
       case when o = 0 then 'request-' || m.n end, m.at
  from made m, generate_series(0, 3) o
 where m.n between %(first)s and %(last)s and m.thread_id is not null;
insert into agent_requests (thread_id, request_id, message, created_at, reply, replied_version)
select thread_id, 'request-' || n, json_build_object('text', md5(n::text)), at,
       json_build_object('text', md5(n::text)), 2 * (mod(n, 20) / 2) + 2
  from made where n between %(first)s and %(last)s and thread_id is not null;
insert into agent_states (thread_id, version, state, created_at)
select thread_id, 2 * (mod(n, 20) / 2) + 2, json_build_object('cart', md5(n::text)), at
  from made where n between %(first)s and %(last)s and thread_id is not null and mod(n, 3) = 0;
insert into agent_values (key, thread_id, value, created_at)
select run_key || ':9.0', thread_id, json_build_object('text', repeat(md5(n::text), 60)), at
  from made where n between %(first)s and %(last)s and thread_id is not null and mod(n, 10) = 4;

-- people: approvals and questions, of which some were never decided before their run ended
insert into agent_approvals (key, run_key, position, thread_id, tool, args, requested_digest,
                             requested_at, decision, decided_by, decided_at)
select run_key || ':2.0', run_key, '2.0', coalesce(thread_id, run_key), 'ship',
       json_build_object('order_id', n::text), md5(n::text), at,
       case when decided then 'approved' end, case when decided then 'ada' end,
       case when decided then at + interval '1 minute' end
  from made, lateral (select not open and mod(n, 400) <> 30 as decided) d
 where n between %(first)s and %(last)s and mod(n, 10) = 0 and kind >= 25;
insert into agent_questions (key, number, run_key, position, thread_id, tool, message, payload,
                             raised_at, answer, answered_by, answered_at)
select run_key || ':1.0', 1, run_key, '1.0', coalesce(thread_id, run_key), 'ask', 'Which one?', '{}',
       at, case when decided then '"this"'::json end, case when decided then 'ada' end,
       case when decided then at + interval '1 minute' end
  from made, lateral (select not open and mod(n, 400) <> 35 as decided) d
 where n between %(first)s and %(last)s and mod(n, 10) = 5 and kind >= 25;

-- outbox: the relay's queue: one order with many behind a parked row, orders of two, rows that
-- nobody here may take, rows that are not due, rows that wait for a person, and the others
insert into agent_intents (key, role, created_at)
select run_key || ':0', 'app', at from made
 where n between %(first)s and %(last)s and outbox;
insert into agent_relay (key, why, tool, namespace, order_key, due_at, created_at)
select run_key || ':0', 'send', case kind when 14 then 'legacy' else 'mail' end,
       case kind when 15 then 'theirs' else '' end,
       case when kind < 8 then 'account-1' when kind = 8 then 'account-' || (n / 200)
            when kind = 19 then 'account-x-' || (n / 1000) end,
       case when kind in (16, 17) then at + interval '2 years' when kind <> 18 then at end, at
  from made where n between %(first)s and %(last)s and outbox and queued
 order by n;
update agent_relay q set due_at = null from agent_actions a
 where a.key = q.key and a.parked_at is not null and q.due_at is not null;
