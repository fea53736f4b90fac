"""`kernlore trajectories`: searches of other optimizers, evaluated here; and training data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli.command import Output, command
from api.cli.output import Json, columns, interval, note, pairs
from kb.errors import InvalidRequest
from kb.plain import Doc

if TYPE_CHECKING:
    from api.services import Services
    from kb.catalog.trajectories import StoredTrajectory

app = typer.Typer(help="Searches of other optimizers, and training data.")
TrajectoryId = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="Id of an external trajectory or a run; see `kernlore trajectories list`.",
    ),
]
MAX_FILE = 64 * 1024 * 1024


@command(
    app, "list", text=columns("id", "origin", "state", "problem", "hardware", "steps", "created_at")
)
def list_trajectories(services: Services) -> Any:
    """List external trajectories and runs, newest first."""
    from skills.trajectories.reading import list_trajectories

    return list_trajectories(services, with_runs=True)


def _trajectory_text(answer: Json) -> str:
    verdicts = answer.get("verdicts") or []
    record = answer.get("trajectory") or {}
    head = {n: v for n, v in answer.items() if n not in ("verdicts", "trajectory")}
    if record and not verdicts:
        head |= {"problem": record["subject"]["name"], "hardware": record["hardware"]}
        head["steps"] = len(record["steps"])
    if not verdicts:
        return pairs(head)
    rows = (
        {**verdict, "speedup": interval(verdict["speedup"])}
        | {"remarks": "; ".join([*verdict["flags"], *filter(None, [verdict["message"]])])}
        for verdict in verdicts
    )
    names = ("step", "validity", "speed-up here=speedup", "claimed=claimed_speedup", "remarks")
    return f"{pairs(head)}\n\n{columns(*names)(rows)}"


def _is_not_ready(answer: Json) -> bool:
    return bool(answer["state"] != "ready")


@command(app, "show", text=_trajectory_text)
def show_trajectory(services: Services, trajectory_id: TrajectoryId) -> Any:
    """Compare measured with claimed results. With --json, of every step."""
    from skills.trajectories.reading import show_trajectory

    return show_trajectory(services, trajectory_id)


@command(app, text=_trajectory_text, failed=_is_not_ready)
def submit(
    services: Services,
    file: Annotated[
        Path,
        typer.Argument(
            help="JSON as POST /trajectories accepts it, or the trajectory.jsonl of an export."
        ),
    ],
    problem: Annotated[
        Path | None, Doc("Problem file, folder or name, where FILE does not contain it.")
    ] = None,
) -> Json:
    """Evaluate every step of a trajectory here. Exits 1 unless it is ready afterwards."""
    from api.operations.trajectories import accept_body

    return _evaluated(services, accept_body(services, _body(file, problem)))


@command(app, "import", text=_trajectory_text, failed=_is_not_ready)
def import_session(
    services: Services,
    place: Annotated[
        Path,
        typer.Argument(
            metavar="FILE|FOLDER",
            help="Transcript of a coding agent, output folder of OpenEvolve or KernelAgent, or a"
            " git repository with --path.",
        ),
    ],
    problem: Annotated[Path, Doc("Problem file, folder or name that its candidates solve.")],
    hardware: Annotated[str, Doc("Hardware to measure on.")] = "auto",
    entry: Annotated[
        str,
        Doc(
            "Class or function of the candidates. Default: ModelNew, kernel_function or"
            " custom_kernel in Python, else kernlore_run."
        ),
    ] = "",
    path: Annotated[str, Doc("Of a repository: the file whose versions are the candidates.")] = "",
    licence: Annotated[str | None, Doc("SPDX id of the licence of the candidates.")] = None,
) -> Json:
    """Evaluate the candidates of another tool's session here. Secrets are removed first. Exits 1
    unless it is ready afterwards."""
    from api.operations.bodies import TrajectoryBody
    from api.operations.trajectories import accept_body, steps_of_session
    from api.strict_json import validated
    from skills.trajectories.sessions import read_session

    session = read_session(place, entry, path)
    for reason in session.left_out:
        note(f"left out: {reason}")
    if session.secrets:
        note(f"secrets removed: {session.secrets}")
    fields = {
        "problem": _problem(problem),
        "hardware": hardware,
        "actor": session.form,
        "licence": licence,
        "steps": [step.model_dump(exclude_defaults=True) for step in steps_of_session(session)],
    }
    row = accept_body(services, validated(TrajectoryBody, fields), "session")
    return _evaluated(services, row)


def _body(file: Path, problem: Path | None) -> Any:
    from api.operations.bodies import TrajectoryBody
    from api.strict_json import load_json, validated

    if file.stat().st_size > MAX_FILE:
        raise InvalidRequest(
            f"{file} is larger than {MAX_FILE:,} bytes", hint="Send fewer steps at a time."
        )
    raw = file.read_bytes()
    lines = [line for line in raw.splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].startswith(b"{") and lines[0].endswith(b"}"):
        fields: Any = {"lines": [load_json(line) for line in lines]}
    else:
        fields = load_json(raw)
    if problem is not None and isinstance(fields, dict):
        fields = {**fields, "problem": _problem(problem)}
    return validated(TrajectoryBody, fields)


def _problem(place: Path) -> Any:
    """The name of a built-in problem; else the texts that make the same problem."""
    from optimizer.evaluation.evaluate import declaration_of
    from optimizer.evaluation.problem.load import load_problem, shipped_problems

    if str(place) in shipped_problems():
        return str(place)
    problem = load_problem(place)
    toml = declaration_of(problem)
    return {"source": problem.source} | ({} if toml is None else {"toml": toml})


def _evaluated(services: Services, row: StoredTrajectory) -> Json:
    from api.services import evaluate_processes
    from skills.trajectories.queue import evaluate_now
    from skills.trajectories.reading import trajectory_row

    row = evaluate_now(services, row, evaluate_processes(), note)
    if row.state == "running":
        note(f"another process is evaluating it; `kernlore trajectories show {row.id}` has the end")
    return trajectory_row(row)


@command(app, text=_trajectory_text, failed=_is_not_ready)
def verify(services: Services, trajectory_id: TrajectoryId) -> Json:
    """Evaluate a trajectory that is not ready or was not timed. It is not ready where it failed, or
    where its hardware was not here, and not timed where the machine was too busy. Exits 1 unless it
    is ready afterwards."""
    from skills.trajectories.queue import requeue
    from skills.trajectories.reading import trajectory_store

    store = trajectory_store(services)
    store.expire()
    return _evaluated(services, requeue(services, store.find(trajectory_id)))


@command(app, text=pairs)
def export(
    services: Services,
    output: Output,
    shape: Annotated[str, Doc("Shape for TRL's trainers: sft, dpo or grpo.")],
    format: Annotated[str, Doc("File format: jsonl or parquet.")] = "jsonl",
    run: Annotated[
        list[str] | None, Doc("Export only this run or trajectory (id); repeat for more.")
    ] = None,
    trainable: Annotated[
        bool, Doc("Export only candidates that may be trained on; prints how many were left out.")
    ] = False,
    with_excerpts: Annotated[
        bool, Doc("Include the texts of uploads, and of skills that others wrote.")
    ] = False,
    accept_model: Annotated[
        list[str] | None, Doc("A model whose terms allow training on its output; repeat for more.")
    ] = None,
) -> Json:
    """Export candidates as training data. Each has state, action and reward; a manifest lists what
    the file contains."""
    from skills.training.export import ExportRequest, export_trajectories

    models = tuple(accept_model or ())
    request = ExportRequest(shape, format, tuple(run or ()), trainable, with_excerpts, models)
    manifest = export_trajectories(services, request, output)
    for reason, count in sorted(manifest["left_out"].items()):
        note(f"left out: {count} {reason}")
    return {name: manifest[name] for name in ("file", "rows", "candidates", "left_out")}
