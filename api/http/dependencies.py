"""What routes depend on: the services, what the caller may see, and a check of the query."""

from __future__ import annotations

import ipaddress
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Request

from api.http.bodies import check_text
from api.http.errors import ForeignPage
from api.http.observability import Metrics
from api.services import Background, Services
from kb.errors import InvalidRequest, nearest
from kb.scope import ALL_ACCESS
from kb.settings import Settings

_MAX_PARAMETER = 20_000


async def _services(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


async def _background(request: Request) -> Background:
    background: Background = request.app.state.background
    return background


async def _metrics(request: Request) -> Metrics:
    metrics: Metrics = request.app.state.metrics
    return metrics


async def access_scope(request: Request) -> str:
    """What the caller may see. Authorisation happens here and nowhere else. Raises ForeignPage."""
    # The service listens on loopback without a key; a page in the user's browser could reach it.
    _check_name(request)
    if request.method not in ("GET", "HEAD", "OPTIONS") and _from_another_site(request):
        raise ForeignPage(
            "a page of another site may not change anything here",
            hint="Use the service's own pages, or a client outside of the browser.",
        )
    return ALL_ACCESS


def _check_name(request: Request) -> None:
    """A page can make its own name mean 127.0.0.1; then the browser sees no foreign site, but the
    name is still the page's. Raises ForeignPage.
    """
    settings: Settings = request.app.state.settings
    name = request.url.hostname or ""
    if request.client is None or not is_loopback(request.client.host) or is_loopback(name):
        return
    allowed = [part.strip() for part in settings.allowed_hosts.split(",")]
    if name not in allowed and name != settings.host:
        raise ForeignPage(
            f"this service was called as {name[:200]!r}, which is not its name",
            hint="Call it as 127.0.0.1 or localhost. Behind a proxy, set"
            " KERNLORE_ALLOWED_HOSTS to the names that it is reached by.",
        )


def _from_another_site(request: Request) -> bool:
    if request.headers.get("sec-fetch-site") in ("cross-site", "same-site"):
        return True
    origin = request.headers.get("origin")
    return origin is not None and urlsplit(origin).netloc != request.headers.get("host")


def is_loopback(name: str) -> bool:
    """Whether a name or an address means this machine alone."""
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


async def known_parameters(request: Request) -> None:
    """Refuse mistyped parameters: `?hardwares=h100` would otherwise answer for any chip."""
    template = getattr(request.scope.get("route"), "path", "")
    operation = request.app.openapi()["paths"].get(template, {}).get(request.method.lower())
    if operation is None:
        return
    known = [p["name"] for p in operation.get("parameters", ()) if p["in"] == "query"]
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


Parts = Annotated[Services, Depends(_services)]
Threads = Annotated[Background, Depends(_background)]
Counters = Annotated[Metrics, Depends(_metrics)]
Access = Annotated[str, Depends(access_scope)]
