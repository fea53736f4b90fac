"""What the search gains on a GPU by portable session, from the folders that sessions left.

Nothing is measured here. `benchmarks.search.portable_modules` calls the winners' modules on the
machine that searched; without it the column says so.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.evaluation.gpu_machine import Measured, write_report
from benchmarks.report import ended, table
from benchmarks.search.gains.rows import (
    NOT_HELD_OUT,
    Row,
    both,
    compiled_default,
    interval_text,
    means,
    origins,
    row_of,
)
from benchmarks.search.gains.sessions import (
    Searched,
    Share,
    checks_in,
    is_finished,
    opened,
    problem_name,
    reads_a_part,
    runs_in,
    searched,
    shares_of,
)
from kb.errors import InvalidRequest
from kb.problem_terms import op_family
from optimizer.evaluation.collectors.ceilings import Ceilings, from_json
from optimizer.evaluation.problem.load import shipped_problems
from optimizer.evaluation.records import Interval
from optimizer.search.confirm import Figure
from optimizer.search.output.cases import wins
from optimizer.search.store import FileStore, RunRow
from optimizer.search.tree import Tree

TITLE = "What the search gains on a GPU by portable session"
NOT_CHECKED = "not checked"
LARGE = 3.0  # a gain above it is counted
NEAR = 85.0  # percent of the copy bandwidth that a memory-bound winner should reach
HOW = (
    "A gain is the winner's time against eager's, measured again after the search on values that it"
    " never saw, as a geometric mean over the searched cases; torch.compile's default was one of"
    " the candidates of the same run, measured in the search. A share is compulsory bytes (inputs,"
    " weights and outputs once each) over the winner's time, over the copy bandwidth that the same"
    " session measured; behind it in brackets the share of the rate measured at the case's own"
    " footprint and mix of reads and writes. It is told where that least time is longer than the"
    " one by arithmetic, and not of operators that read only a part of their inputs. s: of the"
    " search, without the final measurement."
)


@dataclass(frozen=True)
class Line:
    """A finished run. shares: of its measured cases; default: why torch.compile's default has no
    figure in it, empty where it has one. partial: its operator reads a part of its inputs."""

    run: RunRow
    row: Row
    figures: tuple[Figure, ...]
    shares: tuple[Share, ...]
    partial: bool
    default: str

    @property
    def bound(self) -> tuple[Share, ...]:
        return tuple(share for share in self.shares if share.bound)

    @property
    def first(self) -> Share | None:
        """Of the first measured case, where memory binds it."""
        return self.shares[0] if self.shares and self.shares[0].bound else None


@dataclass(frozen=True)
class Cut:
    """A run that ended before its best candidate was measured again. best: its figure from the
    search, which is the luckiest of them."""

    problem: str
    candidates: int
    best: Interval | None
    plan: str
    default: Interval | None


@dataclass(frozen=True)
class Lane:
    """One session's folder."""

    ceilings: Ceilings
    runs: tuple[RunRow, ...]
    lines: tuple[Line, ...]
    cut: tuple[Cut, ...] = ()


def read_lane(folder: Path) -> Lane:
    """folder: with run folders. Raises InvalidRequest where its ceilings cannot be read."""
    try:
        ceilings = from_json(json.loads((folder / "ceilings.json").read_text(encoding="utf-8")))
    except (FileNotFoundError, json.JSONDecodeError, KeyError, TypeError) as error:
        raise InvalidRequest(
            "ceilings.json is missing or of another form than this version's",
            hint="Pack a session with this version and run it again.",
        ) from error
    checks = checks_in(folder)
    runs = tuple(runs_in(folder))
    finished = [searched(folder, run) for run in runs if is_finished(run)]
    lines = [
        line_of(searched_run, ceilings, checks.get(searched_run.run.id, NOT_CHECKED))
        for searched_run in finished
    ]
    cut = [
        cut_of(run, Tree(FileStore(folder).nodes(run.id))) for run in runs if not is_finished(run)
    ]
    return Lane(ceilings, runs, tuple(lines), tuple(cut))


def cut_of(run: RunRow, tree: Tree) -> Cut:
    best, default = tree.best, compiled_default(tree)
    chosen = best if best is not None and best.parent is not None else None
    return Cut(
        problem_name(run),
        len(tree) - 1,
        chosen.speedup if chosen is not None else None,
        chosen.proposal.plan if chosen is not None and chosen.proposal is not None else "",
        default.speedup if default is not None and default.correct else None,
    )


def cut_table(lines: Sequence[Line], lanes: Sequence[Lane]) -> list[str]:
    """Nothing where every run was measured to its end."""
    done = {line.row.problem for line in lines}
    cut = sorted((c for lane in lanes for c in lane.cut if c.problem not in done), key=_by_problem)
    if not cut:
        return []
    header = ["problem", "candidates", "best, as the search saw it", "by", "torch.compile default"]
    rows = [[c.problem, c.candidates, c.best or "", c.plan[:60], c.default or ""] for c in cut]
    return [
        "Searched, but the run ended before the best candidate was measured again on other"
        " values: no results, and in none of the means. The best of several is partly the"
        " luckiest.",
        table(header, rows),
    ]


def _by_problem(cut: Cut) -> str:
    return cut.problem


def line_of(searched_run: Searched, ceilings: Ceilings, checked: str) -> Line:
    row = row_of(
        searched_run.run, searched_run.problem, searched_run.tree, searched_run.outcome, checked
    )
    return Line(
        run=searched_run.run,
        row=row,
        figures=searched_run.outcome.figures if searched_run.outcome.node is not None else (),
        shares=shares_of(searched_run.problem, searched_run.outcome, ceilings),
        partial=reads_a_part(searched_run.problem),
        default="" if row.compiled else _no_default(searched_run.tree),
    )


def _no_default(tree: Tree) -> str:
    node = compiled_default(tree)
    if node is None:
        return "not tried"
    return "without a time" if node.correct else node.verdict


def latest(lanes: Sequence[Lane]) -> tuple[list[Line], list[str]]:
    """One line a problem, in their order, and the runs that a later one of the same problem took
    the place of: never the better one."""
    kept: dict[str, Line] = {}
    replaced = []
    lines = [line for lane in lanes for line in lane.lines]
    for line in sorted(lines, key=lambda line: line.run.started_at):
        before = kept.get(line.row.problem)
        if before is not None:
            replaced.append(f"{before.run.id} ({before.row.problem})")
        kept[line.row.problem] = line
    return [kept[name] for name in sorted(kept)], replaced


# -- the tables


def rows_table(lines: Sequence[Line]) -> str:
    header = ["problem", "gain over eager", "held out", "torch.compile default", "origin", "by"]
    header += ["n", "verdicts", "s", "share of copy bandwidth", "module, only torch"]
    return table(header, [_cells(line) for line in lines])


def _cells(line: Line) -> list[object]:
    r = line.row
    return [
        r.problem,
        interval_text(r.gain) or "no gain",
        r.held_out,
        interval_text(r.compiled) or f"no figure: {line.default}",
        r.origin,
        r.recipe,
        r.candidates,
        json.dumps(r.verdicts),
        f"{r.seconds:.0f}",
        "; ".join(f"{s.case} {s.copy:.0f} % ({s.mix:.0f} %)" for s in line.bound),
        r.checked,
    ]


def split(lines: Sequence[Line], name: str, of: Callable[[Row], str]) -> str:
    """Means of the rows that have the same `of`."""
    groups: dict[str, list[Row]] = {}
    for line in lines:
        groups.setdefault(of(line.row), []).append(line.row)
    header = [name, "problems", "geometric mean over eager", "over torch.compile default"]
    return table(header, [[key, len(rows), *both(rows)] for key, rows in sorted(groups.items())])


# -- the sentences


def summary(lines: Sequence[Line], runs: Sequence[RunRow], wanted: Sequence[str]) -> list[str]:
    lines_of_text = [
        *_below(lines),
        _over(lines),
        *_near(lines),
        _modules(lines),
        _without_default(lines),
        *_failures(lines, runs, wanted),
        f"Candidates in all: {sum(line.row.candidates for line in lines)} in"
        f" {sum(line.row.seconds for line in lines) / 60:.0f} minutes of search.",
        origins([line.row for line in lines]) + ".",
    ]
    return ["\n".join(f"- {sentence}" for sentence in lines_of_text)]


def _below(lines: Sequence[Line]) -> list[str]:
    """By construction none is below 1.0 after dispatch; what was measured before it says how often
    that is needed."""
    below = [line.row.problem for line in lines if line.row.gain and line.row.gain[2] < 1.0]
    figures = [(line.row.problem, figure) for line in lines for figure in line.figures]
    slow = [f"{name} {f.case} {f.speedup}" for name, f in figures if f.speedup.high < 1.0]
    lost = sum(1 for _, f in figures if not wins(f))
    return [
        f"Below 1.0 for certain (the interval's high end) after dispatch: {len(below)} of"
        f" {len(lines)} problems{_named(below)}. Where nothing is certainly faster the module runs"
        " the reference and counts as 1.0; the cost of choosing is not in these figures.",
        f"Before dispatch the winner's own kernel is certainly slower in {len(slow)} of"
        f" {len(figures)} measured cases, held-out ones included{_named(slow)}; in {lost} it is not"
        " certainly faster, and the module gives those calls to the reference.",
    ]


def _over(lines: Sequence[Line]) -> str:
    large = [line.row.problem for line in lines if line.row.gain and line.row.gain[0] > LARGE]
    sure = [line for line in lines if line.row.gain and line.row.gain[1] > LARGE]
    return (
        f"Over {LARGE:g}x eager: {len(large)} of {len(lines)}, {len(sure)} of them for certain"
        f" (the interval's low end){_named(large)}."
    )


def _near(lines: Sequence[Line]) -> list[str]:
    first = [(line.row.problem, line.first) for line in lines if line.first is not None]
    near = [name for name, share in first if share.copy >= NEAR]
    every = [share for line in lines for share in line.bound]
    winners = [line for line in lines if line.row.gain]
    partial = [line.row.problem for line in winners if line.partial]
    untold = [line.row.problem for line in winners if not line.partial and not line.shares]
    return [
        f"Memory-bound winners that reach {NEAR:g} % of the measured copy bandwidth on their first"
        f" case: {len(near)} of {len(first)}{_named(near)}. On all their searched cases:"
        f" {sum(share.copy >= NEAR for share in every)} of {len(every)}. By the rate of their own"
        f" footprint and mix, on the first case: {sum(s.mix >= NEAR for _, s in first)} of"
        f" {len(first)}.",
        f"Winners without a share, because a part of the inputs is read: {len(partial)}"
        f"{_named(partial)}; because the ceilings are of a busy machine or the case has no time:"
        f" {len(untold)}{_named(untold)}.",
    ]


def _modules(lines: Sequence[Line]) -> str:
    outcomes = Counter(line.row.checked.partition(":")[0] for line in lines)
    gone = [
        line.row.problem
        for line in lines
        if line.row.gain and line.row.checked == "right, by the reference"
    ]
    counts = ", ".join(f"{how} {n}" for how, n in outcomes.most_common()) or "none"
    return (
        f"Modules called on the device with only torch beside them: {counts}. Winners whose module"
        f" gives the measured call to the reference: {len(gone)}{_named(gone)}."
    )


def _without_default(lines: Sequence[Line]) -> str:
    lacking = [f"{line.row.problem} ({line.default})" for line in lines if line.default]
    return (
        f"Without a figure of torch.compile's default in the run, so not in those means:"
        f" {len(lacking)} of {len(lines)}{_named(lacking)}."
    )


def _failures(
    lines: Sequence[Line], runs: Sequence[RunRow], wanted: Sequence[str]
) -> Iterable[str]:
    done = {line.row.problem for line in lines}
    begun = {problem_name(run): run for run in runs if not is_finished(run)}
    failed = [f"{name} ({_state(begun[name])})" for name in sorted(begun.keys() - done)]
    failed += [f"{name} (no run)" for name in wanted if name not in done and name not in begun]
    yield f"Problems without a finished run, in none of the means: {len(failed)}{_named(failed)}."


def _state(run: RunRow) -> str:
    return f"{run.state}: {run.ended}" if run.ended else run.state


def _named(names: Sequence[str]) -> str:
    return f": {', '.join(names)}" if names else ""


# -- the whole


def device_of(lane: Lane) -> Measured:
    """As the lane's rows and ceilings name it."""
    run = lane.runs[0]
    software = dict.fromkeys(part for r in lane.runs for part in _versions(r))
    ceilings = lane.ceilings
    noisy = "" if ceilings.trusted else " (busy machine)"
    device = (
        f"{run.hardware} ({ceilings.kind}, device {ceilings.device}){noisy}, {', '.join(software)}"
    )
    return Measured(device, f"{_days(lane.runs)}, {run.hardware}", ceilings)


def _days(runs: Sequence[RunRow]) -> str:
    days = {datetime.fromtimestamp(run.started_at, UTC).strftime("%Y-%m-%d") for run in runs}
    return " and ".join(sorted(days))


def _versions(run: RunRow) -> list[str]:
    """`triton 3.6.0`, `torch 2.11.0`, ... of all languages, each once."""
    return [part.strip() for version in run.environment.values() for part in version.split(",")]


def report(lanes: Sequence[Lane], wanted: Sequence[str], command: str) -> list[str]:
    lines, replaced = latest(lanes)
    runs = [run for lane in lanes for run in lane.runs]
    parts = [
        command,
        NOT_HELD_OUT,
        "\n\n".join(measured_where(lanes)),
        HOW,
        means([line.row for line in lines]),
        *summary(lines, runs, wanted),
        rows_table(lines),
        *cut_table(lines, lanes),
        split(lines, "family", lambda row: op_family(row.op)),
        split(lines, "origin", lambda row: row.origin or "no gain"),
    ]
    if replaced:
        parts.append(f"Searched again later, and not counted: {', '.join(replaced)}.")
    return parts


def measured_where(lanes: Sequence[Lane]) -> list[str]:
    """Lanes that share a device and its ceilings are told together."""
    runs: dict[str, list[RunRow]] = {}
    for lane in lanes:
        runs.setdefault(device_of(lane).line, []).extend(lane.runs)
    return [f"Runs: {len(those)}, on {line}{_goals(those)}" for line, those in runs.items()]


def _goals(runs: Sequence[RunRow]) -> str:
    counts = Counter((run.goal.candidates, run.goal.language or "any") for run in runs)
    goals = ", ".join(f"{n} in {language} language" for n, language in counts)
    return f" Candidates allowed for each problem: {goals}."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "--folder", type=Path, action="append", required=True,
        help="of a session's --out, or its results.zip; repeat for each lane",
    )  # fmt: skip
    parser.add_argument("--problem", action="append", help="repeat; default all shipped ones")
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()

    def run() -> None:
        with ExitStack() as stack:
            lanes = [read_lane(stack.enter_context(opened(path))) for path in options.folder]
        names = " ".join(f"--folder F{n}" for n, _ in enumerate(lanes, 1))
        command = f"`python -m benchmarks.search.search_gains_gpu {names}`"
        parts = report(lanes, options.problem or shipped_problems(), command)
        measured = device_of(Lane(lanes[0].ceilings, tuple(r for n in lanes for r in n.runs), ()))
        write_report(options.results, TITLE, parts, measured)

    ended(run)


if __name__ == "__main__":
    main()
