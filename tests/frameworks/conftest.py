"""One process for each environment, from which the workers of all tests are forked."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest
from temporalio.client import Client

from commitline.testing.processes import ProviderProcess
from commitline.tests.frameworks.host import Host
from commitline.tests.frameworks.stage import Stage

_HERE: Final = Path(__file__).parent
_PACKAGE: Final = "commitline.tests.frameworks"
_APART: Final = _HERE.parents[1] / ".venv-frameworks" / "bin" / "python"


def _modules(package: str) -> Sequence[str]:
    return [f"{_PACKAGE}.{package}.{one.stem}" for one in sorted(_HERE.glob(f"{package}/*_*.py"))]


@pytest.fixture(scope="session")
def host() -> Iterator[Host]:
    """The frameworks that live beside each other."""
    with Host(_modules("apps")) as host:
        yield host


@pytest.fixture(scope="session")
def host_apart() -> Iterator[Host]:
    """Those that need an environment of their own."""
    # What pydantic-ai's MCP imports hooks into every import after it, those of sandboxes, too.
    modules = [one for one in _modules("apart") if not one.endswith("pydantic_server")]
    with Host(modules, python=str(_APART)) as host:
        yield host


@pytest.fixture
def provider() -> Iterator[ProviderProcess]:
    """The outside world, which counts."""
    with ProviderProcess() as provider:
        yield provider


@pytest.fixture
def stage_of(
    request: pytest.FixtureRequest,
    temporal_client: Client,
    database_url: str,
    tmp_path: Path,
    provider: ProviderProcess,
) -> Callable[[Sequence[str]], Stage]:
    """Makes a stage for some of the apps, which are of one environment."""

    def stage(apps: Sequence[str]) -> Stage:
        apart = (_HERE / "apart" / f"{apps[0]}.py").exists()
        host = request.getfixturevalue("host_apart" if apart else "host")
        package = f"{_PACKAGE}.{'apart' if apart else 'apps'}"
        return Stage(apps, host, temporal_client, database_url, tmp_path, provider, package)

    return stage
