-- Named queries of a claim, in the order of its story; see `claim.py`.
-- A line `-- name: purpose` starts each query; parameters are always bound.

-- claim_new: the common case in one statement: the run is running, the action is new, its domain
-- key is free. No row back: the case is another one. A unique violation on agent_domain_keys:
-- another claim took the key at the same moment.
with run as (
    select run_key from agent_runs
     where run_key = %(run_key)s and state = 'running'
       and (epoch <= %(epoch)s or fork_step > %(step)s)
       and (owner is null or owner = %(owner)s)
       -- After a failover the row of an attempt before this one may be lost: see failed_over.
       and (not %(repeats)s or not commitline_may_have_lost(agent_runs, %(step)s))
       and commitline_wait_briefly()
       for share
), action as (
    insert into agent_actions (
        key, tool, args, run_key, position, thread_id, idempotency_key, domain_key, effect,
        key_ttl, requested_digest, effective_digest, claim_token, claimed_by, attempt_at,
        lease_until, sent_until, tries, dispatched_at, compensator, clocks_apart, unordered,
        trace_parent)
    select %(key)s, %(tool)s, %(args)s::json, run.run_key, %(position)s, %(thread_id)s,
           %(idempotency_key)s, %(domain_key)s::text, %(effect)s, %(key_ttl)s::interval,
           %(requested_digest)s, %(effective_digest)s, %(token)s::uuid, %(key)s,
           %(attempt_at)s::timestamptz, clock_timestamp() + %(lease)s::interval,
           clock_timestamp() + %(deadline)s::interval, 1, clock_timestamp(), %(compensator)s,
           clock_timestamp() - %(engine_now)s::timestamptz, %(unordered)s, %(trace_parent)s::text
      from run
     where not exists (select from agent_domain_keys where domain_key = %(domain_key)s)
       -- An equal call of an earlier turn is not unknown: see open_unknown.
       and (%(domain_key)s::text is not null or not exists (
            select from agent_actions
             where coalesce(thread_id, run_key) = %(thread)s and tool = %(tool)s
               and effective_digest = %(effective_digest)s and status = 'pending'
               and (parked_at is not null or reopened_at is not null)
               and domain_key is null and duplicate_of is null
               and (run_key <> %(run_key)s
                    or split_part(position, '.', 1) <> split_part(%(position)s, '.', 1))))
    on conflict (key) do nothing
    returning key, domain_key
), held as (
    insert into agent_domain_keys (domain_key, generation, held_by)
    select domain_key, 1, key from action where domain_key is not null
)
select key from action;

-- lock_domain_key: lock the key's row; insert it first if it is missing.
insert into agent_domain_keys (domain_key, generation, held_by)
values (%(domain_key)s, 0, null)
on conflict (domain_key) do update set generation = agent_domain_keys.generation
returning domain_key, generation, held_by, undone_by;

-- hold_domain_key: the action holds the key from now on, and sends this generation of it.
update agent_domain_keys set held_by = %(key)s, generation = %(generation)s, undone_by = null
 where domain_key = %(domain_key)s;

-- standing: whether what an action did stands; see commitline_standing in the migration.
select commitline_standing(a) as standing from agent_actions a where a.key = %(key)s;

-- live_undo: the undo of an action that is at work, or unknown.
select *, clock_timestamp() as now from agent_actions where live_undo_of = %(key)s;

-- live_undo_of_fact: the same of whatever held a business fact, or of nothing, as nobody held it
-- when that undo was sent. Of several the one that may be at work longest.
select *, clock_timestamp() as now from agent_actions
 where undoes_domain_key = %(domain_key)s and status = 'pending' and dispatched_at is not null
 order by lease_until desc
 limit 1;

-- fact_undone_by: the business fact that an action undoes, by its tool's word.
select undoes_domain_key from agent_actions where key = %(key)s;

-- open_unknown: an equal call of a tool without a domain key, by another turn or another run of
-- the same conversation, that is still unknown, also while it is tried again. Two equal calls in
-- one message (the part of the position before the dot) are two calls. Locked: it must not be
-- settled before the row that repeats it is written, which is settled with it.
select *, clock_timestamp() as now from agent_actions
 where coalesce(thread_id, run_key) = %(thread)s and tool = %(tool)s
   and effective_digest = %(effective_digest)s and status = 'pending'
   and (parked_at is not null or reopened_at is not null)
   and domain_key is null and duplicate_of is null
   and (run_key <> %(run_key)s
        or split_part(position, '.', 1) <> split_part(%(position)s, '.', 1))
 order by created_at, key
 limit 1
   for share;

-- failed_over: the run, if the row of an attempt that sent something may have been lost with the last
-- commits of an earlier timeline of the ledger; see commitline_may_have_lost in the migration.
select run_key from agent_runs
 where run_key = %(run_key)s and commitline_may_have_lost(agent_runs, %(step)s);

-- insert_dispatched: an action whose tool is called as soon as this has committed.
insert into agent_actions (
    key, tool, args, run_key, position, thread_id, idempotency_key, domain_key, generation,
    effect, key_ttl, requested_digest, effective_digest, claim_token, claimed_by, attempt_at,
    lease_until, sent_until, tries, dispatched_at, compensator, undoes, undoes_domain_key,
    clocks_apart, unordered, trace_parent)
values (
    %(key)s, %(tool)s, %(args)s::json, %(run_key)s, %(position)s, %(thread_id)s,
    %(idempotency_key)s, %(domain_key)s, %(generation)s, %(effect)s, %(key_ttl)s,
    %(requested_digest)s, %(effective_digest)s, %(token)s, %(key)s, %(attempt_at)s,
    clock_timestamp() + %(lease)s, clock_timestamp() + %(deadline)s, 1, clock_timestamp(),
    %(compensator)s, %(undoes)s, %(undoes_domain_key)s, clock_timestamp() - %(engine_now)s,
    %(unordered)s, %(trace_parent)s)
returning *, clock_timestamp() as now;

-- insert_intent: a run's action that the relay sends.
insert into agent_actions (
    key, tool, args, run_key, position, thread_id, idempotency_key, domain_key, generation,
    effect, key_ttl, requested_digest, effective_digest, compensator, undoes,
    undoes_domain_key, relayed)
values (
    %(key)s, %(tool)s, %(args)s::json, %(run_key)s, %(position)s, %(thread_id)s,
    %(idempotency_key)s, %(domain_key)s, %(generation)s, %(effect)s, %(key_ttl)s,
    %(requested_digest)s, %(effective_digest)s, %(compensator)s, %(undoes)s,
    %(undoes_domain_key)s, true)
returning *, clock_timestamp() as now;

-- queue_intent: the relay sends it as soon as this has committed.
with queued as (
    insert into agent_relay (key, why, tool) values (%(key)s, 'send', %(tool)s)
    returning key
)
select pg_notify('commitline_relay', key) from queued;

-- insert_settled: an action whose tool is never called: it repeats another one, or is refused.
insert into agent_actions (
    key, tool, args, run_key, position, thread_id, idempotency_key, domain_key, generation,
    effect, key_ttl, requested_digest, effective_digest, duplicate_of, status, outcome,
    effect_possible, result, done_at, parked_at, parked_reason, undoes, undoes_domain_key)
values (
    %(key)s, %(tool)s, %(args)s::json, %(run_key)s, %(position)s, %(thread_id)s,
    %(idempotency_key)s, %(domain_key)s, %(generation)s, %(effect)s, %(key_ttl)s,
    %(requested_digest)s, %(effective_digest)s, %(duplicate_of)s, %(status)s, %(outcome)s,
    %(effect_possible)s, %(result)s::json,
    case when %(status)s = 'done' then clock_timestamp() end,
    case when %(parked_reason)s::text is not null then clock_timestamp() end,
    %(parked_reason)s, %(undoes)s, %(undoes_domain_key)s)
returning *, clock_timestamp() as now;

-- rely: a detached call relies on the action that another run carries out for the same fact. If that
-- run gives it up, the relay adopts it.
insert into agent_intents (key, role, relies) values (%(key)s, commitline_caller(), true)
on conflict (key, role) do update set relies = true;

-- dispatch: claim a row that exists: an intent, or one that is taken over.
update agent_actions
   set claim_token = %(token)s,
       claimed_by = %(claimed_by)s,
       attempt_at = %(attempt_at)s,
       trace_parent = %(trace_parent)s,
       unordered = unordered or %(unordered)s,
       lease_until = clock_timestamp() + %(lease)s,
       sent_until = greatest(sent_until, clock_timestamp() + %(deadline)s),
       others_may_send = coalesce(sent_until > clock_timestamp(), false),
       looking_up = false,
       in_progress = false,
       tries = tries + 1,
       dispatched_at = coalesce(dispatched_at, clock_timestamp()),
       clocks_apart = coalesce(clocks_apart, clock_timestamp() - %(engine_now)s)
 where key = %(key)s and status = 'pending'
returning *, clock_timestamp() as now;

-- take_to_look_up: claim a dispatched row in order to look it up. sent_until stays: this attempt
-- sends nothing.
update agent_actions
   set claim_token = %(token)s,
       claimed_by = %(claimed_by)s,
       attempt_at = %(attempt_at)s,
       trace_parent = %(trace_parent)s,
       unordered = unordered or %(unordered)s,
       lease_until = clock_timestamp() + %(lease)s,
       looking_up = true
 where key = %(key)s and status = 'pending'
returning *, clock_timestamp() as now;

-- send_after_lookup: the downstream system has not seen it: dispatch it again.
update agent_actions
   set looking_up = false, in_progress = false, tries = tries + 1,
       lease_until = clock_timestamp() + %(lease)s,
       sent_until = clock_timestamp() + %(deadline)s,
       others_may_send = false,
       clocks_apart = clock_timestamp() - %(engine_now)s
 where key = %(key)s and claim_token = %(token)s and status = 'pending' and parked_at is null
returning key;

-- fail_try: the tool failed the try of this claim. The try is over, unless the tool goes on. The
-- count is set, not added, so that a repeated statement does not count twice.
update agent_actions
   set failures = %(failures)s, in_progress = %(in_progress)s,
       sent_until = case when %(over)s and not others_may_send
                         then least(sent_until, clock_timestamp()) else sent_until end
 where key = %(key)s and claim_token = %(token)s and status = 'pending'
returning key;

-- hand_back: the attempt sent nothing; the row is an intent again. Not if an earlier attempt may
-- have sent something: this one dispatched it again, or looks it up. Not if it is parked: a record
-- or a person settles it.
update agent_actions
   set claim_token = null, claimed_by = null, attempt_at = null, lease_until = null,
       sent_until = null, dispatched_at = null, clocks_apart = null, tries = tries - 1,
       failures = greatest(failures, %(failures)s), undone_by = null
 where key = %(key)s and claim_token = %(token)s and status = 'pending' and tries = 1
   and not looking_up and parked_at is null
returning key;
