"""The SDK's client, as a coding agent uses it, for synchronous tests."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from anyio.from_thread import BlockingPortal, start_blocking_portal
from jsonschema import Draft202012Validator
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.types import CallToolResult

from tests.api.cli_process import ROOT

TOOLS = (
    "retrieve_context",
    "search_manual",
    "get_section",
    "lookup_symbol",
    "list_signals_and_hardware",
    "report_outcome",
    "evaluate_candidate",
    "next_candidate_context",
    "submit_candidate",
    "start_run",
    "list_runs",
    "cancel_run",
    "submit_trajectory",
    "register_hardware",
    "upload_document",
    "list_facts",
    "decide_facts",
    "show_coverage",
)


class Agent:
    """A connected client. Every result of a tool is validated against the tool's schema."""

    def __init__(self, portal: BlockingPortal, client: Client) -> None:
        self._portal = portal
        self.client = client
        self.tools = self.ask("list_tools").tools
        self._schemas = {tool.name: tool.output_schema for tool in self.tools}

    def ask(self, method: str, *arguments: Any) -> Any:
        """The result of a client method."""
        return self._portal.call(getattr(self.client, method), *arguments)

    def call(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        """The structured result of a successful tool call."""
        result: CallToolResult = self.ask("call_tool", tool, arguments)
        (content,) = result.content
        assert content.type == "text" and not result.is_error, content
        structured: dict[str, Any] = result.structured_content
        Draft202012Validator(self._schemas[tool]).validate(structured)
        assert json.loads(content.text) == structured
        return structured

    def refused(self, tool: str, /, **arguments: Any) -> str:
        """The message of a failed tool call."""
        result: CallToolResult = self.ask("call_tool", tool, arguments)
        (content,) = result.content
        assert result.is_error and content.type == "text"
        return content.text


@contextmanager
def over_http(url: str, mode: str = "auto") -> Iterator[Agent]:
    """An agent at /mcp of a service. `mode`: as in the client, `legacy` for the old handshake."""
    with start_blocking_portal() as portal:
        client = Client(f"{url}/mcp", mode=mode, raise_exceptions=True)
        with portal.wrap_async_context_manager(client):
            yield Agent(portal, client)


@contextmanager
def over_stdio(*options: str | Path, environment: dict[str, str] | None = None) -> Iterator[Agent]:
    """An agent that has started `kernlore mcp`."""
    arguments = ["-m", "api.cli.main", "mcp", *map(str, options)]
    server = StdioServerParameters(
        command=sys.executable, args=arguments, cwd=ROOT, env=environment
    )
    with start_blocking_portal() as portal:
        client = Client(stdio_client(server), raise_exceptions=True)
        with portal.wrap_async_context_manager(client):
            yield Agent(portal, client)
