"""External trajectories: searches of other optimizers, and their evaluation here.

The report and the results of measuring it are blobs. The state is that of the trajectory's work
(`kb.catalog.work`): a row is a claim of its author until the state is `ready`. When a worker dies,
`expire` queues the trajectory again: finished evaluations are looked up by their keys, so nothing
is lost. Every change names the states that it may start from; in any other state nothing changes.

Knows nothing about evaluating.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, get_args

import sqlalchemy as sa
from sqlalchemy import Connection

from kb import clock
from kb.blobs import Blobs
from kb.catalog import tables as t
from kb.catalog.engine import Catalog
from kb.catalog.work import Work, check_transition
from kb.errors import NotFound, StoreError
from kb.ids import derived_id
from kb.scope import ALL_ACCESS, AccessScope

# unverified: the hardware is not here, so nothing in it was measured. failed: it could not be.
State = Literal["queued", "running", "ready", "failed", "unverified"]
STATES: tuple[State, ...] = get_args(State)
_RESULTS = "found_blob"  # in the stored summary, not in that of the record


@dataclass(frozen=True)
class StoredTrajectory:
    """The row of an external trajectory.

    `report_key` is the key of the blob with the report, `results_key` that of the blob with the
    measurements, None before the trajectory is ready. `summary` is for lists and answers.
    """

    id: str
    origin: str
    state: State
    report_key: str
    results_key: str | None
    summary: Mapping[str, Any]
    created_at: str


class Trajectories:
    """Every method is one transaction."""

    def __init__(
        self, catalog: Catalog, blobs: Blobs, access_scope: AccessScope = ALL_ACCESS
    ) -> None:
        self._catalog = catalog
        self._blobs = blobs
        self._scope = access_scope
        self._work = Work(catalog, "trajectory")

    def add(
        self,
        identity: str,
        origin: str,
        state: State,
        report: Mapping[str, Any],
        summary: Mapping[str, Any],
    ) -> bool:
        """Store a report. Returns False, without a change, if a row with this id exists."""
        key = self._blobs.put(json.dumps(report, sort_keys=True).encode())
        with self._catalog.write() as connection:
            known = sa.select(t.trajectories.c.id).where(t.trajectories.c.id == identity)
            if connection.execute(known).one_or_none() is not None:
                return False
            row = {
                "id": identity,
                "origin": origin,
                "blob_key": key,
                "summary": dict(summary),
                "created_at": clock.now(),
                "access_scope": self._scope.owner,
            }
            connection.execute(sa.insert(t.trajectories).values(**row))
            self._work.add(connection, identity, {}, state, created_at=row["created_at"])
        return True

    def find(self, identity: str) -> StoredTrajectory:
        """The trajectory with this id. Raises NotFound."""
        with self._catalog.read() as connection:
            row = connection.execute(
                self._select().where(t.trajectories.c.id == identity)
            ).one_or_none()
        if row is None or not self._sees(row):
            raise NotFound(
                f"no trajectory {identity[:80]!r}",
                hint="GET /trajectories and `kernlore trajectories list` show those there are.",
            )
        return _stored(row)

    def latest(self, limit: int = 50, states: Sequence[State] = STATES) -> list[StoredTrajectory]:
        """Trajectories in any of these states, newest first."""
        query = self._select().where(t.work.c.state.in_(states))
        newest = t.trajectories.c.created_at.desc()
        with self._catalog.read() as connection:
            rows = connection.execute(query.order_by(newest, t.trajectories.c.id))
            return [_stored(row) for row in islice(filter(self._sees, rows), limit)]

    def _sees(self, row: sa.Row[Any]) -> bool:
        """By the hardware in its summary; a restricted caller sees none without hardware."""
        return not self._scope.restricted or self._scope.sees([str(row.summary.get("hardware"))])

    def _select(self) -> sa.Select[Any]:
        return (
            sa.select(t.trajectories, t.work.c.state)
            .join(t.work, t.work.c.id == t.trajectories.c.id)
            .where(t.trajectories.c.access_scope == self._scope.owner)
        )

    def change(
        self, identity: str, state: State, *, only_from: Sequence[State], **summary: Any
    ) -> bool:
        """Set the state and add the entries of `summary` to the stored summary.

        Returns False, without a change, if the trajectory is in none of the states of `only_from`.
        """
        for before in only_from:
            check_transition(before, state)
        chosen = t.work.c.id == identity, t.work.c.state.in_(only_from)
        with self._catalog.write(rows_only=True) as connection:
            changed = connection.execute(t.work.update().where(*chosen).values(state=state))
            if changed.rowcount == 1:
                _add_to_summary(connection, identity, summary)
        return changed.rowcount == 1

    # -- by a worker

    def claim(self, owner: str, lease_seconds: float) -> StoredTrajectory | None:
        """Start the oldest that is queued, or None."""
        job = self._work.take(owner, lease_seconds)
        return None if job is None else self.find(job.id)

    def take(self, identity: str, owner: str, lease_seconds: float) -> bool:
        """Start a queued trajectory; it is the caller's until the lease expires.

        Returns False if it is not queued, for example because another worker has it.
        """
        queued = t.work.c.id == identity, t.work.c.state == "queued"
        return self._work.take(owner, lease_seconds, *queued) is not None

    def renew(self, identity: str, owner: str, lease_seconds: float) -> bool:
        """Extend the lease. Returns False if the caller no longer holds the trajectory."""
        return self._work.renew(owner, lease_seconds, identity)

    def release(self, identity: str, owner: str) -> bool:
        """Queue it again. Returns False if the caller has lost it."""
        return self._work.give_back(owner, identity) == 1

    def end(
        self,
        identity: str,
        owner: str,
        state: State,
        results: Mapping[str, Any] | None = None,
        **summary: Any,
    ) -> bool:
        """End it as `ready`, with its measurements, or as `failed`.

        Returns False, without a change, if the caller has lost it: the worker that took
        over will end it.
        """
        if results is not None:
            summary[_RESULTS] = self._blobs.put(json.dumps(results, sort_keys=True).encode())
        with self._catalog.write(rows_only=True) as connection:
            ended = self._work.end(connection, identity, owner, state)
            if ended:
                _add_to_summary(connection, identity, summary)
        return ended

    def expire(self) -> list[str]:
        """Queue again every running trajectory whose lease has expired; returns their ids."""
        with self._catalog.read() as connection:
            if not self._work.abandoned(connection):
                return []  # the usual case, which needs no write lock
        with self._catalog.write(rows_only=True) as connection:
            ids = [job.id for job in self._work.abandoned(connection, locked=True)]
            self._work.requeue(connection, ids)
        return list(ids)

    def dtype_of(self, problem_sha256: str, case: str) -> str | None:
        """The element type of a problem's case, as an evaluation stored it; None before any did."""
        cases = t.problem_cases
        query = sa.select(cases.c.dtype).where(
            cases.c.problem_id == derived_id("prb", problem_sha256), cases.c.name == case
        )
        with self._catalog.read() as connection:
            return connection.execute(query).scalar_one_or_none()

    def report(self, stored: StoredTrajectory) -> Mapping[str, Any]:
        """The report of its author. Raises StoreError if the stored file is damaged."""
        return self._json(stored.report_key)

    def results(self, stored: StoredTrajectory) -> Mapping[str, Any] | None:
        """The measurements of a trajectory; None before it is ready. Raises StoreError."""
        return None if stored.results_key is None else self._json(stored.results_key)

    def _json(self, key: str) -> Mapping[str, Any]:
        try:
            value = json.loads(self._blobs.get(key))
        except ValueError as problem:
            raise StoreError(
                f"the stored file {key[:12]} is damaged", hint="Restore it from a backup."
            ) from problem
        return dict(value)


def _add_to_summary(connection: Connection, identity: str, entries: Mapping[str, Any]) -> None:
    """Add entries to a trajectory's summary. The transaction must have locked its row of work."""
    chosen = t.trajectories.c.id == identity
    summary = connection.execute(sa.select(t.trajectories.c.summary).where(chosen)).scalar_one()
    changed = sa.update(t.trajectories).where(chosen).values(summary={**summary, **entries})
    connection.execute(changed)


def _stored(row: sa.Row[Any]) -> StoredTrajectory:
    summary = dict(row.summary)
    results_key = summary.pop(_RESULTS, None)
    return StoredTrajectory(
        row.id, row.origin, row.state, row.blob_key, results_key, summary, row.created_at
    )
