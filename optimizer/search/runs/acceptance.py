"""The part of an acceptance test that asks language models: problems of rising difficulty, written
with the knowledge about the chip, and judged by its toolchain.

A kernel that is right is known to the problems after it, as it would be in use.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from kb.hardware.spec import ToolchainSpec
from optimizer.evaluation.acceptance.records import Acceptance, WrittenKernels, store
from optimizer.evaluation.targets import command_toolchains
from optimizer.search.goal import Goal
from optimizer.search.records import Node, time_text
from optimizer.search.runs.optimize import FinishedRun, optimize
from optimizer.search.synthesizers.base import ModelCall
from optimizer.search.synthesizers.llm.settings import ModelOptions
from optimizer.search.tree import Tree
from retrieval.knowledge_base import KnowledgeBase


@dataclass(frozen=True)
class _Written:
    """A problem of rising difficulty: shapes of its inputs and the expressions that it computes, on
    floating inputs and on whole numbers. Sizes: M rows, N columns, K terms of a product."""

    shapes: tuple[tuple[str, ...], ...]
    floats: str
    whole: str


SIZES: Mapping[str, int] = {"M": 32, "N": 64, "K": 128}
SUM_OF_SQUARES = "(x0 * x0).sum(-1, keepdim=True)"
PROBLEMS: Mapping[str, _Written] = {
    "elementwise": _Written(
        (("M", "N"), ("M", "N")), "x0 * 2 + torch.maximum(x0, x1)", "x0 * 2 + torch.maximum(x0, x1)"
    ),
    "reduction": _Written((("M", "K"),), "x0.sum(-1)", "x0.sum(-1)"),
    # The scale is a whole number with 15 bits of fraction over the length of the row.
    "norm": _Written(
        (("M", "K"), ("K",)),
        "torch.nn.functional.rms_norm(x0, x1.shape, x1, 1e-5)",
        f"(x0 * (32768 // {SUM_OF_SQUARES}.double().sqrt().int().clamp(min=1)) * x1) >> 8",
    ),
    # Powers of two, whose exponents are sixteenths of the distance from the largest element.
    "softmax": _Written(
        (("M", "K"),),
        "torch.softmax(x0, -1)",
        "(lambda e: (e * (16777216 // e.sum(-1, keepdim=True))) >> 8)"
        "(256 >> ((x0.amax(-1, keepdim=True) - x0) >> 4).clamp(max=15))",
    ),
    "product": _Written((("M", "K"), ("K", "N")), "x0 @ x1", "x0 @ x1"),
    "transposed product": _Written((("K", "M"), ("K", "N")), "x0.t() @ x1", "x0.t() @ x1"),
    "scan": _Written((("M", "N"),), "torch.cumsum(x0, -1)", "torch.cumsum(x0, -1)"),
}


@dataclass(frozen=True)
class _Progress:
    """Logs each candidate in a line."""

    write: Callable[[str], None]
    problem: str

    def node(self, node: Node, tree: Tree) -> None:
        """Log a candidate's result."""
        if node.proposal is not None:
            self.write(f"{self.problem}, attempt {len(tree) - 1}: {node.verdict}")

    def asking(self, asking: ModelCall) -> None:
        """Nothing: a line for each candidate suffices."""

    def log(self, message: str) -> None:
        self.write(f"{self.problem}: {message}")


def write_kernels(
    base: KnowledgeBase,
    result: Acceptance,
    models: ModelOptions,
    attempts: int,
    log: Callable[[str], None],
) -> Acceptance:
    """The result with the problems that the models wrote kernels for, also stored. Raises as
    `optimize` for a model without key or client."""
    chains = command_toolchains(base.registry.all(), base.registry.lineage(result.hardware))
    written = [
        row
        for language in (row.language for row in result.languages)
        for row in _written(
            base, result.hardware, language, chains[language], models, attempts, log
        )
    ]
    whole = replace(result, problems=tuple(written))
    store(base, whole)
    return whole


def _written(
    base: KnowledgeBase,
    hardware: str,
    language: str,
    chain: ToolchainSpec,
    models: ModelOptions,
    attempts: int,
    log: Callable[[str], None],
) -> Iterator[WrittenKernels]:
    dtype = input_dtype(chain)
    goal = Goal(language=language, candidates=attempts, synthesizers=("llm",))
    with tempfile.TemporaryDirectory(prefix="kernlore-accept-") as folder:
        for name in PROBLEMS:
            path = Path(folder) / f"accept_{name.replace(' ', '_')}.py"
            path.write_text(problem_source(name, dtype, SIZES), encoding="utf-8")
            finished = optimize(
                base, path, goal, hardware, _Progress(log, name), models=models, proposers=()
            )
            yield written_problem(finished, name, language, models.models)


def input_dtype(chain: ToolchainSpec) -> str:
    """The element type that the problems take on a chip: that of its sample's first input."""
    return next((a.dtype for a in chain.sample_arguments if a.role == "input"), "float32")


def problem_source(name: str, dtype: str, sizes: Mapping[str, int]) -> str:
    """The file of a problem of PROBLEMS on inputs of a dtype, over inputs x0, x1, ... with these
    sizes of M, N and K. Whole numbers are computed in int32 and are small: their sums are exact."""
    problem = PROBLEMS[name]
    floating = dtype.startswith(("float", "bfloat"))
    names = [f"x{n}" for n in range(len(problem.shapes))]
    shapes = [[sizes[axis] for axis in shape] for shape in problem.shapes]
    least = 0 if dtype.startswith("u") else -100
    made = "torch.randn({})" if floating else f"torch.randint({least}, 100, {{}})"
    inputs = ", ".join(f"{made.format(shape)}.to(torch.{dtype})" for shape in shapes)
    wide = [] if floating else [f"        {n} = {n}.int()" for n in names]
    returned = problem.floats if floating else f"({problem.whole}).int()"
    return "\n".join(
        [
            "import torch",
            "",
            "class Model(torch.nn.Module):",
            f"    def forward(self, {', '.join(names)}):",
            *wide,
            f"        return {returned}",
            "",
            "def get_inputs():",
            f"    return [{inputs}]",
            "",
            "def get_init_inputs():",
            "    return []",
            "",
        ]
    )


def written_problem(finished: FinishedRun, name: str, language: str, models: str) -> WrittenKernels:
    """The row of one run: the first right attempt, counted from 1, and the cost of the best."""
    tries = [node for node in finished.tree.nodes[1:] if node.proposal is not None]
    right = [n for n, node in enumerate(tries, start=1) if node.correct]
    best = finished.tree.best
    return WrittenKernels(
        problem=name,
        language=language,
        model=models,
        first_right=right[0] if right else None,
        attempts=len(tries),
        cost=time_text(best) if best is not None else "",
        run_id=finished.run.id,
    )
