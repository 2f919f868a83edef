-- Named queries of outcomes: how an action ended, and what follows from it.
-- A line `-- name: purpose` starts each query; parameters are always bound.

-- record: the outcome, by the attempt that holds the claim; the first one stands. Not of an action
-- that undoes another, that was undone meanwhile, that was reopened, or that is sent by the relay
-- and can be undone, since `record_late` writes more with those. An action of the relay's is settled
-- by this, because its model read that it is pending.
update agent_actions
   set status = 'done', outcome = %(outcome)s, effect_possible = %(effect_possible)s,
       result = %(result)s::json, state_changes = %(state_changes)s::json,
       done_at = clock_timestamp(),
       settled_at = case when relayed then clock_timestamp() end
 where key = %(key)s and claim_token = %(token)s and status = 'pending' and parked_at is null
   and undoes is null and undone_by is null and reopened_at is null
   and not (relayed and compensator is not null)
returning key;

-- record_late: the same for every other action, also one that was parked meanwhile. An attempt
-- that lost its claim may still record that the call succeeded, once no later attempt is at work:
-- that is true even if another attempt holds the claim. At once, where no attempt is a later one.
update agent_actions
   set status = 'done', outcome = %(outcome)s, effect_possible = %(effect_possible)s,
       result = %(result)s::json, state_changes = %(state_changes)s::json,
       done_at = clock_timestamp(),
       undone_by = case when %(effect_possible)s then undone_by end,
       settled_at = case when parked_at is not null or reopened_at is not null or relayed
                         then clock_timestamp() else settled_at end,
       -- If the model has read that it was undone: it may turn out never to have happened.
       notified_version = null,
       parked_at = null, parked_reason = null
 where key = %(key)s and status = 'pending'
   and (claim_token = %(token)s
        or (%(outcome)s = 'ok' and dispatched_at is not null
            and (parked_at is not null or unordered or lease_until < clock_timestamp())))
returning key;

-- settle_repeats: the calls that were answered with an action that was unknown until now; see
-- commitline_settle_repeats in the migration.
select key from commitline_settle_repeats(%(key)s) key;

-- settle: a person settles an unknown action, and with it the calls that were answered with it.
update agent_actions
   set status = 'done', outcome = %(outcome)s, effect_possible = %(effect_possible)s,
       undone_by = case when %(effect_possible)s then (
                        select f.undone_by from agent_actions f where f.key = %(key)s) end,
       result = %(result)s::json, done_at = clock_timestamp(),
       settled_at = case when parked_at is not null or reopened_at is not null or relayed
                         then clock_timestamp() else settled_at end,
       notified_version = null,
       parked_at = null, parked_reason = null,
       decided_by = %(by)s, decided_at = clock_timestamp()
 where status = 'pending'
   and (key = %(key)s or (duplicate_of = %(key)s and parked_at is not null))
returning *, clock_timestamp() as now;

-- park: the action is unknown, and is not sent again; a person settles it.
update agent_actions
   set parked_at = clock_timestamp(), parked_reason = %(reason)s,
       failures = coalesce(%(failures)s::integer, failures),
       -- The attempt that parks its own call is over; one that was lost may still be at work.
       lease_until = case when %(over)s then clock_timestamp() else lease_until end,
       -- Where every try is known to be over, nothing is sent any more: neither a later lookup nor
       -- a person need wait for that.
       sent_until = case when %(over)s and not others_may_send
                         then least(sent_until, clock_timestamp()) else sent_until end
 where key = %(key)s and status = 'pending' and parked_at is null
   and (%(token)s::uuid is null or claim_token = %(token)s)
returning *, clock_timestamp() as now;

-- park_unsent: an intent that could not be sent, time after time; a person decides about it.
update agent_actions
   set parked_at = clock_timestamp(), parked_reason = %(reason)s
 where key = %(key)s and status = 'pending' and parked_at is null and dispatched_at is null
   and commitline_wait_briefly()
returning *, clock_timestamp() as now;

-- end_intent: end an intent of which nothing was sent, and nothing will be, if it is one; see
-- commitline_end_intent in the migration.
select commitline_end_intent(%(key)s, %(result)s::json) as ended;

-- give_up_intent: the same of an intent that its run does not send any more, unless somebody else
-- relies on it: then the relay adopts it; see commitline_give_up in the migration.
select commitline_give_up(%(key)s, %(result)s::json) as ended;

-- facts_undone_with: the business facts of what an action undoes, and of what the calls undo that
-- were answered with it: an undo whose tool does not say what it undoes has such calls.
select distinct f.domain_key
  from agent_actions u join agent_actions f on f.key = u.undoes
 where (u.key = %(key)s or u.duplicate_of = %(key)s) and f.domain_key is not null
 order by 1;

-- release_domain_key: the action that holds the key had no effect, for certain.
update agent_domain_keys set held_by = null
 where domain_key = %(domain_key)s and held_by = %(key)s;

-- mark_undone: what these actions undid is undone, and its business fact is free again, in the
-- next generation.
with undone as (
    update agent_actions f
       set undone_by = u.key,
           -- Its conversation gets a notice. Of a refund that it called itself, it has the reply.
           settled_at = case when starts_with(u.position, 'undo-')
                                  or coalesce(u.thread_id, u.run_key)
                                     <> coalesce(f.thread_id, f.run_key)
                             then clock_timestamp() else f.settled_at end,
           notified_version = case when starts_with(u.position, 'undo-')
                                        or coalesce(u.thread_id, u.run_key)
                                           <> coalesce(f.thread_id, f.run_key)
                                   then null else f.notified_version end
      from agent_actions u
     where u.key = any(%(keys)s) and u.status = 'done' and u.effect_possible and f.key = u.undoes
       and f.undone_by is null and f.effect_possible is not false
       -- An intent will still be sent, after the undo that came before it.
       and f.dispatched_at is not null
    returning f.key, f.domain_key, f.status, f.undone_by
)
update agent_domain_keys d set held_by = null, undone_by = undone.undone_by
  from undone
 where undone.status = 'done' and d.domain_key = undone.domain_key and d.held_by = undone.key;

-- mark_repeats_undone: the calls that were answered with what these actions undid are undone with
-- it, and their conversations get a notice, too. A statement of its own: it sees the calls that were
-- answered until the one before had its locks.
with repeats as (
    select r.key, u.key as undo,
           starts_with(u.position, 'undo-')
           or coalesce(u.thread_id, u.run_key) <> coalesce(r.thread_id, r.run_key) as told
      from agent_actions u
      join agent_actions f on f.key = u.undoes and f.undone_by = u.key
      join agent_actions r on r.duplicate_of = f.key
     where u.key = any(%(keys)s) and r.undone_by is null and r.effect_possible is not false
     order by r.key
       for no key update of r
)
update agent_actions r
   set undone_by = repeats.undo,
       settled_at = case when told then clock_timestamp() else r.settled_at end,
       notified_version = case when told then null else r.notified_version end
  from repeats
 where r.key = repeats.key;

-- release_undone: free the key of an action whose outcome became known after it had been undone.
update agent_domain_keys d set held_by = null, undone_by = a.undone_by
  from agent_actions a
 where a.key = %(key)s and a.status = 'done' and a.undone_by is not null
   and d.domain_key = a.domain_key and d.held_by = a.key;

-- dequeue: these actions have an end: the relay has nothing more to do about them. Nor is it to undo
-- what they undo; but if it is to send that, or to look it up, it still is. Where a workflow shows that
-- one of them waits for a person, the relay has that look again.
with ended as (
    select key, shown from agent_relay
     where key = any(%(keys)s)
        or (why = 'undo' and key = any(array(  -- an array, by which an index can be searched
            select undoes from agent_actions where key = any(%(keys)s))))
       for update
), gone as (
    delete from agent_relay q using ended where q.key = ended.key and not ended.shown
), told as (
    update agent_relay q set due_at = clock_timestamp() from ended
     where q.key = ended.key and ended.shown
    returning q.key
)
select pg_notify('commitline_relay', key) from told;

-- relay_undo: it happened after its run had been undone: the relay undoes it, too. It looks at the run
-- again until it has, so that it does so also if it loses the entry.
with queued as (
    insert into agent_relay (key, why, tool)
    select a.key, 'undo', a.compensator
      from agent_actions a join agent_runs r using (run_key)
     where a.key = %(key)s and a.status = 'done' and a.effect_possible
       and a.compensator is not null and a.undone_by is null and a.undoes is null
       and a.duplicate_of is null and r.undo_ended_at is not null
       and a.adopted_at is null  -- it was sent for somebody else
    on conflict (key) do update
        set why = excluded.why, tool = excluded.tool, due_at = clock_timestamp(), starts = 0
    returning key
)
update agent_runs r set cleared_at = null
  from queued join agent_actions a using (key)
 where r.run_key = a.run_key and r.cleared_at is not null;

-- reopen: a parked action is tried again, or looked up. Not while an attempt may be at work.
update agent_actions
   set parked_at = null, parked_reason = null, reopened_at = clock_timestamp(), failures = 0
 where key = %(key)s and status = 'pending' and parked_at is not null and duplicate_of is null
   and (lease_until is null or lease_until <= clock_timestamp())
returning *, clock_timestamp() as now;
