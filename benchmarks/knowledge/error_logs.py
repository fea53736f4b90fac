"""Whether the leading signal read from each log of a folder is its label.

    python -m benchmarks.knowledge.error_logs --logs FOLDER [--hardware ID] [--out FILE]

FOLDER holds `rows.jsonl` and `logs/<id>.log`. A row is {id, tool, what, signal, also, class}:
`signal` is the expected one ("unknown" for no failure), `also` lists other right ones, `class` is
the kind of failure (see FAILURE_CLASSES); the last two and `what` may be left out. A log is read
like the `log` of /retrieve: signatures, then rules over its numbers.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.report import ended, table, write_result
from kb.errors import InvalidRequest
from retrieval.diagnose.diagnosis import Diagnoser
from retrieval.diagnose.signals import load_signals
from retrieval.diagnose.signatures import WARNING_ONLY
from retrieval.request import RetrieveRequest

UNKNOWN = "unknown"
RIGHT, WRONG, NOTHING = "right", "wrong", "nothing"


@dataclass(frozen=True)
class LabelledLog:
    """A log and what it should be read as."""

    id: str
    tool: str
    what: str
    signal: str
    also: tuple[str, ...]
    failure_class: str
    text: str


@dataclass(frozen=True)
class Reading:
    """The reading of a log: its leading signal ("unknown" if none), the signature with its class
    and line, and milliseconds.
    """

    log: LabelledLog
    signal: str
    signature: str
    failure_class: str
    line: str
    milliseconds: float

    @property
    def outcome(self) -> str:
        """Right, wrong, or nothing where a signal should lead and none does."""
        if self.signal == self.log.signal or self.signal in self.log.also:
            return RIGHT
        return NOTHING if self.signal == UNKNOWN else WRONG

    @property
    def class_is_right(self) -> bool:
        return self.failure_class == self.log.failure_class


def load_logs(folder: Path) -> list[LabelledLog]:
    """The labelled logs of a folder. Raises InvalidRequest for a row that lacks a field, names an
    unknown signal or has no log.
    """
    path = folder / "rows.jsonl"
    if not path.is_file():
        raise InvalidRequest(f"{path} is not there", hint="The module's docstring describes it.")
    rows = path.read_text(encoding="utf-8").splitlines()
    return [_log(folder, json.loads(row), n) for n, row in enumerate(rows, 1) if row.strip()]


def _log(folder: Path, row: Mapping[str, Any], number: int) -> LabelledLog:
    file = folder / "logs" / f"{row.get('id')}.log"
    signals = [row.get("signal"), *row.get("also", ())]
    strange = [signal for signal in signals if signal not in load_signals()]
    if strange or "tool" not in row or not file.is_file():
        raise InvalidRequest(
            f"rows.jsonl, line {number}: unknown signals {strange}, or no tool, or no {file.name}",
            hint="A row has id, tool and signal; GET /signals lists the signals.",
        )
    return LabelledLog(
        id=str(row["id"]),
        tool=row["tool"],
        what=row.get("what", ""),
        signal=row["signal"],
        also=tuple(row.get("also", ())),
        failure_class=row.get("class", ""),
        text=file.read_text(encoding="utf-8", errors="replace"),
    )


def read_logs(logs: Iterable[LabelledLog], hardware: str | None = None) -> list[Reading]:
    """Each log read as /retrieve reads it."""
    diagnoser = Diagnoser(load_signals())
    return [_read(diagnoser, log, hardware) for log in logs]


def _read(diagnoser: Diagnoser, log: LabelledLog, hardware: str | None) -> Reading:
    started = time.perf_counter()
    # A request needs something to answer; an empty log has no line that a signature could match.
    request = RetrieveRequest(log=log.text if log.text.strip() else " ", hardware=hardware)
    verdict = diagnoser.conclude(request, {}, (), ()).verdict
    milliseconds = 1_000 * (time.perf_counter() - started)
    behind = next((s for s in verdict.signatures if s["signal"] == verdict.primary), None)
    return Reading(
        log=log,
        signal=verdict.primary,
        signature=behind["id"] if behind else "",
        failure_class=(behind["class"] or "") if behind else WARNING_ONLY,
        line=behind["line"] if behind else "",
        milliseconds=milliseconds,
    )


def report(readings: Sequence[Reading]) -> list[str]:
    """The result as Markdown: all, by tool, by class, and the logs that were not read rightly."""
    missed = [reading for reading in readings if reading.outcome != RIGHT]
    slowest = max((reading.milliseconds for reading in readings), default=0.0)
    return [
        f"{len(readings)} logs, the slowest took {slowest:.0f} ms.",
        _grouped("all", readings, lambda reading: "all"),
        _grouped("tool", readings, lambda reading: reading.log.tool),
        _grouped("class", readings, lambda reading: reading.log.failure_class or "not labelled"),
        "\n".join(["Not right:", *(_miss(reading) for reading in missed)])
        if missed
        else "All of them are right.",
    ]


def _grouped(name: str, readings: Sequence[Reading], key: Callable[[Reading], str]) -> str:
    groups: dict[str, list[Reading]] = {}
    for reading in readings:
        groups.setdefault(key(reading), []).append(reading)
    rows = [
        [
            group,
            len(members),
            *(_share(m.outcome == outcome for m in members) for outcome in _OUTCOMES),
            _share(m.class_is_right for m in members if m.log.failure_class),
        ]
        for group, members in sorted(groups.items())
    ]
    return table([name, "logs", *_OUTCOMES, "class right"], rows)


_OUTCOMES = (RIGHT, WRONG, NOTHING)


def _share(holds: Iterable[bool]) -> str:
    values = list(holds)
    return f"{sum(values)} ({100 * sum(values) / len(values):.0f} %)" if values else "-"


def _miss(reading: Reading) -> str:
    log = reading.log
    also = f" or {', '.join(log.also)}" if log.also else ""
    text = f"* {log.id} ({log.tool}): {log.signal}{also}, read as {reading.signal}. {log.what}"
    return f"{text} By `{reading.signature}`: {reading.line[:160]}" if reading.signature else text


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.knowledge.error_logs", description=__doc__)
    parser.add_argument("--logs", type=Path, required=True, help="folder of rows.jsonl and logs/")
    parser.add_argument("--hardware", help="id of the hardware that the requests name")
    parser.add_argument("--out", type=Path, help="keep the result as Markdown")
    options = parser.parse_args()

    def run() -> None:
        readings = read_logs(load_logs(options.logs), options.hardware)
        write_result(options.out, "Signatures on labelled logs", report(readings))

    ended(run)


if __name__ == "__main__":
    main()
