-- A person's word about an action that is unknown.

alter table agent_actions
    add column decided_by  text,
    add column decided_at  timestamptz,
    -- Bug prevented: a decision that nobody answers for.
    add constraint agent_actions_decision_is_signed
        check ((decided_by is null) = (decided_at is null));
