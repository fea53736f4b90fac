"""External trajectories as rows; the report and the results of measuring it lie in blobs.

    unverified | failed -> queued -> running -> ready | failed
    ready -> queued, where a step could not be timed: the machine was busy

A worker owns a running trajectory only while its lease lasts. When the worker dies, the lease runs
out and `expire` queues the trajectory again: evaluations that were finished are looked up by their
keys, so nothing is lost. Every change names the states that it may start from; in any other state
nothing changes.

Knows nothing about evaluating: a row is what somebody claims until its state is `ready`.
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
from kb.errors import NotFound, StoreError
from kb.ids import derived_id
from kb.jobs import check_transition
from kb.scope import ALL_ACCESS, AccessScope

# unverified: the hardware is not here, so nothing in it was measured. failed: it could not be.
State = Literal["queued", "running", "ready", "failed", "unverified"]
STATES: tuple[State, ...] = get_args(State)
# Kept in the summary, shown to nobody.
_RESULTS, _OWNER, _LEASE = "found_blob", "worker", "lease_expires_at"


@dataclass(frozen=True)
class StoredTrajectory:
    """The row of an external trajectory.

    `report_key` is the key of the blob with the report, `results_key` that of the blob with what
    was measured, None before the trajectory is ready. `summary` is for lists and answers.
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

    def add(
        self,
        identity: str,
        origin: str,
        state: State,
        report: Mapping[str, Any],
        summary: Mapping[str, Any],
    ) -> bool:
        """Store a report. False, and nothing changes, where a row with this id exists already."""
        key = self._blobs.put(json.dumps(report, sort_keys=True).encode())
        with self._catalog.write() as connection:
            known = sa.select(t.trajectories.c.id).where(t.trajectories.c.id == identity)
            if connection.execute(known).one_or_none() is not None:
                return False
            connection.execute(
                sa.insert(t.trajectories).values(
                    id=identity,
                    run_id=None,
                    origin=origin,
                    state=state,
                    blob_key=key,
                    summary=dict(summary),
                    created_at=clock.now(),
                    access_scope=self._scope.owner,
                )
            )
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
        query = self._select().where(t.trajectories.c.state.in_(states))
        newest = t.trajectories.c.created_at.desc()
        with self._catalog.read() as connection:
            rows = connection.execute(query.order_by(newest, t.trajectories.c.id))
            return [_stored(row) for row in islice(filter(self._sees, rows), limit)]

    def _sees(self, row: sa.Row[Any]) -> bool:
        """By the hardware that its summary names; one that names none is nobody's to see."""
        return not self._scope.restricted or self._scope.sees([str(row.summary.get("hardware"))])

    def change(
        self, identity: str, state: State, *, only_from: Sequence[State], **summary: Any
    ) -> bool:
        """Set the state and add the entries of `summary` to the stored summary.

        Returns False, and nothing changes, where the trajectory is in none of the states of
        `only_from`.
        """
        with self._catalog.write(rows_only=True) as connection:
            row = self._in_state(connection, identity, only_from)
            if row is not None:
                _set(connection, row, state, summary)
        return row is not None

    # -- by a worker

    def claim(self, owner: str, lease_seconds: float) -> StoredTrajectory | None:
        """Start the oldest that is queued, or none. What another worker takes at this moment is
        passed over.
        """
        oldest = self._select().where(t.trajectories.c.state == "queued")
        oldest = oldest.order_by(t.trajectories.c.created_at, t.trajectories.c.id).limit(1)
        lease = {_OWNER: owner, _LEASE: clock.after(lease_seconds)}
        with self._catalog.write(rows_only=True) as connection:
            row = connection.execute(oldest.with_for_update(skip_locked=True)).one_or_none()
            if row is not None:
                _set(connection, row, "running", lease)
        return None if row is None else self.find(row.id)

    def take(self, identity: str, owner: str, lease_seconds: float) -> bool:
        """Start a queued trajectory; it is the caller's until the lease runs out.

        Returns False where it is not queued, for example because another worker has it.
        """
        lease = {_OWNER: owner, _LEASE: clock.after(lease_seconds)}
        return self.change(identity, "running", only_from=("queued",), **lease)

    def renew(self, identity: str, owner: str, lease_seconds: float) -> bool:
        """Extend the lease. Returns False where the trajectory is no longer the caller's."""
        return self._own(identity, owner, "running", {_LEASE: clock.after(lease_seconds)})

    def release(self, identity: str, owner: str) -> bool:
        """Queue it again. Returns False where it is no longer the caller's."""
        return self._own(identity, owner, "queued", {_OWNER: None, _LEASE: None})

    def end(
        self,
        identity: str,
        owner: str,
        state: State,
        results: Mapping[str, Any] | None = None,
        **summary: Any,
    ) -> bool:
        """End it as `ready`, with the results of measuring, or as `failed`.

        Returns False, and nothing changes, where it is no longer the caller's: the worker that took
        over will end it.
        """
        changes: dict[str, Any] = {_OWNER: None, _LEASE: None, **summary}
        if results is not None:
            changes[_RESULTS] = self._blobs.put(json.dumps(results, sort_keys=True).encode())
        return self._own(identity, owner, state, changes)

    def expire(self) -> list[str]:
        """Queue again every running trajectory whose lease ran out; returns their ids."""
        if not self.latest(1, ("running",)):
            return []  # the usual case, which needs no write lock
        with self._catalog.write(rows_only=True) as connection:
            query = self._select().where(t.trajectories.c.state == "running")
            query = query.with_for_update(skip_locked=True)
            lapsed = [row for row in connection.execute(query).all() if _lapsed(row)]
            for row in lapsed:
                _set(connection, row, "queued", {_OWNER: None, _LEASE: None})
        return [row.id for row in lapsed]

    def _own(self, identity: str, owner: str, state: State, summary: Mapping[str, Any]) -> bool:
        with self._catalog.write(rows_only=True) as connection:
            row = self._in_state(connection, identity, ("running",))
            if row is None or row.summary.get(_OWNER) != owner:
                return False
            _set(connection, row, state, summary)
        return True

    def _in_state(
        self, connection: Connection, identity: str, states: Sequence[State]
    ) -> sa.Row[Any] | None:
        """Read under the row's lock, which holds until the change is kept: nobody gets between.

        Not by SQL on the summary's JSON: it may hold an infinite bound, which SQLite's functions
        refuse before 3.42."""
        chosen = t.trajectories.c.id == identity, t.trajectories.c.state.in_(states)
        query = self._select().where(*chosen).with_for_update()
        return connection.execute(query).one_or_none()

    def dtype_of(self, problem_sha256: str, case: str) -> str | None:
        """The element type of a problem's case, as an evaluation stored it; None before any did."""
        cases = t.problem_cases
        query = sa.select(cases.c.dtype).where(
            cases.c.problem_id == derived_id("prb", problem_sha256), cases.c.name == case
        )
        with self._catalog.read() as connection:
            return connection.execute(query).scalar_one_or_none()

    def report(self, stored: StoredTrajectory) -> Mapping[str, Any]:
        """What its author reported. Raises StoreError where the stored file is damaged."""
        return self._json(stored.report_key)

    def results(self, stored: StoredTrajectory) -> Mapping[str, Any] | None:
        """What was measured here; None before it is ready. Raises StoreError as `report` does."""
        return None if stored.results_key is None else self._json(stored.results_key)

    def _json(self, key: str) -> Mapping[str, Any]:
        try:
            value = json.loads(self._blobs.get(key))
        except ValueError as problem:
            raise StoreError(
                f"the stored file {key[:12]} is damaged", hint="Restore it from a backup."
            ) from problem
        return dict(value)

    def _select(self) -> sa.Select[Any]:
        return sa.select(t.trajectories).where(t.trajectories.c.access_scope == self._scope.owner)


def _set(
    connection: Connection, row: sa.Row[Any], state: State, summary: Mapping[str, Any]
) -> None:
    again = (row.state, state) == ("ready", "queued")  # other work that is ready has ended
    if state != row.state and not again:  # a renewed lease leaves it as it is
        check_transition(row.state, state)
    connection.execute(
        sa.update(t.trajectories)
        .where(t.trajectories.c.id == row.id)
        .values(state=state, summary={**row.summary, **summary})
    )


def _lapsed(row: sa.Row[Any]) -> bool:
    """A row without a lease has no worker either."""
    until = row.summary.get(_LEASE)
    return until is None or str(until) < clock.now()


def _stored(row: sa.Row[Any]) -> StoredTrajectory:
    kept = (_RESULTS, _OWNER, _LEASE)
    summary = {name: value for name, value in row.summary.items() if name not in kept}
    return StoredTrajectory(
        row.id,
        row.origin,
        row.state,
        row.blob_key,
        row.summary.get(_RESULTS),
        summary,
        row.created_at,
    )
