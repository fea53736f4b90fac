"""Trajectories: searches of other optimizers, evaluated here before they are used."""

from __future__ import annotations

from functools import partial
from typing import Any

from api.operations import Media, operation
from api.operations.bodies import TrajectoryBody
from api.services import Services
from api.strict_json import load_json
from kb.errors import InvalidRequest
from kb.plain import plain
from skills.trajectories import reading
from skills.trajectories.reading import ListedTrajectories, ListedTrajectory

declared = partial(operation, tag="trajectories")


def _read_lines(text: str, _: None) -> Any:
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                rows.append(load_json(line.encode()))
            except InvalidRequest as error:
                raise InvalidRequest(f"line {number}: {error.message}", hint=error.hint) from None
    return {"lines": rows}


@declared(
    "POST /trajectories",
    "Send the search of another optimizer",
    role="writer",
    upload=True,
    status=202,
    runs_code=True,
    media=(
        Media(
            ("application/x-ndjson", "application/jsonl", "application/jsonlines"),
            "trajectory.jsonl of an export",
            "",
            read=_read_lines,
        ),
    ),
    example={
        "problem": "map_id",
        "hardware": "x86-64",
        "language": "cpp",
        "actor": "my-optimizer",
        "steps": [{"parent": 0, "source": "// a kernel", "plan": "binary search"}],
    },
)
def submit_trajectory(services: Services, trajectory: TrajectoryBody) -> ListedTrajectory:
    """Every step is evaluated here; what the sender claims is stored beside the measurements, and
    not used. `state` is queued, running, ready or failed, and unverified where the hardware is
    not in this machine. Sending the same trajectory again gives the same id, and evaluates it again
    if it was not ready."""
    from api.trajectory_parser import accept_body

    queue = services.running.trajectories
    queue.check_room()
    row = accept_body(services, trajectory)
    if row.state == "queued":
        queue.wake()
    accepted: ListedTrajectory = plain(reading.trajectory_row(row))
    return accepted


@declared("GET /trajectories", "List external trajectories, newest first")
def list_trajectories(services: Services) -> ListedTrajectories:
    """Each trajectory with its state, problem, hardware and number of steps."""
    return {"trajectories": reading.list_trajectories(services)}


show_trajectory = declared(
    "GET /trajectories/{trajectory_id}", "Show how far a trajectory is, and its measurements"
)(reading.show_trajectory)
