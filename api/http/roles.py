"""The role that a request needs: for routes, forms of pages, and tools of agents.

Routes, forms and tools need the role of the operation that they carry out. Other GET routes need a
reader; any other route needs an admin.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from api.operations import SAFE, Operation
from kb.catalog.keys import ROLES, Role

Kind = Literal["request", "upload", "free"]  # how the rate limits count a request

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
    in the audit log, which records requests with `changes`.
    """

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
        mount above it; empty for an unknown path.
        """
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
        calls. Tools call the routes with the key of their caller, which limits what they see.
        """
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
    read all data. Keys of admins are never restricted.
    """
    return operation.runs_code and operation.role != "admin"


def _tool(message: Any) -> str | None:
    if not isinstance(message, dict) or message.get("method") != "tools/call":
        return None
    given = message.get("params")
    name = given.get("name") if isinstance(given, dict) else None
    return str(name)[:80]
