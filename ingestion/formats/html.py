"""HTML pages, and fragments of HTML inside Markdown: the main content in block order, tables as
cells.

Leaves out navigation and permalinks as Sphinx, Doxygen and Asciidoctor write them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from bs4 import BeautifulSoup
from bs4.element import CData, NavigableString, Tag

from ingestion.elements import Element, ParsedDocument, Table, make_table, table_element


def names(words: str) -> frozenset[str]:
    """A set of names, written as words separated by spaces."""
    return frozenset(words.split())


_SKIP = names(
    "script style noscript template nav head button select option input textarea svg iframe "
    "object canvas audio video math-renderer footer"
)
_SKIP_CLASS = names(
    "headerlink toctree-wrapper sphinxsidebar related breadcrumb breadcrumbs navbar sidebar "
    "toc toc-tree skip-link prev-next-area linenos lineno linenodiv icon visually-hidden sr- "
    "only"
)
_SKIP_ID = names("toc nav-path side-nav nav-sidebar footer navbar searchbox top")
_HEADINGS = {f"h{n}": n for n in range(1, 7)}
_BLOCKS = names(
    "address article aside blockquote body center dd details div dl dt fieldset figcaption "
    "figure footer form h1 h2 h3 h4 h5 h6 header html hr li main nav ol p pre section summary "
    "table tbody td tfoot th thead tr ul"
)
_BLOCK_NAMES = sorted(_BLOCKS)
_LISTS = frozenset(("ul", "ol", "menu"))
_MAIN = ("main", "[role=main]", *(f"div{part}" for part in (".body", ".document", ".contents")))
_MAIN += ("div#content", "article")
_LAYOUT_TABLE = frozenset(["mlabels", "highlighttable", "rouge-table"])
# Doxygen writes a prototype as a table with a word or bracket in each cell.
_PROTOTYPE_TABLE = "memname"
_MAX_SPAN = 100

# All element names of HTML; `<typename T>` in Markdown is C++ without escapes.
_HTML_TAGS = (
    _BLOCKS
    | _SKIP
    | names(
        "a abbr acronym b basefont bdi bdo big br caption cite code col colgroup data datalist "
        "del dfn em embed font i img ins kbd label legend link map area mark meta meter menu "
        "optgroup output param picture progress q rp rt ruby s samp small source span strike "
        "strong sub sup time title track tt u var wbr hgroup search dir frameset frame applet"
    )
)
_UNKNOWN_TAG = re.compile(r"<(?=/?([A-Za-z][\w:.-]*))|<(?=[^A-Za-z/!?])")

_SPACE = re.compile(r"[ \t\r\n\f\xa0]+")
_LANGUAGE = re.compile(r"(?:language|lang|highlight|sourceCode|brush)[-: ]+([A-Za-z+#-]+)")


def parse_html(text: str) -> ParsedDocument:
    """Read an HTML page."""
    soup = BeautifulSoup(text, "lxml")
    elements = tuple(_Walk().blocks(_main(soup)))
    heading = next((e.text for e in elements if e.kind == "title" and e.level == 1), None)
    named = soup.title.get_text() if soup.title else ""
    return ParsedDocument(elements, title=heading or _SPACE.sub(" ", named).strip() or None)


def parse_fragment(text: str) -> list[Element]:
    """The elements of a piece of HTML, such as a raw block inside Markdown."""
    soup = BeautifulSoup(_UNKNOWN_TAG.sub(_escape_unknown, text), "lxml")
    return list(_Walk().blocks(soup.body)) if soup.body else []


def _escape_unknown(match: re.Match[str]) -> str:
    return "<" if match[1] and match[1].lower() in _HTML_TAGS else "&lt;"


def _main(soup: BeautifulSoup) -> Tag:
    body = soup.body or soup
    whole = len(body.get_text())
    for selector in _MAIN:
        matching = soup.select(selector)
        # Not one of several articles, nor a "main" that holds only a teaser.
        if len(matching) == 1 and len(matching[0].get_text()) * 2 > whole:
            return matching[0]
    return body


def _skipped(tag: Tag) -> bool:
    if tag.name in _SKIP or tag.has_attr("hidden") or tag.get("aria-hidden") == "true":
        return True
    if tag.get("role") in ("navigation", "search", "banner", "contentinfo"):
        return True
    if tag.get("id") in _SKIP_ID or not _SKIP_CLASS.isdisjoint(_classes(tag)):
        return True
    style = tag.get("style")
    if isinstance(style, str) and "display:none" in style.replace(" ", ""):
        return True
    # The page's own banner, not the header of an article.
    return tag.name == "header" and tag.find_parent(["main", "article", "section"]) is None


def _classes(tag: Tag) -> list[str]:
    stated = tag.get("class")
    return list(stated) if isinstance(stated, list) else str(stated or "").split()


class _Walk:
    """Walks the blocks depth first; inline runs between blocks become text elements."""

    def blocks(self, parent: Tag) -> Iterator[Element]:
        run: list[str] = []
        for child in parent.children:
            if isinstance(child, NavigableString):
                run.append(_string(child))
            elif isinstance(child, Tag) and not _skipped(child):
                if child.name in _BLOCKS or child.find(_BLOCK_NAMES) is not None:
                    yield from _text(run)
                    run = []
                    yield from self.block(child)
                else:
                    run.append(inline(child))
        yield from _text(run)

    def block(self, tag: Tag) -> Iterator[Element]:
        if tag.name in _HEADINGS:
            text = _tidy(inline(tag))
            if text:
                yield Element("title", text, level=_HEADINGS[tag.name])
        elif tag.name == "pre":
            yield from _code(tag)
        elif tag.name == "table":
            yield from self.table(tag)
        elif tag.name in _LISTS:
            yield from self.list(tag)
        elif tag.name == "dl":
            yield from self.definitions(tag)
        elif tag.name in ("figcaption", "caption"):
            yield from (replace(e, kind="caption") for e in _text([inline(tag)]))
        else:
            yield from self.blocks(tag)

    def table(self, tag: Tag) -> Iterator[Element]:
        cells = [c for c in tag.find_all(["td", "th"]) if c.find_parent("table") is tag]
        if _PROTOTYPE_TABLE in _classes(tag):
            yield from _text([" ".join(_tidy(inline(cell)) for cell in cells)])
            return
        layout = not _LAYOUT_TABLE.isdisjoint(_classes(tag))
        nested = any(c.find(["table", "h1", "h2", "h3"]) for c in cells)
        code = len(cells) < 4 and any(c.find("pre") for c in cells)
        if layout or nested or code or len(cells) <= 1:
            for cell in cells:
                yield from self.blocks(cell)
            return
        element = table_element(read_table(tag))
        if element:
            yield element

    def list(self, tag: Tag) -> Iterator[Element]:
        """One element per list; items with code or a table are split into elements."""
        lines: list[str] = []
        for number, item in enumerate(_items(tag), start=1):
            mark = f"{number}. " if tag.name == "ol" else "- "
            if item.find(["pre", "table", *_HEADINGS]) is None:
                lines += list_lines(item, mark)
                continue
            if lines:
                yield Element("list", "\n".join(lines))
                lines = []
            yield from self.blocks(item)
        if lines:
            yield Element("list", "\n".join(lines))

    def definitions(self, tag: Tag) -> Iterator[Element]:
        """A term with the text under it; on API pages the signature is the term."""
        terms: list[str] = []
        for child in _definition_parts(tag):
            if child.name == "dt":
                terms.append(_tidy(inline(child)))
                continue
            under = list(self.blocks(child))
            head = "\n".join(t for t in terms if t)
            terms = []
            if head and under and under[0].kind == "text":
                under[0] = replace(under[0], text=f"{head}\n{under[0].text}")
            elif head:
                under.insert(0, Element("text", head))
            yield from under
        yield from _text(["\n".join(terms)])


def _items(tag: Tag) -> Iterator[Tag]:
    for child in tag.children:
        if isinstance(child, Tag) and not _skipped(child):
            yield child


def _definition_parts(tag: Tag) -> Iterator[Tag]:
    for child in _items(tag):
        if child.name == "div":
            yield from _items(child)
        else:
            yield child


def list_lines(item: Tag, mark: str) -> list[str]:
    """An item and its nested lists as indented lines."""
    own: list[str] = []
    nested: list[str] = []

    def gather(node: Tag) -> None:
        for child in node.children:
            if isinstance(child, NavigableString):
                own.append(_string(child))
            elif isinstance(child, Tag) and not _skipped(child):
                if child.name in _LISTS:
                    inner = "- " if child.name != "ol" else "1. "
                    nested.extend(line for sub in _items(child) for line in list_lines(sub, inner))
                elif child.find(sorted(_LISTS)) is not None:
                    gather(child)
                else:
                    own.append(inline(child) + (" " if child.name in _BLOCKS else ""))

    gather(item)
    text = _tidy("".join(own))
    return ([mark + text] if text else []) + ["  " + line for line in nested]


def _code(tag: Tag) -> Iterator[Element]:
    for line_break in tag.find_all("br"):
        line_break.replace_with("\n")
    text = tag.get_text().strip("\n")
    if not text.strip():
        return
    code = tag.find("code")
    parents = [p for p in list(tag.parents)[:2] if isinstance(p, Tag)]
    marked = [code, tag, *parents] if isinstance(code, Tag) else [tag, *parents]
    language = None
    for node in marked:
        match = _LANGUAGE.search(" ".join(_classes(node))) or _LANGUAGE.search(
            str(node.get("data-lang") or "")
        )
        if match and match[1] not in ("default", "none", "text"):
            language = match[1].lower()
            break
    yield Element("code", "\n".join(line.rstrip() for line in text.split("\n")), language=language)


def inline(tag: Tag) -> str:
    """The text of an inline run, with the alternative text of images."""
    if _skipped(tag):
        return ""
    if tag.name == "br":
        return "\n"
    if tag.name == "img":
        alt = tag.get("alt")
        return f" {alt} " if isinstance(alt, str) else ""
    parts = [
        _string(child) if isinstance(child, NavigableString) else inline(child)
        for child in tag.children
        if isinstance(child, NavigableString | Tag)
    ]
    joined = "".join(parts)
    return f"\n{joined}\n" if tag.name in _BLOCKS else joined


def _string(node: NavigableString) -> str:
    # Comments, doctypes and processing instructions are subclasses.
    return _SPACE.sub(" ", node) if type(node) in (NavigableString, CData) else ""


def _tidy(text: str) -> str:
    lines = (_SPACE.sub(" ", line).strip() for line in text.split("\n"))
    return "\n".join(line for line in lines if line)


def _text(run: list[str]) -> Iterator[Element]:
    text = _tidy("".join(run))
    if any(c.isalnum() for c in text):
        yield Element("text", text)


def read_table(tag: Tag) -> Table:
    """The cells of a <table>; a cell with a span repeats in each row and column that it covers."""
    header: list[list[str]] = []
    rows: list[list[str]] = []
    pending: dict[int, tuple[str, int]] = {}
    for row in tag.find_all("tr"):
        if row.find_parent("table") is not tag:
            continue
        cells = [c for c in row.find_all(["td", "th"]) if c.find_parent("tr") is row]
        line = _spread(cells, pending)
        in_head = row.find_parent("thead") is not None
        all_heads = bool(cells) and all(c.name == "th" for c in cells) and len(cells) > 1
        (header if in_head or (all_heads and not rows) else rows).append(line)
    caption = tag.find("caption")
    return make_table(header, rows, inline(caption) if isinstance(caption, Tag) else None)


def _spread(cells: list[Tag], pending: dict[int, tuple[str, int]]) -> list[str]:
    """One row with its spans filled in. `pending` holds, by column, the text of cells that reach
    into the rows below, and for how many rows."""
    line: list[str] = []

    def fill() -> None:
        while len(line) in pending:
            text, left = pending.pop(len(line))
            if left > 1:
                carried[len(line)] = (text, left - 1)
            line.append(text)

    carried: dict[int, tuple[str, int]] = {}
    for cell in cells:
        fill()
        text = inline(cell)
        down = _span(cell, "rowspan")
        for _ in range(_span(cell, "colspan")):
            if down > 1:
                carried[len(line)] = (text, down - 1)
            line.append(text)
    fill()
    pending.clear()
    pending.update(carried)
    return line


def _span(cell: Tag, name: str) -> int:
    value = str(cell.get(name) or "1").strip()
    return min(max(int(value), 1), _MAX_SPAN) if value.isdigit() else 1
