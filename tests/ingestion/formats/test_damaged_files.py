"""Files with bytes changed, lost, repeated or exchanged: each is read, or refused with a message.

The examples are few, in a fixed order. The parser runs in the process of the test, so that any
other exception fails it; in use it also has limits on memory and time (`ingestion.parse_process`).
"""

from __future__ import annotations

import io
import json

import pytest
from docx import Document
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from reportlab.pdfgen.canvas import Canvas

from ingestion.elements import ParsedDocument, document_from_json, document_to_json
from ingestion.formats import parse
from kb.errors import KernloreError

pytestmark = pytest.mark.slow(seconds=5)

MARKDOWN = (
    b"---\ntitle: Queue\n---\n# Queue\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```c\nint x;\n```\n\n"
    b"> quoted\n\n1. first\n   - inner `code` [link](http://a.example/)\n\n$$x^2$$\n"
)
RST = (
    b"Queue\n=====\n\n.. list-table:: Rows\n   :header-rows: 1\n\n   * - a\n     - b\n   * - 1\n"
    b"     - 2\n\n.. code-block:: c\n\n   int x;\n\n+---+---+\n| a | b |\n+---+---+\n\n"
    b".. note:: Wait.\n"
)
HTML = (
    b"<html><head><meta charset='utf-8'><title>Queue</title></head><body><h1>Queue</h1><table>"
    b"<tr><th colspan=2>a</th></tr><tr><td rowspan='2'>1</td><td>2</td></tr></table><pre>int x;"
    b"</pre><ul><li>one<ul><li>two</ul></ul><script>no()</script></body></html>"
)
NOTEBOOK = json.dumps(
    {
        "nbformat": 4,
        "nbformat_minor": 5,
        "metadata": {"kernelspec": {"name": "python3", "language": "python"}},
        "cells": [
            {"cell_type": "markdown", "metadata": {}, "source": ["# Queue\n", "It waits."]},
            {
                "cell_type": "code",
                "metadata": {},
                "execution_count": 1,
                "source": "x = 1",
                "outputs": [{"output_type": "stream", "name": "stdout", "text": ["1\n"]}],
            },
        ],
    }
).encode()
TEXT = "QUEUE\n\nIt holds 8 rows.\n\n  a   b\n  1   2\n\u00e4\u4e2d\n".encode()


def pdf() -> bytes:
    buffer = io.BytesIO()
    canvas = Canvas(buffer, invariant=True, pageCompression=0)
    canvas.drawString(72, 720, "The queue holds 8 rows.")
    canvas.bookmarkPage("a")
    canvas.addOutlineEntry("Queue", "a")
    canvas.showPage()
    canvas.save()
    return buffer.getvalue()


def docx() -> bytes:
    document = Document()
    document.add_heading("Queue", 1)
    document.add_paragraph("It holds 8 rows.")
    document.add_table(2, 2).cell(0, 0).text = "a"
    buffer = io.BytesIO()
    document.save(buffer)
    return buffer.getvalue()


CHEAP = {
    "manual.md": MARKDOWN,
    "manual.rst": RST,
    "manual.html": HTML,
    "manual.ipynb": NOTEBOOK,
    "manual.txt": TEXT,
}
COSTLY = {"manual.pdf": pdf(), "manual.docx": docx()}
PIECES = (
    *CHEAP.values(),
    *(b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\x1b[31m", b"<" * 40, b"[" * 40, b"{" * 40),
    *(b"| " * 60, b"> " * 60, b"&#x110000;", b"<!--", b"]]>", b"```", b"9" * 400, b"%PDF-1.7\n"),
)


@st.composite
def damaged(draw: st.DrawFn, files: dict[str, bytes]) -> tuple[bytes, str]:
    """One of the files after a few changes, under its name or another."""
    data = bytearray(draw(st.sampled_from(list(files.values()))))
    for _ in range(draw(st.integers(1, 5))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(0, 60)))
        change = draw(st.sampled_from(("lose", "repeat", "put", "set", "cut")))
        if change == "lose":
            del data[start:end]
        elif change == "repeat":
            data[start:start] = data[start:end] * draw(st.integers(1, 30))
        elif change == "put":
            data[start:start] = draw(st.sampled_from(PIECES))
        elif change == "set":
            data[start:end] = draw(st.binary(max_size=12))
        else:
            del data[end:]
    name = draw(st.sampled_from([*files, "manual", "manual.bin"]))
    return bytes(data), name


def read(data: bytes, name: str) -> ParsedDocument | None:
    """The document as the parser process returns it; None if refused."""
    try:
        document = parse(data, name)
    except KernloreError as error:
        assert error.message and error.hint and "Traceback" not in error.message
        return None
    again = document_from_json(json.loads(json.dumps(document_to_json(document))))
    assert again == document
    assert document.elements or document.failures or document.warnings
    return document


@pytest.mark.parametrize("name", [*CHEAP, *COSTLY])
def test_whole_files_are_read(name: str) -> None:
    document = read({**CHEAP, **COSTLY}[name], name)
    assert document is not None and document.elements and not document.failures


@given(damaged(CHEAP))
@example((b"", "manual.md"))
@settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
def test_damaged_text_is_read_or_refused(file: tuple[bytes, str]) -> None:
    read(*file)


@given(damaged(COSTLY))
@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_damaged_pdf_or_word_file_is_read_or_refused(file: tuple[bytes, str]) -> None:
    read(*file)
