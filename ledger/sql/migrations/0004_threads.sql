-- Conversations: their messages by version, what callers asked for, large results of reads,
-- and forks.
--
-- Lock order, everywhere: thread, run, domain key, action.

create table agent_threads (
    thread_id   text        not null,
    -- The agent that began it: who goes on with it names another one, or means this.
    agent       text        not null,
    -- Counts commits. A write names the version that it started from.
    version     integer     not null default 0,
    -- The run of the last commit: a fork may only take back what nobody has built on.
    written_by  text,
    -- A fork that nobody has gone on from yet: whoever does is told what it took back.
    forked_run  text,
    forked_step integer,
    created_at  timestamptz not null default now(),
    -- A tombstone: a late write does not bring a deleted conversation back.
    deleted_at  timestamptz,
    constraint agent_threads_pkey primary key (thread_id),
    constraint agent_threads_version_counts_from_zero check (version >= 0)
);

create table agent_messages (
    thread_id      text        not null,
    -- Of the commit that it came with, and its place in there.
    version        integer     not null,
    ordinal        integer     not null,
    role           text        not null,
    message        json        not null,
    -- Who wrote it, and at which model turn.
    run_key        text        not null,
    step           integer     not null,
    epoch          integer     not null,
    -- Of a person's message: the request that it is.
    request_id     text,
    created_at     timestamptz not null default now(),
    -- By a fork, which went another way from here. Kept, and no part of the conversation.
    superseded_at  timestamptz,
    constraint agent_messages_pkey primary key (thread_id, version, ordinal),
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

-- What callers asked of a thread. The caller's id makes it one request, however often it is
-- sent, to whichever run.
create table agent_requests (
    thread_id        text        not null,
    request_id       text        not null,
    message          json        not null,
    created_at       timestamptz not null default now(),
    reply            json,
    -- Of the commit that answered it: a fork that takes that back takes the reply back.
    replied_version  integer,
    constraint agent_requests_pkey primary key (thread_id, request_id),
    constraint agent_requests_thread_exists
        foreign key (thread_id) references agent_threads (thread_id),
    constraint agent_requests_reply_is_complete
        check ((reply is null) = (replied_version is null))
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

alter table agent_runs
    add column thread_id      text,
    -- What the run keeps of its agent; a deploy does not change it.
    add column spec           json,
    -- The model turn from which the newest epoch goes another way.
    add column fork_step      integer,
    add column input_tokens   bigint not null default 0,
    add column output_tokens  bigint not null default 0,
    -- Bug prevented: an epoch that nobody knows the beginning of.
    add constraint agent_runs_fork_says_where check ((epoch = 0) = (fork_step is null));

-- An unknown that is open holds back its repetition in the whole conversation, and is told
-- there when it is settled. Rows of earlier releases have no thread but their run.
drop index agent_actions_open_unknown;
create index agent_actions_open_unknown
    on agent_actions (coalesce(thread_id, run_key), tool, effective_digest)
    where parked_at is not null and domain_key is null;
drop index agent_actions_settled;
create index agent_actions_settled on agent_actions (coalesce(thread_id, run_key))
    where settled_at is not null;
-- What is carried out on the row of another action, for a call that has no row of its own yet.
create index agent_actions_claimed_for_another on agent_actions (claimed_by)
    where claimed_by <> key;
alter table agent_actions
    -- The version of the thread in which it was told, after it had been settled.
    add column notified_version  integer;
alter table agent_actions
    -- Bug prevented: something told as settled that still is not.
    add constraint agent_actions_told_in_a_version_what_was_settled
        check (notified_version is null or settled_at is not null);
