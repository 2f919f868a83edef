"""Whose files are believed: addresses that another user planted lead nowhere."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from commitline.config import ADDRESSES_FILE, DATA_DIR, DevAddresses, Settings
from commitline.errors import ConfigurationError
from commitline.private_files import private_folder

ADDRESSES = DevAddresses("127.0.0.1:1", "", "postgresql://127.0.0.1:1/planted", os.getpid())


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """The folder `.commitline`, with addresses in it."""
    folder = tmp_path / DATA_DIR
    private_folder(folder)
    ADDRESSES.write(folder)
    return folder


def given_to_another(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() == 0:
        os.lchown(path, 4242, 4242)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 4242)


def test_what_is_ours_is_closed_and_is_found_from_below(written: Path) -> None:
    below = written.parent / "src" / "deep"
    below.mkdir(parents=True)

    assert written.stat().st_mode & 0o777 == 0o700
    assert (written / ADDRESSES_FILE).stat().st_mode & 0o777 == 0o600
    assert DevAddresses.find(below) == ADDRESSES


@pytest.mark.parametrize("planted", ["", ADDRESSES_FILE])
def test_addresses_of_another_user_are_not_used(
    written: Path, planted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_to_another(written / planted, monkeypatch)
    monkeypatch.chdir(written.parent)

    assert DevAddresses.find() is None
    assert Settings.load({}).database_url == ""


@pytest.mark.parametrize("planted", ["", ADDRESSES_FILE])
def test_addresses_that_others_may_write_are_not_used(written: Path, planted: str) -> None:
    (written / planted).chmod(0o777)

    assert DevAddresses.find(written.parent) is None


@pytest.mark.parametrize("planted", ["", ADDRESSES_FILE])
def test_addresses_behind_a_link_are_not_used(
    written: Path, planted: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "moved"
    (written / planted).rename(elsewhere)
    (written / planted).symlink_to(elsewhere)

    assert DevAddresses.find(written.parent) is None


def test_nothing_is_kept_in_a_folder_of_another_user(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_to_another(written, monkeypatch)

    with pytest.raises(ConfigurationError, match="no folder of this user"):
        private_folder(written)
