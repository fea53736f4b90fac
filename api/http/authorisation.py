"""Who calls, and whether they may: in front of every route, page, static file and mount.

Without a key in the store everyone may do everything, as the service then listens on loopback.
Which names and pages may call at all is decided before (`api.http.callers`); what a caller may see
is a value that routes get from `api.http.dependencies`, and mounts from `caller_of`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Any, NamedTuple

import structlog
from anyio import CapacityLimiter, to_thread
from fastapi import FastAPI, Request, Response
from fastapi.routing import iter_route_contexts
from sqlalchemy.exc import DBAPIError
from starlette.datastructures import Headers
from starlette.routing import Mount
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.http.bodies import SIGNER, read_limited
from api.http.errors import known_fault, respond
from api.http.limits import Limits
from api.http.roles import SAFE, Need, is_tools, need_of, need_of_tools
from api.services import Services
from kb.audit import AuditEntry
from kb.catalog.hardware import HardwareRegistry
from kb.catalog.keys import Key, Role, may
from kb.errors import Forbidden, KernloreError, Unauthorized, UnknownHardware
from kb.scope import ALL_ACCESS, ANY, AccessScope

COOKIE = "kernlore_session"
_CALLER = "kernlore.caller"
_ID = re.compile(rb"\b[a-z]{2,5}_[0-9a-f]{16}\b")
ASKING_AT_ONCE = 16  # questions to a catalog's server about keys
_MOST_READ = 65_536  # bytes of an answer that are looked through for ids

log = structlog.get_logger(__name__)

# A page that says what is wrong with a request; the status is the error's.
ErrorPage = Callable[[Request, KernloreError], Response]


@dataclass(frozen=True)
class Caller:
    """`who` is the id of a key, or an address where there are no keys."""

    who: str
    role: Role | None  # None: nothing but what is open to everyone
    access: AccessScope
    with_key: bool
    by_cookie: bool = False
    name: str = ""  # of the key


def caller_of(scope: Mapping[str, Any]) -> Caller:
    """Who sent the request that has this scope. Fails where the middleware was not in front."""
    caller: Caller = scope[_CALLER]
    return caller


def is_session(scope: Mapping[str, Any]) -> bool:
    """Whether a request belongs to a session of the pages; False where nobody was recognised."""
    caller: Caller | None = scope.get(_CALLER)
    return caller is not None and caller.by_cookie


class Authorisation:
    """Middleware: 401 without a valid key where there are keys, 403 for a role that is too low, 429
    over the limits. Writes the audit log. `trusted` says that whoever asks owns the data directory,
    so that no key is needed.
    """

    def __init__(
        self,
        app: ASGIApp,
        limits: Limits,
        error_page: ErrorPage,
        trusted: bool = False,
    ) -> None:
        self._app = app
        self._trusted = trusted
        self._limits = limits
        self._error_page = error_page
        self._routes: list[Route] = []  # known once the application is whole
        self._asking: CapacityLimiter | None = None  # made within the loop that it belongs to

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)
        else:  # no route takes another protocol
            await send({"type": "websocket.close", "code": 1008})

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._routes = self._routes or routes_of(scope["app"])
        template = template_of(self._routes, scope)
        need = need_of(scope["method"], template)
        if need.role is None and not need.changes:  # open to everyone, whoever it is
            scope[_CALLER] = _unknown(scope)
            await self._app(scope, receive, send)
            return
        services: Services = scope["app"].state.services
        caller: Caller | None = None
        audited = _Audited(services, send, scope)
        try:
            caller = await self._identify(services, scope, need)
            if is_tools(template) and scope["method"] == "POST":
                need, receive = await _of_message(services, scope, receive)
            check(caller, need, scope)
        except (KernloreError, DBAPIError) as error:
            answer = self._refusal(scope, known_fault(error))
            await answer(scope, receive, audited.of(need, caller or _unknown(scope)))
            return
        scope[_CALLER], scope[SIGNER] = caller, caller.name
        await self._app(scope, receive, audited.of(need, caller))

    async def _identify(self, services: Services, scope: Scope, need: Need) -> Caller:
        """The caller, counted against its limits. Raises Unauthorized and TooManyRequests.

        In a file the look-up is one row that no writer holds up, so it stays on the loop. A server
        is asked from a thread; there are some for this alone, else a refusal would wait for routes.
        """
        address = _address(scope)
        headers = Headers(scope=scope)
        if self._trusted:
            known = _NO_KEYS
        elif services.catalog.on_server:
            self._asking = self._asking or CapacityLimiter(ASKING_AT_ONCE)
            known = await to_thread.run_sync(_known, services, headers, limiter=self._asking)
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
        why = "tells about the whole store" if need.whole_store else "runs code on this machine"
        raise Forbidden(
            f"{need.action} {why}; this key is for {', '.join(sorted(caller.access.own))} alone",
            hint="Use a key that is not restricted to hardware.",
        )
    if caller.by_cookie and scope["method"] not in SAFE and "origin" not in Headers(scope=scope):
        # Browsers send one with every form, and a foreign one was refused before. What has none is
        # no form of ours.
        raise Forbidden(
            "a session of the pages was used without the pages' origin",
            hint="Use the page's own form; programs send `Authorization: Bearer KEY`.",
        )


def access_of(key: Key, registry: HardwareRegistry) -> AccessScope:
    """What a key may see: its hardware, the families above, and what is about none."""
    if not key.hardware:
        return ALL_ACCESS
    visible = {ANY, *key.hardware}
    for hardware_id in key.hardware:
        try:
            visible.update(registry.lineage(hardware_id))
        except UnknownHardware:  # it was registered when the key was made
            continue
    return AccessScope(hardware=frozenset(visible), own=frozenset(key.hardware))


class Route(NamedTuple):
    """A route of an application, or a mount, which takes every method."""

    template: str
    methods: frozenset[str] | None
    path: re.Pattern[str]


def routes_of(app: FastAPI) -> list[Route]:
    """Everything that answers, in the order in which it is tried."""
    return [
        Route(
            context.path or "",
            None if isinstance(context.original_route, Mount) else frozenset(context.methods or ()),
            context.path_regex,
        )
        for context in iter_route_contexts(app.routes)
    ]


def template_of(routes: Sequence[Route], scope: Scope) -> str:
    """The path of the route that a request will reach, or of the mount; empty where there is
    none.
    """
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
    """Whoever has no valid key."""
    return Caller(_address(scope), None, _NOTHING, False)


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else "unknown"


class _Known(NamedTuple):
    """What the store says of a request: whether it has keys, the request's, what that may see, and
    whether it came as a session of the pages.
    """

    closed: bool
    key: Key | None
    access: AccessScope
    by_cookie: bool


_NO_KEYS = _Known(False, None, ALL_ACCESS, False)


def _known(services: Services, headers: Headers) -> _Known:
    given = headers.get("authorization")
    if given is not None:
        scheme, _, secret = given.partition(" ")
        bearer = scheme.lower() == "bearer"
        door = services.keys.at_door(secret.strip() if bearer else None)
    else:
        door = services.keys.at_door(session=session_of(headers) or None)
    access = _NOTHING if door.key is None else access_of(door.key, services.registry)
    return _Known(door.closed, door.key, access, given is None)


def session_of(headers: Headers) -> str:
    """The secret of the session that a browser sends; empty without one."""
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


async def _of_message(services: Services, scope: Scope, receive: Receive) -> tuple[Need, Receive]:
    """What a message to the tools of agents needs, and from where to receive it again."""
    limit = services.settings.max_body_bytes
    request = Request(scope, receive)
    body = await read_limited(request, limit, "message", "KERNLORE_MAX_BODY_BYTES")
    return need_of_tools(body), _again(body, receive)


def _again(body: bytes, receive: Receive) -> Receive:
    """The body for whoever comes next, then what the connection says."""
    sent = False

    async def replay() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


class _Audited:
    """Writes the line of a change before its answer leaves."""

    def __init__(self, services: Services, send: Send, scope: Scope) -> None:
        self._services = services
        self._send = send
        self._scope = scope

    def of(self, need: Need, caller: Caller) -> Send:
        """What to send with; the same as before where nothing is changed."""
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
            subjects += [found.decode() for found in _ID.findall(body[:_MOST_READ])]
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
        except OSError:  # a full disk; the change itself was made or refused already
            log.exception("the audit log cannot be written", action=need.action, who=caller.who)
