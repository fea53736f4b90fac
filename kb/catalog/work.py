"""Work in progress, one table: jobs of documents, sent evaluations, trajectories and runs.

    queued -> running -> ready | partial | failed
    running -> queued               its owner gave it back, or died
    failed | unverified -> queued | unverified
    ready -> queued                 a trajectory with a step that could not be timed

A row has at most one owner, a worker of some process, until its lease expires; only the owner can
renew, end or give back the work. Owners lock the rows that they change, and skip rows that another
one has locked. Knows nothing about the work itself: `payload` is for the worker, and each kind adds
its own rules in its own module.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy import Connection

from kb import clock
from kb.catalog.engine import Catalog, portions
from kb.catalog.tables import work as t
from kb.ids import JobId

# partial: some pages of a document could not be read. unverified: the hardware of a trajectory is
# not in this machine.
WorkState = Literal["queued", "running", "ready", "partial", "failed", "unverified"]
FOLLOWING: Mapping[WorkState, tuple[WorkState, ...]] = {
    "queued": ("running",),
    "running": ("queued", "ready", "partial", "failed"),
    "failed": ("queued", "unverified"),
    "unverified": ("queued", "unverified"),
    "ready": ("queued",),
    "partial": (),
}
ENDED: tuple[WorkState, ...] = ("ready", "partial", "failed")
FREE: Mapping[str, Any] = {"lease_owner": None, "lease_expires_at": None}
# An attempt starts from nothing.
_NEW_ATTEMPT: Mapping[str, Any] = {"progress": {}, "passages": None, "passages_done": 0}
OLDEST_FIRST = (t.c.created_at, t.c.id)


@dataclass(frozen=True)
class Job:
    """A row of the table. Times are UTC ISO-8601; `error` has the shape of an error answer;
    `result` is {} before the end. The fields from `group_id` on are for jobs of documents alone."""

    id: JobId
    kind: str
    state: WorkState
    subject_id: str | None
    payload: Mapping[str, Any]
    progress: Mapping[str, Any]
    result: Mapping[str, Any]
    error: Mapping[str, Any] | None
    attempts: int
    lease_owner: str | None
    lease_expires_at: str | None
    created_at: str
    started_at: str | None
    finished_at: str | None
    group_id: str | None
    share: str
    behind: bool
    passages: int | None
    passages_done: int

    @property
    def lapsed(self) -> bool:
        """Whether no lease protects it."""
        return self.lease_expires_at is None or self.lease_expires_at < clock.now()


COLUMNS = [t.c[name] for name in Job.__dataclass_fields__]


def job_from(row: sa.Row[Any]) -> Job:
    """The record of a row of `COLUMNS`."""
    return Job(**row._mapping)


def check_transition(before: WorkState, after: WorkState) -> None:
    """Raise ValueError for a transition that is not allowed: a defect of the caller."""
    if after not in FOLLOWING[before]:
        raise ValueError(f"work that is {before} cannot become {after}")


class Work:
    """All work of one kind. A method without a `connection` parameter is one transaction."""

    def __init__(self, catalog: Catalog, kind: str) -> None:
        self._catalog = catalog
        self._kind = kind
        self._mine = t.c.kind == kind

    def add(
        self,
        connection: Connection,
        job_id: str,
        payload: Mapping[str, Any],
        state: WorkState = "queued",
        **columns: Any,
    ) -> None:
        """Add work inside the caller's transaction, so that it exists exactly when its subject
        does."""
        values = {"progress": {}, "result": {}, "created_at": clock.now(), **columns}
        row = {"id": job_id, "kind": self._kind, "state": state, "payload": dict(payload)}
        connection.execute(t.insert().values(**row, **values))

    def find(self, job_id: str) -> Job | None:
        """The work with this id, or None."""
        with self._catalog.read() as connection:
            found = self.matching(connection, t.c.id == job_id)
        return found[0] if found else None

    def matching(
        self,
        connection: Connection,
        *conditions: sa.ColumnElement[bool],
        limit: int | None = None,
        locked: bool = False,
    ) -> list[Job]:
        """The work that meets the conditions, oldest first. With `locked`, it cannot change before
        the transaction ends; rows that another transaction has locked are left out."""
        query = sa.select(*COLUMNS).where(self._mine, *conditions).order_by(*OLDEST_FIRST)
        query = query.limit(limit)
        rows = connection.execute(query.with_for_update(skip_locked=True) if locked else query)
        return [job_from(row) for row in rows]

    # -- by an owner

    def take(
        self, owner: str, lease_seconds: float, *conditions: sa.ColumnElement[bool]
    ) -> Job | None:
        """Start the oldest work that meets the conditions, by default that is queued; None if there
        is no such work. It is the owner's until the lease expires."""
        conditions = conditions or (t.c.state == "queued",)
        with self._catalog.read() as connection:
            if not self.matching(connection, *conditions, limit=1):
                return None  # the usual case, which needs no write lock
        with self._catalog.write(rows_only=True) as connection:
            return self.start_oldest(connection, owner, lease_seconds, *conditions)

    def start_oldest(
        self,
        connection: Connection,
        owner: str,
        lease_seconds: float,
        *conditions: sa.ColumnElement[bool],
    ) -> Job | None:
        """As `take`, inside the caller's transaction."""
        found = self.matching(connection, *conditions, limit=1, locked=True)
        if not found:
            return None
        chosen = t.c.id == found[0].id
        connection.execute(
            t.update().where(chosen).values(**started(owner, lease_seconds), **_NEW_ATTEMPT)
        )
        return job_from(connection.execute(sa.select(*COLUMNS).where(chosen)).one())

    def renew(self, owner: str, lease_seconds: float, job_id: str | None = None) -> bool:
        """Extend the leases of all that the owner holds, or of one; False if it holds none.

        Of all, rows that the owner is writing at this moment wait for the next time: locking rows
        in two orders could end in a deadlock.
        """
        lease = renewed(lease_seconds)
        held = self._held(owner)
        with self._catalog.write(rows_only=True) as connection:
            if job_id is not None:
                changed = connection.execute(
                    t.update().where(held, t.c.id == job_id).values(**lease)
                )
                return changed.rowcount == 1
            ids = [job.id for job in self.matching(connection, held, locked=True)]
            for some in portions(ids):
                connection.execute(t.update().where(t.c.id.in_(some)).values(**lease))
        return bool(ids)

    def give_back(self, owner: str, job_id: str | None = None, *, but: Collection[str] = ()) -> int:
        """Queue again all work that the owner holds, or one row, without counting the attempt;
        returns the number of rows. Those in `but` stay."""
        chosen = [self._held(owner), t.c.id.not_in(list(but))]
        if job_id is not None:
            chosen.append(t.c.id == job_id)
        begun = sa.case((t.c.state == "running", 1), else_=0)
        with self._catalog.write() as connection:
            changed = connection.execute(
                t.update()
                .where(*chosen)
                .values(state="queued", attempts=t.c.attempts - begun, **_NEW_ATTEMPT, **FREE)
            )
        return changed.rowcount

    def update_held(
        self, connection: Connection, job_id: str, owner: str, values: Mapping[str, Any]
    ) -> bool:
        """Change running work inside the caller's transaction. Returns False, without a change, if
        the owner no longer holds it."""
        changed = connection.execute(
            t.update()
            .where(self._held(owner), t.c.id == job_id, t.c.state == "running")
            .values(**values)
        )
        return changed.rowcount == 1

    def end(
        self,
        connection: Connection,
        job_id: str,
        owner: str,
        state: WorkState,
        result: Mapping[str, Any] | None = None,
        error: Mapping[str, Any] | None = None,
    ) -> bool:
        """End work inside the caller's transaction, so that its effects and its end are one step.
        Returns False, without a change, if the owner has lost it."""
        check_transition("running", state)
        values = {
            "state": state,
            "result": dict(result or {}),
            "error": dict(error) if error else None,
            "finished_at": clock.now(),
            **FREE,
        }
        return self.update_held(connection, job_id, owner, values)

    def _held(self, owner: str) -> sa.ColumnElement[bool]:
        return sa.and_(self._mine, t.c.lease_owner == owner)

    # -- of dead owners

    def abandoned(
        self,
        connection: Connection,
        lives: Callable[[str], bool | None] = lambda owner: None,
        *,
        locked: bool = False,
    ) -> list[Job]:
        """Running work of dead owners. `lives` returns whether an owner is alive; if it returns
        None (unknown), the lease decides. With `locked`, these leases cannot be renewed before the
        transaction ends."""
        running = self.matching(connection, t.c.state == "running", locked=locked)
        answers = {job.lease_owner: lives(job.lease_owner or "") for job in running}
        dead = [job for job in running if answers[job.lease_owner] is False]
        unknown = [job for job in running if answers[job.lease_owner] is None]
        return [*dead, *(job for job in unknown if job.lapsed)]

    def requeue(self, connection: Connection, job_ids: Sequence[str]) -> None:
        """Queue abandoned work again; the attempt counts."""
        for some in portions(job_ids):
            connection.execute(t.update().where(t.c.id.in_(some)).values(state="queued", **FREE))


def started(owner: str, lease_seconds: float) -> dict[str, Any]:
    """The columns of work that an owner starts now."""
    return {
        "state": "running",
        "attempts": t.c.attempts + 1,
        "lease_owner": owner,
        "started_at": clock.now(),
        "finished_at": None,
        "error": None,
        **renewed(lease_seconds),
    }


def renewed(lease_seconds: float) -> dict[str, Any]:
    """The columns of a lease that is renewed now."""
    return {"lease_expires_at": clock.after(lease_seconds), "heartbeat_at": clock.now()}


def no_lease() -> sa.ColumnElement[bool]:
    """Rows that no lease protects."""
    return sa.or_(t.c.lease_expires_at.is_(None), t.c.lease_expires_at < clock.now())
