-- What the tools of a conversation share: its state by version, and what each call changed in it.

create table agent_states (
    thread_id      text        not null,
    -- Of the commit that it came with. A commit that changes nothing writes none.
    version        integer     not null,
    state          json        not null,
    created_at     timestamptz not null default now(),
    -- By a fork, together with the messages of that commit.
    superseded_at  timestamptz,
    constraint agent_states_pkey primary key (thread_id, version),
    constraint agent_states_thread_exists
        foreign key (thread_id) references agent_threads (thread_id)
);

alter table agent_actions
    -- What the call changed in the state, recorded with its outcome.
    add column state_changes  json;
alter table agent_actions
    -- Bug prevented: changes that count although nobody knows whether the call happened.
    add constraint agent_actions_changes_come_with_an_outcome
        check (state_changes is null or status = 'done'),
    -- Bug prevented: one call's changes that are merged for two.
    add constraint agent_actions_a_receipt_changes_nothing
        check (state_changes is null or duplicate_of is null);
