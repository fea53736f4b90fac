"""Jobs of documents as rows; their states and transitions are those of `kb.jobs`.

A worker owns a running job while it is alive (`kb.data_dir`); of one that does not say, while its
lease lasts. `expire` fails the jobs of dead workers with code `lease_expired`, and `retry` queues
such a job again. A job of which the worker kept what it had done is queued at once: the next worker
goes on from there.

Jobs have shares that take turns, so that who queued a thousand does not keep out who queued two.
Jobs that are `behind` wait for all others. A group names what was sent together. Knows nothing
about what a job does."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy import Connection

from kb import clock
from kb.catalog import visible
from kb.catalog.engine import Catalog, portions
from kb.catalog.tables import jobs
from kb.errors import Conflict, NotFound
from kb.ids import JobId, new_id
from kb.jobs import ENDED, check_transition
from kb.scope import ALL_ACCESS, AccessScope

JobState = Literal["queued", "running", "ready", "partial", "failed"]


@dataclass(frozen=True)
class Job:
    """A row of the queue. Times are UTC ISO-8601; `error` has the shape of an error answer."""

    id: JobId
    kind: str
    state: JobState
    subject_id: str | None
    payload: Mapping[str, Any]
    progress: Mapping[str, Any]
    result: Mapping[str, Any]
    error: Mapping[str, Any] | None
    attempts: int
    lease_owner: str | None
    created_at: str
    started_at: str | None
    finished_at: str | None
    group_id: str | None
    share: str
    behind: bool
    passages: int | None
    passages_done: int

    @property
    def kept(self) -> Mapping[str, Any] | None:
        """What an earlier worker had done of it; None where that is nothing."""
        return self.payload.get(_KEPT)

    @property
    def finished(self) -> bool:
        """Whether it ended, well or not."""
        return self.state in ENDED


@dataclass(frozen=True)
class Turn:
    """When a job is taken. `group` names what was sent together; shares take turns; what is
    `behind` waits for all that is not.
    """

    group: str | None = None
    share: str = ""
    behind: bool = False


_KEPT = "kept"  # in the payload: what is left to do needs only this
FIRST_COME = Turn()
_COLUMNS = [jobs.c[name] for name in Job.__dataclass_fields__]


_FREE: dict[str, Any] = {"lease_owner": None, "lease_expires_at": None}
_QUEUED_AGAIN: dict[str, Any] = {"state": "queued", **_FREE}
_EXPIRED: dict[str, Any] = {
    "state": "failed",
    "error": {
        "code": "lease_expired",
        "message": "the worker stopped without finishing",
        "hint": "Retry the job; if it fails again, the document itself may kill the parser.",
        "details": {},
    },
    **_FREE,
}


def _lapsed(
    connection: Connection, lives: Callable[[str], bool | None], *, locked: bool = False
) -> list[Job]:
    """Running jobs whose worker is dead. Its own word is asked before the clock, which may jump.
    With `locked`, nobody renews their leases until the transaction ends; what somebody renews at
    this moment is left out.
    """
    query = (
        sa.select(*_COLUMNS, (jobs.c.lease_expires_at < clock.now()).label("late"))
        .where(jobs.c.state == "running")
        .order_by(jobs.c.created_at, jobs.c.id)
    )
    rows = connection.execute(query.with_for_update(skip_locked=True) if locked else query).all()
    answers = {row.lease_owner: lives(row.lease_owner) for row in rows}
    dead = [row for row in rows if answers[row.lease_owner] is False]
    unknown = [row for row in rows if answers[row.lease_owner] is None]
    lapsed = [*dead, *(row for row in unknown if row.late)]
    names = Job.__dataclass_fields__
    return [Job(**{name: row._mapping[name] for name in names}) for row in lapsed]


def _job(row: sa.Row[Any]) -> Job:
    return Job(**row._mapping)


def _started(connection: Connection, job_id: str, owner: str, lease_seconds: float) -> Job:
    connection.execute(
        jobs.update()
        .where(jobs.c.id == job_id)
        .values(
            state="running",
            attempts=jobs.c.attempts + 1,
            lease_owner=owner,
            lease_expires_at=clock.after(lease_seconds),
            heartbeat_at=clock.now(),
            started_at=clock.now(),
            error=None,
            progress={},
            passages=None,
            passages_done=0,
        )
    )
    return _job(connection.execute(sa.select(*_COLUMNS).where(jobs.c.id == job_id)).one())


class Jobs:
    """The queue. Every method is one transaction."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def enqueue(
        self,
        connection: Connection,
        kind: str,
        subject_id: str,
        payload: Mapping[str, Any],
        turn: Turn = FIRST_COME,
    ) -> JobId:
        """Add a job inside the caller's transaction, so that it exists exactly when its subject
        does.
        """
        job_id = JobId(new_id("job"))
        connection.execute(
            jobs.insert().values(
                id=job_id,
                kind=kind,
                state="queued",
                subject_id=subject_id,
                payload=dict(payload),
                progress={},
                result={},
                created_at=clock.now(),
                group_id=turn.group,
                share=turn.share,
                behind=turn.behind,
            )
        )
        return job_id

    @staticmethod
    def join_group(connection: Connection, subject_id: str, group: str) -> None:
        """The last job of a subject becomes one of this group, unless it ended well."""
        last = connection.execute(
            sa.select(jobs.c.id, jobs.c.state)
            .where(jobs.c.subject_id == subject_id)
            .order_by(jobs.c.created_at.desc(), jobs.c.id.desc())
            .limit(1)
        ).one_or_none()
        if last is not None and last.state not in ("ready", "partial"):
            connection.execute(jobs.update().where(jobs.c.id == last.id).values(group_id=group))

    def get(self, job_id: str, *, access_scope: AccessScope = ALL_ACCESS) -> Job:
        """The job with this id. Raises NotFound, also where the caller may not see it."""
        with self._catalog.read() as connection:
            row = connection.execute(
                sa.select(*_COLUMNS).where(jobs.c.id == job_id, visible.jobs(access_scope))
            ).one_or_none()
        if row is None:
            raise NotFound(
                f"no job {job_id!r}", hint="GET /documents shows each document's job id."
            )
        return _job(row)

    def in_state(self, state: JobState) -> list[Job]:
        """All jobs in a state, oldest first."""
        with self._catalog.read() as connection:
            rows = connection.execute(
                sa.select(*_COLUMNS)
                .where(jobs.c.state == state)
                .order_by(jobs.c.created_at, jobs.c.id)
            )
            return [_job(row) for row in rows]

    def counts(self) -> dict[str, int]:
        """Jobs per state."""
        with self._catalog.read() as connection:
            rows = connection.execute(
                sa.select(jobs.c.state, sa.func.count()).group_by(jobs.c.state)
            )
            return {state: count for state, count in rows}

    def claim(
        self, kinds: Sequence[str], owner: str, lease_seconds: float, *, none_behind: bool = False
    ) -> Job | None:
        """Take the job whose turn it is, or none; the caller owns it until the lease runs out.

        The share comes first of which a job was taken longest ago, and of it the oldest job. With
        `none_behind`, jobs that are behind are left where they are.
        """
        queued = [jobs.c.state == "queued", jobs.c.kind.in_(kinds)]
        if none_behind:
            queued.append(jobs.c.behind.is_(False))
        earlier = jobs.alias()
        taken = sa.select(sa.func.coalesce(sa.func.max(earlier.c.started_at), "")).where(
            earlier.c.share == jobs.c.share
        )
        with self._catalog.write(rows_only=True) as connection:
            turns = connection.execute(
                sa.select(jobs.c.behind, jobs.c.share)
                .where(*queued)
                .group_by(jobs.c.behind, jobs.c.share)
                .order_by(
                    jobs.c.behind,
                    taken.scalar_subquery(),
                    sa.func.min(jobs.c.created_at),
                    sa.func.min(jobs.c.id),
                )
            ).all()
            for turn in turns:
                # What another worker is taking at this moment is passed over.
                job_id = connection.execute(
                    sa.select(jobs.c.id)
                    .where(*queued, jobs.c.behind == turn.behind, jobs.c.share == turn.share)
                    .order_by(jobs.c.created_at, jobs.c.id)
                    .limit(1)
                    .with_for_update(skip_locked=True)
                ).scalar_one_or_none()
                if job_id is not None:
                    return _started(connection, job_id, owner, lease_seconds)
        return None

    def heartbeat(
        self,
        job_id: str,
        owner: str,
        lease_seconds: float,
        progress: Mapping[str, Any] | None = None,
        passages: int | None = None,
    ) -> None:
        """Renew the lease, and say how far the job is. Raises Conflict when the job is no longer
        the caller's.
        """
        values: dict[str, Any] = {
            "heartbeat_at": clock.now(),
            "lease_expires_at": clock.after(lease_seconds),
        }
        if progress is not None:
            values["progress"] = dict(progress)
        if passages is not None:
            values["passages"] = passages
        with self._catalog.write(rows_only=True) as connection:
            self._update_owned(connection, job_id, owner, values)

    def report_passages(self, connection: Connection, owner: str, done: Mapping[str, int]) -> None:
        """Passages done by job id. What is no longer this worker's is passed over."""
        if done:
            connection.execute(
                jobs.update()
                .where(
                    jobs.c.id == sa.bindparam("job"),
                    jobs.c.state == "running",
                    jobs.c.lease_owner == owner,
                )
                .values(passages_done=sa.bindparam("passages_now")),
                [{"job": job_id, "passages_now": count} for job_id, count in done.items()],
            )

    def turns(self) -> dict[str, Turn]:
        """The turns of what is running, by subject."""
        with self._catalog.read() as connection:
            rows = connection.execute(
                sa.select(jobs.c.subject_id, jobs.c.group_id, jobs.c.share, jobs.c.behind).where(
                    jobs.c.state == "running"
                )
            )
            return {row.subject_id: Turn(row.group_id, row.share, row.behind) for row in rows}

    def held_by_others(self, owner: str) -> set[str]:
        """Subjects of running jobs of other workers, whose leases last."""
        with self._catalog.read() as connection:
            query = sa.select(jobs.c.subject_id).where(
                jobs.c.state == "running",
                jobs.c.lease_owner != owner,
                jobs.c.lease_expires_at >= clock.now(),
            )
            return {subject for subject in connection.execute(query).scalars() if subject}

    def renew(self, owner: str, lease_seconds: float) -> None:
        """Renew the lease of every job that this worker still owns. What it writes itself at this
        moment waits for the next time: rows that are locked in two orders would be a deadlock.
        """
        mine = sa.select(jobs.c.id).where(jobs.c.state == "running", jobs.c.lease_owner == owner)
        renewed = {"heartbeat_at": clock.now(), "lease_expires_at": clock.after(lease_seconds)}
        with self._catalog.write(rows_only=True) as connection:
            ids = list(connection.execute(mine.with_for_update(skip_locked=True)).scalars())
            for some in portions(ids):
                connection.execute(jobs.update().where(jobs.c.id.in_(some)).values(**renewed))

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
        """End a job inside the caller's transaction: its effects and its end are one step.

        Raises Conflict when the job is no longer the caller's.
        """
        check_transition("running", state)
        values = {
            "state": state,
            "result": dict(result or {}),
            "error": dict(error) if error else None,
            "finished_at": clock.now(),
            "lease_owner": None,
            "lease_expires_at": None,
        }
        self._update_owned(connection, job_id, owner, values)

    @staticmethod
    def _update_owned(
        connection: Connection, job_id: str, owner: str, values: Mapping[str, Any]
    ) -> None:
        changed = connection.execute(
            jobs.update()
            .where(jobs.c.id == job_id, jobs.c.state == "running", jobs.c.lease_owner == owner)
            .values(**values)
        )
        if changed.rowcount != 1:
            raise Conflict(
                f"job {job_id} is no longer owned by {owner}",
                hint="Its lease ran out; the work of this attempt is discarded.",
            )

    def release(self, owner: str, but: Collection[str] = ()) -> int:
        """Queue again what this worker holds, as if it had not begun; returns how many. Jobs of the
        ids in `but` stay.
        """
        with self._catalog.write() as connection:
            changed = connection.execute(
                jobs.update()
                .where(
                    jobs.c.state == "running",
                    jobs.c.lease_owner == owner,
                    jobs.c.id.not_in(list(but)),
                )
                .values(
                    state="queued",
                    attempts=jobs.c.attempts - 1,
                    progress={},
                    passages=None,
                    passages_done=0,
                    lease_owner=None,
                    lease_expires_at=None,
                )
            )
            return changed.rowcount

    @staticmethod
    def only_behind(
        connection: Connection, kind: str, limit: int, but: Collection[str], *, locked: bool
    ) -> list[Job]:
        """The oldest queued jobs of a kind, those of the ids in `but` left out; none as long as one
        is queued that is not behind. With `locked`, nobody else takes them meanwhile.
        """
        queued = (jobs.c.state == "queued", jobs.c.kind == kind)
        first = sa.select(jobs.c.id).where(*queued, jobs.c.behind.is_(False)).limit(1)
        if connection.execute(first).first() is not None:
            return []
        query = (
            sa.select(*_COLUMNS)
            .where(*queued, jobs.c.behind.is_(True), jobs.c.id.not_in(list(but)))
            .order_by(jobs.c.created_at, jobs.c.id)
            .limit(limit)
        )
        rows = connection.execute(query.with_for_update(skip_locked=True) if locked else query)
        return [_job(row) for row in rows]

    @staticmethod
    def take_kept(
        connection: Connection,
        taken: Sequence[Job],
        progress: Mapping[str, Mapping[str, Any]],
        owner: str,
        lease_seconds: float,
    ) -> list[Job]:
        """Make queued jobs the owner's inside the transaction that stores what was done of them, as
        `claim` and `keep` do in two; `progress` by id. The jobs as they are now.
        """
        now = clock.now()
        shared: dict[str, Any] = {
            "state": "running",
            "lease_owner": owner,
            "started_at": now,
            "error": None,
            "passages_done": 0,
        }
        lease = {"lease_expires_at": clock.after(lease_seconds), "heartbeat_at": now}
        own = ("attempts", "payload", "progress", "passages")
        started = [
            replace(
                job,
                **shared,
                attempts=job.attempts + 1,
                payload={**job.payload, _KEPT: progress[job.id]},
                progress=progress[job.id],
                passages=progress[job.id]["passages"],
            )
            for job in taken
        ]
        connection.execute(
            jobs.update()
            .where(jobs.c.id == sa.bindparam("job"))
            .values(**shared, **lease, **{name: sa.bindparam(f"own_{name}") for name in own}),
            [
                {"job": job.id, **{f"own_{name}": getattr(job, name) for name in own}}
                for job in started
            ],
        )
        return started

    def keep(self, connection: Connection, job: Job, owner: str, done: Mapping[str, Any]) -> None:
        """Keep what was done of a job, inside the transaction that stores it: whoever takes the job
        next finds it as `kept`. Raises Conflict when the job is no longer the caller's.
        """
        self._update_owned(connection, job.id, owner, {"payload": {**job.payload, _KEPT: done}})

    def expire(
        self,
        lives: Callable[[str], bool | None] = lambda owner: None,
        failing: Callable[[Connection, Job], None] = lambda connection, job: None,
        attempts: int = 1,
    ) -> list[JobId]:
        """End the running jobs of dead workers; returns the ids of those that failed. One that has
        been tried less than `attempts` times is queued again instead, as is one that goes on from
        what its worker has kept.

        `lives` says whether an owner is alive; where it answers None, the lease decides. `failing`
        is called for each job that fails, in the transaction that does it.
        """
        with self._catalog.read() as connection:
            if not _lapsed(connection, lives):
                return []  # the usual case, which needs no write lock
        with self._catalog.write() as connection:
            lapsed = _lapsed(connection, lives, locked=True)
            failed = [job for job in lapsed if job.kept is None and job.attempts >= attempts]
            for job in lapsed:
                values = _QUEUED_AGAIN
                if job in failed:
                    values = {**_EXPIRED, "finished_at": clock.now()}
                    failing(connection, replace(job, state="failed", error=_EXPIRED["error"]))
                connection.execute(jobs.update().where(jobs.c.id == job.id).values(**values))
        return [job.id for job in failed]

    def retry(self, job_id: str, *, access_scope: AccessScope = ALL_ACCESS) -> Job:
        """Queue a failed job again. Raises NotFound, and Conflict for one that did not fail."""
        self.get(job_id, access_scope=access_scope)
        with self._catalog.write() as connection:
            changed = connection.execute(
                jobs.update()
                .where(jobs.c.id == job_id, jobs.c.state == "failed")
                .values(state="queued", error=None, finished_at=None, heartbeat_at=clock.now())
            )
            if changed.rowcount != 1:
                raise Conflict(
                    f"job {job_id} is not in state failed", hint="Only failed jobs can be retried."
                )
        return self.get(job_id, access_scope=access_scope)
