"""`kernlore optimize PROBLEM`: search for a faster kernel of one problem, or of several, each in a
separate process like the runs of a service: one after another, or side by side on a cluster.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from annotated_types import Ge

from api.cli.command import (
    ApiBase,
    AsJson,
    DataDir,
    DeviceHardware,
    Models,
    ModelSeconds,
    Ray,
    Reader,
    Seed,
    Wait,
    command,
    switched_on,
    wait_for_processors,
)
from api.cli.output import note, show
from api.cli.target import CommandTarget, opened
from kb.errors import InvalidRequest, NotFound
from kb.plain import Doc, from_json

if TYPE_CHECKING:
    from api.cli.search import SearchOptions
    from kb.workers import ChildProcess
    from optimizer.search.goal import Goal
    from retrieval.knowledge_base import KnowledgeBase


@command()
def optimize(
    problems: Annotated[
        list[str],
        typer.Argument(
            metavar="PROBLEM...",
            help="Problem files, folders of them, or names of built-in problems. Several are"
            " searched one after another; with --ray, side by side.",
        ),
    ],
    hardware: DeviceHardware = "auto",
    language: Annotated[str | None, Doc("Only candidates in this language.")] = None,
    target: Annotated[
        str | None,
        Doc(
            "Stop at this speed-up (1.5x), time of a call (120us), or share of the device's"
            " measured ceilings (0.85roofline)."
        ),
    ] = None,
    candidates: Annotated[int, Doc("Try at most this many candidates.")] = 30,
    minutes: Annotated[float | None, Doc("Search for at most this many minutes.")] = None,
    usd: Annotated[
        float | None, Doc("Spend at most this many US dollars on language models.")
    ] = None,
    models: Models = "",
    api_base: ApiBase = None,
    context_tokens: Annotated[
        int, Doc("Most tokens of knowledge in a model's prompt."), Ge(1_000)
    ] = 48_000,
    reader: Reader = "auto",
    tools: Annotated[
        bool | None,
        typer.Option(
            "--tools/--no-tools",
            help="Whether models may look up names, search the manuals and compile drafts before"
            " they answer. Default: models that are known to take tools.",
        ),
    ] = None,
    model_seconds: ModelSeconds = 300.0,
    synthesizers: Annotated[
        str,
        Doc(
            "Only these proposers: recipe, sample, traced, compiler, llm; separate them by"
            " commas. Default: all that are available."
        ),
    ] = "",
    knowledge: Annotated[
        str, Doc("Whether proposers are shown retrieved knowledge: on or off.")
    ] = "on",
    policy: Annotated[
        str, Doc("How the next candidate to improve is chosen: best-first, mcts or evolutionary.")
    ] = "best-first",
    memory: Annotated[
        str,
        Doc(
            "Earlier candidates that proposers are shown with the one to change: none,"
            " parent (its own), siblings (earlier changes of it), both, or ancestors."
        ),
    ] = "both",
    seed: Seed = 0,
    stall: Annotated[
        int | None, Doc("Stop after this many candidates without an improvement.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Folder for the module and the report. Default: a new one here."
        ),
    ] = None,
    distill: Annotated[bool, Doc("Afterwards, distil the run into skills.")] = False,
    wait: Wait = 0.0,
    ray: Ray = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> int:
    """Search for a faster kernel. Exits 0 even without a gain."""
    from api.cli.search import SearchOptions
    from optimizer.evaluation.problem.load import problem_paths
    from optimizer.search.goal import Goal
    from optimizer.search.synthesizers.llm.settings import ModelOptions

    goal = from_json(
        Goal,
        {
            "language": language,
            **target_of(target),
            "synthesizers": named_synthesizers(synthesizers),
            "candidates": candidates,
            "minutes": minutes,
            "usd": usd,
            "knowledge": switched_on(knowledge),
            "policy": policy,
            "memory": memory,
            "seed": seed,
            "stall": stall,
        },
    )
    options = SearchOptions(
        goal,
        hardware,
        ModelOptions(models, api_base, context_tokens, tools, model_seconds, reader=reader),
        ray,
    )
    problems = [str(path) for path in problem_paths(problems)]
    wait_for_processors(wait)
    with opened(data_dir) as local:
        if len(problems) > 1:
            return _search_several(local, problems, options, output, distill, as_json)
        return _search_one(local, problems[0], options, output, distill, as_json)


GOALS = {"x": "target", "us": "target_us", "roofline": "target_roofline"}


def target_of(text: str | None) -> dict[str, float]:
    """The field of the goal that a target sets. Raises InvalidRequest."""
    if text is None:
        return {}
    unit = next((unit for unit in ("roofline", "us", "x") if text.endswith(unit)), "")
    try:
        value = float(text.removesuffix(unit))
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf") or (unit == "roofline" and value > 1):
        raise InvalidRequest(
            f"--target is {text!r}",
            hint="Give a speed-up over the reference (1.5x), microseconds a call (120us), or a"
            " share of the roofline up to 1 (0.85roofline).",
        )
    return {GOALS[unit or "x"]: value}


def named_synthesizers(text: str) -> tuple[str, ...]:
    """The names in the option. Raises InvalidRequest for external candidates."""
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if "external" in names:
        raise InvalidRequest(
            "external candidates cannot be sent to a search of the command line",
            hint='Start the run at a service: POST /runs with "proposers": ["external"].',
        )
    return names


def _search_one(
    local: CommandTarget,
    problem: str,
    options: SearchOptions,
    output: Path | None,
    distill: bool,
    as_json: bool,
) -> int:
    """Search one problem; the exit code."""
    from api.cli.search import search
    from optimizer.evaluation.problem.load import load_problem
    from optimizer.search.runs.optimize import write_result

    load_problem(Path(problem))  # a wrong name is reported before anything is read
    if options.hardware != "auto":
        local.services.registry.resolve(options.hardware)
    if options.goal.knowledge:
        local.load_knowledge(note)
    finished, code = search(local.services, Path(problem), options, quiet=as_json)
    answer = write_result(finished, output)
    if distill and finished.run.state == "finished":
        from skills.curator.distil import distil_source

        answer["distilled"] = distil_source(local.services, finished.run.id).as_json()
    show(answer, as_json, _result_text)
    if not distill and answer["outcome"]["gain"] is not None:
        note(f"to learn from it: kernlore skills distill {finished.run.id}")
    if finished.run.state != "finished":
        note(f"to go on: kernlore runs resume {finished.run.id}")
    return code


def _result_text(answer: Any) -> str:
    """The gain, the file, how to use it; then the distilled skills, with --distill."""
    outcome, ended = answer["outcome"], answer["ended"]
    gain, over = outcome["gain"], outcome["over"]
    if gain is None and outcome["best_so_far"] is not None:
        why = f" ({ended})" if answer["state"] == "finished" else ""
        first = f"{outcome['reason']}{why}"
    elif gain is None:
        stays = f"{over} stays" if answer["correct"] else "there is no correct kernel"
        what = "no gain" if outcome["measured"] else outcome["reason"]
        why = "" if what == ended else f" ({ended})"
        first = f"{what}{why}: {stays}"
    elif outcome["clock"] == "simulator":
        first = (
            f"{gain['value']:.2f}x over {over}, by simulated time (`simulator`, no wall time)"
            f" ({ended})"
        )
    elif outcome["clock"] not in ("wall", "program"):
        first = (
            f"{gain['value']:.2f}x over {over}, by executed {outcome['clock']} (no time) ({ended})"
        )
    else:
        if outcome["clock"] == "program":
            over = f"{over}, by the time that the chip's program reports,"
        first = (
            f"{gain['value']:.2f}x [{gain['low']:.2f}, {gain['high']:.2f}] over {over} ({ended})"
        )
    lines = [first, answer["module"], answer["import"]]
    if answer["kernel"] is None and outcome["clock"] == "wall":
        lines.append("the module contains no kernel: its ModelNew is the reference")
    if outcome["best_so_far"] is not None and outcome["clock"] == "wall":
        lines.append(f"{answer['kernel']} is not confirmed, and ModelNew is the reference")
    if "distilled" in answer:
        from api.cli.commands.skills import distilled_text

        lines.append(distilled_text(answer["distilled"]))
    return "\n".join(lines)


# -- several problems on a cluster

LOOK_SECONDS = 2.0
POLL_SECONDS = 0.1
PLAIN_EVERY = 10.0  # seconds between two lines of a problem without a terminal
GRACE_SECONDS = 5.0  # for an interrupted search to store its last row
OUTPUT_CHARS = 2_000


def _search_several(
    local: CommandTarget,
    problems: list[str],
    options: SearchOptions,
    output: Path | None,
    distill: bool,
    as_json: bool,
) -> int:
    """Search several problems: concurrently on a cluster, else in sequence, each with the whole
    budget. Returns 1 if one had no search."""
    if distill:
        raise InvalidRequest(
            f"{len(problems)} problems with --distill",
            hint="Distil each run afterwards with `kernlore skills distill`.",
        )
    from api.cli.search import places_on, sigterm_as_interrupt
    from optimizer.evaluation.problem.load import load_problem

    paths = [load_problem(Path(name)).path for name in dict.fromkeys(problems)]
    goal = options.goal
    if goal.knowledge:
        local.load_knowledge(note)
    at_once = 1  # a second search would disturb the times of the first
    with places_on(local.services, options.ray, options.hardware, goal.language) as nodes:
        if nodes is not None:
            at_once, options = nodes.slots.count, replace(options, hardware=nodes.hardware)
    with sigterm_as_interrupt():
        answers = _search_all(local.services, paths, options, at_once, output, as_json)
    show(answers, as_json, _results_text)
    return 1 if any("error" in answer for answer in answers) else 0


def _results_text(answers: Sequence[Mapping[str, Any]]) -> str:
    return "\n".join(
        f"{answer['problem']}: {answer['error'] if 'error' in answer else _result_text(answer)}"
        for answer in answers
    )


@dataclass
class _Search:
    """The search of one problem. `line` is its progress."""

    problem: Path
    name: str
    run: str
    child: ChildProcess | None = None
    began: float = 0.0
    size: int = -1
    line: str = "waits"
    ended: bool = False
    printed: float = field(default=0.0, repr=False)


def _search_all(
    base: KnowledgeBase,
    problems: Sequence[Path],
    options: SearchOptions,
    at_once: int,
    output: Path | None,
    quiet: bool,
) -> list[dict[str, Any]]:
    """Search every problem, `at_once` of them side by side, and write each result below `output`.
    The answer of one whose process ended early has its `error` and no result."""
    from kb.ids import new_id
    from optimizer.evaluation.problem.load import load_problem

    at_once = max(1, min(at_once, os.cpu_count() or 1))
    searches = [_Search(problem, load_problem(problem).name, new_id("run")) for problem in problems]
    with _shown(searches, quiet) as show_progress:
        try:
            while True:
                running = [s for s in searches if s.child is not None and not s.ended]
                waiting = [s for s in searches if s.child is None]
                for search in waiting[: at_once - len(running)]:
                    _begin(base, search, options)
                for search in running:
                    _look(base, search, options.goal)
                show_progress()
                if all(search.ended for search in searches):
                    break
                _pause([s.child for s in searches if s.child is not None and not s.ended])
        finally:
            for search in searches:
                if search.child is not None:
                    search.child.end(GRACE_SECONDS)
    return [_answer(base, search, output) for search in searches]


def _begin(base: KnowledgeBase, search: _Search, options: SearchOptions) -> None:
    from api.services import RUN_COMMAND
    from kb.data_dir import private_folder
    from kb.workers import ChildProcess

    description: dict[str, Any] = {
        "run": search.run,
        "problem": str(search.problem),
        "hardware": options.hardware,
        "goal": asdict(options.goal),
        "proposers": [],
        "models": asdict(options.models),
        "ray": options.ray,
    }
    log = private_folder(_folder(base, search)) / "log"
    command = [*RUN_COMMAND, json.dumps(description)]
    search.child = ChildProcess(command, base.settings, output=log)
    search.began, search.line = time.monotonic(), "starts"


def _folder(base: KnowledgeBase, search: _Search) -> Path:
    return base.settings.data_dir.absolute() / "runs" / search.run


def _look(base: KnowledgeBase, search: _Search, goal: Goal) -> None:
    """Update the progress of a search from the stored run."""
    from api.cli.search import status
    from optimizer.search.runs.run_store import run_store
    from optimizer.search.tree import Tree

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


def _pause(children: Sequence[ChildProcess]) -> None:
    """Wait for the next look, or until a child has ended."""
    until = time.monotonic() + LOOK_SECONDS
    while time.monotonic() < until and all(child.alive for child in children):
        time.sleep(POLL_SECONDS)


def _answer(base: KnowledgeBase, search: _Search, output: Path | None) -> dict[str, Any]:
    from optimizer.evaluation.problem.load import load_problem
    from optimizer.search.runs.optimize import FinishedRun, outcome_of, write_result
    from optimizer.search.runs.run_store import run_store
    from optimizer.search.tree import Tree

    head = {"problem": search.name, "run": search.run}
    store = run_store(base)
    try:
        row = store.run(search.run)
    except NotFound:
        printed = (_folder(base, search) / "log").read_bytes()[-OUTPUT_CHARS:]
        reason = printed.decode("utf-8", "replace").strip().splitlines()
        return {**head, "error": "\n".join(reason[-3:])}
    tree = Tree(store.nodes(search.run))
    if not len(tree):  # not even the reference was measured, so there is nothing to write
        return {**head, "error": f"{row.state}: {row.ended}"}
    finished = FinishedRun(row, tree, outcome_of(row, tree), load_problem(search.problem))
    folder = output / search.name if output is not None else None
    return {"problem": search.name, **write_result(finished, folder)}


@contextmanager
def _shown(searches: Sequence[_Search], quiet: bool) -> Iterator[Callable[[], None]]:
    """A function that shows the progress of all searches."""
    if quiet:
        yield lambda: None
    elif not sys.stderr.isatty():
        yield lambda: _print_lines(searches)
    else:
        from rich.console import Console
        from rich.live import Live

        with Live(console=Console(stderr=True), refresh_per_second=1) as live:
            yield lambda: live.update(_progress_table(searches))


def _print_lines(searches: Sequence[_Search]) -> None:
    """A line for each problem that has ended or printed none for a while."""
    now = time.monotonic()
    for search in searches:
        if search.child is not None and (search.ended or now - search.printed >= PLAIN_EVERY):
            if search.printed != float("inf"):
                note(f"{search.name} ({search.run}): {search.line}")
            search.printed = float("inf") if search.ended else now


def _progress_table(searches: Sequence[_Search]) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table("problem", "run", "how far", box=None)
    for search in searches:
        table.add_row(Text(search.name), search.run, Text(search.line))
    return table
