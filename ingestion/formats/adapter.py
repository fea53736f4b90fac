"""Formats without a reader of their own (PPTX, XLSX, EPUB, RTF, mail, ODT, ...), through
`unstructured`.

What that library gets wrong silently is stopped here: an empty answer is an error, never an empty
document, and no model is fetched from the network. Its import takes seconds, so it happens in the
first call.

unstructured loads a spaCy model for telling prose from titles and, where it is missing, tries to
download it: on a machine without internet that fails, in some formats without an exception. A blank
pipeline that only splits sentences is put in its place. That place is private to the library: the
version is pinned exactly. Without the model every short line of a slide is called a title, so of a
slide only the title shape counts as a heading.
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

from ingestion.elements import Box, Element, ElementKind, ParsedDocument
from ingestion.formats.detect import container
from ingestion.formats.tables import make_table, table_element
from kb.errors import KernloreError, ParseFailed, UnsupportedFormat

_EXTRA = "pip install 'kernlore[unstructured]'"
_CONVERT = "Convert the file to PDF, DOCX, HTML or Markdown and upload that."


@dataclass(frozen=True)
class _Reader:
    """Where unstructured reads a format: its module and function, and the packages that this needs
    beside unstructured itself. `pandoc`: the file is converted by pandoc first. `options`: keyword
    arguments of the function.
    """

    module: str
    function: str
    packages: tuple[str, ...] = ()
    pandoc: bool = False
    options: tuple[tuple[str, Any], ...] = ()


_SHEET_PACKAGES = ("openpyxl", "pandas", "xlrd", "msoffcrypto-tool", "networkx")
_WITHOUT_ATTACHMENTS = (("process_attachments", False),)
_READERS = {
    "pptx": _Reader(
        "pptx", "partition_pptx", ("python-pptx",), options=(("include_slide_notes", True),)
    ),
    "xlsx": _Reader("xlsx", "partition_xlsx", _SHEET_PACKAGES),
    "xls": _Reader("xlsx", "partition_xlsx", _SHEET_PACKAGES),
    "epub": _Reader("epub", "partition_epub", ("pypandoc_binary",), pandoc=True),
    "odt": _Reader("odt", "partition_odt", ("pypandoc_binary", "python-docx"), pandoc=True),
    "rtf": _Reader("rtf", "partition_rtf", ("pypandoc_binary",), pandoc=True),
    "org": _Reader("org", "partition_org", ("pypandoc_binary",), pandoc=True),
    "eml": _Reader("email", "partition_email", options=_WITHOUT_ATTACHMENTS),
    "msg": _Reader("msg", "partition_msg", ("python-oxmsg",), options=_WITHOUT_ATTACHMENTS),
    "xml": _Reader("xml", "partition_xml"),
}
_OLD_OFFICE = {"doc": "docx", "ppt": "pptx"}
_KINDS: dict[str, ElementKind] = {
    "Title": "title",
    "Header": "title",
    "ListItem": "list",
    "CodeSnippet": "code",
    "FigureCaption": "caption",
}
_WORKBOOKS = ("xlsx", "xls", "ods")
_DELIMITERS = {"csv": ",", "tsv": "\t"}
_DROPPED = frozenset({"PageBreak", "Footer", "PageNumber", "Image"})
_SENTENCE = re.compile(r"\w+ \w+ .*[.:;,]\s*$", re.DOTALL)
_MAX_LEVEL = 6
_MAX_REASON = 200  # characters of another library's error
# What the dynamic linker says where the limit of the parser's process is reached.
_NO_MEMORY = re.compile(r"failed to map segment|cannot allocate memory", re.IGNORECASE)


def parse_other(data: bytes, name: str) -> ParsedDocument:
    """Read a file that no other reader knows, by its content where that is plain (RTF, office
    files), else by its extension.

    Titles become headings with their levels, tables keep their rows, slides and sheets are pages
    (`Box` without a place). Raises UnsupportedFormat for a format without a reader or whose package
    is missing, ParseFailed for a damaged or empty file; never returns a document without elements.
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
    attached, warnings = _attachments(_attached_files(data, extension))
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


# Calling unstructured


def _partitioned(reader: _Reader, extension: str, data: bytes, name: str) -> list[Any]:
    """unstructured's elements of one file, in reading order."""
    function = _loaded(reader, extension)
    from unstructured.errors import UnprocessableEntityError

    try:
        return function(
            file=io.BytesIO(data), metadata_filename=PurePath(name).name, **dict(reader.options)
        )
    except ImportError as error:
        raise _missing(reader, extension, error) from error
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
        reason = " ".join(str(error).split())[:_MAX_REASON]
        raise ParseFailed(
            f"this .{extension} file cannot be read: {type(error).__name__}: {reason}",
            hint=f"It may be damaged, encrypted or not what its name says. {_CONVERT}",
        ) from error


def _loaded(reader: _Reader, extension: str) -> Callable[..., list[Any]]:
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
    """spaCy imports torch where it is installed, for models that are not used here: it takes
    seconds and hundreds of megabytes."""
    absent = "torch" not in sys.modules
    if absent:
        sys.modules["torch"] = None  # type: ignore[assignment]  # importing it fails
    try:
        yield
    finally:
        if absent:
            del sys.modules["torch"]


def _require_pandoc(extension: str) -> None:
    """The package pypandoc without `_binary` brings no program, and fails in the middle of a file
    where none is installed.
    """
    import pypandoc

    try:
        pypandoc.get_pandoc_path()
    except OSError as error:
        if _installed("pypandoc_binary"):
            raise UnsupportedFormat(
                f"reading .{extension} needs the program pandoc; it is installed, but does not"
                " start",
                hint=f"Check that this user may run what lies in the package pypandoc. Or:"
                f" {_CONVERT}",
            ) from error
        raise UnsupportedFormat(
            f"reading .{extension} needs the program pandoc, which is not installed",
            hint=f"Install pypandoc_binary, which contains it: {_EXTRA}",
        ) from error


def _missing(reader: _Reader, extension: str, error: ImportError) -> UnsupportedFormat:
    """What is really missing: a package that is not installed, or one that cannot be imported.
    Raises MemoryError where memory is what an import lacked.
    """
    absent = [name for name in ("unstructured", *reader.packages) if not _installed(name)]
    if not absent:
        if _NO_MEMORY.search(str(error)):
            raise MemoryError from error
        reason = str(error).strip().rpartition("\n")[2]  # numpy's begins with a page of advice
        return UnsupportedFormat(
            f"reading .{extension} failed, as an installed package cannot be imported:"
            f" {reason[-_MAX_REASON:]}",
            hint=f"`pip check` says which versions do not fit together. Or: {_CONVERT}",
        )
    return UnsupportedFormat(
        f"reading .{extension} needs {' and '.join(absent)}, which"
        f" {'is' if len(absent) == 1 else 'are'} not installed",
        hint=f"Install what is missing: {_EXTRA}. Or: {_CONVERT}",
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
    """Elements one by one, except that the items of a list become one element."""
    kept = [part for part in parts if part.category not in _DROPPED and (part.text or "").strip()]
    for is_item, group in groupby(kept, key=lambda part: part.category == "ListItem"):
        if is_item:
            yield _list(list(group))
        else:
            yield from map(_element, group)


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
    """One list of its items, indented by depth. Some formats count depth from 0, some from 1."""
    outermost = min(map(_depth, items))
    lines = [
        "  " * (_depth(item) - outermost) + "- " + " ".join(item.text.split()) for item in items
    ]
    return Element("list", "\n".join(lines), boxes=_page(items[0]))


def _depth(part: Any) -> int:
    return int(part.metadata.category_depth or 0)


def _page(part: Any) -> tuple[Box, ...]:
    """The slide or sheet that an element is on."""
    number = part.metadata.page_number
    return (Box(number - 1, str(number), 0.0, 0.0, 0.0, 0.0),) if number else ()


def _slides(parts: Sequence[Any]) -> Iterator[Element]:
    """Each slide under its title; its paragraphs are one list. Speaker's notes come before the
    title and belong under it.
    """
    kept = [part for part in parts if part.category not in _DROPPED and (part.text or "").strip()]
    for _, slide in groupby(kept, key=lambda part: part.metadata.page_number):
        titles: list[Any] = []
        others: list[Any] = []
        for part in slide:
            is_title = part.category == "Title" and _depth(part) == 0
            (titles if is_title else others).append(part)
        if titles:
            text = " ".join(" ".join(part.text.split()) for part in titles)
            yield Element("title", text, level=1, boxes=_page(titles[0]))
        # Paragraphs of a slide count as titles or list items by how their bullet is stored; notes
        # are prose.
        for category, group in groupby(others, key=_slide_category):
            members = list(group)
            if category == "paragraph" and len(members) > 1:
                yield _list(members)
            else:
                yield from (
                    _element(part)
                    if category != "paragraph"
                    else Element("text", part.text.strip(), boxes=_page(part))
                    for part in members
                )


def _slide_category(part: Any) -> str:
    return "paragraph" if part.category in ("Title", "ListItem") else str(part.category)


def _sheets(parts: Sequence[Any]) -> Iterator[Element]:
    """Each sheet under its name; what unstructured takes for a title in it stands below that."""
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
            yield (
                part.get_filename() or "attachment",
                content if isinstance(content, bytes) else None,
            )
    elif extension == "msg":
        from oxmsg import Message

        for attachment in Message.load(io.BytesIO(data)).attachments:
            yield attachment.file_name or "attachment", attachment.file_bytes


def _attachments(files: Iterable[tuple[str, bytes | None]]) -> tuple[list[Element], list[str]]:
    """The attachments of a mail, each under its file name, by Kernlore's own readers; a warning for
    each that cannot be read. unstructured would skip those without a word.
    """
    from ingestion.formats import parse

    elements: list[Element] = []
    warnings: list[str] = []
    for name, content in files:
        try:
            if content is None:
                raise UnsupportedFormat("it is a message of its own", hint=_CONVERT)
            document = parse(content, name)
        except KernloreError as error:
            warnings.append(f"attachment {name} was not read: {error.message}")
            continue
        elements.append(Element("title", name, level=2))
        # Pages of an attachment are not pages of the mail.
        elements += (replace(element, boxes=()) for element in _lowered(document.elements, 2))
        warnings += (f"attachment {name}: {warning}" for warning in document.warnings)
    return elements, warnings


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
