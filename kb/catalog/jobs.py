"""Jobs of documents: the work of reading one and embedding its passages.

A worker owns a running job while it is alive (`kb.data_dir.is_alive`), on another machine while its
lease lasts. `requeue_abandoned` queues the jobs of dead workers again, however often: a killed
worker is not the fault of its document. After `MANY_ATTEMPTS` it waits for the others of its share,
in case it is. The next worker continues from a job's checkpoint.

Jobs have shares that take turns, so that a caller with a thousand documents does not delay one with
two. Jobs that are `behind` wait for all others. Jobs of one upload share a
group. Knows nothing
about how a document is read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy import Connection

from kb import clock
from kb.catalog import tables, visible
from kb.catalog.engine import Catalog
from kb.catalog.meta import bump_waiting
from kb.catalog.tables import work as t
from kb.catalog.work import COLUMNS, Job, Work, job_from, renewed, started
from kb.errors import Conflict, NotFound
from kb.ids import JobId, new_id
from kb.scope import ALL_ACCESS, AccessScope

KIND = "ingest"
JobState = Literal["queued", "running", "ready", "partial", "failed"]
MANY_ATTEMPTS = 3  # after which a job is taken last
_CHECKPOINT = "kept"  # in the payload


@dataclass(frozen=True)
class Turn:
    """The order in which jobs are taken. Jobs of one upload have the same `group`; shares take
    turns; a job that is `behind` is taken after all others."""

    group: str | None = None
    share: str = ""
    behind: bool = False


FIRST_COME = Turn()


@dataclass(frozen=True)
class WaitingDocument:
    """A document without a version that answers may quote, whose first one waits to be read or is
    being read. Without `hardware` it is about any."""

    title: str
    owner: str
    builtin: bool
    hardware: tuple[str, ...] = ()


def checkpoint_of(job: Job) -> Mapping[str, Any] | None:
    """The checkpoint of an earlier attempt; None if the job starts from the beginning."""
    return job.payload.get(_CHECKPOINT)


class Jobs(Work):
    """The queue of documents."""

    def __init__(self, catalog: Catalog) -> None:
        super().__init__(catalog, KIND)

    def enqueue(
        self,
        connection: Connection,
        document_id: str,
        payload: Mapping[str, Any],
        turn: Turn = FIRST_COME,
    ) -> JobId:
        """Add a job inside the caller's transaction, which then calls `bump_waiting`."""
        job_id = JobId(new_id("job"))
        self.add(
            connection,
            job_id,
            payload,
            subject_id=document_id,
            group_id=turn.group,
            share=turn.share,
            behind=turn.behind,
        )
        return job_id

    def join_group(self, connection: Connection, document_id: str, group: str) -> None:
        """Move the last job of a document into this group, unless it succeeded."""
        last = connection.execute(
            sa.select(t.c.id, t.c.state)
            .where(self._mine, t.c.subject_id == document_id)
            .order_by(t.c.created_at.desc(), t.c.id.desc())
            .limit(1)
        ).one_or_none()
        if last is not None and last.state not in ("ready", "partial"):
            connection.execute(t.update().where(t.c.id == last.id).values(group_id=group))

    def is_in_group(self, connection: Connection, document_id: str, group: str) -> bool:
        found = sa.select(t.c.id).where(
            self._mine, t.c.subject_id == document_id, t.c.group_id == group
        )
        return connection.scalar(found.limit(1)) is not None

    def get(self, job_id: str, *, access_scope: AccessScope = ALL_ACCESS) -> Job:
        """The job with this id. Raises NotFound, also if the caller may not see it."""
        query = sa.select(*COLUMNS).where(t.c.id == job_id, visible.jobs(access_scope))
        with self._catalog.read() as connection:
            found = [job_from(row) for row in connection.execute(query)]
        if not found:
            raise NotFound(
                f"no job {job_id!r}", hint="GET /documents shows each document's job id."
            )
        return found[0]

    def in_state(self, state: JobState) -> list[Job]:
        """All jobs in a state, oldest first."""
        with self._catalog.read() as connection:
            return self.matching(connection, t.c.state == state)

    def counts(self) -> dict[str, int]:
        """Jobs per state."""
        query = sa.select(t.c.state, sa.func.count()).where(self._mine).group_by(t.c.state)
        with self._catalog.read() as connection:
            return {state: count for state, count in connection.execute(query)}

    # -- by a worker

    def claim(self, owner: str, lease_seconds: float, *, none_behind: bool = False) -> Job | None:
        """Take the next job, or None; the caller owns it until the lease expires. The share whose
        last job was taken longest ago comes first, with its oldest job that few workers have died
        with. With `none_behind`, jobs that are behind are left."""
        queued = [self._mine, t.c.state == "queued"]
        if none_behind:
            queued.append(t.c.behind.is_(False))
        earlier = t.alias()
        taken = sa.select(sa.func.coalesce(sa.func.max(earlier.c.started_at), "")).where(
            earlier.c.kind == KIND, earlier.c.share == t.c.share
        )
        turns = (
            sa.select(t.c.behind, t.c.share)
            .where(*queued)
            .group_by(t.c.behind, t.c.share)
            .order_by(
                t.c.behind,
                taken.scalar_subquery(),
                sa.func.min(t.c.created_at),
                sa.func.min(t.c.id),
            )
        )
        with self._catalog.write(rows_only=True) as connection:
            for behind, share in connection.execute(turns).all():
                where = (*queued, t.c.behind == behind, t.c.share == share)
                for tried in (t.c.attempts < MANY_ATTEMPTS, t.c.attempts >= MANY_ATTEMPTS):
                    job = self.start_oldest(connection, owner, lease_seconds, *where, tried)
                    if job is not None:  # else other workers are taking all of this share
                        return job
        return None

    def heartbeat(
        self,
        job_id: str,
        owner: str,
        lease_seconds: float,
        progress: Mapping[str, Any] | None = None,
        passages: int | None = None,
    ) -> None:
        """Renew the lease and store the job's progress. Raises Conflict if the caller no longer
        holds the job."""
        values = renewed(lease_seconds)
        if progress is not None:
            values["progress"] = dict(progress)
        if passages is not None:
            values["passages"] = passages
        with self._catalog.write(rows_only=True) as connection:
            self._update_owned(connection, job_id, owner, values)

    def report_passages(self, connection: Connection, owner: str, done: Mapping[str, int]) -> None:
        """Store the number of passages done, by job id. Jobs that this worker no longer holds are
        skipped."""
        if done:
            connection.execute(
                t.update()
                .where(
                    t.c.id == sa.bindparam("job"), t.c.state == "running", t.c.lease_owner == owner
                )
                .values(passages_done=sa.bindparam("passages_now")),
                [{"job": job_id, "passages_now": count} for job_id, count in done.items()],
            )

    def turns(self) -> dict[str, Turn]:
        """The turns of running jobs, by document."""
        query = sa.select(t.c.subject_id, t.c.group_id, t.c.share, t.c.behind)
        with self._catalog.read() as connection:
            rows = connection.execute(query.where(self._mine, t.c.state == "running"))
            return {row.subject_id: Turn(row.group_id, row.share, row.behind) for row in rows}

    def held_by_others(self, owner: str) -> set[str]:
        """Documents of running jobs of other workers, whose leases last."""
        query = sa.select(t.c.subject_id).where(
            self._mine,
            t.c.state == "running",
            t.c.lease_owner != owner,
            t.c.lease_expires_at >= clock.now(),
        )
        with self._catalog.read() as connection:
            return {document for document in connection.scalars(query) if document}

    def finish(
        self,
        connection: Connection,
        job_id: str,
        owner: str,
        state: JobState,
        *,
        result: Mapping[str, Any] | None = None,
        error: Mapping[str, Any] | None = None,
    ) -> None:
        """End a job inside the caller's transaction, which then calls `bump_waiting`. Raises
        Conflict if the caller no longer holds it."""
        if not self.end(connection, job_id, owner, state, result, error):
            raise _lost(job_id, owner)

    def _update_owned(
        self, connection: Connection, job_id: str, owner: str, values: Mapping[str, Any]
    ) -> None:
        if not self.update_held(connection, job_id, owner, values):
            raise _lost(job_id, owner)

    # -- checkpoints

    def store_checkpoint(
        self, connection: Connection, job: Job, owner: str, checkpoint: Mapping[str, Any]
    ) -> None:
        """Store the progress of a job, inside the transaction that stores its results. Raises
        Conflict if the caller no longer holds the job."""
        payload = {**job.payload, _CHECKPOINT: checkpoint}
        self._update_owned(connection, job.id, owner, {"payload": payload})

    def only_behind(
        self, connection: Connection, limit: int, but: Collection[str], *, locked: bool
    ) -> list[Job]:
        """The oldest queued jobs that are `behind`, except those in `but`; none while any other job
        is queued. With `locked`, no other worker takes them before the transaction ends."""
        queued = t.c.state == "queued"
        if self.matching(connection, queued, t.c.behind.is_(False), limit=1):
            return []
        behind = (queued, t.c.behind.is_(True), t.c.id.not_in(list(but)))
        return self.matching(connection, *behind, limit=limit, locked=locked)

    def take_with_checkpoints(
        self,
        connection: Connection,
        jobs: Sequence[Job],
        checkpoints: Mapping[str, Mapping[str, Any]],
        owner: str,
        lease_seconds: float,
    ) -> list[Job]:
        """Start queued jobs inside the transaction that stores their results, as `claim` and
        `store_checkpoint` do in two; `checkpoints` by job id. Returns the updated jobs."""
        shared = {**started(owner, lease_seconds), "passages_done": 0}
        del shared["attempts"]
        own = ("attempts", "payload", "progress", "passages")
        taken = [
            replace(
                job,
                state="running",
                lease_owner=owner,
                lease_expires_at=shared["lease_expires_at"],
                started_at=shared["started_at"],
                error=None,
                passages_done=0,
                attempts=job.attempts + 1,
                payload={**job.payload, _CHECKPOINT: checkpoints[job.id]},
                progress=checkpoints[job.id],
                passages=checkpoints[job.id]["passages"],
            )
            for job in jobs
        ]
        connection.execute(
            t.update()
            .where(t.c.id == sa.bindparam("job"))
            .values(**shared, **{name: sa.bindparam(f"own_{name}") for name in own}),
            [
                {"job": job.id, **{f"own_{name}": getattr(job, name) for name in own}}
                for job in taken
            ],
        )
        return taken

    # -- of dead workers

    def requeue_abandoned(
        self, lives: Callable[[str], bool | None] = lambda owner: None
    ) -> list[JobId]:
        """Queue again the running jobs of dead workers; their ids.

        `lives` tells whether an owner is alive; if it answers None, the lease decides.
        """
        with self._catalog.read() as connection:
            if not self.abandoned(connection, lives):
                return []  # the usual case, which needs no write lock
        with self._catalog.write() as connection:
            abandoned = self.abandoned(connection, lives, locked=True)
            ids = [job.id for job in abandoned]
            self.requeue(connection, ids)
            bump_waiting(connection)
        return ids

    def retry(
        self,
        job_id: str,
        *,
        access_scope: AccessScope = ALL_ACCESS,
        confirmed: Mapping[str, Any] | None = None,
    ) -> Job:
        """Queue a failed job again, with additions to its payload. Raises NotFound, and Conflict
        for one that did not fail."""
        job = self.get(job_id, access_scope=access_scope)
        again: dict[str, Any] = {"state": "queued", "error": None, "finished_at": None}
        again["heartbeat_at"] = clock.now()
        if confirmed:
            again["payload"] = {**job.payload, **confirmed}
        with self._catalog.write() as connection:
            changed = connection.execute(
                t.update().where(t.c.id == job_id, t.c.state == "failed").values(**again)
            )
            if changed.rowcount != 1:
                raise Conflict(
                    f"job {job_id} is not in state failed", hint="Only failed jobs can be retried."
                )
            bump_waiting(connection)
        return self.get(job_id, access_scope=access_scope)


def waiting_documents(connection: Connection) -> list[WaitingDocument]:
    """The documents whose first version is in the queue, by title."""
    documents, scopes = tables.documents.c, tables.document_scopes.c
    queued = sa.select(t.c.subject_id).where(
        t.c.kind == KIND, t.c.state.in_(("queued", "running")), t.c.subject_id.is_not(None)
    )
    rows = connection.execute(
        sa.select(
            documents.id, documents.title, documents.access_scope, documents.origin, scopes.value
        )
        .outerjoin(
            tables.document_scopes,
            sa.and_(scopes.document_id == documents.id, scopes.kind == "hardware"),
        )
        .where(documents.current_version_id.is_(None), documents.id.in_(queued))
        .order_by(documents.title, documents.id, scopes.value)
    ).all()
    waiting: dict[str, WaitingDocument] = {}
    for row in rows:
        known = waiting.get(row.id) or WaitingDocument(
            row.title, row.access_scope, row.origin == "builtin"
        )
        hardware = known.hardware if row.value is None else (*known.hardware, row.value)
        waiting[row.id] = replace(known, hardware=hardware)
    return list(waiting.values())


def _lost(job_id: str, owner: str) -> Conflict:
    return Conflict(
        f"job {job_id} is no longer owned by {owner}",
        hint="Its lease ran out; the work of this attempt is discarded.",
    )
