"""Everything a synthesizer gets to see for one proposal, as data; the prompt of a language model is
one rendering of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from optimizer.evaluation.abi import Signature
from optimizer.search.knowledge import Knowledge
from optimizer.search.records import Node


@dataclass(frozen=True)
class CaseView:
    """A case as a proposer sees it. traits: numbers that the problem's code holds."""

    name: str
    signature: Signature
    traits: Mapping[str, int | float | str | bool]
    timed: bool
    dtype: str | None


@dataclass(frozen=True)
class ProblemView:
    """The problem without its tensors. policy: what is allowed, in words."""

    name: str
    op: str
    summary: str
    source: str
    cases: tuple[CaseView, ...]
    policy: Mapping[str, str]

    @property
    def main(self) -> CaseView:
        """The first timed case."""
        return next((case for case in self.cases if case.timed), self.cases[0])


@dataclass(frozen=True)
class HardwareView:
    """The target. languages: those with a toolchain here, the preferred one first."""

    id: str
    lineage: tuple[str, ...]
    device: str | None
    languages: tuple[str, ...]
    facts: Mapping[str, float | str]


@dataclass(frozen=True)
class Context:
    """One call of the universal operator. seen: what the memory operator shows beside the parent;
    best: of the run so far. step: number of the node to come. seed: of all randomness in it."""

    problem: ProblemView
    hardware: HardwareView
    parent: Node
    seen: Sequence[Node]
    best: Node | None
    knowledge: Knowledge
    tried: Sequence[Node]
    step: int
    seed: int
    run_id: str
    max_tokens: int
    with_knowledge: bool = True
