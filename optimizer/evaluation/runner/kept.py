"""Files that one interpreter has built and later ones of the same user load, in a folder that no
candidate may write to. It is not known here what they are. Standard library only.

A file counts only with the digest that was written down when it was finished, after everything that
was being built had ended. Candidates read the folder, and can keep a lock on what they can read.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

DIGESTS = "digests.json"  # of the files that were finished
LOCK = "lock"
LOCK_SECONDS = 60.0  # several runs of g++
KEPT_FOLDERS = 3  # such as those of two environments, and of what was before an update


@contextlib.contextmanager
def kept_files(parent: Path, decided_by: str) -> Iterator[Path | None]:
    """The folder for what this text decides, in which nothing but finished, unchanged files lie;
    what the context adds to it stays if it ends well. None where the parent folder belongs to
    somebody else, or others may write to it, or it is locked for long.
    """
    folder = own_folder(parent)
    with contextlib.ExitStack() as stack:
        if folder is None or not stack.enter_context(_locked(folder / LOCK)):
            yield None
            return
        own = folder / hashlib.sha256(decided_by.encode()).hexdigest()[:16]
        own.mkdir(mode=0o700, exist_ok=True)
        os.utime(own)
        _remove_oldest(folder)
        known = _remove_others(own)
        yield own
        present = {str(path.relative_to(own)): path for path in _files(own)}
        if present.keys() != known.keys():
            text = json.dumps({n: known.get(n) or digest(p) for n, p in present.items()})
            written = own / f"{DIGESTS}.new"
            written.write_text(text, encoding="utf-8")
            written.replace(own / DIGESTS)


def own_folder(path: Path) -> Path | None:
    """The folder, made where needed; None where others may write to it, or this process may not."""
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        status = path.lstat()
    except OSError:
        return None
    own = path.is_dir() and not path.is_symlink() and status.st_uid == os.getuid()
    return path if own and not status.st_mode & 0o022 and os.access(path, os.W_OK) else None


def digest(path: Path) -> str:
    """Of what is in a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Whether nobody else has the lock now, or gave it back in time."""
    until = time.monotonic() + LOCK_SECONDS
    with path.open("a") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > until:
                    yield False
                    return
                time.sleep(0.05)
            else:
                yield True
                return


def _remove_oldest(folder: Path) -> None:
    """Remove all but the folders that were used last. A file that somebody still has open stays
    until it is closed; whoever looks it up by name does without."""
    folders = sorted((p for p in folder.iterdir() if p.is_dir()), key=_modified, reverse=True)
    for old in folders[KEPT_FOLDERS:]:
        shutil.rmtree(old, ignore_errors=True)


def _modified(path: Path) -> int:
    return path.stat().st_mtime_ns


def _remove_others(folder: Path) -> dict[str, str]:
    """Remove what is not as it was when it was finished: half a library would be a kind of
    instructions that this machine lacks. Also locks, which a candidate may hold. The digests of
    what stays."""
    try:
        written = json.loads((folder / DIGESTS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        written = {}
    stays = {}
    for path in _files(folder, locks=True):
        name = str(path.relative_to(folder))
        if not path.is_symlink() and name in written and digest(path) == written[name]:
            stays[name] = written[name]
        else:
            path.unlink()
    return stays


def _files(folder: Path, locks: bool = False) -> list[Path]:
    """What was built there. Locks of Inductor are empty and come and go."""
    return [
        path
        for path in folder.rglob("*")
        if (path.is_file() or path.is_symlink())
        and not path.name.startswith(DIGESTS)
        and (locks or path.suffix != ".lock")
    ]
