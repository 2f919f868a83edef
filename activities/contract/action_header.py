"""Where a guarded call comes from: a header, made in the workflow, read by the guard.

The digest is of the arguments as the *plan* had them, before a worker with newer code decodes them
and fills in newer defaults. A tool gets them as they travel, so its guard makes the digest. That
of a call of another framework is made in the workflow (`integrations`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue

from ...canonical import digest, parse
from ...errors import MissingActionHeader, UnrepresentableValue
from ...identity import ActionKey, Position, RunKey
from ...ledger.action_records import Purpose
from .encoding import pack, unpack
from .references import StoredInput

HEADER: Final = "commitline-action"
ITS_ID: Final = Position("")
"""The position of a call on its way to a tool: it is the activity's id."""


@dataclass(frozen=True)
class ActionHeader:
    """The run and position of a call, and the digest of its arguments in the plan."""

    run_key: RunKey
    position: Position = ITS_ID
    requested_digest: str = ""
    """Empty on the way to a tool: its guard gets the very payload that the workflow gave, unless
    the arguments do not travel."""
    again: bool = False
    """The workflow has scheduled this very call before, and starts it again."""
    attempt_seconds: float | None = None
    """The deadline of one attempt; None is no limit of ours."""
    node_seconds: float | None = None
    """The deadline of the call with its retries, from when it may start."""
    thread_id: str | None = None
    """The conversation, where it is not the run's own."""
    content_limit: int | None = None
    """Characters of the result that the model reads; None is the default."""
    unplanned: Purpose | None = None
    """What the call is for, where no run planned it."""
    lookup_only: bool = False
    """Nothing is sent: what became of it is asked, or left to a person."""
    undoes: ActionKey | None = None
    """The action that this one undoes."""
    max_waits: int | None = None
    """How often the call may wait to be started; None is as often as it must."""
    judged: str | None = None
    """Digest of the arguments that a person approved, or that the tool's ``approval`` let pass:
    the call is made with those, or not at all. None: nothing was judged, or the call was begun."""
    tries: int | None = None
    """How often the tool may fail it; None is as often as the tool says."""
    thread_version: int | None = None
    """Of the conversation, whose state at that version is the call's; None where it has none."""
    changes_limit: int | None = None
    """Characters that the call's changes of the state may have; None is the default."""

    inputs: list[StoredInput] = field(default_factory=list)
    """What the guard puts into the arguments, out of the ledger."""
    approved: bool = False
    """The call is made with what was approved, which did not travel: the ledger has it."""

    @property
    def purpose(self) -> Purpose:
        """What the call is for."""
        return self.unplanned or "forward"

    def to_payload(self) -> Payload:
        """Write the header."""
        return pack(self).payload

    @classmethod
    def read(
        cls,
        headers: Mapping[str, Payload],
        *,
        activity: str,
        activity_id: str,
        args: Sequence[Any],
    ) -> ActionHeader:
        """Read the header; fill in what did not travel.

        Args:
            headers: Of the activity.
            activity: Its type.
            activity_id: Its id.
            args: Its arguments; of a tool as they travel.

        Raises:
            MissingActionHeader: There is none: the workflow's worker lacks the interceptor.
        """
        if HEADER not in headers:
            raise MissingActionHeader(f"{activity} is guarded and came without its header")
        read = unpack(cls, RawValue(headers[HEADER]))
        if read.position == ITS_ID:
            read = replace(read, position=Position(activity_id))
        if not read.requested_digest:
            given = [one.payload for one in args]
            read = replace(read, requested_digest=requested_digest(given, read.inputs))
        return read


def requested_digest(payloads: Sequence[Payload], inputs: Sequence[StoredInput] = ()) -> str:
    """Return one digest for a call's arguments: JSON by its meaning, all else by its bytes.

    Args:
        payloads: The arguments.
        inputs: What the ledger adds to them.
    """
    meanings = [_meaning(payload) for payload in payloads]
    return digest([*meanings, inputs_meaning(inputs)] if inputs else meanings)


def inputs_meaning(inputs: Sequence[StoredInput]) -> object:
    """Return what counts of inputs in a digest: their keys, and not the large results."""
    return [[one.key, one.reference.at, one.reference.path] for one in inputs]


def _meaning(payload: Payload) -> object:
    encoding = payload.metadata.get("encoding", b"").decode("ascii", "replace")
    if encoding.startswith("json/"):
        try:
            return parse(payload.data.decode("utf-8"))
        except (UnrepresentableValue, UnicodeDecodeError):
            pass  # no JSON in our sense (NaN, say): its bytes are compared
    return {encoding: hashlib.sha256(payload.data).hexdigest()}
