"""Sections follow the headings; passages cover every character of their section once and fit the
window of the embedder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ingestion.elements import Box, Element, Table, make_table, render_table, table_element
from ingestion.formats import parse
from ingestion.limits import LINE_CHARS
from ingestion.passages import (
    MAX_CHARS,
    MAX_CODE_CHARS,
    MAX_HEADING,
    ParsedSection,
    bounded,
    cut_passages,
    cut_to_window,
    split_sections,
    split_text,
    with_captions,
    words_of,
)
from ingestion.read import lost_sections
from kb.catalog.knowledge.versions import PassageDraft
from kb.embedding import LocalEmbedder, embedding_text

if TYPE_CHECKING:
    from tests.fixtures import Store


pytestmark = pytest.mark.slow(seconds=5)

WORDS = st.sampled_from(
    [
        *("the", "tile", "register", "s_waitcnt", "vmcnt(0)", "cp.async.bulk", "0x41000", "x|y"),
        *("각낙", "漢字", "\ufb03", "naïve", "🙂", "1,024", "e.g.", "__launch_bounds__", "Grüße"),
    ]
)
PROSE = st.builds(
    lambda words, ends: "".join(w + e for w, e in zip(words, ends, strict=False)),
    st.lists(WORDS, max_size=150),
    st.lists(st.sampled_from([" ", " ", " ", ". ", ".\n", "\n\n", "\n- ", ""]), min_size=150),
)
CELLS = st.one_of(WORDS, st.text(max_size=12), st.integers(0, 10**9).map(str))


@st.composite
def tables(draw: st.DrawFn) -> Element:
    width = draw(st.integers(1, 6))
    row = st.lists(CELLS, min_size=width, max_size=width)
    header = draw(st.lists(row, max_size=3))
    rows = draw(st.lists(row, max_size=25))
    return table_element(make_table(header, rows, draw(st.none() | WORDS))) or Element("text", "x")


ELEMENTS = st.lists(
    st.one_of(
        st.builds(Element, st.sampled_from(["text", "list", "code", "caption"]), PROSE),
        st.builds(Element, st.sampled_from(["text", "code"]), st.text(max_size=900)),
        tables(),
    ),
    max_size=6,
)
HEADINGS = st.lists(st.one_of(PROSE, st.text(max_size=300)), max_size=4).map(tuple)


def compact(text: str) -> str:
    return "".join(text.split())


def written(element: Element, passages: str) -> str:
    """The text that passages must cover: the rows of a cut table, else the text."""
    if element.table is None or words_of(element.text) in passages:
        return words_of(element.text)
    return words_of(render_table(Table((), element.table.rows)))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(HEADINGS, ELEMENTS)
def test_passages_cover_their_section_and_fit_window(
    embedder: LocalEmbedder, path: tuple[str, ...], elements: list[Element]
) -> None:
    section = ParsedSection(path, len(path), None, tuple(elements))
    passages = cut_passages([section], embedder.count_tokens, embedder.window)
    kept = "".join(words_of(passage.text) for passage in passages)
    assert kept == "".join(written(element, kept) for element in elements)
    assert lost_sections([section], passages) == []
    for passage in passages:
        assert passage.text.strip()
        read = embedding_text(path, passage.lead, passage.text)
        assert embedder.count_tokens(read) <= embedder.window


@settings(max_examples=60, deadline=None)
@given(st.one_of(PROSE, st.text(max_size=1500)), st.integers(1, 400), st.booleans())
def test_split_text_loses_only_white_space(text: str, limit: int, by_line: bool) -> None:
    pieces = split_text(text, limit, by_line=by_line)
    assert compact("".join(pieces)) == compact(text)
    assert all(piece.strip() and len(piece.rstrip()) <= limit for piece in pieces)


@settings(max_examples=30, deadline=None)
@given(text=st.one_of(PROSE, st.text(min_size=1, max_size=3000)))
def test_any_text_can_be_cut_to_window(embedder: LocalEmbedder, text: str) -> None:
    parts = cut_to_window(text, embedder.count_tokens, embedder.window)
    assert compact("".join(parts)) == compact(text)
    assert all(embedder.count_tokens(part) <= embedder.window for part in parts)


def cut(
    embedder: LocalEmbedder, *elements: Element, path: Sequence[str] = ("H",)
) -> list[PassageDraft]:
    section = ParsedSection(tuple(path), 1, None, elements)
    return cut_passages([section], embedder.count_tokens, embedder.window)


def test_lost_sections_are_detected(embedder: LocalEmbedder) -> None:
    section = ParsedSection(("Memory",), 1, None, (Element("text", "one. " * 200),))
    passages = cut_passages([section], embedder.count_tokens, embedder.window)
    assert lost_sections([section], passages[1:]) == ["Memory"]
    assert lost_sections([section], [*passages, passages[0]]) == ["Memory"]


def test_text_is_cut_at_sentences_and_short_neighbours_joined(embedder: LocalEmbedder) -> None:
    sentence = "A warp has 32 threads that run in step. "
    long = cut(embedder, Element("text", sentence * 30))
    assert all(p.text.endswith(".") and len(p.text) <= MAX_CHARS for p in long)
    [joined] = cut(embedder, Element("text", "Call it so:"), Element("code", "f();", language="c"))
    assert (joined.text, joined.kind, joined.language) == (
        "Call it so:\n```c\nf();\n```",
        "text",
        "c",
    )


def test_code_stays_whole_if_it_fits(embedder: LocalEmbedder) -> None:
    code = "\n".join(f"    value[{n}] = load(p + {n});" for n in range(16))
    assert MAX_CHARS - 50 < len(code) <= MAX_CODE_CHARS
    [whole] = cut(embedder, Element("code", code, language="c"))
    assert whole.text == code
    pieces = cut(embedder, Element("code", "\n".join([code] * 5)))
    assert all(line in code for piece in pieces for line in piece.text.splitlines())


def test_each_table_piece_has_caption_and_header_rows(embedder: LocalEmbedder) -> None:
    header = [["Occupancy", "", ""], ["per SM", "", "per block"], ["warps", "blocks", "threads"]]
    rows = [[str(n), str(n * 3), str(n * 32)] for n in range(60)]
    element = table_element(make_table(header, rows, "Table 7. Occupancy"))
    assert element is not None
    pieces = cut(embedder, element)
    assert len(pieces) > 1
    for piece in pieces:
        for words in ("Table 7. Occupancy", "Occupancy |", "per block", "| warps | blocks |"):
            assert words in piece.lead
        assert piece.shown == f"{piece.lead}\n{piece.text}"


def test_paragraph_that_introduces_a_table_is_its_caption(embedder: LocalEmbedder) -> None:
    text = "Matrix units of X1:\n| t | rate |\n|--|--|\n| fp16 | 1024 |\n\n"
    text += "The X1 has a vector unit. Its rates are in the table below.\n"
    text += "| t | rate |\n|--|--|\n| fp16 | 128 |\n\n**Slab**\n\nMemory of a core.\n"
    elements = with_captions(parse(text.encode(), "x.md").elements)
    captions = [element.table.caption for element in elements if element.table]
    assert captions == [
        "Matrix units of X1:",
        "The X1 has a vector unit. Its rates are in the table below.",
    ]
    shown = "\n".join(piece.shown for piece in cut(embedder, *elements))
    assert "table below.\n\n| t | rate |" in shown
    split = cut(embedder, Element("text", "It is fast. " * 32), *elements[-2:])
    assert split[-1].text.startswith("**Slab**"), "a term stays with its definition"


def test_numbered_captions_below_their_tables_stay_there() -> None:
    text = "".join(
        f"| t | rate |\n|--|--|\n| fp16 | {n} |\n\nTable {n}: rates of X{n}\n\n" for n in (1, 2)
    )
    elements = with_captions(parse(text.encode(), "x.md").elements)
    captions = [element.table and element.table.caption for element in elements]
    assert captions == ["Table 1: rates of X1", "Table 2: rates of X2"]


def test_dense_table_below_size_limit_keeps_its_header(embedder: LocalEmbedder) -> None:
    """800 characters of digits are more tokens than the window."""
    rows = [["1", "2", "3", "4", "5", "6", "7", "8"] for _ in range(20)]
    element = table_element(make_table([["a", "b", "c", "d", "e", "f", "g", "h"]], rows))
    assert element is not None and len(element.text) <= MAX_CODE_CHARS
    assert embedder.count_tokens(element.text) > embedder.window
    pieces = cut(embedder, element)
    assert len(pieces) > 1 and all("| a | b |" in piece.lead for piece in pieces)


def test_tokens_of_foreign_scripts_are_counted(embedder: LocalEmbedder) -> None:
    """One Hangul syllable is three word pieces: a text with fewer characters than the window may
    still exceed it.
    """
    text = " ".join(["각낙닥"] * 80)
    assert len(text) < 2 * embedder.window
    for passage in cut(embedder, Element("text", text), path=("각" * 300,)):
        read = embedding_text(("각" * 300,), passage.lead, passage.text)
        assert embedder.count_tokens(read) <= embedder.window


def test_row_wider_than_window_is_cut_between_cells_with_its_columns(
    embedder: LocalEmbedder,
) -> None:
    header = [[f"column {n} 0x{n:08x}" for n in range(80)]]
    element = table_element(make_table(header, [[str(n)] * 80 for n in range(4)]))
    assert element is not None
    pieces = cut(embedder, element)
    for piece in pieces:
        columns = piece.lead.split("\n| ---")[0].rpartition("\n")[2].count("column")
        assert columns == len(piece.text.strip("| ").split("|"))
    assert pieces[1].lead.startswith("0\n"), "the first cell names the row"
    assert compact("".join(p.text for p in pieces)) == compact(
        render_table(Table((), element.table.rows)) if element.table else ""
    )


def test_equal_boxes_of_joined_elements_are_stored_once(embedder: LocalEmbedder) -> None:
    first, second = Box(0, "i", 1, 1, 2, 2), Box(1, "ii", 1, 1, 2, 2)
    [joined] = cut(
        embedder,
        Element("text", "one", boxes=(first,)),
        Element("text", "two", boxes=(first, second)),
    )
    assert joined.boxes == (asdict(first), asdict(second))


def test_passages_refer_to_their_section(embedder: LocalEmbedder) -> None:
    sections = split_sections(
        [Element("title", "A", level=1), Element("title", "B", level=2), Element("text", "x")]
    )
    assert [p.section for p in cut_passages(sections, embedder.count_tokens, 256)] == [1]


def title(text: str, level: int) -> Element:
    return Element("title", text, level=level)


def test_paths_follow_levels() -> None:
    sections = split_sections(
        [
            Element("text", "before"),
            title("Manual", 1),
            title("Memory", 2),
            Element("text", "a"),
            title("Banks", 4),  # a skipped level
            Element("text", "b"),
            title("Clocks", 2),
        ]
    )
    assert [section.path for section in sections] == [
        (),
        ("Manual",),
        ("Manual", "Memory"),
        ("Manual", "Memory", "Banks"),
        ("Manual", "Clocks"),
    ]
    assert [section.parent for section in sections] == [None, None, 1, 2, 1]
    assert sections[4].elements == () and sections[4].title == "Clocks"


def test_long_paragraph_marked_as_heading_is_content() -> None:
    long = title("word " * MAX_HEADING, 1)
    [section] = split_sections([long])
    assert section.path == () and section.elements == (long,)


def test_white_space_in_headings_is_collapsed() -> None:
    [section] = split_sections([title("Shared\n  memory", 1)])
    assert section.path == ("Shared memory",)


ELEMENTS = st.lists(
    st.one_of(
        st.builds(title, st.text(min_size=1, max_size=5), st.integers(1, 6)),
        st.builds(Element, st.just("text"), st.text(max_size=5)),
    )
)


@given(ELEMENTS)
def test_every_element_is_in_one_section_in_order(elements: list[Element]) -> None:
    sections = split_sections(elements)
    seen: list[Element] = []
    for index, section in enumerate(sections):
        seen += [section.heading] if section.heading else []
        seen += section.elements
        assert section.parent is None or section.parent < index
        if section.parent is not None:
            parent = sections[section.parent]
            assert parent.level < section.level
            assert section.path[: len(parent.path)] == parent.path
    assert seen == elements


# -- long lines

MOST = 250  # passages of one line: pieces for the window are smaller where characters are rare
LONG_PROSE = "The quoll cache has four banks of sixteen bytes each. "


def element_of(table: Table) -> Element:
    element = table_element(table)
    assert element is not None
    return element


def test_lines_within_limit_are_unchanged() -> None:
    lines = "\n".join([LONG_PROSE * 100] * 50)
    elements = (Element("text", lines), element_of(Table((("a",),), ((LONG_PROSE,),) * 2000)))
    kept, cut = bounded(elements)
    assert sum(map(len, (element.text for element in elements))) > LINE_CHARS
    assert kept == elements and cut == ()


def test_line_is_cut_between_words_and_long_words_at_limit() -> None:
    line, word = LONG_PROSE * 5000, "x" * 100_000
    (kept,), (of_line, of_word) = bounded([Element("text", f"before\n{line}\n{word}\nafter")])
    before, first, second, after = kept.text.split("\n")
    assert (before, after) == ("before", "after")
    assert line.startswith(f"{first} ") and LINE_CHARS - 20 < len(first) <= LINE_CHARS
    assert second == "x" * LINE_CHARS
    assert (of_line.characters, of_line.kept) == (len(line), len(first))
    assert of_word.begins == "x" * 40


def test_row_loses_columns_beyond_limit() -> None:
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
def test_file_of_one_long_line_is_partial_with_counts(store: Store, name: str) -> None:
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


def test_headers_are_cut_before_comments() -> None:
    entries = "".join(
        f"/*! Width of the field {n}\n *  in bits */\n#define QX_FIELD_{n} {n}\n" for n in range(40)
    )
    code = f"#ifndef QX_H_\n#define QX_H_\n\n{entries}#endif"
    section = ParsedSection((), 0, None, (Element("code", code, language="c"),))
    passages = cut_passages([section], len, 300)
    assert len(passages) > 8
    assert all(p.text.startswith(("/*!", "#")) for p in passages)
    assert not any(p.text.endswith("*/") for p in passages)
