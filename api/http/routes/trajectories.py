"""Trajectories over HTTP: searches of other optimizers, evaluated here before they are used.

Sending one runs its code on this machine, so the same callers may do it as for /evaluations.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request

from api.bodies import TrajectoryBody, load_json, validated
from api.http.bodies import is_json, media_type, read_limited
from api.http.dependencies import Parts, api_router
from api.http.routes.evaluations import from_this_machine
from kb.errors import InvalidRequest, UnsupportedFormat
from kb.plain import plain
from skills.trajectories.queue import TrajectoryQueue

LINES = ("application/x-ndjson", "application/jsonl", "application/jsonlines")


def _queue(request: Request) -> TrajectoryQueue:
    queue: TrajectoryQueue = request.app.state.trajectories
    return queue


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Within that of the evaluations, whose queue it uses."""
    app.state.trajectories = TrajectoryQueue(app.state.services, app.state.evaluations)
    app.state.trajectories.wake()  # an earlier service may have left some
    try:
        yield
    finally:
        app.state.trajectories.close()


async def _read(request: Request) -> tuple[bytes, bool]:
    """The body, and whether it is lines."""
    kind = media_type(request)
    if not is_json(kind) and kind not in LINES:
        raise UnsupportedFormat(
            f"{kind or 'a body without content type'} where JSON belongs",
            hint="Send JSON as `application/json`, or an export's lines as `application/x-ndjson`.",
        )
    limit = request.app.state.settings.max_body_bytes
    return await read_limited(request, limit, "body", "KERNLORE_MAX_BODY_BYTES"), kind in LINES


def _body(read: Annotated[tuple[bytes, bool], Depends(_read)]) -> TrajectoryBody:
    raw, lines = read
    if not lines:
        return validated(TrajectoryBody, load_json(raw))
    rows = []
    for number, line in enumerate(raw.splitlines(), 1):
        if line.strip():
            try:
                rows.append(load_json(line))
            except InvalidRequest as error:
                raise InvalidRequest(f"line {number}: {error.message}", hint=error.hint) from None
    return validated(TrajectoryBody, {"lines": rows})


def _inlined(schema: Any, known: Mapping[str, Any]) -> Any:
    """The schema with its definitions in place of the references to them."""
    if isinstance(schema, dict):
        name = str(schema.get("$ref", "")).rpartition("/")[2]
        if name:
            return _inlined(known[name], known)
        return {key: _inlined(value, known) for key, value in schema.items() if key != "$defs"}
    if isinstance(schema, list):
        return [_inlined(value, known) for value in schema]
    return schema


def _request() -> dict[str, Any]:
    schema = TrajectoryBody.model_json_schema()
    content: dict[str, Any] = {
        "application/json": {"schema": _inlined(schema, schema.get("$defs", {}))},
        LINES[0]: {"schema": {"type": "string", "description": "trajectory.jsonl of an export"}},
    }
    return {"requestBody": {"required": True, "content": content}}


router = api_router("trajectories")
Queue = Annotated[TrajectoryQueue, Depends(_queue)]


@router.post(
    "/trajectories",
    summary="Send the search of another optimizer",
    status_code=202,
    dependencies=[Depends(from_this_machine)],
    openapi_extra=_request(),
)
def submit(
    parts: Parts, queue: Queue, body: Annotated[TrajectoryBody, Depends(_body)]
) -> dict[str, Any]:
    """Every step is evaluated here; what the sender claims is stored beside the measurements, and
    not used. `state` is queued, running, ready or failed, and unverified where the hardware is
    not in this machine. Sending the same trajectory again gives the same id, and evaluates it again
    if it was not ready."""
    from api.trajectory_parser import accept_body

    queue.check_room()
    row = accept_body(parts, body)
    if row.state == "queued":
        queue.wake()
    from skills.trajectories.reading import trajectory_row

    answer: dict[str, Any] = plain(trajectory_row(row))
    return answer


@router.get("/trajectories", summary="List external trajectories, newest first")
def list_trajectories(parts: Parts) -> dict[str, Any]:
    """Each trajectory with its state, problem, hardware and number of steps."""
    from skills.trajectories.reading import list_trajectories

    return {"trajectories": list_trajectories(parts)}


@router.get(
    "/trajectories/{trajectory_id}", summary="Show how far a trajectory is, and its measurements"
)
def show(trajectory_id: str, parts: Parts) -> dict[str, Any]:
    """`trajectory` is present once the state is ready. The id of a run may be given too."""
    from skills.trajectories.reading import show_trajectory

    return show_trajectory(parts, trajectory_id)
