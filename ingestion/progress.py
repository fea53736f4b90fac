"""Ingestion jobs with their documents, newest first, and counts.

One request answers for all jobs of a group: a watcher asks for the counts and for the jobs that
ended since the last request. Does not know how progress is displayed.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal, Protocol, cast

import sqlalchemy as sa
from annotated_types import Ge, Le
from sqlalchemy import Connection

from ingestion.uploads import REPLACE, Uploads, keep_separate
from kb import clock
from kb.blobs import Blobs
from kb.catalog import tables as t
from kb.catalog import visible
from kb.catalog.engine import Catalog
from kb.catalog.hardware import HardwareRegistry
from kb.catalog.jobs import KIND, Jobs, JobState
from kb.catalog.knowledge.documents import Documents
from kb.catalog.work import COLUMNS, Job, job_from
from kb.errors import Conflict, InvalidRequest, UnrelatedVersion
from kb.plain import Doc
from kb.scope import AccessScope

Stage = Literal["reading", "embedding"]
Decision = Literal["replace", "separate", "discard"]
STATES: tuple[JobState, ...] = ("queued", "running", "ready", "partial", "failed")
MAX_LIMIT = 500
RECENT = timedelta(minutes=10)  # of work, from which the time left is estimated
PASSAGES = 30  # of a document that is not read yet, if none of its upload is


class Parts(Protocol):
    """The services that this module uses."""

    @property
    def jobs(self) -> Jobs: ...

    @property
    def catalog(self) -> Catalog: ...

    @property
    def registry(self) -> HardwareRegistry: ...

    @property
    def uploads(self) -> Uploads: ...

    @property
    def documents(self) -> Documents: ...

    @property
    def blobs(self) -> Blobs: ...

    @property
    def access(self) -> AccessScope: ...


@dataclass(frozen=True)
class JobError:
    """The reason for which a job failed, in the shape of all errors."""

    code: str
    message: str
    hint: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class JobDocument:
    """The document that a job reads."""

    id: str
    title: str
    hardware: tuple[str, ...] = ()


@dataclass(frozen=True)
class DocumentJob:
    """The progress of reading a document, or of a check of the knowledge with a new version of a
    tool (`kind` is `check`). `stage` is None unless a document is being read. Of `passages`,
    None until the document is read, `passages_done` have a vector. `seconds` is the running time so
    far. `progress` and `result` count the contents read from the document."""

    id: str
    kind: str
    state: JobState
    stage: Stage | None
    document_id: str | None
    document: JobDocument | None
    title: str
    group: str | None
    passages_done: int
    passages: int | None
    ahead: Annotated[
        int | None, Doc("Queued jobs that were sent before this one; null unless it is queued.")
    ]
    attempts: int
    created_at: str
    started_at: str | None
    finished_at: str | None
    seconds: float | None
    error: JobError | None
    progress: Mapping[str, Any]
    result: Mapping[str, Any]

    @property
    def finished(self) -> bool:
        return self.state in ("ready", "partial", "failed")


@dataclass(frozen=True)
class JobCounts:
    """Counts of all jobs of the hardware and group in the request: jobs in each state, running jobs
    that are embedding, their known passages, and those with a vector. `seconds_left` is estimated
    from the work of the last ten minutes; None while nothing is left or known."""

    queued: int = 0
    running: int = 0
    ready: int = 0
    partial: int = 0
    failed: int = 0
    embedding: int = 0
    passages_done: int = 0
    passages: int = 0
    seconds_left: float | None = None


@dataclass(frozen=True)
class JobPage:
    """Jobs, newest first. `cursor` asks for those after them; None at the end."""

    jobs: tuple[DocumentJob, ...]
    counts: JobCounts
    cursor: str | None = None


def list_jobs(
    parts: Parts,
    state: Annotated[
        list[JobState] | None, Doc("Only jobs in this state; repeat for several.")
    ] = None,
    hardware: Annotated[
        str, Doc("Only jobs of documents about this hardware (id, name or alias).")
    ] = "",
    group: Annotated[str, Doc("Only jobs of this group, which an upload names or is given.")] = "",
    origin: Annotated[
        Literal["builtin", "upload"] | None, Doc("Only jobs of documents of this origin.")
    ] = None,
    ended_since: Annotated[str, Doc("Only jobs with this `finished_at` or a later one.")] = "",
    limit: Annotated[int, Doc("Jobs to return."), Ge(1), Le(MAX_LIMIT)] = 100,
    cursor: Annotated[str, Doc("`cursor` of the page before.")] = "",
) -> JobPage:
    """`counts` are of all jobs of the hardware, group and origin, independent of the other filters:
    one request shows the progress of an upload. `cursor` asks for the next page, and is null on the
    last."""
    if not 1 <= limit <= MAX_LIMIT:
        raise InvalidRequest(f"a limit of {limit}", hint=f"Ask for 1 to {MAX_LIMIT:,} jobs.")
    for name in state or ():
        if name not in STATES:
            raise InvalidRequest(f"unknown state {name!r}", hint=f"Use {', '.join(STATES)}.")
    about = _about(parts, hardware, group)
    if origin:
        of_origin = sa.select(t.documents.c.id).where(t.documents.c.origin == origin)
        about.append(t.work.c.subject_id.in_(of_origin))
    chosen = sa.select(*COLUMNS).where(*about)
    if state:
        chosen = chosen.where(t.work.c.state.in_(state))
    if ended_since:
        chosen = chosen.where(t.work.c.finished_at >= ended_since)
    if cursor:
        last = sa.tuple_(*map(sa.literal, _place(cursor)))
        chosen = chosen.where(sa.tuple_(t.work.c.created_at, t.work.c.id) < last)
    ordered = chosen.order_by(t.work.c.created_at.desc(), t.work.c.id.desc()).limit(limit + 1)
    with parts.catalog.read() as connection:
        rows = [job_from(row) for row in connection.execute(ordered)]
        page = rows[:limit]
        subjects = [job.subject_id for job in page if job.subject_id]
        documents = _documents(connection, subjects, parts.access)
        counts = _counts(connection, about)
        ahead = _ahead(connection, page)
    listed = tuple(_with_document(job, documents, ahead) for job in page)
    return JobPage(listed, counts, _cursor(page[-1]) if len(rows) > limit else None)


def show_job(parts: Parts, job_id: str) -> DocumentJob:
    """`state` is queued, running, ready, partial or failed. `error` says why a job failed."""
    return _shown(parts, parts.jobs.get(job_id, access_scope=parts.access))


def retry_job(parts: Parts, job_id: str) -> DocumentJob:
    """409 for a job that has not failed."""
    return _shown(parts, parts.jobs.retry(job_id, access_scope=parts.access))


def decide_version(
    parts: Parts,
    job_id: str,
    decision: Annotated[
        Decision,
        Doc(
            "Replace the current version, keep both as separate documents, or discard the new file."
        ),
    ],
) -> DocumentJob:
    """For a job that failed with `unrelated_version`; 409 for others. The answer is the job that
    is queued, or the discarded one."""
    jobs, access = parts.jobs, parts.access
    job = jobs.get(job_id, access_scope=access)
    if job.state != "failed" or (job.error or {}).get("code") != UnrelatedVersion.code:
        raise Conflict(
            f"job {job_id} waits for no decision",
            hint="Only a job that failed with unrelated_version takes one.",
        )
    if decision == "replace":
        return _shown(parts, jobs.retry(job_id, access_scope=access, confirmed={REPLACE: True}))
    shown = _shown(parts, job)
    document_id, version_id = str(job.subject_id), str(job.payload["version_id"])
    if decision == "separate":
        places = (parts.uploads, parts.documents, parts.blobs)
        submitted = keep_separate(*places, document_id, version_id, access, job.group_id)
        if submitted.job_id is not None:
            shown = show_job(parts, submitted.job_id)
    parts.documents.discard(document_id, version_id, job_id, access_scope=access)
    return shown


def _shown(parts: Parts, job: Job) -> DocumentJob:
    with parts.catalog.read() as connection:
        documents = _documents(connection, [job.subject_id] if job.subject_id else [], parts.access)
        ahead = _ahead(connection, [job])
    return _with_document(job, documents, ahead)


def _about(parts: Parts, hardware: str, group: str) -> list[sa.ColumnElement[bool]]:
    conditions = [visible.jobs(parts.access)]
    if group:
        conditions.append(t.work.c.group_id == group)
    if hardware:
        subjects = sa.select(t.document_scopes.c.document_id).where(
            t.document_scopes.c.kind == "hardware",
            t.document_scopes.c.value == parts.registry.resolve(hardware),
        )
        conditions.append(t.work.c.subject_id.in_(subjects))
    return conditions


def _counts(connection: Connection, about: Sequence[sa.ColumnElement[bool]]) -> JobCounts:
    embedding = sa.and_(t.work.c.state == "running", t.work.c.passages.is_not(None))
    rows = connection.execute(
        sa.select(
            t.work.c.state,
            sa.func.count(),
            sa.func.count(sa.case((embedding, 1))),
            sa.func.sum(t.work.c.passages_done),
            sa.func.coalesce(sa.func.sum(t.work.c.passages), 0),
        )
        .where(*about, t.work.c.kind == KIND)
        .group_by(t.work.c.state)
    ).all()
    counts = JobCounts(
        **{row[0]: row[1] for row in rows if row[0] in STATES},
        embedding=sum(row[2] for row in rows),
        passages_done=sum(row[3] for row in rows),
        passages=sum(row[4] for row in rows),
    )
    return replace(counts, seconds_left=_seconds_left(connection, counts, about))


def _seconds_left(
    connection: Connection, counts: JobCounts, about: Sequence[sa.ColumnElement[bool]]
) -> float | None:
    """The passages that are left, at the rate of the jobs that ran in the last minutes."""
    if not counts.queued + counts.running:
        return None
    since = clock.stamp(datetime.now(UTC) - RECENT)
    worked = sa.or_(t.work.c.finished_at >= since, t.work.c.state == "running")
    done, documents, begun = connection.execute(
        sa.select(
            sa.func.coalesce(sa.func.sum(t.work.c.passages_done), 0),
            sa.func.count(t.work.c.passages),
            sa.func.min(t.work.c.started_at),
        ).where(*about, worked)
    ).one()
    if not done or begun is None:
        return None
    elapsed = max(1.0, (datetime.now(UTC) - datetime.fromisoformat(begun)).total_seconds())
    read = counts.ready + counts.partial + counts.embedding
    each = counts.passages / read if read and documents else PASSAGES
    unread = counts.queued + counts.running - counts.embedding
    left = max(0, counts.passages - counts.passages_done) + unread * each
    return round(float(left * min(elapsed, RECENT.total_seconds()) / done), 1)


def _ahead(connection: Connection, jobs: Sequence[Job]) -> dict[str, int]:
    """How many queued jobs were sent before each queued one."""
    queued = [job for job in jobs if job.state == "queued"]
    if not queued:
        return {}
    order = sa.select(t.work.c.id).where(t.work.c.state == "queued", t.work.c.kind == KIND)
    order = order.order_by(t.work.c.behind, t.work.c.created_at, t.work.c.id)
    place = {job_id: n for n, job_id in enumerate(connection.scalars(order))}
    return {job.id: place[job.id] for job in queued if job.id in place}


def _documents(
    connection: Connection, ids: Sequence[str], access: AccessScope
) -> dict[str, JobDocument]:
    titles = connection.execute(
        sa.select(t.documents.c.id, t.documents.c.title).where(t.documents.c.id.in_(ids))
    )
    scopes = connection.execute(
        sa.select(t.document_scopes.c.document_id, t.document_scopes.c.value)
        .where(t.document_scopes.c.document_id.in_(ids), t.document_scopes.c.kind == "hardware")
        .order_by(t.document_scopes.c.value)
    )
    hardware: dict[str, tuple[str, ...]] = {}
    for document_id, chip in scopes:
        hardware[document_id] = (*hardware.get(document_id, ()), chip)
    return {
        row.id: JobDocument(row.id, row.title, access.visible_hardware(hardware.get(row.id, ())))
        for row in titles
    }


def _with_document(
    job: Job, documents: Mapping[str, JobDocument], ahead: Mapping[str, int]
) -> DocumentJob:
    stage: Stage | None = None
    if job.state == "running" and job.kind == KIND:
        stage = "reading" if job.passages is None else "embedding"
    document = documents.get(job.subject_id or "")
    return DocumentJob(
        id=job.id,
        kind=job.kind,
        state=cast(JobState, job.state),  # jobs of documents have no other
        stage=stage,
        document_id=job.subject_id,
        document=document,
        title=document.title if document else str(job.payload.get("title", "")),
        group=job.group_id,
        passages_done=job.passages_done,
        passages=job.passages,
        ahead=ahead.get(job.id),
        attempts=job.attempts,
        created_at=job.created_at,
        started_at=job.started_at,
        finished_at=job.finished_at,
        seconds=_seconds(job),
        error=JobError(**job.error) if job.error else None,
        progress=job.progress,
        result=job.result,
    )


def _seconds(job: Job) -> float | None:
    if job.started_at is None or job.state == "queued":
        return None
    end = job.finished_at or clock.now()
    elapsed = datetime.fromisoformat(end) - datetime.fromisoformat(job.started_at)
    return round(max(0.0, elapsed.total_seconds()), 3)


def _cursor(job: Job) -> str:
    return urlsafe_b64encode(f"{job.created_at} {job.id}".encode()).decode()


def _place(cursor: str) -> tuple[str, str]:
    try:
        created_at, job_id = urlsafe_b64decode(cursor.encode("ascii")).decode("ascii").split(" ")
        datetime.fromisoformat(created_at).astimezone(UTC)
    except ValueError:
        raise InvalidRequest(
            f"{cursor[:40]!r} is no cursor", hint="Give the `cursor` of the page before, unchanged."
        ) from None
    return created_at, job_id
