"""Reviews: people's answers to the integrity flags of evaluations.

A flag of severity `review` says that a figure may be too good to be true; only a person can decide.
Each answer is a row that is never changed or deleted, and the newest counts. An answer concerns the
measurement of its time, so it no longer counts once the evaluation is measured again. Knows nothing
about what follows from an answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import sqlalchemy as sa
from sqlalchemy import Connection

from kb import clock
from kb.catalog import visible
from kb.catalog.engine import Catalog, portions
from kb.catalog.tables import search as t
from kb.errors import Conflict, InvalidRequest, NotFound
from kb.ids import new_id
from kb.scope import ALL_ACCESS, AccessScope

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
