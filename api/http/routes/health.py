"""Health, readiness, metrics, and where to start."""

from __future__ import annotations

from typing import Any

from fastapi import Response
from fastapi.responses import JSONResponse

from api.http.dependencies import Counters, Threads, api_router
from api.http.observability import CONTENT_TYPE
from api.services import Readiness
from kb.catalog.schema import TOO_NEW
from kb.plain import plain
from kb.settings import product_version

router = api_router("service")


@router.get("/", include_in_schema=False)
def start() -> dict[str, Any]:
    """Name, version and three requests to try."""
    return {
        "service": "kernlore",
        "version": product_version(),
        "pages": "/ui",
        "docs": "/docs",
        "try": [
            "GET /retrieve?signal=memory_bound&hardware=h100",
            "POST /retrieve with the raw log of a failed compile as text/plain",
            "POST /documents with the manual of your chip in the field `file`",
        ],
    }


@router.get("/healthz", summary="Check that the service is alive")
def healthz() -> dict[str, str]:
    """Answers as soon as the process accepts requests."""
    return {"status": "alive", "version": product_version()}


@router.get(
    "/readyz",
    summary="Show how far the service is",
    response_model=Readiness,
    responses={503: {"model": Readiness, "description": "No request can be answered yet."}},
)
def readyz(background: Threads) -> JSONResponse:
    """503 until requests can be answered by word search, then 200; 503 again once a newer Kernlore
    has changed the catalog into one that this one must not write to. `ready` is true once every
    passage has its vector too."""
    state = background.readiness()
    waiting = state.jobs.get("queued", 0) + state.jobs.get("running", 0)
    answers = state.knowledge_loaded and (state.passages > 0 or not waiting)
    answers = answers and state.catalog != TOO_NEW
    return JSONResponse(plain(state), status_code=200 if answers else 503)


@router.get("/metrics", summary="Prometheus metrics", response_class=Response)
def metrics(counters: Counters) -> Response:
    """Counters in the Prometheus text format."""
    return Response(counters.text(), media_type=CONTENT_TYPE)
