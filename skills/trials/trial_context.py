"""What trials are run with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from optimizer.evaluation.problem.spec import Problem
from optimizer.evaluation.records import Evaluation
from optimizer.search.knowledge import KnowledgeSource
from optimizer.search.records import Proposal
from optimizer.search.synthesizers.base import HardwareView
from optimizer.search.synthesizers.recipe.recipe import Recipe


class ConfirmingBench(Protocol):
    """A bench that also measures a winner anew."""

    @property
    def device(self) -> str: ...

    @property
    def at_once(self) -> int: ...

    def reference(self) -> Evaluation: ...

    def evaluate(self, proposal: Proposal) -> Evaluation: ...

    def confirm(self, proposal: Proposal, held_out: bool) -> Evaluation: ...


@dataclass(frozen=True)
class Means:
    """What trials are run with. problems: that may be searched here; bench: of a problem on the
    device at hand; recipes: of active skills; knowledge: as a run has it; hardware: of the device.
    seen: (sha256 of a problem, case) pairs that the skill was distilled from."""

    problems: Sequence[Problem]
    bench: Callable[[Problem], AbstractContextManager[ConfirmingBench]]
    recipes: Sequence[Recipe]
    knowledge: KnowledgeSource
    hardware: HardwareView
    seen: frozenset[tuple[str, str]]
    seed: int = 0
