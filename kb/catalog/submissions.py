"""Evaluations that were sent to a service, as rows: every replica shows them.

Who accepts one owns it, queued or running, while its lease lasts. Once that has run out, as after
its process was killed, any other may take it. Knows nothing about evaluating.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy import Connection

from kb import clock
from kb.catalog.engine import Catalog
from kb.catalog.tables import submissions as t
from kb.jobs import check_transition

SubmissionState = Literal["queued", "running", "ready", "failed"]
KEPT = 1_000  # that have ended


@dataclass(frozen=True)
class StoredSubmission:
    """The row of a submission. `result` is what the evaluation printed; `error`, in the shape of
    all errors, says why it could not be carried out.
    """

    id: str
    state: SubmissionState
    submission: Mapping[str, Any]
    created_at: str
    started_at: str | None
    finished_at: str | None
    attempts: int
    result: Mapping[str, Any] | None
    error: Mapping[str, Any] | None


_COLUMNS = [t.c[name] for name in StoredSubmission.__dataclass_fields__]
_FREE: dict[str, Any] = {"lease_owner": None, "lease_expires_at": None}


class Submissions:
    """Every method is one transaction."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def add(
        self,
        identity: str,
        submission: Mapping[str, Any],
        owner: str,
        lease_seconds: float,
        most: int,
    ) -> int | None:
        """Queue one for this owner. Returns how many of the owner's wait already, where those are
        `most` or more; nothing is stored then. None otherwise.
        """
        with self._catalog.write() as connection:
            waiting = connection.execute(
                sa.select(sa.func.count()).where(t.c.state == "queued", t.c.lease_owner == owner)
            ).scalar_one()
            if waiting >= most:
                return int(waiting)
            _forget_oldest(connection)
            connection.execute(
                t.insert().values(
                    id=identity,
                    state="queued",
                    lease_owner=owner,
                    lease_expires_at=clock.after(lease_seconds),
                    submission=dict(submission),
                    created_at=clock.now(),
                )
            )
        return None

    def find(self, identity: str) -> StoredSubmission | None:
        """The submission with this id, or None."""
        with self._catalog.read() as connection:
            row = connection.execute(sa.select(*_COLUMNS).where(t.c.id == identity)).one_or_none()
        return None if row is None else StoredSubmission(**row._mapping)

    def claim(self, owner: str, lease_seconds: float) -> StoredSubmission | None:
        """Begin the oldest of the owner's that is queued, or none."""
        mine = sa.and_(t.c.state == "queued", t.c.lease_owner == owner)
        with self._catalog.read() as connection:
            if not connection.execute(sa.select(t.c.id).where(mine).limit(1)).scalar():
                return None  # the usual case, which needs no write lock
        return self._begin(mine, owner, lease_seconds)

    def left(self) -> list[StoredSubmission]:
        """What dead owners have left, oldest first."""
        query = sa.select(*_COLUMNS).where(_lapsed()).order_by(t.c.created_at, t.c.id)
        with self._catalog.read() as connection:
            return [StoredSubmission(**row._mapping) for row in connection.execute(query)]

    def take_over(self, identity: str, owner: str, lease_seconds: float) -> StoredSubmission | None:
        """Begin one that a dead owner has left. None where somebody else has it by now."""
        return self._begin(sa.and_(t.c.id == identity, _lapsed()), owner, lease_seconds)

    def _begin(
        self, meant: sa.ColumnElement[bool], owner: str, lease_seconds: float
    ) -> StoredSubmission | None:
        """What another takes at this moment is passed over."""
        oldest = sa.select(t.c.id).where(meant).order_by(t.c.created_at, t.c.id).limit(1)
        with self._catalog.write(rows_only=True) as connection:
            identity = connection.execute(oldest.with_for_update(skip_locked=True)).scalar()
            if identity is None:
                return None
            connection.execute(
                t.update()
                .where(t.c.id == identity)
                .values(
                    state="running",
                    lease_owner=owner,
                    lease_expires_at=clock.after(lease_seconds),
                    started_at=clock.now(),
                    attempts=t.c.attempts + 1,
                )
            )
            row = connection.execute(sa.select(*_COLUMNS).where(t.c.id == identity)).one()
            return StoredSubmission(**row._mapping)

    def renew(self, owner: str, lease_seconds: float) -> None:
        """Renew the leases of all that are this owner's."""
        with self._catalog.write(rows_only=True) as connection:
            connection.execute(
                t.update()
                .where(t.c.state.in_(("queued", "running")), t.c.lease_owner == owner)
                .values(lease_expires_at=clock.after(lease_seconds))
            )

    def requeue(self, owner: str) -> None:
        """Queue again what this owner began and could not end: it works on nothing now."""
        left = sa.and_(t.c.state == "running", t.c.lease_owner == owner)
        with self._catalog.read() as connection:
            if not connection.execute(sa.select(t.c.id).where(left).limit(1)).scalar():
                return  # the usual case, which needs no write lock
        with self._catalog.write(rows_only=True) as connection:
            connection.execute(t.update().where(left).values(state="queued", started_at=None))

    def end(
        self,
        identity: str,
        owner: str,
        state: Literal["ready", "failed"],
        *,
        result: Mapping[str, Any] | None = None,
        error: Mapping[str, Any] | None = None,
    ) -> bool:
        """End one that runs. False, and nothing changes, where it is no longer the owner's."""
        check_transition("running", state)
        with self._catalog.write(rows_only=True) as connection:
            changed = connection.execute(
                t.update()
                .where(t.c.id == identity, t.c.state == "running", t.c.lease_owner == owner)
                .values(
                    state=state,
                    result=None if result is None else dict(result),
                    error=None if error is None else dict(error),
                    finished_at=clock.now(),
                    **_FREE,
                )
            )
        return changed.rowcount == 1

    def release(self, owner: str) -> None:
        """Leave all that are this owner's to whoever comes next."""
        with self._catalog.write(rows_only=True) as connection:
            connection.execute(
                t.update()
                .where(t.c.state.in_(("queued", "running")), t.c.lease_owner == owner)
                .values(state="queued", started_at=None, **_FREE)
            )


def _lapsed() -> sa.ColumnElement[bool]:
    late = sa.or_(t.c.lease_expires_at.is_(None), t.c.lease_expires_at < clock.now())
    return sa.and_(t.c.state.in_(("queued", "running")), late)


def _forget_oldest(connection: Connection) -> None:
    ended = sa.select(t.c.id).where(t.c.state.in_(("ready", "failed")))
    old = ended.order_by(t.c.finished_at.desc(), t.c.id).offset(KEPT)
    ids = list(connection.execute(old).scalars())
    if ids:
        connection.execute(t.delete().where(t.c.id.in_(ids)))
