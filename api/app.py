"""`create_app`: the HTTP application over the services of one data directory.

Nothing is opened before the application starts. The caller makes sure that only one process serves
a directory: the serve command takes the lock of `kb.data_dir` before it imports this module.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.resources import files
from typing import Any

import structlog
from fastapi import APIRouter, FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse
from fastapi.staticfiles import StaticFiles
from sqlalchemy.exc import SQLAlchemyError
from starlette.routing import Route

from api.http import errors
from api.http.admission import EXCHANGE_SECONDS, MINUTE, Admission, Limits
from api.http.authorisation import (
    Authorisation,
    FromWorkers,
    KnownCallers,
    Needs,
    SpreadConnections,
)
from api.http.bodies import BodyDeadline
from api.http.observability import Metrics, RequestLog
from api.http.routes import DESCRIPTION, TAGS, TITLE, describe, router_of
from api.mcp.mounted import PATH as MCP_PATH
from api.mcp.mounted import Mounted
from api.mcp.tools import TOOLS
from api.operations import operations
from api.services import (
    KNOWLEDGE_COMMAND,
    RUN_COMMAND,
    Background,
    Running,
    Services,
    evaluate_processes,
    open_services,
)
from api.web import documents, hardware, home, knowledge, retrieve, runs, skills
from api.web.home import refused_page
from api.web.pages import FORMS, HEADERS, PageRoute
from kb.catalog.evaluations import figures_of
from kb.catalog.keys import RequestCounts
from kb.errors import NotFound, Unavailable
from kb.settings import Settings, product_version
from optimizer.evaluation.queue import EvaluationQueue
from optimizer.search.runs.processes import ServiceRuns
from optimizer.toolchain_watch import ToolchainWatch
from skills.trajectories.queue import TrajectoryQueue

log = structlog.get_logger(__name__)

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]

_STATIC = "/docs-static"
FLUSH_SECONDS = 30.0


def create_app(
    settings: Settings, services: Services | None = None, lifespan: Lifespan | None = None
) -> FastAPI:
    """The application; it opens and closes the services with its lifespan.

    With the `services` of a command it answers requests and leaves the services open: it reads no
    documents, opens no vector index, and has no tools at /mcp.
    """
    metrics = Metrics()
    app = FastAPI(
        title=TITLE,
        version=product_version(),
        description=DESCRIPTION,
        openapi_tags=TAGS,
        docs_url=None,
        redoc_url=None,
        swagger_ui_oauth2_redirect_url=None,
        lifespan=lifespan or (_lifespan if services is None else _with_services),
    )
    app.state.settings = settings
    app.state.services = services
    app.state.metrics = metrics
    app.state.mcp = Mounted()
    app.openapi = describe(app)  # type: ignore[method-assign]
    app.state.limits = limits = Limits(settings)
    app.add_middleware(
        Authorisation,
        limits=limits,
        error_page=refused_page,
        needs=Needs({o.route: o for o in operations()} | FORMS, TOOLS),
        trusted=services is not None,  # the user of a command owns the data directory
    )
    app.add_middleware(KnownCallers, settings=settings)
    app.add_middleware(BodyDeadline, seconds=settings.body_seconds)
    app.add_middleware(RequestLog, metrics=metrics)  # it logs refusals too
    if settings.workers > 1:
        app.add_middleware(FromWorkers)
        app.add_middleware(SpreadConnections)
    errors.install(app)
    app.router.routes.extend(router_of(operations()).routes)
    app.add_api_route("/", start, include_in_schema=False)
    _add_docs(app)
    add_pages(app)
    app.router.routes.append(Route(MCP_PATH, app.state.mcp, include_in_schema=False))
    return app


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


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    settings: Settings = app.state.settings
    services = open_services(settings)
    background = Background(services)
    app.state.services = services
    services.metrics = app.state.metrics
    app.state.admission = Admission(settings)
    app.state.metrics.observe(background.readiness, lambda: figures_of(services.catalog))
    background.start()
    periodic = [asyncio.create_task(flush_uses(services))]
    if services.catalog.on_server or settings.workers > 1:
        periodic.append(asyncio.create_task(exchange_counts(services, app.state.limits)))
    try:
        async with app.state.mcp.open(app, settings), _queues(services, background):
            yield
    finally:
        for task in periodic:
            task.cancel()
        try:
            services.keys.flush()
        finally:
            background.stop()


@asynccontextmanager
async def _queues(services: Services, background: Background | None) -> AsyncIterator[None]:
    """Run the queues of evaluations, runs and trajectories while the services are open."""
    evaluations = EvaluationQueue(services, evaluate_processes())
    evaluations.open()
    runs = ServiceRuns(services, RUN_COMMAND)
    trajectories = TrajectoryQueue(services, evaluations)
    trajectories.wake()  # for those that an earlier service left unfinished
    services.running = Running(evaluations, runs, trajectories, background)
    watch = ToolchainWatch(services, KNOWLEDGE_COMMAND)
    if background is not None and services.settings.toolchain_checks:
        watch.open()
    try:
        yield
    finally:
        watch.close()
        trajectories.close()
        runs.close()
        evaluations.close()


async def flush_uses(services: Services) -> None:
    """Store the times of use of keys periodically instead of at each request."""
    while True:
        await asyncio.sleep(FLUSH_SECONDS)
        await run_in_threadpool(services.keys.flush)


async def exchange_counts(services: Services, limits: Limits) -> None:
    """Exchange request counts with the other replicas."""
    counts, failing = RequestCounts(services.catalog), False
    while True:
        await asyncio.sleep(EXCHANGE_SECONDS)
        own = limits.own()
        try:
            totals = await run_in_threadpool(counts.exchange, own, 2 * MINUTE)
        except (SQLAlchemyError, Unavailable) as error:
            limits.keep(own)
            if not failing:  # one line for each outage
                log.warning(
                    "rate limits count only the requests of this replica", reason=str(error)
                )
            failing = True
        else:
            limits.learn(totals, own)
            failing = False


@asynccontextmanager
async def _with_services(app: FastAPI) -> AsyncIterator[None]:
    """The lifespan with services of the caller, who closes them."""
    app.state.admission = Admission(app.state.settings)
    async with _queues(app.state.services, None):
        yield


def _add_docs(app: FastAPI) -> None:
    """The interactive description at /docs, from local files: machines may have no internet."""
    folder = files("fastapi_offline") / "static"
    app.mount(_STATIC, StaticFiles(directory=str(folder)), name="docs-static")

    @app.get("/docs", include_in_schema=False)
    def docs(request: Request) -> HTMLResponse:
        root = request.scope.get("root_path", "")
        answer = get_swagger_ui_html(
            openapi_url=f"{root}{app.openapi_url}",
            title=TITLE,
            swagger_js_url=f"{root}{_STATIC}/swagger-ui-bundle.js",
            swagger_css_url=f"{root}{_STATIC}/swagger-ui.css",
            swagger_favicon_url=f"{root}{_STATIC}/favicon.png",
            swagger_ui_parameters={"docExpansion": "list", "validatorUrl": None},
        )
        answer.headers.update(_docs_headers(bytes(answer.body)))
        return answer


def _docs_headers(page: bytes) -> dict[str, str]:
    """A policy that allows the inline script by its hash, and the styles that the bundle sets."""
    script = page.partition(b"<script>")[2].partition(b"</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script).digest()).decode()
    policy = HEADERS["Content-Security-Policy"]
    policy = policy.replace("script-src 'self'", f"script-src 'self' 'sha256-{digest}'")
    policy = policy.replace("style-src 'self'", "style-src 'self' 'unsafe-inline'")
    policy = policy.replace("img-src 'self'", "img-src 'self' data:; connect-src 'self'")
    return {**HEADERS, "Content-Security-Policy": policy}


def add_pages(app: FastAPI) -> None:
    """Serve the pages below /ui."""
    folder = files("api.web") / "static"
    app.mount("/ui/static", StaticFiles(directory=str(folder)), name="ui-static")
    for module in (home, hardware, retrieve, documents, skills, runs, knowledge):
        app.router.routes.extend(module.router.routes)
    app.router.routes.extend(hardware.facts_router.routes)
    app.router.routes.extend(_rest.routes)


_rest = APIRouter(route_class=PageRoute, include_in_schema=False)


@_rest.get("/ui/{rest:path}")
def unknown_page(rest: str) -> HTMLResponse:
    """Catch-all 404 page."""
    raise NotFound(f"no page /ui/{rest[:200]}", hint="The menu above leads to every page.")
