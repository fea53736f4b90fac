"""The part of an acceptance test that asks language models: problems of rising difficulty, written
with the knowledge about the chip, and judged by its toolchain.

A kernel that is right is known to the problems after it, as it would be in use.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
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

# Name, shapes of the inputs, expression. Whole numbers are small: their sums are exact.
FLOATS: Sequence[tuple[str, tuple[tuple[int, ...], ...], str]] = (
    ("elementwise", ((48, 64), (48, 64)), "x0 * 2 + torch.maximum(x0, x1)"),
    ("reduction", ((32, 128),), "x0.sum(-1)"),
    ("norm", ((32, 128), (128,)), "torch.nn.functional.rms_norm(x0, (128,), x1, 1e-5)"),
    ("softmax", ((32, 128),), "torch.softmax(x0, -1)"),
    ("product", ((32, 64), (64, 32)), "x0 @ x1"),
    ("transposed product", ((64, 32), (64, 32)), "x0.t() @ x1"),
    ("scan", ((16, 64),), "torch.cumsum(x0, -1)"),
)
# For toolchains whose sample computes on whole numbers: those of the problems that are exact.
WHOLE = ("elementwise", "reduction", "product", "transposed product", "scan")


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
        """Pass a message on."""
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
    dtypes = {a.dtype for a in chain.sample_arguments}
    whole = bool(dtypes) and not any(dtype.startswith(("float", "bfloat")) for dtype in dtypes)
    goal = Goal(language=language, candidates=attempts, synthesizers=("llm",))
    with tempfile.TemporaryDirectory(prefix="kernlore-accept-") as folder:
        for name, shapes, expression in FLOATS:
            if whole and name not in WHOLE:
                continue
            path = Path(folder) / f"accept_{name.replace(' ', '_')}.py"
            path.write_text(problem_source(shapes, expression, whole), encoding="utf-8")
            finished = optimize(
                base,
                path,
                goal,
                hardware,
                _Progress(log, name),
                models=models,
                proposers=(),
            )
            yield written_problem(finished, name, language, models.models)


def problem_source(shapes: Sequence[tuple[int, ...]], expression: str, whole: bool) -> str:
    """A problem file that computes the expression over inputs x0, x1, ..."""
    names = [f"x{n}" for n in range(len(shapes))]
    made = [
        f"torch.randint(-8, 8, {list(shape)}).int()" if whole else f"torch.randn({list(shape)})"
        for shape in shapes
    ]
    returned = f"({expression}).int()" if whole else expression
    return "\n".join(
        [
            "import torch",
            "",
            "class Model(torch.nn.Module):",
            f"    def forward(self, {', '.join(names)}):",
            f"        return {returned}",
            "",
            "def get_inputs():",
            f"    return [{', '.join(made)}]",
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
