"""Settings: what a slip in the environment does."""

from __future__ import annotations

from pathlib import Path

import pytest

from commitline.activities.app.load import load_app
from commitline.config import Settings
from commitline.errors import ConfigurationError

URL = "postgresql://localhost/ledger"


def test_a_variable_of_ours_that_nothing_reads_is_an_error_that_names_what_may_be_meant() -> None:
    slip = {"COMMITLINE_DATABASE_URL": URL, "COMMITLINE_POOLSIZE": "3"}

    with pytest.raises(ConfigurationError, match=r"COMMITLINE_POOLSIZE.*COMMITLINE_POOL_SIZE"):
        Settings.load(slip)
    with pytest.raises(
        ConfigurationError, match=r"COMMITLINE_WHATEVER: there is no such setting \["
    ):
        Settings.load({"COMMITLINE_WHATEVER": ""})


def test_what_others_than_the_settings_read_is_none() -> None:
    others = {
        "COMMITLINE_CRASH_AT": "after_effect",
        "COMMITLINE_VERSION": "local",
        "TEMPORAL_ADDRESS": "localhost:7233",
    }

    assert Settings.load({**others, "COMMITLINE_DATABASE_URL": URL}).database_url == URL


def test_a_newline_behind_a_value_as_a_file_leaves_it_does_not_count() -> None:
    read = Settings.load({"COMMITLINE_DATABASE_URL": f"{URL}\n", "COMMITLINE_POOL_SIZE": " 3\n"})

    assert (read.database_url, read.pool_size) == (URL, 3)


def test_an_app_that_is_no_python_is_a_message_with_file_and_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cut_off_app.py").write_text("from commitline import App\napp = App(\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    with pytest.raises(ConfigurationError, match=r"cut_off_app\.py, line 2: '\(' was never closed"):
        load_app("cut_off_app:app")
