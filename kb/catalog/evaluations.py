"""Problems, candidates and what was measured of them, as rows.

An evaluation is looked up by its key: the same problem, cases, candidate, device, toolchain and
policy have one row, however often they are requested and also after a crash. Knows nothing about
how a candidate is evaluated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple, get_args

import sqlalchemy as sa
from sqlalchemy import Connection

from kb import clock
from kb.catalog import tables as t
from kb.catalog import visible
from kb.catalog.engine import Catalog
from kb.catalog.rows import portions
from kb.catalog.work import ENDED, Job, Work, no_lease
from kb.errors import Conflict, InvalidRequest, NotFound
from kb.ids import derived_id, new_id
from kb.scope import ALL_ACCESS, AccessScope


@dataclass(frozen=True)
class ProblemRow:
    """sha256: of the problem file and its declaration. policy: as JSON."""

    name: str
    sha256: str
    provider: str
    op_family: str
    blob_key: str
    policy: Mapping[str, Any]


@dataclass(frozen=True)
class CaseRow:
    """shape_bucket: coarse size, for looking up candidates of about the same shape."""

    name: str
    dtype: str
    shapes: Sequence[Any]
    shape_bucket: str
    distribution: str
    weight: float
    held_out: bool


@dataclass(frozen=True)
class CandidateRow:
    """A candidate kernel as it is stored; `bundle_sha256` names its files."""

    bundle_sha256: str
    language: str
    entry: str
    origin: str
    parameters: Mapping[str, Any]
    blob_key: str


@dataclass(frozen=True)
class CaseFigures:
    """The result of one case. Times are in microseconds a call."""

    case: str
    correct: bool | None
    baseline_us: float | None = None
    candidate_us: float | None = None
    speedup: float | None = None
    speedup_low: float | None = None
    errors: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class StoredEvaluation:
    """The row of an evaluation. `state` is running or finished.

    `stages` maps the name of each finished stage to what it stored.
    """

    id: str
    key: str
    state: str
    stages: Mapping[str, Any]
    created_at: str

    @property
    def record(self) -> Mapping[str, Any] | None:
        """The whole evaluation as JSON; None before it is finished."""
        return self.stages.get("record") if self.state == "finished" else None


class _Identity(NamedTuple):
    id: str
    problem_id: str
    candidate_id: str


class Evaluations:
    """Every method is one transaction."""

    def __init__(self, catalog: Catalog, access_scope: AccessScope = ALL_ACCESS) -> None:
        self._catalog = catalog
        self._scope = access_scope

    def find(self, key: str) -> StoredEvaluation | None:
        """The evaluation with this key, or None."""
        with self._catalog.read() as connection:
            row = connection.execute(
                sa.select(t.evaluations).where(
                    t.evaluations.c.key == key, visible.evaluations(self._scope)
                )
            ).one_or_none()
        return _stored(row) if row is not None else None

    def latest(self, limit: int = 50) -> list[StoredEvaluation]:
        """Evaluations, newest first."""
        with self._catalog.read() as connection:
            rows = connection.execute(
                sa.select(t.evaluations)
                .where(visible.evaluations(self._scope))
                .order_by(t.evaluations.c.created_at.desc(), t.evaluations.c.id)
                .limit(limit)
            ).all()
        return [_stored(row) for row in rows]

    def begin(
        self,
        key: str,
        problem: ProblemRow,
        cases: Sequence[CaseRow],
        candidate: CandidateRow,
        harness_version: str,
        device_id: str | None,
    ) -> str:
        """Create the evaluation's row and those it points to unless they exist; returns its id."""
        with self._catalog.write() as connection:
            problem_id = self._problem(connection, problem, cases)
            candidate_id = self._candidate(connection, candidate)
            identity = derived_id("evl", key)
            _once(
                connection,
                t.evaluations,
                id=identity,
                key=key,
                problem_id=problem_id,
                candidate_id=candidate_id,
                device_id=device_id,
                toolchain_id=None,
                harness_version=harness_version,
                stage="parse",
                state="running",
                isolation={},
                metrics={},
                verdict={},
                stages={},
                created_at=clock.now(),
                access_scope=self._scope.owner,
            )
        return identity

    def add_problem(self, problem: ProblemRow, cases: Sequence[CaseRow]) -> None:
        """Create the rows of a problem and its cases unless they exist."""
        with self._catalog.write() as connection:
            self._problem(connection, problem, cases)

    def stage(self, key: str, stage: str, left: Mapping[str, Any]) -> None:
        """Store the outcome of a finished stage, from which a later process can go on."""
        with self._catalog.write() as connection:
            row = connection.execute(
                sa.select(t.evaluations.c.stages).where(t.evaluations.c.key == key)
            ).one()
            connection.execute(
                sa.update(t.evaluations)
                .where(t.evaluations.c.key == key)
                .values(stage=stage, stages={**row.stages, stage: dict(left)})
            )

    def finish(
        self,
        key: str,
        record: Mapping[str, Any],
        figures: Sequence[CaseFigures],
        *,
        op_family: str,
        hardware_id: str,
    ) -> None:
        """Store the whole result and one row for each case."""
        with self._catalog.write() as connection:
            row = connection.execute(
                sa.select(
                    t.evaluations.c.id, t.evaluations.c.problem_id, t.evaluations.c.candidate_id
                ).where(t.evaluations.c.key == key)
            ).one()
            speedup = record.get("speedup") or {}
            connection.execute(
                sa.update(t.evaluations)
                .where(t.evaluations.c.key == key)
                .values(
                    state="finished",
                    stage=record["reached"],
                    validity=record["validity"],
                    timing=record["timing"],
                    speedup=speedup.get("value"),
                    speedup_low=speedup.get("low"),
                    speedup_high=speedup.get("high"),
                    isolation=record.get("isolation") or {},
                    metrics=record.get("metrics") or {},
                    verdict=record.get("verdict") or {},
                    stages={"record": dict(record)},
                    finished_at=clock.now(),
                )
            )
            evaluation = _Identity(row.id, row.problem_id, row.candidate_id)
            self._figures(connection, evaluation, figures, op_family, hardware_id)

    def _figures(
        self,
        connection: Connection,
        row: _Identity,
        figures: Sequence[CaseFigures],
        op_family: str,
        hardware_id: str,
    ) -> None:
        connection.execute(
            sa.delete(t.evaluation_cases).where(t.evaluation_cases.c.evaluation_id == row.id)
        )
        for figure in figures:
            case = connection.execute(
                sa.select(t.problem_cases).where(
                    t.problem_cases.c.problem_id == row.problem_id,
                    t.problem_cases.c.name == figure.case,
                )
            ).one()
            connection.execute(
                sa.insert(t.evaluation_cases).values(
                    id=derived_id("evc", row.id, case.id),
                    evaluation_id=row.id,
                    case_id=case.id,
                    op_family=op_family,
                    dtype=case.dtype,
                    shape_bucket=case.shape_bucket,
                    hardware_id=hardware_id,
                    candidate_id=row.candidate_id,
                    correct=figure.correct,
                    baseline_us=figure.baseline_us,
                    candidate_us=figure.candidate_us,
                    speedup=figure.speedup,
                    speedup_low=figure.speedup_low,
                    errors=dict(figure.errors or {}),
                )
            )

    def _problem(
        self, connection: Connection, problem: ProblemRow, cases: Sequence[CaseRow]
    ) -> str:
        identity = derived_id("prb", problem.sha256)
        _once(
            connection,
            t.problems,
            id=identity,
            name=problem.name,
            sha256=problem.sha256,
            provider=problem.provider,
            op_family=problem.op_family,
            blob_key=problem.blob_key,
            policy=dict(problem.policy),
            created_at=clock.now(),
            access_scope=self._scope.owner,
        )
        for case in cases:
            _once(
                connection,
                t.problem_cases,
                id=derived_id("cas", problem.sha256, case.name),
                problem_id=identity,
                name=case.name,
                dtype=case.dtype,
                shapes=list(case.shapes),
                shape_bucket=case.shape_bucket,
                distribution=case.distribution,
                weight=case.weight,
                held_out=case.held_out,
            )
        return identity

    def _candidate(self, connection: Connection, candidate: CandidateRow) -> str:
        identity = derived_id("cnd", candidate.bundle_sha256)
        _once(
            connection,
            t.candidates,
            id=identity,
            bundle_sha256=candidate.bundle_sha256,
            language=candidate.language,
            entry=candidate.entry,
            origin=candidate.origin,
            parameters=dict(candidate.parameters),
            blob_key=candidate.blob_key,
            created_at=clock.now(),
            access_scope=self._scope.owner,
        )
        return identity


def _once(connection: Connection, table: sa.Table, **values: Any) -> None:
    """Insert the row unless its id exists."""
    known = sa.select(table.c.id).where(table.c.id == values["id"])
    if connection.execute(known).one_or_none() is None:
        connection.execute(sa.insert(table).values(**values))


def _stored(row: sa.Row[Any]) -> StoredEvaluation:
    return StoredEvaluation(row.id, row.key, row.state, row.stages, row.created_at)


# -- reviews: Reviews: people's answers to the integrity flags of evaluations.

ReviewDecision = Literal["accepted", "refused"]
DECISIONS: tuple[ReviewDecision, ...] = get_args(ReviewDecision)


@dataclass(frozen=True)
class Review:
    """An answer; `evaluation` is the key of the evaluation it is about."""

    evaluation: str
    decision: ReviewDecision
    actor: str
    reason: str
    created_at: str

    def as_json(self) -> dict[str, Any]:
        """Its fields by name."""
        return asdict(self)


class Reviews:
    """Every method is one transaction."""

    def __init__(self, catalog: Catalog, access_scope: AccessScope = ALL_ACCESS) -> None:
        self._catalog = catalog
        self._scope = access_scope

    def add(self, key: str, decision: str, actor: str, reason: str) -> Review:
        """Answer the review flags of an evaluation.

        Raises InvalidRequest, NotFound, and Conflict where it has no such flag, is not finished, or
        was rejected by a check, which no person can overrule.
        """
        known = next((known for known in DECISIONS if known == decision), None)
        if known is None:
            raise InvalidRequest(
                f"unknown decision {decision[:80]!r}", hint=f"Give one of {', '.join(DECISIONS)}."
            )
        if not actor.strip() or not reason.strip():
            raise InvalidRequest("a review needs an actor and a reason", hint="Give both.")
        with self._catalog.write() as connection:
            evaluation_id = self._reviewable(connection, key)
            review = Review(key, known, actor.strip(), reason.strip(), clock.now())
            connection.execute(
                sa.insert(t.evaluation_reviews).values(
                    id=new_id("rev"),
                    evaluation_id=evaluation_id,
                    sequence=_next(connection, evaluation_id),
                    decision=review.decision,
                    actor=review.actor,
                    reason=review.reason,
                    created_at=review.created_at,
                    access_scope=self._scope.owner,
                )
            )
        return review

    def latest(self, keys: Iterable[str]) -> dict[str, Review]:
        """The answers that count, by key; keys without an answer since they were measured are left
        out."""
        reviews: dict[str, Review] = {}
        with self._catalog.read() as connection:
            for portion in portions(sorted(set(keys))):
                for row in connection.execute(
                    self._select().where(t.evaluations.c.key.in_(portion))
                ):
                    reviews[row.key] = _review(row)
        return reviews

    def history(self, key: str) -> list[Review]:
        """Every answer, oldest first, including those to earlier measurements."""
        query = self._select(of_now=False).where(t.evaluations.c.key == key)
        with self._catalog.read() as connection:
            return [_review(row) for row in connection.execute(query)]

    def _select(self, *, of_now: bool = True) -> sa.Select[Any]:
        rows, evaluations = t.evaluation_reviews, t.evaluations
        query = (
            sa.select(rows, evaluations.c.key)
            .join(evaluations, evaluations.c.id == rows.c.evaluation_id)
            .where(rows.c.access_scope == self._scope.owner, visible.evaluations(self._scope))
            .order_by(rows.c.sequence)
        )
        return query.where(_of_now()) if of_now else query

    def _reviewable(self, connection: Connection, key: str) -> str:
        """The evaluation's id."""
        row = connection.execute(
            sa.select(t.evaluations.c.id, t.evaluations.c.state, t.evaluations.c.stages).where(
                t.evaluations.c.key == key, visible.evaluations(self._scope)
            )
        ).one_or_none()
        if row is None:
            raise NotFound(
                f"no evaluation {key[:80]!r}",
                hint="`kernlore runs flagged RUN` shows what waits for a person.",
            )
        if row.state != "finished":
            raise Conflict(
                f"evaluation {key[:12]} is not finished", hint="Wait until it is, then look again."
            )
        _check(key, row.stages["record"])
        return str(row.id)


def answer_of_now() -> sa.ScalarSelect[str]:
    """The answer that counts for an evaluation of the query around it; NULL where there is none."""
    rows = t.evaluation_reviews
    return (
        sa.select(rows.c.decision)
        .where(
            rows.c.evaluation_id == t.evaluations.c.id,
            rows.c.access_scope == t.evaluations.c.access_scope,
            _of_now(),
        )
        .order_by(rows.c.sequence.desc())
        .limit(1)
        .correlate(t.evaluations)
        .scalar_subquery()
    )


def _of_now() -> sa.ColumnElement[bool]:
    """The answer came after the present measurement."""
    return t.evaluation_reviews.c.created_at >= t.evaluations.c.finished_at


def _check(key: str, record: Mapping[str, Any]) -> None:
    flags = record.get("flags") or ()
    rejecting = [flag["message"] for flag in flags if flag["severity"] == "reject"]
    if rejecting or record["validity"] == "rejected":
        raise Conflict(
            f"evaluation {key[:12]} was rejected by a check: {'; '.join(rejecting) or 'a finding'}",
            hint="No person can overrule that; change the candidate and evaluate it again.",
        )
    if not any(flag["severity"] == "review" for flag in flags):
        raise Conflict(
            f"evaluation {key[:12]} has no flag that waits for a person",
            hint="`kernlore runs flagged RUN` shows those that have.",
        )


def _next(connection: Connection, evaluation_id: str) -> int:
    last = connection.execute(
        sa.select(sa.func.max(t.evaluation_reviews.c.sequence)).where(
            t.evaluation_reviews.c.evaluation_id == evaluation_id
        )
    ).scalar()
    return (last or 0) + 1


def _review(row: sa.Row[Any]) -> Review:
    return Review(row.key, row.decision, row.actor, row.reason, row.created_at)


# -- sent to a service

KEPT_ENDED = 1_000  # sent evaluations that have ended


class SentEvaluations(Work):
    """Evaluations that were sent to a service. The process that accepts one owns it, queued or
    running, while its lease lasts; after that any other may take it.
    """

    def __init__(self, catalog: Catalog) -> None:
        super().__init__(catalog, "evaluation")

    def accept(
        self, job_id: str, payload: Mapping[str, Any], owner: str, lease_seconds: float, most: int
    ) -> int | None:
        """Queue one for this owner. Returns how many of the owner's wait already, where those are
        `most` or more; nothing is stored then. None otherwise.
        """
        mine = (self._held(owner), t.work.c.state == "queued")
        with self._catalog.write() as connection:
            waiting = len(self.matching(connection, *mine))
            if waiting >= most:
                return waiting
            self._forget_oldest(connection)
            until = clock.after(lease_seconds)
            self.add(connection, job_id, payload, lease_owner=owner, lease_expires_at=until)
        return None

    def _forget_oldest(self, connection: Connection) -> None:
        work = t.work.c
        ended = sa.select(work.id).where(self._mine, work.state.in_(ENDED))
        old = ended.order_by(work.finished_at.desc(), work.id).offset(KEPT_ENDED)
        ids = list(connection.execute(old).scalars())
        if ids:
            connection.execute(t.work.delete().where(work.id.in_(ids)))

    def claim(self, owner: str, lease_seconds: float) -> Job | None:
        """Begin the oldest that the owner has accepted, or None. The owner works on one at a time:
        what is running was begun and could not be ended.
        """
        return self.take(owner, lease_seconds, self._held(owner))

    def left(self) -> list[Job]:
        """What dead owners have left, oldest first."""
        with self._catalog.read() as connection:
            return self.matching(connection, *self._left())

    def take_over(self, job_id: str, owner: str, lease_seconds: float) -> Job | None:
        """Begin one that a dead owner has left. None where another process has it by now."""
        return self.take(owner, lease_seconds, t.work.c.id == job_id, *self._left())

    @staticmethod
    def _left() -> tuple[sa.ColumnElement[bool], ...]:
        return (t.work.c.state.in_(("queued", "running")), no_lease())

    def end_one(
        self,
        job_id: str,
        owner: str,
        state: Literal["ready", "failed"],
        *,
        result: Mapping[str, Any] | None = None,
        error: Mapping[str, Any] | None = None,
    ) -> bool:
        """End one that runs. False, and nothing changes, where it is no longer the owner's."""
        with self._catalog.write(rows_only=True) as connection:
            return self.end(connection, job_id, owner, state, result, error)
