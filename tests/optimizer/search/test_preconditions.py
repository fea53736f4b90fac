"""Preconditions of remedies, decided by the information that a search has."""

from __future__ import annotations

from optimizer.search.knowledge import ShownMove, applicable_moves
from retrieval.request import RetrieveRequest

FACTS = {"sm_count": 132}


def move_when(when: str) -> ShownMove:
    return ShownMove(when or "always", "wider", {"role": "vector"}, None, None, "", None, when)


def request_with(**problem: float) -> RetrieveRequest:
    signals = ("memory_bound",)
    metrics: dict[str, float | str] = {"roofline_pct": 40.0, "kernel": "k"}
    return RetrieveRequest(
        signals=signals,
        metrics=metrics,
        op="mm",
        language="triton",
        dtype="fp32",
        problem=problem,
    )


def test_false_preconditions_are_dropped_and_undecided_ones_stay() -> None:
    holding = (
        "problem.op in ['matmul']",  # the term of the vocabulary
        "signals.memory_bound and problem.dtype == 'float32'",
        "facts.sm_count >= 100 and problem.reduction_length <= 64",
        "problem.language == 'triton'",
    )
    excluded = ("problem.op in ['softmax']", "signals.compute_bound", "facts.sm_count > 200")
    missing = "problem.rows >= 8"
    candidates = [move_when(when) for when in (*holding, *excluded, missing, "")]
    moves = applicable_moves(candidates, request_with(reduction_length=32), FACTS)
    assert [(move.when, move.applies) for move in moves] == [
        *((when, True) for when in holding),
        (missing, None),
        ("", None),
    ]
