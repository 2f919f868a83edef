"""An error of ours comes through Temporal with its message, its code and its remedy."""

from __future__ import annotations

import dataclasses

import pytest
from temporalio.api.failure.v1 import Failure
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import DataConverter
from temporalio.exceptions import ApplicationError

from commitline.activities.contract.activity_failure import ErrorFields, as_failure, passed_on
from commitline.errors import (
    CommitlineError,
    LedgerUnavailable,
    PlanFailed,
    RunFailed,
    RunNotRunning,
)
from commitline.handles.temporal_failure import ended_badly
from commitline.ledger import UndoReport
from commitline.workflows.undo import with_report

CONVERTERS = [DataConverter.default, pydantic_data_converter]


async def travelled(failure: BaseException, converter: DataConverter) -> ApplicationError:
    """Return a failure as it comes out of Temporal."""
    carried = Failure()
    await converter.encode_failure(failure, carried)
    arrived = await converter.decode_failure(carried)
    assert isinstance(arrived, ApplicationError)
    return arrived


@pytest.mark.parametrize("converter", CONVERTERS)
async def test_message_code_and_remedy_arrive_apart_and_as_one_text(
    converter: DataConverter,
) -> None:
    error = PlanFailed("it says [CL999] itself. Twice: [CL510]")

    arrived = await travelled(as_failure(error), converter)

    assert ErrorFields.read(arrived) == ErrorFields(error.message, "CL510", error.remedy)
    assert arrived.message == str(error)
    assert str(ended_badly("r", arrived)) == str(error)


@pytest.mark.parametrize("converter", CONVERTERS)
@pytest.mark.parametrize(
    ("state", "remedy"),
    [
        ("partly compensated", "`commitline undo RUN` tries again what stands."),
        ("compensated", "What can be undone of it is undone."),
    ],
)
async def test_what_was_undone_changes_message_and_remedy_and_not_the_code(
    state: str, remedy: str, converter: DataConverter
) -> None:
    failure = await travelled(as_failure(PlanFailed("a step failed")), converter)
    report = UndoReport(state, [])  # type: ignore[arg-type]

    shown = ended_badly("r", await travelled(with_report(failure, report), converter))

    assert isinstance(shown, PlanFailed)
    assert shown.message == f"a step failed. The run is {state}: 0 undone"
    assert shown.remedy == remedy


def test_a_long_message_cuts_neither_code_nor_remedy() -> None:
    failure = as_failure(RunFailed("x" * 10_000))

    assert failure.message.endswith(f"… [{RunFailed.code}] {RunFailed.remedy}")
    assert len(failure.message) < 1_000


@pytest.mark.parametrize(
    ("error", "final"), [(RunFailed("no"), True), (LedgerUnavailable("away"), False)]
)
def test_it_is_tried_again_as_the_error_says(error: CommitlineError, final: bool) -> None:
    assert as_failure(error).non_retryable is final
    assert as_failure(error, final=not final).non_retryable is not final


def test_only_the_activity_s_own_failure_says_that_the_run_is_stopping() -> None:
    failure = as_failure(RunNotRunning("it stops", stopping=True))
    fields, later = ErrorFields.read(failure), ErrorFields.read(passed_on(failure, final=True))

    assert fields is not None
    assert fields.stopping
    assert later == dataclasses.replace(fields, stopping=False)


@pytest.mark.parametrize("details", [(), ("4821",), ({"message": "theirs"},), ({"a": 1},)])
def test_an_application_s_own_failure_carries_no_fields(details: tuple[object, ...]) -> None:
    theirs = ApplicationError("no such order", *details, type="NoSuchOrder")

    assert ErrorFields.read(theirs) is None
    assert ended_badly("r", theirs).message == "the run 'r' failed: NoSuchOrder: no such order"
