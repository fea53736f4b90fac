"""Human answers to integrity flags: which can be answered, which answer counts, none is lost."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from kb.catalog import Catalog
from kb.catalog.evaluations import CandidateRow, Evaluations, ProblemRow, Reviews
from kb.catalog.tables import evaluation_reviews
from kb.errors import Conflict, InvalidRequest, NotFound
from kb.scope import AccessScope

REVIEW = {"defence": 29, "severity": "review", "message": "case main: 40.0 times as fast"}
REJECT = {"defence": 14, "severity": "reject", "message": "it falls back to the reference"}


def start_evaluation(catalog: Catalog, key: str) -> Evaluations:
    rows = Evaluations(catalog)
    problem = ProblemRow("map_id", "0" * 64, "file", "map", "blob", {})
    candidate = CandidateRow("1" * 64, "cpp", "kernlore_run", "recipe", {}, "blob")
    rows.begin(key, problem, [], candidate, "3", "cpu")
    return rows


def measured(catalog: Catalog, key: str, *flags: dict[str, Any], validity: str = "correct") -> None:
    record = {"reached": "diagnose", "validity": validity, "timing": "measured", "flags": flags}
    start_evaluation(catalog, key).finish(key, record, [], op_family="map", hardware_id="x86-64")


def stored_reasons(catalog: Catalog) -> list[str]:
    """The reasons of all answers, oldest first, including those to earlier measurements."""
    query = sa.select(evaluation_reviews.c.reason).order_by(evaluation_reviews.c.sequence)
    with catalog.read() as connection:
        return list(connection.scalars(query))


def test_newest_review_counts_and_all_are_stored(catalog: Catalog) -> None:
    measured(catalog, "k1", REVIEW)
    measured(catalog, "k2", REVIEW)
    reviews = Reviews(catalog)
    assert reviews.latest(["k1", "k2"]) == {}
    first = reviews.add("k1", "refused", "ann", "it skips the last row")
    second = reviews.add("k1", "accepted", " bob ", "no: the row is padding\n")
    assert (second.actor, second.reason) == ("bob", "no: the row is padding")
    assert reviews.latest(["k1", "k2", "nothing"]) == {"k1": second}
    assert stored_reasons(catalog) == [first.reason, second.reason]
    assert Reviews(catalog, AccessScope("others")).latest(["k1"]) == {}


def test_more_keys_than_sql_parameters(catalog: Catalog) -> None:
    measured(catalog, "k1", REVIEW)
    answer = Reviews(catalog).add("k1", "accepted", "ann", "looked")
    keys = [f"a{n}" for n in range(50_000)]
    assert Reviews(catalog).latest([*keys, "k1"]) == {"k1": answer}


def test_new_measurement_needs_new_review(catalog: Catalog) -> None:
    """The timing was repeated, so the answer is about an earlier flag."""
    measured(catalog, "k1", REVIEW)
    reviews = Reviews(catalog)
    before = reviews.add("k1", "accepted", "ann", "looked")
    measured(catalog, "k1", REVIEW)
    assert reviews.latest(["k1"]) == {} and stored_reasons(catalog) == [before.reason]
    after = reviews.add("k1", "refused", "ann", "looked again")
    assert reviews.latest(["k1"]) == {"k1": after} and stored_reasons(catalog) == [
        before.reason,
        after.reason,
    ]


@pytest.mark.parametrize(
    ("flags", "validity", "expected"),
    [
        ((), "correct", "no flag that waits"),
        ((REVIEW, REJECT), "rejected", "falls back to the reference"),
        ((REJECT,), "correct", "falls back to the reference"),
        ((REVIEW,), "rejected", "rejected by a check"),
    ],
)
def test_unreviewable_evaluations_are_refused(
    catalog: Catalog, flags: tuple[dict[str, Any], ...], validity: str, expected: str
) -> None:
    measured(catalog, "k1", *flags, validity=validity)
    with pytest.raises(Conflict, match=expected):
        Reviews(catalog).add("k1", "accepted", "ann", "looked")
    assert stored_reasons(catalog) == []


@pytest.mark.parametrize(
    ("decision", "actor", "reason"),
    [("maybe", "ann", "looked"), ("accepted", " ", "looked"), ("refused", "ann", "\n")],
)
def test_review_needs_reviewer_and_reason(
    catalog: Catalog, decision: str, actor: str, reason: str
) -> None:
    measured(catalog, "k1", REVIEW)
    with pytest.raises(InvalidRequest):
        Reviews(catalog).add("k1", decision, actor, reason)
    assert stored_reasons(catalog) == []


def test_review_needs_finished_evaluation(catalog: Catalog) -> None:
    with pytest.raises(NotFound):
        Reviews(catalog).add("k1", "accepted", "ann", "looked")
    start_evaluation(catalog, "k1")
    with pytest.raises(Conflict, match="not finished"):
        Reviews(catalog).add("k1", "accepted", "ann", "looked")
    measured(catalog, "k1", REVIEW)
    with pytest.raises(NotFound):  # of another scope
        Reviews(catalog, AccessScope("others")).add("k1", "accepted", "ann", "looked")
