"""A table of evaluations: every point of a problem's recipe spaces, measured once in each round.

Rounds are apart in time: what a machine does for a while (other guests of its host, its clock)
moves a whole process, which no interval of that process covers. A point's figure is the geometric
mean of its rounds. Knows neither how a point is measured nor how a search goes over it. Rows are
appended, so a measurement that was stopped goes on; of two rows of one point and round the later
one holds.

Verdicts of a stored table can be derived again by today's rules from the stored measurements. A
verdict follows from timings, the compiler's metrics, the case's work and the device's ceilings. The
first two are in the table, the third follows from the problem, and the ceilings are those in the
file beside it. Only correct kernels in the table's own language get a new verdict: a failure is
read from its log, and a profiler's metrics of the reference were not stored.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.search.replay.spaces import Space
from kb.errors import InvalidRequest, NotFound
from optimizer.evaluation.collectors.ceilings import Ceilings, from_json
from optimizer.evaluation.diagnose import DiagnosisInputs, diagnose_evaluation
from optimizer.evaluation.problem.open_case import open_case
from optimizer.evaluation.records import Evaluation, Interval, evaluation_from_json
from optimizer.evaluation.roofline import CaseWork, work_of
from optimizer.search.synthesizers.recipe.recipe import Value

REFERENCE = "reference"  # stands for a recipe's name in the row of the problem's own reference
Values = Mapping[str, Value]
Key = tuple[str, str, tuple[tuple[str, Value], ...]]


@dataclass(frozen=True)
class Row:
    """One measured point. bundle: sha256 of its files. attempts: measurements so far; more than one
    where the machine was too busy to tell. round: 0 where it stands for all of them."""

    problem: str
    recipe: str
    values: Values
    bundle: str
    evaluation: Evaluation
    attempts: int = 1
    round: int = 1

    @property
    def key(self) -> Key:
        return key_of(self.problem, self.recipe, self.values)

    @property
    def merit(self) -> float:
        """As the search climbs it: the lower bound of the speed-up; 0 for what has none."""
        speedup = self.evaluation.speedup
        return speedup.low if speedup is not None and self.evaluation.correct else 0.0

    @property
    def unsettled(self) -> bool:
        """Correct, and the machine was too busy to time it."""
        return self.evaluation.correct and self.evaluation.timing == "repeat"

    def as_json(self) -> dict[str, Any]:
        row = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {**row, "values": dict(self.values), "evaluation": self.evaluation.as_json()}


def row_from_json(row: Mapping[str, Any]) -> Row:
    return Row(**{**row, "evaluation": evaluation_from_json(row["evaluation"])})


def key_of(problem: str, recipe: str, values: Values) -> Key:
    return problem, recipe, tuple(sorted(values.items()))


def joined(rows: Sequence[Row]) -> Row:
    """One row for the rounds of a point: wrong where it was wrong once, else the first that was
    timed, with the geometric mean of their figures."""
    wrong = [row for row in rows if not row.evaluation.correct]
    timed = [row for row in rows if row.evaluation.speedup is not None]
    chosen = (wrong or timed or list(rows))[0]
    if wrong or len(timed) < 2:
        return replace(chosen, round=0)
    speedup = _mean([row.evaluation.speedup for row in timed if row.evaluation.speedup])
    return replace(chosen, round=0, evaluation=replace(chosen.evaluation, speedup=speedup))


def _mean(intervals: Sequence[Interval]) -> Interval:
    def mean(values: Iterable[float]) -> float:
        return math.exp(sum(map(math.log, values)) / len(intervals))

    return Interval(
        mean(i.value for i in intervals),
        mean(i.low for i in intervals),
        mean(i.high for i in intervals),
        sum(i.n for i in intervals),
    )


class Table:
    """Rows by problem, recipe, values and round."""

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self._rows: dict[Key, dict[int, Row]] = {}
        self._joined: dict[Key, Row] = {}
        for row in rows:
            self.put(row)

    def put(self, row: Row) -> None:
        self._rows.setdefault(row.key, {})[row.round] = row
        self._joined.pop(row.key, None)

    def __len__(self) -> int:
        return sum(len(rounds) for rounds in self._rows.values())

    def find(self, problem: str, recipe: str, values: Values) -> Row | None:
        """All rounds of the point as one row."""
        key = key_of(problem, recipe, values)
        if key not in self._rows:
            return None
        if key not in self._joined:
            self._joined[key] = joined(list(self._rows[key].values()))
        return self._joined[key]

    def rounds(self, problem: str, recipe: str, values: Values) -> dict[int, Row]:
        """What was measured of the point, by round."""
        return dict(self._rows.get(key_of(problem, recipe, values), {}))

    def reference(self, problem: str) -> Row | None:
        return self.find(problem, REFERENCE, {})

    def points(self, problem: str) -> list[Row]:
        """Of every recipe, without the reference."""
        keys = [key for key in self._rows if key[0] == problem and key[1] != REFERENCE]
        rows = (self.find(problem, recipe, dict(values)) for _, recipe, values in keys)
        return [row for row in rows if row is not None]

    @property
    def rows(self) -> list[Row]:
        """As they were measured."""
        return [row for rounds in self._rows.values() for row in rounds.values()]

    @property
    def problems(self) -> list[str]:
        return list(dict.fromkeys(key[0] for key in self._rows))

    def best(self, problem: str) -> float:
        """The highest merit of a problem's points. Raises NotFound where none was measured."""
        best = max((row.merit for row in self.points(problem)), default=0.0)
        if best <= 0:
            raise NotFound(
                f"the table has no measured point of {problem}", hint="Measure its space first."
            )
        return best

    def within(self, problem: str, share: float) -> list[Row]:
        """Points whose merit is at least this share of the best."""
        enough = share * self.best(problem)
        return [row for row in self.points(problem) if row.merit >= enough]


def append(path: Path, row: Row) -> None:
    """After the last whole line: a crash may have left half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as stream:
        stream.seek(0)
        whole = stream.read().rfind(b"\n") + 1
        stream.truncate(whole)
        stream.write(json.dumps(row.as_json()).encode() + b"\n")


def load(path: Path) -> Table:
    """JSON lines, packed where the name ends so. A last line that a crash cut short is left out."""
    if not path.is_file():
        return Table()
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    lines = data.splitlines(keepends=True)
    if lines and not lines[-1].endswith(b"\n"):
        lines.pop()
    try:
        return Table(row_from_json(json.loads(line)) for line in lines)
    except (ValueError, KeyError, TypeError) as problem:
        raise InvalidRequest(
            f"{path} is no table: {problem}", hint="Give one that this benchmark has written."
        ) from problem


def save(path: Path, table: Table) -> None:
    """Packed; equal tables give equal bytes."""
    lines = "".join(json.dumps(row.as_json(), sort_keys=True) + "\n" for row in table.rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(lines.encode(), mtime=0))


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
        around = DiagnosisInputs(
            lineage=lineage, facts=facts, works=works[row.problem], ceilings=device.ceilings
        )
        verdict = diagnose_evaluation(evaluation, around)
        return replace(row, evaluation=replace(evaluation, verdict=verdict))

    return Table(anew(row) for row in table.rows)


def _works(space: Space) -> dict[str, CaseWork]:
    """Of the cases that were measured."""
    measured = {case.name for case in space.view.cases}
    cases = [case for case in space.problem.cases if case.name in measured]
    return {case.name: work_of(open_case(space.problem, case)) for case in cases}
