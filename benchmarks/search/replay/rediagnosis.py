"""The verdicts of a stored table made again by today's rules, from what was measured then.

A verdict follows from timings, the compiler's metrics, the case's work and the device's ceilings.
The first two are in the table, the third follows from the problem, and the ceilings are those in
the file beside it. Only right kernels in the table's own language get a new one: a failure is read
from its log, and what a profiler told of the reference was not kept.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.search.replay.spaces import Space
from benchmarks.search.replay.table import Row, Table
from kb.errors import InvalidRequest
from optimizer.evaluation.collectors.ceilings import Ceilings, from_json
from optimizer.evaluation.collectors.work import Work, work_of
from optimizer.evaluation.diagnose import Surroundings, diagnose_evaluation
from optimizer.evaluation.problem.tensors import open_case


@dataclass(frozen=True)
class Device:
    """Where a table was measured. facts: what the device tells about itself, by key."""

    ceilings: Ceilings
    facts: Mapping[str, float | str]

    def as_json(self) -> dict[str, object]:
        return {"ceilings": self.ceilings.as_json(), "facts": dict(self.facts)}


def load_device(path: Path) -> Device:
    """Raises InvalidRequest for ceilings whose figures mean something else today."""
    content = json.loads(path.read_text(encoding="utf-8"))
    try:
        return Device(from_json(content["ceilings"]), content["facts"])
    except (KeyError, TypeError) as problem:
        raise InvalidRequest(
            f"{path} is of another form: {problem}",
            hint="Measure the device again with `kernlore doctor`, or measure the table again.",
        ) from problem


def save_device(path: Path, device: Device) -> None:
    path.write_text(json.dumps(device.as_json(), indent=1) + "\n", encoding="utf-8")


def rediagnosed(
    table: Table,
    spaces: Sequence[Space],
    device: Device,
    facts: Mapping[str, float | str],
    lineage: Sequence[str],
) -> Table:
    """The same rows with new verdicts. facts: of the hardware with those of the device."""
    works = {space.problem.name: _works(space) for space in spaces}
    languages = {space.problem.name: space.ground.language for space in spaces}

    def anew(row: Row) -> Row:
        evaluation = row.evaluation
        if evaluation.language != languages.get(row.problem) or not evaluation.correct:
            return row
        around = Surroundings(
            lineage=lineage, facts=facts, works=works[row.problem], ceilings=device.ceilings
        )
        verdict = diagnose_evaluation(evaluation, around)
        return replace(row, evaluation=replace(evaluation, verdict=verdict))

    return Table(anew(row) for row in table.rows)


def _works(space: Space) -> dict[str, Work]:
    """Of the cases that were measured."""
    measured = {case.name for case in space.view.cases}
    cases = [case for case in space.problem.cases if case.name in measured]
    return {case.name: work_of(open_case(space.problem, case)) for case in cases}
