"""The runs of a portable session, from its folder or its results.zip, and how near to the measured
copy bandwidth a winner comes where memory binds it.

Needs torch and nothing else of Kernlore's dependencies.
"""

from __future__ import annotations

import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.evaluation.gpu_machine import kept
from kb.errors import InvalidRequest, NotFound
from kb.problem_terms import op_family
from optimizer.evaluation.collectors.ceilings import Ceilings
from optimizer.evaluation.problem.load import load_problem
from optimizer.evaluation.problem.open_case import open_case
from optimizer.evaluation.problem.spec import Problem
from optimizer.evaluation.roofline import READS_A_PART, achieved, work_of
from optimizer.search.confirm import Outcome, outcome_from_json
from optimizer.search.portable.launch import RESULTS
from optimizer.search.store import FileStore, RunRow
from optimizer.search.tree import Tree

MODULES = "modules.jsonl"  # what calling the winners' modules came to, beside the run folders


@dataclass(frozen=True)
class Searched:
    """A finished run with its rows."""

    run: RunRow
    problem: Problem
    tree: Tree
    outcome: Outcome


@contextmanager
def opened(path: Path) -> Iterator[Path]:
    """A folder with run folders in it: the session's own, or what its results.zip holds with the
    `MODULES` that stands beside it. Raises NotFound or InvalidRequest where there are no runs."""
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
        beside = packed.with_name(MODULES)
        if beside.is_file():
            shutil.copy(beside, folder)
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


def searched(folder: Path, run: RunRow) -> Searched:
    """Raises NotFound or InvalidRequest where the problem here is not the one that was searched."""
    problem = load_problem(Path(run.problem))
    if problem.sha256 != run.problem_sha256:
        raise InvalidRequest(
            f"{run.problem} here is not the problem that was searched",
            hint="Use the version of the program that packed the session.",
        )
    tree = Tree(FileStore(folder).nodes(run.id))
    return Searched(run, problem, tree, outcome_from_json(run.result))


def checks_in(folder: Path) -> dict[str, str]:
    """By run: what calling its winner's module came to."""
    rows: Sequence[dict[str, Any]] = kept(folder, MODULES)
    return {row["run"]: row["checked"] for row in rows}


@dataclass(frozen=True)
class Share:
    """A measured case of a winner, in percent.

    copy: compulsory bytes over the time, over the copy bandwidth at the largest footprint. mix: the
    least time at the measured rates of the case's own footprint and mix of reads and writes, over
    the time. bound: whether that least time is longer than the one by arithmetic.
    """

    case: str
    copy: float
    mix: float
    bound: bool


def reads_a_part(problem: Problem) -> bool:
    """Then nobody knows the bytes that are really needed, and there is no share."""
    return op_family(problem.op) in READS_A_PART


def shares_of(problem: Problem, outcome: Outcome, ceilings: Ceilings) -> tuple[Share, ...]:
    """Of the winner's searched cases, the first one first; empty where none can be told: without a
    winner, where a part of the inputs is read, and by ceilings of a busy machine.

    Shapes and operations come from tensors without memory for cases of another device's size.
    """
    if outcome.node is None or reads_a_part(problem) or not ceilings.trusted:
        return ()
    cases = {case.name: case for case in problem.searched}
    shares = []
    for figure in outcome.figures:
        if figure.held_out or figure.case not in cases or not figure.candidate_us:
            continue
        work = work_of(open_case(problem, cases[figure.case]))
        seconds = figure.candidate_us * 1e-6
        rates = achieved(work, seconds, ceilings)
        if rates.bandwidth_pct is None:
            continue
        copy = 100 * work.compulsory_bytes / seconds / ceilings.copy_bandwidth
        shares.append(Share(figure.case, copy, rates.bandwidth_pct, rates.limit == "bytes"))
    return tuple(shares)
