-- What is unknown: a person's word about it, and its repetition by a later turn.

alter table agent_actions
    add column decided_by  text,
    add column decided_at  timestamptz,
    -- Bug prevented: a decision that nobody answers for.
    add constraint agent_actions_decision_is_signed
        check ((decided_by is null) = (decided_at is null));

-- An unknown of a keyless tool that is open holds back its own repetition (open_unknown).
create index agent_actions_open_unknown on agent_actions (run_key, tool, effective_digest)
    where parked_at is not null and domain_key is null;
