"""The knowledge linter: the shipped folder is clean, and each kind of defect is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from api.cli.commands.knowledge import vocabulary
from ingestion.builtin.linter import lint_folder

pytestmark = pytest.mark.slow(seconds=3)

SHIPPED = Path(__file__).resolve().parents[3] / "hw_manuals"
WORDS = " ".join(["word"] * 80)
MOVE = """
  - id: wider
    when: "signals.memory_bound and facts.vector_load_max >= 16 and problem.op == 'matmul'"
    change: {role: vector, direction: set, to: 16}
    limit: vector_load_max
    section: "One"
    why: "Fewer instructions."
"""
DOCUMENT = f"""---
title: A play-book
hardware: []
languages: []
signals: [memory_bound]
topics: [bandwidth]
sources:
  - {{title: "T", publisher: "P", locator: "1", url: "https://example.org", read: 2026-11-21}}
moves:{MOVE}---
# A play-book

## One

`memory_bound` {WORDS}

## Two

{WORDS}

## Three

{WORDS}

## Four

{WORDS}
"""
HARDWARE = """
id = "x1"
name = "X1"
vendor = "x"
kind = "accelerator"
languages = ["c"]
summary = "A chip."

[[facts]]
key = "compute_units"
value = 4
unit = "count"
kind = "datasheet"
title = "Manual"
publisher = "X"
locator = "p. 1"
date = "2026-11-21"

[[facts]]
key = "x_lanes"
value = 64
unit = "count"
kind = "derived"
title = "Manual"
publisher = "X"
locator = "p. 2"
date = "2026-11-21"
formula = "compute_units * 16"

[[signatures]]
pattern = "scratchpad overflow by \\\\d{1,9} bytes"
signal = "shared_memory_limit"
title = "The scratchpad is too small"
remedy = "Make the tile smaller."
"""


def folder(tmp_path: Path, document: str = DOCUMENT, hardware: str = HARDWARE) -> Path:
    (tmp_path / "guidance").mkdir()
    (tmp_path / "guidance" / "one.md").write_text(document)
    (tmp_path / "hardware" / "x1").mkdir(parents=True)
    (tmp_path / "hardware" / "x1" / "hardware.toml").write_text(hardware)
    return tmp_path


def messages(path: Path) -> list[str]:
    return [str(finding) for finding in lint_folder(path, vocabulary())]


def test_shipped_knowledge_is_clean() -> None:
    assert messages(SHIPPED) == []


def test_correct_folder_is_clean(tmp_path: Path) -> None:
    assert messages(folder(tmp_path)) == []


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("signals: [memory_bound]", "signals: [memory_bond]", "unknown signal 'memory_bond'"),
        ("signals.memory_bound", "signals.memory_bond", "unknown signal 'memory_bond'"),
        ("signals.memory_bound and ", "", "neither signal nor metric in `when`"),
        ("facts.vector_load_max", "facts.vector_lode_max", "unknown fact 'vector_lode_max'"),
        ("facts.vector_load_max >=", "metrics.dram_pct >=", "unknown metric 'dram_pct'"),
        ("problem.op ==", "problem.operator ==", "unknown problem word 'operator'"),
        ("'matmul'", "'gemm'", "problem.op is never 'gemm'"),
        ("problem.op == 'matmul'", "problem.dtype in ['fp16']", "problem.dtype is never 'fp16'"),
        ("limit: vector_load_max", "limit: vector_max", "limit vector_max is not a fact key"),
        ('section: "One"', 'section: "Five"', "section 'Five' is not a heading"),
        ("to: 16}", 'to: "as wide as it goes"}', "write a number or one word"),
        (", to: 16}", "}", "direction set needs `to`"),
        ("role: vector", "role: vectr", "has no known role"),
        ('when: "signals', 'when: "(signals', "was never closed"),
        ("topics: [bandwidth]", "topics: []", "names no topics"),
        (", read: 2026-11-21", "", "sources[0] lacks read"),
        ("read: 2026-11-21", "read: soon", "read is not a date"),
        ("hardware: []", "hardware: [x2]", "unknown hardware 'x2'"),
        ("# A play-book", "# Another title", "the first heading is not the title"),
        ("`memory_bound` ", "", "signal memory_bound is listed but never named"),
        ("## Two", "## One", "heading 'One' is used twice"),
        (f"## Four\n\n{WORDS}", "## Four\n\nToo short.", "section 'Four' has 2 words"),
        ("languages: []\n", "", "front matter lacks languages"),
    ],
)
def test_document_defect_is_reported(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert old in DOCUMENT
    found = messages(folder(tmp_path, DOCUMENT.replace(old, new, 1)))
    assert any(expected in message and "guidance/one.md" in message for message in found), found


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("value = 64", "value = 65", "x_lanes = 65, but its formula gives 64"),
        ("compute_units * 16", "compute_unit * 16", "no number known for compute_unit"),
        ('signal = "shared_memory_limit"', 'signal = "scratchpad"', "unknown signal 'scratchpad'"),
        (r"scratchpad overflow by \\d{1,9} bytes", ".*.*", "signature"),
        ('vendor = "x"', 'vendor = "x"\nparent = "y"', "parent y has no folder"),
        ('locator = "p. 1"\n', "", "locator"),
    ],
)
def test_chip_defect_is_reported(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert old in HARDWARE
    found = messages(folder(tmp_path, hardware=HARDWARE.replace(old, new, 1)))
    assert any(expected in message for message in found), found


def test_chip_document_is_scoped_to_its_folder(tmp_path: Path) -> None:
    path = folder(tmp_path)
    (path / "hardware" / "x1" / "tuning.md").write_text(DOCUMENT)
    assert messages(path) == ["hardware/x1/tuning.md: hardware is []; in this folder write [x1]"]
