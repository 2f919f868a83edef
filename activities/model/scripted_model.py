"""`ScriptedModel`: a model that answers from a script, for tests and examples.

The number of assistant messages in the request chooses the answer, not the number of requests. So
the model keeps no state: a worker that is killed and started again goes on at the right place, and
a request that is sent again gets the same answer again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from ...canonical import dumps
from ...errors import ModelRejected
from ..contract.conversation import Completion, FinishReason, ToolCall
from .model import ModelRequest

Answer: TypeAlias = Completion | Exception | Callable[[ModelRequest], Completion]
"""An answer of a script: what the model says, raises, or computes from the request."""


class ScriptedModel:
    """Answers from a list; implements `Model`.

    Args:
        name: The model's name.
        answers: The first answers a request without assistant messages, and so on. An exception
            is raised at every request of its turn: to fail once, pass a function.
        count_file: Gets one line for each request, and so counts over workers that were killed.
    """

    def __init__(
        self, name: str, answers: Sequence[Answer], *, count_file: Path | None = None
    ) -> None:
        self._name = name
        self._answers = list(answers)
        self._count_file = count_file
        self.calls = 0
        """How many requests this object got."""

    @property
    def name(self) -> str:
        """The name that it was given."""
        return self._name

    async def complete(self, request: ModelRequest) -> Completion:
        """Return the answer for the turn of the request. Safe to repeat: the answer is the same.

        Raises:
            ModelRejected: The script has no answer for this turn.
        """
        turn = sum(message.role == "assistant" for message in request.messages)
        self._count(turn)
        if turn >= len(self._answers):
            raise ModelRejected(
                f"the script of {self._name} has {len(self._answers)} answers; "
                f"number {turn + 1} was asked for"
            )
        answer = self._answers[turn]
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, Completion) else answer(request)

    def _count(self, turn: int) -> None:
        self.calls += 1
        if self._count_file is not None:
            with self._count_file.open("a") as file:
                file.write(f"{turn}\n")


def say(text: str, *, finish_reason: FinishReason = "stop") -> Completion:
    """Return an answer without calls."""
    return Completion(text=text, finish_reason=finish_reason)


def call(
    *calls: tuple[str, Mapping[str, Any] | str],
    text: str = "",
    ids: Sequence[str] | None = None,
    finish_reason: FinishReason = "tool_calls",
) -> Completion:
    """Return an answer that calls tools.

    Args:
        *calls: Name and arguments of each; a string is taken as the raw JSON text.
        text: The text beside the calls.
        ids: The calls' ids, ``call_1``, ``call_2``, … by default.
        finish_reason: Why the model stopped.
    """
    chosen = ids if ids is not None else [f"call_{index + 1}" for index in range(len(calls))]
    return Completion(
        text=text,
        calls=[
            ToolCall(
                id=call_id,
                name=name,
                arguments=arguments if isinstance(arguments, str) else dumps(dict(arguments)),
            )
            for call_id, (name, arguments) in zip(chosen, calls, strict=True)
        ],
        finish_reason=finish_reason,
    )
