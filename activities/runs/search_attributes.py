"""Whether a namespace has our search attributes, and how it gets them."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Final
from weakref import WeakKeyDictionary

from temporalio import activity
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import (
    AddSearchAttributesRequest,
    ListSearchAttributesRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError

from ...logs import Log
from ..contract.search_attributes import ATTRIBUTES

log = Log()

_KEYWORD: Final = IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD
_ASK_AGAIN_AFTER: Final = 60.0
"""Seconds for which a worker believes what the server said."""
_ANSWERS_WITHIN: Final = timedelta(seconds=1)
"""The activity that asks may be a local one, and has two seconds."""

_said: WeakKeyDictionary[Client, tuple[float, bool]] = WeakKeyDictionary()


async def are_registered() -> bool:
    """Whether the namespace of this activity has them all. It only reads.

    Where the server does not say, it has none: a run works without them.
    """
    client = activity.client()
    asked_at, said = _said.get(client, (0.0, False))
    if asked_at and time.monotonic() < asked_at + _ASK_AGAIN_AFTER:
        return said
    try:
        said = not await missing_attributes(client, within=_ANSWERS_WITHIN)
    except RPCError as err:
        log.warning("run.search_attributes_unknown", reason=err.message[:200])
        said = False
    _said[client] = (time.monotonic(), said)
    return said


async def missing_attributes(client: Client, *, within: timedelta | None = None) -> list[str]:
    """Return the names of those that a namespace lacks, or has as another type. It only reads.

    Raises:
        RPCError: The server does not say.
    """
    found = await client.operator_service.list_search_attributes(
        ListSearchAttributesRequest(namespace=client.namespace), timeout=within
    )
    has = found.custom_attributes
    return [one.name for one in ATTRIBUTES if has.get(one.name) != _KEYWORD]


async def register_attributes(client: Client) -> None:
    """Give a namespace those that it lacks. Safe to repeat.

    Raises:
        RPCError: The server refuses it: Temporal Cloud does, and a role may not.
    """
    if missing := await missing_attributes(client):
        await client.operator_service.add_search_attributes(
            AddSearchAttributesRequest(
                namespace=client.namespace,
                search_attributes=dict.fromkeys(missing, _KEYWORD),
            )
        )


def register_command(namespace: str) -> str:
    """Return the command by which an operator gives a namespace all of them."""
    named = " ".join(f"--name {one.name} --type Keyword" for one in ATTRIBUTES)
    return f"temporal operator search-attribute create --namespace {namespace} {named}"
