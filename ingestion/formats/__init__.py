"""Bytes of one file in, one ParsedDocument out.

The readers are imported when their format comes up: a Markdown upload should not pay for a PDF
library.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import PurePath

from ingestion.elements import Element, ParsedDocument
from ingestion.formats.detect import Format, code_language, decode, detect, extension_format
from kb.errors import ParseFailed

__all__ = ["Format", "detect", "parse"]


def parse(data: bytes, name: str) -> ParsedDocument:
    """Read one file; its name counts only where the bytes leave the format open."""
    kind = detect(data, name)
    if kind in (Format.PDF, Format.DOCX, Format.OTHER):
        document = _parse_binary(kind, data, name)
    else:
        decoded = decode(data, is_html=kind is Format.HTML)
        if kind is Format.CODE:
            document = _code_file(decoded.text, name)
        else:
            document = _parse_text(kind, decoded.text, name)
        document = replace(document, warnings=(*decoded.warnings, *document.warnings))
    promised = extension_format(name)
    if promised is not None and promised is not kind:
        wrong = (
            f"named like {promised.value}, but its content is {kind.value}: read as {kind.value}"
        )
        document = replace(document, warnings=(wrong, *document.warnings))
    if not document.elements and not document.failures:
        document = replace(document, warnings=(*document.warnings, "nothing to read in it"))
    return document


def _code_file(text: str, name: str) -> ParsedDocument:
    """A file of code as one block: its blank lines and comments are no marks of sections."""
    block = Element("code", text.strip("\n"), language=code_language(name))
    return ParsedDocument((block,), title=PurePath(name).name)


def _parse_text(kind: Format, text: str, name: str) -> ParsedDocument:
    if kind is Format.TEXT and PurePath(name).suffix.lower() == ".json":
        from ingestion.formats.json_tables import parse_json_tables

        tables = parse_json_tables(text)
        if tables is not None:
            return tables
    try:
        return _text_reader(kind)(text)
    except RecursionError as error:
        raise ParseFailed(
            f"{name} nests its blocks too deeply to be read",
            hint="Flatten it or export it again; no document for readers nests hundreds of levels.",
        ) from error


def _parse_binary(kind: Format, data: bytes, name: str) -> ParsedDocument:
    if kind is Format.PDF:
        from ingestion.formats.pdf.document import parse_pdf

        return parse_pdf(data)
    if kind is Format.DOCX:
        from ingestion.formats.docx import parse_docx

        return parse_docx(data)
    from ingestion.formats.adapter import parse_other

    return parse_other(data, name)


def _text_reader(kind: Format) -> Callable[[str], ParsedDocument]:
    if kind is Format.MARKDOWN:
        from ingestion.formats.markdown import parse_markdown

        return parse_markdown
    if kind is Format.RST:
        from ingestion.formats.rst.document import parse_rst

        return parse_rst
    if kind is Format.HTML:
        from ingestion.formats.html import parse_html

        return parse_html
    if kind is Format.NOTEBOOK:
        from ingestion.formats.notebook import parse_notebook

        return parse_notebook
    from ingestion.formats.text import parse_text

    return parse_text
