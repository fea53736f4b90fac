"""Space that is kept for the moment when the disk is full: a file that is given up then, so that
it can still be written down how the work at hand ended.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from kb.private import private_file

NAME = "reserve"  # of the file in a data directory
_BYTES = 4 << 20
NEEDED_BYTES = 16 << 20  # free, to read a document


def keep(data_dir: Path) -> None:
    """Put the space aside, unless it is or there is none."""
    path = data_dir / NAME
    if path.exists() or not has_room(data_dir):
        return
    # Not `posix_fallocate`, which some file systems grant without setting anything aside.
    private_file(path)
    with path.open("r+b") as file:
        file.write(os.urandom(_BYTES))


def give(data_dir: Path) -> None:
    """Free the space."""
    (data_dir / NAME).unlink(missing_ok=True)


def has_room(data_dir: Path) -> bool:
    """Whether there is space to read a document."""
    return shutil.disk_usage(data_dir).free >= NEEDED_BYTES
