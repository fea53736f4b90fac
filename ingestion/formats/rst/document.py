"""reStructuredText, by a line scanner of our own.

docutils is no help here: it knows none of the directives that Sphinx and its extensions add, which
is most of what chip documentation consists of, and turns every one into a system message. The
scanner needs no directive registered: one it does not know is a container whose content counts.
Text stays as it is written, roles included; only indentation goes.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from ingestion.elements import Element, ParsedDocument, Table
from ingestion.formats.rst.directives import Directive, read_directive
from ingestion.formats.rst.tables import (
    GRID_BORDER,
    SIMPLE_BORDER,
    grid_table,
    simple_table,
)
from ingestion.formats.tables import table_element

_ADORNMENT = re.compile(r"^([!-/:-@\[-`{-~])\1*\s*$")
_DIRECTIVE = re.compile(r"^\.\.\s+(?:\|[^|]*\|\s+)?([A-Za-z][\w+.:-]*?)\s?::(?:\s+(.*)|$)")
_SUBSTITUTION = re.compile(r"^\.\.\s+\|[^|]+\|\s")
_NOTE_MARK = re.compile(r"^\.\.\s+\[(?:\d+|[#*]?[\w.-]*)\]\s")
_ITEM = re.compile(r"^([-*+\u2022]|(?:\d{1,3}|[A-Za-z]|#)[.)]|\((?:\d{1,3}|[A-Za-z]|#)\))(\s+|$)")
_INNER_BLOCK = re.compile(r"^\s*\.\. [\w|]|::\s*$|^\s*\+[-=]+\+|^\s*=+ +=+", re.M)
_FIELD = re.compile(r"^:[^:\s][^:]*:(?:\s|$)")


@dataclass
class _Scan:
    """What is shared by all nested blocks of one document."""

    levels: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def level(self, style: str) -> int:
        if style not in self.levels:
            self.levels.append(style)
        return self.levels.index(style) + 1


@dataclass(frozen=True)
class _Block:
    """Elements, and the line after the block they came from."""

    elements: Sequence[Element]
    end: int
    literal_follows: bool = False


def parse_rst(text: str) -> ParsedDocument:
    """Read reStructuredText."""
    scan = _Scan()
    lines = [line.rstrip() for line in text.expandtabs(8).split("\n")]
    elements = tuple(_blocks(lines, scan, top=True))
    titles = [e for e in elements if e.kind == "title"]
    title = next((e.text for e in titles if e.level == 1), None)
    return ParsedDocument(elements, title=title, warnings=tuple(dict.fromkeys(scan.warnings)))


def _blocks(lines: Sequence[str], scan: _Scan, top: bool = False) -> Iterator[Element]:
    at = 0
    literal = False
    while at < len(lines):
        if not lines[at]:
            at += 1
            continue
        if literal and (lines[at].startswith(" ") or _quoted(lines, at)):
            block = _literal(lines, at)
        else:
            block = _heading(lines, at, scan, top) or _one_block(lines, at, scan)
        yield from block.elements
        literal = block.literal_follows
        at = max(block.end, at + 1)


def _one_block(lines: Sequence[str], at: int, scan: _Scan) -> _Block:
    line = lines[at]
    if line.startswith(".. ") or line == "..":
        return _explicit(lines, at, scan)
    if line.startswith(" "):
        end = _indented_end(lines, at)
        return _Block(list(_blocks(_dedent(lines[at:end]), scan)), end)
    if line.startswith("__ ") or (
        _ADORNMENT.match(line) and len(line) >= 4 and not _next(lines, at)
    ):
        return _Block((), at + 1)
    if GRID_BORDER.match(line) or SIMPLE_BORDER.match(line):
        return _drawn_table(lines, at)
    if line.startswith(">>> "):
        end = _paragraph_end(lines, at)
        return _Block([Element("code", "\n".join(lines[at:end]), language="python")], end)
    if _ITEM.match(line):
        return _list(lines, at, scan)
    if _FIELD.match(line):
        end = _paragraph_end(lines, at)
        text = "\n".join(lines[at:end])
        return _Block([Element("text", text)] if re.search(r":\s+\S", text) else (), end)
    return _paragraph(lines, at, scan)


# Headings


def _heading(lines: Sequence[str], at: int, scan: _Scan, top: bool) -> _Block | None:
    """A title by its underline, or by over- and underline; in a nested block it is text."""
    line, below = lines[at], _next(lines, at)
    if line.startswith(" "):
        return None
    over = _ADORNMENT.match(line)
    under = _next(lines, at + 1)
    if over and len(line) >= 3 and below and under[:1] == line[0]:
        if _ADORNMENT.match(under) and not _ADORNMENT.match(below):
            return _Block([_title(below, line[0] * 2, scan, top)], at + 3)
    elif not over and _underlines(below, line):
        return _Block([_title(line, below[0], scan, top)], at + 2)
    return None


def _underlines(below: str, line: str) -> bool:
    # "::" and "..." under a line are a literal mark and an ellipsis.
    if not _ADORNMENT.match(below) or below in ("::", "..", "..."):
        return False
    return len(below) >= min(4, len(line))


def _title(text: str, style: str, scan: _Scan, top: bool) -> Element:
    if not top:
        return Element("text", text.strip())
    return Element("title", text.strip(), level=scan.level(style))


# Explicit markup: directives, targets, footnotes, comments


def _explicit(lines: Sequence[str], at: int, scan: _Scan) -> _Block:
    line = lines[at]
    end = _body_end(lines, at)
    if line.startswith(".. _") or (line == ".." and not _next(lines, at)):
        # Neither owns the indented block after a blank line, whatever the author had in mind.
        return _Block((), _continuation_end(lines, at))
    named = _DIRECTIVE.match(line)
    if named and not _SUBSTITUTION.match(line):
        directive = Directive(
            name=named[1].lower(),
            argument=(named[2] or "").strip(),
            body=_dedent(lines[at + 1 : end]),
            blocks=lambda inner: _blocks(inner, scan),
            warnings=scan.warnings,
        )
        return _Block(list(read_directive(directive)), end)
    if _NOTE_MARK.match(line):
        text = "\n".join([line[3:], *_dedent(lines[at + 1 : end])]).strip()
        return _Block([Element("text", text)], end)
    return _Block((), end)


# Tables drawn with characters


def _drawn_table(lines: Sequence[str], at: int) -> _Block:
    if GRID_BORDER.match(lines[at]):
        end = at
        while end < len(lines) and lines[end].startswith(("+", "|")):
            end += 1
        return _table_block(grid_table(lines[at:end]), lines[at:end], end)
    end = _simple_table_end(lines, at)
    return _table_block(simple_table(lines[at:end]), lines[at:end], end)


def _table_block(table: Table, source: Sequence[str], end: int) -> _Block:
    element = table_element(table, "\n".join(source))
    return _Block([element] if element else [], end)


def _simple_table_end(lines: Sequence[str], at: int) -> int:
    """After the border that a blank line follows; blank lines inside the table are allowed."""
    for number in range(at + 1, len(lines)):
        if SIMPLE_BORDER.match(lines[number]) and not _next(lines, number):
            return number + 1
    return _paragraph_end(lines, at)


# Lists, paragraphs, literal blocks


def _list(lines: Sequence[str], at: int, scan: _Scan) -> _Block:
    """A whole list; items that hold code, tables or directives are taken apart."""
    end = at
    items: list[int] = []
    while end < len(lines):
        line = lines[end]
        if line and not line.startswith(" "):
            if not _ITEM.match(line) and not (lines[end - 1] and items and _lazy(line)):
                break
            if _ITEM.match(line):
                items.append(end)
        end += 1
    while end > at and not lines[end - 1]:
        end -= 1
    return _Block(list(_items(lines, [*items, end], scan)), end)


def _lazy(line: str) -> bool:
    """A line of an item that lost its indentation."""
    return not line.startswith("..") and not _ADORNMENT.match(line)


def _items(lines: Sequence[str], bounds: Sequence[int], scan: _Scan) -> Iterator[Element]:
    run: list[str] = []
    long = bounds[-1] - bounds[0] > 30
    for start, end in pairwise(bounds):
        item = list(lines[start:end])
        complex_item = _INNER_BLOCK.search("\n".join(item)) is not None
        if run and (complex_item or long):
            yield _run(run)
            run = []
        if complex_item:
            yield from _complex_item(item, scan)
        else:
            run += item
    if run:
        yield _run(run)


def _run(lines: list[str]) -> Element:
    return Element("list", "\n".join(lines).strip("\n"))


def _complex_item(item: list[str], scan: _Scan) -> Iterator[Element]:
    mark = _ITEM.match(item[0])
    lead = mark[1] if mark else ""
    first = item[0][mark.end() :] if mark else item[0]
    rest = _dedent(item[1:])
    inner = list(_blocks([first, *rest], scan))
    if inner and inner[0].kind == "text":
        inner[0] = Element("list", f"{lead} {inner[0].text}")
    yield from inner


def _paragraph(lines: Sequence[str], at: int, scan: _Scan) -> _Block:
    end = _paragraph_end(lines, at)
    after = _next(lines, at)
    if after.startswith(" "):
        return _definition(lines, at, scan)
    text = "\n".join(lines[at:end])
    literal = text.endswith("::")
    # An underline without its title, "::" alone and stray rules hold no words.
    if not any(c.isalnum() for c in text):
        return _Block((), end, literal)
    return _Block([Element("text", text)], end, literal)


def _definition(lines: Sequence[str], at: int, scan: _Scan) -> _Block:
    """A term and the indented text under it."""
    end = _indented_end(lines, at + 1)
    under = _dedent(lines[at + 1 : end])
    if lines[at].endswith("::"):
        return _Block(
            [Element("text", lines[at]), Element("code", "\n".join(under).strip("\n"))], end
        )
    if not _INNER_BLOCK.search("\n".join(under)):
        return _Block([Element("text", "\n".join(lines[at:end]).strip("\n"))], end)
    inner = list(_blocks(under, scan))
    if inner and inner[0].kind == "text":
        inner[0] = replace(inner[0], text=f"{lines[at]}\n{inner[0].text}")
    else:
        inner.insert(0, Element("text", lines[at]))
    return _Block(inner, end)


def _literal(lines: Sequence[str], at: int) -> _Block:
    if not lines[at].startswith(" "):
        end = _paragraph_end(lines, at)
        return _Block([Element("code", "\n".join(lines[at:end]))], end)
    end = _indented_end(lines, at)
    return _Block([Element("code", "\n".join(_dedent(lines[at:end])).strip("\n"))], end)


def _quoted(lines: Sequence[str], at: int) -> bool:
    """A literal block may also be unindented lines that all start with the same mark."""
    block = lines[at : _paragraph_end(lines, at)]
    mark = block[0][0]
    return mark in ">|$#%" and all(line.startswith(mark) for line in block)


# Line arithmetic


def _next(lines: Sequence[str], at: int) -> str:
    return lines[at + 1] if at + 1 < len(lines) else ""


def _paragraph_end(lines: Sequence[str], at: int) -> int:
    end = at
    while end < len(lines) and lines[end] and not (end > at and lines[end].startswith(".. ")):
        end += 1
    return end


def _indented_end(lines: Sequence[str], at: int) -> int:
    """After the last line of an indented block, blank lines in between included."""
    end = at
    last = at
    while end < len(lines) and (not lines[end] or lines[end].startswith(" ")):
        end += 1
        if lines[end - 1]:
            last = end
    return last


def _continuation_end(lines: Sequence[str], at: int) -> int:
    end = at + 1
    while end < len(lines) and lines[end].startswith(" "):
        end += 1
    return end


def _body_end(lines: Sequence[str], at: int) -> int:
    return max(_indented_end(lines, at + 1), at + 1)


def _dedent(lines: Sequence[str]) -> list[str]:
    return textwrap.dedent("\n".join(lines)).split("\n")
