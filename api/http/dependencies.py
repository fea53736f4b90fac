"""What routes depend on: the services, what the caller may see, and a check of the query."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request, params
from fastapi.dependencies.utils import get_flat_params
from fastapi.routing import APIRoute

from api.http.authorisation import caller_of
from api.http.bodies import check_text
from api.http.observability import Metrics
from api.http.openapi import ERRORS
from api.services import Background, Services
from kb.errors import InvalidRequest, nearest
from kb.scope import AccessScope

_MAX_PARAMETER = 20_000


async def _services(request: Request) -> Services:
    """As the caller may see and change them."""
    services: Services = request.app.state.services
    return services.seen_by(caller_of(request.scope).access)


async def _background(request: Request) -> Background:
    background: Background = request.app.state.background
    return background


async def _metrics(request: Request) -> Metrics:
    metrics: Metrics = request.app.state.metrics
    return metrics


async def access_scope(request: Request) -> AccessScope:
    """What the caller may see; whether it may call at all was decided in front of the routes
    (`api.http.callers`, `api.http.authorisation`).
    """
    return caller_of(request.scope).access


async def known_parameters(request: Request) -> None:
    """Refuse mistyped parameters: `?hardwares=h100` would otherwise answer for any chip."""
    route = request.scope.get("route")
    if not request.query_params or not isinstance(route, APIRoute) or not route.include_in_schema:
        return
    known = query_parameters(route)
    for name, value in request.query_params.multi_items():
        if name not in known:
            near = nearest(name[:80], known)
            allowed = f"Known here: {', '.join(known)}." if known else "None is known here."
            raise InvalidRequest(
                f"unknown query parameter {name[:80]!r}",
                hint=(f"Did you mean {near[0]}? " if near else "") + allowed,
                details={"known": known},
            )
        check_text(value, name)
        if len(value) > _MAX_PARAMETER:
            raise InvalidRequest(
                f"{name} has {len(value):,} characters; the limit is {_MAX_PARAMETER:,}",
                hint="Send long text in the body of a POST.",
            )


def query_parameters(route: APIRoute) -> list[str]:
    """The names that the interface description gives for a route: without it, which takes a third
    of a second to build, as long as nobody reads it.
    """
    described = (route.openapi_extra or {}).get("parameters", ())
    named = [parameter["name"] for parameter in described if parameter["in"] == "query"]
    own = [
        field.alias
        for field in get_flat_params(route.dependant)
        if not isinstance(field.field_info, params.Path | params.Header | params.Cookie)
        and getattr(field.field_info, "include_in_schema", True)
    ]
    return own + named


Parts = Annotated[Services, Depends(_services)]
Threads = Annotated[Background, Depends(_background)]
Counters = Annotated[Metrics, Depends(_metrics)]
Access = Annotated[AccessScope, Depends(access_scope)]


def api_router(tag: str) -> APIRouter:
    """Routes of the interface, below one heading of its description.

    What all of them depend on is given here and not when the application takes them in: FastAPI
    would then build each route's parameters a second time, within the first request.
    """
    checks = [Depends(access_scope), Depends(known_parameters)]
    return APIRouter(tags=[tag], responses=ERRORS, dependencies=checks)
