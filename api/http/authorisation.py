"""Authentication and authorisation of every request: routes, pages, static files and mounts.

A store without keys allows everything; its service then listens on loopback. Host names and origins
are checked before (`api.http.authorisation`). Routes get the access of the caller from
`api.http.routes`, mounts from `caller_of`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import structlog
from anyio import CapacityLimiter, to_thread
from fastapi import FastAPI, Request, Response
from fastapi.routing import iter_route_contexts
from sqlalchemy.exc import DBAPIError
from starlette.datastructures import Headers
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.routing import Mount
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.http.admission import Kind, Limits
from api.http.bodies import SIGNER, read_limited
from api.http.errors import ForeignPage, UnknownHost, known_fault, respond
from api.operations import SAFE, Operation
from api.services import Services
from kb.addresses import is_address, is_every, listed_names, own_names
from kb.audit import AuditEntry
from kb.catalog.hardware import HardwareRegistry
from kb.catalog.keys import ROLES, Key, Role, may
from kb.errors import Forbidden, KernloreError, Unauthorized, UnknownHardware
from kb.scope import ALL_ACCESS, ANY, AccessScope
from kb.settings import Settings

COOKIE = "kernlore_session"
_CALLER = "kernlore.caller"
_ID = re.compile(rb"\b[a-z]{2,5}_[0-9a-f]{16}\b")
KEY_LOOKUPS = 16  # concurrent look-ups of keys on a database server
_SEARCHED_BYTES = 65_536  # of a response body, for ids

log = structlog.get_logger(__name__)

# The page for an error, with the status of the error.
ErrorPage = Callable[[Request, KernloreError], Response]


@dataclass(frozen=True)
class Caller:
    """`who` is the id of a key, or an address if the store has no keys."""

    who: str
    role: Role | None  # None: public routes only
    access: AccessScope
    with_key: bool
    by_cookie: bool = False
    name: str = ""  # name of the key


def caller_of(scope: Mapping[str, Any]) -> Caller:
    """The caller of a request. Raises KeyError without the middleware."""
    caller: Caller = scope[_CALLER]
    return caller


def is_session(scope: Mapping[str, Any]) -> bool:
    """Whether a request was authenticated by a session of the pages."""
    caller: Caller | None = scope.get(_CALLER)
    return caller is not None and caller.by_cookie


class Authorisation:
    """Middleware: 401 without a valid key if the store has keys, 403 for an insufficient role, 429
    over the rate limits. Writes the audit log. With `trusted` no key is needed: every caller owns
    the data directory."""

    def __init__(
        self,
        app: ASGIApp,
        limits: Limits,
        error_page: ErrorPage,
        needs: Needs,
        trusted: bool = False,
    ) -> None:
        self._app = app
        self._needs = needs
        self._trusted = trusted
        self._limits = limits
        self._error_page = error_page
        self._routes: list[ServedRoute] = []  # read at the first request
        self._lookups: CapacityLimiter | None = None  # created in its event loop

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)
        else:  # no route accepts another protocol
            await send({"type": "websocket.close", "code": 1008})

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._routes = self._routes or routes_of(scope["app"])
        template = template_of(self._routes, scope)
        need = self._needs.of_route(scope["method"], template)
        if need.role is None and not need.changes:  # public
            scope[_CALLER] = _unknown(scope)
            await self._app(scope, receive, send)
            return
        services: Services = scope["app"].state.services
        caller: Caller | None = None
        audited = _Audited(services, send, scope)
        try:
            caller = await self._identify(services, scope, need)
            if is_tools(template) and scope["method"] == "POST":
                need, receive = await self._of_message(services, scope, receive)
            check(caller, need, scope)
        except (KernloreError, DBAPIError) as error:
            answer = self._refusal(scope, known_fault(error))
            await answer(scope, receive, audited.of(need, caller or _unknown(scope)))
            return
        scope[_CALLER], scope[SIGNER] = caller, caller.name
        await self._app(scope, receive, audited.of(need, caller))

    async def _identify(self, services: Services, scope: Scope, need: Need) -> Caller:
        """The caller, counted against its limits. Raises Unauthorized and TooManyRequests.

        SQLite reads one row, which no writer blocks, on the event loop. A database server is
        queried from a thread of a separate limiter, so that refusals do not wait for routes.
        """
        address = _address(scope)
        headers = Headers(scope=scope)
        if self._trusted:
            known = _NO_KEYS
        elif services.catalog.on_server:
            self._lookups = self._lookups or CapacityLimiter(KEY_LOOKUPS)
            known = await to_thread.run_sync(_known, services, headers, limiter=self._lookups)
        else:
            known = _known(services, headers)
        if not known.closed:
            self._limits.take(address, need.kind, with_key=False)
            return Caller(address, "admin", ALL_ACCESS, False)
        key = known.key
        if key is None:
            self._limits.take(address, need.kind, with_key=True)
            if need.role is None:
                return _unknown(scope)
            raise _no_key(headers)
        self._limits.take(key.id, need.kind, with_key=True)
        services.keys.used(key)
        name = key.name or key.id
        return Caller(key.id, key.role, known.access, True, known.by_cookie, name)

    async def _of_message(
        self, services: Services, scope: Scope, receive: Receive
    ) -> tuple[Need, Receive]:
        """The requirements of a message to the tools, and a channel that replays its body."""
        limit = services.settings.max_body_bytes
        request = Request(scope, receive)
        body = await read_limited(request, limit, "message", "KERNLORE_MAX_BODY_BYTES")
        return self._needs.of_tools(body), _again(body, receive)

    def _refusal(self, scope: Scope, error: KernloreError) -> Response:
        root = scope.get("root_path", "")
        path = scope["path"].removeprefix(root)
        if path == "/docs" or path == "/ui" or path.startswith("/ui/"):
            answer = self._error_page(Request(scope), error)
        else:
            answer = respond(error)
        if isinstance(error, Unauthorized):
            answer.headers["WWW-Authenticate"] = "Bearer"
        seconds = error.details.get("retry_after_seconds")
        if seconds:
            answer.headers["Retry-After"] = str(seconds)
        return answer


def check(caller: Caller, need: Need, scope: Scope) -> None:
    """Raise Forbidden where the caller's key does not allow the request."""
    if need.role is None:
        return
    if caller.role is None or not may(caller.role, need.role):
        raise Forbidden(
            f"{need.action} needs the role {need.role}, and this key has the role {caller.role}",
            hint=f"Use a key with the role {need.role}: `kernlore keys create --role {need.role}`.",
            details={"role": caller.role, "needed": need.role},
        )
    if caller.access.restricted and (need.whole_store or need.runs_code):
        why = "covers the whole store" if need.whole_store else "runs code on this machine"
        raise Forbidden(
            f"{need.action} {why}; this key is only for {', '.join(sorted(caller.access.own))}",
            hint="Use a key that is not restricted to hardware.",
        )
    if caller.by_cookie and scope["method"] not in SAFE and "origin" not in Headers(scope=scope):
        # Browsers send an origin with every form, and foreign ones were refused before.
        raise Forbidden(
            "a session of the pages was used without the pages' origin",
            hint="Use the page's own form; programs send `Authorization: Bearer KEY`.",
        )


def access_of(key: Key, registry: HardwareRegistry) -> AccessScope:
    """The access of a key: its hardware, the families above it, and what applies to any chip."""
    if not key.hardware:
        return ALL_ACCESS
    visible = {ANY, *key.hardware}
    for hardware_id in key.hardware:
        try:
            visible.update(registry.lineage(hardware_id))
        except UnknownHardware:  # removed since the key was created
            continue
    return AccessScope(hardware=frozenset(visible), own=frozenset(key.hardware))


class ServedRoute(NamedTuple):
    """A route of an application, or a mount, which accepts every method (`methods` None)."""

    template: str
    methods: frozenset[str] | None
    path: re.Pattern[str]


def routes_of(app: FastAPI) -> list[ServedRoute]:
    """Every route and mount, in the order of matching."""
    return [
        ServedRoute(
            context.path or "",
            None if isinstance(context.original_route, Mount) else frozenset(context.methods or ()),
            context.path_regex,
        )
        for context in iter_route_contexts(app.routes)
    ]


def template_of(routes: Sequence[ServedRoute], scope: Scope) -> str:
    """The path of the route or mount that matches a request; empty for an unknown path."""
    path = scope["path"].removeprefix(scope.get("root_path", ""))
    partly = ""
    for route in routes:
        if route.path.match(path):
            if route.methods is None or scope["method"] in route.methods:
                return route.template
            partly = partly or route.template
    return partly


_NOTHING = AccessScope(hardware=frozenset())


def _unknown(scope: Scope) -> Caller:
    """A caller without a valid key."""
    return Caller(_address(scope), None, _NOTHING, False)


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else "unknown"


class _RequestKey(NamedTuple):
    """The look-up of a request's key. `closed`: the store has keys. `access` is that of the key;
    `by_cookie`: it was found by a session of the pages."""

    closed: bool
    key: Key | None
    access: AccessScope
    by_cookie: bool


_NO_KEYS = _RequestKey(False, None, ALL_ACCESS, False)


def _known(services: Services, headers: Headers) -> _RequestKey:
    given = headers.get("authorization")
    if given is not None:
        scheme, _, secret = given.partition(" ")
        bearer = scheme.lower() == "bearer"
        found = services.keys.look_up(secret.strip() if bearer else None)
    else:
        found = services.keys.look_up(session=session_of(headers) or None)
    access = _NOTHING if found.key is None else access_of(found.key, services.registry)
    return _RequestKey(found.closed, found.key, access, given is None)


def session_of(headers: Headers) -> str:
    """The secret of the session cookie; empty without one."""
    try:
        morsel = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return morsel.value if morsel is not None else ""


def _no_key(headers: Headers) -> Unauthorized:
    given = "authorization" in headers or session_of(headers)
    return Unauthorized(
        "this key is not valid: unknown, expired or revoked" if given else "no key was sent",
        hint="Send `Authorization: Bearer KEY`; commands and the client take the key from"
        " KERNLORE_KEY. `kernlore keys create` makes one on the machine of the service.",
    )


def _again(body: bytes, receive: Receive) -> Receive:
    """A channel that replays the body, then continues the connection."""
    sent = False

    async def replay() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


class _Audited:
    """Writes the audit entry of a change before its response is sent."""

    def __init__(self, services: Services, send: Send, scope: Scope) -> None:
        self._services = services
        self._send = send
        self._scope = scope

    def of(self, need: Need, caller: Caller) -> Send:
        """The channel for the response; the original one for a request that changes nothing."""
        if not need.changes:
            return self._send
        start: Message | None = None

        async def send(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                start = message
                return
            if start is not None:
                first, start = start, None
                self._write(need, caller, first, bytes(message.get("body", b"")))
                await self._send(first)
            await self._send(message)

        return send

    def _write(self, need: Need, caller: Caller, start: Message, body: bytes) -> None:
        headers = Headers(raw=start["headers"])
        request_id = structlog.contextvars.get_contextvars().get("request_id", "")
        subjects = [str(value) for value in self._scope.get("path_params", {}).values()]
        if headers.get("content-type", "").startswith("application/json"):
            subjects += [found.decode() for found in _ID.findall(body[:_SEARCHED_BYTES])]
        subjects += [found.decode() for found in _ID.findall(headers.get("location", "").encode())]
        entry = AuditEntry(
            who=caller.who,
            role=caller.role or "",
            action=need.action,
            outcome=str(start["status"]),
            subjects=tuple(dict.fromkeys(subjects)),
            request_id=request_id,
        )
        try:
            self._services.audit.append(entry)
        except OSError:  # a full disk must not fail a change that was made
            log.exception("the audit log cannot be written", action=need.action, who=caller.who)


# -- the role that a request needs: for routes, forms of pages, and tools of agents
#
# Routes, forms and tools need the role of the operation that they carry out. Other GET routes need
# a reader; any other route needs an admin.


MCP = "/mcp"
LOGIN, LOGOUT = "POST /ui/login", "POST /ui/logout"
STATIC = "GET /ui/static"
# Pages that need no key.
OPEN_PAGES = frozenset({"GET /ui/login", LOGIN, LOGOUT, STATIC})


def is_tools(template: str) -> bool:
    """Whether a route is that of the agents' tools."""
    return template == MCP or template.startswith(f"{MCP}/")


@dataclass(frozen=True)
class Need:
    """The requirements of a request. `role` is None for public routes. `action` names the request
    in the audit log, which records requests with `changes`."""

    action: str
    role: Role | None
    changes: bool
    kind: Kind = "request"
    whole_store: bool = False
    runs_code: bool = False


class Needs:
    """Requirements of requests. `operations` are by route, forms included; `tools` by name."""

    def __init__(
        self,
        operations: Mapping[str, Operation[Any, Any]],
        tools: Mapping[str, Operation[Any, Any]],
    ) -> None:
        self._operations = operations
        self._tools = tools

    def of_route(self, method: str, template: str) -> Need:
        """The requirements of a request to a route. `template` is the path of the route, or of the
        mount above it; empty for an unknown path."""
        route = f"{method} {template or '(no route)'}"
        read = f"{'GET' if method == 'HEAD' else method} {template}"
        if read in OPEN_PAGES:
            kind: Kind = "free" if read == STATIC else "request"
            return Need(route, None, route in (LOGIN, LOGOUT), kind)
        operation = self._operations.get(read)
        if operation is None:
            safe = method in SAFE
            return Need(route, "reader" if safe else "admin", not safe)
        return Need(
            action=route,
            role=None if operation.public else operation.role,
            changes=operation.changes,
            kind="upload" if operation.upload else "request",
            whole_store=operation.whole_store,
            runs_code=_restricted(operation),
        )

    def of_tools(self, body: bytes) -> Need:
        """The requirements of a message of the Model Context Protocol: the strictest of its tool
        calls. Tools call the routes with the key of their caller, which limits what they see."""
        try:
            message: Any = json.loads(body)
        except (ValueError, RecursionError):  # the protocol refuses it
            return Need("mcp", "reader", False)
        called = [_tool(one) for one in (message if isinstance(message, list) else [message])]
        names = sorted({name for name in called if name is not None})
        known = [self._tools[name] for name in names if name in self._tools]
        roles: list[Role] = [operation.role for operation in known]
        if len(known) < len(names):
            roles.append("admin")
        return Need(
            action=f"mcp {','.join(names)}".strip(),
            role=max(roles, key=ROLES.index, default="reader"),
            changes=len(known) < len(names) or any(operation.changes for operation in known),
            kind="upload" if any(operation.upload for operation in known) else "request",
            runs_code=any(_restricted(operation) for operation in known),
        )


def _restricted(operation: Operation[Any, Any]) -> bool:
    """Whether keys that are restricted to hardware are refused, because code that runs here can
    read all data. Keys of admins are never restricted."""
    return operation.runs_code and operation.role != "admin"


def _tool(message: Any) -> str | None:
    if not isinstance(message, dict) or message.get("method") != "tools/call":
        return None
    given = message.get("params")
    name = given.get("name") if isinstance(given, dict) else None
    return str(name)[:80]


# -- host name and origin of a request
#
# A service may have no keys, and yet a page in the user's browser must not use it. A page could
# call it by its own host name that resolves to this machine (DNS rebinding), or by a cross-site
# request, which the browser marks with the page's origin.

_KNOWN = "kernlore.host_is_known"
CLIENT_HEADER = b"x-kernlore-client"  # client of a request that a worker passes on
WORKER_PATHS = ("/retrieve",)  # answered by workers


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


class SpreadConnections:
    """Middleware of every process of a service with workers: closes the connection of an answered
    retrieval while the process computes others. The client's next connection goes to a process that
    waits for one, so that clients with open connections do not share one process while another
    is idle."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in WORKER_PATHS:
            await self._app(scope, receive, send)
            return

        async def spread(message: Message) -> None:
            if message["type"] == "http.response.start" and scope["app"].state.admission.busy:
                message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
            await send(message)

        await self._app(scope, receive, spread)
