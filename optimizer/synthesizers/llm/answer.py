"""A model's words as a JSON object: tolerant of what surrounds it, strict about what it is.

Standard library only. What the object means is `candidate`'s business.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

_BLOCK = re.compile(
    r"^[ \t]*(`{3,}|~{3,})[ \t]*([\w+#.-]*)[^\n]*\n(.*?)^[ \t]*\1[ \t]*$", re.M | re.S
)
_STRING_OR_COMMA = re.compile(r'"(?:[^"\\]|\\.)*"|,(?=\s*[}\]])', re.S)
_DECODER = json.JSONDecoder(strict=False)  # models put raw line breaks into strings
TAGS: Mapping[str, tuple[str, ...]] = {
    "python": ("triton", "torch"),
    "py": ("triton", "torch"),
    "c": ("cpp",),
    "c++": ("cpp",),
    "cc": ("cpp",),
    "cu": ("cuda",),
}
MAX_OBJECTS = 200  # places where one is looked for in an answer


class BadAnswer(Exception):
    """This answer is no candidate; the message is told to the model."""


def object_in(text: str) -> dict[str, Any] | None:
    """The first JSON object that names files, from anywhere in the text; else the first that has
    any of an answer's fields; None where there is none."""
    found = [told for told in _objects(text) if {"files", "main", "plan"} & told.keys()]
    return next((told for told in found if "files" in told), found[0] if found else None)


def _objects(text: str) -> Iterator[dict[str, Any]]:
    bodies = [block[3] for block in _BLOCK.finditer(text) if block[2].lower() in ("", "json")]
    for candidate in (text, *bodies):
        for repaired in (candidate, _without_trailing_commas(candidate)):
            yield from _decoded(repaired)


def _decoded(text: str) -> Iterator[dict[str, Any]]:
    place, looked = text.find("{"), 0
    while place >= 0 and looked < MAX_OBJECTS:
        looked += 1
        try:
            told, end = _DECODER.raw_decode(text, place)
        except (json.JSONDecodeError, RecursionError):
            end = place + 1
        else:
            if isinstance(told, dict):
                yield told
        place = text.find("{", end)


def _without_trailing_commas(text: str) -> str:
    """Strings stay as they are."""
    return _STRING_OR_COMMA.sub(lambda hit: hit[0] if hit[0][0] == '"' else "", text)


def lone_block(text: str, offered: tuple[str, ...]) -> tuple[str, str] | None:
    """(language, code) of the only code block whose tag names an offered language."""
    blocks = [(block[2].lower(), block[3]) for block in _BLOCK.finditer(text)]
    if len(blocks) != 1:
        return None
    tag, code = blocks[0]
    fits = [name for name in TAGS.get(tag, (tag,)) if name in offered]
    if len(fits) == 2:  # Python: Triton only where it is imported
        fits = fits[:1] if "triton" in code else fits[1:]
    return (fits[0], code) if fits and code.strip() else None
