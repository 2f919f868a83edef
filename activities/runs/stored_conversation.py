"""Reads what the ledger stores of a conversation: messages, completions, spec and tokens."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from ...errors import RunNotRunning
from ...identity import RunKey
from ...ledger import Conversation, StoredMessage
from ..contract.conversation import Completion, Message, Usage
from ..contract.encoding import from_text
from ..contract.spec import AgentSpec

_MAX_CACHED: Final = 4096
"""Characters of a message that stays in memory for the next turns: 8,192 messages at most."""


def read_message(stored: StoredMessage) -> Message:
    """Return a stored message; small ones from memory, since each turn reads them all."""
    text = stored.message
    return _cached_message(text) if len(text) <= _MAX_CACHED else from_text(Message, text)


def read_completion(stored: StoredMessage) -> Completion:
    """Return the completion in a stored message of the model."""
    completion = from_text(Message, stored.message).completion
    assert completion is not None, "a message of the model holds a completion"
    return completion


def read_spec(found: Conversation, run_key: RunKey) -> AgentSpec:
    """Return what the run keeps of its agent.

    Raises:
        RunNotRunning: A failover of the database lost it.
    """
    if found.run.spec is None:
        raise RunNotRunning(f"the ledger has lost what {run_key} keeps", known=False)
    return _cached_spec(found.run.spec)


def tokens_so_far(found: Conversation) -> Usage:
    """Return the tokens of the run's model requests so far."""
    return Usage(found.run.input_tokens, found.run.output_tokens)


@lru_cache(maxsize=8192)
def _cached_message(text: str) -> Message:
    return from_text(Message, text)


@lru_cache(maxsize=64)
def _cached_spec(text: str) -> AgentSpec:
    return from_text(AgentSpec, text)
