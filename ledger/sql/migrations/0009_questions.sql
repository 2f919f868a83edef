-- What calls ask a person midway, and the one answer to each question.

create table agent_questions (
    -- The action key of the call. A call that only reads has no row in agent_actions, and may
    -- ask all the same.
    key            text        not null,
    -- All that the call has asked, in order, also what it asked differently later.
    number         integer     not null,
    run_key        text        not null,
    position       text        not null,
    thread_id      text        not null,
    tool           text        not null,
    -- What the person sees and answers. Never changed: asked differently, it is another question.
    message        text        not null,
    payload        json        not null,
    asked_at       timestamptz not null default now(),
    expires_at     timestamptz,
    -- When the call, carried out again, asked something else in its place.
    replaced_at    timestamptz,

    -- null -> answered, once. No answer is null: that says nothing.
    answer         json,
    answered_by    text,
    answered_at    timestamptz,

    constraint agent_questions_pkey primary key (key, number),
    constraint agent_questions_run_exists
        foreign key (run_key) references agent_runs (run_key),
    constraint agent_questions_number_counts_from_one check (number >= 1),
    -- Bug prevented: an answer that nobody answers for.
    constraint agent_questions_answer_is_signed
        check ((answer is null) = (answered_by is null)
               and (answer is null) = (answered_at is null)),
    -- Bug prevented: a tool that is told "nothing" where it asked for a decision.
    constraint agent_questions_answer_has_a_value check (answer::text <> 'null')
);
create index agent_questions_waiting on agent_questions (asked_at)
 where answered_at is null and replaced_at is null;
create index agent_questions_by_run on agent_questions (run_key);
