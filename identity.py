"""Who a run is, where a call stands in it, and what the outside world is told.

Keys are pure functions of position and domain: never random, never from a clock, never from
the model. A key that came out of the row, a clock or a random source would differ after a
lost commit, and the same charge would be made again under another name.

    run key          support-4821/0198c1f0-…            workflow id, first execution
    position         2.0                                model turn 2, call 0 of its message
                     e1-2.0                             the same after a fork: the first epoch
    action key       support-4821/0198c1f0-…:2.0        the primary key of agent_actions
    a sub-agent's    support-4821/0198c1f0-…/2.0        run key: its parent's, and the position
                     support-4821/0198c1f0-…/2.0:0.1    at which it was called
    idempotency key  order-4821-charge  or  cl_…        what the downstream system is given
"""

from __future__ import annotations

import base64
import hashlib
import re
import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NewType
from urllib.parse import quote

from .canonical import Json, canonical
from .errors import DefinitionError, InvalidIdempotencyKey, InvalidRunId

RunKey = NewType("RunKey", str)
ActionKey = NewType("ActionKey", str)
Position = NewType("Position", str)

MAX_RUN_ID: Final = 180
"""Characters of a workflow id. Temporal allows 1,000; keys made of it must stay readable."""
MAX_IDEMPOTENCY_KEY: Final = 255
"""Characters; the limit that Stripe and others publish for an idempotency key."""

_GENERATION_ROOM: Final = 8
"""Characters kept for the ``~2`` of a later generation, and the ``~of2`` of what it undoes."""

MAX_DEPTH: Final = 8
"""Sub-agents below one another; a workflow id, which grows with each, may have 1,000 characters."""

THREAD_PREFIX: Final = "thread:"
"""Of the workflow ids of named conversations."""

OUTBOX: Final = "outbox"
"""Of the run keys of what an application intended: ``outbox/<idempotency key>``."""

OUTBOX_POSITION: Final = Position("0")
"""Of the one action of such a run."""

_RESERVED: Final = (f"{OUTBOX}/", "settle:", "undo:")
"""How the ids begin that are ours: of the outbox, and of the workflows that settle and undo."""

UNDO_PREFIX: Final = "undo-"
"""Of the positions of undos: ``undo-2.0``."""

_POSITION = re.compile(r"(?:e(?P<epoch>[0-9]{1,9})-)?(?P<step>[0-9]{1,9})\.[0-9]{1,9}")
_RUN_UUID = re.compile(r"[0-9A-Za-z-]{1,64}")
_SUB_WORKFLOW = re.compile(r".+/(?:e[0-9]{1,9}-)?[0-9]{1,9}\.[0-9]{1,9}/[0-9A-Za-z-]{1,64}")
_PLAIN = frozenset(string.ascii_letters + string.digits)


def check_workflow_id(workflow_id: str) -> str:
    """Return the id if a run may have it.

    Raises:
        InvalidRunId: It is blank, not ASCII, holds control characters, or is over 180 long.
    """
    if not workflow_id.strip():
        raise InvalidRunId("a run's id must not be empty")
    if len(workflow_id) > MAX_RUN_ID:
        raise InvalidRunId(f"a run's id has {len(workflow_id)} characters, over {MAX_RUN_ID}")
    if not (workflow_id.isascii() and workflow_id.isprintable()):
        raise InvalidRunId(f"a run's id holds characters that it may not: {workflow_id!a}")
    return workflow_id


def check_run_id(workflow_id: str) -> str:
    """Return the id if a new run may be started under it.

    Raises:
        InvalidRunId: See `check_workflow_id`; or it is a conversation's, or one of our own.
    """
    if check_workflow_id(workflow_id).startswith(THREAD_PREFIX):
        raise InvalidRunId(f"{workflow_id!r} is the run of a conversation: start it with thread=")
    if workflow_id == OUTBOX or workflow_id.startswith(_RESERVED):
        raise InvalidRunId(
            f"{workflow_id!r} is a name of Commitline's own: {OUTBOX!r}, and whatever begins with "
            + ", ".join(map(repr, _RESERVED))
        )
    return workflow_id


def run_key(workflow_id: str, first_execution_run_id: str) -> RunKey:
    """Name a run: stable over replay, retry, reset and continue-as-new, fresh for every new run.

    The last ``/`` separates the two, since an execution's id holds none; so no two pairs
    share a key.

    Raises:
        InvalidRunId: It cannot be a run's, or it is the outbox's.
    """
    if check_workflow_id(workflow_id) == OUTBOX or workflow_id.startswith(f"{OUTBOX}/"):
        raise InvalidRunId(f"{workflow_id!r} would name what an application intended")
    if not _RUN_UUID.fullmatch(first_execution_run_id):
        raise InvalidRunId(f"not the id of an execution: {first_execution_run_id!a}")
    return RunKey(f"{workflow_id}/{first_execution_run_id}")


def first_execution(run: RunKey) -> str | None:
    """Return the id of a run's first execution; None of a sub-agent's run, and of the outbox's."""
    last = run.rpartition("/")[2]
    known = _RUN_UUID.fullmatch(last) and not run.startswith(f"{OUTBOX}/")
    return last if known else None


def sub_run_key(parent: RunKey, at: Position) -> RunKey:
    """Name the run of a sub-agent by its parent and the position at which that called it.

    The same for whichever workflow carries it out: what a reset parent calls anew replays. It
    ends in a position, which holds a dot, and every other run's key in an execution's id, which
    holds none; so no two runs share one, however deep they lie.
    """
    return RunKey(f"{parent}/{at}")


def parent_of(run: RunKey) -> RunKey | None:
    """Return the run that called a sub-agent's; None for a run that somebody started."""
    parent, _, last = run.rpartition("/")
    if run.startswith(f"{OUTBOX}/"):
        return None  # a key of the application's, whatever it looks like
    return RunKey(parent) if "/" in parent and _POSITION.fullmatch(last) else None


def position_in_parent(run: RunKey) -> Position | None:
    """Return where a sub-agent's run was called; None for a run that somebody started."""
    return None if parent_of(run) is None else Position(run.rpartition("/")[2])


def position_below(upper: RunKey, run: RunKey) -> Position | None:
    """Return at which call of an upper run a run began; None where it is not below that one."""
    while (parent := parent_of(run)) is not None:
        if parent == upper:
            return position_in_parent(run)
        run = parent
    return None


def depth_of(run: RunKey) -> int:
    """Return how many runs lie above; 0 for a run that somebody started."""
    parent = parent_of(run)
    return 0 if parent is None else 1 + depth_of(parent)


def started_run_of(run: RunKey) -> RunKey:
    """Return the run that somebody started: itself, or the one above all that it lies below."""
    parent = parent_of(run)
    return run if parent is None else started_run_of(parent)


def started_workflow_of(run: RunKey) -> str:
    """Return the id of the workflow that somebody started, of a run or of one below it."""
    return started_run_of(run).rpartition("/")[0]


def within_run(run: RunKey, at: Position) -> str:
    """Return where a call stands, seen from the run that somebody started: ``2.0/0.1``."""
    return f"{run}/{at}".removeprefix(f"{started_run_of(run)}/")


def action_key_within(run: RunKey, within: str) -> ActionKey:
    """Name an action by a run and where in it the call stands, as `within_run` says."""
    path, _, at = within.rpartition("/")
    return action_key(RunKey(f"{run}/{path}") if path else run, Position(at))


def sub_workflow(parent_workflow: str, at: Position, parent_execution: str) -> str:
    """Return the id of a sub-agent's workflow: another one for each execution of its parent."""
    return f"{parent_workflow}/{at}/{parent_execution}"


def check_any_workflow_id(workflow_id: str) -> str:
    """Return the id if a run may have it: one that somebody started, or a sub-agent's.

    Raises:
        InvalidRunId: As `check_workflow_id`, but a sub-agent's may be over 180 long.
    """
    if _SUB_WORKFLOW.fullmatch(workflow_id) and workflow_id.isprintable():
        return workflow_id
    return check_workflow_id(workflow_id)


def position(step: int, call: int, *, epoch: int = 0) -> Position:
    """Name a call: the model turn, from 0, and its index in that turn's message, from 0.

    A fork goes another way from a turn on: what it does stands beside what was done, under
    ``e1-2.0`` and so on.
    """
    return Position(f"e{epoch}-{step}.{call}" if epoch else f"{step}.{call}")


def epoch_of(at: Position) -> int:
    """Return the epoch of a position; 0 for whatever `position` did not make."""
    found = _POSITION.fullmatch(at)
    return int(found["epoch"] or 0) if found else 0


def step_of(at: Position) -> int | None:
    """Return the model turn of a position; None for whatever `position` did not make."""
    found = _POSITION.fullmatch(at)
    return int(found["step"]) if found else None


def undo_position(at: Position, number: int) -> Position:
    """Name the undo of a call: the first, or a later one where that had no effect."""
    return Position(f"{UNDO_PREFIX}{at}" + (f"~{number}" if number > 1 else ""))


def is_from(at: Position, step: int) -> bool:
    """Whether a position lies at this model turn or after it, in whichever epoch."""
    found = step_of(at)
    return found is not None and found >= step


def check_thread_id(thread_id: str) -> str:
    """Return the id if a conversation may have it: its runs are the workflow ``thread:<id>``.

    Raises:
        InvalidRunId: It is blank, not ASCII, holds control characters, or is over 173 long.
    """
    if not thread_id.strip():
        raise InvalidRunId("a thread's id must not be empty")
    check_workflow_id(thread_workflow(thread_id))
    return thread_id


def check_request_id(request_id: str) -> str:
    """Return the id if a request to a conversation may have it.

    Raises:
        InvalidRunId: It is blank, not ASCII, holds control characters, or is over 180 long.
    """
    return check_workflow_id(request_id)


def thread_workflow(thread_id: str) -> str:
    """Return the id of the workflow that a conversation's runs are: one at a time."""
    return f"{THREAD_PREFIX}{thread_id}"


def undo_workflow(run: RunKey) -> str:
    """Return the id of the workflow that takes back what an ended run did: one at a time."""
    return f"undo:{run}"


def settle_workflow(key: ActionKey) -> str:
    """Return the id of the workflow that sees to an action that nobody else does: one at a time."""
    return f"settle:{key}"


def action_key(run: RunKey, at: Position) -> ActionKey:
    """Name an action. ``%`` and ``:`` in the position are escaped, so the last ``:`` separates."""
    return ActionKey(f"{run}:{at.replace('%', '%25').replace(':', '%3A')}")


def split_action_key(key: ActionKey) -> tuple[RunKey, Position]:
    """Return the run and the position that `action_key` named."""
    run, _, at = key.rpartition(":")
    return RunKey(run), Position(at.replace("%3A", ":").replace("%25", "%"))


def default_idempotency_key(action: ActionKey) -> str:
    """Return ``cl_`` and 40 base32 characters: ASCII, short, without personal data."""
    hashed = hashlib.sha256(action.encode()).digest()
    return "cl_" + base64.b32encode(hashed).decode("ascii")[:40].lower()


def check_idempotency_key(key: str) -> str:
    """Return a key from the domain that is given as it is, if it may be one.

    Raises:
        InvalidIdempotencyKey: It is blank, holds ``~`` (of generations) or anything but
            printable ASCII, or is over 247 long.
    """
    if not (key.strip() and key.isascii() and key.isprintable()) or "~" in key:
        raise InvalidIdempotencyKey(
            f"an idempotency key is printable ASCII without '~', and not blank: {key[:80]!a}"
        )
    if len(key) > MAX_IDEMPOTENCY_KEY - _GENERATION_ROOM:
        raise InvalidIdempotencyKey(
            f"the idempotency key has {len(key)} characters, over "
            f"{MAX_IDEMPOTENCY_KEY - _GENERATION_ROOM}: {key[:60]}…"
        )
    return key


def with_generation(domain_key: str, generation: int) -> str:
    """Return what the ``generation``-th holder of a domain key sends: ``key``, ``key~2``, ….

    After a released charge a provider would replay its old answer to the old key.
    """
    return domain_key if generation == 1 else f"{domain_key}~{generation}"


def undo_key(domain_key: str, generation: int) -> str:
    """Return the domain key of what undoes the ``generation``-th holder of another key.

    The refund of a second charge is not the refund of the first.
    """
    return domain_key if generation == 1 else f"{domain_key}~of{generation}"


@dataclass(frozen=True)
class KeyTemplate:
    """A domain key with parameters in it: ``order-{order_id}-charge``.

    Values keep letters and digits; everything else is percent-escaped, separators included,
    so that no two lists of values give the same key. ``~`` is kept for generations.
    A value is taken by its text: where a parameter may be ``1`` or ``"1"``, both are one fact.
    """

    text: str
    parts: tuple[tuple[str, str | None], ...]
    """Literal text and the parameter after it, as `string.Formatter` splits them."""

    @property
    def fields(self) -> frozenset[str]:
        """The parameters that the template names."""
        return frozenset(name for _, name in self.parts if name is not None)

    @classmethod
    def parse(cls, text: str) -> KeyTemplate:
        """Read a template.

        Raises:
            DefinitionError: No parameter, two parameters without a separator that no value
                can hold, ``~`` or characters outside printable ASCII, or a format or
                attribute behind a name.
        """
        try:
            found = list(string.Formatter().parse(text))
        except ValueError as err:
            raise DefinitionError(f"idempotency_key {text!r} is not a template: {err}") from err
        template = cls(text, tuple((literal, name) for literal, name, _, _ in found))
        plain = all(not spec and conversion is None for _, _, spec, conversion in found)
        template._check(plain=plain)
        return template

    def render(self, arguments: Mapping[str, Json]) -> str:
        """Return the domain key for these effective arguments (plain JSON values).

        Raises:
            InvalidIdempotencyKey: A named argument is null or empty, or the key is over 247.
        """
        key = "".join(
            literal + (_escape(name, arguments.get(name)) if name is not None else "")
            for literal, name in self.parts
        )
        if len(key) > MAX_IDEMPOTENCY_KEY - _GENERATION_ROOM:
            raise InvalidIdempotencyKey(
                f"the idempotency key has {len(key)} characters, over "
                f"{MAX_IDEMPOTENCY_KEY - _GENERATION_ROOM}: {key[:60]}…"
            )
        return key

    def _check(self, *, plain: bool) -> None:
        names = [name for _, name in self.parts if name is not None]
        literals = [literal for literal, _ in self.parts]
        if not names or not plain or not all(name.isidentifier() for name in names):
            raise DefinitionError(
                f"idempotency_key {self.text!r} must name parameters, as in 'order-{{order_id}}'"
            )
        if "~" in "".join(literals) or not all(s.isascii() and s.isprintable() for s in literals):
            raise DefinitionError(
                f"idempotency_key {self.text!r} may hold printable ASCII except '~'"
            )
        # Between two values stands at least one character that no escaped value can hold.
        between = [literal for literal, name in self.parts[1:] if name is not None]
        if not all(set(literal) - _PLAIN - {"%"} for literal in between):
            raise DefinitionError(
                f"idempotency_key {self.text!r} needs a separator such as '-' between parameters"
            )


def _escape(name: str, value: Json) -> str:
    if value is None or value == "":
        raise InvalidIdempotencyKey(f"the idempotency key needs {name!r}, which is empty")
    text = value if isinstance(value, str) else canonical(value)
    escaped = quote(text, safe="", errors="surrogatepass")
    # `quote` leaves these four alone, whatever `safe` says.
    for char in "_.-~":
        escaped = escaped.replace(char, f"%{ord(char):02X}")
    return escaped
