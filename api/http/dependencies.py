"""Dependencies of routes: the services, the caller's access, and checks of the request."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

from fastapi import Depends, Request, params
from fastapi.dependencies.utils import get_flat_params
from fastapi.routing import APIRoute

from api.http.authorisation import caller_of
from api.services import Services
from api.strict_json import check_text
from kb.addresses import is_loopback
from kb.errors import InvalidRequest, KernloreError, nearest
from kb.scope import AccessScope
from kb.settings import Settings

_MAX_PARAMETER = 20_000


async def _services(request: Request) -> Services:
    """The services restricted to the access of the caller. None before the application has started,
    when only public operations answer.
    """
    services: Services = request.app.state.services
    return services and services.seen_by(caller_of(request.scope).access)


async def access_scope(request: Request) -> AccessScope:
    """The hardware that the caller may see. Middleware has already authorised the request
    (`api.http.callers`, `api.http.authorisation`).
    """
    return caller_of(request.scope).access


class EvaluationForbidden(KernloreError):
    """Running code was requested from another machine."""

    code, status = "evaluation_forbidden", 403


def from_this_machine(request: Request) -> None:
    """Refuse requests that may come from another machine: the service listens on another address,
    or a proxy forwards requests under another name. Raises EvaluationForbidden.
    """
    settings: Settings = request.app.state.settings
    if settings.evaluate_over_http:
        return
    for what, name in (
        ("listens on", settings.host),
        ("was called as", request.url.hostname or ""),
    ):
        if not is_loopback(name):
            raise EvaluationForbidden(
                f"this service {what} {name[:200]!r}, and an evaluation runs the code that is sent",
                hint="Evaluate on its own machine through 127.0.0.1, or set"
                " KERNLORE_EVALUATE_OVER_HTTP=true where everyone who reaches it may run code.",
            )


async def known_parameters(request: Request) -> None:
    """Refuse unknown and repeated query parameters: `?hardwares=h100` would otherwise answer for
    any chip, and the second of two values would be ignored.
    """
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
                details={"known": list(known)},
            )
        check_text(value, name)
        if len(value) > _MAX_PARAMETER:
            raise InvalidRequest(
                f"{name} has {len(value):,} characters; the limit is {_MAX_PARAMETER:,}",
                hint="Send long text in the body of a POST.",
            )
    for name, count in Counter(name for name, _ in request.query_params.multi_items()).items():
        if count > 1 and not known[name]:
            more = f" Give further {name}s as {name}s=a,b." if f"{name}s" in known else ""
            raise InvalidRequest(f"{name} is given {count} times", hint=f"Give {name} once.{more}")


def query_parameters(route: APIRoute) -> dict[str, bool]:
    """The query parameters of a route, and whether each may be repeated. The description of the
    interface has them too, but takes a third of a second to build.
    """
    return {
        field.alias: field.field_info.annotation is not None
        and "list" in str(field.field_info.annotation)
        for field in get_flat_params(route.dependant)
        if not isinstance(field.field_info, params.Path | params.Header | params.Cookie)
        and getattr(field.field_info, "include_in_schema", True)
    }


Parts = Annotated[Services, Depends(_services)]
Access = Annotated[AccessScope, Depends(access_scope)]
