"""Candidates of an external optimizer: the context of the next candidate goes out and the candidate
comes in through a mailbox, into which the service looks too.

Standard library only: what says the context in words is handed in, and so is the mailbox.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any, Protocol

from kb.plain import plain
from optimizer.evaluation.bundle import Bundle
from optimizer.search.records import Cost, Node, Proposal
from optimizer.search.synthesizers.base import ProposalContext, ProposalFailed

POLL_SECONDS = 0.1
WAIT_SECONDS = 600.0
CONTEXT_TOKENS = 48_000  # of packed knowledge, where the caller names no other bound
NAME = "external"
NOTHING_MORE = {"nothing_more": True}  # the answer of a caller who has no further candidate


class Mailbox(Protocol):
    """The mail of one run. The service gives it rows of the catalog (`RunMail`)."""

    def ask(self, step: int, context: Mapping[str, Any]) -> None:
        """Publish the context of node `step`."""

    def candidate_for(self, step: int) -> dict[str, Any] | None:
        """The candidate for this step; None until it is handed in."""

    def withdraw(self, step: int) -> None:
        """Remove the context of a step for which the run no longer waits."""


class ExternalSynthesizer:
    """Proposes the candidates that an external optimizer puts into the mailbox."""

    name = NAME
    first_tries = 1

    def __init__(
        self,
        mailbox: Mailbox,
        cancelled: Callable[[], bool] = lambda: False,
        context_tokens: int = CONTEXT_TOKENS,
        brief: Callable[[ProposalContext], Mapping[str, Any]] | None = None,
    ) -> None:
        """`cancelled` is polled during the wait for a candidate and ends it. `context_tokens`
        bounds the packed knowledge. `brief` renders a context as text for the field `briefing` of
        the JSON; without it the field is null. Its `first` is true until a candidate has come."""
        self._mailbox = mailbox
        self._cancelled = cancelled
        self.context_tokens = context_tokens
        self.reader: str | None = None  # unknown, so the caller gets the full context
        self._brief = brief
        self.ended = False  # by the caller
        self._first = True

    def propose(self, context: ProposalContext) -> Proposal | None:
        """Publish the context and wait for the candidate; None once the caller has ended its
        proposals. Raises ProposalFailed for a timeout, for a malformed candidate and for a
        cancelled run."""
        if self.ended:
            return None
        briefing = None
        if self._brief is not None:
            briefing = {**self._brief(context), "first": self._first}
        self._mailbox.ask(context.step, {**context_as_json(context), "briefing": briefing})
        began = time.monotonic()
        while time.monotonic() - began < WAIT_SECONDS:
            candidate = self._mailbox.candidate_for(context.step)
            if candidate == NOTHING_MORE:
                self.ended = True
                return None
            if candidate is not None:
                self._first = False
                return _proposal(context, candidate, time.monotonic() - began)
            if self._cancelled():
                self._mailbox.withdraw(context.step)
                raise ProposalFailed("the run was cancelled while it waited for a candidate")
            time.sleep(POLL_SECONDS)
        self._mailbox.withdraw(context.step)
        raise ProposalFailed(f"no candidate came within {WAIT_SECONDS:.0f} s")


def context_as_json(context: ProposalContext) -> dict[str, Any]:
    """The context as JSON: everything that a proposer may see, nothing of held-out cases, values or
    other runs."""
    return {
        "run": context.run_id,
        "step": context.step,
        "problem": asdict(context.problem),
        "hardware": plain(context.hardware),
        "parent": shown_node(context.parent),
        "seen": [shown_node(node) for node in context.seen],
        "best": shown_node(context.best) if context.best is not None else None,
        "knowledge": context.knowledge.as_json(),
    }


def shown_node(node: Node, source: bool = True) -> dict[str, Any]:
    """A node as JSON for external optimizers; `source` includes the text of its files."""
    evaluation = node.evaluation
    proposal = node.proposal
    return {
        "number": node.number,
        "source": dict(proposal.bundle.files) if source and proposal is not None else None,
        "language": proposal.bundle.language if proposal is not None else None,
        "plan": proposal.plan if proposal is not None else "the reference",
        "state": node.state,
        "validity": evaluation.validity if evaluation is not None else None,
        "message": evaluation.message if evaluation is not None else node.problem,
        "speedup": asdict(evaluation.speedup)
        if evaluation is not None and evaluation.speedup
        else None,
        "flags": [asdict(flag) for flag in evaluation.flags] if evaluation is not None else [],
        "signals": list(node.signals),
        "metrics": dict(evaluation.metrics) if evaluation is not None else {},
    }


def _proposal(context: ProposalContext, candidate: dict[str, Any], seconds: float) -> Proposal:
    try:
        fields = {n: candidate[n] for n in ("files", "main", "language", "entry") if n in candidate}
        bundle = Bundle(**fields, parameters=candidate.get("parameters") or {}, origin="external")
    except (TypeError, KeyError, ValueError) as problem:
        raise ProposalFailed(f"the answer is no candidate: {problem}") from problem
    shown = context.knowledge.shown()
    known = {*shown.excerpts, *shown.moves, *shown.skills}
    proposal = Proposal(
        bundle,
        NAME,
        context.parent.number,
        str(candidate.get("plan", ""))[:2_000],
        claimed=tuple(name for name in candidate.get("used") or () if name in known),
        cases=tuple(candidate.get("cases") or ()),
        model=candidate.get("model"),
    )
    return replace(proposal, cost=Cost(seconds=seconds))
