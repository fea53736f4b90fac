"""Measures on this machine: one evaluator for each language and device, and runners of each device
shared by all languages."""

from __future__ import annotations

import queue
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kb.errors import InvalidRequest
from kb.hardware.spec import SignatureSpec
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.collectors.ceilings import Ceilings
from optimizer.evaluation.correctness.prepared import PreparedProblem
from optimizer.evaluation.evaluator import Evaluator
from optimizer.evaluation.isolation.levels import level_for
from optimizer.evaluation.isolation.pool import RunnerPool
from optimizer.evaluation.isolation.runner_process import RunnerSettings
from optimizer.evaluation.journal import Journal, NoJournal
from optimizer.evaluation.problem.spec import Case, Problem
from optimizer.evaluation.problem.tensors import open_case
from optimizer.evaluation.records import Evaluation
from optimizer.evaluation.settings import EvaluationSettings
from optimizer.evaluation.toolchains.base import Target, Toolchain
from optimizer.search.bench.devices import Seat, seats_here
from optimizer.search.records import Proposal


@dataclass(frozen=True)
class Place:
    """Where candidates in one language are built and run."""

    target: Target
    toolchain: Toolchain


@dataclass
class LocalBench:
    """A context: leaving it ends every process. places: by language; `torch` is always one of them
    where the device is here, because the reference is written in it. seats: devices that measure
    side by side, by default all of the target's that are here."""

    problem: Problem
    places: Mapping[str, Place]
    settings: EvaluationSettings
    journal: Journal = field(default_factory=NoJournal)
    ceilings: Ceilings | None = None
    signatures: Sequence[SignatureSpec] = ()
    seats: Sequence[Seat] = ()
    _evaluators: dict[tuple[str, bool, Seat], Evaluator] = field(default_factory=dict)
    _pools: dict[Seat, RunnerPool] = field(default_factory=dict)
    _problems: dict[Seat, PreparedProblem] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.seats = self.seats or seats_here(self.device)
        self._free: queue.SimpleQueue[Seat] = queue.SimpleQueue()
        for seat in self.seats:
            self._free.put(seat)

    def __enter__(self) -> LocalBench:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for evaluator in list(self._evaluators.values()):
            evaluator.close()
        self._evaluators.clear()
        for pool in list(self._pools.values()):
            pool.close()
        self._pools.clear()

    @property
    def at_once(self) -> int:
        """One for each device: on one, what is timed side by side disturbs each other."""
        return len(self.seats)

    @property
    def device(self) -> str:
        return next(iter(self.places.values())).target.device or "cpu"

    def reference(self) -> Evaluation:
        """On its first timed case; its verdict says what bounds it."""
        case = self._timed()[0]
        source = open_case(self.problem, case).source
        bundle = Bundle({"reference.py": source}, "reference.py", "torch", "Model", {}, "external")
        return self._evaluate(bundle, [case], fresh=False)

    def evaluate(self, proposal: Proposal) -> Evaluation:
        return self._evaluate(proposal.bundle, self.cases(proposal), fresh=False)

    def confirm(self, proposal: Proposal, held_out: bool) -> Evaluation:
        """Measured anew, with values nobody has seen: on the searched timed cases, or on those that
        were held out."""
        chosen = [case for case in self.cases(proposal) if case.timed]
        if held_out:
            chosen = [case for case in self.problem.held_out if case.fits(self.device)]
        return self._evaluate(proposal.bundle, chosen, fresh=True)

    def cases(self, proposal: Proposal) -> list[Case]:
        """The searched cases that it claims and that are meant for this device."""
        claimed = set(proposal.cases)
        return [
            case
            for case in self.problem.searched
            if case.fits(self.device) and (not claimed or case.name in claimed)
        ]

    def _timed(self) -> list[Case]:
        found = [c for c in self.problem.searched if c.timed and c.fits(self.device)]
        if not found:
            raise InvalidRequest(
                f"{self.problem.name} has no timed case for {self.device}",
                hint="Give its problem.toml a case without `timed = false` for this device.",
            )
        return found

    def _evaluate(self, bundle: Bundle, cases: Sequence[Case], fresh: bool) -> Evaluation:
        place = self.places.get(bundle.language)
        if place is None:
            known = ", ".join(self.places)
            raise InvalidRequest(
                f"nothing here builds {bundle.language!r}", hint=f"Propose one of {known}."
            )
        seat = self._free.get()
        try:
            with seat.taken():
                evaluator = self._evaluator(bundle.language, fresh, seat)
                return evaluator.evaluate(bundle, place.toolchain, cases)
        finally:
            self._free.put(seat)

    def _prepared(self, seat: Seat) -> PreparedProblem:
        """Goldens lie on the seat's device, and serve every language there."""
        if seat not in self._problems:
            self._problems[seat] = PreparedProblem(self.problem, self.device, self.settings)
        return self._problems[seat]

    def _evaluator(self, language: str, fresh: bool, seat: Seat) -> Evaluator:
        key = (language, fresh, seat)
        if key not in self._evaluators:
            target = self.places[language].target
            if seat not in self._pools and target.device is not None:
                level = level_for(self.settings.isolation, target.device)
                runners = RunnerSettings(target.device, self.settings.threads, level)
                self._pools[seat] = seat.pool(runners)
            self._evaluators[key] = Evaluator(
                self.problem,
                target,
                self.settings,
                NoJournal() if fresh else self.journal,
                pool=self._pools.get(seat),
                ceilings=self.ceilings,
                signatures=self.signatures,
                prepared=None if fresh else self._prepared(seat),
                lock=seat.lock,
            )
        return self._evaluators[key]
