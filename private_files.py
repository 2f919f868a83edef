"""Files of one user: made for nobody else, and believed only if nobody else can have written them.

A folder of ours names servers, and who connects to a server sends it a password.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from .errors import ConfigurationError


def private_folder(folder: Path) -> None:
    """Make a folder that only this user may enter; close one that is there.

    Raises:
        ConfigurationError: It is another user's, or a link.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise ConfigurationError(f"{folder} is no folder of this user: nothing is kept there")
    folder.chmod(0o700)


def private_opener(path: str, flags: int) -> int:
    """Open a file for `open`; a new one only this user may read."""
    return os.open(path, flags, 0o600)


def write_private(path: Path, text: str) -> None:
    """Write a file that only this user may read."""
    with open(path, "w", encoding="utf-8", opener=private_opener) as file:
        file.write(text)


def read_trusted(path: Path) -> str | None:
    """Return the text of a file that only this user, or root, can have written; else None.

    The same holds for the folder in which it lies. Neither may be a link.
    """
    try:
        if not _is_ours(path.parent.lstat(), stat.S_IFDIR):
            return None
        opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with open(opened, encoding="utf-8") as file:
        return file.read() if _is_ours(os.fstat(opened), stat.S_IFREG) else None


def _is_ours(found: os.stat_result, kind: int) -> bool:
    ours = found.st_uid in (os.geteuid(), 0)
    writable = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_IFMT(found.st_mode) == kind and ours and not writable
