"""The lexical index finds names whole and by their parts, within the scope and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kb.catalog import Catalog
from kb.catalog.knowledge import lexical
from kb.catalog.knowledge.lexical import LexicalRow, row_scope
from kb.catalog.meta import bump_revision
from kb.scope import ScopeFilter
from kb.tokens import shadow, tokenize

TEXTS = {
    1: "cp.async.bulk copies a tile from global to shared memory",
    2: "wait with s_waitcnt vmcnt(0) before the loaded registers are read",
    3: "__launch_bounds__ tells the compiler how many threads a block has",
    4: "the compiler stops with NCC_EVRF031 when a tile does not fit",
    5: "a plain sentence about clocks",
}
EVERYTHING = ScopeFilter(None)


@pytest.fixture
def filled(catalog: Catalog) -> Catalog:
    rows = [
        LexicalRow(seq, row_scope(("h100",), (), "hardware", "all"), "", shadow(text))
        for seq, text in TEXTS.items()
    ]
    with catalog.write() as connection:
        lexical.insert(connection, "passage", rows)
    return catalog


def ask(catalog: Catalog, query: str, scope: ScopeFilter = EVERYTHING) -> list[int]:
    with catalog.read() as connection:
        return list(
            lexical.search(
                connection, "passage", tokenize(query), scope, heading_weight=2.0, limit=10
            )
        )


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("cp.async.bulk", 1),
        ("async bulk", 1),
        ("s_waitcnt vmcnt(0)", 2),
        ("s_waitcnt", 2),
        ("waitcnt", 2),
        ("vmcnt", 2),
        ("__launch_bounds__", 3),
        ("launch bounds", 3),
        ("NCC_EVRF031", 4),
        ("ncc_evrf031", 4),
        ("EVRF031", 4),
    ],
)
def test_names_are_found_whole_and_by_parts(filled: Catalog, query: str, expected: int) -> None:
    assert ask(filled, query)[0] == expected


def test_the_whole_name_outranks_its_parts(catalog: Catalog) -> None:
    scope = row_scope((), (), "guidance", "all")
    texts = ["an async copy in bulk uses cp", "use cp.async.bulk for that", "bulk of it is async"]
    with catalog.write() as connection:
        rows = [LexicalRow(n, scope, "", shadow(text)) for n, text in enumerate(texts, 1)]
        lexical.insert(connection, "passage", rows)
    assert ask(catalog, "cp.async.bulk")[0] == 2


@pytest.mark.parametrize(
    "query",
    ['" OR 1', "NEAR(a b)", "heading:x AND", "a* -b ^c", "(((", "{scope}: hw_", "AND OR NOT"],
)
def test_no_query_is_syntax(filled: Catalog, query: str) -> None:
    ask(filled, query)


def test_a_scope_token_in_a_query_opens_nothing(filled: Catalog) -> None:
    hidden = ScopeFilter(("mi300x", "any"))
    assert ask(filled, "clocks hw_68313030", hidden) == []
    assert ask(filled, "clocks", ScopeFilter(("h100", "any"))) == [5]


@pytest.mark.parametrize(
    "scope",
    [
        ScopeFilter(("mi300x", "any")),
        ScopeFilter(()),
        ScopeFilter(None, categories=()),
        ScopeFilter(None, categories=("guidance",)),
        ScopeFilter(None, access_scope="team"),
    ],
)
def test_what_is_out_of_scope_is_not_found(filled: Catalog, scope: ScopeFilter) -> None:
    assert ask(filled, "clocks", scope) == []


def test_a_language_admits_what_is_about_it_or_about_none(catalog: Catalog) -> None:
    speaks: Sequence[tuple[str, ...]] = ((), ("triton",), ("hip",))
    with catalog.write() as connection:
        rows = [
            LexicalRow(n, row_scope(("any",), languages, "guidance", "all"), "", "tile")
            for n, languages in enumerate(speaks, 1)
        ]
        lexical.insert(connection, "passage", rows)
    assert sorted(ask(catalog, "tile", ScopeFilter(None, languages=("triton",)))) == [1, 2]


def test_headings_weigh_more_and_deleted_rows_are_gone(catalog: Catalog) -> None:
    scope = row_scope((), (), "guidance", "all")
    with catalog.write() as connection:
        rows = [LexicalRow(1, scope, "", "spill tile"), LexicalRow(2, scope, "spill", "tile")]
        lexical.insert(connection, "passage", rows)
    assert ask(catalog, "spill") == [2, 1]
    with catalog.write() as connection:
        lexical.delete(connection, "passage", [2])
        bump_revision(connection)  # as whoever changes what a search returns
        assert lexical.count(connection, "passage") == 1
    assert ask(catalog, "spill") == [1]
