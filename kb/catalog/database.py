"""What a catalog needs of the database that it is in: connections, transactions, and its health.

`kb.catalog.database` and `kb.catalog.database` are the two there are. Knows no table.
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


class Database(ABC):
    """Where one catalog is. `name` says so in messages, without a password; `file` is that of an
    embedded one.
    """

    name: str
    file: Path | None = None
    read_only = False

    @abstractmethod
    def engine(self) -> Engine:
        """Connections to it. Raises KernloreError where it cannot be had."""

    def admit(self, engine: Engine) -> None:
        """Find out what has to be asked of it, once."""
        return None

    @abstractmethod
    def begin_read(self, connection: Connection) -> None:
        """Begin a transaction that sees the catalog as it is now, until it ends."""

    @abstractmethod
    def begin_write(self, connection: Connection, rows_only: bool) -> None:
        """Begin a transaction that is the only one that writes; with `rows_only` it is enough that
        nobody else writes the rows that it locks itself.
        """

    @abstractmethod
    def version(self, engine: Engine) -> Hashable:
        """Another value after any change by anybody."""

    @abstractmethod
    def check(self, engine: Engine, most_bytes: int | None) -> str:
        """What is wrong with it, "ok" for nothing; "" where it has more than so many bytes."""

    @abstractmethod
    def empty_log(self, engine: Engine) -> bool:
        """Whether no write stands in a log any more that is this program's to empty."""

    @abstractmethod
    def fault(self, error: Exception) -> KernloreError:
        """What to show where it cannot be opened."""

    def close(self) -> None:
        """Close what is open beside the engine."""
        return None


# -- sqlite file: A catalog that is one SQLite file in the data directory, in WAL mode; any number

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


# -- faults: What is wrong with the data directory, when SQLite refuses: damaged, full, read-only,

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


# -- postgres: A catalog on a PostgreSQL server. Its role owns one database, or one schema of one.

EXAMPLE = "postgresql+psycopg://USER:PASSWORD@HOST:5432/DATABASE"
LOCK_TIMEOUT_MS = 15_000
CONNECT_SECONDS = 10
ANSWER_MS = 15_000  # that sent data may stay unacknowledged; the operating system's own is minutes
POOLED = 8  # kept open for the next who needs one
OLDEST = 13  # version; pg_current_snapshot came with it
_WRITING = 0x6B65726E  # the number of the lock that who writes holds: "kern"
_DRIVERS = ("postgresql", "postgresql+psycopg")


class PostgresServer(Database):
    """The database that a URL names. Raises InvalidRequest for a URL that names none."""

    def __init__(self, url: str) -> None:
        self._url = parse_url(url)
        self.name = _without_secrets(self._url)

    def engine(self) -> Engine:
        try:
            engine = sa.create_engine(
                self._url,
                connect_args=_waiting(self._url),
                pool_size=POOLED,
                max_overflow=-1,  # as for a file: threads are bounded where they are made
                pool_pre_ping=True,  # the server may have been started anew
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
        """A new connection. It takes and gives the values that an SQLite catalog would."""
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
        text, number = _adapters()
        connection.adapters.register_dumper(str, text)
        connection.adapters.register_loader("numeric", number)
        with connection.cursor() as cursor:
            cursor.execute(f"SET lock_timeout = {LOCK_TIMEOUT_MS}")
        connection.commit()

    def begin_read(self, connection: Connection) -> None:
        connection.execution_options(isolation_level="REPEATABLE READ")

    def begin_write(self, connection: Connection, rows_only: bool) -> None:
        if not rows_only:
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_WRITING})")

    def version(self, engine: Engine) -> Hashable:
        """What a transaction that begins now would see: the write-ahead log's place will not do,
        where a change stands before anybody sees it.
        """
        with engine.connect() as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT")
            snapshot = connection.exec_driver_sql("SELECT pg_current_snapshot()::text").scalar()
        return str(snapshot)

    def check(self, engine: Engine, most_bytes: int | None) -> str:
        """The server guards its own pages: `initdb --data-checksums`, `pg_amcheck`."""
        with engine.connect() as connection:
            connection.exec_driver_sql("SELECT 1")
        return "ok"

    def empty_log(self, engine: Engine) -> bool:
        """The write-ahead log is the server's, which reuses it in its own time."""
        return True

    def fault(self, error: Exception) -> KernloreError:
        origin = str(getattr(error, "orig", error)).strip()
        if isinstance(error, sa.exc.OperationalError):
            return Unavailable(
                f"the catalog {self.name} cannot be reached: {_one_line(origin)}",
                hint="Start the PostgreSQL server, or correct KERNLORE_CATALOG. Kernlore does not"
                " turn to another catalog by itself.",
            )
        fault = store_fault(error) or StoreError(
            _one_line(origin),
            hint="The role in KERNLORE_CATALOG must own the database, or a schema of it:"
            " CREATE DATABASE kernlore OWNER kernlore.",
        )
        return type(fault)(
            f"the catalog {self.name} cannot be opened: {fault.message}", hint=fault.hint
        )


def parse_url(url: str) -> URL:
    """The URL of a database. Raises InvalidRequest, which does not repeat it: it may hold a
    password.
    """
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
    """As messages show it: options may hold a password too, so only the host is kept of them."""
    host = {"host": url.query["host"]} if "host" in url.query else {}
    return url.set(query=host).render_as_string(hide_password=True)


def _waiting(url: URL) -> dict[str, Any]:
    """How long a server that says nothing is waited for, unless the URL says so itself."""
    limits = {"connect_timeout": CONNECT_SECONDS, "tcp_user_timeout": ANSWER_MS}
    return {name: value for name, value in limits.items() if name not in url.query}


def _one_line(text: str) -> str:
    """Of the driver's message, which has several lines and hints of its own."""
    return re.sub(r"\s+", " ", text)


@cache
def _adapters() -> tuple[type, type]:
    from psycopg.adapt import Loader
    from psycopg.types.string import StrDumperUnknown

    class Text(StrDumperUnknown):
        """PostgreSQL holds no NUL in a text; U+FFFD takes its place."""

        def dump(self, obj: str) -> Any:
            return super().dump(obj.replace("\0", "\ufffd") if "\0" in obj else obj)

    class Number(Loader):
        """A sum of whole numbers comes as `numeric`, and is one of Python's whole numbers."""

        def load(self, data: Any) -> int | float:
            text = bytes(data).decode()
            return int(text) if text.lstrip("-").isdigit() else float(text)

    return Text, Number
