"""A catalog that is one SQLite file in the data directory, in WAL mode; any number of processes may
open it.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy import Connection, Engine, event

from kb.catalog.database import Database
from kb.catalog.faults import RESTORE, store_fault
from kb.errors import KernloreError, StoreError
from kb.private import private_file, private_folder

BUSY_TIMEOUT_MS = 15_000
LOG_TIMEOUT_MS = 1_000
IDLE_CONNECTIONS = 8  # kept open for the next who needs one
CACHE_KIB = 8 * 1024  # of pages, of each connection; the system has the file in its memory as well
NAME = "catalog.sqlite"


class SqliteFile(Database):
    """The file of this name in a folder, which is created for this user alone."""

    def __init__(self, path: Path) -> None:
        self.file: Path = path
        self.name = str(path)
        private_folder(path.parent)
        self.read_only = path.exists() and not os.access(path.parent, os.W_OK)
        if not self.read_only:
            _create_private(path)
        self._watching = threading.Lock()  # protects _watch
        self._watch: Any = None

    def engine(self) -> Engine:
        # A thread that needs a connection gets one: a bound here is an error for a request, and
        # threads are bounded where they are made.
        engine = sa.create_engine(
            f"sqlite:///{_unchanging(self.file)}&uri=true"
            if self.read_only
            else f"sqlite:///{self.file}",
            connect_args={"check_same_thread": False},
            pool_size=IDLE_CONNECTIONS,
            max_overflow=-1,
            pool_use_lifo=True,  # few connections are in use, and each has pages of its own
        )
        event.listen(engine, "connect", _prepare)
        return engine

    def begin_read(self, connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN")  # else every statement sees another catalog

    def begin_write(self, connection: Connection, rows_only: bool) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    def version(self, engine: Engine) -> int:
        with self._watching:
            if self._watch is None:  # a connection that never writes: its own changes do not count
                self._watch = engine.raw_connection()
                self._watch.detach()
            row = self._watch.cursor().execute("PRAGMA data_version").fetchone()
        return int(row[0])

    def check(self, engine: Engine, most_bytes: int | None) -> str:
        if most_bytes is not None and self.file.stat().st_size > most_bytes:
            return ""
        with engine.connect() as connection:
            return str(connection.exec_driver_sql("PRAGMA quick_check(1)").scalar())

    def empty_log(self, engine: Engine) -> bool:
        with engine.connect() as connection:
            connection.exec_driver_sql(f"PRAGMA busy_timeout={LOG_TIMEOUT_MS}")
            try:
                row = connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").one()
            finally:
                connection.exec_driver_sql(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
        return not row[0]

    def fault(self, error: Exception) -> KernloreError:
        origin = getattr(error, "orig", error)
        fault = store_fault(error) or StoreError(str(origin), hint=RESTORE)
        return type(fault)(
            f"the catalog {self.file} cannot be opened: {fault.message}", hint=fault.hint
        )

    def close(self) -> None:
        with self._watching:
            if self._watch is not None:
                self._watch.close()
                self._watch = None


def _create_private(path: Path) -> None:
    """Create the file for this user alone; SQLite gives its other files the same rights. Raises
    StoreError where nothing can be written."""
    try:
        private_file(path)
    except OSError as error:
        raise StoreError(
            f"the catalog {path} cannot be opened: {error.strerror}",
            hint="Give a --data-dir that may be written to.",
        ) from error


def _unchanging(path: Path) -> str:
    """The URI of a catalog in a directory that nothing can be written to, where SQLite cannot keep
    its lock file either. Raises StoreError where its log holds writes that are not in it yet.
    """
    log = path.with_name(f"{path.name}-wal")
    if log.exists() and log.stat().st_size:
        raise StoreError(
            f"the data directory {path.parent} is read-only, and its last writes are in {log.name}",
            hint="Run any command once where it may be written to, then it can be read here.",
        )
    return f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1"


def _prepare(connection: Any, record: Any) -> None:
    connection.isolation_level = None  # transactions are ours: a write begins them itself
    for pragma in (
        f"busy_timeout={BUSY_TIMEOUT_MS}",  # first: another process may set up the same file
        "journal_mode=WAL",
        "synchronous=NORMAL",
        "foreign_keys=ON",
        "secure_delete=ON",  # zeros over what is deleted, else its text stays in free pages
        f"cache_size=-{CACHE_KIB}",
        "temp_store=MEMORY",
        "mmap_size=0",  # each connection would map the file, and count as resident with it
    ):
        connection.execute(f"PRAGMA {pragma}")
