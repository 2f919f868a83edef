"""Whether a tool can work as it is declared. What cannot work is refused when it is defined."""

from __future__ import annotations

import inspect
import re
import string
import typing
from collections.abc import Iterator
from datetime import timedelta
from itertools import chain
from typing import Any, Final

from ...errors import DefinitionError
from ...ledger.action_records import Effect
from ..contract.deadlines import LONGEST, resolve
from ..contract.local_activity import LONGEST_LOCAL, is_short
from .tool import RESULT, Isolation, Relay, Tool, UndoUnknown

TOOL_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What every provider accepts as a tool's name."""


def check_effect(name: str, effect: Effect | None) -> Effect:
    """Return the effect that a tool declares.

    Raises:
        DefinitionError: It declares none, or something else.
    """
    if effect in list(Effect):
        return Effect(effect)
    what = "declares no effect" if effect is None else f"has an unknown effect {effect!r}"
    raise DefinitionError(
        f"the tool {name!r} {what}; choose one: "
        + ", ".join(f"Effect.{member.name}" for member in Effect)
    )


def check_tool(made: Tool) -> Tool:
    """Return a tool that can work; refuse one that cannot.

    Raises:
        DefinitionError: The message says why.
    """
    for wrong, why in chain.from_iterable(about(made) for about in _RULES):
        if wrong:
            raise DefinitionError(f"the tool {made.name!r} {why}")
    _check_named_parameters(made)
    if made.compensate is not None:
        _check_compensator(made, made.compensate)
    return made


def _check_named_parameters(made: Tool) -> None:
    for what, names in (
        ("summary", _named_in(made.summary)),
        ("idempotency_key", made.key_template.fields if made.key_template else frozenset()),
        ("same", made.same or frozenset()),
        ("undoes", made.undoes.fields if made.undoes else frozenset()),
    ):
        if unknown := sorted(names - made.parameters):
            raise DefinitionError(
                f"the tool {made.name!r} has no parameter {', '.join(unknown)}, "
                f"which its {what} names"
            )


def _check_compensator(made: Tool, undo: Tool) -> None:
    if RESULT in made.parameters and RESULT in undo.parameters:
        raise DefinitionError(
            f"the tool {made.name!r} has a parameter {RESULT!r}, and {undo.name!r}, which undoes "
            "it, gets what it returned by that name"
        )
    fields = undo.arguments.model_fields.values()
    needed = {field.alias or "" for field in fields if field.is_required()}
    if unknown := sorted(needed - made.parameters - {RESULT}):
        raise DefinitionError(
            f"the tool {made.name!r} is undone by {undo.name!r}, whose {', '.join(unknown)} it "
            f"cannot give: a compensator's parameters are those of the tool, and {RESULT!r}"
        )


# Each of the functions below yields pairs: whether something is wrong, and what.


def _name_and_effect(made: Tool) -> Iterator[tuple[Any, str]]:
    effect, ttl = made.effect, made.key_ttl
    named = TOOL_NAME.fullmatch(made.name)
    yield not named, "needs a name of 1 to 64 letters, digits, '_' or '-'"
    yield (
        effect is Effect.READ and (made.key_template or ttl),
        "is a READ: it has no idempotency key",
    )
    yield (
        effect is Effect.LOOKUP and made.lookup is None,
        "is a LOOKUP: say how to ask, with lookup=",
    )
    yield (
        effect in (Effect.READ, Effect.AT_MOST_ONCE) and made.lookup is not None,
        "has a lookup, which only a LOOKUP and an IDEMPOTENT one has",
    )
    yield (
        effect is not Effect.IDEMPOTENT and ttl is not None,
        "has a key_ttl, which only an IDEMPOTENT one has",
    )


def _durations(made: Tool) -> Iterator[tuple[Any, str]]:
    ttl = made.key_ttl
    yield ttl is not None and ttl <= timedelta(), "has a key_ttl that is not positive"
    for what, lasts in (
        ("a key_ttl", ttl),
        ("a lookup_settles_after", made.settles_after),
        ("an approval_expires", made.approval_expires),
    ):
        yield lasts is not None and lasts > LONGEST, f"has {what} over ten years"
    yield inspect.isasyncgenfunction(made.fn), "yields: return what it has to say, as a list"
    yield made.settles_after < timedelta(), "has a lookup_settles_after below zero"
    yield made.tries < 1, "has no tries; one is the least"


def _person(made: Tool) -> Iterator[tuple[Any, str]]:
    yield made.effect is Effect.READ and made.gated, "is a READ: there is nothing to approve"
    yield (
        not isinstance(made.approval, bool) and not callable(made.approval),
        "has an approval that is neither True nor a function of its arguments",
    )
    yield inspect.iscoroutinefunction(made.approval), "has an async approval; it only looks"
    yield (
        made.approval_expires is not None and made.approval_expires <= timedelta(),
        "has an approval that expires at once",
    )


def _undo(made: Tool) -> Iterator[tuple[Any, str]]:
    undo, reads = made.compensate, made.effect is Effect.READ
    yield undo is not None and not isinstance(undo, Tool), "is undone by what is no tool"
    yield undo is not None and reads, "is a READ: there is nothing to undo"
    yield isinstance(undo, Tool) and undo.effect is Effect.READ, "is undone by a READ"
    yield isinstance(undo, Tool) and undo.state is not None, "is undone by one that takes a state"
    yield made.undoes is not None and reads, "is a READ: it undoes nothing"
    yield (
        made.relay not in typing.get_args(Relay),
        f"has an unknown relay {made.relay!r}; there are 'lookup' and 'resend'",
    )
    yield (
        made.relay == "resend" and made.effect is not Effect.IDEMPOTENT,
        "is to be resent by the relay, which only an IDEMPOTENT one can be",
    )
    yield (
        made.undo_unknown not in typing.get_args(UndoUnknown),
        f"has an undo_unknown {made.undo_unknown!r}; there are 'resend' and 'park'",
    )


def _detached(made: Tool) -> Iterator[tuple[Any, str]]:
    reads = made.effect is Effect.READ
    yield reads and made.detached, "is a READ: its answer is all there is to it"
    yield (
        made.detached and made.state is not None,
        "is detached and takes a state, which is another one when it is sent",
    )


def _isolation(made: Tool) -> Iterator[tuple[Any, str]]:
    yield (
        made.isolation not in typing.get_args(Isolation),
        f"has an unknown isolation {made.isolation!r}; there are 'none' and 'process'",
    )
    yield (
        made.isolation == "process" and "<locals>" in made.fn.__qualname__,
        "is to run in a process: define it at the top of a module",
    )
    yield (
        made.isolation == "process" and inspect.ismethod(made.fn),
        "is to run in a process, and is a method, whose object that process does not have",
    )


def _local(made: Tool) -> Iterator[tuple[Any, str]]:
    short = is_short(resolve("tool_timeout", made.tool_timeout))
    yield (
        made.local and not short,
        f"is local: give it a tool_timeout of {LONGEST_LOCAL:g} s at most",
    )
    yield made.local and made.isolation != "none", "is local, and cannot run in a process"
    yield made.local and made.detached, "is local, and cannot be left to the relay (detached)"


_RULES: Final = (_name_and_effect, _durations, _person, _detached, _undo, _local, _isolation)


def _named_in(template: str | None) -> frozenset[str]:
    try:
        parts = list(string.Formatter().parse(template or ""))
    except ValueError as err:
        raise DefinitionError(f"the summary {template!r} is not a template: {err}") from err
    return frozenset(name for _, name, _, _ in parts if name is not None)
