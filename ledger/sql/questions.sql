-- Named queries of questions.
-- A line `-- name: purpose` starts each query; parameters are always bound.

-- questions_of: the questions of a call that it has not replaced, in order.
select q.*, (select r.workflow_id from agent_runs r where r.run_key = q.run_key) as workflow_id,
       false as run_over, clock_timestamp() as now
  from agent_questions q
 where key = %(key)s and replaced_at is null
 order by number;

-- lock_questions: the same, locked: an answer comes before this transaction, or after it.
select q.*, (select r.workflow_id from agent_runs r where r.run_key = q.run_key) as workflow_id,
       false as run_over, clock_timestamp() as now
  from agent_questions q
 where key = %(key)s and replaced_at is null
 order by number
   for update;

-- replace_questions: the call, carried out again, raises another question here.
update agent_questions set replaced_at = clock_timestamp()
 where key = %(key)s and number >= %(number)s and replaced_at is null;

-- insert_question: the next question of a call.
insert into agent_questions (
    key, number, run_key, position, thread_id, tool, message, payload, expires_at)
select %(key)s, coalesce(max(number), 0) + 1, %(run_key)s, %(position)s, %(thread_id)s,
       %(tool)s, %(message)s, %(payload)s::json, clock_timestamp() + %(expires_after)s::interval
  from agent_questions where key = %(key)s
returning *, (select r.workflow_id from agent_runs r
               where r.run_key = agent_questions.run_key) as workflow_id,
          false as run_over, clock_timestamp() as now;

-- leave_dispatched: the attempt is over and sent nothing, but an earlier one may have. So the row
-- stays dispatched, without a lease. The downstream system may still be at work on it.
update agent_actions
   set claimed_by = key, lease_until = clock_timestamp(),
       sent_until = case when %(over)s then least(sent_until, clock_timestamp())
                         else sent_until end,
       in_progress = (effect = 'at_most_once')
 where key = %(key)s and claim_token = %(token)s and status = 'pending' and parked_at is null
returning key;

-- get_question: one question of a call.
select q.*, (select r.workflow_id from agent_runs r where r.run_key = q.run_key) as workflow_id,
       false as run_over, clock_timestamp() as now
  from agent_questions q
 where key = %(key)s and number = %(number)s;

-- newest_question: the question that a call raised last.
select q.*, (select r.workflow_id from agent_runs r where r.run_key = q.run_key) as workflow_id,
       false as run_over, clock_timestamp() as now
  from agent_questions q
 where key = %(key)s
 order by number desc
 limit 1;

-- answer: the one answer, while it may still be given and the run may still act on it.
with run as (
    select r.run_key, r.workflow_id from agent_runs r join agent_questions q using (run_key)
     where q.key = %(key)s and q.number = %(number)s and r.state = 'running'
       for share of r
)
update agent_questions
   set answer = %(answer)s::json, answered_by = %(by)s, answered_at = clock_timestamp()
  from run
 where key = %(key)s and number = %(number)s and answered_at is null and replaced_at is null
   and withdrawn_at is null
   and (expires_at is null or expires_at > clock_timestamp())
returning agent_questions.*, run.workflow_id, false as run_over, clock_timestamp() as now;

-- withdraw_questions: the run was forked to before these calls.
update agent_questions set withdrawn_at = clock_timestamp()
 where run_key = %(run_key)s and position = any(%(positions)s) and answered_at is null
   and replaced_at is null and withdrawn_at is null;

-- list_questions: those that wait for an answer, or all; the longest waiting first.
select q.*, r.workflow_id, r.state <> 'running' as run_over, clock_timestamp() as now
  from agent_questions q join agent_runs r using (run_key)
 where (%(run_key)s::text is null or q.run_key = %(run_key)s)
   and (not %(only_waiting)s
        or (q.answered_at is null and q.replaced_at is null and q.withdrawn_at is null
            and r.state = 'running'
            and (q.expires_at is null or q.expires_at > clock_timestamp())))
 order by q.raised_at, q.key, q.number
 limit %(limit)s;
