"""What a running search shows: one line that changes on a terminal, plain lines without one."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from optimizer.search.goal import Goal
from optimizer.search.loop import Listener
from optimizer.search.records import Node
from optimizer.search.synthesizers.base import Asking
from optimizer.search.tree import Tree, rough_best

PLAIN_EVERY = 5.0  # seconds between plain lines that bring nothing new
ASKING_EVERY = 60.0  # seconds between plain lines that a model is still being asked


Words = Callable[[], str]


@contextmanager
def progress(goal: Goal, quiet: bool, elsewhere: Words | None = None) -> Iterator[Listener]:
    """A listener that prints the progress of a search on standard error.

    With `quiet` it prints remarks alone: the answer is JSON for a program. `elsewhere` says in a
    few words what other machines do for it.
    """
    if quiet:
        yield _Remarks()
    elif sys.stderr.isatty():
        with _Live(goal, elsewhere) as live:
            yield live
    else:
        yield _Plain(goal, elsewhere)


def plain_lines(goal: Goal) -> Listener:
    """A listener that prints plain lines, for a log."""
    return _Plain(goal)


def remarks() -> Listener:
    """A listener that prints only what somebody has to know."""
    return _Remarks()


class _Remarks:
    """No progress, only remarks that somebody has to know, such as an unknown price."""

    def node(self, node: Node, tree: Tree) -> None: ...

    def asking(self, asking: Asking) -> None: ...

    def log(self, message: str) -> None:
        print(message, file=sys.stderr, flush=True)


class _Plain:
    """A line when there is a better candidate, and now and then the state of the search."""

    def __init__(self, goal: Goal, elsewhere: Words | None = None) -> None:
        self._goal = goal
        self._elsewhere = elsewhere
        self._began = time.monotonic()
        self._last = -PLAIN_EVERY
        self._best = -1
        self._asked = ("", 0)  # the model, and the number of the candidate
        self._asked_at = 0.0  # seconds of the call when that was printed last

    def node(self, node: Node, tree: Tree) -> None:
        best = tree.best
        better = best is not None and best.number != self._best
        if not better and time.monotonic() - self._last < PLAIN_EVERY:
            return
        self._best = best.number if best is not None else -1
        self._last = time.monotonic()
        line = status(tree, self._goal, self._last - self._began, self._elsewhere)
        print(line, file=sys.stderr, flush=True)

    def asking(self, asking: Asking) -> None:
        """A line for each candidate, and then every ASKING_EVERY of a call."""
        first = (asking.model, asking.number) != self._asked
        if asking.seconds == 0.0:  # another call
            self._asked, self._asked_at = (asking.model, asking.number), 0.0
        if first or asking.seconds - self._asked_at >= ASKING_EVERY:
            self._asked_at = asking.seconds
            print(asking, file=sys.stderr, flush=True)

    def log(self, message: str) -> None:
        print(message, file=sys.stderr, flush=True)


class _Live:
    """One status line that changes, with remarks above it."""

    def __init__(self, goal: Goal, elsewhere: Words | None = None) -> None:
        from rich.console import Console

        self._goal = goal
        self._elsewhere = elsewhere
        self._console = Console(stderr=True)
        self._began = time.monotonic()
        self._tree: Tree | None = None
        self._status = self._console.status("measuring the reference", spinner="line")

    def __enter__(self) -> _Live:
        self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._status.stop()

    def node(self, node: Node, tree: Tree) -> None:
        self._tree = tree
        seconds = time.monotonic() - self._began
        self._status.update(status(tree, self._goal, seconds, self._elsewhere))

    def asking(self, asking: Asking) -> None:
        now = time.monotonic() - self._began
        before = f"{status(self._tree, self._goal, now)} | " if self._tree is not None else ""
        self._status.update(f"{before}{asking}")

    def log(self, message: str) -> None:
        self._console.print(message, style="dim", markup=False)


def status(tree: Tree, goal: Goal, seconds: float, elsewhere: Words | None = None) -> str:
    """Best so far, verdict counts, candidates a minute, budget left, and what other machines do."""
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
    return line if elsewhere is None else f"{line} | {elsewhere()}"
