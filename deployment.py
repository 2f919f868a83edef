"""Which version of a Worker Deployment a worker is, for Temporal's Worker Versioning.

Runs move to the current version by default (*auto-upgrade*). A run may wait for a person for days,
and pinned to the version that it began on it would keep that version's workers alive for as long.
It loses nothing by moving: workflow code replays the histories of earlier releases, a run keeps
what it was given at its start, and the ledger what each call was claimed with.

An application whose tools change in ways that runs under way cannot meet may pin its runs
(`COMMITLINE_VERSIONING=pinned`). Undos, settlements and the relay's sweep always move: they have
to work when the version that a run began on is gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import TypedDict

from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.worker import WorkerDeploymentConfig

from .config import Settings
from .errors import ConfigurationError
from .workflows import AgentRun, PlanRun, Relay, SettleAction, UndoRun
from .workflows.pinned_runs import PinnedAgentRun, PinnedPlanRun


class VersionOptions(TypedDict, total=False):
    """Arguments of the SDK's `Worker` that say which version it is."""

    build_id: str
    deployment_config: WorkerDeploymentConfig


def version_options(settings: Settings) -> VersionOptions:
    """Return which version a worker is; without a deployment it only names its build.

    Raises:
        ConfigurationError: A deployment is named, and no build.
    """
    if not settings.deployment:
        # The SDK would hash all code that is loaded, and write 32 characters six times a turn.
        return {"build_id": settings.build_id or f"commitline-{version('commitline')}"}
    if not settings.build_id:
        raise ConfigurationError(
            "COMMITLINE_DEPLOYMENT needs COMMITLINE_BUILD_ID: a version is a name and a build"
        )
    return {
        "deployment_config": WorkerDeploymentConfig(
            version=WorkerDeploymentVersion(settings.deployment, settings.build_id),
            use_worker_versioning=True,
            default_versioning_behavior=VersioningBehavior.AUTO_UPGRADE,
        )
    }


def served_workflows(settings: Settings) -> Sequence[type]:
    """Return the workflows that a worker carries out: pinned, those that say so themselves."""
    pinned = settings.deployment and settings.versioning == "pinned"
    runs = (PinnedAgentRun, PinnedPlanRun) if pinned else (AgentRun, PlanRun)
    return [*runs, UndoRun, SettleAction, Relay]
