"""`kernlore optimize PROBLEM`: a faster kernel for this machine, or the plain word that there is
none."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli.backends import read_settings, send_logs_to_stderr
from api.cli.options import AsJson, DataDir, switched_on
from api.cli.output import note, show

if TYPE_CHECKING:
    from api.cli.backends.local import LocalTarget
    from optimizer.search.runs.optimize import Finished
    from skills.lifecycle import prepare_library

Target = Annotated[
    str | None,
    typer.Option(
        help="Stop at this speed-up (1.5x), this time a call (120us) or this share of what the"
        " device's measured ceilings allow (0.85roofline)."
    ),
]
Synthesizers = Annotated[
    str, typer.Option(help="Only these propose: recipe, sample, compiler, llm; with commas.")
]
Distill = Annotated[
    bool, typer.Option("--distill", help="Then distil what the run teaches into skills.")
]


def optimize(
    problem: Annotated[str, typer.Argument(help="A problem file, folder or shipped name.")],
    hardware: Annotated[str, typer.Option(help="Hardware id, or auto for what is here.")] = "auto",
    language: Annotated[str | None, typer.Option(help="Only candidates in this language.")] = None,
    target: Target = None,
    candidates: Annotated[int, typer.Option(help="At most so many.")] = 30,
    minutes: Annotated[float | None, typer.Option(help="At most so long.")] = None,
    usd: Annotated[float | None, typer.Option(help="At most so much for models.")] = None,
    models: Annotated[
        str, typer.Option(help="Language models to ask too, as litellm names them: a=2,b.")
    ] = "",
    synthesizers: Synthesizers = "",
    knowledge: Annotated[str, typer.Option(help="on or off.")] = "on",
    policy: Annotated[str, typer.Option(help="best-first, mcts or evolutionary.")] = "best-first",
    memory: Annotated[
        str, typer.Option(help="none, parent, siblings, both or ancestors.")
    ] = "both",
    seed: Annotated[int, typer.Option(help="Of everything drawn by chance.")] = 0,
    stall: Annotated[
        int | None, typer.Option(help="Stop after so many candidates without a better one.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for the module and the report.")
    ] = None,
    distill: Distill = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> int:
    """Search, measure, prove; exit code 0 whether or not there is a gain."""
    from api.cli.backends.local import LocalTarget
    from optimizer.search.goal import goal_from_json

    send_logs_to_stderr("error")
    goal = goal_from_json(
        {
            "language": language,
            **_target(target),
            "synthesizers": _synthesizers(synthesizers),
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
    local = LocalTarget(read_settings(data_dir))
    try:
        finished = _search(local, problem, goal, hardware, models, as_json)
        told = _written(finished, output)
        if distill and finished.run.state == "finished":
            told["distilled"] = _distilled(local, finished.run.id)
    finally:
        local.close()
    show(told, as_json, _rendered)
    if not distill and told["outcome"]["gain"] is not None:
        note(f"what it teaches: kernlore skills distill {finished.run.id}")
    return 0


TARGETS = {"x": "target", "us": "target_us", "roofline": "target_roofline"}


def _target(text: str | None) -> dict[str, float]:
    """The field of the goal that a target is. Raises InvalidRequest."""
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


def _synthesizers(text: str) -> tuple[str, ...]:
    from kb.errors import InvalidRequest

    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if "external" in names:
        raise InvalidRequest(
            "nobody can hand in candidates to a search of the shell",
            hint='Start the run at the service: POST /runs with "proposers": ["external"].',
        )
    return names


def _distilled(local: LocalTarget, run: str) -> dict[str, Any]:
    from skills.curator.distil import distil_source

    return distil_source(local.services, run).as_json()


def _search(
    local: LocalTarget, problem: str, goal: Any, hardware: str, models: str, quiet: bool
) -> Finished:
    from optimizer.evaluation.problem.load import load_problem

    load_problem(Path(problem))  # what is misspelled is said before anything is read or imported
    if hardware != "auto":
        local.services.registry.resolve(hardware)
    from api.cli.search.progress import progress
    from optimizer.search.runs.optimize import optimize as run

    if goal.knowledge:
        local.load_knowledge(note)
    with progress(goal, quiet) as listener:
        prepare_library(local.services, hardware, goal.language, listener.said)
        return run(local.services, Path(problem), goal, hardware, listener, models=models)


def _written(finished: Finished, output: Path | None) -> dict[str, Any]:
    """The module and the report on disk, and what the terminal says of them.

    speedup: over the reference in the final measurement, 1.0 where the reference stays. correct:
    of what the module calls, the winner or the reference. models: what they were paid.
    """
    outcome, tree = finished.outcome, finished.tree
    from optimizer.search.output.account import model_costs
    from optimizer.search.output.module import write_module
    from optimizer.search.output.report import write_report
    from optimizer.search.records import REFERENCE

    simulated = outcome.clock == "simulator"  # then the gain is no speed-up over the reference
    folder = (output or Path(f"{finished.problem.name}_{finished.run.id}")).resolve()
    module = write_module(finished.tree, finished.outcome, finished.problem, folder)
    report = write_report(finished.run, finished.tree, finished.outcome, finished.problem, folder)
    return {
        "run": finished.run.id,
        "ended": finished.run.ended,
        "speedup": None if simulated else outcome.gain.value if outcome.gain is not None else 1.0,
        "correct": tree[outcome.node if outcome.node is not None else REFERENCE].correct,
        "models": model_costs(tree),
        "outcome": outcome.as_json(),
        "module": str(module),
        "report": str(report),
        "import": _through_tools(module, finished.run.hardware)
        if simulated
        else f"PYTHONPATH={module.parent} python -c 'from {module.name} import ModelNew'",
    }


def _through_tools(module: Path, hardware: str) -> str:
    """What is to be said of a kernel that only the chip's own tools run."""
    kernel = next(iter(sorted(module.glob("kernel.*"))), None)
    if kernel is None:
        return "there is no kernel in it"
    return f"{kernel} runs through the command templates of {hardware}, not from torch"


def _rendered(told: Any) -> str:
    """The gain, the file, how to use it; then what was distilled, where that was asked for."""
    gain, over = told["outcome"]["gain"], told["outcome"]["over"]
    if gain is None:
        stays = f"{over} stays" if told["correct"] else "there is no right kernel"
        first = f"no gain ({told['ended']}): {stays}"
    elif told["outcome"]["clock"] == "simulator":
        first = (
            f"{gain['value']:.2f}x over {over}, by simulated time (`simulator`, no wall time)"
            f" ({told['ended']})"
        )
    else:
        first = (
            f"{gain['value']:.2f}x [{gain['low']:.2f}, {gain['high']:.2f}] over the reference"
            f" ({told['ended']})"
        )
    lines = [first, told["module"], told["import"]]
    if "distilled" in told:
        from api.cli.library.curation import distilled_text

        lines.append(distilled_text(told["distilled"]))
    return "\n".join(lines)
