"""`kernlore trajectories`: what others told, evaluated here; and everything as training data."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli.backends import opened
from api.cli.options import AsJson, DataDir
from api.cli.output import note, pairs, show, table
from kb.errors import InvalidRequest
from kb.ids import new_id

if TYPE_CHECKING:
    from api.services import Services
    from kb.catalog.search.trajectories import StoredTrajectory

app = typer.Typer(help="Trajectories: of others, evaluated here, and all of them out.")
TrajectoryId = Annotated[
    str, typer.Argument(metavar="ID", help="Of `kernlore trajectories list`, or of a run.")
]
MAX_FILE = 64 * 1024 * 1024
HEADERS = ("id", "origin", "state", "problem", "hardware", "steps", "created_at")


@app.callback()
def group() -> None:
    """Trajectories: of others, evaluated here, and all of them out."""


@app.command("list")
def list_trajectories(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Told ones and runs, each the newest first."""
    with opened(data_dir) as local:
        from optimizer.search.runs.run_store import run_store
        from skills.trajectories.accept import trajectory_store
        from skills.trajectories.reading import trajectory_row

        rows = [trajectory_row(row) for row in trajectory_store(local.services).latest()]
        for run in run_store(local.services).latest():
            told = {"id": run.id, "origin": "run", "state": run.state, "problem": run.problem}
            rows.append({**told, "hardware": run.hardware, "steps": None, "created_at": None})
    show(rows, as_json, lambda found: table(HEADERS, [[r[h] for h in HEADERS] for r in found]))


@app.command("show")
def show_trajectory(
    identity: TrajectoryId, data_dir: DataDir = None, as_json: AsJson = False
) -> None:
    """What was measured of it, beside what was claimed; --json has every step."""
    with opened(data_dir) as local:
        from skills.trajectories.accept import trajectory_store
        from skills.trajectories.reading import trajectory, trajectory_row

        services = local.services
        if identity.startswith("run_"):
            told = {"id": identity, "trajectory": trajectory(services, identity).as_json()}
        else:
            row = trajectory_store(services).find(identity)
            ready = row.state == "ready"
            record = trajectory(services, identity).as_json() if ready else None
            told = trajectory_row(row, trajectory=record)
    show(told, as_json, _rendered)


@app.command("submit")
def submit(
    file: Annotated[
        Path, typer.Argument(help="JSON as POST /trajectories takes it, or an export's lines.")
    ],
    problem: Annotated[
        Path | None, typer.Option(help="Problem file, folder or name, where FILE has none.")
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> int:
    """Evaluate every step here; exit code 1 unless it is ready afterwards."""
    body = _body(file, problem)
    with opened(data_dir) as local:
        from api.http.trajectory_parser import accept_body

        row = _verified(local.services, accept_body(local.services, body))
    return _told(row, as_json)


@app.command("verify")
def verify(identity: TrajectoryId, data_dir: DataDir = None, as_json: AsJson = False) -> int:
    """Evaluate one that is not ready, now that its hardware is here; not what another process is
    evaluating already."""
    with opened(data_dir) as local:
        from skills.trajectories.accept import requeue, trajectory_store

        store = trajectory_store(local.services)
        store.expire()
        row = _verified(local.services, requeue(local.services, store.find(identity)))
    return _told(row, as_json)


@app.command("export")
def export(
    output: Annotated[Path, typer.Option("--output", "-o", help="A new or empty folder.")],
    shape: Annotated[str, typer.Option(help="sft, dpo or grpo, as TRL's trainers load them.")],
    format: Annotated[str, typer.Option(help="jsonl or parquet.")] = "jsonl",
    run: Annotated[
        list[str] | None, typer.Option("--run", help="Only this run or trajectory; repeat.")
    ] = None,
    trainable: Annotated[
        bool, typer.Option("--trainable", help="Only what may be trained on; says what was not.")
    ] = False,
    with_excerpts: Annotated[
        bool, typer.Option("--with-excerpts", help="Texts of uploads and of others' skills too.")
    ] = False,
    accept_model: Annotated[
        list[str] | None,
        typer.Option(help="Model whose terms let its answers be trained on; repeat."),
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """State, action and reward of every candidate as training data, with a manifest."""
    with opened(data_dir) as local:
        from skills.training.export import ExportRequest, export_trajectories

        asked = ExportRequest(
            shape,
            format,
            tuple(run or ()),
            trainable,
            with_excerpts,
            tuple(accept_model or ()),
        )
        manifest = export_trajectories(local.services, asked, output)
    for reason, count in sorted(manifest["left_out"].items()):
        note(f"left out: {count} {reason}")
    told = {name: manifest[name] for name in ("file", "rows", "candidates")}
    show({**told, "left_out": manifest["left_out"]}, as_json, pairs)


def _body(file: Path, problem: Path | None) -> Any:
    from api.http.bodies import load_json, validated
    from api.http.trajectory_bodies import TrajectoryBody

    if file.stat().st_size > MAX_FILE:
        raise InvalidRequest(
            f"{file} is larger than {MAX_FILE:,} bytes", hint="Send fewer steps at a time."
        )
    raw = file.read_bytes()
    lines = [line for line in raw.splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].startswith(b"{") and lines[0].endswith(b"}"):
        told: Any = {"lines": [load_json(line) for line in lines]}
    else:
        told = load_json(raw)
    if problem is not None and isinstance(told, dict):
        told = {**told, "problem": _problem(problem)}
    return validated(TrajectoryBody, told)


def _problem(given: Path) -> Any:
    """A shipped name as it is; else the texts that make the same problem."""
    from optimizer.evaluation.evaluate import declaration_of
    from optimizer.evaluation.problem.load import load_problem, shipped_problems

    if str(given) in shipped_problems():
        return str(given)
    found = load_problem(given)
    toml = declaration_of(found)
    return {"source": found.source} if toml is None else {"source": found.source, "toml": toml}


def _verified(services: Services, row: StoredTrajectory) -> StoredTrajectory:
    from api.services import EVALUATE_COMMAND
    from optimizer.evaluation.queue import EvaluationQueue
    from skills.trajectories.reevaluate import Reevaluation
    from skills.trajectories.reevaluate import verify as carry_out

    if row.state == "queued":
        queue = EvaluationQueue(services, EVALUATE_COMMAND)
        try:
            owner = new_id(f"command{os.getpid()}")
            row = carry_out(Reevaluation(services, queue, report=note), row, owner)
        finally:
            queue.close()
    if row.state == "running":
        note(f"another process is evaluating it; `kernlore trajectories show {row.id}` has the end")
    return row


def _told(row: StoredTrajectory, as_json: bool) -> int:
    from skills.trajectories.reading import trajectory_row

    show(trajectory_row(row), as_json, _rendered)
    return 0 if row.state == "ready" else 1


def _rendered(told: Any) -> str:
    verdicts = told.get("verdicts") or []
    record = told.get("trajectory") or {}
    head = {n: v for n, v in told.items() if n not in ("verdicts", "trajectory")}
    if record and not verdicts:
        head |= {"problem": record["subject"]["name"], "hardware": record["hardware"]}
        head["steps"] = len(record["steps"])
    rows = [
        [
            v["step"],
            v["validity"],
            _figure(v["speedup"]),
            v["claimed_speedup"],
            "; ".join(v["flags"]),
        ]
        for v in verdicts
    ]
    lines = [pairs(head)]
    if rows:
        lines += ["", table(("step", "found", "speed-up here", "claimed", "flags"), rows)]
    return "\n".join(lines)


def _figure(speedup: Any) -> str:
    if speedup is None:
        return "-"
    return f"{speedup['value']:.3f} [{speedup['low']:.3f}, {speedup['high']:.3f}]"
