-- What a next release may do: it only adds. Nullable columns, columns with defaults, a table, an
-- index.

alter table agent_actions
    add column note      text,
    add column priority  integer not null default 0;
alter table agent_runs add column note text;
alter table agent_threads add column note text;
alter table agent_approvals add column note text;
alter table agent_questions add column note text;
alter table agent_relay add column note text;
create index agent_actions_by_priority on agent_actions (priority) where priority > 0;

create table agent_notes (
    run_key  text not null,
    note     text not null,
    constraint agent_notes_run_exists foreign key (run_key) references agent_runs (run_key)
);
