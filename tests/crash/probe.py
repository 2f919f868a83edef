"""Asks a worker whether it lives and whether it is ready, as an orchestrator does."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commitline.devstack.ports import PortBook
from commitline.tests.crash.stage import until


def free_port(folder: Path) -> int:
    """Return a port that nobody has."""
    return PortBook(folder / "ports").choose({"health": 0})["health"]


@dataclass(frozen=True)
class Asked:
    """What a worker answered."""

    status: int
    body: dict[str, Any]


class Probe:
    """Asks a worker as an orchestrator does, with a time-out."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    async def get(self, path: str, *, seconds: float = 5) -> Asked | None:
        """Ask once; None is no answer."""
        return await asyncio.to_thread(self._get, path, seconds)

    def _get(self, path: str, seconds: float) -> Asked | None:
        try:
            with urllib.request.urlopen(self._url + path, timeout=seconds) as answer:
                return Asked(answer.status, json.load(answer))
        except urllib.error.HTTPError as err:
            with err:
                return Asked(err.code, json.load(err))
        except OSError:
            return None

    async def becomes(self, *, ready: bool) -> list[str]:
        """Wait until the worker is ready, or is not; return why it is not."""
        last: Asked | None = None

        async def holds() -> bool:
            nonlocal last
            last = await self.get("/ready")
            return last is not None and last.body["ready"] is ready

        await until(holds)
        assert last is not None
        assert last.status == (200 if ready else 503)
        reasons: list[str] = last.body["reasons"]
        return reasons
