"""The role that a request needs, by its route: routes, forms of pages and tools of agents.

Routes have the role of their operation, forms and tools that of the operation that they carry out.
What only reads needs a reader; a route that is unknown here and may change something needs an
admin.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from api.operations import SAFE, Operation
from kb.catalog.keys import ROLES, Role

Kind = Literal["request", "upload", "free"]  # what a request counts as for the limits

MCP = "/mcp"
LOGIN, LOGOUT = "POST /ui/login", "POST /ui/logout"
STATIC = "GET /ui/static"
# Pages for everyone, also without a key.
OPEN_PAGES = frozenset({"GET /ui/login", LOGIN, LOGOUT, STATIC})


def is_tools(template: str) -> bool:
    """Whether a route is that of the tools of agents."""
    return template == MCP or template.startswith(f"{MCP}/")


@dataclass(frozen=True)
class Need:
    """What a request needs. `role` None: nothing. `action` names it in the audit log, which is
    written for what `changes` something.
    """

    action: str
    role: Role | None
    changes: bool
    kind: Kind = "request"
    whole_store: bool = False
    runs_code: bool = False


class Needs:
    """The needs of requests. `operations` are by route, those of forms too; `tools` by name."""

    def __init__(
        self,
        operations: Mapping[str, Operation[Any, Any]],
        tools: Mapping[str, Operation[Any, Any]],
    ) -> None:
        self._operations = operations
        self._tools = tools

    def of_route(self, method: str, template: str) -> Need:
        """The needs of a request to a route. `template` is the path of the route, or of the mount
        that it falls under; empty where there is neither.
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
        """The needs of a message of the Model Context Protocol: the most that one of its calls
        needs. A tool calls the routes with the key of its caller, so it sees what that may see.
        """
        try:
            message: Any = json.loads(body)
        except (ValueError, RecursionError):  # refused by the protocol itself
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
    """Whether keys that are restricted to some hardware are refused: code that runs here could
    read everything. For admins, who are never restricted, nothing changes.
    """
    return operation.runs_code and operation.role != "admin"


def _tool(message: Any) -> str | None:
    if not isinstance(message, dict) or message.get("method") != "tools/call":
        return None
    given = message.get("params")
    name = given.get("name") if isinstance(given, dict) else None
    return str(name)[:80]
