"""What is wrong with the data directory, when SQLite refuses: damaged, full, read-only, or busy.

Told by SQLite's own error codes. Knows nothing about who asked.
"""

from __future__ import annotations

import errno
import sqlite3

from kb.errors import KernloreError, StoreError, StoreFull, Unavailable

RESTORE = (
    "Stop the service and make a new data directory from a backup: `kernlore restore FILE"
    " --data-dir NEW`. Without a backup, start with another --data-dir and ingest the documents"
    " again: the uploaded files are whole, under the folder blobs."
)
FREE = (
    "Free some space on the disk of the data directory. Reading goes on by itself then; retry what"
    " failed (`kernlore jobs retry JOB`), or send it again."
)
_FULL_ERRNO = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def store_fault(error: BaseException) -> KernloreError | None:
    """The error to show in place of one of SQLite, SQLAlchemy or the file system; None where the
    store is not at fault.
    """
    if isinstance(error, StoreError):
        return error
    if isinstance(error, OSError):
        return full(str(error.strerror)) if error.errno in _FULL_ERRNO else None
    origin = getattr(error, "orig", error)  # of SQLAlchemy's DBAPIError
    if not isinstance(origin, sqlite3.Error):
        return None
    code = getattr(origin, "sqlite_errorname", "")
    if code.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return damaged(str(origin))
    if code in ("SQLITE_FULL", "SQLITE_IOERR_WRITE", "SQLITE_IOERR_SHMSIZE"):
        return full(str(origin))
    if code.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN")):
        return StoreError(
            f"the data directory cannot be written to ({origin})",
            hint="Check its owner and mode, and that its disk is not mounted read-only.",
        )
    if str(origin).startswith("no such table: lexical_"):
        return StoreError("the lexical index is missing", hint="Run `kernlore reindex`.")
    if code.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return Unavailable("the catalog is busy with other writers", hint="Repeat the request.")
    return None


def damaged(reason: str) -> StoreError:
    """The refusal of a catalog whose pages are not what SQLite wrote."""
    return StoreError(f"the catalog is damaged: {reason}", hint=RESTORE)


def full(reason: str) -> StoreFull:
    """The refusal to write where there is no space."""
    return StoreFull(f"the data directory cannot be written to: {reason}", hint=FREE)
