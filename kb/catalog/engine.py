"""Opens the SQL catalog: the truth of everything Kernlore holds.

SQLite in WAL mode in the data directory; any number of processes may open it. Migrations run on
opening, under the write lock, so two processes that start together cannot both migrate. Knows no
table by name."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy import Connection, Engine, event

from kb.catalog.faults import RESTORE, damaged, store_fault
from kb.catalog.kept import Kept, attach, begin
from kb.errors import StoreError
from kb.private import private_file, private_folder

BUSY_TIMEOUT_MS = 15_000
LOG_TIMEOUT_MS = 1_000
MOST_CHECKED = 512 << 20  # bytes; 1 s a GB where the file is in memory
IDLE_CONNECTIONS = 8  # kept open for the next who needs one
_MAX_PARAMETERS = 500  # SQLite bounds the parameters of one statement
T = TypeVar("T")
_MIGRATIONS = Path(__file__).parent / "migrations"


class Catalog:
    """A handle on one catalog. Cheap to share between threads; connections are pooled per thread of
    use.
    """

    def __init__(self, engine: Engine, path: Path, read_only: bool = False) -> None:
        self._engine = engine
        self.path = path
        self.read_only = read_only
        self._watching = threading.Lock()  # protects _watch
        self._watch: Any = None

    def version(self) -> int:
        """A number that is another one after any change by anybody, and costs microseconds: a
        hundredth of a transaction. For what is kept of the catalog and looked at with each request.
        """
        with self._watching:
            if self._watch is None:  # a connection that never writes: its own changes do not count
                self._watch = self._engine.raw_connection()
                self._watch.detach()
            row = self._watch.cursor().execute("PRAGMA data_version").fetchone()
        return int(row[0])

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A consistent view; nothing written here is kept."""
        with self._engine.connect() as connection:
            connection.exec_driver_sql("BEGIN")  # else every statement sees another catalog
            begin(connection, writes=False)
            try:
                yield connection
            finally:
                connection.rollback()

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """One transaction that takes the write lock at its start: all of it is kept, or nothing."""
        with self._engine.connect() as connection:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            begin(connection, writes=True)
            kept = False
            try:
                yield connection
                connection.commit()
                kept = True
            finally:
                if not kept:
                    connection.rollback()

    def check(self, most_bytes: int = MOST_CHECKED) -> None:
        """Read every page of a catalog of at most so many bytes. Raises StoreError where one is
        damaged, else requests would fail one by one.
        """
        if self.path.stat().st_size > most_bytes:
            return
        try:
            with self._engine.connect() as connection:
                verdict = str(connection.exec_driver_sql("PRAGMA quick_check(1)").scalar())
        except sa.exc.DatabaseError as error:
            raise store_fault(error) or damaged(str(error.orig)) from error
        if verdict != "ok":
            raise damaged(verdict.replace("\n", ": "))

    def empty_log(self) -> bool:
        """Move the log of writes into the catalog and empty its file, so that no page stands there
        as it was before a deletion. False where a reader still needs it after a second.
        """
        with self._engine.connect() as connection:
            connection.exec_driver_sql(f"PRAGMA busy_timeout={LOG_TIMEOUT_MS}")
            try:
                row = connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").one()
            finally:
                connection.exec_driver_sql(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
        return not row[0]

    def close(self) -> None:
        """Close every connection; the handle can still be used and opens new ones."""
        with self._watching:
            if self._watch is not None:
                self._watch.close()
                self._watch = None
        self._engine.dispose()


def open_catalog(data_dir: Path) -> Catalog:
    """Open (and create or migrate) the catalog of a data directory."""
    path = private_folder(data_dir) / "catalog.sqlite"
    read_only = path.exists() and not os.access(data_dir, os.W_OK)
    if not read_only:
        _create_private(path)
    # A thread that needs a connection gets one: a bound here is an error for a request, and threads
    # are bounded where they are made.
    engine = sa.create_engine(
        f"sqlite:///{path}" if not read_only else f"sqlite:///{_unchanging(path)}&uri=true",
        connect_args={"check_same_thread": False},
        pool_size=IDLE_CONNECTIONS,
        max_overflow=-1,
    )
    _configure(engine, Kept())
    catalog = Catalog(engine, path, read_only)
    try:
        _migrate(catalog)
    except sa.exc.DatabaseError as error:
        engine.dispose()
        fault = store_fault(error) or StoreError(str(error.orig), hint=RESTORE)
        raise type(fault)(
            f"the catalog {path} cannot be opened: {fault.message}", hint=fault.hint
        ) from error
    return catalog


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


def _configure(engine: Engine, kept: Kept) -> None:
    @event.listens_for(engine, "connect")
    def _pragmas(connection: Any, record: Any) -> None:
        attach(record.info, kept)
        connection.isolation_level = None  # transactions are ours: `write` begins them itself
        for pragma in (
            "journal_mode=WAL",
            "synchronous=NORMAL",
            "foreign_keys=ON",
            "secure_delete=ON",  # zeros over what is deleted, else its text stays in free pages
            f"busy_timeout={BUSY_TIMEOUT_MS}",
            "cache_size=-65536",
            "temp_store=MEMORY",
            "mmap_size=1073741824",
        ):
            connection.execute(f"PRAGMA {pragma}")


def _migrate(catalog: Catalog) -> None:
    # Alembic costs 0.3 s to import; a catalog that is at the newest revision never pays it.
    if _revision(catalog) == _revisions()[-1]:
        return
    with catalog.write() as connection:
        from alembic import command
        from alembic.config import Config

        check_revision(f"the catalog {catalog.path}", _revision_of(connection))
        config = Config()
        config.set_main_option("script_location", str(_MIGRATIONS))
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def _revisions() -> list[str]:
    """The revisions of the schema, oldest first."""
    return sorted(path.stem.split("_")[0] for path in (_MIGRATIONS / "versions").glob("[0-9]*.py"))


def check_revision(subject: str, revision: str | None) -> None:
    """Raise StoreError where no migration leads from this revision to the newest. `subject` names
    what has the revision; None is a new catalog.
    """
    revisions = _revisions()
    if revision is None:
        return
    if revision > revisions[-1]:
        raise StoreError(
            f"{subject} was written by a newer Kernlore (revision {revision})",
            hint="Upgrade Kernlore, or start with another --data-dir.",
        )
    if revision < revisions[0]:
        raise StoreError(
            f"{subject} is older than the first release (revision {revision}) and cannot be"
            " migrated",
            hint="Start with a new --data-dir and ingest your documents again with `kernlore"
            " ingest`. The Kernlore that wrote the catalog can still read it: it exports learned"
            " skills with `kernlore skills export`.",
        )


def _revision(catalog: Catalog) -> str | None:
    with catalog.read() as connection:
        return _revision_of(connection)


def _revision_of(connection: Connection) -> str | None:
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()


def portions(values: Sequence[T]) -> list[Sequence[T]]:
    """The values in portions that fit into one statement's IN list."""
    return [values[n : n + _MAX_PARAMETERS] for n in range(0, len(values), _MAX_PARAMETERS)]
