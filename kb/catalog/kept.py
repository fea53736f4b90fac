"""What was read from the catalog at one revision, kept in memory for the next who asks.

What a search can return changes only together with the revision (`meta.bump_revision`), and a read
transaction sees one revision from its beginning to its end. So what one transaction has read at a
revision holds for every other one that is at the same. A write transaction, which sees what nobody
else does, keeps nothing. A change of skills alone leaves what does not depend on them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from sqlalchemy import Connection

from kb.catalog.meta import knowledge_revision, revision

MOST_ENTRIES = 60_000  # of an area; a passage takes about 2 KB
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
_KEPT, _STATE, _SEEN = "kernlore_kept", "kernlore_revision", "kernlore_seen"


class Kept:
    """The values of one catalog and process, by area. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # protects _areas
        self._areas: dict[str, tuple[Hashable, dict[Any, Any]]] = {}
        self.made: dict[str, tuple[Hashable, Any]] = {}  # see put_made

    def area(self, name: str, state: Hashable, most: int = MOST_ENTRIES) -> dict[Any, Any]:
        """The values of an area at this state; empty where they were of another one. Values may be
        added; an area that has more than `most` is emptied first.
        """
        with self._lock:
            known = self._areas.get(name)
            if known is None or known[0] != state or len(known[1]) > most:
                known = self._areas[name] = (state, {})
            return known[1]


def attach(info: dict[Any, Any], kept: Kept) -> None:
    """Let the transactions of a new connection, whose `info` this is, share what is kept."""
    info[_KEPT] = kept


def begin(connection: Connection, *, writes: bool) -> None:
    """A transaction begins: it is at a revision of its own, and one that writes keeps nothing."""
    connection.info[_STATE] = "writes" if writes else "reads"
    connection.info[_SEEN] = {}


def revision_of(connection: Connection) -> int:
    """The revision that this transaction sees, read once in it; of one that writes, read anew."""
    return seen_by(connection, "revision", lambda: revision(connection))


def knowledge_of(connection: Connection) -> int:
    """The same of what documents, hardware and moves say: it stays when a skill is written."""
    return seen_by(connection, "knowledge", lambda: knowledge_revision(connection))


def seen_by(connection: Connection, name: str, read: Callable[[], V]) -> V:
    """What a transaction sees under this name, read once in it; in one that writes, read anew."""
    info = connection.info
    if info.get(_STATE) == "writes" or _SEEN not in info:
        return read()
    if name not in info[_SEEN]:
        info[_SEEN][name] = read()
    value: V = info[_SEEN][name]
    return value


def look_up(
    connection: Connection,
    area: str,
    keys: Iterable[K],
    read: Callable[[Sequence[K]], Mapping[K, V]],
    detail: Hashable = None,
    most: int = MOST_ENTRIES,
    skills: bool = True,
) -> dict[K, V]:
    """The values of these keys in their order: those that are kept, and the others as `read` gives
    them, which must have every key that it is asked for. `detail` is what the values depend on
    beside the catalog's revision; at most about `most` values are kept. What does not depend on
    `skills` outlives changes of those alone.
    """
    wanted = list(keys)
    state = (revision_of if skills else knowledge_of)(connection)
    known = _area(connection, area, (state, detail), most)
    if len(wanted) == 1 and wanted[0] in known:  # most look-ups are of one value
        return {wanted[0]: known[wanted[0]]}
    values: dict[K, V] = {key: known[key] for key in wanted if key in known}
    if len(values) < len(wanted):
        fresh = read([key for key in wanted if key not in values])
        known.update(fresh)
        values = {key: values[key] if key in values else fresh[key] for key in wanted}
    return values


def kept(
    connection: Connection, area: str, keys: Iterable[K], detail: Hashable = None, *, skills: bool
) -> dict[K, Any]:
    """The values of these keys that `look_up` has kept in an area; nothing is read."""
    state = (revision_of if skills else knowledge_of)(connection)
    known = _area(connection, area, (state, detail), MOST_ENTRIES)
    return {key: known[key] for key in keys if key in known}


def keeps(connection: Connection) -> bool:
    """Whether what this transaction reads is kept for others: not where it writes."""
    return _KEPT in connection.info and connection.info.get(_STATE) != "writes"


def put_made(connection: Connection, name: str, state: Hashable, value: object) -> None:
    """Keep what was made of the catalog in this state, beside all revisions: `state` says itself
    when it holds no longer. It takes the place of what was made before.
    """
    connection.info[_KEPT].made[name] = (state, value)


def made(connection: Connection, name: str) -> tuple[Hashable, Any] | None:
    """The state and the value that were last kept under this name. None where there is none, and in
    a transaction that writes.
    """
    info = connection.info
    if _KEPT not in info or info.get(_STATE) == "writes":
        return None
    value: tuple[Hashable, Any] | None = info[_KEPT].made.get(name)
    return value


def _area(connection: Connection, area: str, state: Hashable, most: int) -> dict[Any, Any]:
    info = connection.info
    if _KEPT not in info or info.get(_STATE) == "writes":
        return {}
    values: dict[Any, Any] = info[_KEPT].area(area, state, most)
    return values
