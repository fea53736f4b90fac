"""A run is killed with SIGKILL at random moments and resumed each time.

Counts lost rows, repeated evaluations and leftover processes, and checks that the stored
evaluations give the same tree again. Rows are read from the run's catalog, finished evaluations are
counted by a trigger there, and orphans are reparented to this process. Linux only.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from api.cli.target import CommandTarget, read_settings
from benchmarks.processes import descendants, orphans_gone, take_orphans
from benchmarks.report import ended, say, table, write_result
from kb.ids import new_id
from optimizer.evaluation.collectors.ceilings import DeviceStore
from optimizer.evaluation.problem.load import SHIPPED, load_problem
from optimizer.evaluation.settings import EvaluationSettings
from optimizer.search.bench.local import problem_view
from optimizer.search.goal import Goal
from optimizer.search.knowledge import NoKnowledge
from optimizer.search.loop import Search
from optimizer.search.records import Node
from optimizer.search.runs.optimize import builtin
from optimizer.search.runs.places import places_for
from optimizer.search.runs.run_store import run_store
from optimizer.search.store import FileStore, RunRow
from optimizer.search.synthesizers.base import HardwareView, ModelCall
from optimizer.search.tree import Tree
from tests.optimizer.search.landscape import ReplayBench

TITLE = "A run that is killed again and again"
PROBLEM, LANGUAGE, HARDWARE = "map_id", "cpp", "auto"
SESSION_SECONDS = 300.0
COUNTED = """
CREATE TABLE counted (key TEXT, timing TEXT);
CREATE TRIGGER counting AFTER UPDATE OF state ON evaluations WHEN NEW.state = 'finished'
BEGIN INSERT INTO counted VALUES (NEW.key, NEW.timing); END;
"""
Rows = list[tuple[int, str]]


@dataclass(frozen=True)
class Kill:
    """after: seconds since its process began. nodes: stored then. unchanged: earlier ones have
    the same records. running: processes that it had started; left: those that outlived it for
    GONE_SECONDS; gone: seconds until the last one had ended. lock_free: of the device."""

    after: float
    nodes: int
    unchanged: bool
    running: int
    left: int
    gone: float
    lock_free: bool


@dataclass(frozen=True)
class Outcome:
    """Result of all kills. twice: keys of evaluations that were finished again after they had a
    measured result. orphaned: keys of finished evaluations without a node. same: whether the replay
    gives the same tree; difference: the first difference, if not."""

    kills: tuple[Kill, ...]
    candidates: int
    states: Mapping[str, int]
    ended: str
    evaluations: int
    twice: tuple[str, ...]
    orphaned: tuple[str, ...]
    same: bool
    difference: str = ""
    seconds: float = 0.0
    refused: tuple[str, ...] = field(default=())

    @property
    def good(self) -> bool:
        clean = all(kill.unchanged and not kill.left and kill.lock_free for kill in self.kills)
        return clean and self.same and not (self.twice or self.orphaned or self.refused)


class KilledRun:
    """folder: holds its catalog and its temporary files, which nothing else uses. devices: ceilings
    that are known; without them they are measured now, as no process of the run lives for long
    enough."""

    def __init__(
        self,
        folder: Path,
        goal: Goal,
        devices: Path | None = None,
        problem: Path = SHIPPED / PROBLEM,
    ) -> None:
        self.folder, self.goal = folder, goal
        self.problem = load_problem(problem).path
        self.run_id = new_id("run")
        self.scratch = folder / "tmp"
        self.scratch.mkdir(parents=True)
        self.settings = read_settings(folder / "data")
        if devices is not None:
            shutil.copytree(devices, self.settings.data_dir / "devices")
        DeviceStore(self.settings.data_dir).ensure("cpu", EvaluationSettings().threads)
        local = CommandTarget(self.settings)
        local.services  # noqa: B018  (makes the catalog, with the built-in hardware and skills)
        local.close()
        with self._catalog() as connection:
            connection.executescript(COUNTED)

    def _catalog(self) -> sqlite3.Connection:
        return sqlite3.connect(self.settings.data_dir / "catalog.sqlite", timeout=15)

    def rows(self) -> Rows:
        with self._catalog() as connection:
            rows = connection.execute(
                "SELECT number, record FROM nodes WHERE run_id = ? ORDER BY number", (self.run_id,)
            )
            return [(number, record) for number, record in rows]

    def begun(self) -> bool:
        with self._catalog() as connection:
            row = connection.execute("SELECT 1 FROM runs WHERE id = ?", (self.run_id,))
            return row.fetchone() is not None

    def finished(self) -> bool:
        with self._catalog() as connection:
            row = connection.execute("SELECT state FROM runs WHERE id = ?", (self.run_id,))
            return bool(row.fetchone() == ("finished",))

    def start(self) -> subprocess.Popen[bytes]:
        """Its first process, or one that goes on with it."""
        request = {
            "run": self.run_id,
            "problem": str(self.problem),
            "hardware": HARDWARE,
            "goal": asdict(self.goal),
            "proposers": ["builtin"],
        }
        first = ["-m", "api.run_worker", json.dumps(request)]
        again = ["-m", "api.cli.main", "runs", "resume", self.run_id, "--json"]
        environment = {
            **os.environ,
            "KERNLORE_DATA_DIR": str(self.settings.data_dir),
            "TMPDIR": str(self.scratch),
        }
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, *(again if self.begun() else first)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self, process: subprocess.Popen[bytes], after: float, before: Rows) -> Kill:
        """SIGKILL to the run's own process only: what it started has to notice."""
        running = descendants(process.pid)
        process.kill()
        process.wait()
        rows = self.rows()
        left, gone = orphans_gone()
        return Kill(
            round(after, 2),
            len(rows),
            rows[: len(before)] == before,
            len(running),
            left,
            round(gone, 2),
            self._lock_free(),
        )

    def _lock_free(self) -> bool:
        for path in self.scratch.glob("kernlore-device-*.lock"):
            with path.open("ab") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return False
        return True

    def counted(self) -> list[tuple[str, str]]:
        with self._catalog() as connection:
            return list(connection.execute("SELECT key, timing FROM counted"))


def killed_run(
    folder: Path,
    goal: Goal,
    kills: int,
    earliest: float,
    latest: float,
    devices: Path | None = None,
    problem: Path = SHIPPED / PROBLEM,
) -> Outcome:
    """Kill it so many times, each a random moment after its process began, then let it end."""
    take_orphans()
    began = time.monotonic()
    run = KilledRun(folder, goal, devices, problem)
    chance = random.Random(f"{goal.seed}:kills")
    done: list[Kill] = []
    refused: list[str] = []
    while len(done) < kills:
        moment = chance.uniform(earliest, latest)
        before = run.rows()
        process = run.start()
        try:
            code = process.wait(moment)
        except subprocess.TimeoutExpired:
            done.append(run.kill(process, moment, before))
            say(f"kill {len(done)} of {kills}: {done[-1]}")
            if run.finished():
                break  # only the end of its process was cut
            continue
        if code:
            refused.append(_said(folder))
        break  # it ended before it could be killed
    if not refused and not run.finished():
        code = run.start().wait(SESSION_SECONDS)
        refused += [_said(folder)] if code else []
    return _outcome(run, tuple(done), tuple(refused), time.monotonic() - began)


def _said(folder: Path) -> str:
    return (folder / "log").read_text(encoding="utf-8", errors="replace").strip()[-400:]


def _outcome(
    run: KilledRun, kills: tuple[Kill, ...], refused: tuple[str, ...], seconds: float
) -> Outcome:
    local = CommandTarget(run.settings)
    try:
        store = run_store(local.services)
        row, tree = store.run(run.run_id), Tree(store.nodes(run.run_id))
        replayed = _replayed(local.services, row, tree, run.folder / "replay")
    finally:
        local.close()
    counted = run.counted()
    measured = Counter(key for key, timing in counted if timing != "repeat")
    known = {n.evaluation.key for n in tree if n.evaluation is not None}
    difference = _difference(tree, replayed)
    return Outcome(
        kills=kills,
        candidates=len(tree) - 1,
        states=dict(Counter(node.verdict for node in tree.nodes[1:])),
        ended=f"{row.state}: {row.ended}",
        evaluations=len(counted),
        twice=tuple(key for key, count in measured.items() if count > 1),
        orphaned=tuple(sorted({key for key, _ in counted} - known)),
        same=not difference,
        difference=difference,
        seconds=round(seconds, 1),
        refused=refused,
    )


def _replayed(services: Any, row: RunRow, tree: Tree, folder: Path) -> Tree:
    """A second run with the same goal, fed from the stored evaluations."""
    problem = load_problem(Path(row.problem))
    places = places_for(services, row.hardware, row.goal.language)
    target = next(iter(places.values())).target
    store = FileStore(folder)
    again = RunRow("replay", row.problem, row.problem_sha256, row.hardware, row.goal)
    store.begin(again)
    hardware = HardwareView(
        target.hardware, target.lineage, target.device, tuple(places), dict(target.facts)
    )
    search = Search(
        again,
        store,
        ReplayBench(tree),
        builtin(services, row.goal, places),
        NoKnowledge(),
        problem_view(problem, target.device or "cpu"),
        hardware,
        _Silent(),
    )
    search.run()
    return search.tree


class _Silent:
    def node(self, node: Node, tree: Tree) -> None:
        """Ignored."""

    def asking(self, asking: ModelCall) -> None: ...

    def log(self, message: str) -> None:
        """Ignored."""


def _difference(first: Tree, other: Tree) -> str:
    """The first node that is not the same; empty where all are."""
    for left, right in zip(_shape(first), _shape(other), strict=False):
        if left != right:
            return f"{left} became {right}"
    return "" if len(first) == len(other) else f"{len(first)} nodes became {len(other)}"


def _shape(tree: Tree) -> list[tuple[int, int | None, str, str]]:
    return [
        (n.number, n.parent, n.state, n.proposal.bundle.sha256 if n.proposal is not None else "")
        for n in tree
    ]


def _parts(outcome: Outcome) -> list[str]:
    kills = [
        [
            number,
            f"{kill.after:.1f} s",
            kill.nodes,
            "yes" if kill.unchanged else "NO",
            kill.running,
            kill.left,
            f"{kill.gone:.2f} s",
            "yes" if kill.lock_free else "NO",
        ]
        for number, kill in enumerate(outcome.kills, 1)
    ]
    header = (
        "kill",
        "after its start",
        "nodes stored",
        "rows unchanged",
        "processes it had",
        "left",
        "gone within",
        "device free",
    )
    verdicts = ", ".join(f"{count} {name}" for name, count in outcome.states.items())
    facts = [
        ("candidates", f"{outcome.candidates} ({verdicts})"),
        ("the run", outcome.ended),
        ("evaluations that were finished", outcome.evaluations),
        ("finished again after a measured result", len(outcome.twice)),
        ("finished and in no node", len(outcome.orphaned)),
        (
            "replay from the stored evaluations",
            "the same tree" if outcome.same else outcome.difference,
        ),
        ("would not start or resume", len(outcome.refused)),
        ("seconds in all", f"{outcome.seconds:.0f}"),
    ]
    about = (
        f"`{PROBLEM}` in {LANGUAGE} on this machine's CPU, without knowledge. Each time the run's "
        "own process gets SIGKILL at a random moment (starting up, proposing, compiling, checking, "
        "timing, writing); what it had started is not touched. Then the run is resumed."
    )
    return [about, table(header, kills), table(("", "found"), facts)]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--candidates", type=int, default=12)
    parser.add_argument("--earliest", type=float, default=1.0, help="seconds after a start")
    parser.add_argument("--latest", type=float, default=9.5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--devices", type=Path, help="DATA_DIR/devices with this machine's ceilings"
    )
    parser.add_argument("--problem", type=Path, default=SHIPPED / PROBLEM, help="of a test")
    parser.add_argument("--json", action="store_true", help="print the figures, write nothing")
    parser.add_argument("--output", type=Path, help="Markdown file for the result")
    options = parser.parse_args(arguments)
    goal = Goal(
        language=LANGUAGE, candidates=options.candidates, knowledge=False, seed=options.seed
    )
    with tempfile.TemporaryDirectory(prefix="killed-run-") as folder:
        moments = (options.kills, options.earliest, options.latest)
        result = killed_run(Path(folder), goal, *moments, options.devices, options.problem)
    if options.json:
        print(json.dumps({**asdict(result), "good": result.good}))
    else:
        write_result(options.output, TITLE, _parts(result))


if __name__ == "__main__":
    ended(main)
