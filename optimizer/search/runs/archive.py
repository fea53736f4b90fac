"""Right kernels of a run, kept as samples of their chip: the next problem starts from them.

Only for languages that no model has seen: there a kernel that compiles and computes right is worth
more than any page of a manual.
"""

from __future__ import annotations

from kb.catalog.knowledge import samples
from kb.catalog.knowledge.samples import VerifiedKernel
from kb.scope import ALL_ACCESS
from optimizer.search.records import Node
from optimizer.search.synthesizers.base import HardwareView, ProblemView
from optimizer.search.tree import Tree
from retrieval.compose.layout import load_layout
from retrieval.compose.target import own_symbols
from retrieval.knowledge_base import KnowledgeBase
from retrieval.search.names import names_in


def keep_right_kernels(
    base: KnowledgeBase,
    tree: Tree,
    problem: ProblemView,
    hardware: HardwareView,
    run_id: str,
) -> list[str]:
    """Store the best right kernel of each of the chip's own languages; returns the samples' ids."""
    known = load_layout().known_languages
    kept = []
    for language in hardware.languages:
        best = _best(tree, language)
        if language not in known and best is not None:
            kept.append(_keep(base, best, problem, hardware, language, run_id))
    return kept


def _best(tree: Tree, language: str) -> Node | None:
    """The fastest right node in a language; of unmeasured ones the first."""
    right = [
        node
        for node in tree.nodes[1:]
        if node.correct and node.proposal is not None and node.proposal.bundle.language == language
    ]
    return max(right, key=lambda node: (node.merit, -node.number), default=None)


def _keep(
    base: KnowledgeBase,
    node: Node,
    problem: ProblemView,
    hardware: HardwareView,
    language: str,
    run_id: str,
) -> str:
    assert node.proposal is not None and node.evaluation is not None
    source = node.proposal.bundle.source
    case = problem.main
    shapes = tuple(f"{t.name} {t.dtype} {list(t.shape)}" for t in case.signature.tensors)
    cycles = [t.cycles for t in node.evaluation.timings if t.cycles is not None]
    took = f", {cycles[0]} cycles in the simulator" if cycles else ""
    cards = own_symbols(base.snapshots.current(), hardware.lineage, language, ALL_ACCESS)
    with base.catalog.write() as connection:
        return samples.add_verified(
            connection,
            VerifiedKernel(
                title=f"{problem.name}: {problem.summary or problem.op}",
                operator=problem.op,
                language=language,
                hardware=hardware.id,
                shapes=shapes,
                symbols=tuple(names_in(source, {card.name for card in cards})),
                code=source,
                evidence=f"right in every case of {problem.name}{took}",
                run_id=run_id,
            ),
        )
