"""What can be known of the manifests without a cluster to apply them to."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from commitline.config import PREFIX, Settings

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
MANIFESTS: dict[str, dict[str, Any]] = {
    path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in FOLDER.glob("*.yaml")
}
SETTINGS: dict[str, str] = MANIFESTS["settings"]["data"]
WORKER: dict[str, Any] = MANIFESTS["worker"]["spec"]["template"]["spec"]


def container(name: str) -> dict[str, Any]:
    (found,) = MANIFESTS[name]["spec"]["template"]["spec"]["containers"]
    return dict(found)


def test_the_settings_are_settings_and_no_secrets() -> None:
    ours = {name: value for name, value in SETTINGS.items() if name.startswith(PREFIX)}

    assert Settings.load({**ours, "COMMITLINE_DATABASE_URL": "postgresql://db/x"})
    assert not [name for name in SETTINGS if "KEY" in name or "URL" in name or "PASSWORD" in name]


@pytest.mark.parametrize(
    ("probe", "path"),
    [("startupProbe", "/live"), ("livenessProbe", "/live"), ("readinessProbe", "/ready")],
)
def test_a_probe_asks_where_the_worker_answers(probe: str, path: str) -> None:
    worker = container("worker")
    (port,) = [one["containerPort"] for one in worker["ports"] if one["name"] == "health"]

    assert worker[probe]["httpGet"] == {"path": path, "port": "health"}
    assert SETTINGS["COMMITLINE_HEALTH_ADDRESS"].endswith(f":{port}")


def test_a_worker_may_use_its_whole_grace_period() -> None:
    grace = Settings.model_fields["grace_seconds"].default

    assert WORKER["terminationGracePeriodSeconds"] >= grace + 10


@pytest.mark.parametrize("name", ["worker", "migrate"])
def test_a_container_has_no_more_rights_than_it_needs(name: str) -> None:
    assert container(name)["securityContext"]["allowPrivilegeEscalation"] is False
    assert MANIFESTS[name]["spec"]["template"]["spec"]["securityContext"]["runAsNonRoot"] is True
