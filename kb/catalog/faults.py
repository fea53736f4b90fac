"""What is wrong with the data directory, when SQLite refuses: damaged, full, read-only, or busy;
and with a server, when PostgreSQL does.

Told by the databases' own error codes. Knows nothing about who asked.
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
SERVER = (
    "Start the PostgreSQL server that KERNLORE_CATALOG names, or see to what it says; Kernlore"
    " connects again by itself. Repeat the request then."
)
SERVER_FULL = "Free some space on the disk of the PostgreSQL server; repeat the request then."
SERVER_DAMAGED = "Restore the database from a dump (pg_dump), and read PostgreSQL's own log."
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
    if isinstance(origin, sqlite3.Error):
        return _of_sqlite(origin)
    return _of_postgresql(origin) if type(origin).__module__.startswith("psycopg") else None


def _of_sqlite(origin: sqlite3.Error) -> KernloreError | None:
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


def _of_postgresql(origin: BaseException) -> KernloreError | None:
    """By SQLSTATE (https://www.postgresql.org/docs/current/errcodes-appendix.html); a connection
    that is lost has none.
    """
    code = getattr(origin, "sqlstate", None)
    text = str(origin).strip().partition("\n")[0]
    if code is None:
        if type(origin).__name__ != "OperationalError":
            return None
        return Unavailable(f"the catalog's server cannot be reached: {text}", hint=SERVER)
    if code in ("53100", "53200"):  # no space, no memory
        return StoreFull(f"the catalog's server has no space: {text}", hint=SERVER_FULL)
    if code.startswith(("08", "57P", "53")):  # connections, shut-down, too many of something
        return Unavailable(f"the catalog's server does not answer: {text}", hint=SERVER)
    if code in ("55P03", "40001", "40P01", "57014"):  # waited too long, or for each other
        return Unavailable("the catalog is busy with other writers", hint="Repeat the request.")
    if code.startswith("XX"):
        return StoreError(f"the catalog is damaged: {text}", hint=SERVER_DAMAGED)
    if code in ("25006", "42501"):
        return StoreError(
            f"the catalog cannot be written to ({text})",
            hint="Check that the role in KERNLORE_CATALOG owns the tables, and that the server is"
            " no standby.",
        )
    if code == "42P01" and "lexical_" in text:
        return StoreError("the lexical index is missing", hint="Run `kernlore reindex`.")
    return None


def damaged(reason: str) -> StoreError:
    """The refusal of a catalog whose pages are not what SQLite wrote."""
    return StoreError(f"the catalog is damaged: {reason}", hint=RESTORE)


def full(reason: str) -> StoreFull:
    """The refusal to write where there is no space."""
    return StoreFull(f"the data directory cannot be written to: {reason}", hint=FREE)
