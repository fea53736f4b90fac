"""One endless line, word or row makes a bounded number of passages; what is left out is said."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ingestion.bounds import LINE_CHARS, bounded
from ingestion.elements import Element, Table, table_element

if TYPE_CHECKING:
    from tests.fixtures import Store

MOST = 250  # passages of one line: pieces for the window are smaller where characters are rare
PROSE = "The quoll cache has four banks of sixteen bytes each. "


def element_of(table: Table) -> Element:
    element = table_element(table)
    assert element is not None
    return element


def test_what_is_within_the_bound_stays_the_same_object() -> None:
    lines = "\n".join([PROSE * 100] * 50)
    elements = (Element("text", lines), element_of(Table((("a",),), ((PROSE,),) * 2000)))
    kept, cut = bounded(elements)
    assert sum(map(len, (element.text for element in elements))) > LINE_CHARS
    assert kept == elements and cut == ()


def test_a_line_is_cut_between_words_and_a_word_at_the_bound() -> None:
    line, word = PROSE * 5000, "x" * 100_000
    (kept,), (of_line, of_word) = bounded([Element("text", f"before\n{line}\n{word}\nafter")])
    before, first, second, after = kept.text.split("\n")
    assert (before, after) == ("before", "after")
    assert line.startswith(f"{first} ") and LINE_CHARS - 20 < len(first) <= LINE_CHARS
    assert second == "x" * LINE_CHARS
    assert (of_line.characters, of_line.kept) == (len(line), len(first))
    assert of_word.begins == "x" * 40


def test_a_row_loses_the_columns_beyond_the_bound() -> None:
    wide = Table((tuple(f"c{n}" for n in range(9000)),), (tuple(f"{n:07}" for n in range(9000)),))
    long = Table((("a", ""),), (("y" * 90_000, "z"),))
    (first, second), cut = bounded([element_of(wide), element_of(long)])
    assert first.table is not None and second.table is not None
    assert len(first.table.header[0]) == len(first.table.rows[0]) == LINE_CHARS // 10
    assert len(first.text.splitlines()[-1]) <= LINE_CHARS + 3
    assert len(second.table.rows[0][0]) == LINE_CHARS
    header = sum(len(f"c{n}") + 3 for n in range(9000))
    assert [line.characters for line in cut] == [header, 90_000, 90_000, LINE_CHARS + 7]


ONE_LINE = {
    "line.txt": "The numbat unit reads " + "one more operand and " * 20_000,
    "word.txt": "numbat " + "qx_7." * 100_000,
    "line.md": "# Numbat\n\nThe numbat " + "spills a register, " * 20_000,
    "row.md": "| a |\n| --- |\n| numbat " + "spills a register, " * 20_000 + "|\n",
    "word.md": "# Numbat\n\n" + "\u754c" * 150_000 + "\n",
    "code.md": "# Numbat\n\n```c\n" + "int numbat; " * 30_000 + "\n```\n",
}


@pytest.mark.parametrize("name", ONE_LINE)
def test_a_file_of_one_line_is_partial_and_says_what_was_left_out(store: Store, name: str) -> None:
    text = ONE_LINE[name]
    submitted = store.submit(name, text, hardware=("h100",))
    worker = store.worker()
    worker._read_queued()
    document = store.documents.get(submitted.document_id)
    assert document.version is not None
    report = document.version.report
    assert 0 < report["passages"] <= (2000 if "\u754c" in text else MOST)
    assert report["characters_left_out"] > len(text) - LINE_CHARS - 200
    [warning] = [w for w in report["warnings"] if "was cut after" in w]
    assert "break it into lines" in warning
    job = store.job(submitted)
    assert job.progress["state"] == "partial"
    assert job.progress["characters_left_out"] == report["characters_left_out"]
