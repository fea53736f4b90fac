"""What a model may call before it answers: look something up, or have its draft compiled.

Bounded in number and in length; what comes back stands in the fence like any other text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from kb.errors import KernloreError
from optimizer.search.knowledge import Excerpt
from optimizer.search.synthesizers.llm.answers.answer import BadAnswer
from optimizer.search.synthesizers.llm.answers.candidate import files_from
from optimizer.search.synthesizers.llm.answers.replies import ToolCall
from optimizer.search.synthesizers.llm.prompting.fence import Fence
from optimizer.search.synthesizers.llm.prompting.templates import data

MAX_CALLS = 8  # of one answer
MAX_RESULT = 6_000  # characters
MAX_QUERY = 400


class Tools(Protocol):
    """Each raises KernloreError, which the model is told."""

    def search(self, query: str) -> Sequence[Excerpt]: ...

    def read_section(self, id: str) -> Excerpt: ...

    def compile_check(self, files: Mapping[str, str]) -> str:
        """The compiler's messages; empty when there are none."""
        ...


def offered() -> Sequence[Any]:
    return list(data("tools.json"))


class ToolBench:
    """Runs the calls of one conversation. shown: ids that they brought up."""

    def __init__(self, tools: Tools, fence: Fence) -> None:
        self._fence = fence
        self.shown: set[str] = set()
        self._run: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
            "search": lambda given: self._excerpts(tools.search(_text(given, "query")[:MAX_QUERY])),
            "read_section": lambda given: self._excerpts([tools.read_section(_text(given, "id"))]),
            "compile_check": lambda given: (
                tools.compile_check(files_from(given.get("files"))) or "It compiles."
            ),
        }

    def result(self, call: ToolCall) -> str:
        """Of a call that fails, why it did."""
        run = self._run.get(call.name)
        if run is None:
            return f"There is no such tool. The tools are {', '.join(self._run)}."
        try:
            given = json.loads(call.arguments or "{}")
            if not isinstance(given, dict):
                raise BadAnswer("the arguments must be an object")
            told = run(given)
        except (json.JSONDecodeError, RecursionError, BadAnswer, KernloreError) as problem:
            told = f"failed: {problem}"
        return self._fence.around("tool-result", told[:MAX_RESULT])

    def _excerpts(self, found: Sequence[Excerpt]) -> str:
        self.shown |= {excerpt.id for excerpt in found}
        parts = [f"id: {e.id}\nfrom: {e.title} {e.citation}\n{e.text}" for e in found]
        return "\n\n".join(parts) or "Nothing was found."


def _text(given: Mapping[str, Any], name: str) -> str:
    value = given.get(name)
    if not isinstance(value, str) or not value.strip():
        raise BadAnswer(f"`{name}` must be a text")
    return value
