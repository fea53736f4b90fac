"""Office files, books and mail (PPTX, XLSX, EPUB, RTF, ODT, EML, ...) through `unstructured`, DOCX
and delimited text.

An empty result of that library is an error here, never an empty document. Importing it takes
seconds, so the first call does.

unstructured loads a spaCy model to tell prose from titles, and downloads it if it is missing;
without internet that fails, in some formats silently. It gets a blank pipeline instead, which only
splits sentences, through a private function: the version is pinned exactly. Without the model it
calls every short line of a slide a title, so only the title shape of a slide is a heading.
"""

from __future__ import annotations

import csv
import email
import email.policy
import importlib
import importlib.metadata
import io
import logging
import os
import re
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path, PurePath
from typing import Any

from ingestion.elements import (
    Box,
    Element,
    ElementKind,
    ParsedDocument,
    make_table,
    metadata_title,
    table_element,
)
from ingestion.formats.detect import container
from ingestion.limits import DocumentLimits
from kb.errors import KernloreError, ParseFailed, UnsupportedFormat

_EXTRA = "pip install 'kernlore[unstructured]'"
_CONVERT = "Convert the file to PDF, DOCX, HTML or Markdown and upload that."


@dataclass(frozen=True)
class _Partitioner:
    """The module and function of unstructured that read a format, with keyword arguments, and the
    packages that they need. `pandoc`: pandoc converts the file first."""

    module: str
    function: str
    packages: tuple[str, ...] = ()
    pandoc: bool = False
    options: tuple[tuple[str, Any], ...] = ()


_SHEET_PACKAGES = ("openpyxl", "pandas", "xlrd", "msoffcrypto-tool", "networkx")
_WITHOUT_ATTACHMENTS = (("process_attachments", False),)
_READERS = {
    "pptx": _Partitioner(
        "pptx", "partition_pptx", ("python-pptx",), options=(("include_slide_notes", True),)
    ),
    "xlsx": _Partitioner("xlsx", "partition_xlsx", _SHEET_PACKAGES),
    "xls": _Partitioner("xlsx", "partition_xlsx", _SHEET_PACKAGES),
    "epub": _Partitioner("epub", "partition_epub", ("pypandoc_binary",), pandoc=True),
    "odt": _Partitioner("odt", "partition_odt", ("pypandoc_binary", "python-docx"), pandoc=True),
    "rtf": _Partitioner("rtf", "partition_rtf", ("pypandoc_binary",), pandoc=True),
    "org": _Partitioner("org", "partition_org", ("pypandoc_binary",), pandoc=True),
    "eml": _Partitioner("email", "partition_email", options=_WITHOUT_ATTACHMENTS),
    "msg": _Partitioner("msg", "partition_msg", ("python-oxmsg",), options=_WITHOUT_ATTACHMENTS),
    "xml": _Partitioner("xml", "partition_xml"),
}
_OLD_OFFICE = {"doc": "docx", "ppt": "pptx"}
_KINDS: dict[str, ElementKind] = {
    "Title": "title",
    "Header": "title",
    "ListItem": "list",
    "CodeSnippet": "code",
    "FigureCaption": "caption",
}
# Elements of XML whose white space counts.
_VERBATIM = frozenset(
    ("programlisting", "screen", "literallayout", "synopsis", "codeblock", "code-block", "pre")
)
_WORKBOOKS = ("xlsx", "xls", "ods")
_DELIMITERS = {"csv": ",", "tsv": "\t"}
_DROPPED = frozenset({"PageBreak", "Footer", "PageNumber", "Image"})
_SENTENCE = re.compile(r"\w+ \w+ .*[.:;,]\s*$", re.DOTALL)
# Exceptions that the parsers of a dozen packages raise for damaged files.
_BAD_BYTES = (
    *(ValueError, LookupError, AttributeError, TypeError, OSError, EOFError, RuntimeError),
    *(SyntaxError, zipfile.BadZipFile),
)
_MAX_LEVEL = 6
_MAX_REASON = 200  # characters of another library's error
# Messages of the dynamic linker at the memory limit of the parser process.
_NO_MEMORY = re.compile(r"failed to map segment|cannot allocate memory", re.IGNORECASE)


def parse_other(data: bytes, name: str, limits: DocumentLimits | None = None) -> ParsedDocument:
    """Read a file by its content if that tells its format (RTF, office files), else by its
    extension.

    Titles become headings with levels, tables keep their rows, slides and sheets are pages. Raises
    UnsupportedFormat for a format without a reader or whose package is missing, and ParseFailed for
    a damaged file or one without elements.
    """
    extension = container(data) or PurePath(name).suffix.lower().lstrip(".")
    if extension in _DELIMITERS:
        return _delimited(data, _DELIMITERS[extension], extension)
    reader = _READERS.get(extension)
    if reader is None:
        raise _no_reader(extension)
    parts = _partitioned(reader, extension, data, name)
    elements = list(_ARRANGED.get(extension, _elements)(parts))
    if not elements:
        raise _nothing(extension)
    attached, warnings = _attachments(_attached_files(data, extension), limits)
    title = _stated_title(data, extension) if reader.pandoc else None
    if extension not in _WORKBOOKS:  # a sheet's name is no title: the file's is one
        title = title or next((e.text for e in elements if e.kind == "title"), None)
    pages = max([1, *(part.metadata.page_number or 1 for part in parts)])
    return ParsedDocument(
        (*elements, *attached), title=title, pages_seen=pages, warnings=tuple(warnings)
    )


def _no_reader(extension: str) -> UnsupportedFormat:
    newer = _OLD_OFFICE.get(extension)
    if newer is not None:
        return UnsupportedFormat(
            f"no reader for .{extension} files, the binary format of Office before 2007",
            hint=f"Save it as .{newer} and upload that.",
        )
    return UnsupportedFormat(f"no reader for .{extension or '(no extension)'} files", hint=_CONVERT)


def _nothing(extension: str) -> ParseFailed:
    return ParseFailed(
        f"nothing could be read from this .{extension} file",
        hint=f"It may be empty, or its text may be images. {_CONVERT}",
    )


def _delimited(data: bytes, delimiter: str, extension: str) -> ParsedDocument:
    """Delimited text as one table, whose first row is the header."""
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


# Calling unstructured


def _partitioned(reader: _Partitioner, extension: str, data: bytes, name: str) -> list[Any]:
    """unstructured's elements of one file, in reading order."""
    function = _loaded(reader, extension)
    from unstructured.errors import UnprocessableEntityError

    try:
        if extension == "xml":
            data = _with_inline_text(data)
        return function(
            file=io.BytesIO(data), metadata_filename=PurePath(name).name, **dict(reader.options)
        )
    except ImportError as error:
        raise _missing(reader, extension, error) from error
    except (*_BAD_BYTES, UnprocessableEntityError) as error:
        reason = " ".join(str(error).split())[:_MAX_REASON]
        raise ParseFailed(
            f"this .{extension} file cannot be read: {type(error).__name__}: {reason}",
            hint=f"It may be damaged, encrypted or not what its name says. {_CONVERT}",
        ) from error


def _with_inline_text(data: bytes) -> bytes:
    """An XML file with the elements inside of text replaced by their text: unstructured reads only
    what precedes the first of them. Raises SyntaxError for a damaged file."""
    from lxml import etree

    # Entities stay references: expanding them could read files or fill the memory.
    parser = etree.XMLParser(
        resolve_entities=False, no_network=True, remove_comments=True, remove_pis=True
    )
    root = etree.fromstring(data, parser)
    for element in list(root.iter(etree.Element))[::-1]:  # inner elements first
        pieces = [element.text, *(child.tail for child in element)]
        if len(element) and any((piece or "").strip() for piece in pieces):
            text = "".join(element.itertext())
            as_is = any(etree.QName(e).localname in _VERBATIM for e in element.iter(etree.Element))
            del element[:]
            element.text = text if as_is else " ".join(text.split())
    flat: bytes = etree.tostring(root.getroottree())
    return flat


def _loaded(reader: _Partitioner, extension: str) -> Callable[..., list[Any]]:
    os.environ.setdefault("UNSTRUCTURED_DISABLE_NOTICE", "1")
    os.environ.setdefault("SCARF_NO_ANALYTICS", "true")
    try:
        with _without_torch():
            module = importlib.import_module(f"unstructured.partition.{reader.module}")
            _keep_offline()
        if reader.pandoc:
            _require_pandoc(extension)
    except ImportError as error:
        raise _missing(reader, extension, error) from error
    function: Callable[..., list[Any]] = getattr(module, reader.function)
    return function


@contextmanager
def _without_torch() -> Iterator[None]:
    """Keep spaCy from importing torch, for models that are not used here: that takes seconds and
    hundreds of megabytes."""
    absent = "torch" not in sys.modules
    if absent:
        sys.modules["torch"] = None  # type: ignore[assignment]  # importing it fails
    try:
        yield
    finally:
        if absent:
            del sys.modules["torch"]


def _require_pandoc(extension: str) -> None:
    """Raise UnsupportedFormat without pandoc. The package pypandoc does not contain it, and would
    fail in the middle of a file."""
    import pypandoc

    try:
        pypandoc.get_pandoc_path()
    except OSError as error:
        if _installed("pypandoc_binary"):
            raise UnsupportedFormat(
                f"reading .{extension} needs the program pandoc; it is installed, but does not"
                " start",
                hint=f"Check that this user may run the files of that package. Or: {_CONVERT}",
            ) from error
        raise UnsupportedFormat(
            f"reading .{extension} needs the program pandoc, which is not installed",
            hint=f"Install pypandoc_binary, which contains it: {_EXTRA}",
        ) from error


def _missing(reader: _Partitioner, extension: str, error: ImportError) -> UnsupportedFormat:
    """The error for an import that failed: a package is not installed or cannot be imported.
    Raises MemoryError if the import ran out of memory."""
    absent = [name for name in ("unstructured", *reader.packages) if not _installed(name)]
    if not absent:
        if _NO_MEMORY.search(str(error)):
            raise MemoryError from error
        reason = str(error).strip().rpartition("\n")[2]  # numpy's begins with a page of advice
        return UnsupportedFormat(
            f"reading .{extension} failed, as an installed package cannot be imported:"
            f" {reason[-_MAX_REASON:]}",
            hint=f"`pip check` lists versions that do not fit together. Or: {_CONVERT}",
        )
    verb = "is" if len(absent) == 1 else "are"
    return UnsupportedFormat(
        f"reading .{extension} needs {' and '.join(absent)}, which {verb} not installed",
        hint=f"Install it: {_EXTRA}. Or: {_CONVERT}",
    )


def _installed(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _keep_offline() -> None:
    import spacy
    from unstructured.nlp import tokenize

    def blank() -> Any:
        pipeline = spacy.blank("en")
        pipeline.add_pipe("sentencizer")
        return pipeline

    tokenize._load_spacy_model = blank
    logging.getLogger("unstructured").setLevel(logging.ERROR)


def _stated_title(data: bytes, extension: str) -> str | None:
    """The title in the metadata of a book or an office file, which unstructured leaves out."""
    import pypandoc

    with tempfile.TemporaryDirectory(prefix="kernlore-") as folder:
        path, template = Path(folder, f"file.{extension}"), Path(folder, "title")
        path.write_bytes(data)
        template.write_text("$title$", encoding="utf-8")
        try:
            title = pypandoc.convert_file(
                str(path), "plain", extra_args=["--template", str(template)], sandbox=True
            )
        except RuntimeError:  # the text was read; a title is not worth losing it
            return None
    return " ".join(title.split()) or None


# Elements, as each kind of file arranges them


def _elements(parts: Sequence[Any]) -> Iterator[Element]:
    """The elements of a document; list items in a row become one element."""
    for is_item, group in groupby(_with_text(parts), key=lambda part: part.category == "ListItem"):
        if is_item:
            yield _list(list(group))
        else:
            yield from map(_element, group)


def _with_text(parts: Sequence[Any]) -> Iterator[Any]:
    return (part for part in parts if part.category not in _DROPPED and (part.text or "").strip())


def _element(part: Any) -> Element:
    kind, boxes = _KINDS.get(part.category, "text"), _page(part)
    table = _table(part) if part.category == "Table" else None
    if table is not None:
        return replace(table, boxes=boxes)
    if kind == "title" and part.metadata.category_depth is None and _SENTENCE.search(part.text):
        kind = "text"  # without a depth, the title was guessed from its words
    if kind == "title":
        level = min(_MAX_LEVEL, _depth(part) + 1)
        return Element("title", " ".join(part.text.split()), level=level, boxes=boxes)
    text = part.text.strip("\n") if kind == "code" else part.text.strip()
    return Element(kind, text, boxes=boxes)


def _list(items: Sequence[Any]) -> Element:
    """A list with its items indented by depth. Some formats count depth from 0, some from 1."""
    outermost = min(map(_depth, items))
    lines = [
        "  " * (_depth(item) - outermost) + "- " + " ".join(item.text.split()) for item in items
    ]
    return Element("list", "\n".join(lines), boxes=_page(items[0]))


def _depth(part: Any) -> int:
    return int(part.metadata.category_depth or 0)


def _page(part: Any) -> tuple[Box, ...]:
    """The slide or sheet of an element, as a box without coordinates."""
    number = part.metadata.page_number
    return (Box(number - 1, str(number), 0.0, 0.0, 0.0, 0.0),) if number else ()


def _slides(parts: Sequence[Any]) -> Iterator[Element]:
    """Each slide under its title, its paragraphs as one list. Speaker notes come before the title
    and are put under it."""
    for _, slide in groupby(_with_text(parts), key=lambda part: part.metadata.page_number):
        titles: list[Any] = []
        others: list[Any] = []
        for part in slide:
            is_title = part.category == "Title" and _depth(part) == 0
            (titles if is_title else others).append(part)
        if titles:
            text = " ".join(" ".join(part.text.split()) for part in titles)
            yield Element("title", text, level=1, boxes=_page(titles[0]))
        # A paragraph is a title or a list item by how its bullet is stored. Notes are prose.
        for is_paragraph, group in groupby(others, key=_is_paragraph):
            members = list(group)
            if not is_paragraph:
                yield from map(_element, members)
            elif len(members) > 1:
                yield _list(members)
            else:
                yield Element("text", members[0].text.strip(), boxes=_page(members[0]))


def _is_paragraph(part: Any) -> bool:
    return part.category in ("Title", "ListItem")


def _sheets(parts: Sequence[Any]) -> Iterator[Element]:
    """Each sheet under its name; the titles that unstructured finds in it are one level deeper."""
    for name, sheet in groupby(parts, key=lambda part: part.metadata.page_name):
        members = list(sheet)
        if name:
            yield Element("title", name, level=1, boxes=_page(members[0]))
        yield from _lowered(_elements(members), 1 if name else 0)


def _message(parts: Sequence[Any]) -> Iterator[Element]:
    """The body of a mail under its subject."""
    subject = next((part.metadata.subject for part in parts if part.metadata.subject), None)
    if subject:
        yield Element("title", " ".join(subject.split()), level=1)
    yield from _lowered(_elements(parts), 1 if subject else 0)


def _lowered(elements: Iterable[Element], by: int) -> Iterator[Element]:
    for element in elements:
        if element.level is not None:
            element = replace(element, level=min(_MAX_LEVEL, element.level + by))
        yield element


_ARRANGED: dict[str, Callable[[Sequence[Any]], Iterator[Element]]] = {
    "pptx": _slides,
    "xlsx": _sheets,
    "xls": _sheets,
    "eml": _message,
    "msg": _message,
}


def _attached_files(data: bytes, extension: str) -> Iterator[tuple[str, bytes | None]]:
    """Name and bytes of every attachment of a mail; None for a message in a message."""
    if extension == "eml":
        message = email.message_from_bytes(data, policy=email.policy.default)
        for part in message.iter_attachments():
            content = part.get_payload(decode=True)
            name = part.get_filename() or "attachment"
            yield name, content if isinstance(content, bytes) else None
    elif extension == "msg":
        from oxmsg import Message

        for attachment in Message.load(io.BytesIO(data)).attachments:
            yield attachment.file_name or "attachment", attachment.file_bytes


def _attachments(
    files: Iterable[tuple[str, bytes | None]], limits: DocumentLimits | None
) -> tuple[list[Element], list[str]]:
    """The attachments of a mail, each under its file name, read by `parse`, with a warning for each
    that cannot be read. unstructured would skip those silently."""
    from ingestion.formats import parse

    elements: list[Element] = []
    warnings: list[str] = []
    for name, content in files:
        try:
            if content is None:
                raise UnsupportedFormat("it is a message itself", hint=_CONVERT)
            document = parse(content, name, limits)
        except KernloreError as error:
            warnings.append(f"attachment {name} was not read: {error.message}")
            continue
        elements.append(Element("title", name, level=2))
        # Pages of an attachment are not pages of the mail.
        elements += (replace(element, boxes=()) for element in _lowered(document.elements, 2))
        warnings += (f"attachment {name}: {warning}" for warning in document.warnings)
    return elements, warnings


def _table(part: Any) -> Element | None:
    """A table from its HTML; the first row is the header if no row is marked as one."""
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


# -- DOCX: heading levels, lists, tables, code and footnotes
#
# Uses python-docx, not unstructured, which flattens nested lists, returns a table as one string
# without a header row, and loads a language model for plain paragraphs. A DOCX has no pages until
# a program lays it out, so elements have no boxes.

_W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_FALLBACK = "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback"
_CODE_STYLE = re.compile(r"code|source|listing|preformatted|verbatim|macro ?text", re.I)
_LIST_STYLE = re.compile(r"^list|bullet", re.I)
_CONTENTS_STYLE = re.compile(r"^toc(?:\s|heading|\d|$)", re.I)
_MONO = re.compile(r"mono|courier|consol|menlo|typewriter", re.I)
_MAX_DOCX_LEVEL = 6
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
    elements = _docx_elements(document, styles, limits or DocumentLimits()) + _footnotes(document)
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


def _docx_elements(document: Any, styles: dict[str, Any], limits: DocumentLimits) -> list[Element]:
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
    table = _docx_table(node, caption)
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
            return min(_MAX_DOCX_LEVEL, int(match.group(1)))
        outline = style.element.find(f"{_W}pPr/{_W}outlineLvl")
        style = style.base_style
    level = int(outline.get(f"{_W}val", "9")) if outline is not None else 9
    return level + 1 if level < _MAX_DOCX_LEVEL else None


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


def _docx_table(node: Any, caption: str | None) -> Element | None:
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
