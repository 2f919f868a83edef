"""What the actors share: the provider, what Temporal would know of the runs, and the trace.

Engine      gives out moments; each is later than the one before
AgentRun    one run as its workflow has it: its plan, and how far it has come
Call        one attempt, from before its claim until nothing of it can be sent any more
Scene       all of that together, and what was told to whom
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, Final
from uuid import UUID

from commitline.canonical import dumps
from commitline.identity import ActionKey, Position, RunKey, position, sub_run_key
from commitline.ledger import ActionRequest, Outcome
from commitline.tests.fuzz.pace import Pace
from commitline.tests.fuzz.provider import Provider
from commitline.tests.fuzz.tools import THEMES, TOOLS, Theme, Tool
from commitline.tests.fuzz.trace import Trace

CONVERSATIONS: Final = 3
_OTHER_ARGUMENTS: Final = 0.06
"""How often a call has other arguments than the others of its order: a conflict."""


class Engine:
    """The clock of Temporal."""

    def __init__(self) -> None:
        self._last = datetime.now(UTC)

    def now(self) -> datetime:
        """Return a moment that is later than all before."""
        self._last = max(self._last + timedelta(microseconds=1), datetime.now(UTC))
        return self._last


@dataclass(frozen=True)
class PlannedCall:
    """A call of a model turn."""

    tool: Tool
    args: str


@dataclass(eq=False)
class AgentRun:
    """A run, as its workflow has it."""

    key: RunKey
    thread: str
    turns: list[list[PlannedCall]]
    epochs: list[int]
    """Of each turn: a fork gives those from its own on the next one."""
    began: datetime
    parent: AgentRun | None = None
    """Of a sub-agent's run: the one that calls it."""
    execution: int = 0
    """Counts resets. A workflow of an earlier one does nothing more."""
    from_turn: int = 0
    """Where the newest execution begins."""
    under_way: bool = False
    """A worker carries the newest execution out."""
    assigned: tuple[str, datetime] | None = None
    """Of a sub-agent's run: to which workflow it was given last, and since when that is known."""
    claiming: int = 0
    """How many attempts are about to claim."""
    stopped: bool = False
    gone_at: datetime | None = None
    """When its workflow ended: completed, terminated or lost."""
    seen_ended: bool = False
    """A relay has seen that the ledger has it as ended."""
    undone_now: bool = False
    """Another workflow undoes it now."""

    @property
    def workflow(self) -> str:
        """Return the id of the workflow that acts: of a sub-agent's, another one each time."""
        return self.workflow_of(self.execution)

    def workflow_of(self, execution: int) -> str:
        """Return the id of the workflow that acted in an execution."""
        first = self.key.partition("/")[0]
        return first if self.parent is None else f"{self.key}/x{execution}"

    @property
    def cancelled(self) -> bool:
        """Whether it was stopped, or the run that calls it."""
        return self.stopped or (self.parent is not None and self.parent.cancelled)

    @property
    def is_over(self) -> bool:
        """Whether its workflow has ended, or that of the run that calls it."""
        return self.gone_at is not None or (self.parent is not None and self.parent.is_over)

    @property
    def is_gone(self) -> bool:
        """Whether a relay has to look whether the ledger knows that it has ended."""
        above = self.parent
        if above is not None and (above.gone_at is None or above.undone_now):
            return False  # that one ends it, or undoes it
        return self.gone_at is not None and not self.seen_ended and not self.undone_now

    @contextmanager
    def about_to_claim(self) -> Iterator[None]:
        """Count an attempt until it has the answer to its claim, here and in the run above."""
        self.claiming += 1
        try:
            with nullcontext() if self.parent is None else self.parent.about_to_claim():
                yield
        finally:
            self.claiming -= 1

    def begin_again(self, turn: int) -> None:
        """Have a new execution begin at one of its turns; the one before does nothing more."""
        self.execution += 1
        self.from_turn = turn
        self.gone_at = None
        self.stopped = self.seen_ended = False

    def position(self, turn: int, call: int) -> Position:
        """Return where a call stands."""
        return position(turn, call, epoch=self.epochs[turn])


@dataclass(eq=False)
class Call:
    """One attempt, and whether it may still send something."""

    token: UUID
    order: str
    late: bool = False
    """Its time is up: it sends nothing any more."""
    at_work: int = 0
    """How much of it goes on: the attempt itself, and what it has left behind."""


@dataclass
class Conversation:
    """A conversation: one run at a time writes it."""

    name: str
    writer: AgentRun | None = None
    left: tuple[RunKey, Sequence[Position]] | None = None
    """The turn that the run before has left without an answer, perhaps."""
    version: int = 0


@dataclass
class Told:
    """What the model read of a call, each time that it was made."""

    outcome: Outcome | None = None
    unknown: bool = False
    accepted: bool = False
    conflict: bool = False


@dataclass
class Scene:
    """What the actors share."""

    seed: str
    provider: Provider
    theme: Theme = THEMES[-1]
    engine: Engine = field(default_factory=Engine)
    pace: Pace = field(default_factory=Pace)
    trace: Trace = field(default_factory=Trace)
    calls: dict[UUID, Call] = field(default_factory=dict)
    runs: dict[RunKey, AgentRun] = field(default_factory=dict)
    to_carry_out: list[AgentRun] = field(default_factory=list)
    """Whose newest execution no worker has taken up."""
    conversations: list[Conversation] = field(default_factory=list)
    told: defaultdict[ActionKey, Told] = field(default_factory=lambda: defaultdict(Told))
    intents: set[ActionKey] = field(default_factory=set)
    """What an application committed, and may ask for."""
    unknown: defaultdict[tuple[str, str, str], list[ActionRequest]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """The calls without a key that were told as unknown, by what makes two of them equal."""
    stopped: dict[RunKey, datetime] = field(default_factory=dict)
    """When the stop of a run was seen to have returned."""
    undo_began: dict[RunKey, datetime] = field(default_factory=dict)
    """When the last undo of a run was seen to have begun."""
    undo_sent: dict[ActionKey, datetime] = field(default_factory=dict)
    """When a call was seen to be dispatched."""
    words: defaultdict[tuple[ActionKey, str], set[Any]] = field(
        default_factory=lambda: defaultdict(set)
    )
    """What people said of a call, each of them told that their word counts."""
    passed: set[ActionKey] = field(default_factory=set)
    """The actions that stand although an undo tried to undo them."""
    wrong: list[tuple[str, str]] = field(default_factory=list)
    """What an actor saw that must not be: about which row, and what."""
    counts: Counter[str] = field(default_factory=Counter)
    """How often everything was done."""
    over: bool = False
    """Everybody stops."""
    background: set[asyncio.Future[Any]] = field(default_factory=set)
    """Attempts that go on although nobody waits for them."""

    def __post_init__(self) -> None:
        self.conversations = [Conversation(f"talk-{at}") for at in range(CONVERSATIONS)]

    def new_run(self, chance: Random) -> AgentRun:
        """Plan a run: its own conversation, or one that several runs go on with."""
        number = len(self.runs)
        key = RunKey(f"run-{number}/e1")
        free = [one for one in self.conversations if one.writer is None]
        talk = chance.choice(free) if free and chance.random() < 0.4 else None
        turns = [self.turn(key, 0, at) for at in range(chance.choice([1, 2, 2, 3]))]
        run = AgentRun(
            key, talk.name if talk else key, turns, [0] * len(turns), began=self.engine.now()
        )
        if talk is not None:
            talk.writer = run
        self.runs[key] = run
        return run

    def sub_run(self, parent: AgentRun, at: Position) -> AgentRun:
        """Return the run of a sub-agent that a call begins, or goes on with."""
        key = sub_run_key(parent.key, at)
        if key not in self.runs:
            turns = [
                [one for one in self.turn(key, 0, turn) if not one.tool.agent] for turn in range(2)
            ]
            self.runs[key] = AgentRun(
                key, key, turns, [0] * len(turns), began=self.engine.now(), parent=parent
            )
        return self.runs[key]

    def tree(self, key: RunKey) -> Sequence[AgentRun]:
        """Return a run, and those of its sub-agents."""
        return [
            run
            for run in self.runs.values()
            if run.key == key or (run.parent is not None and run.parent.key == key)
        ]

    def delegates(self, run: AgentRun) -> bool:
        """Whether a sub-agent is at work for a run."""
        return any(one.parent is run and one.gone_at is None for one in self.runs.values())

    def turn(self, run: RunKey, epoch: int, at: int) -> list[PlannedCall]:
        """Return the calls of a model turn: always the same, as a completion that is on record."""
        chance = Random(f"{self.seed}:{run}:{epoch}:{at}")
        calls = []
        for _ in range(chance.choice([1, 1, 2])):
            tool = TOOLS[chance.choice(self.theme.called)]
            calls.append(PlannedCall(tool, self.arguments(chance)))
        return calls

    def arguments(self, chance: Random) -> str:
        """Return the arguments of a call: mostly those of all calls for its order."""
        cents = 5900 if chance.random() < _OTHER_ARGUMENTS else 4900
        return dumps({"order": chance.randrange(self.theme.orders), "cents": cents})

    def may_write(self, run: AgentRun) -> bool:
        """Whether no other run writes the conversation of a run."""
        talk = self.conversation(run)
        return talk is None or talk.writer in (None, run)

    def conversation(self, run: AgentRun) -> Conversation | None:
        """Return the shared conversation that a run writes; None where it has its own."""
        return next((one for one in self.conversations if one.name == run.thread), None)

    def violation(self, about: str, text: str) -> None:
        """Keep what must not be."""
        self.wrong.append((about, text))

    def gone(self, key: RunKey) -> datetime | None:
        """Return when the workflow of a run ended; None while it goes on."""
        run = self.runs.get(key)
        return None if run is None else run.gone_at
