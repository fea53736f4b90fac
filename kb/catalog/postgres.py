"""A catalog on a PostgreSQL server. Its role owns one database, or one schema of one.

A transaction that writes takes one lock for the whole catalog at its start, as SQLite does: what it
reads before it writes holds. Only leases do without it. Texts are compared byte by byte and read
transactions see one moment, so that answers are those of an embedded catalog.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine import URL, make_url

from kb.catalog.database import Database
from kb.catalog.faults import store_fault
from kb.errors import InvalidRequest, KernloreError, StoreError, Unavailable

EXAMPLE = "postgresql+psycopg://USER:PASSWORD@HOST:5432/DATABASE"
LOCK_TIMEOUT_MS = 15_000
CONNECT_SECONDS = 10
ANSWER_MS = 15_000  # that sent data may stay unacknowledged; the operating system's own is minutes
IDLE_CONNECTIONS = 8  # kept open for the next who needs one
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
                pool_size=IDLE_CONNECTIONS,
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
