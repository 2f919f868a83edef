"""Frameworks that cannot live beside the others, in an environment of `make test-frameworks`."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from temporalio.client import Client

from commitline.testing.processes import ProviderProcess

from .stage import Stage

pytestmark = pytest.mark.frameworks
PYTHON = Path(__file__).parents[2] / ".venv-frameworks" / "bin" / "python"


@pytest.fixture(params=["strands_shop", "adk_shop", "genai_shop", "deepagents_shop"])
def stage(
    request: pytest.FixtureRequest, temporal_client: Client, database_url: str, tmp_path: Path
) -> Iterator[Stage]:
    with ProviderProcess() as provider:
        yield Stage(
            app=request.param,
            client=temporal_client,
            database_url=database_url,
            folder=tmp_path,
            provider=provider,
            queue=f"frameworks-{uuid.uuid4()}",
            guarded=True,
            apps="commitline.tests.frameworks.apart",
            python=str(PYTHON),
        )


async def test_a_killed_worker_charges_once_and_what_may_be_mailed_is_told_as_unknown(
    stage: Stage,
) -> None:
    told = await stage.play("charge_card", "send_mail")

    assert stage.provider.stats()["effects"] == {"charge:4821": 1, "mail:ada@example.com": 1}
    assert stage.provider.requests("charge") == 2
    charge, mail = told.split(" | ")
    assert "unknown" not in charge
    assert "unknown" in mail
    assert await stage.tools() == [("charge_card", "ok"), ("send_mail", "unknown")]


async def test_without_the_plugin_a_killed_worker_charges_and_mails_again(stage: Stage) -> None:
    stage.guarded = False

    await stage.play("charge_card", "send_mail")

    effects = stage.provider.stats()["effects"]
    assert effects["charge:4821"] == 2
    # Nothing beats for an MCP call of Strands, so a slow server is called again, too.
    assert effects["mail:ada@example.com"] >= 2
