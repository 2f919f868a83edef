-- Named queries of conversations.
-- A line `-- name: purpose` starts each query; parameters are always bound.

-- open_thread: begin a conversation, or find it.
insert into agent_threads (thread_id, agent) values (%(thread_id)s, %(agent)s)
on conflict (thread_id) do update
    -- The next agent takes a conversation without a commit: the first name may be a misprint.
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

-- lock_thread: no other session commits to it until this transaction has committed.
select * from agent_threads where thread_id = %(thread_id)s for update;

-- list_threads: the newest conversations, and how many messages each has.
select t.*, (select count(*) from agent_messages m
              where m.thread_id = t.thread_id and m.superseded_at is null) as messages
  from agent_threads t
 order by t.created_at desc, t.thread_id
 limit %(limit)s;

-- get_messages: a conversation in order, without the messages that a fork took back.
select * from agent_messages
 where thread_id = %(thread_id)s and superseded_at is null
 order by version, ordinal;

-- get_turn: the completion that stands for a model turn.
select * from agent_messages
 where run_key = %(run_key)s and step = %(step)s
   and role = 'assistant' and superseded_at is null;

-- receive: take a request up; the first text of its id stands. The thread is locked: a deletion at
-- the same moment must not leave the text behind.
insert into agent_requests (thread_id, request_id, message)
select thread_id, %(request_id)s, %(message)s::json
  from agent_threads where thread_id = %(thread_id)s and deleted_at is null
   for share
on conflict (thread_id, request_id) do nothing;

-- get_request: one request and its reply.
select thread_id, request_id, message, reply from agent_requests
 where thread_id = %(thread_id)s and request_id = %(request_id)s;

-- commit_turn: the messages of one turn, the thread's next version, the tokens that it took, the
-- state that it leaves, the reply to its request and the notices in it, all or nothing. The
-- messages are bound in binary: as a text the driver escapes a list by regular expressions, for
-- seconds. No row back: the thread is at another version, or deleted.
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
), notified as (
    update agent_actions set notified_version = thread.version
      from thread
     where key = any(%(notified)s::text[]) and settled_at is not null and notified_version is null
)
select thread.version, run.input_tokens, run.output_tokens, now() as committed_at,
       (select created_at from agent_messages m
         where m.thread_id = thread.thread_id and m.version = %(version)s and superseded_at is null
         limit 1) as started_from
  from thread left join run on true;

-- pending_notices: what was settled after the model had read that it is unknown or pending.
select *, clock_timestamp() as now from agent_actions
 where coalesce(thread_id, run_key) = %(thread_id)s and settled_at is not null
   and notified_version is null
 order by settled_at, key;

-- read_turn: what a model turn starts from, in one row: the run, its conversation, the state, the
-- request, whether there are notices. Not the messages, which the worker may know: committed_at tells
-- two commits of one version apart, of which a failover lost the first.
select r.*, clock_timestamp() as now,
       t.thread_id as found_thread_id, t.agent as thread_agent, t.version as thread_version,
       t.written_by, t.forked_run, t.forked_step, t.created_at as thread_created_at, t.deleted_at,
       (select created_at from agent_messages m
         where m.thread_id = t.thread_id and m.version = t.version and superseded_at is null
         limit 1) as committed_at,
       s.state as shared_state, s.version as state_version,
       q.message as request_message, q.reply as request_reply,
       exists (select from agent_actions
                where coalesce(thread_id, run_key) = %(thread_id)s and settled_at is not null
                  and notified_version is null) as has_notices
  from (values (true)) always
  left join agent_runs r on r.run_key = %(run_key)s
  left join agent_threads t on t.thread_id = %(thread_id)s
  left join lateral (
        select state, version from agent_states
         where thread_id = t.thread_id and superseded_at is null
         order by version desc
         limit 1) s on true
  left join agent_requests q on q.thread_id = t.thread_id and q.request_id = %(request_id)s;

-- get_returned: what calls returned: of actions that happened, and of reads whose results are kept.
select key, result, state_changes, duplicate_of from agent_actions
 where key = any(%(keys)s::text[]) and outcome = 'ok'
union all
select v.key, v.value, null, null from agent_values v
 where v.key = any(%(keys)s::text[])
   and not exists (select from agent_actions a where a.key = v.key);

-- delete_thread: write its tombstone.
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
