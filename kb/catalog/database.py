"""What a catalog needs of the database that it is in: connections, transactions, and its health.

`kb.catalog.sqlite_file` and `kb.catalog.postgres` are the two there are. Knows no table.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from pathlib import Path

from sqlalchemy import Connection, Engine

from kb.errors import KernloreError


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
