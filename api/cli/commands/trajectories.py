"""`kernlore trajectories`: searches of other optimizers, evaluated here; and training data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli.backends import opened
from api.cli.options import AsJson, DataDir
from api.cli.output import note, pairs, show, table
from kb.errors import InvalidRequest

if TYPE_CHECKING:
    from api.cli.backends.local import LocalTarget
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
HEADERS = ("id", "origin", "state", "problem", "hardware", "steps", "created_at")


@app.callback()
def group() -> None:
    """Searches of other optimizers, and training data."""


@app.command("list")
def list_(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List external trajectories and runs, newest first."""
    with opened(data_dir) as local:
        from skills.trajectories.reading import list_trajectories

        rows = list_trajectories(local.services, with_runs=True)
    show(rows, as_json, lambda listed: table(HEADERS, [[r[h] for h in HEADERS] for r in listed]))


@app.command("show")
def show_(identity: TrajectoryId, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show measured results beside the claimed ones. With --json, of every step."""
    with opened(data_dir) as local:
        from skills.trajectories.reading import show_trajectory

        trajectory = show_trajectory(local.services, identity)
    show(trajectory, as_json, _rendered)


@app.command("submit")
def submit(
    file: Annotated[
        Path,
        typer.Argument(
            help="JSON as POST /trajectories accepts it, or the trajectory.jsonl of an export."
        ),
    ],
    problem: Annotated[
        Path | None,
        typer.Option(help="Problem file, folder or name, where FILE does not contain it."),
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> int:
    """Evaluate every step of a trajectory here. Exits 1 unless it is ready afterwards."""
    body = _body(file, problem)
    with opened(data_dir) as local:
        from api.trajectory_parser import accept_body

        row = _evaluated(local, accept_body(local.services, body))
    return _report(row, as_json)


@app.command("verify")
def verify(identity: TrajectoryId, data_dir: DataDir = None, as_json: AsJson = False) -> int:
    """Evaluate a trajectory that is not ready or was not timed. It is not ready where it failed, or
    where its hardware was not here, and not timed where the machine was too busy. Exits 1 unless it
    is ready afterwards."""
    with opened(data_dir) as local:
        from skills.trajectories.queue import requeue
        from skills.trajectories.reading import trajectory_store

        store = trajectory_store(local.services)
        store.expire()
        row = _evaluated(local, requeue(local.services, store.find(identity)))
    return _report(row, as_json)


@app.command("export")
def export(
    output: Annotated[Path, typer.Option("--output", "-o", help="A new or empty folder.")],
    shape: Annotated[str, typer.Option(help="Shape for TRL's trainers: sft, dpo or grpo.")],
    format: Annotated[str, typer.Option(help="File format: jsonl or parquet.")] = "jsonl",
    run: Annotated[
        list[str] | None,
        typer.Option("--run", help="Export only this run or trajectory (id); repeat for more."),
    ] = None,
    trainable: Annotated[
        bool,
        typer.Option(
            "--trainable", help="Export only what may be trained on; prints what was left out."
        ),
    ] = False,
    with_excerpts: Annotated[
        bool,
        typer.Option(
            "--with-excerpts", help="Include the texts of uploads, and of skills that others wrote."
        ),
    ] = False,
    accept_model: Annotated[
        list[str] | None,
        typer.Option(help="A model whose terms allow training on its output; repeat for more."),
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Export candidates as training data. Each has state, action and reward; a manifest lists what
    the file contains."""
    with opened(data_dir) as local:
        from skills.training.export import ExportRequest, export_trajectories

        request = ExportRequest(
            shape,
            format,
            tuple(run or ()),
            trainable,
            with_excerpts,
            tuple(accept_model or ()),
        )
        manifest = export_trajectories(local.services, request, output)
    for reason, count in sorted(manifest["left_out"].items()):
        note(f"left out: {count} {reason}")
    answer = {name: manifest[name] for name in ("file", "rows", "candidates", "left_out")}
    show(answer, as_json, pairs)


def _body(file: Path, problem: Path | None) -> Any:
    from api.bodies import TrajectoryBody, load_json, validated

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
    """The name of a built-in problem as it is; else the texts that make the same problem."""
    from optimizer.evaluation.evaluate import declaration_of
    from optimizer.evaluation.problem.load import load_problem, shipped_problems

    if str(place) in shipped_problems():
        return str(place)
    problem = load_problem(place)
    toml = declaration_of(problem)
    return {"source": problem.source} | ({} if toml is None else {"toml": toml})


def _evaluated(local: LocalTarget, row: StoredTrajectory) -> StoredTrajectory:
    from api.services import evaluate_processes
    from skills.trajectories.queue import evaluate_now

    row = evaluate_now(local.services, row, evaluate_processes(), note)
    if row.state == "running":
        note(f"another process is evaluating it; `kernlore trajectories show {row.id}` has the end")
    return row


def _report(row: StoredTrajectory, as_json: bool) -> int:
    from skills.trajectories.reading import trajectory_row

    show(trajectory_row(row), as_json, _rendered)
    return 0 if row.state == "ready" else 1


def _rendered(answer: Any) -> str:
    verdicts = answer.get("verdicts") or []
    record = answer.get("trajectory") or {}
    head = {n: v for n, v in answer.items() if n not in ("verdicts", "trajectory")}
    if record and not verdicts:
        head |= {"problem": record["subject"]["name"], "hardware": record["hardware"]}
        head["steps"] = len(record["steps"])
    rows = [
        [
            verdict["step"],
            verdict["validity"],
            _figure(verdict["speedup"]),
            verdict["claimed_speedup"],
            "; ".join([*verdict["flags"], *filter(None, [verdict["message"]])]),
        ]
        for verdict in verdicts
    ]
    lines = [pairs(head)]
    if rows:
        lines += ["", table(("step", "validity", "speed-up here", "claimed", "remarks"), rows)]
    return "\n".join(lines)


def _figure(speedup: Any) -> str:
    if speedup is None:
        return "-"
    return f"{speedup['value']:.3f} [{speedup['low']:.3f}, {speedup['high']:.3f}]"
