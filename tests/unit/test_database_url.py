"""The address of a database: what cannot be read is refused, and nothing of it is repeated."""

from __future__ import annotations

import json
import logging

import pytest
import structlog

from commitline.config import Settings
from commitline.database_url import check_database_url
from commitline.errors import ConfigurationError
from commitline.ledger import check_schema, ledger_pool, migrate
from commitline.log_output import configure_logging

UNREADABLE = [
    "postgresql+asyncpg://app:s3cr3t@db/shop",
    "mysql://app:s3cr3t@db/shop",
    "postgresql://app:s3%cr3t@db/shop",
    "postgresql://app:s3cr3t cr3t@db/shop?x= y",
    "postgresql://app:half@s3cr3t@db/shop",
    "postgresql://app:s3cr3t/half@db/shop",
    "host=db password=half s3cr3t",
    "s3cr3t",
]


@pytest.mark.parametrize("url", UNREADABLE)
async def test_an_address_that_cannot_be_read_is_repeated_nowhere(url: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        check_database_url(url)
    with pytest.raises(ConfigurationError) as loaded:
        Settings.load({"COMMITLINE_DATABASE_URL": url})
    with pytest.raises(ConfigurationError) as notified:
        Settings.load({"COMMITLINE_DATABASE_URL": "dbname=a", "COMMITLINE_NOTIFY_URL": url})
    with pytest.raises(ConfigurationError) as pooled:
        ledger_pool(url)
    for reached in (check_schema, migrate):
        with pytest.raises(ConfigurationError):
            await reached(url)

    for one in (refused, loaded, notified, pooled):
        assert not {"s3cr3t", "cr3t", "half"} & set(str(one.value).replace("@", " ").split())
        assert "s3" not in str(one.value)
        assert one.value.__cause__ is None
        assert one.value.__context__ is None
    assert "COMMITLINE_DATABASE_URL: " in str(loaded.value)
    assert "COMMITLINE_NOTIFY_URL: " in str(notified.value)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "postgres://app:s3%25%40%20@db:5432/shop?sslmode=disable",
        "postgresql://app@one:1,two:2/shop",
        "postgresql:///shop?host=%2Ftmp",
        "host=/tmp dbname=shop password='a b'",
    ],
)
def test_an_address_that_libpq_reads_is_read(url: str) -> None:
    check_database_url(url)


def test_settings_show_no_password() -> None:
    settings = Settings(database_url="postgresql://app:s3cr3t@db/x", notify_url="password=s3cr3t")

    assert "s3cr3t" not in f"{settings!r} {settings}"


def test_a_traceback_in_the_log_shows_no_variables(capsys: pytest.CaptureFixture[str]) -> None:
    before = structlog.get_config()
    try:
        configure_logging(level=logging.INFO)
        try:
            password = "s3cr" + "3t"
            raise ValueError(len(password))
        except ValueError:
            structlog.get_logger("commitline").exception("it.failed")
        logged = capsys.readouterr().err
    finally:
        structlog.configure(**before)

    assert json.loads(logged)["exception"][0]["exc_type"] == "ValueError"
    assert "s3cr3t" not in logged
