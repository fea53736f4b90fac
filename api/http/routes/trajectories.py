"""Trajectories over HTTP: what another optimizer tells of its search, evaluated here before it is
believed.

Telling one runs its code on this machine, so the same callers may do it as for /evaluations.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Request

from api.http.bodies import is_json, load_json, media_type, read_limited, validated
from api.http.dependencies import Parts
from api.http.routes.evaluations import from_this_machine
from api.http.trajectory_bodies import TrajectoryBody
from kb.errors import InvalidRequest, UnsupportedFormat
from kb.plain import plain
from skills.trajectories.queue import TrajectoryQueue

if TYPE_CHECKING:
    from kb.catalog.search.trajectories import StoredTrajectory

LINES = ("application/x-ndjson", "application/jsonl", "application/jsonlines")


def _queue(request: Request) -> TrajectoryQueue:
    told: TrajectoryQueue = request.app.state.trajectories
    return told


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
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


def _told(read: Annotated[tuple[bytes, bool], Depends(_read)]) -> TrajectoryBody:
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
    """The schema with its own definitions put where they are referred to."""
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


router = APIRouter(tags=["trajectories"], lifespan=_lifespan)
Queue = Annotated[TrajectoryQueue, Depends(_queue)]


@router.post(
    "/trajectories",
    summary="Tell of a search",
    status_code=202,
    dependencies=[Depends(from_this_machine)],
    openapi_extra=_request(),
)
def submit(
    parts: Parts, queue: Queue, body: Annotated[TrajectoryBody, Depends(_told)]
) -> dict[str, Any]:
    """Every step is evaluated here; what the teller claims is kept beside it and used for nothing.
    `state`: queued, running, ready or failed; unverified where its hardware is not here. The same
    trajectory again is the same id, and is tried again where it was not ready."""

    queue.check_room()
    from api.http.trajectory_parser import accept_body

    row = accept_body(parts, body)
    if row.state == "queued":
        queue.wake()
    return _shown(row)


@router.get("/trajectories", summary="Every told trajectory, the newest first")
def list_trajectories(parts: Parts) -> dict[str, Any]:
    from skills.trajectories.accept import trajectory_store

    return {"trajectories": [_shown(row) for row in trajectory_store(parts).latest()]}


@router.get("/trajectories/{trajectory_id}", summary="How far it is, and what was measured")
def show(trajectory_id: str, parts: Parts) -> dict[str, Any]:
    """`trajectory` is there once it is ready. The id of a run is an id too."""
    from skills.trajectories.accept import trajectory_store
    from skills.trajectories.reading import trajectory

    if trajectory_id.startswith("run_"):
        found = trajectory(parts, trajectory_id)
        told: dict[str, Any] = plain({"id": trajectory_id, "trajectory": found})
        return told
    row = trajectory_store(parts).find(trajectory_id)
    ready = row.state == "ready"
    return _shown(row, trajectory=trajectory(parts, row.id) if ready else None)


def _shown(row: StoredTrajectory, **more: Any) -> dict[str, Any]:
    from skills.trajectories.reading import trajectory_row

    answer: dict[str, Any] = plain(trajectory_row(row, **more))
    return answer
