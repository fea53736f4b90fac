"""Proposals, their order and their parents; and that they pass a real evaluation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kb.problem_terms import ROLES, canonical_op, op_family
from optimizer.evaluation.problem.load import load_problem
from optimizer.search.bench.local import problem_view
from optimizer.search.knowledge import ShownMove
from optimizer.search.records import Node, Proposal, Value
from optimizer.search.synthesizers.base import ProblemView
from optimizer.search.synthesizers.compiler.configurations import (
    Installed,
    Space,
    installed,
    shipped,
)
from optimizer.search.synthesizers.compiler.synthesizer import ENOUGH, CompilerSynthesizer
from retrieval.diagnose.signals import load_signals
from tests.problem_files import model_text

from .proposals import KNOWN, SOURCE, all_proposals, context, evaluated

pytestmark = pytest.mark.slow(seconds=5)


@pytest.fixture(scope="module")
def problem(tmp_path_factory: pytest.TempPathFactory) -> ProblemView:
    path = tmp_path_factory.mktemp("problem") / "scaled_softmax.py"
    path.write_text(SOURCE)
    return replace(problem_view(load_problem(path), "cpu"), op="softmax")


def test_default_precedes_rewrites_and_other_configurations(problem: ProblemView) -> None:
    proposals = all_proposals(problem)
    rows = [(p.origin, p.values["mode"], p.values.get("rewrites")) for p in proposals]
    assert rows == [
        ("config", "default", None),
        ("rewrite", "eager", "softmax"),
        ("rewrite", "default", "softmax"),
        ("config", "default", None),
        ("config", "max-autotune-no-cudagraphs", None),
    ]
    assert len({p.bundle.sha256 for p in proposals}) == len(proposals)
    assert all(p.bundle.parameters == p.values for p in proposals)


def test_equal_contexts_give_equal_proposals(problem: ProblemView) -> None:
    assert all_proposals(problem) == all_proposals(problem)


def test_each_device_has_its_configurations(problem: ProblemView) -> None:
    modes = {p.values["mode"] for p in all_proposals(problem, device="cuda")}
    assert "reduce-overhead" in modes
    assert all_proposals(problem, device=None) == []


def test_forbidden_libraries_leave_no_proposal(problem: ProblemView) -> None:
    strict = replace(problem, policy={**problem.policy, "library": "forbidden"})
    assert all_proposals(strict) == []


def changed(parent: Proposal, child: Proposal) -> set[str]:
    names = set(parent.values) | set(child.values)
    return {name for name in names if parent.values.get(name) != child.values.get(name)}


def test_neighbours_of_best_differ_in_one_value_and_never_repeat(problem: ProblemView) -> None:
    synthesizer = CompilerSynthesizer(known=lambda: KNOWN)
    first = synthesizer.propose(context(problem))
    assert first is not None
    tried = [evaluated(1, first, 1.5)]
    seen = {tuple(sorted(map(repr, first.values.items())))}
    while (proposal := synthesizer.propose(context(problem, tried[0], tried))) is not None:
        assert proposal.parent == 1 and len(changed(first, proposal)) == 1
        key = tuple(sorted(map(repr, proposal.values.items())))
        assert key not in seen
        seen.add(key)
        tried.append(evaluated(len(tried) + 1, proposal, 1.0))
    assert len(tried) > 15


def test_options_without_effect_are_not_all_tried(problem: ProblemView) -> None:
    synthesizer = CompilerSynthesizer(known=lambda: KNOWN)
    first = synthesizer.propose(context(problem))
    assert first is not None

    def tried_with(speed: float) -> list[Proposal]:
        tried = [evaluated(1, first, 1.0)]
        made = []
        while (proposal := synthesizer.propose(context(problem, tried[0], tried))) is not None:
            made.append(proposal)
            tried.append(evaluated(len(tried) + 1, proposal, speed))
        return made

    same, slower = tried_with(0.999), tried_with(0.9)
    options = {name for p in same for name in set(p.values) - {"mode"}}
    assert len(options) == ENOUGH and len(same) < len(slower) / 2
    assert {p.values["mode"] for p in same} == {p.values["mode"] for p in slower}


def test_descent_continues_only_from_best(problem: ProblemView) -> None:
    synthesizer = CompilerSynthesizer(known=lambda: KNOWN)
    first = synthesizer.propose(context(problem))
    assert first is not None
    root = evaluated(1, first, 1.5)
    second = synthesizer.propose(context(problem, root, [root]))
    assert second is not None
    worse, better = evaluated(2, second, 1.2), evaluated(2, second, 1.9)
    assert synthesizer.propose(context(problem, worse, [root, worse])) is None
    third = synthesizer.propose(context(problem, better, [root, better]))
    assert third is not None and third.parent == 2 and len(changed(second, third)) == 1
    assert synthesizer.propose(context(problem, root, [root, better])) is None


def test_eager_rewrite_is_compiled_next(problem: ProblemView) -> None:
    synthesizer = CompilerSynthesizer(known=lambda: KNOWN)
    rewrite = all_proposals(problem)[1]
    node = evaluated(1, rewrite, 1.5)
    proposal = synthesizer.propose(context(problem, node, [node]))
    assert proposal is not None and proposal.values == {"mode": "default", "rewrites": "softmax"}
    assert "class Rewritten(Model)" in proposal.bundle.source


def test_foreign_and_wrong_nodes_are_not_changed(problem: ProblemView) -> None:
    synthesizer = CompilerSynthesizer(known=lambda: KNOWN)
    first = synthesizer.propose(context(problem))
    assert first is not None
    other = evaluated(1, replace(first, synthesizer="recipe"), 3.0)
    assert synthesizer.propose(context(problem, other, [other])) is None
    failed = replace(evaluated(1, first, 1.0), evaluation=None)
    assert synthesizer.propose(context(problem, failed, [failed])) is None


@pytest.mark.parametrize(
    ("signal", "option"),
    [("not_vectorized", "cpp.enable_tiling_heuristics"), ("sync_stall", "cpp.min_chunk_size")],
)
def test_verdict_orders_neighbours(problem: ProblemView, signal: str, option: str) -> None:
    first = all_proposals(problem)[0]
    node, plain = evaluated(1, first, 1.5, signal), evaluated(1, first, 1.5)
    order = [next(iter(changed(first, p))) for p in neighbours(problem, node)]
    before = [next(iter(changed(first, p))) for p in neighbours(problem, plain)]
    assert order.index(option) < before.index(option)


def neighbours(problem: ProblemView, node: Node, *moves: ShownMove) -> list[Proposal]:
    synthesizer = CompilerSynthesizer(known=lambda: KNOWN)
    tried = [node]
    proposals: list[Proposal] = []
    while True:
        proposal = synthesizer.propose(context(problem, node, tried, moves=moves))
        if proposal is None:
            return proposals
        proposals.append(proposal)
        tried.append(evaluated(len(tried) + 1, proposal, 1.0))


def test_move_raises_its_option_and_is_attributed(problem: ProblemView) -> None:
    move = ShownMove("move_1", "vectorise", {"role": "vector"}, None, None, "why", True)
    node = evaluated(1, all_proposals(problem)[0], 1.5)
    first = neighbours(problem, node, move)[0]
    assert first.attributed == ("move_1",)
    assert next(iter(changed(all_proposals(problem)[0], first))).startswith("cpp.")


def test_options_that_need_policy_are_tried_only_with_it(problem: ProblemView) -> None:
    node = evaluated(1, all_proposals(problem)[0], 1.5)
    strict = {name for p in neighbours(problem, node) for name in p.values}
    loose = replace(problem, policy={**problem.policy, "precision": "relaxed", "weights": "frozen"})
    allowed = {name for p in neighbours(loose, node) for name in p.values}
    assert {"cpp.enable_unsafe_math_opt_flag", "freezing"} <= allowed - strict


def test_options_unknown_to_this_torch_are_not_proposed(problem: ProblemView) -> None:
    few = Installed({"default": {}}, frozenset({"size_asserts"}))
    synthesizer = CompilerSynthesizer(known=lambda: few)
    first = synthesizer.propose(context(problem))
    assert first is not None
    tried = [evaluated(1, first, 1.5)]
    names: set[str] = set()
    while (proposal := synthesizer.propose(context(problem, tried[0], tried))) is not None:
        names |= changed(first, proposal)
        tried.append(evaluated(len(tried) + 1, proposal, 1.0))
    assert names == {"size_asserts"}


@pytest.mark.parametrize("op", ["pooling", "reduction"])
def test_tuned_launches_precede_options_without_reason_on_gpu(
    problem: ProblemView, op: str
) -> None:
    pooled = replace(problem, op=op)
    first = all_proposals(pooled, device="cuda")[0]
    node = evaluated(1, first, 1.5)
    steps = shipped().neighbours("default", {}, context(pooled, node, device="cuda"), KNOWN)
    names = [next(iter(step.options), step.mode) for step in steps]
    tuned = [names.index(n) for n in ("coordinate_descent_tuning", "max_autotune_pointwise")]
    assert max(tuned) < names.index("comprehensive_padding")


# -- the file


def everything(space: Space) -> list[tuple[str, Value, tuple[str, ...]]]:
    """Every option with every value that is set, and its devices."""
    rows = [(o.name, v, o.help.devices) for o in space.options for v in o.values]
    return rows + [
        (name, value, point.help.devices)
        for point in space.points
        for name, value in point.options.items()
    ]


def test_every_entry_is_a_torch_option_of_right_type() -> None:
    import torch

    inductor: Any = torch._TorchCompileInductorWrapper
    for name, value, _ in everything(shipped()):
        inductor(None, {name: value}, False)  # raises
    assert {point.mode for point in shipped().points} <= set(installed().modes)


def test_file_defaults_equal_those_of_torch() -> None:
    from torch._inductor import config

    known = config.get_config_copy()
    stated = {o.name: o.default for o in shipped().options if o.default is not None}
    # Depends on the build of torch and on the machine.
    stated.pop("prologue_fusion")
    assert {name: known[name] for name in stated} == stated


def test_vocabulary_of_file_is_known() -> None:
    signals = set(load_signals().ids)
    entries: list[Any] = [*shipped().points, *shipped().options]
    for entry in entries:
        assert set(entry.help.signals) <= signals, entry.name
        assert set(entry.help.roles) <= ROLES.keys(), entry.name
        assert set(entry.help.devices) <= {"cpu", "cuda"}, entry.name
        for op in entry.help.ops:
            assert canonical_op(op) == op or op_family(op) == op, entry.name
        assert entry.help.about.endswith(".")


@pytest.mark.parametrize(
    ("computes", "kinds", "tried", "spared"),
    [
        ("x.relu() * 2", {"pointwise": 2}, "max_autotune_pointwise", "max_autotune_gemm_backends"),
        ("x @ x.T", {"product": 1}, "max_autotune_gemm", "force_layout_optimization"),
        ("x.t()[:5].cumsum(0)", {"other": 1}, "unroll_reductions_threshold", "max_fusion_size"),
    ],
)
def test_options_that_cannot_change_code_are_not_tried(
    tmp_path: Path, computes: str, kinds: dict[str, int], tried: str, spared: str
) -> None:
    path = tmp_path / "problem.py"
    path.write_text(
        "import torch\n\nclass Model(torch.nn.Module):\n    def forward(self, x):\n"
        f"        return {computes}\n\ndef get_inputs():\n    return [torch.randn(16, 16)]\n"
        "\ndef get_init_inputs():\n    return []\n"
    )
    problem = problem_view(load_problem(path), "cpu")
    assert problem.main.kinds == kinds
    first = all_proposals(problem, device="cuda")[0]
    synthesizer, nodes = CompilerSynthesizer(known=lambda: KNOWN), [evaluated(1, first, 1.5)]
    while (
        proposal := synthesizer.propose(context(problem, nodes[0], nodes, device="cuda"))
    ) is not None:
        nodes.append(evaluated(len(nodes) + 1, proposal, 1.0))
    names = {name for node in nodes if node.proposal for name in node.proposal.values}
    assert tried in names and spared not in names


@pytest.mark.parametrize(
    ("mode", "options", "values"),
    [
        ("default", {}, []),
        ("max-autotune-no-cudagraphs", {}, ["ATEN", "TRITON"]),
        ("default", {"max_autotune_gemm": True}, ["ATEN", "TRITON"]),
    ],
)
def test_backends_of_products_are_tried_where_products_are_autotuned(
    tmp_path: Path, mode: str, options: dict[str, Value], values: list[str]
) -> None:
    path = tmp_path / "problem.py"
    path.write_text(model_text("x @ x", "torch.randn(16, 16)"))
    request = context(problem_view(load_problem(path), "cpu"), device="cuda")
    name = "max_autotune_gemm_backends"
    steps = shipped().neighbours(mode, options, request, KNOWN)
    tried = [step.options[name] for step in steps if name in step.options]
    assert tried == values
