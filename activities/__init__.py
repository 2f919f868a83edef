"""What acts: tools and models, one activity each, behind one guard.

    app/        what an application declares: tools, agents, state, plans
    model/      a language model, and the adapters to providers
    contract/   all that passes between workflows and activities
    replies/    what the model reads of its calls
    runner/     where tools run: an event loop, a thread, a process
    guard/      one attempt at one call: claim, call, outcome
    runs/       the activities that a worker registers, by subject

Nothing is imported here, so that workflow code, which needs ``contract`` and ``replies``, loads
neither an application nor a database driver. An application imports from `commitline`.
"""
