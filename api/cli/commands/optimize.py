"""`kernlore optimize PROBLEM`: search for a faster kernel; says so where there is none."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli.backends import opened
from api.cli.elsewhere import Asked
from api.cli.options import (
    ApiBase,
    AsJson,
    ContextTokens,
    DataDir,
    DeviceHardware,
    Models,
    ModelSeconds,
    Ray,
    Seed,
    switched_on,
)
from api.cli.output import note, show

if TYPE_CHECKING:
    from api.cli.backends.local import LocalTarget
    from optimizer.search.runs.optimize import FinishedRun

Target = Annotated[
    str | None,
    typer.Option(
        help="Stop at this speed-up (1.5x), time of a call (120us), or share of what the device's"
        " measured ceilings allow (0.85roofline)."
    ),
]
Synthesizers = Annotated[
    str,
    typer.Option(
        help="Only these proposers: recipe, sample, traced, compiler, llm; separate them by commas."
        " Default: all that can be asked here."
    ),
]
Knowledge = Annotated[
    str, typer.Option(help="Whether proposers are shown retrieved knowledge: on or off.")
]
Policy = Annotated[
    str,
    typer.Option(
        help="How the next candidate to improve is chosen: best-first, mcts or evolutionary."
    ),
]
Memory = Annotated[
    str,
    typer.Option(
        help="Earlier candidates that proposers are shown beside the one to change: none,"
        " parent (its own), siblings (earlier changes of it), both, or ancestors."
    ),
]
Stall = Annotated[
    int | None, typer.Option(help="Stop after this many candidates without an improvement.")
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", help="Folder for the module and the report. Default: a new one here."
    ),
]
Distill = Annotated[
    bool, typer.Option("--distill", help="Afterwards, distil what the run teaches into skills.")
]


Problems = Annotated[
    list[str],
    typer.Argument(
        metavar="PROBLEM...",
        help="A problem file, folder or the name of a built-in problem; several with --ray.",
    ),
]
Minutes = Annotated[float | None, typer.Option(help="Search for at most this many minutes.")]
Usd = Annotated[
    float | None, typer.Option(help="Spend at most this many US dollars on language models.")
]
Tools = Annotated[
    bool | None,
    typer.Option(
        "--tools/--no-tools",
        help="Whether models may look up names, search the manuals and compile drafts before they"
        " answer. Default: models that are known to take tools.",
    ),
]


def optimize(
    problems: Problems,
    hardware: DeviceHardware = "auto",
    language: Annotated[str | None, typer.Option(help="Only candidates in this language.")] = None,
    target: Target = None,
    candidates: Annotated[int, typer.Option(help="Try at most this many candidates.")] = 30,
    minutes: Minutes = None,
    usd: Usd = None,
    models: Models = "",
    api_base: ApiBase = None,
    context_tokens: ContextTokens = 48_000,
    tools: Tools = None,
    model_seconds: ModelSeconds = 300.0,
    synthesizers: Synthesizers = "",
    knowledge: Knowledge = "on",
    policy: Policy = "best-first",
    memory: Memory = "both",
    seed: Seed = 0,
    stall: Stall = None,
    output: Output = None,
    distill: Distill = False,
    ray: Ray = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> int:
    """Search for a faster kernel. Exits 0 even without a gain."""
    from optimizer.search.goal import goal_from_json
    from optimizer.search.synthesizers.llm.settings import ModelOptions

    goal = goal_from_json(
        {
            "language": language,
            **_target(target),
            "synthesizers": named_synthesizers(synthesizers),
            "candidates": candidates,
            "minutes": minutes,
            "usd": usd,
            "knowledge": switched_on(knowledge),
            "policy": policy,
            "memory": memory,
            "seed": seed,
            "stall": stall,
        }
    )
    options = ModelOptions(models, api_base, context_tokens, tools, model_seconds)
    asked = Asked(goal, hardware, options, ray)
    with opened(data_dir) as local:
        if len(problems) > 1:
            return _several(local, problems, asked, output, distill, as_json)
        return _single(local, problems[0], asked, output, distill, as_json)


def _single(
    local: LocalTarget,
    problem: str,
    asked: Asked,
    output: Path | None,
    distill: bool,
    as_json: bool,
) -> int:
    """One problem; the exit code."""
    from optimizer.search.runs.export import write_result

    finished, code = _search(local, problem, asked, as_json)
    answer = write_result(finished, output)
    if distill and finished.run.state == "finished":
        from skills.curator.distil import distil_source

        answer["distilled"] = distil_source(local.services, finished.run.id).as_json()
    show(answer, as_json, _rendered)
    if not distill and answer["outcome"]["gain"] is not None:
        note(f"to learn from it: kernlore skills distill {finished.run.id}")
    if finished.run.state != "finished":
        note(f"to go on: kernlore runs resume {finished.run.id}")
    return code


@contextmanager
def ended_as_by_ctrl_c() -> Iterator[None]:
    """SIGTERM ends the search as Ctrl-C does: the run is stored as it is then, and nothing that it
    started stays behind.
    """

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


INTERRUPTED = 130  # exit code
TARGETS = {"x": "target", "us": "target_us", "roofline": "target_roofline"}


def _target(text: str | None) -> dict[str, float]:
    """The field of the goal that a target sets. Raises InvalidRequest."""
    from kb.errors import InvalidRequest

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
    return {TARGETS[unit or "x"]: value}


def named_synthesizers(text: str) -> tuple[str, ...]:
    """The names in the option. Raises InvalidRequest for external candidates."""
    from kb.errors import InvalidRequest

    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if "external" in names:
        raise InvalidRequest(
            "external candidates cannot be sent to a search of the command line",
            hint='Start the run at a service: POST /runs with "proposers": ["external"].',
        )
    return names


def _search(local: LocalTarget, problem: str, asked: Asked, quiet: bool) -> tuple[FinishedRun, int]:
    """The run, and the exit code: that of an interrupted one says so."""
    from optimizer.evaluation.problem.load import load_problem

    goal, hardware = asked.goal, asked.hardware
    load_problem(Path(problem))  # a wrong name is reported before anything is read or imported
    if hardware != "auto":
        local.services.registry.resolve(hardware)
    from api.cli.elsewhere import places_on, words_of
    from api.cli.progress import progress
    from optimizer.search.runs.optimize import RunInterrupted
    from optimizer.search.runs.optimize import optimize as run
    from skills.lifecycle import prepare_library

    if goal.knowledge:
        local.load_knowledge(note)
    services, language = local.services, goal.language
    with (
        ended_as_by_ctrl_c(),
        places_on(services, asked.ray, hardware, language) as elsewhere,
        progress(goal, quiet, words_of(elsewhere)) as listener,
    ):
        places = elsewhere.places if elsewhere is not None else None
        prepare_library(services, hardware, language, listener.log, places)
        try:
            finished = run(
                services,
                Path(problem),
                goal,
                hardware,
                listener,
                models=asked.models,
                cluster=elsewhere,
            )
        except RunInterrupted as interrupt:
            return interrupt.finished, INTERRUPTED
    return finished, 0


def _several(
    local: LocalTarget,
    problems: list[str],
    asked: Asked,
    output: Path | None,
    distill: bool,
    as_json: bool,
) -> int:
    """Several problems side by side; 1 where one of them had no search."""
    from kb.errors import InvalidRequest
    from optimizer.evaluation.problem.load import load_problem

    ray = asked.ray
    if ray is None or distill:
        raise InvalidRequest(
            f"{len(problems)} problems " + ("with --distill" if ray else "on one machine"),
            hint="Several are searched side by side on a cluster: give --ray, and distil each run"
            " afterwards with `kernlore skills distill`.",
        )
    paths = [load_problem(Path(name)).path for name in dict.fromkeys(problems)]
    from api.cli.elsewhere import places_on
    from api.cli.side_by_side import search_all, text_of

    goal = asked.goal
    if goal.knowledge:
        local.load_knowledge(note)
    with places_on(local.services, ray, asked.hardware, goal.language) as there:
        assert there is not None
        at_once, asked = there.slots.count, replace(asked, hardware=there.hardware)
    with ended_as_by_ctrl_c():
        answers = search_all(local.services, paths, asked, at_once, output, as_json)
    show(answers, as_json, lambda rows: text_of(rows, _rendered))
    return 1 if any("error" in answer for answer in answers) else 0


def _rendered(answer: Any) -> str:
    """The gain, the file, how to use it; then what was distilled, with --distill."""
    gain, over = answer["outcome"]["gain"], answer["outcome"]["over"]
    if gain is None and answer["outcome"]["best_so_far"] is not None:
        why = f" ({answer['ended']})" if answer["state"] == "finished" else ""
        first = f"{answer['outcome']['reason']}{why}"
    elif gain is None:
        stays = f"{over} stays" if answer["correct"] else "there is no correct kernel"
        what = "no gain" if answer["outcome"]["measured"] else answer["outcome"]["reason"]
        why = "" if what == answer["ended"] else f" ({answer['ended']})"
        first = f"{what}{why}: {stays}"
    elif answer["outcome"]["clock"] == "simulator":
        first = (
            f"{gain['value']:.2f}x over {over}, by simulated time (`simulator`, no wall time)"
            f" ({answer['ended']})"
        )
    else:
        if answer["outcome"]["clock"] == "program":
            over = f"{over}, by the time that the chip's program reports,"
        first = (
            f"{gain['value']:.2f}x [{gain['low']:.2f}, {gain['high']:.2f}] over {over}"
            f" ({answer['ended']})"
        )
    lines = [first, answer["module"], answer["import"]]
    if answer["kernel"] is None and answer["outcome"]["clock"] == "wall":
        lines.append("the module contains no kernel: its ModelNew is the reference")
    if answer["outcome"]["best_so_far"] is not None and answer["outcome"]["clock"] == "wall":
        lines.append(f"{answer['kernel']} is not confirmed, and ModelNew is the reference")
    if "distilled" in answer:
        from api.cli.commands.skills import distilled_text

        lines.append(distilled_text(answer["distilled"]))
    return "\n".join(lines)
