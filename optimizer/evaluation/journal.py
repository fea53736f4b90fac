"""Where evaluations are kept while they run and afterwards, so that none is done twice and a killed
one is resumed.

The evaluator knows the protocol; `CatalogJournal` writes rows, `NoJournal` keeps nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from optimizer.evaluation.abi import Signature
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.problem.spec import Problem
from optimizer.evaluation.records import Evaluation


class Journal(Protocol):
    """Keeps evaluations by their key (`Evaluator.key`)."""

    def finished(self, key: str) -> Evaluation | None:
        """The finished evaluation of this key, None where there is none."""
        ...

    def left(self, key: str) -> Mapping[str, Any]:
        """The stages that an interrupted evaluation of this key had finished, with the result of
        each."""
        ...

    def begin(
        self,
        key: str,
        problem: Problem,
        signatures: Mapping[str, Signature],
        bundle: Bundle,
        device: str,
    ) -> None:
        """An evaluation begins. `signatures` are those of its cases, by name."""
        ...

    def stage(self, key: str, stage: str, left: Mapping[str, Any]) -> None:
        """A stage was finished; `left` is what a resumed evaluation needs of it, as JSON."""
        ...

    def finish(self, evaluation: Evaluation, problem: Problem) -> None:
        """The evaluation is finished."""
        ...


class NoJournal:
    """Keeps nothing."""

    def finished(self, key: str) -> Evaluation | None:
        """Never any."""
        return None

    def left(self, key: str) -> Mapping[str, Any]:
        """Never any."""
        return {}

    def begin(
        self,
        key: str,
        problem: Problem,
        signatures: Mapping[str, Signature],
        bundle: Bundle,
        device: str,
    ) -> None:
        """Keeps nothing."""
        return None

    def stage(self, key: str, stage: str, left: Mapping[str, Any]) -> None:
        """Keeps nothing."""
        return None

    def finish(self, evaluation: Evaluation, problem: Problem) -> None:
        """Keeps nothing."""
        return None


def shape_bucket(signature: Signature) -> str:
    """The number of elements handed over, as the nearest power of four: shapes of one bucket are
    within a factor of two of its middle."""
    elements = max(1, sum(tensor.elements for tensor in signature.tensors))
    return f"4^{round((elements.bit_length() - 1) / 2)}"


def main_dtype(signature: Signature) -> str:
    """The dtype of the largest tensor."""
    largest = max(signature.tensors, key=lambda tensor: tensor.elements, default=None)
    return largest.dtype if largest else "float32"


def shapes(signature: Signature) -> Sequence[Any]:
    """Role, dtype and shape of each tensor, as they are stored."""
    return [[tensor.role, tensor.dtype, list(tensor.shape)] for tensor in signature.tensors]
