"""Recipes: parsed, matched, pruned by facts, changed by moves, and built."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kb.errors import InvalidKnowledge
from kb.hardware.table_reader import Problems
from optimizer.evaluation.abi import Signature, TensorSpec
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.evaluator import Evaluator
from optimizer.evaluation.isolation.runner_process import RunnerPool
from optimizer.evaluation.problem.load import load_problem
from optimizer.evaluation.records import Interval
from optimizer.evaluation.settings import EvaluationSettings, TimingPolicy
from optimizer.evaluation.toolchains.base import EvaluationTarget
from optimizer.evaluation.toolchains.cpp import CppToolchain
from optimizer.search.bench.local import TargetToolchain, problem_view
from optimizer.search.knowledge import ShownKnowledge, ShownMove
from optimizer.search.records import Node, Proposal, Value
from optimizer.search.synthesizers.base import CaseView, HardwareView, ProblemView, ProposalContext
from optimizer.search.synthesizers.recipe.recipe import (
    Binding,
    Recipe,
    RecipeMismatch,
    instantiate,
    match,
    parse_recipe,
    space,
)
from optimizer.search.synthesizers.recipe.synthesizer import (
    RecipeSynthesizer,
    adapt_winner,
    fit,
    moved,
    stepped,
)
from tests.evaluations import RIGHT
from tests.problem_files import model_text

pytestmark = pytest.mark.slow(seconds=6)

KERNEL = """
#include "kernlore_abi.h"
KERNLORE_EXPORT int kernlore_run(const kernlore_tensor *t, const kernlore_counts *) {
@{host}
#pragma omp parallel for schedule(static, @{chunk})
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < cols; j++) y[i * cols + j] = x[i * cols + j] * @{factor};
  (void)@{tile};
  return 0;
}
"""
RAW: dict[str, Any] = {
    "format": 1,
    "language": "cpp",
    "template": "references/kernel.cpp",
    "ops": ["elementwise"],
    "tensors": [
        {"name": "x", "role": "input", "dtypes": ["float32"], "dims": ["*rows", "cols"]},
        {"name": "y", "role": "output", "dtypes": ["float32"], "dims": ["*rows", "cols"]},
    ],
    "traits": {"factor": "mul.other"},
    "when": "cols >= 8",
    "parameters": [
        {"name": "chunk", "role": "block", "values": [1, 4, 16], "default": 4},
        {"name": "tile", "role": "tile_m", "values": [8, 16, 32, 64], "default": 32},
    ],
    "constraints": ["tile * cols * 4 <= facts.l1d_size"],
}
PROBLEM = model_text("x * 1.5", "torch.randn(rows, cols)", head="rows, cols = 48, 96")


def recipe(**changed: Any) -> Recipe:
    problems = Problems("test")
    parsed = parse_recipe("scale", {**RAW, **changed}, {"references/kernel.cpp": KERNEL}, problems)
    problems.raise_if_any()
    assert parsed is not None
    return parsed


def signature(*shape: int, dtype: str = "float32", out: tuple[int, ...] | None = None) -> Signature:
    return Signature(
        (
            TensorSpec("x", "input", dtype, shape),
            TensorSpec("output0", "output", dtype, out or shape),
        )
    )


def bound(binding: Binding | RecipeMismatch) -> Binding:
    assert isinstance(binding, Binding), binding
    return binding


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"format": 2}, "this version reads format 1"),
        ({"template": "nowhere"}, "no file nowhere"),
        ({"constraints": ["tile * width < 9"]}, "width is nothing"),
        ({"when": "chunk > 1"}, "chunk is nothing"),
        ({"tensors": RAW["tensors"][:1]}, "has no output"),
        ({"parameters": [{"name": "chunk", "role": "size", "values": [1]}]}, "is not allowed"),
        ({"parameters": [{"name": "chunk", "role": "block", "values": ["1; x"]}]}, "no value"),
        ({"parameters": []}, "@{chunk} is nothing"),
        ({"colour": 1}, "unknown key"),
    ],
)
def test_invalid_recipe_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidKnowledge) as caught:
        recipe(**changed)
    assert message in str(caught.value)


def test_recipe_fits_if_names_dimensions_and_traits_agree() -> None:
    scale = recipe()
    traits = {"mul.other": 2.0}
    assert bound(match(scale, signature(2, 3, 16), traits, {}, "elementwise")).dims == {
        "rows": 6,
        "cols": 16,
    }
    refused = {
        "is for elementwise": match(scale, signature(4, 16), traits, {}, "softmax"),
        "x is float32": match(scale, signature(4, 16, dtype="float16"), traits, {}, "elementwise"),
        "rows is 4": match(scale, signature(4, 16, out=(5, 16)), traits, {}, "elementwise"),
        "the problem has no": match(scale, signature(4, 16), {}, {}, "elementwise"),
        "does not hold": match(scale, signature(4, 4), traits, {}, "elementwise"),
    }
    for reason, refusal in refused.items():
        assert isinstance(refusal, RecipeMismatch) and reason in refusal.reason


def test_operator_kinds_distinguish_equal_tensors() -> None:
    scale = recipe(kinds={"pointwise": 1})
    shape, traits = signature(4, 16), {"mul.other": 2.0}
    bound(match(scale, shape, traits, {}, "elementwise", {"pointwise": 1}))
    bound(match(scale, shape, traits, {}, "elementwise"))  # not watched, so no contradiction
    others = {"pointwise": 3, "product": 1}
    refusal = match(scale, shape, traits, {}, "elementwise", others)
    assert isinstance(refusal, RecipeMismatch)
    assert refusal.reason == "is for 1 pointwise, the case runs 3 pointwise, 1 product"


def test_facts_prune_space_only_where_known() -> None:
    scale = recipe()
    binding = bound(match(scale, signature(64, 256), {"mul.other": 2.0}, {}, "elementwise"))
    assert len(list(space(scale, binding, {}))) == 12
    assert {v["tile"] for v in space(scale, binding, {"l1d_size": 16384})} == {8, 16}


def test_values_cannot_contain_code() -> None:
    binding = Binding({"rows": 1, "cols": 8}, {"factor": 1.5})
    built = instantiate(recipe(), {"chunk": 4, "tile": 8}, binding, PROBLEM)
    assert "static, 4" in built.source and "* 1.5;" in built.source
    assert built.origin == "recipe" and built.parameters == {"chunk": 4, "tile": 8}


REMEDY = ShownMove(
    "mv_1", "bigger", {"role": "tile_m", "direction": "increase"}, None, None, "", True
)


def context(parent: Node, tried: tuple[Node, ...], **changed: Any) -> ProposalContext:
    case = CaseView("main", signature(64, 96), {"mul.other": 1.5}, True, "float32")
    fields = {
        "problem": ProblemView("scale", "elementwise", "", PROBLEM, (case,), {}),
        "hardware": HardwareView("x86-64", ("x86-64",), "cpu", ("cpp",), {"l1d_size": 1 << 20}),
        "parent": parent,
        "seen": (),
        "best": None,
        "knowledge": ShownKnowledge("ret_1", moves=(REMEDY,)),
        "tried": tried,
        "step": len(tried) + 1,
        "seed": 1,
        "run_id": "run_1",
        "max_tokens": 100,
    }
    return ProposalContext(**{**fields, **changed})


def node(number: int, proposal: Proposal | None) -> Node:
    return Node(number, None if proposal is None else 0, "evaluated", proposal, None)


def test_order_is_defaults_then_move_then_neighbours_then_rest() -> None:
    proposers = RecipeSynthesizer([recipe()], ["cpp"])
    first = proposers.propose(context(node(0, None), ()))
    assert first is not None and first.values == {"chunk": 4, "tile": 32}
    assert first.attributed == ("scale",) and first.cases == ("main",)
    parent = node(1, first)
    tried, seen = [parent], []
    while (proposal := proposers.propose(context(parent, tuple(tried)))) is not None:
        seen.append((proposal.values["chunk"], proposal.values["tile"], proposal.attributed))
        tried.append(node(len(tried) + 1, proposal))
    assert seen[0] == (4, 64, ("mv_1",))
    assert {(c, t) for c, t, _ in seen[1:4]} == {(16, 32), (1, 32), (4, 16)}
    assert len(seen) == 11  # the whole space but the default, each once


def test_without_knowledge_moves_and_facts_have_no_effect() -> None:
    proposers = RecipeSynthesizer([recipe()], ["cpp"])
    tight = HardwareView("x86-64", ("x86-64",), "cpu", ("cpp",), {"l1d_size": 96 * 4 * 8})
    with_facts = proposers.propose(context(node(0, None), (), hardware=tight))
    assert with_facts is not None and with_facts.values["tile"] == 8
    wider = replace(tight, facts={"l1d_size": 96 * 4 * 16})
    nearest = proposers.propose(context(node(0, None), (), hardware=wider))
    assert nearest is not None and nearest.values == {"chunk": 4, "tile": 16}
    without = proposers.propose(
        context(node(0, None), (), hardware=tight, with_knowledge=False, knowledge=ShownKnowledge())
    )
    assert without is not None and without.values["tile"] == 32


def test_limit_and_direction_of_a_move() -> None:
    tile = recipe().parameter("tile")
    up = {"role": "tile_m", "direction": "increase"}
    limited = ShownMove("m", "m", up, 32, "f", "", True, limit_unit="count")
    counted = replace(tile, unit="count")
    assert moved(counted, 16, limited) == 32 and moved(counted, 32, limited) is None
    assert moved(tile, 32, limited) == 64  # without a stated unit, a limit does not apply
    bits = replace(limited, limit=512.0, limit_unit="bit")
    lanes = replace(tile, unit="elements")
    assert moved(lanes, 8, bits, 4) == 16 and moved(lanes, 16, bits, 4) is None
    assert moved(lanes, 16, bits, 2) == 32 and moved(lanes, 16, bits) == 32
    down = ShownMove("m", "m", {"role": "tile_m", "direction": "decrease"}, None, None, "", True)
    assert moved(tile, 32, down) == 16 and moved(tile, 8, down) is None
    to = ShownMove(
        "m", "m", {"role": "tile_m", "direction": "set", "to": "64"}, None, None, "", True
    )
    assert moved(tile, 8, to) == 64 and moved(tile, 64, to) is None
    assert stepped(tile, 99, 1) is None


def measured(number: int, parent: int, values: dict[str, Any], merit: float, *moves: str) -> Node:
    bundle = instantiate(
        recipe(), values, Binding({"rows": 64, "cols": 96}, {"factor": 1.5}), PROBLEM
    )
    proposal = Proposal(bundle, "recipe", parent, "", "scale", values, attributed=moves)
    evaluation = replace(
RIGHT,
key="",
problem="scale",
candidate="",
speedup=Interval(merit, merit, merit, 6),
)  # fmt: skip
    return Node(number, parent, "evaluated", proposal, evaluation)


def after(
    parent: Node, *tried: Node, **changed: Any
) -> list[tuple[dict[str, Any], tuple[str, ...]]]:
    """The proposals for the parent in order, without measurements."""
    proposer, nodes, seen = RecipeSynthesizer([recipe()], ["cpp"]), list(tried), []
    while (proposal := proposer.propose(context(parent, tuple(nodes), **changed))) is not None:
        seen.append((dict(proposal.values), proposal.attributed))
        nodes.append(node(len(nodes) + 1, proposal))
    return seen


def test_winning_step_is_repeated_and_losing_move_deferred() -> None:
    start = measured(1, 0, {"chunk": 1, "tile": 16}, 1.0)
    won = measured(2, 1, {"chunk": 4, "tile": 16}, 1.5)
    assert after(won, start, won)[0] == ({"chunk": 16, "tile": 16}, ())  # before the move
    lost = measured(2, 1, {"chunk": 1, "tile": 32}, 0.5, "mv_1")
    tried = [values for values, _ in after(start, start, lost)]
    assert tried[:2] == [{"chunk": 4, "tile": 16}, {"chunk": 1, "tile": 8}]
    elsewhere = measured(3, 1, {"chunk": 4, "tile": 16}, 1.5)
    later = after(elsewhere, start, lost, elsewhere)
    place = next(n for n, (_, moves) in enumerate(later) if moves == ("mv_1",))
    assert place == 2  # after chunk 16, which won, and tile 8, which was not tried


def test_undecided_moves_follow_true_ones_and_false_ones_have_no_effect() -> None:
    start = measured(1, 0, {"chunk": 4, "tile": 16}, 1.0)
    open_ = replace(REMEDY, applies=None)
    holds = ShownMove("mv_2", "m", {"role": "block", "direction": "decrease"}, None, None, "", True)
    both = after(start, start, knowledge=ShownKnowledge("ret_1", moves=(open_, holds)))
    assert [moves for _, moves in both[:3]] == [("mv_2",), ("mv_1",), ()]
    refuted = ShownKnowledge("ret_1", moves=(replace(REMEDY, applies=False),))
    assert not [moves for _, moves in after(start, start, knowledge=refuted) if moves]


def test_limit_is_that_of_chip() -> None:
    raw = [RAW["parameters"][0], {**RAW["parameters"][1], "unit": "elements"}]
    wide = ShownMove("mv_1", "", REMEDY.change, 4096.0, "vector_bits", "", True, "", "bit")
    start = measured(1, 0, {"chunk": 4, "tile": 16}, 1.0)
    for bits, allowed_here in ((512.0, False), (1024.0, True)):
        chip = HardwareView("x86-64", ("x86-64",), "cpu", ("cpp",), {"vector_bits": bits})
        knowledge = ShownKnowledge("ret_1", moves=(wide,))
        proposer = RecipeSynthesizer([recipe(parameters=raw)], ["cpp"])
        proposal = proposer.propose(context(start, (start,), hardware=chip, knowledge=knowledge))
        assert proposal is not None and (proposal.attributed == ("mv_1",)) is allowed_here
    assert proposer.roles(context(start, ()).problem) == ("block", "tile_m")


def test_instance_is_compiled_and_correct(tmp_path: Path, pool: RunnerPool) -> None:
    path = tmp_path / "scale.py"
    path.write_text(PROBLEM, encoding="utf-8")
    problem = load_problem(path)
    view = problem_view(problem, "cpu")
    binding = bound(
        match(recipe(), view.main.signature, view.main.traits, {}, problem.op)
        if problem.op == "elementwise"
        else match(recipe(ops=[]), view.main.signature, view.main.traits, {}, problem.op)
    )
    bundle = instantiate(recipe(), recipe().defaults, binding, problem.source)
    place = TargetToolchain(EvaluationTarget("x86-64", ("x86-64",), None, "cpu"), CppToolchain())
    timing = TimingPolicy(block_ms=1.0, min_pairs=4, max_pairs=4, quiet=1e6)
    settings = EvaluationSettings(threads=1, timing=timing)
    with Evaluator(problem, place.target, settings, pool=pool) as evaluator:
        evaluation = evaluator.evaluate(bundle, place.toolchain)
    assert evaluation.correct, evaluation.log


@pytest.mark.parametrize("name", ["cpp-in-register-scan", "triton-carry-chunk-cumulative-sum"])
@pytest.mark.parametrize(
    ("forward", "fits"),
    [
        ("x.cumsum(1)", True),
        ("x.cumsum(-1)", True),
        ("x.cumsum(0)", False),
        ("torch.clamp((torch.tanh(x) * 0.5).cumsum(1) - x, -1.5, 2.0)", False),
        ("x.flip(1).cumsum(1)", False),
    ],
)
def test_scan_recipe_fits_only_scan(name: str, forward: str, fits: bool, tmp_path: Path) -> None:
    problem = tmp_path / "problem.py"
    problem.write_text(
        "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x):\n"
        f"        return {forward}\ndef get_inputs():\n    return [torch.randn(64, 96)]\n"
    )
    (case,) = problem_view(load_problem(problem), "cpu").cases
    raw = json.loads(Path(f"skills/library/{name}/references/recipe.json").read_text())
    template = Path(f"skills/library/{name}") / raw["template"]
    problems = Problems(name)
    recipe = parse_recipe(name, raw, {raw["template"]: template.read_text()}, problems)
    problems.raise_if_any()
    assert recipe is not None
    found = match(recipe, case.signature, case.traits, {}, "scan", case.kinds)
    assert isinstance(found, Binding) is fits


@pytest.mark.parametrize(
    "folder",
    sorted(Path("skills/library").glob("*/references/recipe.json")),
    ids=lambda p: p.parts[2],
)
def test_every_shipped_recipe_is_parsed(folder: Path) -> None:
    root = folder.parents[1]
    files = {
        p.relative_to(root).as_posix(): p.read_text(encoding="utf-8")
        for p in root.rglob("*")
        if p.is_file()
    }
    problems = Problems(root.name)
    parsed = parse_recipe(root.name, json.loads(files["references/recipe.json"]), files, problems)
    problems.raise_if_any()
    assert parsed is not None and len(parsed.parameters) >= 1


# -- stored winners for another problem of the family: rebuilt where their recipe fits


LIBRARY = Path(__file__).resolve().parents[4] / "skills" / "library"
SOFTMAX = "cpp-fused-row-softmax"


def shipped(name: str) -> Recipe:
    folder, problems = LIBRARY / name / "references", Problems(name)
    files = {f"references/{path.name}": path.read_text("utf-8") for path in folder.iterdir()}
    recipe = parse_recipe(name, json.loads(files["references/recipe.json"]), files, problems)
    problems.raise_if_any()
    assert recipe is not None
    return recipe


def view(name: str) -> ProblemView:
    return problem_view(load_problem(Path(name)), "cpu")


def won(recipe: Recipe, problem: ProblemView, **values: Value) -> Proposal:
    fitting = fit(recipe, problem, {})
    assert fitting is not None
    chosen = {**recipe.defaults, **values}
    bundle = instantiate(recipe, chosen, fitting.binding, problem.source)
    return Proposal(bundle, "recipe", recipe=recipe.name, values=chosen, cases=fitting.cases)


def test_winner_is_rebuilt_for_problem_that_its_recipe_fits() -> None:
    recipe, problem = shipped(SOFTMAX), view("softmax")
    elsewhere = won(recipe, problem, chunk=recipe.parameters[0].values[0])
    stale = replace(elsewhere, bundle=replace(elsewhere.bundle, files={"kernel.cpp": "// old"}))
    adapted = adapt_winner(stale, problem, {recipe.name: recipe}, {}, same_problem=False)
    assert adapted is not None and adapted.bundle == elsewhere.bundle
    assert adapted.values == elsewhere.values and adapted.cases == elsewhere.cases


def test_winner_of_an_unsuitable_recipe_is_not_inherited() -> None:
    recipe = shipped("cpp-panel-conv1d")
    winner = won(recipe, view("conv1d"))
    for other in ("depthwise_conv2d", "conv_transpose2d", "pointwise_conv2d"):
        assert (
            adapt_winner(winner, view(other), {recipe.name: recipe}, {}, same_problem=False) is None
        )
    assert adapt_winner(winner, view("conv1d"), {recipe.name: recipe}, {}, same_problem=False)


def test_disallowed_values_are_not_inherited() -> None:
    recipe, problem = shipped(SOFTMAX), view("softmax")
    library = {recipe.name: recipe}
    winner = won(recipe, problem)
    first = recipe.parameters[0].name
    for values in ({**winner.values, first: 1234567}, {first: winner.values[first]}):
        odd = replace(winner, values=values)
        assert adapt_winner(odd, problem, library, {}, same_problem=True) is None
    recipe, problem = shipped("cpp-panel-conv1d"), view("conv1d")
    library, winner = {recipe.name: recipe}, won(recipe, problem, lanes=16)
    assert adapt_winner(winner, problem, library, {"vector_bits": 512}, same_problem=False)
    assert adapt_winner(winner, problem, library, {"vector_bits": 128}, same_problem=False) is None


def test_other_kernels_are_inherited_only_by_their_problem() -> None:
    problem = view("softmax")
    bundle = Bundle({"k.cpp": "// by hand"}, "k.cpp", "cpp", "kernlore_run", {}, "llm")
    for recipe in (None, "a-recipe-that-is-gone"):
        winner = Proposal(bundle, "llm", recipe=recipe)
        assert adapt_winner(winner, problem, {}, {}, same_problem=False) is None
        adapted = adapt_winner(winner, problem, {}, {}, same_problem=True)
        assert adapted is not None and adapted.bundle is bundle
        assert set(adapted.cases) <= {case.name for case in problem.cases}
