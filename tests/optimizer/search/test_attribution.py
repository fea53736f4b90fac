"""Attribution of a candidate to shown knowledge, on shipped recipes and stored runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kb.hardware.table_reader import Problems
from optimizer.evaluation.abi import Signature
from optimizer.evaluation.bundle import Bundle
from optimizer.search.goal import Goal
from optimizer.search.knowledge import ShownExcerpt, ShownKnowledge, ShownMove, ShownSkill
from optimizer.search.loop import Search
from optimizer.search.propose import SearchTask
from optimizer.search.records import Node, Proposal
from optimizer.search.runs.optimize import (
    ABSENT,
    ASKED_A_MODEL,
    CHANGED,
    NOT_MADE_AGAIN,
    Attribution,
    attribution,
)
from optimizer.search.store import FileStore, RunRow
from optimizer.search.synthesizers.base import ProposalContext, Synthesizer
from optimizer.search.synthesizers.recipe.recipe import Recipe, parse_recipe
from optimizer.search.synthesizers.recipe.synthesizer import RecipeSynthesizer
from optimizer.search.tree import Tree
from retrieval.request import RetrieveRequest
from tests.optimizer.search.landscape import HARDWARE, VIEW, RecordingListener, TableBench

LIBRARY = Path(__file__).parents[3] / "skills" / "library"
CPP, TRITON = "cpp-fused-row-softmax", "triton-resident-row-softmax"
# Rows as long as both recipes require.
WIDE = Signature(
    tuple(replace(tensor, shape=(64, 1024)) for tensor in VIEW.cases[0].signature.tensors)
)
SOFTMAX = replace(
    VIEW,
    source="import torch\n\nclass Model(torch.nn.Module):\n    pass\n",
    cases=(replace(VIEW.cases[0], signature=WIDE, traits={"_softmax.dim": -1}),),
)
# Downwards: without a move, neighbours are tried upwards first.
UNROLL = ShownMove(
    "mv_unroll", "roll up", {"role": "unroll", "direction": "decrease"}, None, None, "", True
)
PAD = ShownMove("mv_pad", "pad rows", {"role": "pad", "direction": "add"}, None, None, "", True)
EXCERPT = ShownExcerpt("psg_1", "Manual", "Call `__builtin_prefetch` early. Rows fit the cache.")
SKILL = ShownSkill(TRITON, "", "Rows stay in registers.", 1.0)


def recipe(name: str) -> Recipe:
    folder = LIBRARY / name
    files = {
        path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8")
        for path in folder.rglob("*")
        if path.is_file()
    }
    problems = Problems(name)
    parsed = parse_recipe(name, json.loads(files["references/recipe.json"]), files, problems)
    problems.raise_if_any()
    assert parsed is not None
    return parsed


def proposer() -> RecipeSynthesizer:
    return RecipeSynthesizer([recipe(CPP), recipe(TRITON)], ["cpp", "triton"])


class Answers:
    """The same knowledge for every request."""

    def __init__(self, *moves: ShownMove, excerpts: Sequence[ShownExcerpt] = (EXCERPT,)) -> None:
        self._known = ShownKnowledge("ret_1", tuple(excerpts), moves, (SKILL,))

    def consult(self, request: RetrieveRequest) -> ShownKnowledge:
        return replace(self._known, retrieval_id=f"ret_{request.node_id}")

    def report(self, retrieval_id: str, used: tuple[str, ...], node: Node) -> None:
        """Nothing is learned here."""


TASK = SearchTask("run_1", Goal(candidates=4, seed=2), SOFTMAX, HARDWARE)


def stored(folder: Path, knowledge: Answers, synthesizer: Synthesizer, at_once: int = 1) -> Tree:
    """A stored run over a table in which unrolling is no gain."""
    store = FileStore(folder)
    run = RunRow("run_1", "hill", "0" * 64, "x86-64", TASK.goal)
    store.begin(run)
    bench = TableBench(
        lambda proposal: 1.9 - 0.1 * int(proposal.values.get("unroll", 8)), at_once=at_once
    )
    Search(
        run, store, bench, [synthesizer], knowledge, SOFTMAX, HARDWARE, RecordingListener()
    ).run()
    return Tree(store.nodes("run_1"))


def by_node(attributions: Sequence[Attribution]) -> dict[int, Attribution]:
    return {item.node: item for item in attributions}


def test_only_knowledge_that_changes_candidate_is_attributed(tmp_path: Path) -> None:
    knowledge = Answers(UNROLL, PAD)
    tree = stored(tmp_path, knowledge, proposer())
    attributions = by_node(attribution(tree, TASK, [proposer()], knowledge))
    assert set(attributions) == {1, 2, 3, 4} and not any(
        item.note for item in attributions.values()
    )
    assert {item.shown for item in attributions.values()} == {
        ("mv_unroll", "mv_pad", TRITON, "psg_1")
    }
    recipes = {n.number: n.proposal.recipe for n in tree if n.proposal}
    assert (recipes[1], recipes[2]) == (TRITON, CPP)
    assert attributions[1].attributed == (TRITON,)  # the skill put its recipe first
    assert attributions[2].attributed == ()  # the only remaining one
    unrolled = next(
        n.number for n in tree if n.proposal and n.proposal.attributed == ("mv_unroll",)
    )
    assert attributions[unrolled].attributed == ("mv_unroll",) == attributions[unrolled].recorded
    assert all("mv_pad" not in item.attributed for item in attributions.values())
    assert all("psg_1" not in item.attributed for item in attributions.values())


def test_running_candidates_are_restored(tmp_path: Path) -> None:
    knowledge = Answers(UNROLL, PAD)
    tree = stored(tmp_path, knowledge, proposer(), at_once=4)
    assert any(node.batch for node in tree)
    attributions = attribution(tree, TASK, [proposer()], knowledge)
    assert attributions and not any(item.note for item in attributions)


def test_two_sources_of_same_change_are_not_attributed(tmp_path: Path) -> None:
    knowledge = Answers(UNROLL, replace(UNROLL, id="mv_twin"))
    tree = stored(tmp_path, knowledge, proposer())
    attributions = by_node(attribution(tree, TASK, [proposer()], knowledge))
    number = next(n.number for n in tree if n.proposal and n.proposal.attributed == ("mv_unroll",))
    assert attributions[number].attributed == () and attributions[number].recorded == ("mv_unroll",)


def test_changed_knowledge_is_not_attributed(tmp_path: Path) -> None:
    tree = stored(tmp_path, Answers(UNROLL, PAD), proposer())
    gone = attribution(tree, TASK, [proposer()], Answers(PAD))
    assert {(item.attributed, item.note) for item in gone} == {((), CHANGED)}
    # The same ids, with another direction for one of them.
    up = replace(UNROLL, change={"role": "unroll", "direction": "increase"})
    other = by_node(attribution(tree, TASK, [proposer()], Answers(up, PAD)))
    number = next(n.number for n in tree if n.proposal and n.proposal.attributed == ("mv_unroll",))
    assert other[number].attributed == ()
    assert other[number].note == NOT_MADE_AGAIN.format("recipe")
    absent = attribution(tree, TASK, [], Answers(UNROLL, PAD))
    assert {item.note for item in absent} == {ABSENT}


class Model:
    """Writes a kernel that prefetches, and claims everything."""

    name = "llm"
    first_tries = 1

    def propose(self, context: ProposalContext) -> Proposal:
        code = f"// {context.step}\nvoid run() {{ __builtin_prefetch(x); }}\n"
        bundle = Bundle({"k.cpp": code}, "k.cpp", "cpp", "run", {}, "llm")
        claimed = ("mv_unroll", TRITON, "psg_1")
        return Proposal(bundle, self.name, context.parent.number, claimed=claimed, model="m")


def test_claims_of_a_model_need_word_in_its_change(tmp_path: Path) -> None:
    knowledge = Answers(UNROLL, PAD)
    tree = stored(tmp_path, knowledge, Model())
    attributions = attribution(tree, TASK, [Model()], knowledge)
    first = by_node(attributions)[1]
    assert first.claimed == ("psg_1",)
    assert {item.attributed for item in attributions} == {()}
    assert {item.note for item in attributions} == {ASKED_A_MODEL}
    # The call is in the parent already: this change did not add it.
    child = next(item for item in attributions if tree[item.node].parent != 0)
    assert child.claimed == ()
