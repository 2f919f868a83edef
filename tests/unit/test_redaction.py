"""What is taken out of the text of an exception, and what is not."""

from __future__ import annotations

import pytest

from commitline.activities.app.tool_failure import FailureKind, ToolFailure
from commitline.activities.contract.activity_failure import as_failure
from commitline.activities.runner.isolated_call import read_answer, write_answer
from commitline.errors import ModelRejected
from commitline.ledger.result_codec import MAX_ERROR_TEXT, error_text
from commitline.redaction import GONE, redact, redacting

SECRETS = [
    ("Incorrect API key provided: sk-proj-abc123DEF456ghi. You can", "sk-proj-abc123DEF456ghi"),
    ("key sk_live_4eC39HqLyjWDarjtT1zdp7dc is revoked", "4eC39HqLyjWDarjtT1zdp7dc"),
    ("api_key=hunter2", "hunter2"),
    ("{'openai-api-key': 'hunter two'}", "hunter two"),
    ('{"password": "hunter2", "x": 1}', "hunter2"),
    ("Authorization: Bearer abcDEF123456.~x", "abcDEF123456"),
    ("card 4242 4242 4242 4242 was declined", "4242 4242"),
    ("card=4242424242424242.", "4242424242424242"),
    ("amex 3782-822463-10005", "822463"),
    ("cannot connect to postgresql+asyncpg://app:s3@cr3t@db/shop", "cr3t"),
    ("jwt eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl", "eyJzdWIi"),
]
HARMLESS = [
    "order 4242424242424241 was declined",  # not by Luhn
    "at 1700000000000 of run-263a08ba-a094-4d4a-b6f7-70cc1e28dcb6/01a22e5e-e308:0.0",
    "cl_re3zewex65vmduanji6sblt4ifvvfzj7hzgmq7aq was used before",
    "unexpected token: } and max_tokens=5",
    "the password is wrong",
    "https://api.example/v1?x=1 answered 401",
]


@pytest.mark.parametrize(("text", "secret"), SECRETS)
def test_a_well_known_shape_is_taken_out(text: str, secret: str) -> None:
    assert secret not in redact(text)
    assert GONE in redact(text)
    assert redact(redact(text)) == redact(text)


@pytest.mark.parametrize("text", HARMLESS)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact(text) == text


def test_an_application_takes_out_more_and_its_fault_leaves_nothing() -> None:
    def no_names(text: str) -> str:
        return text.replace("Ada", "[name]")

    def broken(text: str) -> str:
        raise ValueError(text)

    with redacting(no_names):
        assert error_text(ValueError("Ada: api_key=hunter2")) == f"[name]: api_key={GONE}"
        with redacting(broken):
            assert redact("Ada") == GONE
    assert redact("Ada") == "Ada"


def test_a_key_that_the_cap_cuts_is_taken_out_before() -> None:
    key = "sk-" + "a" * 60

    assert "sk-a" not in error_text(ValueError("x" * (MAX_ERROR_TEXT - 10) + " " + key))


def test_it_is_taken_out_wherever_an_exceptions_text_goes() -> None:
    raised = ToolFailure.of(ValueError("api_key=hunter2"), refused_on=(), retry_on=None)
    elsewhere = ToolFailure(FailureKind.OTHER, "ValueError", "api_key=hunter2")
    rejected = as_failure(ModelRejected("401 for sk-proj-abc123DEF456ghi"))

    assert "hunter2" not in raised.text
    answered = read_answer(write_answer(elsewhere))
    assert isinstance(answered, ToolFailure)
    assert "hunter2" not in answered.text
    assert "sk-proj" not in repr((rejected.message, rejected.details))
