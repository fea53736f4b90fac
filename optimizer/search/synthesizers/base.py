"""What proposes candidates. A new synthesizer implements `Synthesizer` and is named in the wiring.

Standard library only.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from optimizer.search.context import Context, ProblemView
from optimizer.search.records import Proposal


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
