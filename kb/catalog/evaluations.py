"""Problems, candidates, evaluations of candidates and reviews of evaluations, as rows; and the
evaluations that were sent to a service.

An evaluation is looked up by its key: the same problem, cases, candidate, device, toolchain and
policy have one row, however often they are requested and also after a crash. Knows nothing about
how a candidate is evaluated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, get_args

import sqlalchemy as sa
from sqlalchemy import Connection

from kb import clock
from kb.catalog import tables as t
from kb.catalog import visible
from kb.catalog.engine import Catalog, record_of, select_in
from kb.catalog.tables import evaluations, outcomes, runs, skills, work
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

    `stages` maps the name of each finished stage to its stored outcome.
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


class Evaluations:
    """Every method is one transaction."""

    def __init__(self, catalog: Catalog, access_scope: AccessScope = ALL_ACCESS) -> None:
        self._catalog = catalog
        self._scope = access_scope

    def find(self, key: str) -> StoredEvaluation | None:
        """The evaluation with this key, or None."""
        query = sa.select(t.evaluations).where(
            t.evaluations.c.key == key, visible.evaluations(self._scope)
        )
        with self._catalog.read() as connection:
            row = connection.execute(query).one_or_none()
        return record_of(StoredEvaluation, row) if row is not None else None

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
        identity = derived_id("evl", key)
        owned = {"created_at": clock.now(), "access_scope": self._scope.owner}
        with self._catalog.write() as connection:
            problem_id = self._insert_problem(connection, problem, cases)
            candidate_id = derived_id("cnd", candidate.bundle_sha256)
            _insert_once(connection, t.candidates, id=candidate_id, **vars(candidate), **owned)
            _insert_once(
                connection,
                t.evaluations,
                id=identity,
                key=key,
                problem_id=problem_id,
                candidate_id=candidate_id,
                device_id=device_id,
                harness_version=harness_version,
                stage="parse",
                state="running",
                **owned,
            )
        return identity

    def add_problem(self, problem: ProblemRow, cases: Sequence[CaseRow]) -> None:
        """Create the rows of a problem and its cases unless they exist."""
        with self._catalog.write() as connection:
            self._insert_problem(connection, problem, cases)

    def _insert_problem(
        self, connection: Connection, problem: ProblemRow, cases: Sequence[CaseRow]
    ) -> str:
        identity = derived_id("prb", problem.sha256)
        owned = {"created_at": clock.now(), "access_scope": self._scope.owner}
        _insert_once(connection, t.problems, id=identity, **vars(problem), **owned)
        for case in cases:
            case_id = derived_id("cas", problem.sha256, case.name)
            row = {**vars(case), "shapes": list(case.shapes), "problem_id": identity}
            _insert_once(connection, t.problem_cases, id=case_id, **row)
        return identity

    def stage(self, key: str, stage: str, outcome: Mapping[str, Any]) -> None:
        """Store the outcome of a finished stage, from which a later process can continue."""
        chosen = t.evaluations.c.key == key
        with self._catalog.write() as connection:
            before = connection.execute(
                sa.select(t.evaluations.c.stages).where(chosen)
            ).scalar_one()
            stages = {**before, stage: dict(outcome)}
            change = sa.update(t.evaluations).where(chosen).values(stage=stage, stages=stages)
            connection.execute(change)

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
        chosen = t.evaluations.c.key == key
        speedup = record.get("speedup") or {}
        with self._catalog.write() as connection:
            row = connection.execute(sa.select(t.evaluations).where(chosen)).one()
            connection.execute(
                sa.update(t.evaluations)
                .where(chosen)
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
            _replace_figures(connection, row, figures, op_family, hardware_id)


def _replace_figures(
    connection: Connection,
    evaluation: sa.Row[Any],
    figures: Sequence[CaseFigures],
    op_family: str,
    hardware_id: str,
) -> None:
    mine = t.evaluation_cases.c.evaluation_id == evaluation.id
    connection.execute(sa.delete(t.evaluation_cases).where(mine))
    of_problem = t.problem_cases.c.problem_id == evaluation.problem_id
    stored = connection.execute(sa.select(t.problem_cases).where(of_problem)).all()
    cases = {case.name: case for case in stored}
    for figure in figures:
        case = cases[figure.case]
        values = {name: value for name, value in vars(figure).items() if name != "case"}
        connection.execute(
            sa.insert(t.evaluation_cases).values(
                **{**values, "errors": dict(figure.errors or {})},
                id=derived_id("evc", evaluation.id, case.id),
                evaluation_id=evaluation.id,
                case_id=case.id,
                op_family=op_family,
                dtype=case.dtype,
                shape_bucket=case.shape_bucket,
                hardware_id=hardware_id,
                candidate_id=evaluation.candidate_id,
            )
        )


def _insert_once(connection: Connection, table: sa.Table, **values: Any) -> None:
    """Insert the row unless its id exists."""
    known = sa.select(table.c.id).where(table.c.id == values["id"])
    if connection.execute(known).one_or_none() is None:
        plain = {k: dict(v) if isinstance(v, Mapping) else v for k, v in values.items()}
        connection.execute(sa.insert(table).values(**plain))


# -- reviews

ReviewDecision = Literal["accepted", "refused"]
DECISIONS: tuple[ReviewDecision, ...] = get_args(ReviewDecision)


@dataclass(frozen=True)
class Review:
    """A person's answer to the integrity flags of an evaluation; `evaluation` is its key."""

    evaluation: str
    decision: ReviewDecision
    actor: str
    reason: str
    created_at: str


class Reviews:
    """Answers of people to integrity flags. Every method is one transaction.

    A flag of severity `review` marks a figure that may be too good to be true; only a person can
    decide. Each answer is a row that is never changed or deleted, and the newest counts. An answer
    is about the measurement of its time: it does not count once the evaluation is measured again.
    """

    def __init__(self, catalog: Catalog, access_scope: AccessScope = ALL_ACCESS) -> None:
        self._catalog = catalog
        self._scope = access_scope

    def add(self, key: str, decision: str, actor: str, reason: str) -> Review:
        """Answer the review flags of an evaluation.

        Raises InvalidRequest, NotFound, and Conflict if it has no such flag, is not finished, or
        was rejected by a check, which no person can overrule.
        """
        known = next((known for known in DECISIONS if known == decision), None)
        if known is None:
            raise InvalidRequest(
                f"unknown decision {decision[:80]!r}", hint=f"Give one of {', '.join(DECISIONS)}."
            )
        if not actor.strip() or not reason.strip():
            raise InvalidRequest("a review needs an actor and a reason", hint="Give both.")
        reviews = t.evaluation_reviews
        with self._catalog.write() as connection:
            evaluation_id = self._reviewable(connection, key)
            last = connection.scalar(
                sa.select(sa.func.max(reviews.c.sequence)).where(
                    reviews.c.evaluation_id == evaluation_id
                )
            )
            review = Review(key, known, actor.strip(), reason.strip(), clock.now())
            values = {name: value for name, value in vars(review).items() if name != "evaluation"}
            connection.execute(
                sa.insert(reviews).values(
                    **values,
                    id=new_id("rev"),
                    evaluation_id=evaluation_id,
                    sequence=(last or 0) + 1,
                    access_scope=self._scope.owner,
                )
            )
        return review

    def latest(self, keys: Iterable[str]) -> dict[str, Review]:
        """The answers that count, by key; keys without an answer since their measurement are left
        out."""
        rows = t.evaluation_reviews
        query = (
            sa.select(rows, t.evaluations.c.key.label("evaluation"))
            .join(t.evaluations, t.evaluations.c.id == rows.c.evaluation_id)
            .where(
                rows.c.access_scope == self._scope.owner,
                visible.evaluations(self._scope),
                _since_measured(),
            )
            .order_by(rows.c.sequence)
        )
        with self._catalog.read() as connection:
            found = select_in(connection, query, t.evaluations.c.key, sorted(set(keys)))
            return {row.evaluation: record_of(Review, row) for row in found}

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
                hint="`kernlore runs flagged RUN` shows those that wait for a person.",
            )
        if row.state != "finished":
            raise Conflict(
                f"evaluation {key[:12]} is not finished", hint="Wait until it is, then look again."
            )
        _check_flags(key, row.stages["record"])
        return str(row.id)


def _check_flags(key: str, record: Mapping[str, Any]) -> None:
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


def counting_answer() -> sa.ScalarSelect[str]:
    """The answer that counts for an evaluation of the query around it; NULL without one."""
    rows = t.evaluation_reviews
    return (
        sa.select(rows.c.decision)
        .where(
            rows.c.evaluation_id == t.evaluations.c.id,
            rows.c.access_scope == t.evaluations.c.access_scope,
            _since_measured(),
        )
        .order_by(rows.c.sequence.desc())
        .limit(1)
        .correlate(t.evaluations)
        .scalar_subquery()
    )


def _since_measured() -> sa.ColumnElement[bool]:
    """The answer came after the present measurement."""
    return t.evaluation_reviews.c.created_at >= t.evaluations.c.finished_at


# -- sent to a service

MOST_ENDED = 1_000  # sent evaluations that have ended; older ones are removed


class SentEvaluations(Work):
    """Evaluations that were sent to a service. The process that accepts one owns it, queued or
    running, while its lease lasts; after that any other may take it."""

    def __init__(self, catalog: Catalog) -> None:
        super().__init__(catalog, "evaluation")

    def accept(
        self, job_id: str, payload: Mapping[str, Any], owner: str, lease_seconds: float, most: int
    ) -> int | None:
        """Queue an evaluation for this owner, unless `most` or more of the owner's wait already:
        then nothing is stored, and their number is returned. None otherwise."""
        mine = (self._held(owner), t.work.c.state == "queued")
        with self._catalog.write() as connection:
            waiting = len(self.matching(connection, *mine))
            if waiting >= most:
                return waiting
            self._remove_oldest(connection)
            until = clock.after(lease_seconds)
            self.add(connection, job_id, payload, lease_owner=owner, lease_expires_at=until)
        return None

    def _remove_oldest(self, connection: Connection) -> None:
        work = t.work.c
        ended = sa.select(work.id).where(self._mine, work.state.in_(ENDED))
        old = ended.order_by(work.finished_at.desc(), work.id).offset(MOST_ENDED)
        ids = list(connection.scalars(old))
        if ids:
            connection.execute(t.work.delete().where(work.id.in_(ids)))

    def claim(self, owner: str, lease_seconds: float) -> Job | None:
        """Start the oldest evaluation accepted by the owner, or None. The owner works on one at a
        time, so a running one was started earlier and could not be ended."""
        return self.take(owner, lease_seconds, self._held(owner))

    def left(self) -> list[Job]:
        """Work of dead owners, oldest first."""
        with self._catalog.read() as connection:
            return self.matching(connection, *self._left())

    def take_over(self, job_id: str, owner: str, lease_seconds: float) -> Job | None:
        """Begin one of a dead owner. None if another process has it by now."""
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
        """End a running evaluation. Returns False, without a change, if the owner has lost it."""
        with self._catalog.write(rows_only=True) as connection:
            return self.end(connection, job_id, owner, state, result, error)


# -- counts for operators
#
# Queues, evaluations, runs, their cost, and answers that helped. Stored rows are counted, so the
# figures are right whichever process did the work.

_HELPED = {1: "yes", 0: "no", None: "not_known"}


@dataclass(frozen=True)
class Figures:
    """`oldest_queued_seconds` is the age of the job that has waited longest, 0 without one. The
    others count rows by state; outcomes by whether the answer helped (yes, no, not_known).
    `model_cost_usd` is that of all runs, of models with known prices."""

    oldest_queued_seconds: float
    evaluations: Mapping[str, int]
    runs: Mapping[str, int]
    model_cost_usd: float
    outcomes: Mapping[str, int]
    skills: Mapping[str, int]


def figures_of(catalog: Catalog) -> Figures:
    """The figures now, of one moment."""
    with catalog.read() as connection:
        # A job that is queued again waits since its last heartbeat.
        queued_at = sa.func.coalesce(work.c.heartbeat_at, work.c.created_at)
        oldest = connection.scalar(
            sa.select(sa.func.min(queued_at)).where(
                work.c.kind == "ingest", work.c.state == "queued"
            )
        )
        cost = connection.scalar(sa.select(sa.func.sum(runs.c.cost_usd)))
        return Figures(
            oldest_queued_seconds=_seconds_since(oldest) if oldest else 0.0,
            evaluations=_counts(connection, evaluations.c.state),
            runs=_counts(connection, runs.c.state),
            model_cost_usd=float(cost or 0.0),
            outcomes={
                _HELPED[value]: count
                for value, count in _rows(connection, outcomes.c.helped)
                if value in _HELPED
            },
            skills=_counts(connection, skills.c.state),
        )


def _seconds_since(moment: str) -> float:
    age = datetime.now(UTC) - datetime.fromisoformat(moment.replace("Z", "+00:00"))
    return max(0.0, age.total_seconds())


def _counts(connection: Connection, column: sa.Column[str]) -> dict[str, int]:
    return {str(value): count for value, count in _rows(connection, column)}


def _rows(connection: Connection, column: sa.Column[str]) -> list[tuple[object, int]]:
    query = sa.select(column, sa.func.count()).group_by(column).order_by(column)
    return [(value, int(count)) for value, count in connection.execute(query)]
