"""A model on loopback that reads and drafts sections: its script gets the sections of a request."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from tests.optimizer.search.synthesizers.llm.llm_servers import Answered, ModelServer, prompt_of

_SECTION = re.compile(
    r"^Section (\d+): ([^\n]*)\n--- DATA \w+ BEGIN ---\n(.*?)\n--- DATA", re.M | re.S
)
Sections = Mapping[int, tuple[str, str]]  # number -> (heading, text)


def sections_in(body: Mapping[str, Any]) -> Sections:
    """The sections of a request."""
    found = _SECTION.findall(prompt_of(body))
    return {int(number): (path.split(" > ")[-1], text) for number, path, text in found}


def serving(answer: Callable[[Sections], Any]) -> ModelServer:
    """A server that answers with the JSON of `answer`."""

    def script(body: dict[str, Any], number: int) -> Answered:
        result = answer(sections_in(body))
        return result if isinstance(result, Answered) else Answered(json.dumps(result))

    return ModelServer(script)
