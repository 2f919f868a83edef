"""What can be known of docker-compose.yml without an engine to run it."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from commitline import cli

ROOT = Path(__file__).parents[2]
COMPOSE_TEXT = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
COMPOSE = yaml.safe_load(COMPOSE_TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
JOBS = {"migrate", "temporal-namespace", "temporal-schema"}
LONG_RUNNING = sorted(SERVICES.keys() - JOBS)
VARIABLE = re.compile(r"\$\{(?P<name>\w+)(?P<rest>[^}]*)\}")
SECRET_NAME = re.compile(r"PASSWORD|PWD|SECRET|TOKEN|API_KEY")


def test_the_services_are_the_ones_that_the_docs_name() -> None:
    assert sorted(SERVICES) == [
        "migrate",
        "postgres",
        "provider",
        "temporal",
        "temporal-namespace",
        "temporal-schema",
        "temporal-ui",
        "worker",
    ]


@pytest.mark.parametrize("name", LONG_RUNNING)
def test_a_long_running_service_is_watched_and_restarted(name: str) -> None:
    service = SERVICES[name]

    assert service["healthcheck"]["test"][0] in {"CMD", "CMD-SHELL"}
    assert service["restart"] == "unless-stopped"


@pytest.mark.parametrize("name", sorted(JOBS))
def test_a_job_is_tried_again_a_bounded_number_of_times(name: str) -> None:
    service = SERVICES[name]

    assert "healthcheck" not in service
    assert service["restart"] == "on-failure:5"


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_a_service_waits_for_what_can_be_waited_for(name: str) -> None:
    for needed, how in SERVICES[name].get("depends_on", {}).items():
        assert needed in SERVICES
        wanted = "service_completed_successfully" if needed in JOBS else "service_healthy"
        assert how["condition"] == wanted


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_no_secret_stands_in_the_file(name: str) -> None:
    for variable, text in SERVICES[name].get("environment", {}).items():
        if SECRET_NAME.search(variable):
            assert text is None or re.fullmatch(r"\$\{\w+:\?[^}]+\}", text)
        else:
            assert not re.search(r"://[^/@]*:[^/@]*@", str(text))


def test_every_variable_is_explained_in_the_example() -> None:
    example = (ROOT / ".env.example").read_text(encoding="utf-8")
    explained = set(re.findall(r"^#?([A-Z_]+)=", example, flags=re.MULTILINE))
    used = {match["name"] for match in VARIABLE.finditer(COMPOSE_TEXT)}
    passed_through = {
        variable
        for service in SERVICES.values()
        for variable, text in service.get("environment", {}).items()
        if text is None
    }

    assert used | passed_through == explained


def test_every_variable_has_a_default_or_is_required_with_a_message() -> None:
    bare = [
        match[0]
        for match in VARIABLE.finditer(COMPOSE_TEXT)
        if not re.match(r":[-?].+", match["rest"])
    ]

    assert bare == []


def test_the_example_holds_no_usable_secret() -> None:
    example = (ROOT / ".env.example").read_text(encoding="utf-8")

    values = re.findall(r"^#?(\w*(?:PASSWORD|API_KEY))=(.*)$", example, flags=re.MULTILINE)

    assert [text for _, text in values] == [""] * 6


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_images_are_pinned_and_maintained(name: str) -> None:
    image = SERVICES[name]["image"]

    assert re.fullmatch(r"[\w/-]+:\$\{\w+_VERSION:-(\d+(\.\d+)+|local)\}", image)
    assert "auto-setup" not in image


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_mounted_files_and_named_volumes_exist(name: str) -> None:
    for mount in SERVICES[name].get("volumes", []):
        source = mount.split(":")[0]
        assert (ROOT / source).exists() if source.startswith(".") else source in COMPOSE["volumes"]


@pytest.mark.parametrize("name", ["temporal-schema", "temporal-namespace"])
def test_a_jobs_script_exists_where_it_is_mounted(name: str) -> None:
    script = SERVICES[name]["entrypoint"][1]

    assert (ROOT / script.replace("/deploy/", "deploy/temporal/")).is_file()


def test_scripts_are_executable() -> None:
    scripts = sorted((ROOT / "deploy").rglob("*.sh"))

    assert len(scripts) == 3
    assert all(os.access(script, os.X_OK) for script in scripts)


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_ports_are_published_to_this_machine_only(name: str) -> None:
    for port in SERVICES[name].get("ports", []):
        assert port.startswith("127.0.0.1:")


def test_the_worker_is_asked_where_it_answers() -> None:
    address = SERVICES["worker"]["environment"]["COMMITLINE_HEALTH_ADDRESS"]

    assert f'"http://{address}/ready"' in SERVICES["worker"]["healthcheck"]["test"][-1]


def test_the_worker_may_use_its_whole_grace_period() -> None:
    assert SERVICES["worker"]["stop_grace_period"] == "40s"


@pytest.mark.parametrize("command", ["migrate", "worker", "doctor"])
def test_the_commands_that_containers_run_exist(command: str) -> None:
    known: Any = typer.main.get_command(cli.app)

    assert command in known.commands


def test_the_image_runs_as_an_ordinary_user_and_leaves_secrets_out() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()

    assert re.findall(r"^USER (.+)$", dockerfile, flags=re.MULTILINE) == ["commitline"]
    assert ".*" in ignored
