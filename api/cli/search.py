"""A search of a command: on this machine or on a Ray cluster, with its progress on standard error.

A terminal shows one screen that changes, other output gets plain lines. Without `--ray`
nothing of Ray is imported.
"""

from __future__ import annotations

import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from api.cli.output import note
from api.cli.target import cluster_at
from optimizer.search.goal import Goal
from optimizer.search.loop import Listener
from optimizer.search.records import Node
from optimizer.search.synthesizers.base import ModelCall
from optimizer.search.tree import Tree, rough_best, rough_of

if TYPE_CHECKING:
    from rich.console import RenderableType

    from optimizer.search.runs.optimize import FinishedRun
    from optimizer.search.runs.places import ClusterPlaces
    from optimizer.search.synthesizers.llm.settings import ModelOptions
    from retrieval.knowledge_base import KnowledgeBase

INTERRUPTED = 130  # exit code
PLAIN_EVERY = 5.0  # seconds between plain lines without a better candidate
LIVE_CANDIDATES, LIVE_REMARKS = 8, 3  # of the last ones, on the screen
CALL_EVERY = 60.0  # seconds between plain lines about the same call of a model


@dataclass(frozen=True)
class SearchOptions:
    """Options of a search; `ray` is the address of a cluster, None for this machine."""

    goal: Goal
    hardware: str
    models: ModelOptions
    ray: str | None


def search(
    base: KnowledgeBase,
    problem: Path,
    options: SearchOptions,
    *,
    quiet: bool,
    resume: str | None = None,
) -> tuple[FinishedRun, int]:
    """Search for a faster kernel; the run and the exit code. `resume` is the id of a run to
    continue; with `quiet` only remarks are printed."""
    from optimizer.search.runs.optimize import RunInterrupted, optimize
    from skills.lifecycle import prepare_library

    goal, hardware = options.goal, options.hardware
    with (
        sigterm_as_interrupt(),
        places_on(base, options.ray, hardware, goal.language) as nodes,
        _progress(goal, quiet, None if nodes is None else nodes.activity.text) as listener,
    ):
        places = None if nodes is None else nodes.places
        prepare_library(base, hardware, goal.language, listener.log, places)
        try:
            finished = optimize(
                base,
                problem,
                goal,
                hardware,
                listener,
                models=options.models,
                resume=resume,
                cluster=nodes,
            )
        except RunInterrupted as interrupt:
            return interrupt.finished, INTERRUPTED
    return finished, 0


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """SIGTERM ends the search as Ctrl-C does: the run is stored in its present state, and every
    process that it started ends."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def places_on(
    base: KnowledgeBase, address: str | None, hardware: str, language: str | None
) -> Iterator[ClusterPlaces | None]:
    """The places of a search on the cluster at an address; None without one."""
    if address is None:
        yield None
        return
    from optimizer.search.runs.places import cluster_places
    from optimizer.search.runs.sessions import PACKAGES

    with cluster_at(address, PACKAGES) as cluster:
        nodes = cluster_places(base, cluster, hardware, language, note)
        note(
            f"{nodes.slots.count} places for {nodes.hardware} on {', '.join(nodes.hosts)}"
            f" ({nodes.slots.resource} {nodes.slots.amount:g} each)"
        )
        yield nodes


# -- progress

# A few words about the work of other machines.
Activity = Callable[[], str]


@contextmanager
def _progress(goal: Goal, quiet: bool, activity: Activity | None) -> Iterator[Listener]:
    if quiet:
        yield _Remarks()
    elif sys.stderr.isatty():
        with _Live(goal, activity) as live:
            yield live
    else:
        yield _Plain(goal, activity)


def plain_lines(goal: Goal) -> Listener:
    """A listener that prints plain lines, for a log."""
    return _Plain(goal)


def remarks() -> Listener:
    """A listener that prints remarks, such as an unknown price, and no progress."""
    return _Remarks()


class _Remarks:
    def node(self, node: Node, tree: Tree) -> None: ...

    def asking(self, asking: ModelCall) -> None: ...

    def log(self, message: str) -> None:
        note(message)


class _Plain(_Remarks):
    """A line for each better candidate, and from time to time the state of the search."""

    def __init__(self, goal: Goal, activity: Activity | None = None) -> None:
        self._goal = goal
        self._activity = activity
        self._began = time.monotonic()
        self._last = -PLAIN_EVERY
        self._best = -1
        self._call = ("", 0)  # the model, and the number of the candidate
        self._printed_at = 0.0  # seconds of that call at its last line

    def node(self, node: Node, tree: Tree) -> None:
        best = tree.best
        better = best is not None and best.number != self._best
        if not better and time.monotonic() - self._last < PLAIN_EVERY:
            return
        self._best = best.number if best is not None else -1
        self._last = time.monotonic()
        note(status(tree, self._goal, self._last - self._began, self._activity))

    def asking(self, asking: ModelCall) -> None:
        """A line for each candidate, and then every CALL_EVERY seconds of a call."""
        first = (asking.model, asking.number) != self._call
        if asking.seconds == 0.0:  # another call
            self._call, self._printed_at = (asking.model, asking.number), 0.0
        if first or asking.seconds - self._printed_at >= CALL_EVERY:
            self._printed_at = asking.seconds
            note(str(asking))


class _Live:
    """A live screen: the best candidate, the budget, the present work, the last candidates and the
    last remarks. Remarks that it no longer shows are printed when it ends."""

    def __init__(self, goal: Goal, activity: Activity | None = None) -> None:
        from rich.console import Console
        from rich.live import Live

        self._goal = goal
        self._activity = activity
        self._console = Console(stderr=True)
        self._began = self._since = time.monotonic()
        self._tree: Tree | None = None
        self._work = "getting ready"
        self._remarks: list[str] = []
        self._live = Live(
            console=self._console, get_renderable=self.frame, refresh_per_second=2, transient=True
        )

    def __enter__(self) -> _Live:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()
        for remark in self._remarks:
            self._console.print(remark, style="dim", markup=False)

    def node(self, node: Node, tree: Tree) -> None:
        self._tree = tree

    def asking(self, asking: ModelCall) -> None:
        self._set(str(asking))

    def working(self, candidate: int | None, stage: str) -> None:
        of = "the reference" if candidate == 0 else f"candidate {candidate}"
        self._set(stage if candidate is None else f"{of}: {stage}")

    def log(self, message: str) -> None:
        self._remarks.append(message)

    def _set(self, work: str) -> None:
        self._work, self._since = work, time.monotonic()

    def frame(self) -> RenderableType:
        """What the screen shows now."""
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        now = time.monotonic()
        seconds = now - self._began
        tried = self._tree.nodes[1:] if self._tree is not None else []
        parts: list[RenderableType] = []
        if self._tree is not None:
            parts.append(Text(status(self._tree, self._goal, seconds, self._activity), "bold"))
        head = Table.grid(padding=(0, 2, 0, 0))
        bar = ProgressBar(self._goal.candidates, len(tried), width=30)
        head.add_row(bar, Text(f"{self._work} ({now - self._since:.0f} s)", "cyan"))
        parts.append(head)
        if tried:
            table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
            for name, ratio in (("", None), ("verdict", None), ("gain", None), ("change", 1)):
                table.add_column(name, ratio=ratio, no_wrap=True, overflow="ellipsis")
            for node in tried[-LIVE_CANDIDATES:]:
                gain = str(node.speedup) if node.speedup is not None else rough_of(node)
                plan = node.proposal.plan if node.proposal is not None else node.problem
                table.add_row(str(node.number), node.verdict, gain.partition(" (")[0], Text(plan))
            parts.append(table)
        parts += [
            Text(remark, "dim", no_wrap=True, overflow="ellipsis")
            for remark in self._remarks[-LIVE_REMARKS:]
        ]
        return Group(*parts)


def status(tree: Tree, goal: Goal, seconds: float, activity: Activity | None = None) -> str:
    """Best so far, verdict counts, candidates a minute, budget left, activity of other machines."""
    tried = tree.nodes[1:]
    counts = Counter(node.verdict for node in tried)
    best = tree.best
    untimed = rough_best(tried) or "none yet"
    leader = untimed if best is None or best.speedup is None else str(best.speedup)
    if best is not None and best.proposal is not None:
        leader += f" ({best.proposal.recipe or best.proposal.synthesizer})"
    leader = f"best {leader}"
    if tree.baseline is not None:
        leader = tree.baseline_text if best is tree.baseline else f"{leader} | {tree.baseline_text}"
    verdicts = ", ".join(f"{count} {name}" for name, count in counts.most_common())
    rate = 60 * len(tried) / seconds if seconds > 0 else 0.0
    left = f"{max(0, goal.candidates - len(tried))} candidates"
    if goal.minutes is not None:
        left += f", {max(0.0, goal.minutes - seconds / 60):.1f} min"
    line = f"{leader} | {verdicts or 'nothing tried yet'} | {rate:.1f}/min | left {left}"
    return line if activity is None else f"{line} | {activity()}"
