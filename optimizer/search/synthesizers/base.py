"""The contract of synthesizers: the context that they see, as data, and the proposal they return.

A new synthesizer implements `Synthesizer` and is named in the wiring. The prompt of a language
model is one rendering of the context. Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from optimizer.evaluation.abi import Signature
from optimizer.search.knowledge import Knowledge
from optimizer.search.records import Node, Proposal


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


class ProposalFailed(Exception):
    """This attempt brought no candidate (a model answered nonsense, say); another may. The message
    is kept in the run's log."""


class Synthesizer(Protocol):
    """Proposes changes of a node. first_tries: candidates of its own from the reference that a run
    tries before its policy chooses what to change, so that a first success of one proposer does not
    keep the others from ever being heard."""

    name: str
    first_tries: int

    def propose(self, context: Context) -> Proposal | None:
        """A candidate that changes `context.parent`, or None when nothing is left to try from it.

        Deterministic in `context` as far as the synthesizer is (a model's answers are stored).
        Raises ProposalFailed.
        """
        ...


@runtime_checkable
class OfRoles(Protocol):
    """A synthesizer that can only change what has a role (see kb/moves_vocabulary.py)."""

    def roles(self, problem: ProblemView) -> tuple[str, ...]:
        """Of everything it can change for this problem."""
        ...
