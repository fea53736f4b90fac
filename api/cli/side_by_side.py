"""Several problems searched side by side on a cluster: each in a process of its own, as the runs of
a service are, and the progress of all of them in one place.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from api.cli.output import note
from api.cli.progress import status
from api.services import RUN_COMMAND
from kb.data_dir import private_folder
from kb.errors import NotFound
from kb.ids import new_id
from kb.workers import ChildProcess
from optimizer.evaluation.problem.load import load_problem
from optimizer.search.runs.export import outcome_of, write_result
from optimizer.search.runs.optimize import FinishedRun
from optimizer.search.runs.run_store import run_store
from optimizer.search.tree import Tree

if TYPE_CHECKING:
    from api.cli.elsewhere import Asked
    from optimizer.search.goal import Goal
    from retrieval.knowledge_base import KnowledgeBase

LOOK_SECONDS = 2.0
POLL_SECONDS = 0.1
PLAIN_EVERY = 10.0  # seconds between two lines of a problem without a terminal
GRACE_SECONDS = 5.0  # for an interrupted search to store its last row
OUTPUT_CHARS = 2_000


@dataclass
class _Search:
    """One problem on its way. `line` is how far it is."""

    problem: Path
    name: str
    run: str
    child: ChildProcess | None = None
    began: float = 0.0
    size: int = -1
    line: str = "waits"
    ended: bool = False
    said: float = field(default=0.0, repr=False)


def search_all(
    base: KnowledgeBase,
    problems: Sequence[Path],
    asked: Asked,
    at_once: int,
    output: Path | None,
    quiet: bool,
) -> list[dict[str, Any]]:
    """Search every problem, `at_once` of them side by side, and write what came of each below
    `output`. The answer of one whose process ended early has its `error` and nothing else.
    """
    at_once = max(1, min(at_once, os.cpu_count() or 1))
    searches = [_Search(problem, load_problem(problem).name, new_id("run")) for problem in problems]
    with _shown(searches, quiet) as show:
        try:
            while True:
                running = [s for s in searches if s.child is not None and not s.ended]
                waiting = [s for s in searches if s.child is None]
                for search in waiting[: at_once - len(running)]:
                    _begin(base, search, asked)
                for search in running:
                    _look(base, search, asked.goal)
                show()
                if all(search.ended for search in searches):
                    break
                _pause([s.child for s in searches if s.child is not None and not s.ended])
        finally:
            for search in searches:
                if search.child is not None:
                    search.child.end(GRACE_SECONDS)
    return [_answer(base, search, output) for search in searches]


def _pause(children: Sequence[ChildProcess]) -> None:
    """Until the next look: at once where a child has ended."""
    until = time.monotonic() + LOOK_SECONDS
    while time.monotonic() < until and all(child.alive for child in children):
        time.sleep(POLL_SECONDS)


def _begin(base: KnowledgeBase, search: _Search, asked: Asked) -> None:
    description: dict[str, Any] = {
        "run": search.run,
        "problem": str(search.problem),
        "hardware": asked.hardware,
        "goal": dict(asked.goal.as_json()),
        "proposers": [],
        "models": asdict(asked.models),
        "ray": asked.ray,
    }
    log = private_folder(_folder(base, search)) / "log"
    command = [*RUN_COMMAND, json.dumps(description)]
    search.child = ChildProcess(command, base.settings, output=log)
    search.began, search.line = time.monotonic(), "starts"


def _folder(base: KnowledgeBase, search: _Search) -> Path:
    return base.settings.data_dir.absolute() / "runs" / search.run


def _look(base: KnowledgeBase, search: _Search, goal: Goal) -> None:
    """How far a search is by what it has stored."""
    assert search.child is not None
    ended = not search.child.alive
    store = run_store(base)
    try:
        row, size = store.run(search.run), store.size(search.run)
    except NotFound:
        search.line = "measures the reference" if not ended else "failed before its search began"
    else:
        if size != search.size:
            search.size = size
            tree = Tree(store.nodes(search.run))
            search.line = status(tree, goal, time.monotonic() - search.began)
        if ended:
            search.line = f"{row.state}: {row.ended}"
    search.ended = ended


def _answer(base: KnowledgeBase, search: _Search, output: Path | None) -> dict[str, Any]:
    store = run_store(base)
    try:
        row = store.run(search.run)
    except NotFound:
        printed = (_folder(base, search) / "log").read_bytes()[-OUTPUT_CHARS:]
        reason = printed.decode("utf-8", "replace").strip().splitlines()
        return {"problem": search.name, "run": search.run, "error": "\n".join(reason[-3:])}
    tree = Tree(store.nodes(search.run))
    if not len(tree):  # not even the reference was measured, so there is nothing to write
        return {"problem": search.name, "run": search.run, "error": f"{row.state}: {row.ended}"}
    finished = FinishedRun(row, tree, outcome_of(row, tree), load_problem(search.problem))
    folder = output / search.name if output is not None else None
    return {"problem": search.name, **write_result(finished, folder)}


# -- what is shown meanwhile


@contextmanager
def _shown(searches: Sequence[_Search], quiet: bool) -> Iterator[Callable[[], None]]:
    if quiet:
        yield lambda: None
    elif not sys.stderr.isatty():
        yield lambda: _say(searches)
    else:
        from rich.console import Console
        from rich.live import Live

        with Live(console=Console(stderr=True), refresh_per_second=1) as live:
            yield lambda: live.update(_table(searches))


def _say(searches: Sequence[_Search]) -> None:
    """A line of each problem that has something to say."""
    now = time.monotonic()
    for search in searches:
        if search.child is not None and (search.ended or now - search.said >= PLAIN_EVERY):
            if search.said != float("inf"):
                note(f"{search.name} ({search.run}): {search.line}")
            search.said = float("inf") if search.ended else now


def _table(searches: Sequence[_Search]) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table("problem", "run", "how far", box=None)
    for search in searches:
        table.add_row(Text(search.name), search.run, Text(search.line))
    return table


def text_of(answers: Sequence[Mapping[str, Any]], rendered: Callable[[Any], str]) -> str:
    """What came of each problem, under its name."""
    return "\n".join(
        f"{answer['problem']}: {answer['error'] if 'error' in answer else rendered(answer)}"
        for answer in answers
    )
