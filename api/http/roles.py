"""Which role a request needs, by its route: one table for routes, pages and tools of agents.

What only reads needs a reader. What is not in the table and may change something needs an admin, so
that what somebody forgets to declare is closed; a test names every such route.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from kb.catalog.keys import ROLES, Role

Kind = Literal["request", "upload", "free"]  # what a request counts as for the limits

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
LOGIN, LOGOUT = "POST /ui/login", "POST /ui/logout"
# For everyone, also without a key. What watches the process learns that it is alive, no more.
OPEN = frozenset({"GET /healthz", "GET /ui/login", LOGIN, LOGOUT, "GET /ui/static"})
# They count the whole store, other people's hardware included.
WHOLE_STORE = frozenset({"GET /metrics", "GET /readyz"})
# Requests with a body that change nothing but the log of answers.
READS = frozenset({"POST /retrieve", "POST /ui/retrieve"})
UPLOADS = frozenset({"POST /documents", "POST /ui/upload", "POST /skills", "POST /trajectories"})

NEEDED: Mapping[str, Role] = {
    **dict.fromkeys(READS, "reader"),
    "POST /retrievals/{retrieval_id}/outcome": "reader",
    # What comes in, and how it was read.
    "POST /documents": "writer",
    "PATCH /passages/{passage_id}": "writer",
    "PATCH /symbols/{symbol_id}": "writer",
    "DELETE /documents/{document_id}/corrections/{correction_id}": "writer",
    "POST /jobs/{job_id}/retry": "writer",
    "POST /hardware": "writer",
    "POST /skills": "writer",
    "POST /skills/{name}/revisions": "writer",
    "POST /trajectories": "writer",
    "POST /ui/upload": "writer",
    "POST /ui/passages/{passage_id}": "writer",
    "POST /ui/documents/{document_id}/corrections/{correction_id}/drop": "writer",
    "POST /ui/jobs/{job_id}/retry": "writer",
    "POST /ui/hardware": "writer",
    "POST /ui/hardware/{hardware_id}/description": "writer",
    "POST /ui/symbols/{symbol_id}": "writer",
    "POST /ui/skills/{name}/revise": "writer",
    # What counts of it.
    "PATCH /facts/{fact_id}": "curator",
    "PATCH /hardware/{hardware_id}/facts": "curator",
    "PATCH /skills/{name}": "curator",
    "POST /runs/{run_id}/nodes/{number}/review": "curator",
    "POST /ui/hardware/{hardware_id}/facts": "curator",
    "POST /ui/recipes/{recipe_id}": "curator",
    "POST /ui/skills/{name}": "curator",
    # What is lost for ever, and what runs code on this machine.
    "DELETE /documents/{document_id}": "admin",
    "DELETE /hardware/{hardware_id}": "admin",
    "POST /ui/documents/{document_id}/delete": "admin",
    "POST /ui/hardware/{hardware_id}/remove": "admin",
    "POST /evaluations": "admin",
    "POST /runs": "admin",
    "POST /runs/{run_id}/cancel": "admin",
    "POST /runs/{run_id}/candidates": "admin",
    "POST /ui/runs": "admin",
    "POST /ui/runs/{run_id}/cancel": "admin",
    "POST /ui/hardware/{hardware_id}/check": "admin",
}
# Whoever is restricted to some hardware may not have code run, which could read everything.
RUNS_CODE = frozenset({"POST /trajectories"})

MCP = "/mcp"
# Tools of agents, by the same rules. A tool asks the routes with its caller's key, so it sees what
# the caller may see. Every other message of the protocol needs a reader.
TOOLS: Mapping[str, Role] = {
    "retrieve_context": "reader",
    "search_manual": "reader",
    "get_section": "reader",
    "lookup_symbol": "reader",
    "list_signals_and_hardware": "reader",
    "next_candidate_context": "reader",
    "report_outcome": "reader",
    "submit_trajectory": "writer",
    "evaluate_candidate": "admin",
    "submit_candidate": "admin",
}
_QUIET_TOOLS = frozenset(
    {
        "retrieve_context",
        "search_manual",
        "get_section",
        "lookup_symbol",
        "list_signals_and_hardware",
        "next_candidate_context",
    }
)
_CODE_TOOLS = frozenset({"submit_trajectory"})


def is_tools(template: str) -> bool:
    """Whether a route is that of the tools of agents."""
    return template == MCP or template.startswith(f"{MCP}/")


@dataclass(frozen=True)
class Need:
    """What a request needs, and what it is. `role` None: nothing. `action` names it in the audit
    log, which is kept of what `changes` something.
    """

    action: str
    role: Role | None
    changes: bool
    kind: Kind = "request"
    whole_store: bool = False
    runs_code: bool = False


def need_of(method: str, template: str) -> Need:
    """What a request to a route needs. `template` is the path of the route, or of the mount that
    it falls under; empty where there is neither.
    """
    route = f"{method} {template or '(no route)'}"
    read = "GET" if method == "HEAD" else method
    if f"{read} {template}" in OPEN:
        static = template.endswith("/static")
        return Need(route, None, route in (LOGIN, LOGOUT), "free" if static else "request")
    safe = method in SAFE
    return Need(
        action=route,
        role="reader" if safe else NEEDED.get(route, "admin"),
        changes=not safe and route not in READS,
        kind="upload" if route in UPLOADS else "request",
        whole_store=f"{read} {template}" in WHOLE_STORE,
        runs_code=route in RUNS_CODE,
    )


def need_of_tools(body: bytes) -> Need:
    """What a message of the Model Context Protocol needs: the most that one of its calls does."""
    try:
        sent: Any = json.loads(body)
    except (ValueError, RecursionError):  # refused by the protocol itself
        return Need("mcp", "reader", False)
    called = [_tool(message) for message in (sent if isinstance(sent, list) else [sent])]
    tools = sorted({name for name in called if name is not None})
    roles = [TOOLS.get(name, "admin") for name in tools]
    return Need(
        action=f"mcp {','.join(tools)}".strip(),
        role=max(roles, key=ROLES.index, default="reader"),
        changes=not _QUIET_TOOLS.issuperset(tools),
        kind="upload" if "submit_trajectory" in tools else "request",
        runs_code=not _CODE_TOOLS.isdisjoint(tools),
    )


def _tool(message: Any) -> str | None:
    if not isinstance(message, dict) or message.get("method") != "tools/call":
        return None
    given = message.get("params")
    name = given.get("name") if isinstance(given, dict) else None
    return str(name)[:80]
