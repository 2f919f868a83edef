"""Which version of a deployment a worker is."""

import pytest
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.workflow import _Definition

from commitline.config import Settings
from commitline.deployment import served_workflows, version_options
from commitline.errors import ConfigurationError


def behaviors(settings: Settings) -> dict[str | None, VersioningBehavior | None]:
    """Return what each workflow says of itself, by its name."""
    found = [_Definition.must_from_class(one) for one in served_workflows(settings)]
    return {one.name: one.versioning_behavior for one in found}


def test_a_worker_without_a_deployment_names_a_build_and_no_behavior() -> None:
    settings = Settings(build_id="4c1e9a2", versioning="pinned")

    assert version_options(settings) == {"build_id": "4c1e9a2"}
    # The server refuses one from a worker without a version.
    assert set(behaviors(settings).values()) == {VersioningBehavior.UNSPECIFIED}


def test_a_worker_of_a_deployment_moves_runs_unless_they_are_pinned() -> None:
    moves = Settings(deployment="shop", build_id="4c1e9a2")
    stays = moves.model_copy(update={"versioning": "pinned"})

    config = version_options(moves).get("deployment_config")

    assert config is not None
    assert config.version == WorkerDeploymentVersion("shop", "4c1e9a2")
    assert config.default_versioning_behavior == VersioningBehavior.AUTO_UPGRADE
    assert set(behaviors(moves).values()) == {VersioningBehavior.UNSPECIFIED}
    pinned = [name for name, how in behaviors(stays).items() if how == VersioningBehavior.PINNED]
    assert pinned == ["AgentRun", "PlanRun"]
    assert behaviors(stays).keys() == behaviors(moves).keys()


def test_a_deployment_needs_a_build_and_has_no_dot() -> None:
    with pytest.raises(ConfigurationError, match="needs COMMITLINE_BUILD_ID"):
        version_options(Settings(deployment="shop"))
    with pytest.raises(ConfigurationError, match="COMMITLINE_DEPLOYMENT"):
        Settings.load({"COMMITLINE_DEPLOYMENT": "shop.eu"})
