"""Markdown: CommonMark with pipe tables, and the MyST and HTML that documentation mixes into it.

The parser only tells which lines belong to which block; texts are source lines, so that quotes can
be looked up. Front matter, comments, HTML tables and colon fences are not CommonMark: they are
extracted first and their lines blanked, so that line numbers stay right.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import yaml
from markdown_it import MarkdownIt
from markdown_it.token import Token

from ingestion.elements import Element, ParsedDocument, make_table, table_element
from ingestion.formats.html import names, parse_fragment
from kb.yaml_loaders import load_plain

_MAX_LIST = 1_500
_MAX_DEPTH = 8

_FENCE = re.compile(r"^\s*(?:[-*+>]\s+|\d+[.)]\s+)*(`{3,}|~{3,})(.*)$")
_COLON_OPEN = re.compile(r"^(\s*)(:{3,})\s*\{?([A-Za-z][\w:-]*)\}?[ \t]*(.*)$")
_COLON_CLOSE = re.compile(r"^\s*:{3,}\s*$")
_TABLE_TAG = re.compile(r"<(/?)table\b", re.I)
_IMAGE = re.compile(r"!\[([^\]]*)\](?:\([^)]*\)|\[[^\]]*\])(?:\{[^}]*\})?")
_LABEL = re.compile(r"^\([\w.:/ -]+\)=\s*$")
_ANCHOR = re.compile(r"\s*\{#[^}]*\}\s*$")
_TAG = re.compile(r"</?[a-zA-Z][^>]*>")
_ALERT = re.compile(r"^\s*\[!\w+\]\s*$")
_DIRECTIVE = re.compile(r"^\{([\w:+-]+)\}\s*(.*)$")
_OPTION = re.compile(r"^:([\w-]+):\s*(.*)$")
_MARK = re.compile(r"^\s*(?:[-*+]|\d+[.)])\s")

_CODE = frozenset(["code", "code-block", "code-cell", "sourcecode", "literalinclude"])
_DROPPED = names(
    "toctree contents image include literalinclude bibliography only-html tableofcontents"
)
_TITLED = names("admonition tab-item dropdown card grid-item-card tab topic sidebar table details")
_CAPTIONED = frozenset(("figure",))


@dataclass(frozen=True)
class _LocatedElement:
    """An element and its source lines."""

    first: int
    last: int
    element: Element


@dataclass
class _Page:
    """A Markdown source while it is read; the lines of elements in `placed` are blank."""

    lines: list[str]
    depth: int = 0
    placed: list[_LocatedElement] = field(default_factory=list)

    def take(self, first: int, last: int, elements: Sequence[Element]) -> None:
        for line in range(first, last):
            self.lines[line] = ""
        self.placed += [_LocatedElement(first, last, element) for element in elements]


def parse_markdown(text: str) -> ParsedDocument:
    lines = text.split("\n")
    front, warnings = _front_matter(lines)
    elements = tuple(_elements(_Page(lines)))
    named = front.get("title")
    headings = [e for e in elements if e.kind == "title"]
    first = next((e.text for e in headings if e.level == 1), headings[0].text if headings else None)
    title = named if isinstance(named, str) and named.strip() else first
    return ParsedDocument(elements, title=title, warnings=warnings, front_matter=front)


def _front_matter(lines: list[str]) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """The YAML block at the top, which is blanked in `lines`; a block that is no mapping stays."""
    if not lines or lines[0].rstrip() != "---":
        return {}, ()
    end = next((n for n, line in enumerate(lines[1:], 1) if line.rstrip() in ("---", "...")), None)
    if end is None:
        return {}, ()
    try:
        block = "\n".join(lines[1:end])
        loaded = load_plain(block)
    except yaml.YAMLError as error:
        return {}, (f"front matter is not valid YAML, read as text: {str(error).splitlines()[0]}",)
    if not isinstance(loaded, dict):
        return {}, ()
    lines[: end + 1] = [""] * (end + 1)
    return {str(key): value for key, value in loaded.items()}, ()


def _elements(page: _Page) -> Iterator[Element]:
    _lift(page)
    _strip_comments(page.lines)
    tokens = _parser().parse("\n".join(page.lines))
    for group in _groups(tokens):
        page.placed += _block(group, page)
    for placed in sorted(page.placed, key=lambda p: p.first):
        yield placed.element


def _parse_nested(text: str, depth: int) -> list[Element]:
    """The elements inside a directive or quote, with headings as text."""
    if depth >= _MAX_DEPTH:
        return [Element("text", text.strip())] if text.strip() else []
    inner = _elements(_Page(text.split("\n"), depth + 1))
    return [replace(e, kind="text", level=None) if e.kind == "title" else e for e in inner]


def _parser() -> MarkdownIt:
    # Inline parsing takes half of the time, and inline tokens are not used.
    return MarkdownIt("commonmark").enable("table").disable("inline")


# -- blocks that are not CommonMark


def _lift(page: _Page) -> None:
    table_ends = _table_ends(page.lines)
    last_colons = max(
        (n for n, line in enumerate(page.lines) if _COLON_CLOSE.match(line)), default=0
    )
    fence = ""
    number = 0
    while number < len(page.lines):
        line = page.lines[number]
        mark = _FENCE.match(line)
        if fence:
            if mark and mark[1].startswith(fence) and not mark[2].strip():
                fence = ""
        elif mark and not (mark[1][0] == "`" and "`" in mark[2]):
            fence = mark[1]
        elif ":::" in line and (opened := _COLON_OPEN.match(line)):
            number = _lift_colon_fence(page, number, opened, last_colons)
            continue
        elif "<table" in line.lower() and line.lstrip().startswith("<"):
            number = _lift_table(page, number, table_ends.get(number))
            continue
        number += 1


def _lift_colon_fence(page: _Page, start: int, opened: re.Match[str], last: int) -> int:
    width = len(opened[2])
    nested = 0
    for end in range(start + 1, last + 1):
        line = page.lines[end].strip()
        if len(line) >= width and not line.strip(":"):
            if nested == 0:
                body = textwrap.dedent("\n".join(page.lines[start + 1 : end]))
                page.take(start, end + 1, _directive(opened[3], opened[4], body, page.depth))
                return end + 1
            nested -= 1
        elif (inner := _COLON_OPEN.match(line)) and len(inner[2]) == width:
            nested += 1
    page.lines[start] = ""
    return start + 1


def _lift_table(page: _Page, start: int, end: int | None) -> int:
    if end is None:
        return start + 1
    source = "\n".join(page.lines[start : end + 1])
    page.take(start, end + 1, parse_fragment(source))
    return end + 1


def _table_ends(lines: Sequence[str]) -> dict[int, int]:
    """The line that closes an HTML table, by the line that opens it."""
    ends: dict[int, int] = {}
    open_on: list[int] = []
    for number, line in enumerate(lines):
        for tag in _TABLE_TAG.finditer(line):
            if not tag[1]:
                open_on.append(number)
            elif open_on:
                ends[open_on.pop()] = number
    return ends


def _strip_comments(lines: list[str]) -> None:
    fence, inside = "", False
    last_close = max((n for n, line in enumerate(lines) if "-->" in line), default=-1)
    for number, line in enumerate(lines):
        mark = None if inside else _FENCE.match(line)
        if fence:
            if mark and mark[1].startswith(fence) and not mark[2].strip():
                fence = ""
        elif mark:
            fence = mark[1]
        elif inside or "<!--" in line:
            lines[number], inside = _without_comment(line, inside, number < last_close)


def _without_comment(line: str, inside: bool, closes_later: bool) -> tuple[str, bool]:
    text = ""
    while line:
        if inside:
            _, closed, line = line.partition("-->")
            inside = not closed
            continue
        before, opened, rest = line.partition("<!--")
        text += before
        if not opened:
            break
        never_closed = "-->" not in rest and not closes_later
        if before.count("`") % 2 or never_closed:
            text, line = text + opened, rest
            continue
        inside, line = True, rest
    return text, inside


# -- blocks of CommonMark


def _groups(tokens: Sequence[Token]) -> Iterator[list[Token]]:
    """Top-level blocks, each with its tokens."""
    group: list[Token] = []
    for token in tokens:
        group.append(token)
        if token.level == 0 and token.nesting <= 0:
            yield group
            group = []


def _block(group: list[Token], page: _Page) -> list[_LocatedElement]:
    head = group[0]
    if head.map is None:
        return []
    first, last = head.map
    if head.type.endswith("_list_open"):
        return _list(group, page)
    source = "\n".join(page.lines[first:last]).strip("\n")
    return [_LocatedElement(first, last, element) for element in _simple(group, source, page.depth)]


def _simple(group: list[Token], source: str, depth: int) -> list[Element]:
    head = group[0]
    if head.type == "heading_open":
        return _heading(group[1].content, int(head.tag[1]))
    if head.type == "fence":
        return _fence(head, depth)
    if head.type == "code_block":
        return [Element("code", head.content.rstrip("\n"))] if head.content.strip() else []
    if head.type == "table_open":
        return _table(group, source)
    if head.type == "html_block":
        return parse_fragment(source)
    if head.type == "blockquote_open":
        inner = "\n".join(re.sub(r"^\s{0,3}> ?", "", line) for line in source.split("\n"))
        return _parse_nested("\n".join(t for t in inner.split("\n") if not _ALERT.match(t)), depth)
    if head.type == "paragraph_open":
        return _paragraph(source)
    return []


def _heading(content: str, level: int) -> list[Element]:
    text = _ANCHOR.sub("", _TAG.sub("", _IMAGE.sub(r"\1", content)))
    text = re.sub(r"\s+", " ", text).strip()
    return [Element("title", text, level=level)] if text else []


def _paragraph(source: str) -> list[Element]:
    lines = [line for line in source.split("\n") if not _LABEL.match(line)]
    if not any(_IMAGE.sub("", line).strip() for line in lines):
        alternative = " ".join(image[1] for line in lines for image in _IMAGE.finditer(line))
        worded = len(alternative.split()) > 1
        return [Element("caption", alternative.strip())] if worded else []
    rest = [line if _IMAGE.sub("", line).strip() else _IMAGE.sub(r"\1", line) for line in lines]
    text = textwrap.dedent("\n".join(line for line in rest if line.strip()))
    return [Element("text", text)] if any(c.isalnum() for c in text) else []


def _table(group: list[Token], source: str) -> list[Element]:
    header: list[list[str]] = []
    rows: list[list[str]] = []
    target = header
    for token in group:
        if token.type == "tbody_open":
            target = rows
        elif token.type == "tr_open":
            target.append([])
        elif token.type == "inline":
            target[-1].append(token.content)
    element = table_element(make_table(header, rows), textwrap.dedent(source))
    return [element] if element else []


def _fence(token: Token, depth: int) -> list[Element]:
    info = token.info.strip()
    named = _DIRECTIVE.match(info)
    if named:
        return _directive(named[1], named[2], token.content, depth)
    if not token.content.strip():
        return []
    language = re.split(r"[\s,{]", info, maxsplit=1)[0].lower() if info else ""
    return [Element("code", token.content.rstrip("\n"), language=language or None)]


def _list(group: list[Token], page: _Page) -> list[_LocatedElement]:
    """A list as one element, cut at code, tables and extracted blocks; a long one per item."""
    start, end = group[0].map or (0, 0)
    special: dict[int, tuple[int, list[Element]]] = {}
    for number, token in enumerate(group):
        if token.map and token.type in ("fence", "code_block", "table_open", "html_block"):
            inner = group[number : _closing(group, number) + 1]
            first, last = token.map
            source = textwrap.dedent("\n".join(page.lines[first:last])).strip("\n")
            special.setdefault(first, (max(last, first + 1), _simple(inner, source, page.depth)))
    for placed in page.placed:
        if start <= placed.first < end:
            special.setdefault(placed.first, (placed.last, []))
    long = sum(len(line) for line in page.lines[start:end]) > _MAX_LIST
    cuts = {
        t.map[0] for t in group if long and t.type == "list_item_open" and t.level == 1 and t.map
    }
    return list(_cut_list(page.lines, (start, end), special, cuts))


def _cut_list(
    lines: list[str],
    span: tuple[int, int],
    special: dict[int, tuple[int, list[Element]]],
    cuts: set[int],
) -> Iterator[_LocatedElement]:
    at, run_start = span[0], span[0]
    while at < span[1]:
        if at in special:
            last, elements = special[at]
            yield from _run(lines, run_start, at)
            yield from (_LocatedElement(at, last, element) for element in elements)
            at = run_start = last
            continue
        if at in cuts and at > run_start:
            yield from _run(lines, run_start, at)
            run_start = at
        at += 1
    yield from _run(lines, run_start, span[1])


def _run(lines: list[str], first: int, last: int) -> Iterator[_LocatedElement]:
    remaining = [line for line in lines[first:last] if _IMAGE.sub("", line).strip()]
    text = textwrap.dedent("\n".join(remaining)).strip("\n")
    if any(c.isalnum() for c in _MARK.sub("", text)):
        yield _LocatedElement(first, last, Element("list", text))


def _closing(group: Sequence[Token], start: int) -> int:
    if group[start].nesting == 0:
        return start
    level = group[start].level
    return next(
        n for n in range(start + 1, len(group)) if group[n].level == level and group[n].nesting < 0
    )


# -- MyST directives, fenced by backticks or colons


def _directive(name: str, argument: str, body: str, depth: int) -> list[Element]:
    name = name.lower()
    if name in _DROPPED:
        return []
    inner = _without_options(body)
    if name in _CODE:
        language = argument.split()[0].lower() if argument.split() else None
        return [Element("code", inner.strip("\n"), language=language)] if inner.strip() else []
    if name in ("eval-rst", "list-table", "csv-table"):
        return _as_rst(name, argument, body)
    if name == "math":
        return [Element("text", inner.strip())] if inner.strip() else []
    elements = _parse_nested(inner, depth)
    if name in _CAPTIONED:
        return [replace(e, kind="caption") if e.kind == "text" else e for e in elements]
    if name == "table" and argument:
        return _captioned(elements, argument)
    label = argument.strip() if name in _TITLED else _inline_argument(name, argument)
    return [Element("text", label), *elements] if label else elements


def _inline_argument(name: str, argument: str) -> str:
    """The text of a note such as `{note} Mind the gap.`; layout containers have numbers there."""
    return argument.strip() if re.search(r"[A-Za-z]{3}.* ", argument) and "grid" not in name else ""


def _captioned(elements: list[Element], caption: str) -> list[Element]:
    for number, element in enumerate(elements):
        if element.table:
            table = replace(element.table, caption=caption)
            captioned = replace(element, table=table, text=f"{caption}\n\n{element.text}")
            return [*elements[:number], captioned, *elements[number + 1 :]]
    return [Element("text", caption), *elements]


def _without_options(body: str) -> str:
    lines = body.split("\n")
    if lines[0].strip() == "---":
        for end, line in enumerate(lines[1:], 1):
            if line.strip() == "---":
                return "\n".join(lines[end + 1 :])
    first = next((n for n, line in enumerate(lines) if not _OPTION.match(line.strip())), len(lines))
    return "\n".join(lines[first:])


def _as_rst(name: str, argument: str, body: str) -> list[Element]:
    from ingestion.formats.rst import parse_rst

    if name == "eval-rst":
        return list(parse_rst(body).elements)
    indented = textwrap.indent(body, "   ")
    return list(parse_rst(f".. {name}:: {argument}\n{indented}\n").elements)
