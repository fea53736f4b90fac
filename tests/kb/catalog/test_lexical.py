"""The lexical index finds names whole and by their parts, within the scope and nowhere else."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from sqlalchemy import Connection

from kb.catalog import Catalog, open_catalog
from kb.catalog.knowledge import lexical
from kb.catalog.knowledge.lexical import LexicalRow, row_scope
from kb.catalog.meta import bump_revision
from kb.scope import AccessScope, ScopeFilter
from kb.tokens import shadow, tokenize
from tests import postgresql

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
        ScopeFilter(None, access_scope=AccessScope("team")),
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


# -- in memory


def drawn_rows(count: int) -> list[LexicalRow]:
    """Rows of drawn words with drawn scopes; some are equal but for their number."""
    rng = random.Random(7)
    words = [f"w{n}" for n in range(60)]
    rows = []
    for seq in range(1, count + 1):
        hardware = tuple(rng.sample(("h100", "mi300x", "any"), rng.randint(1, 2)))
        languages = rng.choice(((), ("triton",), ("hip",)))
        scope = row_scope(hardware, languages, rng.choice(("hardware", "guidance")), "all")
        heading = " ".join(rng.choices(words, k=rng.randint(0, 3)))
        body = " ".join(words[min(59, int(rng.expovariate(0.1)))] for _ in range(rng.randint(1, 9)))
        rows.append(LexicalRow(seq, scope, heading, body))
    return rows


SCOPES = (
    EVERYTHING,
    ScopeFilter(("h100", "any")),
    ScopeFilter(("mi300x",), ("guidance",)),
    ScopeFilter(("mi300x",), ("guidance",), languages=("triton",)),  # few rows of all
    ScopeFilter(("h100", "any"), languages=("triton",)),
    ScopeFilter(None, access_scope=AccessScope("team")),
)


def answers(catalog: Catalog) -> list[list[tuple[int, float]]]:
    """What many searches give, with scores to nine places."""
    lists = []
    with catalog.read() as connection:
        for number in range(40):
            tokens = [f"w{n}" for n in range(number, 62, 1 + number % 7)]
            for level in ("passage", "section"):
                for scope in SCOPES:
                    scores = lexical.search(
                        connection, level, tokens, scope, heading_weight=2.0, limit=25
                    )
                    lists.append([(seq, round(score, 9)) for seq, score in scores.items()])
    return lists


def keep(catalog: Catalog) -> bool:
    with catalog.read() as connection:
        return lexical.keep_in_memory(connection, heading_weight=2.0)


def test_in_memory_the_same_rows_come_in_the_same_order(catalog: Catalog) -> None:
    rows = drawn_rows(400)
    with catalog.write() as connection:
        lexical.insert(connection, "passage", rows)
        lexical.insert(connection, "section", rows[:90])
        bump_revision(connection)
    by_sql = answers(catalog)
    assert sum(map(len, by_sql)) > 2_000
    assert keep(catalog) or postgresql.EVERYWHERE  # there the first search has made it
    assert not keep(catalog)
    assert answers(catalog) == by_sql


def test_what_changes_is_never_answered_from_memory(catalog: Catalog) -> None:
    """A row that is written anew under its number, by another process: before memory follows, and
    after."""
    scope = row_scope((), (), "guidance", "all")
    with catalog.write() as connection:
        lexical.insert(connection, "passage", [LexicalRow(1, scope, "", "spill tile")])
        bump_revision(connection)
    assert keep(catalog) and ask(catalog, "spill") == [1]
    other = open_catalog(catalog.data_dir)
    with other.write() as connection:
        lexical.delete(connection, "passage", [1])
        lexical.insert(connection, "passage", [LexicalRow(1, scope, "", "stall tile")])
        assert list(ask_within(connection, "stall")) == [1]  # a write sees its own
        bump_revision(connection)
    other.close()
    assert ask(catalog, "spill") == [] and ask(catalog, "stall") == [1]
    assert keep(catalog) or postgresql.EVERYWHERE
    assert ask(catalog, "spill") == [] and ask(catalog, "stall") == [1]


def ask_within(connection: Connection, query: str) -> dict[int, float]:
    return lexical.search(
        connection, "passage", tokenize(query), EVERYTHING, heading_weight=2.0, limit=10
    )
