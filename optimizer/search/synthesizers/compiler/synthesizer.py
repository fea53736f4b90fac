"""Proposes kernels of torch's compiler: the problem through torch.compile in different
configurations, its graph rewritten, and both together.

From the reference it proposes torch.compile's default, the rewrites that match, then the other
configurations, ranked by verdict, moves and operator. From its best candidate so far it proposes
the same with one setting changed (coordinate descent); from any other node, nothing. Deterministic
in the context and the installed torch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from optimizer.evaluation.bundle import Bundle
from optimizer.search.records import REFERENCE, Node, Proposal, Value
from optimizer.search.synthesizers.base import ProposalContext
from optimizer.search.synthesizers.compiler.configurations import (
    DEFAULT,
    EAGER,
    ConfigurationStep,
    Installed,
    configured_bundle,
    installed,
    rewritten_bundle,
    shipped,
)
from optimizer.search.synthesizers.compiler.rewrites.rules import Rewritten, variants
from optimizer.search.synthesizers.compiler.rewrites.trace import NoSymbolicGraph, trace

NAME = "compiler"
_log = logging.getLogger(__name__)
Key = frozenset[tuple[str, str, Value]]


@dataclass(frozen=True)
class Candidate:
    """A configuration and the rewrites of a candidate; `rewrites` are names of rules,
    comma-separated."""

    step: ConfigurationStep
    rewrites: str = ""

    @property
    def values(self) -> dict[str, Value]:
        """The values of the proposal: mode, rewrites and options."""
        values: dict[str, Value] = {"mode": self.step.mode}
        if self.rewrites:
            values["rewrites"] = self.rewrites
        return {**values, **self.step.options}

    @property
    def key(self) -> Key:
        """Equal for candidates with the same values."""
        return _key(self.values)


class CompilerSynthesizer:
    """Proposes from the shipped configurations and rules."""

    name = NAME
    first_tries = 1

    def __init__(self, known: Callable[[], Installed] = installed) -> None:
        """`known` returns the modes and options of the torch that runs the candidates; it is called
        when first needed, since importing the compiler takes seconds."""
        self._space = shipped()
        self._known = known
        self._rewritten: dict[str, tuple[Rewritten, ...]] = {}

    def propose(self, context: ProposalContext) -> Proposal | None:
        """The next untried configuration or rewrite; None if nothing is left.

        Also None if libraries are forbidden, since the harness observes a call at the dispatcher,
        where torch.compile shows the problem's own operators; and if the device is not on this
        machine, since a candidate compiles when it runs.
        """
        forbidden = context.problem.policy.get("library") == "forbidden"
        if forbidden or context.hardware.device is None:
            return None
        candidates = (
            self._from_reference(context)
            if context.parent.number == REFERENCE
            else self._from_own(context)
        )
        tried = {_key(n.proposal.values) for n in context.tried if _own(n) and n.proposal}
        for candidate in candidates:
            if candidate.key not in tried:
                bundle = self._bundle(context, candidate)
                if bundle is not None:
                    return _proposal(context, candidate, bundle)
        return None

    def _from_reference(self, context: ProposalContext) -> Iterator[Candidate]:
        default, *others = self._space.starts(context, self._known())
        yield Candidate(default)
        for rewrite in self._rewrites(context):
            rewrites = ", ".join(rewrite.names)
            changes = "; ".join(rule.about for rule in rewrite.rules)
            counts = f"{rewrite.before} operators, then {rewrite.after}"
            plan = f"Rewrite the graph ({counts}): {changes}."
            yield Candidate(ConfigurationStep(EAGER, {}, plan), rewrites)
            yield Candidate(
                ConfigurationStep(DEFAULT, {}, f"{plan} Compile what comes of it."), rewrites
            )
        yield from map(Candidate, others)

    def _from_own(self, context: ProposalContext) -> Iterator[Candidate]:
        """The best candidate of this synthesizer with one setting changed."""
        parent = context.parent
        best = _best(context.tried)
        if parent.proposal is None or best is None or parent.number != best.number:
            return
        values = dict(parent.proposal.values)
        mode, names = str(values.pop("mode", DEFAULT)), str(values.pop("rewrites", ""))
        if mode == EAGER:
            yield Candidate(ConfigurationStep(DEFAULT, {}, "Compile the rewritten graph."), names)
            return
        for step in self._space.neighbours(mode, values, context, self._known()):
            yield Candidate(step, names)

    def _rewrites(self, context: ProposalContext) -> tuple[Rewritten, ...]:
        source = context.problem.source
        if source not in self._rewritten:
            traced = trace(source)
            if isinstance(traced, NoSymbolicGraph):
                _log.info("no rewrites of %s: %s", context.problem.name, traced.reason)
                self._rewritten[source] = ()
            else:
                self._rewritten[source] = tuple(variants(traced))
        return self._rewritten[source]

    def _bundle(self, context: ProposalContext, candidate: Candidate) -> Bundle | None:
        source, step = context.problem.source, candidate.step
        if not candidate.rewrites:
            main = context.problem.main
            names = [tensor.name for tensor in main.signature.of("input")]
            overwritten = [names.index(name) for name in main.overwritten]
            return configured_bundle(source, step.mode, step.options, overwritten)
        rewrite = next(
            (r for r in self._rewrites(context) if ", ".join(r.names) == candidate.rewrites), None
        )
        if rewrite is None:
            return None  # made by another version of the rules
        return rewritten_bundle(source, rewrite.text, rewrite.names, step.mode, step.options)


def _proposal(context: ProposalContext, candidate: Candidate, bundle: Bundle) -> Proposal:
    return Proposal(
        bundle=bundle,
        synthesizer=NAME,
        parent=context.parent.number,
        plan=candidate.step.plan,
        values=candidate.values,
        attributed=candidate.step.attributed,
    )


def _own(node: Node) -> bool:
    return node.proposal is not None and node.proposal.synthesizer == NAME


def _best(tried: Sequence[Node]) -> Node | None:
    """The measured candidate of this synthesizer with the highest lower bound of the speed-up."""
    nodes = [node for node in tried if _own(node) and node.merit > 0]
    return max(nodes, key=lambda n: (n.merit, -n.number), default=None)


def _key(values: Mapping[str, Value]) -> Key:
    """Values with their types, since 1 and True are different options."""
    return frozenset((name, type(value).__name__, value) for name, value in values.items())
