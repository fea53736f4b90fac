"""Compare arms of a model on hard problems: shares of right candidates, times, tokens.

    kernlore runs propose benchmarks/search/hard/problems/mla_decode ... --hardware h200 \
        --language triton --models NAME --drafts 2 --knowledge off -o nothing.zip
    python nothing.zip --out nothing                       (on the machine with the device)
    python -m benchmarks.search.hard nothing=nothing ours=ours -o report.md

An arm is the results of one or more sessions; the others are compared with the first arm. The
problems named in SEALED are for reports alone: do not read their results while the product is
changed.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.report import ended, table, write_result
from benchmarks.search.foreign.report import geomean, opened, problem_name, runs_in
from kb.errors import InvalidRequest
from optimizer.search.records import Node
from optimizer.search.store import FileStore

SEALED = ("fp8_block_product", "int4_embedding_bags", "routed_experts", "sparse_indexer")


@dataclass(frozen=True)
class Cell:
    """One problem in one arm. Times in microseconds, of the timed case; `roof` in per cent."""

    candidates: int
    right: int
    reference: float | None
    best: float | None
    roof: float | None
    tokens: int


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.search.hard", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("arms", nargs="+", metavar="NAME=FOLDER[,FOLDER]")
    parser.add_argument("--output", "-o", type=Path)
    options = parser.parse_args()
    ended(lambda: show(options.arms, options.output))


def show(arms: Sequence[str], output: Path | None) -> None:
    """Raises InvalidRequest or NotFound where an arm has no runs."""
    cells = {}
    for arm in arms:
        name, equals, folders = arm.partition("=")
        if not (name and equals and folders):
            raise InvalidRequest(f"{arm!r} names no arm", hint="Give NAME=FOLDER.")
        cells[name] = read_arm([Path(folder) for folder in folders.split(",")])
    write_result(output, "Hard problems with a model", [by_arm(cells), by_problem(cells)])


def read_arm(folders: Sequence[Path]) -> dict[str, Cell]:
    """Cells by problem. Several runs of a problem are added up."""
    nodes: dict[str, list[Node]] = {}
    for path in folders:
        with opened(path) as folder:
            store = FileStore(folder)
            for run in runs_in(folder):
                nodes.setdefault(problem_name(run), []).extend(store.nodes(run.id))
    return {problem: _cell(found) for problem, found in nodes.items()}


def _cell(nodes: Sequence[Node]) -> Cell:
    written = [node for node in nodes if node.proposal is not None]
    right = [node for node in written if node.correct]
    timed = [(time, node) for node in right if (time := candidate_us(node)) is not None]
    best = min(timed, key=lambda pair: pair[0], default=None)
    references = [time for node in nodes if not node.proposal if (time := candidate_us(node))]
    return Cell(
        len(written),
        len(right),
        min(references, default=None),
        best[0] if best else None,
        _roof(best[1]) if best else None,
        sum(node.proposal.cost.tokens_in for node in written if node.proposal),
    )


def candidate_us(node: Node) -> float | None:
    """Geometric mean of a right node's times over its timed cases, or None."""
    timings = node.evaluation.timings if node.evaluation and node.correct else ()
    times = [timing.candidate_us for timing in timings if timing.candidate_us]
    return math.exp(sum(map(math.log, times)) / len(times)) if times else None


def _roof(node: Node) -> float | None:
    verdict = node.evaluation.verdict if node.evaluation else None
    value = verdict.metrics.get("roofline_pct") if verdict else None
    return float(value) if isinstance(value, int | float) else None


def by_arm(arms: Mapping[str, Mapping[str, Cell]]) -> str:
    """One row for each arm; ratios over the problems that it shares with the first one."""
    first = next(iter(arms.values()))
    rows = []
    for name, cells in arms.items():
        gains = [
            base.best / cell.best
            for problem, cell in cells.items()
            if cell.best and (base := first.get(problem)) and base.best
        ]
        right, candidates = (
            sum(getattr(cell, key) for cell in cells.values()) for key in ("right", "candidates")
        )
        tokens = sum(cell.tokens for cell in cells.values())
        rows.append(
            [
                name,
                len(cells),
                f"{right} of {candidates}",
                f"{geomean(gains)} (n={len(gains)})" if gains else "-",
                round(tokens / candidates) if candidates else "-",
            ]
        )
    head = ["arm", "problems", "right", "speed over the first arm", "prompt tokens a candidate"]
    return table(head, rows)


def by_problem(arms: Mapping[str, Mapping[str, Cell]]) -> str:
    """One row for each problem; times of the best right candidate in microseconds."""
    problems = sorted({problem for cells in arms.values() for problem in cells})
    rows = [
        [problem, _us(_reference(arms, problem)), *(_text(a.get(problem)) for a in arms.values())]
        for problem in problems
    ]
    return table(["problem", "reference, us", *(f"{arm}: right, us, roof" for arm in arms)], rows)


def _reference(arms: Mapping[str, Mapping[str, Cell]], problem: str) -> float | None:
    times = [c.reference for a in arms.values() if (c := a.get(problem)) and c.reference]
    return min(times, default=None)


def _us(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"


def _text(cell: Cell | None) -> str:
    if cell is None:
        return "-"
    roof = "" if cell.roof is None else f", {cell.roof:.0f} %"
    return f"{cell.right}/{cell.candidates}, {_us(cell.best)}{roof}"


if __name__ == "__main__":
    main()
