"""What an exception means: only real signs decide, and a number in prose is none."""

from __future__ import annotations

import urllib.error
from datetime import timedelta
from email.message import Message
from types import SimpleNamespace
from typing import Any

import httpx
import psycopg
import pytest
import sqlalchemy.exc
from psycopg_pool import PoolTimeout

from commitline.activities.app.contained_error import ContainedError
from commitline.activities.app.tool_failure import FailureKind, ToolFailure, classify, retry_after
from commitline.errors import (
    ModelUnavailable,
    NodeTimeout,
    NotAttempted,
    StillInProgress,
    ToolRefused,
    ToolTimeout,
)


class Plain(Exception):
    """An exception that says nothing of itself."""


class Declared(Exception):
    """One that a tool names in `refused_on` or `retry_on`."""


def carrying(**attributes: Any) -> Exception:
    """Return an exception with attributes of its own."""
    error = Plain("it failed")
    vars(error).update(attributes)
    return error


def of_library(module: str, name: str, *above: str, base: type[Exception] = Exception) -> Exception:
    """Return an exception of a class that looks like a library's, below classes of it."""
    kind = base
    for one in (*above, name):
        kind = type(one, (kind,), {"__module__": module})
    return kind("it failed")


@pytest.mark.parametrize(
    "error",
    [
        ConnectionRefusedError("no"),
        ConnectionResetError("cut"),
        BrokenPipeError("cut"),
        TimeoutError(),
        ToolTimeout("no answer within 5 s"),
    ],
)
def test_connection_errors_and_time_outs_are_worth_another_try(error: Exception) -> None:
    assert classify(error) is FailureKind.TRANSIENT


@pytest.mark.parametrize(
    "error",
    [
        ValueError("status 503 Service Unavailable"),
        RuntimeError("HTTP 429: connection timed out"),
        Plain("ConnectionResetError"),
        Plain(503),
        OSError("disk full"),
        FileNotFoundError("503"),
        NodeTimeout("no time"),
        ModelUnavailable("overloaded"),
        KeyError("status_code"),
    ],
)
def test_what_a_text_or_an_argument_says_decides_nothing(error: Exception) -> None:
    assert classify(error) is FailureKind.OTHER


@pytest.mark.parametrize("attribute", ["status_code", "status", "code"])
@pytest.mark.parametrize("on", ["the exception", "its response"])
@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (408, FailureKind.TRANSIENT),
        (409, FailureKind.TRANSIENT),
        (429, FailureKind.TRANSIENT),
        (500, FailureKind.TRANSIENT),
        (503, FailureKind.TRANSIENT),
        (599, FailureKind.TRANSIENT),
        (400, FailureKind.OTHER),
        (404, FailureKind.OTHER),
        (422, FailureKind.OTHER),
    ],
)
def test_a_status_in_an_attribute_decides(
    attribute: str, on: str, status: int, kind: FailureKind
) -> None:
    signs = {attribute: status}
    error = carrying(**signs)
    if on == "its response":
        error = carrying(response=SimpleNamespace(**signs))

    assert classify(error) is kind


@pytest.mark.parametrize("status", [99, 200, 399, 600, 1503, -503, True, 503.0, "503", None, [503]])
def test_an_implausible_status_is_none(status: Any) -> None:
    assert classify(carrying(status_code=status)) is FailureKind.OTHER
    assert classify(carrying(response=SimpleNamespace(status=status))) is FailureKind.OTHER


def test_an_implausible_status_does_not_hide_a_plausible_one() -> None:
    gone = carrying(code=7, response=SimpleNamespace(status_code=503))
    grpc = carrying(status_code=14, status=True, code=429)

    assert classify(gone) is FailureKind.TRANSIENT
    assert classify(grpc) is FailureKind.TRANSIENT


def test_a_status_outweighs_the_class_that_carries_it() -> None:
    error = ConnectionError("HTTP 403")
    vars(error)["status_code"] = 403

    assert classify(error) is FailureKind.OTHER


def test_urllib_is_read_by_its_reason_and_its_code() -> None:
    def http_error(code: int) -> Exception:
        error = urllib.error.HTTPError("http://shop", code, "said", Message(), None)
        error.close()
        return error

    assert classify(urllib.error.URLError(ConnectionRefusedError())) is FailureKind.TRANSIENT
    assert classify(urllib.error.URLError(TimeoutError())) is FailureKind.TRANSIENT
    assert classify(urllib.error.URLError("ConnectionRefusedError")) is FailureKind.OTHER
    assert classify(urllib.error.URLError(ValueError("503"))) is FailureKind.OTHER
    assert classify(http_error(503)) is FailureKind.TRANSIENT
    assert classify(http_error(404)) is FailureKind.OTHER


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (
            of_library("httpx", "ConnectError", "TransportError", "NetworkError"),
            FailureKind.TRANSIENT,
        ),
        (of_library("httpx", "ReadTimeout", "TransportError"), FailureKind.TRANSIENT),
        (of_library("httpx", "InvalidURL"), FailureKind.OTHER),
        (of_library("httpx._exceptions", "TransportError"), FailureKind.TRANSIENT),
        (of_library("requests.exceptions", "ConnectionError", base=OSError), FailureKind.TRANSIENT),
        (
            of_library("requests.exceptions", "ReadTimeout", "Timeout", base=OSError),
            FailureKind.TRANSIENT,
        ),
        (of_library("requests.exceptions", "MissingSchema", base=ValueError), FailureKind.OTHER),
        (of_library("requests.exceptions", "RequestException", base=OSError), FailureKind.OTHER),
        (
            of_library(
                "aiohttp.client_exceptions", "ClientConnectorError", "ClientConnectionError"
            ),
            FailureKind.TRANSIENT,
        ),
        (of_library("aiohttp.client_exceptions", "ClientPayloadError"), FailureKind.TRANSIENT),
        (of_library("aiohttp.client_exceptions", "InvalidURL", "ClientError"), FailureKind.OTHER),
        (of_library("openai", "APITimeoutError", "APIConnectionError"), FailureKind.TRANSIENT),
        (of_library("elastic_transport", "ConnectionTimeout"), FailureKind.TRANSIENT),
        (
            of_library("pymongo.errors", "AutoReconnect", "ConnectionFailure"),
            FailureKind.TRANSIENT,
        ),
        (of_library("pymongo.errors", "DuplicateKeyError", "WriteError"), FailureKind.OTHER),
        (of_library("somebody.httpx", "TransportError"), FailureKind.OTHER),
        (of_library("httpx_extras", "TransportError"), FailureKind.OTHER),
    ],
    ids=lambda value: f"{type(value).__module__}.{type(value).__name__}",
)
def test_the_well_known_clients_are_told_by_package_and_class(
    error: Exception, kind: FailureKind
) -> None:
    assert classify(error) is kind


def test_the_real_clients_errors_are_recognised() -> None:
    assert classify(httpx.ConnectError("refused")) is FailureKind.TRANSIENT
    assert classify(httpx.ReadTimeout("late")) is FailureKind.TRANSIENT
    assert classify(httpx.InvalidURL("503")) is FailureKind.OTHER
    for status, kind in ((503, FailureKind.TRANSIENT), (404, FailureKind.OTHER)):
        request = httpx.Request("GET", "http://shop")
        answer = httpx.Response(status, request=request)
        error = httpx.HTTPStatusError("no", request=request, response=answer)
        assert classify(error) is kind


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (psycopg.OperationalError("connection refused"), FailureKind.TRANSIENT),
        (psycopg.errors.ConnectionTimeout(), FailureKind.TRANSIENT),
        (psycopg.errors.AdminShutdown(), FailureKind.TRANSIENT),
        (psycopg.errors.DeadlockDetected(), FailureKind.TRANSIENT),
        (psycopg.errors.UniqueViolation(), FailureKind.OTHER),
        (psycopg.errors.DiskFull(), FailureKind.TRANSIENT),
        (psycopg.errors.InvalidPassword(), FailureKind.OTHER),
        (psycopg.InterfaceError("the connection is closed"), FailureKind.OTHER),
        (PoolTimeout("no connection"), FailureKind.TRANSIENT),
        (sqlalchemy.exc.TimeoutError("no connection"), FailureKind.TRANSIENT),
        (carrying(sqlstate="08003"), FailureKind.TRANSIENT),
        (carrying(pgcode="23505"), FailureKind.OTHER),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_database_is_read_by_its_sqlstate_or_by_the_lost_connection(
    error: Exception, kind: FailureKind
) -> None:
    assert classify(error) is kind
    assert classify(sqlalchemy.exc.DBAPIError("select 1", {}, error)) is kind


def test_a_response_with_a_plain_client_error_is_read_by_its_status() -> None:
    error = of_library("requests.exceptions", "HTTPError", base=OSError)
    vars(error)["response"] = SimpleNamespace(status_code=502)

    assert classify(error) is FailureKind.TRANSIENT


def test_a_tools_own_signals_come_first() -> None:
    everything = (Exception,)

    assert classify(ToolRefused("no"), retry_on=everything) is FailureKind.REFUSED
    assert classify(NotAttempted("no connection"), retry_on=()) is FailureKind.NOT_ATTEMPTED
    assert classify(StillInProgress("409"), retry_on=()) is FailureKind.IN_PROGRESS


def test_what_a_tool_declares_as_refused_is_refused_with_its_subclasses() -> None:
    class Below(Declared):
        pass

    assert classify(Declared(), refused_on=(Declared,)) is FailureKind.REFUSED
    assert classify(Below(), refused_on=(Declared,)) is FailureKind.REFUSED
    assert classify(Plain(), refused_on=(Declared,)) is FailureKind.OTHER
    assert classify(Declared(), refused_on=(Declared,), retry_on=(Declared,)) is FailureKind.REFUSED
    assert classify(ConnectionResetError(), refused_on=(OSError,)) is FailureKind.REFUSED


def test_retry_on_takes_the_place_of_the_default() -> None:
    unavailable = carrying(status_code=503)

    assert classify(Declared(), retry_on=(Declared,)) is FailureKind.TRANSIENT
    assert classify(ConnectionResetError(), retry_on=(Declared,)) is FailureKind.OTHER
    assert classify(unavailable, retry_on=(Declared,)) is FailureKind.OTHER
    assert classify(carrying(status_code=404), retry_on=(Plain,)) is FailureKind.TRANSIENT


@pytest.mark.parametrize(
    "error", [ConnectionResetError(), TimeoutError(), ToolTimeout("late"), carrying(status=503)]
)
def test_an_empty_retry_on_repeats_nothing(error: Exception) -> None:
    assert classify(error, retry_on=()) is FailureKind.OTHER


@pytest.mark.parametrize(
    ("asked", "seconds"), [("7", 7), ("0", 0), (" 2.5 ", 2.5), (3, 3), ("86400", 86400)]
)
def test_a_retry_after_header_is_read_in_seconds(asked: Any, seconds: float) -> None:
    headers = {"retry-after": asked}

    assert retry_after(carrying(headers=headers)) == timedelta(seconds=seconds)
    assert retry_after(carrying(response=SimpleNamespace(headers=headers))) == timedelta(
        seconds=seconds
    )


@pytest.mark.parametrize(
    "asked",
    ["soon", "Wed, 21 Oct 2020 07:28:00 GMT", "-1", "nan", "-inf", "", None, [7]],
)
def test_a_retry_after_header_that_is_no_sane_number_is_none(asked: Any) -> None:
    assert retry_after(carrying(headers={"retry-after": asked})) is None


@pytest.mark.parametrize("headers", [None, 7, [], "retry-after", {}])
def test_headers_that_are_none_break_nothing(headers: Any) -> None:
    assert retry_after(carrying(headers=headers)) is None
    assert retry_after(carrying(response=headers)) is None


@pytest.mark.parametrize("asked", ["86401", timedelta.max, "Wed, 21 Oct 2099 07:28:00 GMT"])
def test_nobody_is_waited_for_longer_than_a_day(asked: Any) -> None:
    assert retry_after(carrying(retry_after=asked)) == timedelta(days=1)


def test_an_exception_whose_attributes_raise_says_nothing() -> None:
    class Hostile(Exception):
        @property
        def status_code(self) -> int:
            raise RuntimeError("not now")

    failure = ToolFailure.of(Hostile("it failed"), refused_on=(), retry_on=None)

    assert (failure.kind, failure.message) == (FailureKind.OTHER, "it failed")


def test_an_attribute_says_it_as_a_duration() -> None:
    asked = timedelta(seconds=9)

    assert retry_after(StillInProgress("409", retry_after=asked)) == asked
    assert retry_after(StillInProgress("409")) is None
    assert retry_after(carrying(retry_after="9")) == asked
    assert retry_after(carrying(retry_after=9)) == asked
    assert retry_after(carrying(retry_after=True)) is None
    assert retry_after(carrying(retry_after=asked, headers={"retry-after": "1"})) == asked


def test_a_failure_is_told_by_class_and_text_and_is_capped() -> None:
    failure = ToolFailure.of(ValueError("x" * 5_000), refused_on=(), retry_on=None)

    assert (failure.kind, failure.type) == (FailureKind.OTHER, "ValueError")
    assert failure.text.startswith("ValueError: xxx")
    assert len(failure.text) <= 1_000


def test_a_failure_sees_what_is_contained() -> None:
    failure = ToolFailure.of(ContainedError(SystemExit(3)), refused_on=(SystemExit,), retry_on=None)

    assert (failure.kind, failure.type) == (FailureKind.REFUSED, "SystemExit")


def test_a_failure_whose_text_cannot_be_made_is_a_failure_all_the_same() -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    failure = ToolFailure.of(Broken(), refused_on=(), retry_on=None)

    assert (failure.kind, failure.type) == (FailureKind.OTHER, "Broken")


def test_an_error_without_effect_is_made_of_what_was_raised() -> None:
    outcome = ToolFailure.of(ToolRefused("no money"), refused_on=(), retry_on=None).without_effect

    assert (outcome.kind, outcome.effect_possible) == ("error", False)
    assert outcome.value["type"] == "ToolRefused"
    assert "no money" in outcome.value["message"]


# --- groups, and clients that carry their status elsewhere --------------------------------


def group(*members: BaseException) -> BaseExceptionGroup:
    """Return what a task group raises."""
    return BaseExceptionGroup("unhandled errors in a TaskGroup", members)


@pytest.mark.parametrize(
    ("members", "kind"),
    [
        ([httpx.ConnectError("no")], FailureKind.TRANSIENT),
        ([httpx.ConnectError("no"), TimeoutError()], FailureKind.TRANSIENT),
        ([group(ConnectionResetError("cut"))], FailureKind.TRANSIENT),
        ([ToolRefused("declined")], FailureKind.REFUSED),
        ([Declared("declined"), ToolRefused("declined")], FailureKind.REFUSED),
        ([NotAttempted("no line")], FailureKind.NOT_ATTEMPTED),
        ([StillInProgress("409")], FailureKind.IN_PROGRESS),
        ([ToolRefused("declined"), TimeoutError()], FailureKind.OTHER),
        ([NotAttempted("no line"), Plain("it failed")], FailureKind.OTHER),
    ],
)
def test_a_group_whose_members_agree_means_what_they_mean(
    members: list[BaseException], kind: FailureKind
) -> None:
    failure = ToolFailure.of(group(*members), refused_on=(Declared,), retry_on=None)

    assert failure.kind is kind


def test_a_group_is_told_by_its_first_member_and_waits_as_that_one_wants() -> None:
    busy = carrying(status_code=429, retry_after=7)

    failure = ToolFailure.of(group(busy, busy), refused_on=(), retry_on=None)

    assert (failure.type, failure.message) == ("Plain", "it failed")
    assert failure.retry_after == timedelta(seconds=7)


def test_the_members_of_a_group_are_tried_again_only_as_the_tool_says() -> None:
    def kind(*classes: type[BaseException]) -> FailureKind:
        return classify(group(Declared("again"), Declared("again")), retry_on=classes)

    assert kind(Declared) is FailureKind.TRANSIENT
    assert kind(BaseExceptionGroup) is FailureKind.TRANSIENT
    assert kind() is FailureKind.OTHER


@pytest.mark.parametrize("status", [429, 409, 503, 400])
@pytest.mark.parametrize(
    "carries",
    [
        lambda status: {"http_status": status},  # stripe
        lambda status: {"response": {"ResponseMetadata": {"HTTPStatusCode": status}}},  # botocore
    ],
    ids=["stripe", "botocore"],
)
def test_a_status_is_found_where_stripe_and_botocore_put_it(carries: Any, status: int) -> None:
    retried = classify(carrying(**carries(status))) is FailureKind.TRANSIENT

    assert retried == (status != 400)


@pytest.mark.parametrize(
    "error",
    [
        of_library("stripe._error", "APIConnectionError", "StripeError"),
        of_library("redis.exceptions", "ConnectionError", "RedisError"),
        of_library("redis.exceptions", "BusyLoadingError", "ConnectionError"),
        of_library("redis.exceptions", "TimeoutError", "RedisError"),
        of_library("azure.core.exceptions", "ServiceRequestError", "AzureError"),
        of_library("azure.core.exceptions", "ServiceResponseTimeoutError", "ServiceResponseError"),
    ],
    ids=lambda error: type(error).__module__,
)
def test_connections_that_other_clients_lose_are_worth_another_try(error: Exception) -> None:
    assert classify(error) is FailureKind.TRANSIENT


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("UNAVAILABLE", FailureKind.TRANSIENT),
        ("DEADLINE_EXCEEDED", FailureKind.TRANSIENT),
        ("INVALID_ARGUMENT", FailureKind.OTHER),
        ("ALREADY_EXISTS", FailureKind.OTHER),
    ],
)
def test_a_grpc_status_is_what_code_returns(code: str, kind: FailureKind) -> None:
    error = of_library("grpc.aio._call", "AioRpcError", "RpcError")
    type(error).__mro__[1].__module__ = "grpc"
    vars(error)["code"] = lambda: SimpleNamespace(name=code)

    assert classify(error) is kind
