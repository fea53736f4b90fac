"""Stores evaluations and measured devices in the catalog; sources become blobs.

The only module of the evaluation that needs SQLAlchemy, which GPU machines of a search may lack.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from kb import clock
from kb.blobs import Blobs
from kb.catalog.engine import Catalog
from kb.catalog.evaluations import CandidateRow, CaseFigures, CaseRow, Evaluations, ProblemRow
from kb.catalog.tables import devices
from kb.ids import derived_id
from kb.plain import from_json
from kb.problem_terms import op_family
from optimizer.evaluation.abi import Signature
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.collectors.ceilings import Ceilings
from optimizer.evaluation.collectors.probe import DeviceIdentity
from optimizer.evaluation.journal import EvaluationJournal
from optimizer.evaluation.problem.spec import Case, Problem
from optimizer.evaluation.records import Evaluation
from optimizer.evaluation.settings import HARNESS


class CatalogJournal(EvaluationJournal):
    """Evaluations in the catalog."""

    def __init__(self, evaluations: Evaluations, blobs: Blobs) -> None:
        self._rows = evaluations
        self._blobs = blobs

    def finished(self, key: str) -> Evaluation | None:
        row = self._rows.find(key)
        record = row.record if row else None
        return from_json(Evaluation, record) if record else None

    def left(self, key: str) -> Mapping[str, Any]:
        row = self._rows.find(key)
        return row.stages if row and row.state == "running" else {}

    def begin(
        self,
        key: str,
        problem: Problem,
        signatures: Mapping[str, Signature],
        bundle: Bundle,
        device: str,
    ) -> None:
        """Store a running evaluation with its problem, cases and candidate."""
        self._rows.begin(
            key,
            self._problem(problem),
            _cases(problem, signatures),
            CandidateRow(
                bundle.sha256,
                bundle.language,
                bundle.entry,
                bundle.origin,
                bundle.parameters,
                self._blobs.put(_packed(bundle)),
            ),
            HARNESS,
            device,
        )

    def problem(self, problem: Problem, signatures: Mapping[str, Signature]) -> None:
        """Store a problem and its cases before the first evaluation."""
        self._rows.add_problem(self._problem(problem), _cases(problem, signatures))

    def _problem(self, problem: Problem) -> ProblemRow:
        return ProblemRow(
            problem.name,
            problem.sha256,
            "file",
            op_family(problem.op),
            self._blobs.put(problem.source.encode()),
            asdict(problem.policy),
        )

    def stage(self, key: str, stage: str, left: Mapping[str, Any]) -> None:
        self._rows.stage(key, stage, left)

    def finish(self, evaluation: Evaluation, problem: Problem) -> None:
        """Store the evaluation and the times of its cases."""
        timings = {timing.case: timing for timing in evaluation.timings}
        checked: dict[str, bool] = {}
        for check in evaluation.checks:
            checked[check.case] = checked.get(check.case, True) and check.ok
        figures = []
        for case, correct in checked.items():
            timing = timings.get(case)
            ratio = timing.speedup if timing else None
            figures.append(
                CaseFigures(
                    case,
                    correct and evaluation.correct,
                    timing.baseline_us if timing else None,
                    timing.candidate_us if timing else None,
                    ratio.value if ratio else None,
                    ratio.low if ratio else None,
                )
            )
        self._rows.finish(
            evaluation.key,
            evaluation.as_json(),
            figures,
            op_family=op_family(problem.op),
            hardware_id=evaluation.hardware,
        )


def _packed(bundle: Bundle) -> bytes:
    return json.dumps({"main": bundle.main, "files": dict(bundle.files)}).encode()


def _cases(problem: Problem, signatures: Mapping[str, Signature]) -> list[CaseRow]:
    return [_case(c, signatures[c.name]) for c in problem.cases if c.name in signatures]


def _case(case: Case, signature: Signature) -> CaseRow:
    largest = max(signature.tensors, key=lambda tensor: tensor.elements, default=None)
    return CaseRow(
        case.name,
        case.dtype or (largest.dtype if largest else "float32"),
        [[tensor.role, tensor.dtype, list(tensor.shape)] for tensor in signature.tensors],
        _shape_bucket(signature),
        case.distribution,
        case.weight,
        case.held_out,
    )


def _shape_bucket(signature: Signature) -> str:
    """The total number of elements, rounded to a power of four."""
    elements = max(1, sum(tensor.elements for tensor in signature.tensors))
    return f"4^{round((elements.bit_length() - 1) / 2)}"


def store_device(
    catalog: Catalog, hardware_id: str, identity: DeviceIdentity, ceilings: Ceilings | None = None
) -> str:
    """Create or update the row of a device and its driver, and return its id. The last ceilings
    stored win."""
    row_id = derived_id("dev", identity.uuid, identity.driver or "")
    values: dict[str, Any] = {
        "hardware_id": hardware_id,
        "name": identity.name,
        "memory_bytes": identity.memory_bytes,
        "environment": identity.as_json(),
        **(_ceilings(ceilings) if ceilings is not None else {}),
    }
    with catalog.write() as connection:
        stored = connection.execute(sa.select(devices.c.id).where(devices.c.id == row_id)).first()
        if stored is not None:
            connection.execute(sa.update(devices).where(devices.c.id == row_id).values(**values))
            return row_id
        new = {"id": row_id, "uuid": identity.uuid, "driver": identity.driver}
        connection.execute(
            sa.insert(devices).values(
                {"matmul_peak": {}, **values, **new, "created_at": clock.now()}
            )
        )
    return row_id


def _ceilings(ceilings: Ceilings) -> dict[str, Any]:
    moment = datetime.fromtimestamp(ceilings.measured_at, UTC)
    return {
        "copy_bandwidth": ceilings.copy_bandwidth,
        "matmul_peak": {dtype: figure.value for dtype, figure in ceilings.matmul.items()},
        "launch_latency": ceilings.launch.value if ceilings.launch else None,
        "measured_at": clock.stamp(moment),
    }
