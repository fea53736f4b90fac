"""A stored run's evaluations instead of a device: the same goal and seed give the same tree again.

Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterable

from kb.errors import NotFound, Unavailable
from optimizer.evaluation.records import Evaluation
from optimizer.search.records import REFERENCE, Node, Proposal


class ReplayBench:
    """A bench that answers from the nodes of a run, and has nothing for what they do not hold."""

    at_once: int

    def __init__(self, nodes: Iterable[Node], at_once: int = 1) -> None:
        """at_once: as many as the run's bench evaluated side by side."""
        self.at_once = at_once
        self._reference: Evaluation | None = None
        self._nodes: dict[str, Node] = {}
        for node in nodes:
            if node.number == REFERENCE:
                self._reference = node.evaluation
            elif node.proposal is not None and node.state != "duplicate":
                self._nodes[node.proposal.bundle.sha256] = node

    def reference(self) -> Evaluation:
        if self._reference is None:
            raise _absent("its reference")
        return self._reference

    def evaluate(self, bundle_of: Proposal) -> Evaluation:
        """Raises NotFound for a bundle that the run never had, Unavailable where the run's own
        evaluation failed."""
        node = self._nodes.get(bundle_of.bundle.sha256)
        if node is None:
            raise _absent(f"bundle {bundle_of.bundle.sha256[:12]}")
        if node.evaluation is None:
            raise Unavailable(node.problem, hint="The run had no result for it either.")
        return node.evaluation


def _absent(what: str) -> NotFound:
    return NotFound(
        f"the run has no evaluation of {what}",
        hint="Replay with the goal, the seed and the proposers of the run itself.",
    )
