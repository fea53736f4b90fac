"""Trajectories that others told, as rows; what was told and what was found of it lie in blobs.

Knows nothing about evaluating: a row is what somebody claims until its state is `ready`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import sqlalchemy as sa

from kb import clock
from kb.blobs import Blobs
from kb.catalog.engine import Catalog
from kb.catalog.tables import search as t
from kb.errors import NotFound, StoreError
from kb.ids import derived_id
from kb.scope import ALL_ACCESS

# unverified: the hardware is not here, so nothing in it was measured. failed: it could not be.
State = Literal["queued", "running", "ready", "failed", "unverified"]
STATES: tuple[State, ...] = get_args(State)
_FOUND = "found_blob"


@dataclass(frozen=True)
class StoredTrajectory:
    """told: key of the blob with what was told. found: of that with what was measured, None before
    it is ready. summary: for lists and answers."""

    id: str
    origin: str
    state: State
    told: str
    found: str | None
    summary: Mapping[str, Any]
    created_at: str


class Trajectories:
    """Every method is one transaction."""

    def __init__(self, catalog: Catalog, blobs: Blobs, access_scope: str = ALL_ACCESS) -> None:
        self._catalog = catalog
        self._blobs = blobs
        self._scope = access_scope

    def add(
        self,
        identity: str,
        origin: str,
        state: State,
        told: Mapping[str, Any],
        summary: Mapping[str, Any],
    ) -> bool:
        """False where a row with this id is there already; then nothing changes."""
        key = self._blobs.put(json.dumps(told, sort_keys=True).encode())
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
                    access_scope=self._scope,
                )
            )
        return True

    def find(self, identity: str) -> StoredTrajectory:
        """Raises NotFound."""
        with self._catalog.read() as connection:
            row = connection.execute(
                self._select().where(t.trajectories.c.id == identity)
            ).one_or_none()
        if row is None:
            raise NotFound(
                f"no trajectory {identity[:80]!r}",
                hint="GET /trajectories and `kernlore trajectories list` show those there are.",
            )
        return _stored(row)

    def latest(self, limit: int = 50, states: Sequence[State] = STATES) -> list[StoredTrajectory]:
        """The newest first."""
        query = self._select().where(t.trajectories.c.state.in_(states))
        newest = t.trajectories.c.created_at.desc()
        with self._catalog.read() as connection:
            rows = connection.execute(query.order_by(newest, t.trajectories.c.id).limit(limit))
            return [_stored(row) for row in rows]

    def change(self, identity: str, state: State, **summary: Any) -> StoredTrajectory:
        """Set the state and what the summary is to say beside what it says already."""
        with self._catalog.write() as connection:
            row = connection.execute(self._select().where(t.trajectories.c.id == identity)).one()
            connection.execute(
                sa.update(t.trajectories)
                .where(t.trajectories.c.id == identity)
                .values(state=state, summary={**row.summary, **summary})
            )
        return self.find(identity)

    def take(self, identity: str, worker: str) -> bool:
        """Queued becomes running; False where somebody else has it, or it is not queued."""
        with self._catalog.write() as connection:
            row = connection.execute(self._select().where(t.trajectories.c.id == identity)).one()
            if row.state != "queued":
                return False
            connection.execute(
                sa.update(t.trajectories)
                .where(t.trajectories.c.id == identity)
                .values(state="running", summary={**row.summary, "worker": worker})
            )
        return True

    def finish(self, identity: str, found: Mapping[str, Any], **summary: Any) -> StoredTrajectory:
        """Ready, with what was measured."""
        key = self._blobs.put(json.dumps(found, sort_keys=True).encode())
        return self.change(identity, "ready", **{_FOUND: key}, **summary)

    def dtype_of(self, problem_sha256: str, case: str) -> str | None:
        """Of a problem's case as an evaluation found it; None before there is one."""
        cases = t.problem_cases
        query = sa.select(cases.c.dtype).where(
            cases.c.problem_id == derived_id("prb", problem_sha256), cases.c.name == case
        )
        with self._catalog.read() as connection:
            return connection.execute(query).scalar_one_or_none()

    def told(self, stored: StoredTrajectory) -> Mapping[str, Any]:
        return self._json(stored.told)

    def found(self, stored: StoredTrajectory) -> Mapping[str, Any] | None:
        return None if stored.found is None else self._json(stored.found)

    def _json(self, key: str) -> Mapping[str, Any]:
        try:
            value = json.loads(self._blobs.get(key))
        except ValueError as problem:
            raise StoreError(
                f"the stored file {key[:12]} is damaged", hint="Restore it from a backup."
            ) from problem
        return dict(value)

    def _select(self) -> sa.Select[Any]:
        return sa.select(t.trajectories).where(t.trajectories.c.access_scope == self._scope)


def _stored(row: sa.Row[Any]) -> StoredTrajectory:
    summary = {name: value for name, value in row.summary.items() if name != _FOUND}
    return StoredTrajectory(
        row.id,
        row.origin,
        row.state,
        row.blob_key,
        row.summary.get(_FOUND),
        summary,
        row.created_at,
    )
