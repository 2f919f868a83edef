"""A bad night on real servers: six things go wrong for one task queue, and an operator ends them.

Of each the night keeps what the worker's `/metrics` said before, meanwhile and afterwards, and
what the commands said that were typed. `test_drill` says what that should have been.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from commitline.devstack import DevStack
from commitline.errors import CommitlineError
from commitline.testing.openai_server import OpenAIServer, tool_call
from commitline.tests.crash.stage import APPS, Scene, until
from commitline.tests.crash.test_metrics import free_port

Series: TypeAlias = Mapping[str, float]
"""What a worker served, by the series with its labels."""


@dataclass(frozen=True)
class Situation:
    """What goes wrong, and the alert that says so."""

    alert: str
    moves: str
    """The series whose number changes."""
    grows: bool = False
    """Whether it lasts: what was counted once is counted again each minute."""


SITUATIONS: Final = {
    "the worker dies in a call": Situation("CommitlineNoWorker", "commitline_ledger_up{}"),
    "Postgres goes away": Situation("CommitlineLedgerUnavailable", "commitline_ledger_up{}"),
    "the model's provider answers 503": Situation(
        "CommitlineModelFails",
        'commitline_model_errors_total{model="openai:scripted"}',
        grows=True,
    ),
    "an approval expires": Situation(
        "CommitlineApprovalExpired", 'commitline_approvals_total{decision="expired"}'
    ),
    "an undo stays partial": Situation(
        "CommitlineUndoPartial", 'commitline_undos_total{state="partly compensated"}'
    ),
    "a mail is unknown": Situation("CommitlineActionUnknown", 'commitline_waiting{kind="unknown"}'),
}


@dataclass
class Typed:
    """A command that an operator typed."""

    status: int
    said: str
    """Both its outputs."""


@dataclass
class Night:
    """What is left of the night."""

    moments: dict[str, tuple[Series, Series, Series]] = field(default_factory=dict)
    """By situation: before, meanwhile, and when it was ended. Nothing where nobody served."""
    typed: dict[str, list[Typed]] = field(default_factory=dict)
    """By the command as the page has it."""
    outputs: dict[str, str] = field(default_factory=dict)
    """What runs said in the end, by name."""
    effects: dict[str, int] = field(default_factory=dict)
    takeovers: float = 0


class Operator:
    """Types commands in a scene, and reads what its worker serves."""

    def __init__(self, scene: Scene, night: Night) -> None:
        self.scene = scene
        self.night = night
        self.address = f"127.0.0.1:{free_port()}"
        self.environment = {
            # A list is then one line a row, whatever terminal the tests have.
            **{name: value for name, value in os.environ.items() if name != "COLUMNS"},
            **scene.environment,
            "COMMITLINE_METRICS_ADDRESS": self.address,
            "COMMITLINE_HEARTBEAT_SECONDS": "5",
            "COMMITLINE_RELAY_SECONDS": "30",
            "COMMITLINE_STATEMENT_SECONDS": "2",
            "OPENAI_API_KEY": "none",
        }

    async def type(self, command: str, **names: str) -> Typed:
        """Run a command of the page, with names instead of the words in capitals."""
        process = await asyncio.create_subprocess_exec(
            *self._words(command, names),
            env=self.environment,
            cwd=APPS,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await asyncio.wait_for(process.communicate(), 60)
        typed = Typed(process.returncode or 0, said.decode())
        self.night.typed.setdefault(command, []).append(typed)
        return typed

    @asynccontextmanager
    async def worker(self, command: str, **environment: str) -> AsyncIterator[Any]:
        """Run the command of the page that starts a worker."""
        with self.scene.log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *self._words(command, {}),
                env=self.environment | environment,
                cwd=APPS,
                stdout=log,
                stderr=log,
            )
        self.night.typed.setdefault(command, [])
        try:
            await self.until_seen(lambda now: now.get("commitline_ledger_up{}") == 1)
            yield process
        except BaseException as err:
            err.add_note(self.scene.tail())
            raise
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()

    def _words(self, command: str, names: Mapping[str, str]) -> list[str]:
        for word, name in {"shop.app:app": "drill:app", **names}.items():
            command = command.replace(word, name)
        _, *words = re.findall(r"""(?:'[^']*'|"[^"]*"|\S)+""", command)
        return [sys.executable, "-m", "commitline.cli", *(word.strip("'\"") for word in words)]

    def look(self) -> Series:
        """Return what the worker serves now; nothing if it does not answer."""
        try:
            with urllib.request.urlopen(f"http://{self.address}/metrics", timeout=40) as answer:
                text = answer.read().decode()
        except urllib.error.URLError:
            return {}
        found = re.findall(r"^(commitline_\w+)\{(.*)\} (\S+)$", text, re.MULTILINE)
        return {f"{name}{{{_own(labels)}}}": float(number) for name, labels, number in found}

    async def until_seen(self, holds: Callable[[Series], bool]) -> Series:
        """Wait until the worker serves something; return all that it serves then."""
        seen: Series = {}

        async def is_seen() -> bool:
            nonlocal seen
            seen = await asyncio.to_thread(self.look)
            return holds(seen)

        await until(is_seen)
        return seen


def _own(labels: str) -> str:
    """Return the labels that are no worker's, in order."""
    of_worker = ("namespace", "task_queue", "service_name")
    pairs = re.findall(r'(\w+)="([^"]*)"', labels)
    return ", ".join(f'{key}="{value}"' for key, value in sorted(pairs) if key not in of_worker)


# --- the night

WORKER: Final = "commitline worker shop.app:app"
FAILED: Final = "commitline runs --state failed"
SHOW: Final = "commitline runs show RUN"
RESET: Final = 'commitline runs reset RUN --to-step 0 --reason "the provider is back"'
START: Final = 'commitline run AGENT "PROMPT" --id RUN --no-wait'
UNDO: Final = 'commitline undo RUN --reason "the bank is open again"'
SETTLE: Final = "commitline actions settle RUN:AT --happened '\"mail_1\"'"


async def play_night(scene: Scene, devstack: DevStack) -> Night:
    """Have a worker die, four runs meet what goes wrong, and Postgres go away; end all of it."""
    night = Night()
    operator = Operator(scene, night)
    with OpenAIServer(_answers()) as models:
        operator.environment["OPENAI_BASE_URL"] = models.base_url
        async with operator.worker(WORKER, COMMITLINE_CRASH_AT="after_effect@charge") as worker:
            await _the_worker_dies(operator, worker)
        async with operator.worker(WORKER):
            await _it_is_taken_over(operator)
            await _four_go_wrong(operator)
            await _postgres_goes_away(operator, devstack)
    night.effects = (await asyncio.to_thread(scene.provider.stats))["effects"]
    return night


def _answers() -> list[dict[str, Any]]:
    """Return what the model's provider answers: 503 after the first turn, twice."""
    asks = tool_call("c1", "look_up", '{"order_id": "3"}')
    away = {"status": 503, "body": {"error": {"message": "overloaded"}}}
    says = {"message": {"content": "On its way."}}
    return [{"message": {"tool_calls": [asks]}}, away, away, says]


def _id(operator: Operator, name: str) -> str:
    return f"{name}-{operator.scene.run_id[-8:]}"


async def _start(operator: Operator, agent: str) -> str:
    """Start a run of an agent; return its id."""
    handle = await operator.scene.client.start(agent, "Do it.", id=_id(operator, agent))
    return handle.id


async def _ended(operator: Operator, run_id: str) -> str:
    """Wait for the end of a run; return what it said, or why it failed."""
    async with asyncio.timeout(60):
        try:
            return (await operator.scene.client.run(run_id).result()).output
        except CommitlineError as err:
            return str(err)


async def _the_worker_dies(operator: Operator, worker: asyncio.subprocess.Process) -> None:
    before = await asyncio.to_thread(operator.look)
    run = await _start(operator, "charges")
    assert await asyncio.wait_for(worker.wait(), 60) == -signal.SIGKILL
    meanwhile = await asyncio.to_thread(operator.look)
    operator.night.moments["the worker dies in a call"] = (before, meanwhile, {})
    await operator.type(SHOW, RUN=run)
    await operator.type("commitline actions list --run RUN", RUN=run)


async def _it_is_taken_over(operator: Operator) -> None:
    night = operator.night
    night.outputs["charges"] = await _ended(operator, _id(operator, "charges"))
    after = await asyncio.to_thread(operator.look)
    before, meanwhile, _ = night.moments["the worker dies in a call"]
    night.moments["the worker dies in a call"] = (before, meanwhile, after)
    night.takeovers = after['commitline_takeovers_total{tool="charge"}']


async def _four_go_wrong(operator: Operator) -> None:
    before = await asyncio.to_thread(operator.look)
    await _go_wrong(operator)
    meanwhile = await operator.until_seen(
        lambda now: (
            now['commitline_waiting{kind="unknown"}'] == 1
            and now['commitline_approvals_total{decision="expired"}'] == 1
        )
    )
    await _look_at_them(operator)
    await _end_them(operator)
    after = await operator.until_seen(
        lambda now: (
            now['commitline_waiting{kind="unknown"}'] == 0
            and now['commitline_undos_total{state="compensated"}'] == 1
        )
    )
    for name in list(SITUATIONS)[2:]:
        operator.night.moments[name] = (before, meanwhile, after)


async def _go_wrong(operator: Operator) -> None:
    """Have four runs meet what goes wrong."""
    provider, outputs = operator.scene.provider, operator.night.outputs
    await _start(operator, "pays")
    provider.behave(drop_replies=1)
    outputs["mails"] = await _ended(operator, await _start(operator, "mails"))
    provider.behave(refuses=["refund"])
    for agent in ("fails", "answers"):
        outputs[agent] = await _ended(operator, await _start(operator, agent))
    outputs["pays"] = await _ended(operator, _id(operator, "pays"))
    provider.behave()


async def _look_at_them(operator: Operator) -> None:
    fails, mails, answers, pays = (
        _id(operator, agent) for agent in ("fails", "mails", "answers", "pays")
    )

    async def are_listed() -> bool:  # Temporal's visibility lags a little
        listed = await operator.type(FAILED)
        return fails in listed.said and answers in listed.said

    await until(are_listed)
    await operator.type("commitline runs")
    await operator.type(SHOW, RUN=answers)
    await operator.type("commitline approvals --all")
    await operator.type(SHOW, RUN=pays)
    await operator.type("commitline undo RUN --show", RUN=fails)
    await operator.type("commitline runs --state waiting")
    await operator.type("commitline actions list --parked")
    await operator.type("commitline actions show RUN:AT", RUN=mails, AT="0.0")


async def _end_them(operator: Operator) -> None:
    night, again, answers = operator.night, _id(operator, "again"), _id(operator, "answers")
    await operator.type(RESET, RUN=answers)
    night.outputs["answers, reset"] = await _ended(operator, answers)
    await operator.type(START, AGENT="pays", PROMPT="Do it.", RUN=again)
    await operator.until_seen(lambda now: now['commitline_waiting{kind="approval"}'] == 1)
    await operator.type("commitline approve RUN:AT", RUN=again, AT="0.0")
    night.outputs["again"] = await _ended(operator, again)
    await operator.type(UNDO, RUN=_id(operator, "fails"))
    await operator.type(SETTLE, RUN=_id(operator, "mails"), AT="0.0")


async def _postgres_goes_away(operator: Operator, devstack: DevStack) -> None:
    before = await asyncio.to_thread(operator.look)
    await asyncio.to_thread(devstack.stop_postgres)
    try:
        meanwhile = await operator.until_seen(lambda now: now["commitline_ledger_up{}"] == 0)
        await operator.type("commitline doctor")
    finally:
        await asyncio.to_thread(devstack.start_postgres)
    after = await operator.until_seen(lambda now: now["commitline_ledger_up{}"] == 1)
    operator.night.moments["Postgres goes away"] = (before, meanwhile, after)
    await operator.type("commitline doctor")
