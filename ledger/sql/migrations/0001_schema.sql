-- The ledger: runs, their actions, the business facts that actions hold, conversations, what
-- waits for a person, and the relay's queue.
--
-- Lock order, everywhere: thread, run, domain key, action. A run is locked before the runs of
-- its sub-agents. A statement that takes a later lock before an earlier one is a deadlock that
-- waits for load.
--
-- Every constraint has a name, and a comment that says which bug it prevents. All tables begin
-- with `agent_`, so that they can share a schema with an application's own.
--
-- Texts of JSON are `json`, not `jsonb`: the text comes back as it was written. jsonb rewrites
-- floats, merges keys and refuses NUL and lone surrogates.

-- ---------------------------------------------------------------------------------- runs

-- What may not have all that was committed has another timeline: Postgres's own, where a standby was
-- promoted, or a backup was recovered to a point in time, and the server says it; the database and
-- the table, where a dump was loaded; the server's start, where its files were put back, or lost in
-- a crash what they did not have yet.
create function commitline_timeline()
returns text
language plpgsql as $function$
declare
    own text;
begin
    begin
        own := left(pg_walfile_name(pg_current_wal_insert_lsn()), 8);
    exception when others then
        own := '';
    end;
    return concat_ws('/', own, (select oid from pg_database where datname = current_database()),
                     'agent_runs'::regclass::oid, extract(epoch from pg_postmaster_start_time()));
end
$function$;

-- Bug prevented: whoever waits for a lock of an application's open transaction (commitline_intend)
-- holds a connection of the ledger's, until no other run gets one. So a wait is short, and the pause
-- between two is without a connection. For this transaction alone, so nothing stays with the session.
create function commitline_wait_briefly()
returns boolean
language sql as $function$
    select set_config('lock_timeout',
                      coalesce(current_setting('commitline.lock_timeout', true), '100ms'),
                      true) is not null
$function$;

-- One row per run. Columns: who it is; its life; its conversation; who called it; its undo; what
-- the relay knows of its workflow.
create table agent_runs (
    run_key            text        not null,
    workflow_id        text        not null,
    agent              text        not null,
    input_digest       text        not null,

    state              text        not null default 'running',
    -- Counts forks: each one begins the next epoch.
    epoch              integer     not null default 0,
    -- When attempts began, by the engine's clock. They order an execution that goes on after the
    -- one that ended, which the clocks of two machines could not.
    opened_attempt_at  timestamptz not null,
    ended_attempt_at   timestamptz,
    created_at         timestamptz not null default now(),
    -- A stop is for ever: no reset and no retry opens the run again.
    stopped_at         timestamptz,
    stop_reason        text,

    thread_id          text,
    -- What the run keeps of its agent; a deploy does not change it.
    spec               json,
    -- The model turn from which the newest epoch goes another way.
    fork_step          integer,
    input_tokens       bigint      not null default 0,
    output_tokens      bigint      not null default 0,

    -- Of a sub-agent's run: the run that called it. Stop and undo reach it from there.
    parent_key         text,
    -- Of a sub-agent's run: the workflow that may act for it, '' being none. A parent that is reset
    -- starts another workflow, while the one before may live on. workflow_id names the latest one,
    -- even where that may not act.
    owner              text,

    -- A stop that also undoes.
    compensate         boolean     not null default false,
    -- When undoing began last, and when it ended: with everything undone, or a list of what stands.
    undo_began_at      timestamptz,
    undo_ended_at      timestamptz,
    -- The workflow that carries it out: the run's own, or one that a person started.
    undo_owner         text,

    -- How the workflow ended where the run could not record it: terminated, timed_out, …
    workflow_status    text,
    -- Temporal's namespace: a workflow of another one cannot be found.
    namespace          text,
    -- When the relay looked last: whether the workflow is alive, or what an ended run has left.
    looked_at          timestamptz,
    -- When the relay saw that each action of the ended run has an end, or is left to a person. Until
    -- then it looks at the run. A run of the outbox has no workflow, and counts as ended here.
    cleared_at         timestamptz,
    -- Of the ledger in which the run began; 'lost' where that one's row of the run is lost.
    timeline           text        default commitline_timeline(),

    constraint agent_runs_pkey primary key (run_key),
    -- running    -- opened by the run's first activity; claims succeed
    -- stopping   -- running -> stopping: a stop was requested; nothing new starts
    -- undoing    -- running | stopping -> undoing: what stands is being undone
    -- ended      -- any -> ended; ended -> running when a reset or a retry goes on
    constraint agent_runs_state_is_known
        check (state in ('running', 'stopping', 'undoing', 'ended')),
    -- Bug prevented: a run that ended, and that every late attempt opens again.
    constraint agent_runs_ended_says_when
        check (state <> 'ended' or ended_attempt_at is not null),
    -- Bug prevented: a run that is opened again, and of which the relay overlooks what it leaves.
    constraint agent_runs_cleared_has_ended
        check (cleared_at is null or state = 'ended' or workflow_id = 'outbox'),
    -- Bug prevented: a run that may start nothing, and no reason to show for it.
    constraint agent_runs_stop_says_why
        check ((stopped_at is null) = (stop_reason is null)),
    -- Bug prevented: an epoch whose first model turn is unknown.
    constraint agent_runs_fork_says_where check ((epoch = 0) = (fork_step is null)),
    -- Bug prevented: a sub-agent's run that no stop and no undo reaches.
    constraint agent_runs_parent_exists
        foreign key (parent_key) references agent_runs (run_key),
    -- Bug prevented: a sub-agent's run in which any workflow may act, as in one that is started.
    constraint agent_runs_sub_agent_has_an_owner
        check ((parent_key is null) = (owner is null)),
    -- Bug prevented: a run that a reset drives forward after its actions were undone.
    constraint agent_runs_undo_is_final
        check (undo_began_at is null or stopped_at is not null),
    -- Bug prevented: an undo that is over and never began: late successes would not be undone.
    constraint agent_runs_undo_ended_had_begun
        check (undo_ended_at is null or undo_began_at is not null)
);
-- The runs of one workflow id, the newest first (get_begun, list_runs).
create index agent_runs_by_workflow on agent_runs (workflow_id, created_at desc);
-- The runs of a run's sub-agents. Few runs have a parent, so the index is small.
create index agent_runs_by_parent on agent_runs (parent_key) where parent_key is not null;
-- The open runs that the relay looks through, those first that it saw longest ago (take_runs). Not
-- those of the outbox: they have no workflow. Each namespace has its own: where nobody looks for one
-- namespace, its runs hold up no other.
create index agent_runs_open
    on agent_runs (coalesce(namespace, ''), coalesce(looked_at, '-infinity'))
    where state <> 'ended' and not starts_with(run_key, 'outbox/');
-- The newest runs (list_runs).
create index agent_runs_newest on agent_runs (created_at);
-- The runs that are lost, the last one first (list_lost).
create index agent_runs_lost on agent_runs (ended_attempt_at)
    where state = 'ended' and workflow_status <> 'completed';
-- The ended runs that the relay looks through for what they have left (clear_runs, without_exit);
-- those of the outbox, of which many may be queued, apart from the others.
create index agent_runs_uncleared
    on agent_runs ((workflow_id = 'outbox'), coalesce(looked_at, '-infinity'))
    where cleared_at is null and (state = 'ended' or workflow_id = 'outbox');

-- ------------------------------------------------------------------------------- actions

-- One row per action: the intent before the call, the outcome after it. Columns: the call and its
-- outcome, for people who read the table; where it was called; how the downstream system knows it;
-- what makes two calls the same; who has claimed it; how it ended; what a person did about it; its
-- undo.
create table agent_actions (
    key                 text        not null,
    tool                text        not null,
    args                json        not null,
    status              text        not null default 'pending',
    result              json,
    created_at          timestamptz not null default now(),

    run_key             text        not null,
    position            text        not null,
    thread_id           text,

    -- What is sent to the downstream system; null for an action that is never sent.
    idempotency_key     text,
    domain_key          text,
    generation          integer     not null default 1,
    effect              text        not null,
    key_ttl             interval,

    -- Of the arguments as the plan had them: another one at this position is a divergence.
    requested_digest    text        not null,
    -- Of what makes two calls the same business fact.
    effective_digest    text        not null,

    -- Who may record: the token of the claim that dispatched last. claimed_by is another action's
    -- key where that one's call carries this row out.
    claim_token         uuid,
    claimed_by          text,
    -- When the attempt that claimed last began, by the engine's clock.
    attempt_at          timestamptz,
    -- An attempt without a place in that order has claimed it: what time would say counts no more.
    unordered           boolean     not null default false,
    -- How far our clock was ahead of the engine's at the dispatch by which sent_until counts. One of
    -- them may jump: what time alone decides counts once it has passed by both.
    clocks_apart        interval,
    -- The span of the attempt that claimed last, as W3C's traceparent, where its worker traces: a
    -- take-over links to it.
    trace_parent        text,
    -- Until then no other attempt takes the row over.
    lease_until         timestamptz,
    -- Until then an attempt so far may still send something. "Not found downstream" counts only
    -- after that.
    sent_until          timestamptz,
    -- Whether an attempt before the one that claimed last may still send something, too: one that
    -- was lost, or whose tool goes on. If not, nothing is sent once that one is over.
    others_may_send     boolean     not null default false,
    tries               integer     not null default 0,
    -- Tries that the tool itself failed. Dead workers and outages do not count.
    failures            integer     not null default 0,
    -- The attempt that holds the claim looks the action up, and has sent nothing itself.
    looking_up          boolean     not null default false,
    -- The downstream system said that it is at work on this very request.
    in_progress         boolean     not null default false,
    -- Sent by the relay, whatever becomes of the run: an intent of the outbox, or a detached call.
    relayed             boolean     not null default false,
    -- Since when the relay has it because somebody else than its run relies on it. It is sent also
    -- if its run was stopped or undone.
    adopted_at          timestamptz,
    -- Of the first dispatch: from then on the downstream system may know our key.
    dispatched_at       timestamptz,
    done_at             timestamptz,

    outcome             text,
    effect_possible     boolean,
    -- What the call changed in the conversation's state, recorded with its outcome.
    state_changes       json,
    -- The action whose outcome this one has, where nothing was sent for it.
    duplicate_of        text,
    codec_version       smallint    not null default 1,

    -- Since when, and why, the action waits for a person.
    parked_at           timestamptz,
    parked_reason       text,
    -- When it was tried again, or looked up, after it had been parked.
    reopened_at         timestamptz,
    -- The person who settled it.
    decided_by          text,
    decided_at          timestamptz,
    -- When what was unknown became known, and the version of the thread in which the model read it.
    settled_at          timestamptz,
    notified_version    integer,

    -- The tool that undoes it, as the tool said when it was called; newer code changes nothing.
    compensator         text,
    -- The action that this one undoes, and the one that undid this one.
    undoes              text,
    undone_by           text,
    -- The business fact that its tool undoes. What is undone is the action that holds that fact when
    -- this one is sent.
    undoes_domain_key   text,
    -- The action that this one may be undoing now, or may have undone: it was dispatched, and how
    -- it ended is not known. A column, as an index that looks at status would cost HOT updates.
    live_undo_of        text generated always as (
        case when status = 'pending' and dispatched_at is not null then undoes end) stored,

    constraint agent_actions_pkey primary key (key),
    -- Bug prevented: an action that no run answers for, and no stop reaches.
    constraint agent_actions_run_exists
        foreign key (run_key) references agent_runs (run_key),
    -- Bug prevented: two rows for one call, after a change of how keys are made.
    constraint agent_actions_one_per_position unique (run_key, position),
    -- pending -> done; done is final.
    constraint agent_actions_status_is_known check (status in ('pending', 'done')),
    -- Bug prevented: a row that no rule of a take-over covers.
    constraint agent_actions_effect_is_known
        check (effect in ('idempotent', 'lookup', 'at_most_once')),
    -- Bug prevented: an action that the relay has adopted, and that it leaves to its run.
    constraint agent_actions_adopted_is_relayed check (adopted_at is null or relayed),
    -- Bug prevented: a half-written row that is taken for a result.
    constraint agent_actions_done_is_complete check (
        (status = 'done') = (outcome is not null and effect_possible is not null
                             and result is not null and done_at is not null)),
    constraint agent_actions_outcome_is_known check (outcome in ('ok', 'error')),
    -- Bug prevented: "ok" that is also "nothing happened", which would release its key.
    constraint agent_actions_ok_had_its_effect check (outcome <> 'ok' or effect_possible),
    -- Bug prevented: a call that nobody can fence, or that no lease protects.
    constraint agent_actions_dispatch_is_complete check (
        dispatched_at is null
        or (idempotency_key is not null and claim_token is not null and claimed_by is not null
            and attempt_at is not null and lease_until is not null and sent_until is not null)),
    -- Bug prevented: a settled action that still waits for a person.
    constraint agent_actions_parked_is_pending
        check (parked_at is null or status = 'pending'),
    -- Bug prevented: a person who has to settle an action, and does not know why.
    constraint agent_actions_parked_says_why
        check ((parked_at is null) = (parked_reason is null)),
    -- Bug prevented: a key that is sent as if it were another generation's.
    constraint agent_actions_generation_counts_from_one check (generation >= 1),
    -- Bug prevented: a tool that is called for ever, because its count started below zero.
    constraint agent_actions_failures_count_from_zero check (failures >= 0),
    -- Bug prevented: a decision without a person who made it.
    constraint agent_actions_decision_is_signed
        check ((decided_by is null) = (decided_at is null)),
    -- Bug prevented: a model that reads that an action is settled, and it is not.
    constraint agent_actions_notified_when_settled
        check (notified_version is null or settled_at is not null),
    -- Bug prevented: changes that count although it is unknown whether the call happened.
    constraint agent_actions_changes_come_with_an_outcome
        check (state_changes is null or status = 'done'),
    -- Bug prevented: one call's changes that are merged for two.
    constraint agent_actions_duplicate_changes_nothing
        check (state_changes is null or duplicate_of is null),
    -- Bug prevented: an undo of itself, which would free its own business fact.
    constraint agent_actions_undoes_another check (undoes <> key and undone_by <> key)
)
-- A row is written twice. Room on its page, and no index on what changes, make the second
-- write a heap-only one (HOT).
with (fillfactor = 75);
-- The newest actions, and the oldest (list_actions). The one index that each claim writes beside the
-- two keys: its place is the last page, so it costs the claim little.
create index agent_actions_by_time on agent_actions (created_at);
-- The indexes below are partial: an action that is simply done is in none of them.
-- What waits for a person, the longest waiting first (list_actions).
create index agent_actions_parked on agent_actions (created_at, key) where parked_at is not null;
-- An unknown action of a tool without a domain key holds back its own repetition in the whole
-- conversation, also while it is tried again (open_unknown).
create index agent_actions_open_unknown
    on agent_actions (coalesce(thread_id, run_key), tool, effective_digest)
    where (parked_at is not null or reopened_at is not null) and domain_key is null;
-- The calls that were answered with another action.
create index agent_actions_repeats on agent_actions (duplicate_of)
    where duplicate_of is not null;
-- Those of them that are unknown, as that action is (settle, settle_left_repeats, without_exit).
create index agent_actions_open_repeats on agent_actions (duplicate_of)
    where duplicate_of is not null and parked_at is not null;
-- What was settled in a conversation, for its notices.
create index agent_actions_settled on agent_actions (coalesce(thread_id, run_key))
    where settled_at is not null;
-- The rows of other actions that a call carries out.
create index agent_actions_claimed_for_another on agent_actions (claimed_by)
    where claimed_by <> key;
-- The undos of a business fact, by which its next holder waits for one that is at work.
create index agent_actions_undoing_fact on agent_actions (undoes_domain_key)
    where undoes_domain_key is not null;
-- The undos of an action.
create index agent_actions_undoing on agent_actions (undoes) where undoes is not null;
-- Bug prevented: two refunds of one charge, of which the second is sent while the first one is at
-- work or unknown: by another run, by the outbox, under another key.
create unique index agent_actions_one_live_undo on agent_actions (live_undo_of)
    where live_undo_of is not null;

-- Which action holds a business fact. generation is the last one that was given out, 0 for none.
-- The row outlives the action, and a released key keeps counting: the downstream system would
-- answer an old key with an old answer.
-- held_by is no foreign key: retention may remove the action and must not release the key.
create table agent_domain_keys (
    domain_key  text    not null,
    generation  integer not null,
    held_by     text,
    -- The action that undid the last holder. Nothing is left to undo, until another one holds it.
    undone_by   text,
    constraint agent_domain_keys_pkey primary key (domain_key),
    -- Bug prevented: a key that is held, and whose next holder would send the same generation.
    constraint agent_domain_keys_held_has_generation
        check (generation >= 0 and (held_by is null or generation >= 1)),
    -- Bug prevented: a refund of a charge that stands, refused as the second one.
    constraint agent_domain_keys_undone_is_free check (held_by is null or undone_by is null)
);

-- ------------------------------------------------------------------------- conversations

create table agent_threads (
    thread_id   text        not null,
    -- The agent that began it: a run that goes on with it names another one, or means this.
    agent       text        not null,
    -- Counts commits. A write names the version that it started from.
    version     integer     not null default 0,
    -- The run of the last commit: a fork may only take back what no other run has built on.
    written_by  text,
    -- A fork from which no run has gone on yet: the next commit reads what it took back.
    forked_run  text,
    forked_step integer,
    created_at  timestamptz not null default now(),
    -- A tombstone: a late write does not bring a deleted conversation back.
    deleted_at  timestamptz,
    constraint agent_threads_pkey primary key (thread_id),
    -- Bug prevented: a first commit whose version no reader can name.
    constraint agent_threads_version_counts_from_zero check (version >= 0)
);
-- The newest conversations (list_threads).
create index agent_threads_newest on agent_threads (created_at);

create table agent_messages (
    thread_id      text        not null,
    -- Of the commit that it came with, and its place in there.
    version        integer     not null,
    ordinal        integer     not null,
    role           text        not null,
    message        json        not null,
    -- Which run wrote it, and at which model turn.
    run_key        text        not null,
    step           integer     not null,
    epoch          integer     not null,
    -- Of a person's message: the request that it is.
    request_id     text,
    created_at     timestamptz not null default now(),
    -- By a fork, which went another way from here. Kept, and no part of the conversation.
    superseded_at  timestamptz,
    constraint agent_messages_pkey primary key (thread_id, version, ordinal),
    -- Bug prevented: messages that a deletion of their conversation does not reach.
    constraint agent_messages_thread_exists
        foreign key (thread_id) references agent_threads (thread_id),
    constraint agent_messages_role_is_known check (role in ('user', 'assistant', 'tool'))
);
-- Bug prevented: a turn with two completions, and so with two plans.
create unique index agent_messages_one_completion_per_turn on agent_messages (run_key, step)
    where role = 'assistant' and superseded_at is null;
-- Bug prevented: a request that the model reads twice, because two runs took it up.
create unique index agent_messages_one_per_request on agent_messages (thread_id, request_id)
    where request_id is not null and superseded_at is null;

-- Whether the row of a call of this turn may be lost, which an attempt before this one wrote: the
-- ledger has another timeline than the one in which the run began. By a start of the server alone
-- only what came before it is lost; if the turn has been committed since, its calls came after that.
-- Not so for an agent in local mode: a task that is made anew commits the turn of a lost one again.
create function commitline_may_have_lost(run agent_runs, turn integer)
returns boolean
language sql stable as $function$
    select run.timeline <> commitline_timeline()
       and not ((run.spec ->> 'local') is distinct from 'true'
                and regexp_replace(run.timeline, '/[^/]*$', '')
                    = regexp_replace(commitline_timeline(), '/[^/]*$', '')
                and exists (select from agent_messages m
                             where m.run_key = run.run_key and m.step = turn
                               and m.role = 'assistant' and m.superseded_at is null
                               and m.created_at > pg_postmaster_start_time()))
$function$;

-- What callers sent to a thread, and the replies. The caller's id makes it one request, however
-- often it is sent, to whichever run.
create table agent_requests (
    thread_id        text        not null,
    request_id       text        not null,
    message          json        not null,
    created_at       timestamptz not null default now(),
    reply            json,
    -- Of the commit that answered it: a fork that takes that back takes the reply back.
    replied_version  integer,
    constraint agent_requests_pkey primary key (thread_id, request_id),
    -- Bug prevented: requests that a deletion of their conversation does not reach.
    constraint agent_requests_thread_exists
        foreign key (thread_id) references agent_threads (thread_id),
    -- Bug prevented: a reply that no fork takes back.
    constraint agent_requests_reply_is_complete
        check ((reply is null) = (replied_version is null))
);

-- What the tools of a conversation share, by version.
create table agent_states (
    thread_id      text        not null,
    -- Of the commit that it came with. A commit that changes nothing writes none.
    version        integer     not null,
    state          json        not null,
    created_at     timestamptz not null default now(),
    -- By a fork, together with the messages of that commit.
    superseded_at  timestamptz,
    constraint agent_states_pkey primary key (thread_id, version),
    -- Bug prevented: a state that a deletion of its conversation does not reach.
    constraint agent_states_thread_exists
        foreign key (thread_id) references agent_threads (thread_id)
);

-- Results of reads that are too large to travel; those of actions lie with the action.
create table agent_values (
    key         text        not null,
    thread_id   text        not null,
    value       json        not null,
    created_at  timestamptz not null default now(),
    constraint agent_values_pkey primary key (key)
);
create index agent_values_by_thread on agent_values (thread_id);

-- --------------------------------------------------------------- what waits for a person

-- Calls that a person approves: what was requested, and the one decision about it.
create table agent_approvals (
    -- The action key of the call. Its row in agent_actions is written when it is carried out.
    key               text        not null,
    -- Counts the approvals of the call: where the tool has changed since one was given, so that
    -- what was approved cannot be carried out to the letter, the next one is requested.
    generation        integer     not null default 1,
    run_key           text        not null,
    position          text        not null,
    thread_id         text        not null,
    tool              text        not null,
    -- What the person reads and decides about: validated, defaults fixed. Never changed.
    args              json        not null,
    -- Of the arguments as the plan had them: another one at this position is a divergence.
    requested_digest  text        not null,
    requested_at      timestamptz not null default now(),
    expires_at        timestamptz,

    -- null -> approved | rejected | expired, once.
    decision          text,
    decided_by        text,
    decided_at        timestamptz,
    reason            text,
    -- The arguments as the person changed them, validated as they were.
    edited_args       json,
    -- When its run was forked to before the call, which it does not make any more.
    withdrawn_at      timestamptz,
    -- The workflow that waits, which is told of the decision. The calls of a child workflow belong
    -- to its parent's run, and it may outlive its parent, or be begun anew under another id.
    waiting_workflow  text,

    -- Bug prevented: a decision that counts for arguments which the person has not read.
    constraint agent_approvals_pkey primary key (key, generation),
    constraint agent_approvals_generation_counts_from_one check (generation >= 1),
    -- Bug prevented: a decision that goes to no workflow.
    constraint agent_approvals_run_exists
        foreign key (run_key) references agent_runs (run_key),
    constraint agent_approvals_decision_is_known
        check (decision in ('approved', 'rejected', 'expired')),
    -- Bug prevented: a decision without a person who made it.
    constraint agent_approvals_decision_is_signed
        check ((decision is null) = (decided_by is null)
               and (decision is null) = (decided_at is null)),
    -- Bug prevented: arguments that were edited by a person who rejected the call.
    constraint agent_approvals_edits_are_approved
        check (edited_args is null or decision = 'approved')
);
-- Those that wait, and all, the longest waiting first (list_approvals); those of a run.
create index agent_approvals_waiting on agent_approvals (requested_at, key) where decision is null;
create index agent_approvals_by_time on agent_approvals (requested_at, key);
create index agent_approvals_by_run on agent_approvals (run_key);

-- Questions that calls raise midway, and the one answer to each.
create table agent_questions (
    -- The action key of the call. A call that only reads has no row in agent_actions, and may
    -- raise questions all the same.
    key            text        not null,
    -- Counts the questions of the call, also those that it replaced by others.
    number         integer     not null,
    run_key        text        not null,
    position       text        not null,
    thread_id      text        not null,
    tool           text        not null,
    -- What the person reads and answers. Never changed: with other words it is another question.
    message        text        not null,
    payload        json        not null,
    raised_at      timestamptz not null default now(),
    expires_at     timestamptz,
    -- When the call, carried out again, raised another question in its place.
    replaced_at    timestamptz,
    -- When its run was forked to before the call, which it does not make any more.
    withdrawn_at   timestamptz,

    -- null -> answered, once. No answer is JSON's null: that would answer nothing.
    answer         json,
    answered_by    text,
    answered_at    timestamptz,

    constraint agent_questions_pkey primary key (key, number),
    -- Bug prevented: an answer that goes to no workflow.
    constraint agent_questions_run_exists
        foreign key (run_key) references agent_runs (run_key),
    constraint agent_questions_number_counts_from_one check (number >= 1),
    -- Bug prevented: an answer without a person who gave it.
    constraint agent_questions_answer_is_signed
        check ((answer is null) = (answered_by is null)
               and (answer is null) = (answered_at is null)),
    -- Bug prevented: a tool that reads "nothing" where it needs a decision.
    constraint agent_questions_answer_has_a_value check (answer::text <> 'null')
);
-- Those that wait, and all, the longest waiting first (list_questions); those of a run.
create index agent_questions_waiting on agent_questions (raised_at, key, number)
 where answered_at is null and replaced_at is null;
create index agent_questions_by_time on agent_questions (raised_at, key, number);
create index agent_questions_by_run on agent_questions (run_key);

-- --------------------------------------------------------------------------------- relay

-- The relay's queue: the actions that no run carries out or looks up any more. The row is deleted
-- when its action has an end.
create table agent_relay (
    key         text        not null,
    -- The order of the commits of those that share an order_key.
    seq         bigint      generated always as identity,
    -- send: only the relay sends it; lookup: its run is over, and its outcome unknown; undo: it
    -- happened after its run had been undone.
    why         text        not null,
    -- A worker that serves this tool can take it.
    tool        text        not null,
    -- Of its run's workflow: only there a relay can find out whether that is alive. '' is any.
    namespace   text        not null,
    order_key   text,
    -- An entry before it in its order, as a relay that looked found it: no relay looks at this one
    -- until that one is gone, so it holds up nobody. Null also where no relay has looked yet.
    waits_for   text,
    -- Not started before; null where it waits for a person.
    due_at      timestamptz default clock_timestamp(),
    -- How often a relay has begun with it.
    starts      integer     not null default 0,
    -- A workflow may be open that shows that the action waits for a person. So the entry stays when
    -- the action has an end, and is due: then that workflow looks again, and ends.
    shown       boolean     not null default false,
    created_at  timestamptz not null default clock_timestamp(),
    constraint agent_relay_pkey primary key (key),
    -- Bug prevented: an entry that no relay can ever finish.
    constraint agent_relay_action_exists
        foreign key (key) references agent_actions (key) on delete cascade,
    -- Bug prevented: an entry that waits for ever, because the one before it was gone when it began
    -- to wait, or goes without waking it. Whoever writes waits_for locks that entry in share.
    constraint agent_relay_waits_for_an_entry
        foreign key (waits_for) references agent_relay (key) on delete set null,
    constraint agent_relay_why_is_known check (why in ('send', 'lookup', 'undo'))
);
-- What is due, by who may take it: what nobody takes holds up nobody else (take_due).
create index agent_relay_due on agent_relay (tool, namespace, due_at, seq) where waits_for is null;
-- The whole queue, the next one first (list_relay).
create index agent_relay_by_time on agent_relay (due_at, seq);
-- What comes before an entry in its order (take_due, get_relay_entry, list_relay).
create index agent_relay_in_order on agent_relay (order_key, seq) where order_key is not null;
-- What waits for an entry that goes.
create index agent_relay_waiting on agent_relay (waits_for) where waits_for is not null;
-- How many workflows show what waits for a person (queue_parked).
create index agent_relay_shown on agent_relay (key) where shown;

-- When the workers of a task queue looked last for runs that are lost: one of them at a time does.
create table agent_sweeps (
    namespace   text        not null,
    task_queue  text        not null,
    began_at    timestamptz not null,
    -- No other worker begins before. Whoever is at it puts it off until it is done, so that a worker
    -- that dies in a sweep holds up the next one for seconds.
    busy_until  timestamptz not null,
    constraint agent_sweeps_pkey primary key (namespace, task_queue)
);

-- Bug prevented: an entry that a relay of another namespace takes, because one of the statements that
-- queue an action does not name its own.
create function commitline_name_namespace()
returns trigger
language plpgsql as $function$
begin
    new.namespace := coalesce((select r.namespace from agent_actions a join agent_runs r using (run_key)
                                where a.key = new.key), '');
    return new;
end
$function$;
create trigger agent_relay_has_its_namespace before insert on agent_relay
    for each row execute function commitline_name_namespace();

-- -------------------------------------------------------------------------------- outbox

-- Which roles intended an action themselves: those may read how it ended.
-- key is no foreign key: it would lock the action until the application commits.
create table agent_intents (
    key         text        not null,
    role        text        not null,
    created_at  timestamptz not null default now(),
    -- The action is of a run that carries it out, and had no end then. If the run gives it up before
    -- anything was sent, the relay adopts it.
    relies      boolean     not null default false,
    constraint agent_intents_pkey primary key (key, role)
);
-- The relay's sweep looks after these, until their actions have an end.
create index agent_intents_relying on agent_intents (key) where relies;

-- Whether the relay is still to undo an action that took effect: it is not undone, and no undo of it
-- has ended, or is left to a person. Of a refund that the model called only the second counts.
create function commitline_undo_is_open(a agent_actions)
returns boolean
language sql stable as $function$
    select a.status = 'done' and a.effect_possible and a.undone_by is null
       and not exists (select from agent_actions u
                        where u.undoes = a.key
                          and (u.parked_at is not null
                               or (u.status = 'done' and starts_with(u.position, 'undo-'))))
$function$;

-- Whether that is the relay's by the rows alone, whatever its queue has: the action took effect after
-- the undo of its run had ended. Not if the queue keeps it for a person.
create function commitline_owes_undo(a agent_actions)
returns boolean
language sql stable as $function$
    select a.status = 'done' and a.compensator is not null and a.undone_by is null
       and a.undoes is null and a.duplicate_of is null
       and a.adopted_at is null  -- it was sent for somebody else
       and exists (select from agent_runs r
                    where r.run_key = a.run_key and r.state = 'ended'
                      and r.undo_ended_at < a.done_at)
       and not exists (select from agent_relay q where q.key = a.key and q.due_at is null)
       and commitline_undo_is_open(a)
$function$;

-- Who brings an action to its end:
--          done    -- it has ended
--          person  -- it is unknown, and a person may settle it
--          first   -- it repeats an unknown action, and is settled with that one
--          relay   -- it is in the relay's queue, or what it undoes is; also one that is done, and that
--                     the relay is to undo
--          run     -- its run is open: that carries it out, or parks it when it ends
--          attempt -- its run has ended, and an attempt may be at work on it until its lease is over
--          nobody  -- nothing was sent, nobody relies on it, and its run has ended: a reset may go on
--                     with it, and whoever asks for its business fact gets that
-- Null: nobody does. No such row may stay: docs/relay.md has the whole table. Reads only, and locks
-- nothing.
create function commitline_exit(a agent_actions)
returns text
language sql stable as $function$
    select case
        when a.status = 'done' and not commitline_owes_undo(a) then 'done'
        when a.parked_at is not null and a.duplicate_of is not null then (
            select 'first' from agent_actions f where f.key = a.duplicate_of and f.status = 'pending')
        when a.parked_at is not null then 'person'
        when exists (select from agent_relay q where q.key = a.key and q.due_at is not null)
            then 'relay'
        when starts_with(a.position, 'undo-')
             and exists (select from agent_relay q
                          where q.key = a.undoes and q.why = 'undo' and q.due_at is not null)
            then 'relay'
        when a.relayed or a.status = 'done' then null
        when exists (select from agent_runs r where r.run_key = a.run_key and r.state <> 'ended')
            then 'run'
        when a.lease_until > clock_timestamp() then 'attempt'
        when a.dispatched_at is not null then null
        when exists (select from agent_intents i where i.key = a.key and i.relies) then null
        else 'nobody'
    end
$function$;

-- The role that called, also inside of a function that runs with its owner's rights.
create function commitline_caller()
returns text
language sql stable as $function$
    select case when current_setting('role') = 'none' then session_user::text
                else current_setting('role') end
$function$;

-- What is sent for an action without a key from the domain; default_idempotency_key in Python.
create function commitline_default_key(action_key text)
returns text
language sql immutable as $function$
    select 'cl_' || string_agg(
               substr('abcdefghijklmnopqrstuvwxyz234567',
                      1 + cast(substring(h.bits from 5 * n + 1 for 5) as integer), 1), '' order by n)
      from (select cast('x' || left(encode(sha256(convert_to(action_key, 'UTF8')), 'hex'), 50)
                        as bit(200)) as bits) h, generate_series(0, 39) n
$function$;

-- What may be said of an action that holds a business fact:
--          stands         -- as far as is known; or it is unknown whether it happened at all
--          undoing        -- its run is being undone, or stopped for that; the relay has it to
--                            undo; an undo of it is at work: wait
--          perhaps undone -- an undo of it was sent and is unknown, or lost: a person settles that
-- What no worker has taken up for two minutes is not waited for. Reads only, and locks nothing.
create function commitline_standing(held agent_actions)
returns text
language sql as $function$
    with recursive up as (
        select r.* from agent_runs r where r.run_key = held.run_key
        union all
        select r.* from agent_runs r join up on r.run_key = up.parent_key
    ), undo as (
        select u.parked_at is null
               and u.lease_until > clock_timestamp() - interval '2 minutes' as at_work
          from agent_actions u
         where u.undoes = held.key and u.status = 'pending'
           and (u.dispatched_at is not null or u.duplicate_of is not null)
    )
    select case
        when held.status is distinct from 'done' or held.effect_possible is not true
             or held.undone_by is not null then 'stands'
        when held.compensator is not null and (
                exists (select from up
                         where state = 'undoing' or state = 'stopping' and compensate)
                or exists (select from agent_relay q
                            where q.key = held.key and q.why = 'undo'
                              and q.due_at > clock_timestamp() - interval '2 minutes'))
            then 'undoing'
        when exists (select from undo where at_work) then 'undoing'
        when exists (select from undo) then 'perhaps undone'
        else 'stands'
    end
$function$;

-- Raises a serialization failure if anything has changed, since the transaction's snapshot was taken,
-- by which commitline_standing judges this action. Under `read committed` each statement has a new
-- snapshot. Under the other levels the transaction still sees an action as it stood before its undo
-- began. An undo or a queue entry that is new since then has changed the row of the domain key.
--
-- Waits for nobody: a change that is not committed does not count yet. The locks only find out what
-- has changed, and are gone with the subtransaction: an undo does not wait for the caller's commit.
create function commitline_refuse_old_snapshot(held text)
returns void
language plpgsql as $function$
begin
    if current_setting('transaction_isolation') in ('read committed', 'read uncommitted') then
        return;
    end if;
    perform from agent_actions where key = held or undoes = held for share skip locked;
    perform from agent_relay where key = held for share skip locked;
    perform from agent_runs
      where run_key in (
            with recursive up as (
                select r.run_key, r.parent_key
                  from agent_runs r join agent_actions a using (run_key) where a.key = held
                union
                select r.run_key, r.parent_key
                  from agent_runs r join up on r.run_key = up.parent_key
            )
            select run_key from up)
        for share skip locked;
    raise sqlstate 'CL000';
exception when sqlstate 'CL000' then
    null;
end
$function$;

-- The calls that were answered with an action which was unknown until now end as it did. What was
-- undone while it was unknown is undone for them, too. Returns their keys.
create function commitline_settle_repeats(first text)
returns setof text
language sql as $function$
    update agent_actions r
       set status = 'done', outcome = f.outcome, effect_possible = f.effect_possible,
           undone_by = case when f.effect_possible then f.undone_by end,
           result = f.result, done_at = clock_timestamp(),
           parked_at = null, parked_reason = null,
           settled_at = clock_timestamp(), notified_version = null
      from agent_actions f
     where f.key = first and f.status = 'done'
       and r.duplicate_of = first and r.parked_at is not null
    returning r.key
$function$;

-- Ends an intent of which nothing was sent, and nothing will be; returns whether it was one. All that
-- follows is written with it: its domain key is free, its repeats are settled, and the relay has
-- nothing to do about it. Every intent ends here. The domain key is locked before.
create function commitline_end_intent(intent text, error json)
returns boolean
language plpgsql as $function$
declare
    fact text;
begin
    update agent_actions
       set status = 'done', outcome = 'error', effect_possible = false, result = error,
           done_at = clock_timestamp(),
           -- Its model read that it is accepted, or unknown.
           settled_at = case when relayed or reopened_at is not null
                             then clock_timestamp() end
     where key = intent and status = 'pending' and dispatched_at is null and parked_at is null
    returning domain_key into fact;
    if not found then
        return false;
    end if;
    update agent_domain_keys set held_by = null where domain_key = fact and held_by = intent;
    delete from agent_relay where key = intent;
    perform commitline_settle_repeats(intent);
    return true;
end
$function$;

-- Has the relay send an intent that its run gives up, if somebody else relies on it; returns whether it
-- does.
create function commitline_adopt(intent text)
returns boolean
language plpgsql as $function$
declare
    named text;
begin
    update agent_actions a
       set relayed = true, adopted_at = coalesce(a.adopted_at, clock_timestamp())
     where a.key = intent and a.status = 'pending' and a.dispatched_at is null
       and a.parked_at is null
       and exists (select from agent_intents i where i.key = intent and i.relies)
    returning a.tool into named;
    if not found then
        return false;
    end if;
    insert into agent_relay (key, why, tool) values (intent, 'send', named)
    on conflict (key) do update set why = 'send', due_at = clock_timestamp(), starts = 0;
    perform pg_notify('commitline_relay', intent);
    return true;
end
$function$;

-- Gives up an intent that its run does not send any more: the relay adopts it, or it ends. Returns
-- whether it has ended. The domain key is locked before.
create function commitline_give_up(intent text, error json)
returns boolean
language sql as $function$
    select not commitline_adopt(intent) and commitline_end_intent(intent, error)
$function$;

-- The outbox's statement, in the caller's transaction: it writes the intent, and notifies the relay
-- at the commit. One statement, so that it is the same for every driver. The request is JSON, so
-- that a later release can add to it while this one is still deployed.
--
-- Applications have the right to execute it, and none on the tables. So nothing is taken from the
-- request that the tool's definition decides: the effect, the key's life, the compensator are the
-- relay's to write (RelayLedger.define), once it has checked the arguments and what is undone. Until
-- then the row says what promises least.
--
-- verdict: created        -- action_key is new, and will be sent
--          existing       -- action_key has the business fact already: nothing is written
--          conflict       -- action_key has it, for another tool or other arguments: nothing is
--                            written
--          missing        -- action_key has it, and has no row any more: nothing is written
--          undoing        -- action_key has it, and is being undone: nothing is written
--          perhaps undone -- action_key has it, and an undo of it is unknown: nothing is written
--          undone         -- action_key has undone before what this one undoes: nothing is written
-- A refusal is an answer and no error: an error would abort the caller's transaction.
--
-- Under any isolation level it answers from what is committed now, or raises a serialization failure.
--
-- Lock order: the order key, the domain key of what is undone, its own domain key. All three until
-- the caller commits. Safe to repeat where the request names a domain key.
create function commitline_intend(request json)
returns table (action_key text, verdict text)
language plpgsql security definer as $function$
declare
    fact      text := request->>'domain_key';
    nth       integer := 1;
    holder    text;
    undone    text;
    undone_nth integer;
    undone_before text;
    held      agent_actions;
    sent      text;
    run       text;
    standing  text;
    stands    boolean;
begin
    if fact !~ '^[ -}]{1,247}$' collate "C" or fact !~ '[^ ]' then
        raise exception 'no domain key: %', fact using errcode = 'invalid_parameter_value';
    end if;
    if request->>'order_key' is not null then
        -- The next of its order waits here for this commit, so the queue is in commit order.
        perform pg_advisory_xact_lock(
            hashtextextended('commitline order ' || (request->>'order_key'), 0));
    end if;
    if request->>'undoes_domain_key' is not null then
        insert into agent_domain_keys as d (domain_key, generation, held_by)
        values (request->>'undoes_domain_key', 0, null)
        on conflict (domain_key) do update set generation = d.generation
        returning d.generation, d.held_by, d.undone_by into undone_nth, undone, undone_before;
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
        perform commitline_refuse_old_snapshot(holder);
        select * into held from agent_actions where key = holder;
        standing := commitline_standing(held);
        if standing <> 'stands' then
            return query select holder, standing;
            return;
        end if;
        if held.key is null then
            return query select holder, 'missing';
            return;
        end if;
        -- An intent that no worker will send any more holds nothing, unless somebody relies on it.
        select exists (
                select from agent_actions a join agent_runs r using (run_key)
                 where a.key = holder
                   and (r.state = 'running'
                        or (a.relayed and r.state = 'ended' and r.stopped_at is null)
                        or a.adopted_at is not null
                        or (a.position like 'undo-%' and r.state = 'undoing')))
               or not commitline_give_up(holder, '{"type":"NeverSent","message":"its run ended before anything was sent, and the business fact was asked for again"}')
          into stands;
        if stands then
            if held.tool is distinct from request->>'tool'
               or held.effective_digest is distinct from request->>'effective_digest' then
                return query select holder, 'conflict';
                return;
            end if;
            insert into agent_intents as i (key, role, relies)
            values (holder, commitline_caller(),
                    held.status = 'pending' and not starts_with(held.run_key, 'outbox/'))
            on conflict (key, role) do update set relies = i.relies or excluded.relies;
            return query select holder, 'existing';
            return;
        end if;
    end if;
    if undone_before is not null then
        return query select undone_before, 'undone';
        return;
    end if;
    sent := case when nth = 1 then fact else fact || '~' || nth end;
    run := 'outbox/' || coalesce(sent, gen_random_uuid()::text);
    action_key := run || ':0';
    sent := coalesce(sent, commitline_default_key(action_key));
    insert into agent_runs (run_key, workflow_id, agent, input_digest, opened_attempt_at)
    values (run, 'outbox', 'outbox', '', clock_timestamp());
    insert into agent_actions (
        key, tool, args, run_key, position, idempotency_key, domain_key, generation, effect,
        requested_digest, effective_digest, undoes, undoes_domain_key, relayed)
    values (
        action_key, request->>'tool', (request->>'args')::json, run, '0', sent, fact, nth,
        'at_most_once', request->>'requested_digest', request->>'effective_digest', undone,
        request->>'undoes_domain_key', true);
    insert into agent_intents (key, role) values (action_key, commitline_caller())
    on conflict do nothing;
    update agent_domain_keys set held_by = action_key, generation = nth, undone_by = null
     where domain_key = fact;
    insert into agent_relay (key, why, tool, order_key)
    values (action_key, 'send', request->>'tool', request->>'order_key');
    perform pg_notify('commitline_relay', action_key);
    return query select action_key, 'created';
end
$function$;

-- How an action ended; no row where there is none, or where the caller may not know of it. A role
-- may that intended it itself, or that may read the table.
create function commitline_outcome(asked text)
returns table (outcome text, result text, effect_possible boolean, state_changes text)
language sql stable security definer as $function$
    select a.outcome, a.result::text, a.effect_possible, a.state_changes::text
      from agent_actions a
     where a.key = asked
       and (exists (select from agent_intents i where i.key = a.key and i.role = commitline_caller())
            or has_table_privilege(commitline_caller(), 'agent_actions'::regclass, 'select'))
$function$;

-- Bug prevented: a caller's own table or function that is taken for ours, with our rights. Its
-- temporary schema would otherwise be searched first.
do $block$
begin
    execute format('alter function commitline_intend(json) set search_path = %I, pg_temp',
                   current_schema());
    execute format('alter function commitline_outcome(text) set search_path = %I, pg_temp',
                   current_schema());
end
$block$;
-- Bug prevented: a role that may connect, and so may intend.
revoke all on function commitline_intend(json) from public;
revoke all on function commitline_outcome(text) from public;

-- ----------------------------------------------------------------------- kept commits

-- Bug prevented: a claim that is lost with a crash after its call, because a role, a database or a
-- session does not wait for its commits. Whoever writes here waits until the commit is on disk, and
-- on the synchronous standbys if there are any. Set for the transaction, so nothing of it stays with
-- the session, behind a pooler neither. An application's transaction that intends waits too.
create function commitline_keep_commit()
returns trigger
language plpgsql as $function$
begin
    perform set_config('synchronous_commit', 'on', true);
    return null;
end
$function$;

do $block$
declare
    one text;
begin
    foreach one in array array[
        'agent_runs', 'agent_actions', 'agent_domain_keys', 'agent_threads', 'agent_messages',
        'agent_requests', 'agent_states', 'agent_values', 'agent_approvals', 'agent_questions',
        'agent_relay', 'agent_intents', 'agent_sweeps'
    ] loop
        execute format(
            'create trigger %I before insert or update or delete on %I for each statement '
            'when (current_setting(''synchronous_commit'') in (''off'', ''local'', ''remote_write'')) '
            'execute function commitline_keep_commit()', one || '_keeps_its_commit', one);
    end loop;
end
$block$;
