"""Plain text, and JSON that is a table.

Paragraphs are separated by blank lines. A line is a heading only if it cannot be anything else: a
missed heading costs a coarser section, an invented one splits a paragraph.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from ingestion.elements import Element, ParsedDocument, make_table, table_element

_UNDERLINE = re.compile(r"^([=~*^#_-])\1{2,}$")
_NUMBERED = re.compile(r"^(\d{1,2}(?:\.\d{1,2}){0,4})\.?\s+[A-Z][^.!?;:,]{2,70}$")
_LIST_ITEM = re.compile(r"^\s*(?:[-*+\u2022o]|\d{1,3}[.)]|\([a-z\d]\))\s+\S")
_CODE_HINT = re.compile(r"[;{}=()<>$#]|^\s*[./\w-]+ --?\w", re.M)
# A line that begins with an error code, as in `K2E-0331  tag out of range`; group 1 is the form of
# the code. `ingestion.symbols.headings` reads the meanings.
_CODED = re.compile(
    r"^([A-Z][A-Z0-9]{0,9}(?:[-_][A-Z]{1,8}){0,2}[-_]?)\d{2,6}(?:[:.)]\s+|\s{2,}|\t)\S"
)
# A line that a compiler prints, with file and line.
_PRINTED = re.compile(r"^\s*[\w./+-]{1,200}[:(]\d+[:,)].*\S")
_LEVELS = {"=": 1, "#": 1, "*": 1, "-": 2, "_": 2, "~": 3, "^": 4}
_HEADING_LENGTH = 80


def parse_text(text: str) -> ParsedDocument:
    """Read plain text."""
    elements = tuple(element for block in _blocks(text) for element in _elements(block))
    title = next((e.text for e in elements if e.kind == "title"), None)
    return ParsedDocument(elements, title=title)


def _blocks(text: str) -> Iterator[list[str]]:
    """Runs of lines without a blank one; indented runs that follow each other are one block."""
    block: list[str] = []
    gap = 0
    for line in text.replace("\f", "\n").split("\n"):
        if not line.strip():
            gap += 1
            continue
        indented = line.startswith(("    ", "\t"))
        if block and gap and not (indented and _all_indented(block) and gap == 1):
            yield block
            block = []
        elif block and gap:
            block += [""] * gap
        gap = 0
        block.append(line.rstrip())
    if block:
        yield block


def _all_indented(lines: list[str]) -> bool:
    return all(not line or line.startswith(("    ", "\t")) for line in lines)


def _elements(block: list[str]) -> Iterator[Element]:
    heading = _heading(block)
    if heading:
        yield heading
        used = 2 if len(block) > 1 else 1
        if _overlined(block):
            used = 3
        block = block[used:]
        if not block:
            return
    entries = _entries(block)
    if entries:
        yield from (Element("list", "\n".join(lines)) for lines in entries)
        return
    shown = _printed_from(block)
    if shown is not None:
        if shown:
            yield Element("text", "\n".join(block[:shown]))
        yield Element("code", textwrap.dedent("\n".join(block[shown:])))
        return
    joined = "\n".join(block)
    if _all_indented(block) and _CODE_HINT.search(joined):
        yield Element("code", textwrap.dedent(joined))
    elif _LIST_ITEM.match(block[0]):
        yield Element("list", joined)
    else:
        yield Element("text", joined)


def _entries(block: list[str]) -> list[list[str]]:
    """The entries of a list of codes: lines that begin with a code, two or more of each form, each
    with the indented lines that explain it. Empty for any other block."""
    forms = Counter(match[1] for line in block if (match := _CODED.match(line)))
    begins = [index for index, line in enumerate(block) if _CODED.match(line)]
    if min(forms.values(), default=0) < 2 or begins[0] != 0:
        return []
    ends = [*begins[1:], len(block)]
    entries = [block[begin:end] for begin, end in zip(begins, ends, strict=True)]
    explained = all(line.startswith((" ", "\t")) for lines in entries for line in lines[1:])
    return entries if explained else []


def _printed_from(block: list[str]) -> int | None:
    """The line from which a block is the output of a tool: the first, or the second if the first
    introduces it. None for any other block."""
    start = 1 if block[0].rstrip().endswith(":") and not _PRINTED.match(block[0]) else 0
    lines = block[start:]
    return start if lines and all(_PRINTED.match(line) for line in lines) else None


def _overlined(block: list[str]) -> bool:
    return len(block) > 2 and bool(_UNDERLINE.match(block[0])) and block[0] == block[2]


def _heading(block: list[str]) -> Element | None:
    if _overlined(block):
        return Element("title", block[1].strip(), level=_LEVELS[block[0][0]])
    first = block[0].strip()
    if len(first) > _HEADING_LENGTH or not any(c.isalpha() for c in first):
        return None
    if len(block) > 1:
        mark = _UNDERLINE.match(block[1].strip())
        # An underline is as long as its words; a rule across the page is longer.
        if mark and abs(len(block[1].strip()) - len(first)) <= 4:
            return Element("title", first, level=_LEVELS[mark[1]])
        return None
    numbered = _NUMBERED.match(first)
    if numbered:
        return Element("title", first, level=numbered[1].count(".") + 1)
    short = len(first.split()) <= 8 and len(first) >= 4
    if first.isupper() and short and not first.endswith((".", ":", ";")):
        return Element("title", first, level=2)
    return None


# -- JSON tables: a list of objects with the same fields, alone or under names

MAX_FIELDS = 24
MAX_ROWS = 5_000
_PLAIN = (str, int, float, bool, type(None))


def parse_json_tables(text: str) -> ParsedDocument | None:
    """The tables of a JSON text; None if it holds anything else."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    groups = [("", value)] if not isinstance(value, dict) or _is_keyed(value) else value.items()
    elements: list[Element] = []
    for name, group in groups:
        rows = _rows(group)
        fields = list(dict.fromkeys(field for row in rows for field in row))[:MAX_FIELDS]
        cells = [[_cell(row.get(field)) for field in fields] for row in rows]
        table = table_element(make_table([fields], cells))
        if table is None:
            return None
        elements += [Element("title", str(name), level=1)] if name else []
        elements.append(table)
    return ParsedDocument(tuple(elements)) if elements else None


def _is_keyed(value: Mapping[str, Any]) -> bool:
    """`{"limit": {"value": 3, "unit": "count"}, ...}`: each field is a row."""
    return all(isinstance(row, dict) and "value" in row for row in value.values())


def _rows(value: Any) -> list[dict[str, Any]]:
    """The objects of a list, if all are rows with plain values; else empty."""
    if isinstance(value, dict) and value and _is_keyed(value):
        value = [{"key": key, **row} for key, row in value.items()]
    if not isinstance(value, list) or not 0 < len(value) <= MAX_ROWS:
        return []
    good = (
        isinstance(row, dict) and all(isinstance(cell, _PLAIN) for cell in row.values())
        for row in value
    )
    return value if all(good) else []


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)
