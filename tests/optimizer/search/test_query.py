"""The queries of the search to the knowledge base, and its use of the answers."""

from __future__ import annotations

from dataclasses import replace

from kb.plain import from_json
from optimizer.evaluation.records import EvaluationVerdict
from optimizer.search.goal import Goal
from optimizer.search.knowledge import (
    ShownKnowledge,
    ShownMove,
    applicable_moves,
    knowledge_from_json,
)
from optimizer.search.propose import SearchTask, compose_context, request_for, roles_of
from optimizer.search.records import Node, Proposal
from optimizer.search.synthesizers.base import ProblemView, ProposalContext
from optimizer.search.tree import Tree
from retrieval.request import RetrieveRequest
from tests.evaluations import RIGHT
from tests.optimizer.search.landscape import HARDWARE, VIEW

TASK = SearchTask("run_1", Goal(language="cpp"), VIEW, HARDWARE)
FOUND = replace(
RIGHT,
key="",
candidate="",
metrics={"packed_instructions": 3},
verdict=from_json(EvaluationVerdict, {
        "signals": [{"id": id, "confidence": ""} for id in ("poor_reuse", "memory_bound")],
        "metrics": {"packed_instructions": 3, "roofline_pct": 40.0},
        "problem": {"reduction_length": 64, "element_bytes": 4},
    }),
)  # fmt: skip


def test_query_has_evidence_of_verdict() -> None:
    question = request_for(TASK, Node(1, 0, "evaluated", None, FOUND), ("vector",))
    assert question.signals == ("poor_reuse", "memory_bound")
    assert question.metrics == {"packed_instructions": 3, "roofline_pct": 40.0}
    assert question.problem == {"reduction_length": 64, "element_bytes": 4}
    assert question.roles == ("vector",)


def test_verdict_of_an_earlier_release_is_queried() -> None:
    old = replace(
        FOUND,
        verdict=from_json(EvaluationVerdict, {"signals": [{"id": "poor_reuse", "confidence": ""}]}),
    )
    question = request_for(TASK, Node(1, 0, "evaluated", None, old))
    assert question.metrics == {"packed_instructions": 3} and question.problem is None
    move = {"id": "m", "name": "m", "change": {}, "limit": 4, "limit_name": "f", "why": "",
           "applies": True}  # fmt: skip
    row = {"retrieval_id": "", "excerpts": [], "remedies": [move], "skills": [], "facts": {}}
    assert knowledge_from_json(row).moves == (ShownMove("m", "m", {}, 4, "f", "", True),)


def test_runs_with_equal_problem_and_seed_ask_the_same() -> None:
    first, second = (
        request_for(replace(TASK, run_id=run), Node(0, None, "evaluated", None, None))
        for run in ("run_1", "run_2")
    )
    assert first.draw and replace(first, run_id=None) == replace(second, run_id=None)
    seeded = replace(TASK, goal=replace(TASK.goal, seed=1))
    assert request_for(seeded, Node(0, None, "evaluated", None, None)).draw != first.draw


class TileProposer:
    name = "tiles"
    first_tries = 1

    def propose(self, context: ProposalContext) -> Proposal | None:
        return None

    def roles(self, problem: ProblemView) -> tuple[str, ...]:
        return ("tile_m", "vector")


class AnyProposer:
    name = "anything"
    first_tries = 1

    def propose(self, context: ProposalContext) -> Proposal | None:
        return None


def test_only_proposers_bound_to_roles_name_some() -> None:
    assert roles_of([AnyProposer(), TileProposer()], VIEW) == ("tile_m", "vector")
    assert roles_of([AnyProposer()], VIEW) == ()


def test_device_facts_take_precedence_over_family_facts() -> None:
    task = replace(TASK, hardware=replace(HARDWARE, facts={"vector_bits": 256.0}))
    tree = Tree([Node(0, None, "evaluated", None, FOUND)])
    knowledge = ShownKnowledge("ret_1", facts={"vector_bits": 512.0, "cache_line": 64.0})
    facts = compose_context(task, tree, 0, knowledge).knowledge.facts
    assert facts == {"vector_bits": 256.0, "cache_line": 64.0}


# -- preconditions of remedies, decided by the information that a search has

FACTS = {"sm_count": 132}


def move_when(when: str) -> ShownMove:
    return ShownMove(when or "always", "wider", {"role": "vector"}, None, None, "", None, when)


def request_with(**problem: float) -> RetrieveRequest:
    signals = ("memory_bound",)
    metrics: dict[str, float | str] = {"roofline_pct": 40.0, "kernel": "k"}
    return RetrieveRequest(
        signals=signals, metrics=metrics, op="mm", language="triton", dtype="fp32", problem=problem
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
