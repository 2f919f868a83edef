"""The header of a guarded call: what does not travel is what the guard finds by itself."""

from __future__ import annotations

from dataclasses import replace

from temporalio.common import RawValue

from commitline.activities.contract.action_header import (
    HEADER,
    ActionHeader,
    requested_digest,
)
from commitline.activities.contract.encoding import pack_text
from commitline.activities.contract.references import Reference, StoredInput
from commitline.identity import ActionKey, Position, RunKey

RUN = RunKey("support/1")


def read(header: ActionHeader, *args: RawValue) -> ActionHeader:
    """Return the header as the guard of an activity reads it whose id is 2.1."""
    headers = {HEADER: header.to_payload()}
    return ActionHeader.read(headers, activity="act", activity_id="2.1", args=args)


def test_the_position_of_a_call_is_its_activitys_id_unless_it_says_so() -> None:
    given = pack_text("{}")

    assert read(ActionHeader(RUN), given).position == "2.1"
    assert read(ActionHeader(RUN, Position("undo-2.1")), given).position == "undo-2.1"


def test_the_digest_is_of_the_arguments_as_they_arrive_unless_it_says_so() -> None:
    stored = StoredInput(Reference(["text"], "first"), ActionKey("support/1:0.0"))
    whole = ActionHeader(RUN, inputs=[stored])
    digests = [
        read(header, pack_text(text)).requested_digest
        for header, text in (
            (ActionHeader(RUN), '{"a":1,"b":2}'),
            (ActionHeader(RUN), '{"b": 2, "a": 1}'),
            (ActionHeader(RUN), '{"a":1,"b":3}'),
            (whole, '{"a":1,"b":2}'),
        )
    ]

    assert digests[0] == digests[1] == requested_digest([pack_text('{"a":1,"b":2}').payload])
    assert len(set(digests)) == 3
    told = replace(ActionHeader(RUN), requested_digest="as its row has it")
    assert read(told, pack_text("{}")).requested_digest == "as its row has it"


def test_what_is_as_usual_does_not_travel() -> None:
    header = ActionHeader(RUN, attempt_seconds=300.0, thread_version=4)

    assert header.to_payload().data == (
        b'{"run_key":"support/1","attempt_seconds":300.0,"thread_version":4}'
    )
    assert read(ActionHeader(RUN, unplanned="undo"), pack_text("{}")).purpose == "undo"
    assert read(header, pack_text("{}")).purpose == "forward"
