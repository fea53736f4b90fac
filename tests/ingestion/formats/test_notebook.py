"""Notebooks: text, code and short outputs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ingestion.elements import Element
from ingestion.formats import parse
from ingestion.formats.notebook import MAX_OUTPUT, parse_notebook
from kb.errors import ParseFailed


def notebook(*cells: dict[str, Any], **metadata: Any) -> str:
    return json.dumps(
        {"nbformat": 4, "nbformat_minor": 5, "metadata": metadata, "cells": list(cells)}
    )


def code(source: str, *outputs: dict[str, Any]) -> dict[str, Any]:
    return {
        "cell_type": "code",
        "source": source.splitlines(keepends=True),
        "outputs": list(outputs),
    }


def test_cells_in_order() -> None:
    document = parse_notebook(
        notebook(
            {"cell_type": "markdown", "source": ["# Tiles\n", "\n", "A tile has memory."]},
            code("x = 1\nprint(x)", {"output_type": "stream", "name": "stdout", "text": ["1\n"]}),
            code("%%bash\nmake"),
            kernelspec={"language": "Julia"},
        )
    )
    assert document.title == "Tiles"
    assert document.elements == (
        Element("title", "Tiles", level=1),
        Element("text", "A tile has memory."),
        Element("code", "x = 1\nprint(x)", language="julia"),
        Element("code", "1"),
        Element("code", "%%bash\nmake", language="bash"),
    )


def test_images_html_and_long_outputs_are_dropped() -> None:
    outputs = (
        {"output_type": "display_data", "data": {"image/png": "AAAA", "text/plain": "<Figure>"}},
        {"output_type": "execute_result", "data": {"text/html": "<b>x</b>", "text/plain": "<x>"}},
        {"output_type": "stream", "text": "y" * (MAX_OUTPUT + 1)},
        {"output_type": "execute_result", "data": {"text/plain": "42"}},
    )
    document = parse_notebook(notebook(code("f()", *outputs)))
    assert [e.text for e in document.elements] == ["f()", "42"]


def test_error_keeps_its_name_and_end_of_its_traceback() -> None:
    trace = [f"\x1b[0;31mframe {n}\x1b[0m" for n in range(40)] + ["RuntimeError: out of L1"]
    failed = {
        "output_type": "error",
        "ename": "RuntimeError",
        "evalue": "out of L1",
        "traceback": trace,
    }
    text = parse_notebook(notebook(code("f()", failed))).elements[1].text
    assert text.endswith("frame 39\nRuntimeError: out of L1")
    assert "\x1b" not in text and "frame 3\n" not in text


@pytest.mark.parametrize("data", [b'{"cells": [', b'{"worksheets": []}', b"[1, 2]"])
def test_non_notebook_fails_with_hint(data: bytes) -> None:
    with pytest.raises(ParseFailed) as caught:
        parse(data, "lesson.ipynb")
    assert "save" in caught.value.hint
