"""Files that no other user of this machine reads: manuals of unreleased chips, and what models were
asked, are among them. Knows nothing of what is in them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_OTHERS = 0o077


def private_folder(folder: Path) -> Path:
    """Create a folder and those above it, where they are missing, for this user alone. One that is
    there keeps its rights: it is the user's.
    """
    if not folder.is_dir():
        private_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def private_file(path: Path) -> None:
    """Create an empty file for this user alone, where it is missing. One that is there is not even
    opened: closing it would drop the locks that SQLite holds on it in this process.
    """
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


@contextmanager
def private_files() -> Iterator[None]:
    """Within it, whatever this process and its children create is for this user alone. It counts
    for all threads: for a process that writes nothing that is meant for others.
    """
    before = os.umask(_OTHERS)
    try:
        yield
    finally:
        os.umask(before)


def open_to_others(folder: Path) -> str | None:
    """What is wrong with the rights of a folder and what to do, where others may look into it."""
    if not folder.is_dir() or not (rights := folder.stat().st_mode) & _OTHERS:
        return None
    return (
        f"other users of this machine may look into {folder.absolute()} (its mode is"
        f" {rights & 0o777:o}); `chmod 700 {folder.absolute()}` closes it"
    )
