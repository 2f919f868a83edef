"""Replays the histories of finished runs on the code as it is now.

    python tests/replay/replaying.py        replays them all; exit status 1 if one fails

A history that no longer replays is a run that no longer goes on after a deploy.
"""

from __future__ import annotations

import asyncio
import pkgutil
import sys
from collections.abc import Sequence
from pathlib import Path

from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer, WorkflowReplayResult
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

import commitline
from commitline.process import leave
from commitline.workflows import ActionHeaders, AgentRun, PlanRun

HISTORIES = Path(__file__).parent / "histories"
TOOLS = frozenset({"lookup_order", "charge_card", "send_receipt", "fails", "refuses", "waits"})
"""Of the recorded runs: the guard's half in the workflow is told of them, as a worker's is."""

SANDBOX = SandboxedWorkflowRunner(
    restrictions=SandboxRestrictions.default.with_passthrough_modules(
        "pydantic",
        "pydantic_core",
        *(
            f"commitline.{module.name}"
            for module in pkgutil.iter_modules(commitline.__path__)
            if module.name != "workflows"
        ),
    )
)
"""Loads the code of our workflows for each run, and refuses a call that would not replay. A worker
runs them outside of any sandbox."""


def recorded() -> Sequence[Path]:
    """Return the files of the histories, by name."""
    return sorted(HISTORIES.glob("*.json"))


async def replay(path: Path) -> WorkflowReplayResult:
    """Replay one history as a worker would; the result says whether it diverged."""
    replayer = Replayer(
        workflows=[AgentRun, PlanRun],
        interceptors=[ActionHeaders(TOOLS)],
        unsandboxed_workflow_runner=SANDBOX,
    )
    return await replayer.replay_workflow(_read(path), raise_on_replay_failure=False)


def _read(path: Path) -> WorkflowHistory:
    return WorkflowHistory.from_json(path.stem, path.read_text(encoding="utf-8"))


def main() -> int:
    """Replay them all and say how each went."""
    failed = 0
    for path in recorded():
        result = asyncio.run(replay(path))
        failed += result.replay_failure is not None
        sys.stdout.write(f"{path.stem}: {result.replay_failure or 'ok'}\n")
    return 1 if failed or not recorded() else 0


if __name__ == "__main__":
    leave(main())
