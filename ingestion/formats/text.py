"""Plain text: paragraphs by blank lines, headings only where they cannot be anything else.

A missed heading costs a coarser section; an invented one tears a paragraph apart. So in doubt it is
text.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterator

from ingestion.elements import Element, ParsedDocument

_UNDERLINE = re.compile(r"^([=~*^#_-])\1{2,}$")
_NUMBERED = re.compile(r"^(\d{1,2}(?:\.\d{1,2}){0,4})\.?\s+[A-Z][^.!?;:,]{2,70}$")
_LIST_ITEM = re.compile(r"^\s*(?:[-*+\u2022o]|\d{1,3}[.)]|\([a-z\d]\))\s+\S")
_CODE_HINT = re.compile(r"[;{}=()<>$#]|^\s*[./\w-]+ --?\w", re.M)
# A line that begins with an error code, as in `K2E-0331  tag out of range`; what stands before its
# number is the form. What each means is read in `symbols.error_lists`.
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
    """The entries of a list that goes on without a blank line: lines that begin with a code, two or
    more of each form, with the indented lines that explain it. Empty for any other block.
    """
    forms = Counter(match[1] for line in block if (match := _CODED.match(line)))
    begins = [index for index, line in enumerate(block) if _CODED.match(line)]
    if min(forms.values(), default=0) < 2 or begins[0] != 0:
        return []
    ends = [*begins[1:], len(block)]
    entries = [block[begin:end] for begin, end in zip(begins, ends, strict=True)]
    explained = all(line.startswith((" ", "\t")) for lines in entries for line in lines[1:])
    return entries if explained else []


def _printed_from(block: list[str]) -> int | None:
    """Where the lines of a tool's output begin, if that is what the block ends with: at its first
    line, or under the one that introduces them. None for anything else.
    """
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
        # An underline as long as its words; a rule across the page under a paragraph is something
        # else.
        if mark and abs(len(block[1].strip()) - len(first)) <= 4:
            return Element("title", first, level=_LEVELS[mark[1]])
        return None
    numbered = _NUMBERED.match(first)
    if numbered:
        return Element("title", first, level=numbered[1].count(".") + 1)
    words = first.split()
    if (
        first.isupper()
        and len(words) <= 8
        and len(first) >= 4
        and not first.endswith((".", ":", ";"))
    ):
        return Element("title", first, level=2)
    return None
