"""A tool: arguments and result as models, and errors as results.

An error of the caller is a result with a hint, because clients do not show protocol errors to the
model. Unknown arguments are refused: a mistyped one would otherwise be ignored in silence.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Awaitable, Callable
from functools import cache, partial
from typing import Annotated, Any

import anyio
from mcp.server.mcpserver.context import Context
from mcp.server.mcpserver.exceptions import UnexpectedToolError
from mcp.server.mcpserver.tools import Tool
from mcp.server.mcpserver.utilities.func_metadata import ArgModelBase, FuncMetadata
from mcp.types import CallToolResult, TextContent, ToolAnnotations
from pydantic import BaseModel, ConfigDict, Field

from api.mcp.routes import Routes
from api.mcp.tools import TOOLS
from api.strict_json import check_texts, validated
from kb.errors import InvalidRequest, KernloreError, nearest

READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
RECORDS = ToolAnnotations(destructive_hint=False, open_world_hint=False)
# A repeated call has no further effect: its measurements are stored.
REPEATABLE = RECORDS.model_copy(update={"idempotent_hint": True})


NULL = {"type": "null"}
POLL_SECONDS = 0.2
Wait = Annotated[float, Field(ge=0, le=600)]
WAIT = Field(50.0, description="Seconds to wait for the result; call again to wait longer.")


async def until(ask: Callable[[], Awaitable[Any]], seconds: float) -> Any:
    """The first result of `ask` that is not None; None after `seconds`. Polls, because other
    processes read and measure."""
    deadline = time.monotonic() + seconds
    while (answer := await ask()) is None and time.monotonic() < deadline:  # noqa: ASYNC110
        await anyio.sleep(POLL_SECONDS)
    return answer


class Arguments(ArgModelBase):
    """The arguments of a tool."""

    model_config = ConfigDict(extra="forbid")


class Result(BaseModel):
    """The result of a tool. Other fields of the operation's output are ignored."""

    model_config = ConfigDict(extra="ignore")


class _Metadata(FuncMetadata):
    """Decodes lists and objects that clients send as JSON text. Arguments of type string stay as
    they are: a log may be JSON."""

    def pre_parse_json(self, data: dict[str, Any]) -> dict[str, Any]:
        read: dict[str, Any] = super().pre_parse_json(data)
        properties = self.arg_model.model_json_schema()["properties"]
        return {n: data[n] if _is_text(properties.get(n, {})) else read[n] for n in data}


def _is_text(schema: dict[str, Any]) -> bool:
    return any(kind.get("type") == "string" for kind in (schema, *schema.get("anyOf", ())))


class _CheckedTool(Tool):
    async def run(
        self, arguments: dict[str, Any], context: Context[Any, Any], convert_result: bool = False
    ) -> CallToolResult:
        """The result of the tool, or the error as a result."""
        try:
            self._check_names(arguments)
            check_texts(arguments)
            read = self.fn_metadata.pre_parse_json(arguments)
            answer: Result = await self.fn(validated(self.fn_metadata.arg_model, read))
            return _result(answer)
        except KernloreError as error:
            return refusal(error)
        except Exception as defect:  # boundary: the SDK logs it and hides the details
            raise UnexpectedToolError(f"{self.name} failed: a defect of Kernlore") from defect

    def _check_names(self, arguments: dict[str, Any]) -> None:
        known = list(self.parameters["properties"])
        for name in arguments:
            if name not in known:
                near = nearest(name[:80], known)
                meant = f"Did you mean {', '.join(near)}? " if near else ""
                takes = f"{self.name} takes {', '.join(known) or 'no arguments'}."
                raise InvalidRequest(f"unknown argument {name[:80]!r}", hint=meant + takes)


def _result(answer: Result) -> CallToolResult:
    """The result as structured content, and the same JSON as text."""
    structured = answer.model_dump(mode="json", by_alias=True)
    text = json.dumps(structured, ensure_ascii=False, separators=(",", ":"))
    return CallToolResult(
        content=[TextContent(type="text", text=text)], structured_content=structured
    )


@cache
def _in_tools() -> tuple[tuple[re.Pattern[str], str], ...]:
    """Patterns of the routes that hints mention, longer ones first, and the tools for them."""
    named = [(operation.method, operation.path, tool) for tool, operation in TOOLS.items()]
    named += [("GET", "/hardware", "list_signals_and_hardware")]
    named += [("GET", "/runs/{run_id}", "list_runs")]
    patterns = []
    for method, path, name in sorted(named, key=lambda row: -len(row[1])):
        place = re.sub(r"\\\{\w+\\\}", r"[^\\s/;,.?]+", re.escape(path))
        patterns.append((re.compile(rf"{method} {place}(?![\w/])(\?[\w=&]+)?"), f"`{name}`"))
    about = "The tool's input schema describes its arguments"
    return (*patterns, (re.compile("GET /docs describes every request"), about))


def refusal(error: KernloreError) -> CallToolResult:
    """An error as a sentence that a model can act on, and its code."""
    hint = error.hint
    for route, name in _in_tools():
        hint = route.sub(name, hint)
    near = error.details.get("nearest") or ()
    missing = [name for name in near if str(name) not in hint]
    parts = [f"{error.message.rstrip('.')}.", hint]
    parts += [f"Nearest: {', '.join(map(str, missing))}."] if missing else []
    text = " ".join(part for part in parts if part)
    content = TextContent(type="text", text=f"{text} (code: {error.code})")
    return CallToolResult(content=[content], is_error=True)


# Left out of schemas: titles repeat names, and an error states the limit that a call exceeds.
UNNEEDED = {
    *("title", "minLength", "maxLength", "minItems", "maxItems", "maxProperties", "propertyNames"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
}


def brief(schema: Any, of_result: bool = False) -> Any:
    """A JSON schema without what costs an agent's window and helps it little: titles, limits, null
    where a field may be left out; of a result also what is required, and the fields that their
    names explain."""
    if not isinstance(schema, dict):
        return [brief(s, of_result) for s in schema] if isinstance(schema, list) else schema
    unneeded = UNNEEDED | {"required", "default"} if of_result else UNNEEDED
    kept = {
        key: {name: brief(part, of_result) for name, part in value.items()}
        if key in ("properties", "$defs")
        else brief(value, of_result)
        for key, value in schema.items()
        if key not in unneeded
        and (key, value) != ("default", None)
        and not (key == "additionalProperties" and isinstance(value, bool))
    }
    if "enum" in kept or (of_result and "properties" in kept):
        kept.pop("type" if "enum" in kept else "description", None)
    if of_result and "properties" in kept:
        fields = kept["properties"].items()
        kept["properties"] = {name: f for name, f in fields if "description" in f or "$ref" in f}
    kinds = kept.pop("anyOf", [])
    if not of_result:
        kinds = [kind for kind in kinds if kind != NULL]
    if len(kinds) == 1:
        return kinds[0] | kept
    if kinds and all(kind.keys() == {"type"} for kind in kinds):
        return {"type": [kind["type"] for kind in kinds]} | kept
    return kept | ({"anyOf": kinds} if kinds else {})


def tool(
    routes: Routes,
    function: Callable[[Routes, Any], Awaitable[Result]],
    arguments: type[Arguments],
    result: type[Result],
    hints: ToolAnnotations,
    title: str,
) -> Tool:
    """A tool by the name and docstring of `function`, which takes the checked arguments."""
    schema = brief(arguments.model_json_schema())
    schema.pop("description", None)
    shape = brief(result.model_json_schema(mode="serialization"), of_result=True)
    return _CheckedTool(
        fn=partial(function, routes),
        name=function.__name__,
        title=title,
        description=" ".join((function.__doc__ or "").split()),
        parameters=schema,
        fn_metadata=_Metadata(arg_model=arguments, output_model=result, output_schema=shape),
        is_async=True,
        context_kwarg=None,
        annotations=hints,
    )
