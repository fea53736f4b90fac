"""Callers of a service: their keys, sessions of pages, and counts of their requests.

A secret leaves this module once, when it is made. Its SHA-256 is stored: 256 random bits cannot be
guessed however fast the hash is, and every request is looked up by it; a slow hash is for secrets
that people choose. Knows no route: here roles only have an order.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import sqlalchemy as sa
import structlog
from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError

from kb import clock
from kb.catalog import meta
from kb.catalog.dialect import insert_new
from kb.catalog.engine import Catalog, columns_of, record_of
from kb.catalog.tables import api_keys, key_sessions
from kb.catalog.tables import request_counts as t
from kb.errors import InvalidRequest, NotFound, Unavailable
from kb.ids import KeyId, new_id, sha256

Role = Literal["reader", "writer", "curator", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)  # each includes those before it
PREFIX = "klk_"  # makes a secret recognisable if pasted by mistake
SESSION_PREFIX = "kls_"
SESSION_SECONDS = 12 * 3600
MAX_DAYS = 3650
_REVISION = "keys_revision"

log = structlog.get_logger(__name__)


def may(role: Role, needed: Role) -> bool:
    """Whether a role includes another one."""
    return ROLES.index(role) >= ROLES.index(needed)


@dataclass(frozen=True)
class Key:
    """A key without its secret. `hardware` are the ids that it is restricted to; empty: none."""

    id: KeyId
    name: str
    role: Role
    hardware: tuple[str, ...]
    created_at: str
    expires_at: str | None
    revoked_at: str | None
    last_used_at: str | None

    @property
    def state(self) -> Literal["valid", "expired", "revoked"]:
        """Only a valid key is accepted."""
        if self.revoked_at is not None:
            return "revoked"
        expired = self.expires_at is not None and self.expires_at <= clock.now()
        return "expired" if expired else "valid"


@dataclass(frozen=True)
class KeyLookup:
    """The look-up of a request's key. `closed`: a key was ever created; the store then needs one
    even after its last key is revoked. `key` is the valid key, or None."""

    closed: bool
    key: Key | None


@dataclass(frozen=True)
class NewKey:
    """A key with its secret, which is not stored."""

    key: Key
    secret: str


_COLUMNS = columns_of(api_keys, Key)


class Keys:
    """The keys of a catalog. Safe to share between threads; `flush` stores when keys were used."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._lock = threading.Lock()  # protects _known, _state and _used
        self._known: dict[str, Key] = {}  # by the hash of the secret
        self._state: tuple[Hashable, int] = (-1, -1)  # version and revision of _known
        self._used: dict[str, str] = {}

    def create(
        self, role: str, *, name: str = "", hardware: Sequence[str] = (), days: float | None = None
    ) -> NewKey:
        """Create a key. `hardware` are registered ids; it expires after `days`. Raises
        InvalidRequest."""
        known = next((known for known in ROLES if known == role), None)
        if known is None:
            raise InvalidRequest(
                f"unknown role {role[:80]!r}", hint=f"Give one of {', '.join(ROLES)}."
            )
        if known == "admin" and hardware:
            raise InvalidRequest(
                "an admin's key cannot be restricted to hardware",
                hint="An admin runs code on this machine, which can read the whole data directory."
                " Give it the role curator.",
            )
        if days is not None and not 0 < days <= MAX_DAYS:
            raise InvalidRequest(
                f"a key cannot end after {days:g} days", hint=f"Give 1 to {MAX_DAYS}."
            )
        secret = PREFIX + secrets.token_urlsafe(32)
        key = Key(
            id=KeyId(new_id("key")),
            name=name.strip()[:200] or known,
            role=known,
            hardware=tuple(sorted(set(hardware))),
            created_at=clock.now(),
            expires_at=None if days is None else clock.after(days * 86_400),
            revoked_at=None,
            last_used_at=None,
        )
        with self._catalog.write() as connection:
            values = {**vars(key), "hardware": list(key.hardware)}
            connection.execute(api_keys.insert().values(**values, secret_sha256=sha256(secret)))
            _count_change(connection)
        return NewKey(key, secret)

    def list(self) -> list[Key]:
        """Every key, the newest first, revoked ones included."""
        self.flush()
        query = sa.select(*_COLUMNS).order_by(api_keys.c.created_at.desc(), api_keys.c.id)
        with self._catalog.read() as connection:
            return [record_of(Key, row) for row in connection.execute(query)]

    def revoke(self, key_id: str) -> Key:
        """End a key and its sessions. Raises NotFound."""
        mine = api_keys.c.id == key_id
        revoked_at = sa.func.coalesce(api_keys.c.revoked_at, clock.now())
        with self._catalog.write() as connection:
            changed = connection.execute(
                api_keys.update().where(mine).values(revoked_at=revoked_at)
            )
            if changed.rowcount != 1:
                raise NotFound(
                    f"no key {key_id[:80]!r}", hint="`kernlore keys list` shows their ids."
                )
            connection.execute(key_sessions.delete().where(key_sessions.c.key_id == key_id))
            _count_change(connection)
            return record_of(Key, connection.execute(sa.select(*_COLUMNS).where(mine)).one())

    # -- look-up by requests

    def look_up(self, secret: str | None = None, session: str | None = None) -> KeyLookup:
        """Look up the valid key with this secret, or of this session of the pages. A query on a
        database server, too slow for an event loop."""
        known = self._all()
        if secret is not None:
            return KeyLookup(bool(known), _valid(known.get(sha256(secret))))
        return KeyLookup(bool(known), self.find_session(session) if known and session else None)

    def any(self) -> bool:
        """Whether a key was ever made."""
        return self.look_up().closed

    def find(self, secret: str) -> Key | None:
        """The valid key with this secret, or None."""
        return self.look_up(secret).key

    def _all(self) -> dict[str, Key]:
        """Every key by the hash of its secret; read again when any process has created or revoked
        one."""
        # Before the keys are read: a change meanwhile is seen next time. On a server only the keys'
        # revision is compared: the version there differs with every transaction of any process.
        version = None if self._catalog.on_server else self._catalog.version()
        with self._lock:
            if version is not None and self._state[0] == version:
                return self._known
        with self._catalog.read() as connection:
            revision = int(meta.get(connection, _REVISION) or 0)
            with self._lock:
                known, changed = self._known, self._state[1] != revision
            if changed:
                rows = connection.execute(sa.select(*_COLUMNS, api_keys.c.secret_sha256)).all()
                known = {row.secret_sha256: record_of(Key, row) for row in rows}
        with self._lock:
            self._known, self._state = known, (version, revision)
        return known

    def used(self, key: Key) -> None:
        """Note that the key was used now; `flush` stores it."""
        with self._lock:
            self._used[key.id] = clock.now()

    def flush(self) -> None:
        """Store when keys were last used. Notes that cannot be written now wait for the next
        call."""
        with self._lock:
            used, self._used = self._used, {}
        if not used or self._catalog.read_only:
            return
        try:
            with self._catalog.write() as connection:
                for key_id, moment in used.items():
                    connection.execute(
                        api_keys.update().where(api_keys.c.id == key_id).values(last_used_at=moment)
                    )
        except (OperationalError, Unavailable):  # locked, a full disk, or a newer catalog
            log.warning("the last use of keys waits to be stored", keys=len(used))
            with self._lock:
                self._used = {**used, **self._used}

    # -- sessions of pages

    def open_session(self, key: Key) -> str:
        """A new session of this key; its secret, which is not stored."""
        secret = SESSION_PREFIX + secrets.token_urlsafe(32)
        expired = key_sessions.c.expires_at <= clock.now()
        with self._catalog.write() as connection:
            connection.execute(key_sessions.delete().where(expired))
            connection.execute(
                key_sessions.insert().values(
                    secret_sha256=sha256(secret),
                    key_id=key.id,
                    created_at=clock.now(),
                    expires_at=clock.after(SESSION_SECONDS),
                )
            )
        return secret

    def find_session(self, secret: str) -> Key | None:
        """The valid key that this session was opened with, or None."""
        query = sa.select(*_COLUMNS).join(key_sessions, key_sessions.c.key_id == api_keys.c.id)
        with self._catalog.read() as connection:
            row = connection.execute(
                query.where(
                    key_sessions.c.secret_sha256 == sha256(secret),
                    key_sessions.c.expires_at > clock.now(),
                )
            ).one_or_none()
        return None if row is None else _valid(record_of(Key, row))

    def close_session(self, secret: str) -> None:
        """End a session; an unknown one is no error."""
        mine = key_sessions.c.secret_sha256 == sha256(secret)
        with self._catalog.write() as connection:
            connection.execute(key_sessions.delete().where(mine))


def _valid(key: Key | None) -> Key | None:
    return key if key is not None and key.state == "valid" else None


def _count_change(connection: Connection) -> None:
    meta.put(connection, _REVISION, int(meta.get(connection, _REVISION) or 0) + 1)


# -- counts of requests

FORGOTTEN_SECONDS = 3_600.0  # after a caller's last request

Counts = Mapping[tuple[str, str], int]  # by caller and kind of request


class RequestCounts:
    """How many requests each caller has sent to all replicas together: totals that only grow, to
    which each replica adds its own every now and then. Knows no limit."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def exchange(self, own: Counts, recent_seconds: float) -> dict[tuple[str, str], int]:
        """Add a replica's own requests since the last call; returns the totals of the callers that
        sent any within so many seconds, including these."""
        if own:
            with self._catalog.write(rows_only=True) as connection:
                self._add(connection, own)
        with self._catalog.read() as connection:
            rows = connection.execute(sa.select(t).where(t.c.at >= clock.after(-recent_seconds)))
            return {(row.who, row.kind): row.sent for row in rows}

    @staticmethod
    def _add(connection: Connection, own: Counts) -> None:
        for (who, kind), count in sorted(own.items()):  # in one order, against deadlocks
            row = {"who": who, "kind": kind, "sent": 0, "at": clock.now()}
            connection.execute(insert_new(connection, t), [row])
            connection.execute(
                t.update()
                .where(t.c.who == who, t.c.kind == kind)
                .values(sent=t.c.sent + count, at=clock.now())
            )
        connection.execute(t.delete().where(t.c.at < clock.after(-FORGOTTEN_SECONDS)))
