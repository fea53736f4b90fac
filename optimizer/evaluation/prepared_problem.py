"""A problem made ready once for everything that is evaluated of it on one device."""

from __future__ import annotations

import random

from optimizer.evaluation.collectors.work import Work, work_of
from optimizer.evaluation.correctness.prepared import Leniency, PreparedCase
from optimizer.evaluation.problem.spec import Case, Problem
from optimizer.evaluation.problem.tensors import open_case
from optimizer.evaluation.settings import EvaluationSettings

# What harnesses commonly allow in float32; only without defence 16.
USUAL_TOLERANCE = 1e-2


class PreparedProblem:
    """Cases with their goldens, and the seeds of the values that candidates are checked with."""

    def __init__(self, problem: Problem, device: str, settings: EvaluationSettings) -> None:
        self._problem = problem
        self._device = device
        self._settings = settings
        self._cases: dict[str, PreparedCase] = {}
        self._works: dict[str, Work] = {}
        # Drawn anew each time, so that nothing stored from an earlier one is of use; few, so that
        # goldens are computed once.
        self._chance = random.SystemRandom()
        self._seeds = [self._chance.getrandbits(24) for _ in range(settings.seeds + 1)]

    def case(self, case: Case) -> PreparedCase:
        """The case with its goldens, made once."""
        if case.name not in self._cases:
            lenient = Leniency(
                tolerance=0.0 if self._settings.on(16) else USUAL_TOLERANCE,
                nan_is_equal=not self._settings.on(20),
            )
            opened = open_case(self._problem, case)
            self._cases[case.name] = PreparedCase(opened, self._device, lenient)
        return self._cases[case.name]

    def work(self, case: Case) -> Work:
        """What one call of the case has to do at least."""
        if case.name not in self._works:
            self._works[case.name] = work_of(self.case(case).open)
        return self._works[case.name]

    def drawn_seeds(self) -> list[int]:
        """For one candidate."""
        if not self._settings.on(24):  # the same values for every candidate can be looked up
            return list(range(self._settings.seeds))
        return self._chance.sample(self._seeds, self._settings.seeds)
