-- Named queries of conversations. A line `-- name: purpose` starts each; parameters are bound.

-- open_thread: begin a conversation, or find it.
insert into agent_threads (thread_id, agent) values (%(thread_id)s, %(agent)s)
on conflict (thread_id) do update
    -- One that nobody has written yet is whoever's who asks next: the first may be a misprint.
    set agent = case when agent_threads.version = 0 then excluded.agent
                     else agent_threads.agent end
returning *;

-- get_thread: one conversation.
select * from agent_threads where thread_id = %(thread_id)s;

-- get_thread_with_state: one conversation, and its state at a version, or now.
select t.*, s.state, s.version as state_version
  from agent_threads t
  left join lateral (
        select state, version from agent_states
         where thread_id = t.thread_id and superseded_at is null
           and (%(version)s::integer is null or version <= %(version)s::integer)
         order by version desc
         limit 1) s on true
 where t.thread_id = %(thread_id)s;

-- lock_thread: keep its version as it is until this has committed.
select * from agent_threads where thread_id = %(thread_id)s for update;

-- list_threads: the newest conversations, and how many messages each has.
select t.*, (select count(*) from agent_messages m
              where m.thread_id = t.thread_id and m.superseded_at is null) as messages
  from agent_threads t
 order by t.created_at desc, t.thread_id
 limit %(limit)s;

-- get_messages: a conversation in order, without what a fork took back.
select * from agent_messages
 where thread_id = %(thread_id)s and superseded_at is null
 order by version, ordinal;

-- get_turn: the completion that stands for a model turn.
select * from agent_messages
 where run_key = %(run_key)s and step = %(step)s
   and role = 'assistant' and superseded_at is null;

-- receive: take a request up; the first text of its id stands. Locked: a deletion that comes
-- at the same moment must not leave the text behind.
insert into agent_requests (thread_id, request_id, message)
select thread_id, %(request_id)s, %(message)s::json
  from agent_threads where thread_id = %(thread_id)s and deleted_at is null
   for share
on conflict (thread_id, request_id) do nothing;

-- get_request: one request and its reply.
select thread_id, request_id, message, reply from agent_requests
 where thread_id = %(thread_id)s and request_id = %(request_id)s;

-- commit_turn: the messages of one turn, the thread's next version, the tokens that it took, the
-- state that it leaves, the reply to its request and what it told, all or nothing. The messages are bound in binary: as a
-- text the driver escapes a list by regular expressions, for seconds. No row back: the thread is
-- at another version, or deleted.
with thread as (
    update agent_threads
       set version = version + 1, written_by = %(run_key)s, forked_run = null, forked_step = null
     where thread_id = %(thread_id)s and version = %(version)s and deleted_at is null
    returning thread_id, version
), run as (
    update agent_runs
       set input_tokens = input_tokens + %(input_tokens)s,
           output_tokens = output_tokens + %(output_tokens)s
      from thread
     where agent_runs.run_key = %(run_key)s
    returning agent_runs.input_tokens, agent_runs.output_tokens
), messages as (
    insert into agent_messages (
        thread_id, version, ordinal, role, message, run_key, step, epoch, request_id)
    select thread.thread_id, thread.version, one.ordinal - 1, one.role, one.message::json,
           %(run_key)s, %(step)s, %(epoch)s, one.request_id
      from thread,
           unnest(%(roles)s::text[], %(messages)b::text[], %(request_ids)s::text[])
                with ordinality as one (role, message, request_id, ordinal)
), state as (
    insert into agent_states (thread_id, version, state)
    select thread.thread_id, thread.version, %(state)s::text::json
      from thread where %(state)s::text is not null
), request as (
    update agent_requests set reply = %(reply)s::json, replied_version = thread.version
      from thread
     where agent_requests.thread_id = thread.thread_id
       and agent_requests.request_id = %(replies_to)s::text and agent_requests.reply is null
), told as (
    update agent_actions set notified_version = thread.version
      from thread
     where key = any(%(told)s::text[]) and settled_at is not null and notified_version is null
)
select thread.version, run.input_tokens, run.output_tokens
  from thread left join run on true;

-- pending_notices_in_thread: what has been settled since the conversation was told that it is unknown.
select *, clock_timestamp() as now from agent_actions
 where coalesce(thread_id, run_key) = %(thread_id)s and settled_at is not null
   and notified_step is null and notified_version is null
 order by settled_at, key;

-- delete_thread: its tombstone.
update agent_threads set deleted_at = coalesce(deleted_at, clock_timestamp())
 where thread_id = %(thread_id)s;

-- delete_messages: of a deleted conversation.
delete from agent_messages where thread_id = %(thread_id)s;

-- delete_requests: of a deleted conversation.
delete from agent_requests where thread_id = %(thread_id)s;

-- delete_states: of a deleted conversation.
delete from agent_states where thread_id = %(thread_id)s;

-- delete_values: of a deleted conversation.
delete from agent_values where thread_id = %(thread_id)s;

-- put_value: keep a read's large result; of two attempts the last is the one that was told.
insert into agent_values (key, thread_id, value)
select %(key)s, thread_id, %(value)s::json
  from agent_threads where thread_id = %(thread_id)s and deleted_at is null
   for share
on conflict (key) do update set value = excluded.value;

-- get_value: a read's large result.
select value from agent_values where key = %(key)s;

-- give_up_run: another run goes on with its conversation: it starts nothing any more, not even
-- if a failover has lost its row.
insert into agent_runs (
    run_key, workflow_id, agent, input_digest, state, opened_attempt_at, ended_attempt_at,
    stopped_at, stop_reason, parent_key, owner)
values (%(run_key)s, %(workflow_id)s, '', '', 'ended', clock_timestamp(), clock_timestamp(),
        clock_timestamp(), %(reason)s, %(parent_key)s,
        case when %(parent_key)s::text is not null then '' end)
on conflict (run_key) do update
   -- What is being undone goes on being undone, and is ended by that.
   set state = case agent_runs.state when 'undoing' then 'undoing' else 'ended' end,
       ended_attempt_at = greatest(agent_runs.ended_attempt_at, agent_runs.opened_attempt_at),
       stopped_at = coalesce(agent_runs.stopped_at, clock_timestamp()),
       stop_reason = coalesce(agent_runs.stop_reason, excluded.stop_reason);

-- lock_claimed_for: what calls of a run carried out, or do, on the rows of other actions.
select *, clock_timestamp() as now from agent_actions
 where claimed_by = any(%(keys)s) and claimed_by <> key
 order by key
   for update;

-- domain_keys_of: what a model turn's calls that are under way hold, in the order in which it is
-- locked. Also of what was dispatched: its attempt may hand it back meanwhile.
select domain_key from agent_actions
 where run_key = %(run_key)s and position = any(%(positions)s)
   and domain_key is not null and status = 'pending' and parked_at is null
 order by domain_key;

-- list_actions_of_run: where a run has acted.
select key, position from agent_actions where run_key = %(run_key)s;

-- lock_turn_actions: what of a model turn is under way. Nothing else: a settlement locks an
-- unknown action and then those that repeat it, which is another order.
select *, clock_timestamp() as now from agent_actions
 where run_key = %(run_key)s and position = any(%(positions)s)
   and status = 'pending' and parked_at is null
 order by key
   for update;

-- get_turn_actions: what a model turn has in the ledger.
select *, clock_timestamp() as now from agent_actions
 where run_key = %(run_key)s and position = any(%(positions)s)
 order by key;

-- lock_run_to_fork: nobody claims, stops or forks it until this has committed.
select *, clock_timestamp() as now from agent_runs where run_key = %(run_key)s for no key update;

-- written_by_others: who else has written the conversation from this version on.
select run_key from agent_messages
 where thread_id = %(thread_id)s and version >= %(version)s and superseded_at is null
   and run_key <> %(run_key)s
 limit 1;

-- supersede: take back what the conversation has from this version on.
update agent_messages set superseded_at = clock_timestamp()
 where thread_id = %(thread_id)s and version >= %(version)s and superseded_at is null;

-- supersede_states: take the state back with it.
update agent_states set superseded_at = clock_timestamp()
 where thread_id = %(thread_id)s and version >= %(version)s and superseded_at is null;

-- untell: what was told in what is taken back is to be told again.
update agent_actions set notified_version = null, notified_step = null
 where coalesce(thread_id, run_key) = %(thread_id)s and settled_at is not null
   and notified_version >= %(version)s;

-- reopen_requests: a reply that is taken back is none.
update agent_requests set reply = null, replied_version = null
 where thread_id = %(thread_id)s and replied_version >= %(version)s;

-- fork_thread: the fork is a commit of its own, so that what was under way before is stale.
update agent_threads
   set version = version + 1, written_by = %(run_key)s,
       forked_run = %(run_key)s, forked_step = %(step)s
 where thread_id = %(thread_id)s
returning version;

-- fork_run: open the next epoch.
update agent_runs set epoch = epoch + 1, fork_step = %(step)s
 where run_key = %(run_key)s
returning epoch;
