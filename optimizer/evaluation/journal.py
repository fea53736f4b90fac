"""Storage of evaluations, so that none is repeated and a killed one is resumed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optimizer.evaluation.abi import Signature
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.problem.spec import Problem
from optimizer.evaluation.records import Evaluation


class EvaluationJournal:
    """Evaluations by their key (`Evaluator.key`). This one stores nothing."""

    def finished(self, key: str) -> Evaluation | None:
        """The finished evaluation of this key, if any."""
        return None

    def left(self, key: str) -> Mapping[str, Any]:
        """The results of the stages that an interrupted evaluation of this key had finished."""
        return {}

    def begin(
        self,
        key: str,
        problem: Problem,
        signatures: Mapping[str, Signature],
        bundle: Bundle,
        device: str,
    ) -> None:
        """An evaluation begins. `signatures` are those of its cases, by name."""

    def stage(self, key: str, stage: str, left: Mapping[str, Any]) -> None:
        """Store a finished stage; `left` is its JSON state for a resumed evaluation."""

    def finish(self, evaluation: Evaluation, problem: Problem) -> None:
        """The evaluation is finished."""
