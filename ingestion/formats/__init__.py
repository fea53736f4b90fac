"""File readers: the bytes of one file in, one ParsedDocument out.

Each reader is imported when a file of its format comes: a Markdown upload does not load a PDF
library.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePath

from ingestion.elements import Element, ParsedDocument
from ingestion.formats.detect import Format, code_language, decode, detect, extension_format
from ingestion.limits import DocumentLimits
from kb.errors import ParseFailed

__all__ = ["Format", "detect", "parse"]


def parse(data: bytes, name: str, limits: DocumentLimits | None = None) -> ParsedDocument:
    """Read one file. Its name counts only if the bytes do not determine the format. Raises
    ParseFailed for a file that becomes more than `limits`, before or during reading where possible.
    """
    limits = limits or DocumentLimits()
    limits.check_archive(data)
    kind = detect(data, name)
    document = _parse_binary(kind, data, name, limits) or _parse_text(kind, data, name)
    limits.check_document(document)
    warnings = list(document.warnings)
    promised = extension_format(name)
    if promised is not None and promised is not kind:
        wrong = f"named like {promised.value}, but its content is {kind.value}"
        warnings.insert(0, f"{wrong}: read as {kind.value}")
    if not document.elements and not document.failures:
        warnings.append("nothing to read in it")
    return replace(document, warnings=tuple(warnings))


def _parse_binary(
    kind: Format, data: bytes, name: str, limits: DocumentLimits
) -> ParsedDocument | None:
    """The document of a binary format; None for a text format."""
    match kind:
        case Format.PDF:
            from ingestion.formats.pdf.document import parse_pdf

            return parse_pdf(data, limits)
        case Format.DOCX:
            from ingestion.formats.office import parse_docx

            return parse_docx(data, limits)
        case Format.OTHER:
            from ingestion.formats.office import parse_other

            return parse_other(data, name, limits)
    return None


def _parse_text(kind: Format, data: bytes, name: str) -> ParsedDocument:
    decoded = decode(data, is_html=kind is Format.HTML)
    try:
        document = _read_text(kind, decoded.text, name)
    except RecursionError as error:
        raise ParseFailed(
            f"{name} nests its blocks too deeply to be read",
            hint="Flatten it or export it again; no document for readers nests hundreds of levels.",
        ) from error
    return replace(document, warnings=(*decoded.warnings, *document.warnings))


def _read_text(kind: Format, text: str, name: str) -> ParsedDocument:
    match kind:
        case Format.CODE:  # one block: blank lines and comments do not separate sections
            block = Element("code", text.strip("\n"), language=code_language(name))
            return ParsedDocument((block,), title=PurePath(name).name)
        case Format.MARKDOWN:
            from ingestion.formats.markdown import parse_markdown

            return parse_markdown(text)
        case Format.RST:
            from ingestion.formats.rst import parse_rst

            return parse_rst(text)
        case Format.ASCIIDOC:
            from ingestion.formats.asciidoc import parse_asciidoc

            return parse_asciidoc(text)
        case Format.LATEX:
            from ingestion.formats.pandoc import parse_latex

            return parse_latex(text)
        case Format.ROFF:
            from ingestion.formats.pandoc import parse_roff

            return parse_roff(text)
        case Format.HTML:
            from ingestion.formats.html import parse_html

            return parse_html(text)
        case Format.NOTEBOOK:
            from ingestion.formats.notebook import parse_notebook

            return parse_notebook(text)
    from ingestion.formats.text import parse_json_tables, parse_text

    tables = parse_json_tables(text) if PurePath(name).suffix.lower() == ".json" else None
    return tables or parse_text(text)
