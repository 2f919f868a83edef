-- Calls that a person has to approve: what was asked, and the one decision about it.

create table agent_approvals (
    -- The action key of the call. Its row in agent_actions is written when it is carried out.
    key               text        not null,
    run_key           text        not null,
    position          text        not null,
    thread_id         text        not null,
    tool              text        not null,
    -- What the person sees and decides about: validated, defaults fixed. Never changed.
    args              json        not null,
    -- Of the arguments as the plan had them; another one at this position is a divergence.
    requested_digest  text        not null,
    asked_at          timestamptz not null default now(),
    expires_at        timestamptz,

    -- null -> approved | rejected | expired, once.
    decision          text,
    decided_by        text,
    decided_at        timestamptz,
    reason            text,
    -- What the person made of the arguments, validated as they were.
    edited_args       json,

    constraint agent_approvals_pkey primary key (key),
    constraint agent_approvals_run_exists
        foreign key (run_key) references agent_runs (run_key),
    constraint agent_approvals_decision_is_known
        check (decision in ('approved', 'rejected', 'expired')),
    -- Bug prevented: a decision that nobody answers for.
    constraint agent_approvals_decision_is_signed
        check ((decision is null) = (decided_by is null)
               and (decision is null) = (decided_at is null)),
    -- Bug prevented: arguments that were edited by whoever said no.
    constraint agent_approvals_edits_are_approved
        check (edited_args is null or decision = 'approved')
);
create index agent_approvals_waiting on agent_approvals (asked_at) where decision is null;
create index agent_approvals_by_run on agent_approvals (run_key);
