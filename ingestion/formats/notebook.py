"""Jupyter notebooks (nbformat 4): Markdown cells, code cells, short text outputs.

Pictures, HTML and long outputs are left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ingestion.elements import Element, ParsedDocument
from ingestion.formats.markdown import parse_markdown
from kb.errors import ParseFailed

# A profiler prints its advice at the end of two or three thousand characters. Longer outputs are
# logs of training runs, in the 60 notebooks of the public chip documentation.
MAX_OUTPUT = 4_000
_TRACEBACK_LINES = 6
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_CELL_MAGIC = re.compile(r"^%%(bash|sh|javascript|html|perl|ruby|latex|writefile|cpp|cuda)\b")

Json = Mapping[str, Any]


def parse_notebook(text: str) -> ParsedDocument:
    """Read an .ipynb file."""
    try:
        notebook = json.loads(text)
    except json.JSONDecodeError as error:
        raise ParseFailed(
            f"the notebook is not valid JSON: {error}",
            hint="Open and save it in Jupyter, then upload it again.",
        ) from error
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if not isinstance(cells, list):
        raise ParseFailed(
            "this JSON is not a notebook of format 4: it has no list of cells",
            hint="Open it in a current Jupyter and save it: that converts older formats.",
        )
    language = _language(notebook)
    elements: list[Element] = []
    warnings: list[str] = []
    title = None
    for cell in cells:
        if not isinstance(cell, dict):
            continue
        if cell.get("cell_type") == "markdown":
            page = parse_markdown(_joined(cell.get("source")))
            title = title or page.title
            elements += page.elements
            warnings += page.warnings
        elif cell.get("cell_type") == "code":
            elements += _code_cell(cell, language)
    return ParsedDocument(tuple(elements), title=title, warnings=tuple(dict.fromkeys(warnings)))


def _language(notebook: Json) -> str:
    meta = _mapping(notebook.get("metadata"))
    for key, field in (("kernelspec", "language"), ("language_info", "name")):
        language = _mapping(meta.get(key)).get(field)
        if isinstance(language, str) and language:
            return language.lower()
    return "python"


def _code_cell(cell: Json, language: str) -> Iterator[Element]:
    source = _joined(cell.get("source")).strip("\n")
    if source.strip():
        magic = _CELL_MAGIC.match(source)
        yield Element("code", source, language=_magic_language(magic[1]) if magic else language)
    outputs = cell.get("outputs")
    streams = [_output(_mapping(o)) for o in outputs] if isinstance(outputs, list) else []
    for text in streams:
        if 0 < len(text.strip()) <= MAX_OUTPUT:
            yield Element("code", text.strip("\n"))


def _magic_language(magic: str) -> str | None:
    return {"sh": "bash", "writefile": None}.get(magic, magic)


def _output(output: Json) -> str:
    kind = output.get("output_type")
    if kind == "stream":
        return _plain(_joined(output.get("text")))
    if kind in ("execute_result", "display_data"):
        data = _mapping(output.get("data"))
        plain = _plain(_joined(data.get("text/plain")))
        # The plain text of a picture or a page is only "<Figure ...>".
        drawn = plain.startswith("<") or any(key.startswith("image/") for key in data)
        return "" if drawn else plain
    if kind == "error":
        return _error(output)
    return ""


def _error(output: Json) -> str:
    head = f"{output.get('ename', 'Error')}: {output.get('evalue', '')}"
    trace = output.get("traceback")
    lines = _plain("\n".join(map(str, trace))).splitlines() if isinstance(trace, list) else []
    tail = [line for line in lines if line.strip()][-_TRACEBACK_LINES:]
    body = "\n".join(tail)
    text = body if _plain(head).strip() in body else f"{_plain(head)}\n{body}".strip()
    return text if len(text) <= MAX_OUTPUT else _plain(head)[:MAX_OUTPUT]


def _plain(text: str) -> str:
    """Remove terminal colours; a line rewritten in place (progress bars) keeps its last state."""
    return "\n".join(line.rsplit("\r", 1)[-1] for line in _ANSI.sub("", text).split("\n"))


def _joined(source: object) -> str:
    if isinstance(source, list):
        return "".join(part for part in source if isinstance(part, str))
    return source if isinstance(source, str) else ""


def _mapping(value: object) -> Json:
    return value if isinstance(value, dict) else {}
