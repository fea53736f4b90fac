"""All pages together, their static files, and the page for a wrong address."""

from __future__ import annotations

from importlib.resources import files

from fastapi import APIRouter, FastAPI
from fastapi.responses import HTMLResponse
from fastapi.staticfiles import StaticFiles

from api.web import documents, hardware, home, knowledge, login, retrieve, runs, skills
from api.web.pages import PageRoute
from kb.errors import NotFound


def add_to(app: FastAPI) -> None:
    """Serve the pages below /ui."""
    folder = files("api.web") / "static"
    app.mount("/ui/static", StaticFiles(directory=str(folder)), name="ui-static")
    for module in (login, home, hardware, retrieve, documents, skills, runs, knowledge):
        app.router.routes.extend(module.router.routes)
    app.router.routes.extend(hardware.facts_router.routes)
    app.router.routes.extend(_rest.routes)


_rest = APIRouter(route_class=PageRoute, include_in_schema=False)


@_rest.get("/ui/{rest:path}")
def unknown_page(rest: str) -> HTMLResponse:
    """Catch-all 404 page."""
    raise NotFound(f"no page /ui/{rest[:200]}", hint="The menu above leads to every page.")
