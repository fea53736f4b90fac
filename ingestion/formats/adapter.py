"""Formats without a reader of their own (EPUB, ODT, RTF, mail, ...), through `unstructured`.

Everything that library gets wrong silently is stopped here: an empty answer is an error, never an
empty document, and no model is fetched from the network. Its import takes seconds, so it happens in
the first call.

unstructured loads a spaCy model for telling prose from titles and, where it is missing, tries to
download it: on a machine without internet that fails, in some formats without an exception. A blank
pipeline that only splits sentences is put in its place. That place is private to the library: the
version is pinned exactly.
"""

from __future__ import annotations

import csv
import importlib
import io
import logging
import os
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from ingestion.elements import Element, ElementKind, ParsedDocument
from ingestion.formats.tables import make_table, table_element
from kb.errors import ParseFailed, UnsupportedFormat

_INSTALL = "Install the readers with: pip install 'kernlore[unstructured]'"
_CONVERT = "Convert the file to PDF, DOCX, HTML or Markdown and upload that."


@dataclass(frozen=True)
class _Reader:
    """Where unstructured reads a format: module and function, and what that needs besides."""

    module: str
    function: str
    extra: str


_READERS = {
    "pptx": _Reader("pptx", "partition_pptx", "pptx"),
    "epub": _Reader("epub", "partition_epub", "epub"),
    "odt": _Reader("odt", "partition_odt", "odt"),
    "rtf": _Reader("rtf", "partition_rtf", "rtf"),
    "org": _Reader("org", "partition_org", "org"),
    "eml": _Reader("email", "partition_email", "docx"),
    "msg": _Reader("msg", "partition_msg", "msg"),
    "xlsx": _Reader("xlsx", "partition_xlsx", "xlsx"),
    "xls": _Reader("xlsx", "partition_xlsx", "xlsx"),
    "xml": _Reader("xml", "partition_xml", "xml"),
}
_KINDS: dict[str, ElementKind] = {
    "Title": "title",
    "Header": "title",
    "ListItem": "list",
    "CodeSnippet": "code",
    "FigureCaption": "caption",
}
_DELIMITERS = {"csv": ",", "tsv": "\t"}
_DROPPED = frozenset({"PageBreak", "Footer", "PageNumber", "Image"})
_MAX_LEVEL = 6


def parse_other(data: bytes, name: str) -> ParsedDocument:
    """Read a file by its extension; raises KernloreError, never returns nothing."""
    extension = PurePath(name).suffix.lower().lstrip(".")
    if extension in _DELIMITERS:
        return _spreadsheet(data, _DELIMITERS[extension], extension)
    reader = _READERS.get(extension)
    if reader is None:
        raise UnsupportedFormat(
            f"no reader for .{extension or '(no extension)'} files", hint=_CONVERT
        )
    found = _partitioned(_loaded(reader, extension), data, name)
    subject = next((e.metadata.subject for e in found if e.metadata.subject), None)
    elements = tuple(_elements(found))
    if not elements:
        raise _nothing(extension)
    if subject:
        elements = (Element("title", subject, level=1), *elements)
    title = next((e.text for e in elements if e.kind == "title"), None)
    return ParsedDocument(elements, title=title, pages_seen=_page_count(found))


def _nothing(extension: str) -> ParseFailed:
    return ParseFailed(
        f"nothing could be read from this .{extension} file",
        hint=f"It may be empty, or its text may be images. {_CONVERT}",
    )


def _spreadsheet(data: bytes, delimiter: str, extension: str) -> ParsedDocument:
    """Delimited text needs no library: one table whose first row is the header."""
    text = data.decode("utf-8-sig", "replace")
    try:
        rows = [row for row in csv.reader(io.StringIO(text), delimiter=delimiter) if any(row)]
    except csv.Error as error:
        raise ParseFailed(
            f"this .{extension} file cannot be read: {error}", hint=_CONVERT
        ) from error
    table = table_element(make_table(rows[:1], rows[1:])) if len(rows) > 1 else None
    if table is None:
        raise _nothing(extension)
    return ParsedDocument((table,))


def _loaded(reader: _Reader, extension: str) -> Callable[..., list[Any]]:
    os.environ.setdefault("UNSTRUCTURED_DISABLE_NOTICE", "1")
    os.environ.setdefault("SCARF_NO_ANALYTICS", "true")
    try:
        module = importlib.import_module(f"unstructured.partition.{reader.module}")
        _keep_offline()
    except ImportError as error:
        raise UnsupportedFormat(
            f"reading .{extension} needs a package that is not installed: {error.name or error}",
            hint=f"{_INSTALL} and 'unstructured[{reader.extra}]'. Or: {_CONVERT}",
        ) from error
    function: Callable[..., list[Any]] = getattr(module, reader.function)
    return function


def _keep_offline() -> None:
    import spacy
    from unstructured.nlp import tokenize

    def blank() -> Any:
        pipeline = spacy.blank("en")
        pipeline.add_pipe("sentencizer")
        return pipeline

    tokenize._load_spacy_model = blank
    logging.getLogger("unstructured").setLevel(logging.ERROR)


def _partitioned(function: Callable[..., list[Any]], data: bytes, name: str) -> list[Any]:
    from unstructured.errors import UnprocessableEntityError

    try:
        return function(file=io.BytesIO(data), metadata_filename=PurePath(name).name)
    except ImportError as error:
        raise UnsupportedFormat(
            f"reading {name!r} needs a package that is not installed: {error.name or error}",
            hint=f"{_INSTALL}. Or: {_CONVERT}",
        ) from error
    except (
        ValueError,
        KeyError,
        IndexError,
        AttributeError,
        TypeError,
        OSError,
        EOFError,
        RuntimeError,
        SyntaxError,
        LookupError,
        zipfile.BadZipFile,
        UnprocessableEntityError,
    ) as error:
        # A dozen parsers of other people stand behind this call; what they have in common is that
        # bad bytes raise.
        raise ParseFailed(
            f"this file cannot be read: {type(error).__name__}: {error}",
            hint=f"It may be damaged or not what its name says. {_CONVERT}",
        ) from error


def _page_count(found: Sequence[Any]) -> int:
    return max([1, *(e.metadata.page_number or 1 for e in found)])


def _elements(found: Sequence[Any]) -> Iterator[Element]:
    items: list[str] = []
    for part in found:
        text = (part.text or "").strip()
        if part.category in _DROPPED or not text:
            continue
        kind = _KINDS.get(part.category, "text")
        if kind == "list":
            items.append("  " * _depth(part) + "- " + " ".join(text.split()))
            continue
        if items:
            yield Element("list", "\n".join(items))
            items = []
        table = _table(part) if part.category == "Table" else None
        if table is not None:
            yield table
        elif kind == "title":
            yield Element("title", " ".join(text.split()), level=min(_MAX_LEVEL, _depth(part) + 1))
        else:
            yield Element(kind, text)
    if items:
        yield Element("list", "\n".join(items))


def _depth(part: Any) -> int:
    return int(part.metadata.category_depth or 0)


def _table(part: Any) -> Element | None:
    """Tables come as HTML; the first row is the header unless the HTML says otherwise."""
    from bs4 import BeautifulSoup

    rows: list[list[str]] = []
    marked = 0
    for row in BeautifulSoup(part.metadata.text_as_html or "", "lxml").find_all("tr"):
        cells = row.find_all(["td", "th"])
        if cells and all(cell.name == "th" for cell in cells) and marked == len(rows):
            marked += 1
        rows.append([cell.get_text(" ") for cell in cells])
    header = marked or int(len(rows) > 1)
    return table_element(make_table(rows[:header], rows[header:]))
