"""The databases of a catalog: an SQLite file or a PostgreSQL server, their connections,
transactions and faults. Knows no table.
"""

from __future__ import annotations

import errno
import os
import re
import sqlite3
import threading
from abc import ABC, abstractmethod
from collections.abc import Hashable
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine import URL, make_url

from kb.data_dir import private_file, private_folder
from kb.errors import InvalidRequest, KernloreError, StoreError, StoreFull, Unavailable

IDLE_CONNECTIONS = 8  # left open for the next use


class Database(ABC):
    """The database of one catalog. `name` is its path or URL for messages, without a password;
    `file` that of an embedded one."""

    name: str
    file: Path | None = None
    read_only = False

    @abstractmethod
    def engine(self) -> Engine:
        """Connections to it. Raises KernloreError if it cannot be opened."""

    def admit(self, engine: Engine) -> None:
        """Query properties of the server, once."""
        return None

    @abstractmethod
    def begin_read(self, connection: Connection) -> None:
        """Begin a read transaction on a snapshot of the catalog."""

    @abstractmethod
    def begin_write(self, connection: Connection, rows_only: bool) -> None:
        """Begin a transaction with the write lock of the catalog; with `rows_only`, with locks on
        the rows that it changes."""

    @abstractmethod
    def version(self, engine: Engine) -> Hashable:
        """A version that changes with every change by any process."""

    @abstractmethod
    def check(self, engine: Engine, most_bytes: int | None) -> str:
        """The result of an integrity check, "ok" if intact; "" if the catalog is larger than
        `most_bytes`."""

    @abstractmethod
    def empty_log(self, engine: Engine) -> bool:
        """Whether the write-ahead log is empty, or emptied by the server."""

    @abstractmethod
    def fault(self, error: Exception) -> KernloreError:
        """The error for a database that cannot be opened."""

    def close(self) -> None:
        """Close connections outside the engine's pool."""
        return None


def _cannot_be_opened(name: str, fault: KernloreError) -> KernloreError:
    return type(fault)(f"the catalog {name} cannot be opened: {fault.message}", hint=fault.hint)


# -- SQLite

BUSY_TIMEOUT_MS = 15_000
LOG_TIMEOUT_MS = 1_000
CACHE_KIB = 8 * 1024  # page cache of a connection; the system caches the file as well
NAME = "catalog.sqlite"
_HAS_TABLES = 64 * 1024  # bytes that an empty catalog never has
_STORE_FOLDERS = ("blobs", "runs", "snapshot", "chroma")


class SqliteFile(Database):
    """A file in WAL mode, created for this user alone; any number of processes may open it."""

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
        # Every thread that needs a connection gets one: a limit here would fail requests, and the
        # number of threads is limited where they are started.
        engine = sa.create_engine(
            f"sqlite:///{_immutable(self.file)}&uri=true"
            if self.read_only
            else f"sqlite:///{self.file}",
            connect_args={"check_same_thread": False},
            pool_size=IDLE_CONNECTIONS,
            max_overflow=-1,
            pool_use_lifo=True,  # few connections are in use, and each caches its own pages
        )
        event.listen(engine, "connect", _prepare_sqlite)
        return engine

    def admit(self, engine: Engine) -> None:
        """Refuse an empty catalog where files of a store are left: it would start as a new store
        without a word. Raises StoreError."""
        if self.file.exists() and self.file.stat().st_size > _HAS_TABLES:
            return
        with engine.connect() as connection:
            tables = connection.exec_driver_sql("SELECT count(*) FROM sqlite_master").scalar()
        left = None if tables else _file_of_a_store(self.file.parent)
        if left is not None:
            raise StoreError(
                f"the catalog {self.file} is empty or was lost: the file {left} belongs to a store",
                hint=RESTORE,
            )

    def begin_read(self, connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN")  # else each statement has its own snapshot

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
        origin = str(getattr(error, "orig", error))
        fault = store_fault(error) or StoreError(origin, hint=RESTORE)
        return _cannot_be_opened(self.name, fault)

    def close(self) -> None:
        with self._watching:
            if self._watch is not None:
                self._watch.close()
                self._watch = None


def _file_of_a_store(folder: Path) -> Path | None:
    """A file that only a service with a catalog writes, or None."""
    for name in _STORE_FOLDERS:
        for path in (folder / name).rglob("*"):
            if path.is_file():
                return path
    return None


def _create_private(path: Path) -> None:
    """Create the file for this user alone; SQLite gives its other files the same rights. Raises
    StoreError in a directory that cannot be written to."""
    try:
        private_file(path)
    except OSError as error:
        raise StoreError(
            f"the catalog {path} cannot be opened: {error.strerror}",
            hint="Give a --data-dir that may be written to.",
        ) from error


def _immutable(path: Path) -> str:
    """The URI of a catalog in a directory that cannot be written to, so that SQLite cannot create
    its lock file. Raises StoreError if its log holds writes that are not in the file yet."""
    wal = path.with_name(f"{path.name}-wal")
    if wal.exists() and wal.stat().st_size:
        raise StoreError(
            f"the data directory {path.parent} is read-only, and its last writes are in {wal.name}",
            hint="Run any command once with write access to it; it can be read here afterwards.",
        )
    return f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1"


def _prepare_sqlite(connection: Any, record: Any) -> None:
    connection.isolation_level = None  # `begin_read` and `begin_write` begin transactions
    for pragma in (
        f"busy_timeout={BUSY_TIMEOUT_MS}",  # first: another process may set up the same file
        "journal_mode=WAL",
        "synchronous=NORMAL",
        "foreign_keys=ON",
        "secure_delete=ON",  # overwrite deleted rows with zeros, else text stays in free pages
        f"cache_size=-{CACHE_KIB}",
        "temp_store=MEMORY",
        "mmap_size=0",  # each connection would map the file, and count as resident with it
    ):
        connection.execute(f"PRAGMA {pragma}")


# -- PostgreSQL

EXAMPLE = "postgresql+psycopg://USER:PASSWORD@HOST:5432/DATABASE"
LOCK_TIMEOUT_MS = 15_000
CONNECT_SECONDS = 10
ANSWER_MS = 15_000  # until sent data must be acknowledged; the system's default is minutes
OLDEST = 13  # version; pg_current_snapshot came with it
_WRITE_LOCK = 0x6B65726E  # the number of the advisory lock of writers: "kern"
_DRIVERS = ("postgresql", "postgresql+psycopg")


class PostgresServer(Database):
    """The database that a URL names; its role owns the database, or one schema of it. Raises
    InvalidRequest for a URL that names none.

    A transaction that writes takes one lock for the whole catalog at its start, as SQLite does, so
    rows that it reads first cannot change. Only leases do without it. Texts are compared byte by
    byte and read transactions see one moment, so that answers equal those of an embedded catalog.
    """

    def __init__(self, url: str) -> None:
        self._url = parse_url(url)
        self.name = _without_secrets(self._url)

    def engine(self) -> Engine:
        limits = {"connect_timeout": CONNECT_SECONDS, "tcp_user_timeout": ANSWER_MS}
        try:
            engine = sa.create_engine(
                self._url,
                connect_args={k: v for k, v in limits.items() if k not in self._url.query},
                pool_size=IDLE_CONNECTIONS,
                max_overflow=-1,  # as for a file: the number of threads is limited elsewhere
                pool_pre_ping=True,  # the server may have been restarted
                isolation_level="READ COMMITTED",
            )
        except ModuleNotFoundError as error:
            raise Unavailable(
                f"a catalog on PostgreSQL ({self.name}) needs the package {error.name}, which is"
                " not installed",
                hint="Install it: pip install 'kernlore[postgres]'.",
            ) from error
        event.listen(engine, "connect", self._prepare, insert=True)
        return engine

    def admit(self, engine: Engine) -> None:
        with engine.connect() as connection:
            standby = connection.exec_driver_sql("SELECT pg_is_in_recovery()").scalar()
        self.read_only = bool(standby)

    def _prepare(self, connection: Any, record: Any) -> None:
        """Set up a new connection. It takes and gives the values of an SQLite catalog."""
        encoding = connection.info.parameter_status("server_encoding")
        version = connection.info.server_version // 10_000
        if version < OLDEST:
            raise StoreError(
                f"the catalog {self.name} is on PostgreSQL {version}",
                hint=f"Upgrade it to PostgreSQL {OLDEST} or newer.",
            )
        if encoding != "UTF8":
            raise StoreError(
                f"the database of the catalog {self.name} has the encoding {encoding}",
                hint="Create it with: CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0.",
            )
        dumper, loader = _adapters()
        connection.adapters.register_dumper(str, dumper)
        connection.adapters.register_loader("numeric", loader)
        with connection.cursor() as cursor:
            cursor.execute(f"SET lock_timeout = {LOCK_TIMEOUT_MS}")
        connection.commit()

    def begin_read(self, connection: Connection) -> None:
        connection.execution_options(isolation_level="REPEATABLE READ")

    def begin_write(self, connection: Connection, rows_only: bool) -> None:
        if not rows_only:
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_WRITE_LOCK})")

    def version(self, engine: Engine) -> Hashable:
        """The snapshot of a transaction that begins now. The position of the write-ahead log is not
        a version: it includes changes that are not visible yet."""
        with engine.connect() as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT")
            snapshot = connection.exec_driver_sql("SELECT pg_current_snapshot()::text").scalar()
        return str(snapshot)

    def check(self, engine: Engine, most_bytes: int | None) -> str:
        """The server checks its own pages: `initdb --data-checksums`, `pg_amcheck`."""
        with engine.connect() as connection:
            connection.exec_driver_sql("SELECT 1")
        return "ok"

    def empty_log(self, engine: Engine) -> bool:
        """The server recycles its write-ahead log itself."""
        return True

    def fault(self, error: Exception) -> KernloreError:
        origin = re.sub(r"\s+", " ", str(getattr(error, "orig", error)).strip())
        if isinstance(error, sa.exc.OperationalError):
            return Unavailable(
                f"the catalog {self.name} cannot be reached: {origin}",
                hint="Start the PostgreSQL server, or correct KERNLORE_CATALOG. Kernlore does not"
                " turn to another catalog by itself.",
            )
        fault = store_fault(error) or StoreError(
            origin,
            hint="The role in KERNLORE_CATALOG must own the database, or a schema of it:"
            " CREATE DATABASE kernlore OWNER kernlore.",
        )
        return _cannot_be_opened(self.name, fault)


def parse_url(url: str) -> URL:
    """The URL of a database. Raises InvalidRequest, without the URL: it may hold a password."""
    hint = f"Give KERNLORE_CATALOG as {EXAMPLE}; characters such as @ and / in a password are"
    hint += " written as %40 and %2F."
    try:
        parsed = make_url(url)
    except (sa.exc.ArgumentError, ValueError):
        raise InvalidRequest("the URL of the catalog cannot be read", hint=hint) from None
    if parsed.drivername not in _DRIVERS:
        raise InvalidRequest(
            f"a catalog cannot be on {parsed.drivername!r}, only in SQLite or on PostgreSQL",
            hint=hint,
        )
    if not parsed.database:
        raise InvalidRequest("the URL of the catalog names no database", hint=hint)
    return parsed.set(drivername="postgresql+psycopg")


def _without_secrets(url: URL) -> str:
    """For messages: of the options, which may hold a password too, only the host."""
    host = {"host": url.query["host"]} if "host" in url.query else {}
    return url.set(query=host).render_as_string(hide_password=True)


@cache
def _adapters() -> tuple[type, type]:
    from psycopg.adapt import Loader
    from psycopg.types.string import StrDumperUnknown

    class TextDumper(StrDumperUnknown):
        """Writes U+FFFD for NUL, which PostgreSQL does not store in a text."""

        def dump(self, obj: str) -> Any:
            return super().dump(obj.replace("\0", "\ufffd") if "\0" in obj else obj)

    class NumericLoader(Loader):
        """Reads a sum of whole numbers, which comes as `numeric`, as int."""

        def load(self, data: Any) -> int | float:
            text = bytes(data).decode()
            return int(text) if text.lstrip("-").isdigit() else float(text)

    return TextDumper, NumericLoader


# -- faults, recognised by the error codes of the databases

RESTORE = (
    "Stop the service and make a new data directory from a backup: `kernlore restore FILE"
    " --data-dir NEW`. Without a backup, start with another --data-dir and ingest the documents"
    " again: the uploaded files are whole, under the folder blobs."
)
FREE = (
    "Free some space on the disk of the data directory. Reading continues by itself then; retry"
    " what failed (`kernlore jobs retry JOB`), or send it again."
)
SERVER = (
    "Start the PostgreSQL server that KERNLORE_CATALOG names, or see its message; Kernlore connects"
    " again by itself. Repeat the request then."
)
SERVER_FULL = "Free some space on the disk of the PostgreSQL server; repeat the request then."
SERVER_DAMAGED = "Restore the database from a dump (pg_dump), and read PostgreSQL's own log."
REPEAT = "Repeat the request."
_FULL_ERRNO = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def store_fault(error: BaseException) -> KernloreError | None:
    """The public error for one of SQLite, SQLAlchemy or the file system; None if the store is not
    the cause."""
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
    if code.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return Unavailable("the catalog is busy with other writers", hint=REPEAT)
    return None


def _of_postgresql(origin: BaseException) -> KernloreError | None:
    """By SQLSTATE (https://www.postgresql.org/docs/current/errcodes-appendix.html); a connection
    that is lost has none."""
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
        return Unavailable("the catalog is busy with other writers", hint=REPEAT)
    if code.startswith("XX"):
        return StoreError(f"the catalog is damaged: {text}", hint=SERVER_DAMAGED)
    if code in ("25006", "42501"):
        return StoreError(
            f"the catalog cannot be written to ({text})",
            hint="Check that the role in KERNLORE_CATALOG owns the tables, and that the server is"
            " no standby.",
        )
    return None


def damaged(reason: str) -> StoreError:
    """The error for a catalog with damaged pages."""
    return StoreError(f"the catalog is damaged: {reason}", hint=RESTORE)


def full(reason: str) -> StoreFull:
    """The error for a full disk."""
    return StoreFull(f"the data directory cannot be written to: {reason}", hint=FREE)
