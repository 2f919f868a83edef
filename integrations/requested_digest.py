"""The digest of a call as its plan has it: of the tool and its arguments, and of nothing else."""

from __future__ import annotations

from ..canonical import digest
from .family import ToolCall


def requested_digest(call: ToolCall) -> str:
    """Return the digest of a call."""
    return digest([call.tool, call.arguments])
