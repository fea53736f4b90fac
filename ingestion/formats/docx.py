"""DOCX to elements: heading levels, lists, tables, code and footnotes.

Uses python-docx, not unstructured, which flattens nested lists, returns a table as one string
without a header row, and loads a language model for plain paragraphs. A DOCX has no pages until a
program lays it out, so elements have no boxes.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ingestion.elements import Element, ParsedDocument, make_table, metadata_title, table_element
from ingestion.limits import DocumentLimits
from kb.errors import ParseFailed, UnsupportedFormat

_W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_FALLBACK = "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback"
_CODE_STYLE = re.compile(r"code|source|listing|preformatted|verbatim|macro ?text", re.I)
_LIST_STYLE = re.compile(r"^list|bullet", re.I)
_CONTENTS_STYLE = re.compile(r"^toc(?:\s|heading|\d|$)", re.I)
_MONO = re.compile(r"mono|courier|consol|menlo|typewriter", re.I)
_MAX_LEVEL = 6
_MAX_SPAN = 63  # columns: the most that Word itself writes


@dataclass(frozen=True)
class _Paragraph:
    """A classified paragraph. `depth` is the level of a heading, or of a list item from 0."""

    kind: str
    text: str
    depth: int = 0


def parse_docx(data: bytes, limits: DocumentLimits | None = None) -> ParsedDocument:
    """Read a DOCX file; raises ParseFailed when it is damaged or larger than `limits`."""
    document = _open(data)
    styles = {style.style_id: style for style in document.styles if style.style_id}
    elements = _elements(document, styles, limits or DocumentLimits()) + _footnotes(document)
    properties = document.core_properties
    first = next((e.text for e in elements if e.kind == "title"), None)
    return ParsedDocument(tuple(elements), title=metadata_title(properties.title) or first)


def _open(data: bytes) -> Any:
    try:
        import docx
        from docx.opc.exceptions import PackageNotFoundError
    except ImportError as error:
        raise UnsupportedFormat(
            "reading DOCX needs the package python-docx, which is not installed",
            hint="Install it with: pip install python-docx",
        ) from error
    hint = "Open it in a word processor, save it as DOCX again and upload that."
    try:
        return docx.Document(io.BytesIO(data))
    except (PackageNotFoundError, zipfile.BadZipFile, KeyError, ValueError, EOFError) as error:
        raise ParseFailed(f"this DOCX cannot be opened: {error}", hint=hint) from error
    except SyntaxError as error:  # lxml's XMLSyntaxError
        raise ParseFailed(f"the XML inside this DOCX is damaged: {error}", hint=hint) from error


def _elements(document: Any, styles: dict[str, Any], limits: DocumentLimits) -> list[Element]:
    """Elements in order. List items in a row are one element, and so are lines of code."""
    elements: list[Element] = []
    pending: list[_Paragraph] = []
    for number, node in enumerate(_blocks(document.element.body)):
        limits.check_parts(number)
        paragraph = _classified(node, styles) if node.tag == f"{_W}p" else None
        if paragraph is not None and not paragraph.text.strip():
            if pending and pending[0].kind == "code":
                pending.append(_Paragraph("code", ""))
            continue
        if pending and (paragraph is None or paragraph.kind != pending[0].kind):
            elements.append(_gathered(pending))
            pending = []
        if paragraph is None:
            _add_table(elements, node)
        elif paragraph.kind in ("list", "code"):
            pending.append(paragraph)
        else:
            elements.append(_single(paragraph))
    return [*elements, _gathered(pending)] if pending else elements


def _add_table(elements: list[Element], node: Any) -> None:
    """Add a table; a caption right before it becomes its own."""
    caption = elements[-1].text if elements and elements[-1].kind == "caption" else None
    table = _table(node, caption)
    if table is not None:
        if caption is not None:
            elements.pop()
        elements.append(table)


def _blocks(parent: Any) -> Iterator[Any]:
    """Paragraphs and tables in order, also those inside content controls, without tables of
    contents."""
    for node in parent:
        if node.tag in (f"{_W}p", f"{_W}tbl"):
            yield node
        elif node.tag == f"{_W}sdt":
            gallery = node.find(f"{_W}sdtPr/{_W}docPartObj/{_W}docPartGallery")
            content = node.find(f"{_W}sdtContent")
            is_contents = gallery is not None and "Contents" in gallery.get(f"{_W}val", "")
            if content is not None and not is_contents:
                yield from _blocks(content)


def _text(node: Any) -> str:
    """The text of a paragraph with all tracked changes accepted."""
    parts: list[str] = []
    for child in node:
        if child.tag == f"{_W}t":
            parts.append(child.text or "")
        elif child.tag == f"{_W}tab":
            parts.append("\t")
        elif child.tag in (f"{_W}br", f"{_W}cr"):
            parts.append("\n")
        elif child.tag == f"{_W}noBreakHyphen":
            parts.append("-")
        elif child.tag not in (f"{_W}pPr", f"{_W}rPr", f"{_W}del", f"{_W}moveFrom", _FALLBACK):
            parts.append(_text(child))
    return "".join(parts)


def _classified(node: Any, styles: dict[str, Any]) -> _Paragraph | None:
    text = _text(node)
    mark = node.find(f"{_W}pPr/{_W}pStyle")
    style = styles.get(mark.get(f"{_W}val", "")) if mark is not None else None
    name = style.name or "" if style is not None else ""
    if _CONTENTS_STYLE.match(name):
        return _Paragraph("text", "")
    level = _heading_level(node, style, name)
    if level is not None and text.strip():
        return _Paragraph("title", " ".join(text.split()), level)
    if name.lower() == "caption":
        return _Paragraph("caption", " ".join(text.split()))
    if _CODE_STYLE.search(name) or _all_mono(node):
        return _Paragraph("code", text.rstrip())
    number = node.find(f"{_W}pPr/{_W}numPr")
    if number is not None or _LIST_STYLE.match(name):
        return _Paragraph("list", " ".join(text.split()), _list_depth(number, name))
    return _Paragraph("text", " ".join(text.split()))


def _heading_level(node: Any, style: Any, name: str) -> int | None:
    if name == "Title":
        return 1
    outline = node.find(f"{_W}pPr/{_W}outlineLvl")
    while outline is None and style is not None:
        match = re.match(r"^heading (\d)", style.name or "", re.I)
        if match:
            return min(_MAX_LEVEL, int(match.group(1)))
        outline = style.element.find(f"{_W}pPr/{_W}outlineLvl")
        style = style.base_style
    level = int(outline.get(f"{_W}val", "9")) if outline is not None else 9
    return level + 1 if level < _MAX_LEVEL else None


def _list_depth(number: Any, style_name: str) -> int:
    depth = number.find(f"{_W}ilvl") if number is not None else None
    if depth is not None:
        return int(depth.get(f"{_W}val", "0"))
    match = re.search(r"(\d)$", style_name)
    return int(match.group(1)) - 1 if match else 0


def _all_mono(node: Any) -> bool:
    fonts = []
    for run in node.iter(f"{_W}r"):
        if _text(run).strip():
            font = run.find(f"{_W}rPr/{_W}rFonts")
            fonts.append(font.get(f"{_W}ascii", "") if font is not None else "")
    return bool(fonts) and all(_MONO.search(font) for font in fonts)


def _single(paragraph: _Paragraph) -> Element:
    if paragraph.kind == "title":
        return Element("title", paragraph.text, level=paragraph.depth)
    return Element("caption" if paragraph.kind == "caption" else "text", paragraph.text)


def _gathered(paragraphs: list[_Paragraph]) -> Element:
    if paragraphs[0].kind == "code":
        return Element("code", "\n".join(p.text for p in paragraphs).strip("\n"))
    return Element("list", "\n".join("  " * p.depth + "- " + p.text for p in paragraphs))


def _table(node: Any, caption: str | None) -> Element | None:
    rows = [row for row in node.iter(f"{_W}tr") if next(row.iterancestors(f"{_W}tbl")) is node]
    marked = 0
    while marked < len(rows) and rows[marked].find(f"{_W}trPr/{_W}tblHeader") is not None:
        marked += 1
    # Word marks header rows only if the author sets it; its default style shows the first row as
    # one.
    header = marked if 0 < marked < len(rows) else int(len(rows) > 1)
    grid: list[list[str]] = []
    for number, row in enumerate(rows):
        grid.append(_cells(row, grid[-1] if grid else [], spread=number < header))
    return table_element(make_table(grid[:header], grid[header:], caption))


def _cells(row: Any, above: list[str], *, spread: bool) -> list[str]:
    """The cells of a row. A cell merged downwards repeats in each row; with `spread` (headers) a
    wide cell repeats in each column."""
    texts: list[str] = []
    for cell in row.iter(f"{_W}tc"):
        if next(cell.iterancestors(f"{_W}tr")) is not row:
            continue
        text = "\n".join(_text(p) for p in cell.iter(f"{_W}p"))
        merge = cell.find(f"{_W}tcPr/{_W}vMerge")
        if merge is not None and merge.get(f"{_W}val") != "restart" and len(texts) < len(above):
            text = above[len(texts)]
        span = cell.find(f"{_W}tcPr/{_W}gridSpan")
        width = min(int(span.get(f"{_W}val", "1")), _MAX_SPAN) if span is not None else 1
        texts += [text] + [text if spread else ""] * (width - 1)
    return texts


def _footnotes(document: Any) -> list[Element]:
    """Footnotes and endnotes, which belong to a word and are not between two paragraphs."""
    from docx.oxml import parse_xml

    notes = []
    for relation in document.part.rels.values():
        if relation.is_external or not relation.reltype.endswith(("/footnotes", "/endnotes")):
            continue
        for note in parse_xml(relation.target_part.blob):
            text = " ".join(" ".join(_text(p) for p in note.iter(f"{_W}p")).split())
            if note.get(f"{_W}type") is None and text:
                notes.append(Element("text", text))
    return notes
