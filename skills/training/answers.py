"""A candidate in the words in which a model answers: the JSON object, then every file in a code
block. `optimizer.search.synthesizers.llm.answers.answer_from` reads it back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from optimizer.evaluation.bundle import Bundle, default_entry

_FENCE = re.compile(r"^[ \t]*(`{3,})", re.M)


def answer_text(bundle: Bundle, plan: str, used: Sequence[str]) -> str:
    """used: ids that it was shown. A file that does not end in a line break gets one."""
    told: dict[str, Any] = {
        "plan": plan,
        "used": list(used),
        "language": bundle.language,
        "main": bundle.main,
    }
    if bundle.entry != default_entry(bundle.main):
        told["entry"] = bundle.entry
    if bundle.parameters:
        told["parameters"] = dict(bundle.parameters)
    parts = [json.dumps(told, ensure_ascii=False)]
    return "\n\n".join([*parts, *(_block(name, text) for name, text in bundle.files.items())])


def _block(name: str, text: str) -> str:
    """Fenced with more backticks than any line of the file begins with."""
    ticks = "`" * max([3, *(len(found[1]) + 1 for found in _FENCE.finditer(text))])
    end = "" if text.endswith("\n") else "\n"
    return f"File: {name}\n{ticks}\n{text}{end}{ticks}"
