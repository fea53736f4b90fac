"""Sections that describe one name: the heading begins with it, and so does the line under it, which
is its syntax.

This is how object descriptions come out of documentation generators: a heading "vld - Load a
vector", the line `vld dst, offset(src)`, sentences, and a list of fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ingestion.elements import Element
from ingestion.passages import ParsedSection
from ingestion.symbols.context import kind_in
from ingestion.symbols.drafts import (
    MAX_FURTHER,
    MAX_LIMIT,
    MAX_LIMITS,
    MAX_MEANING,
    MAX_NAME,
    MAX_OPERAND,
    MAX_OPERANDS,
    MAX_SIGNATURE,
    Draft,
    bounded,
    cut,
)
from ingestion.symbols.names import without_ticks
from ingestion.symbols.usage import bounding

_FIELD = re.compile(r"^:([A-Za-z][\w ]{0,40}):[ \t]*(.{0,1000})$", re.M)
_NAME = re.compile(r"[.@%$#]?[A-Za-z_][\w.]{0,79}")
_OPERANDS = frozenset({"operands", "parameters", "arguments", "params", "args"})
MAX_TEXTS = 12  # elements of a section that are read


def signed_drafts(section: ParsedSection, number: int) -> Iterator[Draft]:
    """The draft of a section that describes one name, or nothing."""
    texts = [e.text.strip() for e in section.elements[:MAX_TEXTS] if e.kind in ("text", "list")]
    signature = _signature(section, texts, section.elements)
    if not signature:
        return
    name = _first_name(signature)
    prose = [text for text in texts[1:] if not text.startswith(":")]
    fields = [field for text in texts if text.startswith(":") for field in _FIELD.findall(text)]
    sentences = [sentence for text in prose for sentence in bounding(text)]
    others = [f"{key.strip()}: {value.strip()}" for key, value in fields if not _is_operands(key)]
    yield Draft(
        name,
        number,
        kind=kind_in((section.title, *reversed(section.path[-3:-1]))),
        signature=cut(without_ticks(signature), MAX_SIGNATURE),
        operands=tuple(_operands(fields))[:MAX_OPERANDS],
        meaning=cut(" ".join(prose), MAX_MEANING),
        limits=bounded(sentences, MAX_LIMITS, MAX_LIMIT),
        further=bounded(others, MAX_FURTHER, MAX_LIMIT),
    )


def _signature(section: ParsedSection, texts: Sequence[str], elements: Sequence[Element]) -> str:
    """The line under the heading, where both begin with one name."""
    if not texts or not section.title or elements[0].kind != "text":
        return ""
    line = texts[0].partition("\n")[0].strip()
    title = without_ticks(section.title).strip()
    name = _first_name(line)
    headed = _first_name(title)
    alone = "\n" not in texts[0] and len(line) <= MAX_SIGNATURE
    if not name or name != headed or not alone or len(name) > MAX_NAME:
        return ""
    # A sentence that begins with the name is no syntax.
    return "" if line.endswith((".", "!", "?")) or line == title else line


def _first_name(text: str) -> str:
    match = _NAME.match(without_ticks(text).strip())
    return match[0].rstrip(".") if match else ""


def _is_operands(key: str) -> bool:
    return key.strip().lower() in _OPERANDS


def _operands(fields: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """`a` vector (written); `b` address (read): pairs of an operand and what it is."""
    for key, value in fields:
        if _is_operands(key):
            for part in value.split(";"):
                operand, _, meaning = without_ticks(part.strip()).partition(" ")
                if operand:
                    yield cut(operand, MAX_OPERAND), cut(meaning.strip(), MAX_OPERAND)
