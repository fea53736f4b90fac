"""Checks of the host name and the origin of every request, before any route.

A service may have no keys, and yet a page in the user's browser must not use it. A page could call
it by its own host name that resolves to this machine (DNS rebinding), or by a cross-site
request, which the browser marks with the page's origin.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.http.errors import ForeignPage, UnknownHost, respond
from kb.addresses import is_address, is_every, listed_names, own_names
from kb.settings import Settings

_KNOWN = "kernlore.host_is_known"
CLIENT_HEADER = b"x-kernlore-client"  # client of a request that a worker passes on


class KnownCallers:
    """Middleware: refuses requests for foreign host names, and requests of pages of other sites."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._given = listed_names(settings.allowed_hosts)
        # Used for its decision only; its refusal would be plain text.
        self._names = TrustedHostMiddleware(
            _mark_known, [*own_names(settings.host), *self._given], www_redirect=False
        )
        # DNS rebinding needs a name, so every address is accepted; a container does not know the
        # addresses of its host.
        self._any_address = is_every(settings.host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            if not await self._is_known(scope, headers.get("host", ""), receive):
                await respond(_unknown_host(headers))(scope, receive, send)
                return
            if self._is_foreign(scope["method"], headers):
                await respond(_FOREIGN_PAGE)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    async def _is_known(self, scope: Scope, host: str, receive: Receive) -> bool:
        if self._any_address and is_address(_name_of(f"//{host}")):
            return True
        await self._names(scope, receive, _discard)
        return bool(scope.pop(_KNOWN, False))

    def _is_foreign(self, method: str, headers: Headers) -> bool:
        origin = headers.get("origin")
        if origin is not None:
            # Behind a proxy, the host name of the request differs from that of the page.
            same = origin.partition("://")[2] == headers.get("host")
            return not same and _name_of(origin) not in self._given
        if headers.get("sec-fetch-site") not in ("cross-site", "same-site"):
            return False
        # Links from pages of other sites are allowed.
        followed = headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")
        return method not in ("GET", "HEAD") or followed != ("navigate", "document")


_FOREIGN_PAGE = ForeignPage(
    "a page of another site may not use this service",
    hint="Use the service's own pages, or a client outside of the browser. Where both are behind a"
    " proxy, name it in KERNLORE_ALLOWED_HOSTS.",
)


def _unknown_host(headers: Headers) -> UnknownHost:
    host = headers.get("host", "")[:200]
    return UnknownHost(
        f"this service was called as {host!r}, which is not its name",
        hint="Call it as 127.0.0.1 or localhost, or by the address that it listens on. Name a proxy"
        " or other names of this machine with `kernlore serve --allowed-host NAME` or"
        " KERNLORE_ALLOWED_HOSTS.",
        details={"host": host},
    )


def _name_of(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


async def _mark_known(scope: Scope, _: Receive, __: Send) -> None:
    scope[_KNOWN] = True


async def _discard(_: Message) -> None:
    """Drop the response of TrustedHostMiddleware."""


class FromWorkers:
    """Middleware of the service: restores the client address of requests that workers forward."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = dict(scope["headers"])
            if scope.get("client") is None and CLIENT_HEADER in headers:
                host, _, port = headers[CLIENT_HEADER].decode().rpartition(":")
                scope = {**scope, "client": (host, int(port))}
            rest = [pair for pair in scope["headers"] if pair[0] != CLIENT_HEADER]
            scope = {**scope, "headers": rest}
        await self._app(scope, receive, send)
