"""A model's words as a JSON object and files in code blocks: tolerant of what surrounds them,
strict about what they are.

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
_OPENED = re.compile(r"^[ \t]*(?:`{3,}|~{3,})", re.M)
_LABEL = re.compile(  # `File: kernel.cpp`, also as a heading, in bold or in backticks
    r"[\s#>*_`-]*file(?:[ ]?name)?[*_`]*\s*:\s*[*_`\"]*([^\s*`\"]+)[*`\"]*\s*", re.I
)
_FIELD = re.compile(r'"(?:plan|used|language|main|files)"\s*:?')
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


def why_no_object(text: str) -> str:
    """Where the object that was meant breaks, in words; empty where none was meant."""
    field = _FIELD.search(text)
    start = text.rfind("{", 0, field.start()) if field else -1
    if start < 0:
        return ""
    try:
        _DECODER.raw_decode(text, start)
    except json.JSONDecodeError as problem:
        return f"it breaks at line {problem.lineno}, column {problem.colno}: {problem.msg}"
    except RecursionError:
        return "it is nested too deeply"
    return ""


def named_files(text: str) -> dict[str, str]:
    """The code blocks under `File: NAME` lines. Raises BadAnswer for one that is not closed, and
    for two of one name."""
    found: dict[str, str] = {}
    end = 0
    for block in _BLOCK.finditer(text):
        name = _label(text[end : block.start()])
        if name in found:
            raise BadAnswer(f"there are two code blocks for {name[:80]}")
        if name:
            found[name] = block[3]
        end = block.end()
    opened = _OPENED.search(text, end)
    if opened is not None and (name := _label(text[end : opened.start()])):
        raise BadAnswer(f"the code block of {name[:80]} is not closed")
    return found


def _label(before: str) -> str:
    """The name in the last line of what stands before a code block; empty where it is no label."""
    last = before.rstrip().rsplit("\n", 1)[-1]
    label = _LABEL.fullmatch(last)
    return label[1] if label is not None else ""


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
    blocks = _code_blocks(text)
    if len(blocks) != 1:
        return None
    tag, code = blocks[0]
    fits = [name for name in TAGS.get(tag, (tag,)) if name in offered]
    if len(fits) == 2:  # Python: Triton only where it is imported
        fits = fits[:1] if "triton" in code else fits[1:]
    return (fits[0], code) if fits and code.strip() else None


def lone_code(text: str) -> str | None:
    """The only code block that holds no JSON, whatever its tag."""
    blocks = [code for tag, code in _code_blocks(text) if tag != "json" and not _is_object(code)]
    return blocks[0] if len(blocks) == 1 else None


def _code_blocks(text: str) -> list[tuple[str, str]]:
    return [(block[2].lower(), block[3]) for block in _BLOCK.finditer(text)]


def _is_object(code: str) -> bool:
    return next(_decoded(code), None) is not None and code.lstrip().startswith("{")
