"""Names are found in texts and searched by words; unknown ones of a draft are reported."""

from __future__ import annotations

import difflib
import random
import time
from dataclasses import asdict

import numpy as np
import pytest

from kb.catalog.knowledge.symbols import Symbol
from kb.embedding import Vectors
from kb.hardware.schema import lacking
from retrieval.compose.cards import MOST_NAMES, chosen_names, symbol_blocks, symbol_line
from retrieval.search.names import (
    Cards,
    close_matches,
    names_in,
    nearest_names,
    search_symbols,
    unknown_line,
    unknown_names,
)

MEANINGS = {
    "ldt": "load a tile from memory",
    "stt": "store a tile to memory",
    "mulacc": "multiply and add into an accumulator",
    "vsync": "wait for all lanes",
    "vmax": "largest element of a row",
    "vexp": "exponential of each element",
    "halt": "end the kernel",
    ".kernel": "begin a kernel",
    ".tile": "declare a tile",
    "E1042": "scratchpad overflow",
}
DRAFT = """\
.kernel softmax
.tile t0, 64
    ldt t0, [x0]      ; ldmatrix would be another chip's
loop:
    mulac a0, t0, t0  // a slip
    cp.async t0, x1
    stt [x1], t0
    vsync all
    halt
"""


def symbol(name: str, meaning: str = "", **given: object) -> Symbol:
    fields: dict[str, object] = {
        "id": f"sym_{name}",
        "name": name,
        "kind": "error" if name.startswith("E1") else "instruction",
        "language": "orbit",
        "signature": "",
        "operands": (),
        "meaning": meaning,
        "limits": (),
        "example": "",
        "further": (),
        "hardware": ("orbit-1",),
        "document_id": "doc_1",
        "document_title": "Orbit manual",
        "version": 1,
        "section_id": "sec_1",
        "path": ("Orbit manual", "Opcodes"),
        "ordinal": 0,
    }
    return Symbol(**{**fields, **given})  # type: ignore[arg-type]


CARDS = [symbol(name, meaning) for name, meaning in MEANINGS.items()]


def test_names_match_whole_words_of_a_text() -> None:
    text = "Use stt. after ldt; mulaccumulate and ldt2 are none, `kernel` and vsync() are."
    assert names_in(text, set(MEANINGS)) == ["stt", "ldt", ".kernel", "vsync"]
    assert names_in("%r3 and $r4 and r5", {"r3", "%r4", "r5"}) == ["r3", "%r4", "r5"]


def test_error_code_with_hyphen_is_one_name() -> None:
    cards = {"VB-271", "VB-27", "load", "k"}
    assert names_in("a.s:9: VB-271 wrong operand; split-k load-store", cards) == [
        "VB-271",
        "k",
        "load",
    ]


def test_common_word_is_not_a_directive() -> None:
    """`in` of a message is not `.in`; with the dot it is."""
    assert names_in("wrong place in the argument", {".in", ".argument"}) == [".argument"]
    assert names_in(".in x", {".in"}) == [".in"]


def test_directive_that_is_a_word_is_no_name_in_a_question() -> None:
    cards = Cards([symbol("threadgroup", kind="directive"), *CARDS])
    assert names_in("why is the threadgroup with .tile slow", cards.names) == [".tile"]


def test_name_is_found_exactly_by_misspelling_and_by_meaning() -> None:
    def first(query: str) -> str:
        return search_symbols(query, CARDS, None, 3)[0].name

    assert first("ldt") == "ldt" and first("MULACC") == "mulacc"
    assert first("mulac") == "mulacc" and first("exponential of an element") == "vexp"
    assert search_symbols("zzzz qqqq", CARDS, None, 3) == []
    assert len(search_symbols("tile", CARDS, None, 2)) == 2


def test_unknown_names_of_a_draft_with_nearest_known_ones() -> None:
    unknown = unknown_names(DRAFT, CARDS)
    assert [(u.name, u.line) for u in unknown] == [("mulac", 5), ("cp.async", 6)]
    assert unknown[0].nearest[0] == "mulacc"
    line = unknown_line(unknown[0])
    assert line.startswith("- `mulac` (line 5 of the draft) is no name that the documents")
    assert "near it: mulacc" in line
    assert asdict(unknown[0]) == {"name": "mulac", "line": 5, "nearest": unknown[0].nearest}


def test_dotted_calls_are_held_against_cards_of_their_module() -> None:
    names = ("lib.math.exp", "lib.math.sigmoid", "lib.copy", "lib.core")
    cards = [*CARDS, *map(symbol, names)]
    draft = '"""\nThis kernel adds.\n"""\nrows, columns = lib.core()\n'
    draft += "y.store(lib.math.sigmod(a))\nlib.copy(other.made.up(a), y)\n"
    unknown = unknown_names(draft, cards)
    assert [(u.name, u.line) for u in unknown] == [("lib.math.sigmod", 5)]
    assert unknown[0].nearest[0] == "lib.math.sigmoid"


def test_too_few_cards_are_not_a_vocabulary() -> None:
    assert unknown_names(DRAFT, CARDS[:7]) == [] and unknown_names("", CARDS) == []


@pytest.mark.parametrize(
    "draft",
    [
        "    ldt t0, [x0]\n    stt [x1], t0\n    halt\n",
        "# cp.async t0, x1\n; wgmma t0, t1\n// mma t0, t1\n/* foo bar,\nbaz qux */ ldt t0, x\n",
        "size = 3\nloop: ldt t0, x\nname(t0, 3)\n",
        "ldt 'cp.async t0; foo t1', x\n",
        "LDT t0, x\nVSync all\n",
        "#define INLINE static inline\n  # define FAST 1\nINLINE int first(int x)\nFAST int y;\n",
    ],
)
def test_names_defined_in_draft_are_not_unknown(draft: str) -> None:
    assert unknown_names(draft, CARDS) == []


def test_nearest_by_meaning_where_spelling_does_not_match() -> None:
    def embed(text: str) -> Vectors:
        return np.array([float("lane" in text or "barrier" in text), 0.1])

    near = nearest_names("barrier_sync_cta", CARDS, embed)
    assert near[0] == "vsync"
    assert nearest_names("qqqq", CARDS, None) == ()


def test_card_as_a_list_entry() -> None:
    card = symbol(
        "ldt",
        "load a\n tile",
        signature="ldt dst, [addr]",
        operands=(("dst", "a tile"), ("addr", "")),
        limits=("addr is a multiple of 32",),
        further=("20 cycles",),
        example="ldt t0, [x0]",
    )
    assert symbol_line(card).splitlines() == [
        "- `ldt dst, [addr]` (instruction): load a tile",
        "  operands: dst: a tile; addr",
        "  limits: addr is a multiple of 32",
        "  20 cycles",
        "  example: `ldt t0, [x0]`",
    ]


def test_cards_fit_their_budget_and_similar_ones_share_entry() -> None:
    alike = [symbol("vadd", "of each element"), symbol("vsub", "of each element")]
    [block] = symbol_blocks(alike, 200)
    assert block.text.count("of each element") == 1 and "vadd" in block.text
    assert 'source="Orbit manual (v1), symbols" about="orbit-1"' in block.text
    for room in range(-5, 200, 7):
        lines = [
            line
            for b in symbol_blocks(CARDS, room)
            for line in b.text.splitlines()
            if line.startswith("- ")
        ]
        assert sum(len(line) // 8 for line in lines) <= max(room, 0)
    assert symbol_blocks(CARDS, 0) == []
    two = [*CARDS[:1], symbol("jmp", "go on", document_id="doc_2", document_title="Comet")]
    assert [b.citation for b in symbol_blocks(two, 200)] == [
        "Orbit manual (v1), symbols",
        "Comet (v1), symbols",
    ]


def test_without_room_names_have_signatures_and_needed_ones_more() -> None:
    output = "of each element of a vector, in every lane that is active at the time of the call."
    cards = [symbol(f"op{n}", f"number {n} {output}", signature=f"op{n} a, b") for n in range(12)]
    [whole] = symbol_blocks(cards, 2_000)
    assert whole.text.count(output) == 12
    [short] = symbol_blocks(cards, 200, needed=["op9", "op7"])
    lines = short.text.splitlines()[1:-1]
    assert sorted(line.split()[1].strip("`") for line in lines) == sorted(c.name for c in cards)
    longer = [line.split()[1].strip("`") for line in lines if output in line]
    assert longer[:1] != ["op0"] and {"op9", "op7"} <= {*longer} and len(longer) < 6


def test_close_matches_equal_those_of_standard_library() -> None:
    draw = random.Random(5)
    names = ["".join(draw.choices("abc_", k=draw.randint(1, 14))) for _ in range(300)]
    for name in names[:60]:
        for likeness in (0.6, 0.75):
            expected = difflib.get_close_matches(name, names, 3, likeness)
            assert close_matches(name, names, 3, likeness) == expected


@pytest.mark.slow
def test_search_is_bounded_in_time_and_finds_name() -> None:
    """Many long names, and slow vectors."""
    words = ["load", "store", "multiply", "tile", "row", "lane", "barrier"]
    cards = [
        symbol(f"{words[n % 7]}_{n}_" + "x" * (n % 300), f"meaning {n} of a {words[n % 5]}")
        for n in range(20_000)
    ]
    wanted = symbol("needle_in_hay", "finds a needle")
    embedded: list[str] = []

    def slowly(text: str) -> Vectors:
        embedded.append(text)
        time.sleep(0.02)
        return np.ones(4, np.float32)

    for query, first in (
        ("needle_in_hay", True),
        ("needle in hay", True),
        ("y" * 400, False),
        ("z" * 20, False),
    ):
        started = time.monotonic()
        found = search_symbols(query, [*cards, wanted], slowly, 20)
        assert time.monotonic() - started < 6.0  # most of it is reading the words of the cards
        assert not first or found[0].name == "needle_in_hay"
    assert 1 < len(embedded) < 400


# -- which names of a long list are shown for a problem in a language that models know

ZEN3 = lacking(("x86-64",), ("avx", "avx2", "fma", "f16c"))


def card(
    name: str, meaning: str, section: str = "Loads", limits: str = "", signature: str = ""
) -> Symbol:
    return Symbol(
        id=f"sym_{name}",
        name=name,
        kind="function",
        language="cpp",
        signature=signature or f"void {name}(a)",
        operands=(("a", "value"),),
        meaning=meaning,
        limits=(limits,) if limits else (),
        example="",
        further=(),
        hardware=("x86-64",),
        document_id="doc_1",
        document_title="Names",
        version=1,
        section_id=f"sec_{section}",
        path=("Names", section),
        ordinal=0,
    )


def names(cards: list[Symbol], **request: object) -> list[str]:
    return [c.name for c in chosen_names(cards, **{"op": "softmax", **request})]  # type: ignore[arg-type]


def test_names_that_machine_lacks_are_omitted() -> None:
    cards = [
        card("_mm256_loadu_ps", "Loads 8 floats.", limits="AVX."),
        card("_mm512_loadu_ps", "Loads 16 floats.", limits="AVX-512F."),
        card("_cvtu32_mask16", "Mask from an integer.", limits="AVX-512F."),
        card("_tile_loadd", "Loads a tile.", limits="AMX-TILE."),
    ]
    assert names(cards, lacks=ZEN3) == ["_mm256_loadu_ps"]
    assert len(names(cards)) == 4


def test_names_of_other_dtypes_are_omitted() -> None:
    cards = [
        card("loads", "Loads 8 floats."),
        card("doubles", "Doubles."),
        card("narrow", "To BF16."),
        card("bytes", "Any order of 64 bytes."),
        card("half", "Takes a half."),
        card("fence", "Makes stores visible."),
    ]
    assert names(cards, dtypes=("float32", "int64")) == ["loads", "half", "fence"]
    assert names(cards, dtypes=("bfloat16",)) == ["loads", "narrow", "half", "fence"]
    assert names(cards, dtypes=("torch.uint8",)) == ["loads", "bytes", "half", "fence"]
    assert len(names(cards)) == len(cards)


def test_heading_gives_dtype_of_a_card_without_one() -> None:
    cards = [card("dot", "Four products.", "Products of INT8"), card("sum", "Sum of lanes.")]
    assert names(cards, dtypes=("float32",)) == ["sum"]
    assert names(cards, dtypes=("int8",)) == ["dot", "sum"]


def test_long_list_is_bounded_with_best_of_every_section() -> None:
    cards = [
        card(f"{section}_{n}", f"Does {n}.", section)
        for section in ("Loads", "Shuffles", "Threads")
        for n in range(40)
    ]
    cards.append(card("late_gather", "Gathers rows by indices.", "Loads"))
    shown = names(cards, op="gather", operators=("index_select",))
    assert len(shown) == MOST_NAMES and "late_gather" in shown
    sections = {name.partition("_")[0] for name in shown}
    assert sections == {"Loads", "Shuffles", "Threads", "late"}


def test_calls_of_reference_rank_names() -> None:
    cards = [card(f"filler_{n}", f"Does {n}.") for n in range(MOST_NAMES)]
    cards.append(card("blend", "Chooses lanes by a masked comparison."))
    assert "blend" not in names(cards)
    assert "blend" in names(cards, operators=("masked_fill",))
