"""The table of a foreign set: every problem with its gain over eager, over torch.compile's default
and over its best option, and the means by family and by opened and unopened seeds."""

from __future__ import annotations

import math
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.report import table
from kb.errors import InvalidRequest, NotFound
from kb.plain import from_json
from optimizer.evaluation.records import Interval
from optimizer.search.confirm import RunOutcome
from optimizer.search.portable.launch import RESULTS, WHY_FAILED
from optimizer.search.records import Node
from optimizer.search.store import FileStore, RunRow
from optimizer.search.tree import Tree

DEFAULT = {"mode": "default"}  # values of torch.compile as it comes
AT_ROOF = 90  # per cent of the roofline, from which on there is little left to gain


@dataclass(frozen=True)
class Result:
    """One searched problem.

    gain: the winner over eager on values that the search never saw; 1 if nothing was certainly
    faster, None if nothing was measured. default, best: torch.compile's default and best option
    over eager in the search, None if not right or not tried. same: the winner is that best
    option, measured twice. first: seconds from the start of the run to the first right candidate,
    or None. reason: why there is no gain, or why the run ended.
    """

    name: str
    gain: float | None
    interval: str
    default: float | None
    best: float | None
    same: bool
    origin: str
    plan: str
    candidates: int
    first: float | None
    seconds: float
    reason: str
    roof: float | None = None

    @property
    def family(self) -> str:
        """The family of a drawn problem, or `published block`."""
        return self.name.rpartition("_")[0] if self.drawn else "published block"

    @property
    def drawn(self) -> bool:
        """By a seed, which ends the name."""
        return self.name.rpartition("_")[2].isdigit()

    @property
    def opened(self) -> bool:
        return not self.drawn or int(self.name.rpartition("_")[2]) % 2 == 0


@contextmanager
def opened(path: Path) -> Iterator[Path]:
    """A folder with run folders in it: the session's own, or its results.zip, unpacked.

    Raises NotFound or InvalidRequest if there are no runs."""
    if not path.exists():
        raise NotFound(f"{path} is not there", hint="Give the --out folder of a portable session.")
    if path.is_dir() and _has_runs(path):
        yield path
        return
    packed = path / RESULTS if path.is_dir() else path
    with tempfile.TemporaryDirectory(prefix="kernlore-results-") as scratch:
        folder = Path(scratch)
        _unpack(packed, folder)
        if not _has_runs(folder):
            raise InvalidRequest(
                f"{packed} holds no run", hint="Give the --out folder of a portable session."
            )
        yield folder


def _has_runs(folder: Path) -> bool:
    return any(folder.glob("*/run.json"))


def _unpack(packed: Path, folder: Path) -> None:
    try:
        with zipfile.ZipFile(packed) as archive:
            archive.extractall(folder)
    except (FileNotFoundError, zipfile.BadZipFile) as error:
        raise InvalidRequest(
            f"{packed} is no zip file of results",
            hint=f"Give the --out folder of a portable session, or its {RESULTS}.",
        ) from error


def runs_in(folder: Path) -> list[RunRow]:
    """All, finished or not, in the order in which they were started."""
    store = FileStore(folder)
    runs = [store.run(path.parent.name) for path in folder.glob("*/run.json")]
    return sorted(runs, key=lambda run: (run.started_at, run.id))


def is_finished(run: RunRow) -> bool:
    """Whether its winner was measured again too."""
    return run.state == "finished" and bool(run.result)


def problem_name(run: RunRow) -> str:
    """Of a run whose problem file may not be here."""
    path = Path(run.problem)
    return path.parent.name if path.name == "problem.py" else path.stem


def read_results(folder: Path) -> list[Result]:
    """Of one session's folder, problems that failed before they had a run included."""
    results = {problem_name(run): _result(run, folder) for run in runs_in(folder)}
    for path in folder.glob(f"*{WHY_FAILED}"):
        name = path.name.removesuffix(WHY_FAILED)
        reason = path.read_text(encoding="utf-8").splitlines()[0]
        before = results.get(name)
        if before is None or before.gain is None:
            results[name] = Result(name, None, "", None, None, False, "", "", 0, None, 0.0, reason)
    return list(results.values())


def _result(run: RunRow, folder: Path) -> Result:
    tree = Tree(FileStore(folder).nodes(run.id))
    candidates = len(tree) - 1
    first = min((node.at for node in tree.nodes[1:] if node.correct), default=None)
    default, option = _speedup(compiled_default(tree)), _best_option(tree)
    best = _speedup(option)
    name = problem_name(run)
    if not is_finished(run):
        reason = run.ended or "cut off before the last measurement"
        return Result(
            name, None, "", default, best, False, "", "", candidates, first, run.seconds, reason
        )
    outcome = from_json(RunOutcome, run.result)
    proposal = tree[outcome.node].proposal if outcome.node is not None else None
    gain = outcome.gain.value if outcome.gain else (1.0 if outcome.measured else None)
    return Result(
        name,
        gain,
        str(outcome.gain or ""),
        default,
        best,
        option is not None and option.number == outcome.node,
        proposal.origin if proposal else "",
        proposal.plan if proposal else "",
        candidates,
        first,
        run.seconds,
        outcome.reason,
        _roof(compiled_default(tree)),
    )


def _roof(node: Node | None) -> float | None:
    verdict = node.evaluation.verdict if node is not None and node.evaluation else None
    value = verdict.metrics.get("roofline_pct") if verdict is not None else None
    return float(value) if isinstance(value, int | float) else None


def compiled_default(tree: Tree) -> Node | None:
    """The candidate that is torch.compile as it comes; None where the run did not try it."""
    for node in tree.nodes[1:]:
        proposal = node.proposal
        if proposal is None or proposal.origin != "config" or node.state == "duplicate":
            continue
        if dict(proposal.values) == DEFAULT:
            return node
    return None


def _speedup(node: Node | None) -> float | None:
    interval: Interval | None = node.speedup if node is not None and node.correct else None
    return interval.value if interval is not None else None


def _best_option(tree: Tree) -> Node | None:
    options = [
        n for n in tree.nodes[1:] if n.proposal is not None and n.proposal.origin == "config"
    ]
    timed = [(value, n) for n in options if (value := _speedup(n)) is not None]
    return max(timed, key=lambda pair: pair[0])[1] if timed else None


def report(results: Sequence[Result], drawn: Iterable[str]) -> list[str]:
    """The parts of the report, in Markdown. `drawn` are the names that were to be searched."""
    chosen = sorted(results, key=lambda result: result.name)
    missing = sorted(set(drawn) - {result.name for result in chosen})
    lost = [r.name for r in chosen if r.gain is None]
    slower = [r.name for r in chosen if r.gain is not None and r.gain < 1]
    low = [r for r in chosen if r.gain and r.best and r.gain < 0.97 * r.best]
    behind, same = [r.name for r in low], [r.name for r in low if r.same]
    sentences = [
        f"Problems: {len(chosen)}; without a figure: {len(lost)}{_named(lost)};"
        f" not begun: {len(missing)}{_named(missing)}.",
        f"Below 1.0 after dispatch: {len(slower)}{_named(slower)}. Below 0.97 of torch.compile's"
        f" best option: {len(behind)}{_named(behind)}; {len(same)} of them are that option itself,"
        f" measured twice{_named(same)}.",
        _first_right(chosen),
        "A gain is the winner's over eager, measured again after the search on other values; 1.00"
        " if nothing was certainly faster, because the module runs the reference then. Options"
        " of torch.compile are as the search measured them.",
    ]
    return [
        "\n".join(f"- {sentence}" for sentence in sentences),
        _means(chosen, "all", lambda _: "all"),
        _means(chosen, "seeds", lambda r: "opened" if r.opened else "unopened"),
        _means(chosen, "torch.compile's default", _reached),
        _means(chosen, "family", lambda r: r.family),
        _means(chosen, "winner's origin", lambda r: r.origin or "the reference stays"),
        _rows(chosen),
    ]


def _reached(result: Result) -> str:
    if result.roof is None:
        return "not measured, or its share of the roofline not known"
    return f"{'at' if result.roof >= AT_ROOF else 'below'} {AT_ROOF} % of the roofline"


def _first_right(results: Sequence[Result]) -> str:
    """When the first right candidate was there: the median, and the slowest tenth's beginning."""
    times = sorted(result.first for result in results if result.first is not None)
    if not times:
        return "No candidate was right."
    slow = times[min(len(times) - 1, int(0.9 * len(times)))]
    return (
        f"The first right candidate came after {median(times):.0f} s at the median and {slow:.0f} s"
        f" in the slowest tenth, the reference's evaluation included ({len(times)} problems)."
    )


def _named(names: Sequence[str]) -> str:
    return f" ({', '.join(names)})" if names else ""


def _means(results: Sequence[Result], title: str, key: Callable[[Result], str]) -> str:
    groups: dict[str, list[Result]] = {}
    for result in results:
        if result.gain is not None:
            groups.setdefault(key(result), []).append(result)
    header = [title, "problems", "over eager", "over torch.compile default", "over its best option"]
    return table(
        header,
        [
            [
                name,
                len(group),
                geomean(r.gain for r in group if r.gain),
                geomean(r.gain / r.default for r in group if r.gain and r.default),
                geomean(r.gain / r.best for r in group if r.gain and r.best),
            ]
            for name, group in sorted(groups.items())
        ],
    )


def geomean(values: Iterable[float]) -> str:
    """With its 95 % interval over the problems."""
    logs = [math.log(value) for value in values]
    if not logs:
        return "none"
    mean = sum(logs) / len(logs)
    if len(logs) < 2:
        return f"{math.exp(mean):.3f} n=1"
    spread = math.sqrt(sum((x - mean) ** 2 for x in logs) / (len(logs) - 1) / len(logs))
    low, high = math.exp(mean - 1.96 * spread), math.exp(mean + 1.96 * spread)
    return f"{math.exp(mean):.3f} [{low:.3f}, {high:.3f}] n={len(logs)}"


def _rows(results: Sequence[Result]) -> str:
    header = [
        "problem",
        "gain over eager",
        "torch.compile default",
        "best option",
        "origin",
        "plan",
    ]
    return table(
        [*header, "n", "first right, s", "s", "reason"],
        [
            [
                r.name,
                r.interval or ("1.00 by dispatch" if r.gain else "not measured"),
                f"{r.default:.2f}" if r.default else "",
                f"{r.best:.2f}" if r.best else "",
                r.origin,
                r.plan[:60],
                r.candidates,
                f"{r.first:.0f}" if r.first is not None else "",
                f"{r.seconds:.0f}",
                " ".join(r.reason.split())[:160],
            ]
            for r in results
        ],
    )
