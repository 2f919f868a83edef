-- The outbox: an application commits its own rows and an intended action in one transaction.

-- In the caller's transaction: writes the intent and has the relay told of it at the commit. One
-- statement, so that it is the same for every driver. The request is JSON, so that a later release
-- can say more in it while this one is still deployed.
--
-- verdict: created  -- action_key is new, and will be sent
--          existing -- the business fact is action_key's already: nothing is written
--          conflict -- it is action_key's, for another tool or other arguments: nothing is written
--          gone     -- it is action_key's, whose record is gone: nothing is written
-- A refusal is an answer and no error, which would abort the transaction that is the caller's.
--
-- Lock order: the order asked for, the domain key of what is undone, its own. All three until the
-- caller commits. Safe to repeat where the request names a domain key.
create function commitline_intend(request json)
returns table (action_key text, verdict text, held_tool text, held_args text)
language plpgsql as $function$
declare
    fact    text := request->>'domain_key';
    nth     integer := 1;
    holder  text;
    undone  text;
    undone_nth integer;
    held    agent_actions;
    sent    text;
    run     text;
begin
    if request->>'order_key' is not null then
        -- The next of its order waits here for this commit, so the queue is in commit order.
        perform pg_advisory_xact_lock(
            hashtextextended('commitline order ' || (request->>'order_key'), 0));
    end if;
    if request->>'undoes_domain_key' is not null then
        insert into agent_domain_keys as d (domain_key, generation, held_by)
        values (request->>'undoes_domain_key', 0, null)
        on conflict (domain_key) do update set generation = d.generation
        returning d.generation, d.held_by into undone_nth, undone;
        if undone_nth > 1 then
            fact := fact || '~of' || undone_nth;  -- the undo of this one, not of an earlier one
        end if;
    end if;
    if fact is not null then
        insert into agent_domain_keys as d (domain_key, generation, held_by)
        values (fact, 0, null)
        on conflict (domain_key) do update set generation = d.generation
        returning d.generation + 1, d.held_by into nth, holder;
    end if;
    if holder is not null then
        select * into held from agent_actions where key = holder;
        if held.status = 'done' and held.effect_possible and held.compensator is not null
           and held.undone_by is null
           and exists (select from agent_runs r
                        where r.run_key = held.run_key and r.state = 'undoing') then
            -- Nobody is to rely on what is just being taken back.
            return query select holder, 'undoing', null::text, null::text;
            return;
        end if;
        if held.key is null then
            return query select holder, 'gone', null::text, null::text;
            return;
        end if;
        -- An intent that nobody will send any more holds nothing.
        update agent_actions a
           set status = 'done', outcome = 'error', effect_possible = false,
               result = (request->>'never_sent')::json, done_at = clock_timestamp(),
               settled_at = case when relayed then clock_timestamp() end
         where a.key = holder and a.status = 'pending' and a.dispatched_at is null
           and a.parked_at is null
           and not exists (
                select from agent_runs r where r.run_key = a.run_key
                   and (r.state = 'running'
                        or (a.relayed and r.state = 'ended' and r.stopped_at is null)));
        if not found then
            return query select holder,
                case when held.tool = request->>'tool'
                      and held.effective_digest = request->>'effective_digest'
                     then 'existing' else 'conflict' end,
                held.tool, held.args::text;
            return;
        end if;
        delete from agent_relay where key = holder;
    end if;
    sent := case when fact is null then request->>'idempotency_key'
                 when nth = 1 then fact else fact || '~' || nth end;
    run := 'outbox/' || coalesce(case when fact is not null then sent end, request->>'id');
    action_key := run || ':0';
    insert into agent_runs (run_key, workflow_id, agent, input_digest, opened_attempt_at)
    values (run, 'outbox', 'outbox', '', clock_timestamp());
    insert into agent_actions (
        key, tool, args, run_key, position, idempotency_key, domain_key, generation, effect,
        key_ttl, requested_digest, effective_digest, compensator, undoes, relayed)
    values (
        action_key, request->>'tool', (request->>'args')::json, run, '0', sent, fact, nth,
        request->>'effect', make_interval(secs => (request->>'key_ttl')::double precision),
        request->>'requested_digest', request->>'effective_digest', request->>'compensator',
        undone, true);
    update agent_domain_keys set held_by = action_key, generation = nth where domain_key = fact;
    insert into agent_relay (key, why, tool, order_key)
    values (action_key, 'send', request->>'tool', request->>'order_key');
    perform pg_notify('commitline_relay', action_key);
    return query select action_key, 'created', null::text, null::text;
end
$function$;
