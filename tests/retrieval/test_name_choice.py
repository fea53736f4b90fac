"""Which names of a long list are shown for a problem in a language that models know."""

from __future__ import annotations

from kb.catalog.knowledge.symbols import Symbol
from kb.hardware.schema import lacking
from retrieval.compose.cards import MOST_NAMES, chosen_names

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
