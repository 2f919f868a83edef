-- Sub-agents: runs that a call of another run carries out.

alter table agent_runs
    -- The workflow that may act for it, '' being none: a parent that is reset starts another
    -- one, while the one before may live on. workflow_id names the latest, even where it may not.
    add column owner       text,
    -- Bug prevented: a sub-agent's run in which any workflow may act, as in one that is started.
    add constraint agent_runs_sub_agent_has_an_owner
        check ((parent_key is null) = (owner is null));
