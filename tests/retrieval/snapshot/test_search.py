"""Search by words: whole names and their parts, within the scope only."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from kb.scope import AccessScope, ScopeFilter
from kb.tokens import tokenize

if TYPE_CHECKING:
    from tests.fixtures import Store

pytestmark = pytest.mark.slow(seconds=6)

TEXTS = (
    "cp.async.bulk copies a tile from global to shared memory",
    "wait with s_waitcnt vmcnt(0) before the loaded registers are read",
    "__launch_bounds__ tells the compiler how many threads a block has",
    "the compiler stops with NCC_EVRF031 when a tile does not fit",
    "a plain sentence about clocks",
    "an async copy in bulk uses cp, and bulk of it is async",
)
EVERYTHING = ScopeFilter(None)


@pytest.fixture(scope="module")
def filled(module_store: Store) -> Store:
    """A document about h100 with the texts, and three about no chip, two of them for a language."""
    body = "\n\n".join(f"## Part {n}\n\n{text}." for n, text in enumerate(TEXTS))
    module_store.submit("manual.md", f"# Manual\n\n{body}", hardware=("h100",), category="hardware")
    for n, languages in enumerate(((), ("triton",), ("hip",))):
        text = f"# Rules {n}\n\nSome quokka tile.\n"
        module_store.submit(f"{n}.md", text, languages=languages, category="guidance")
    module_store.submit("a.md", "# Notes\n\nA wombat needs care. The tile is small.\n")
    module_store.submit("b.md", "# Notes\n\n## Wombat\n\nIt needs care. The tile is small.\n")
    module_store.worker().drain()
    return module_store


def search(store: Store, query: str, scope: ScopeFilter = EVERYTHING) -> list[str]:
    """The found texts, best first."""
    snapshot = store.snapshots.current()
    hits = snapshot.search("passage", tokenize(query), scope, 20)
    loaded = snapshot.load(hits)
    return [loaded[seq].text for seq in hits]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("cp.async.bulk", 0),  # the whole name before its parts
        ("s_waitcnt vmcnt(0)", 1),
        ("s_waitcnt", 1),
        ("waitcnt", 1),
        ("vmcnt", 1),
        ("__launch_bounds__", 2),
        ("launch bounds", 2),
        ("NCC_EVRF031", 3),
        ("ncc_evrf031", 3),
        ("EVRF031", 3),
    ],
)
def test_names_are_found_whole_and_by_parts(filled: Store, query: str, expected: int) -> None:
    assert search(filled, query)[0] == f"{TEXTS[expected]}."


@pytest.mark.parametrize(
    "scope",
    [
        ScopeFilter(("mi300x", "any")),
        ScopeFilter(()),
        ScopeFilter(None, categories=()),
        ScopeFilter(None, categories=("guidance",)),
        ScopeFilter(None, access_scope=AccessScope("team")),
        ScopeFilter(None, access_scope=AccessScope(hardware=frozenset({"mi300x", "any"}))),
    ],
)
def test_passages_out_of_scope_are_not_found(filled: Store, scope: ScopeFilter) -> None:
    assert search(filled, "clocks") and search(filled, "clocks", ScopeFilter(("h100", "any")))
    for level in ("passage", "section"):
        assert filled.snapshots.current().search(level, tokenize("clocks"), scope, 9) == {}


def test_language_admits_its_documents_and_general_ones(filled: Store) -> None:
    snapshot = filled.snapshots.current()

    def titles(scope: ScopeFilter) -> list[str]:
        found = snapshot.load(snapshot.search("passage", tokenize("quokka"), scope, 9))
        return sorted(passage.document_title for passage in found.values())

    assert titles(EVERYTHING) == ["Rules 0", "Rules 1", "Rules 2"]
    assert titles(ScopeFilter(None, languages=("triton",))) == ["Rules 0", "Rules 1"]


def test_word_in_heading_weighs_more(filled: Store) -> None:
    snapshot = filled.snapshots.current()
    hits = snapshot.search("passage", tokenize("wombat"), EVERYTHING, 9)
    found = snapshot.load(hits)
    assert [found[seq].path[-1] for seq in hits] == ["Wombat", "Notes"]


def test_question_names_a_document_by_words_and_version(store: Store) -> None:
    ids = {}
    for name in ("quokka-isa-1.10.md", "quokka-isa-2.2.md", "wombat-guide-2024.md"):
        text = f"# Registers\n\nThe status register is saved before a trap, says {name}."
        submitted = store.submit(name, text, hardware=("h100",), category="hardware")
        ids[name] = submitted.document_id
    store.worker().drain()
    snapshot = store.snapshots.current()
    scope = ScopeFilter(("h100", "any"))

    def named(question: str) -> list[str]:
        documents = snapshot.documents_named(tokenize(question), scope)
        return [name for name, identity in ids.items() if identity in documents]

    assert named("what does the Quokka ISA 1.10 say about traps") == ["quokka-isa-1.10.md"]
    assert named("which register does the wombat guide of 2024 save") == ["wombat-guide-2024.md"]
    assert named("which register is saved before a trap") == []
    assert named("the quokka isa on traps") == []  # no version: all documents compete
    other = replace(scope, access_scope=AccessScope("another"))
    assert not snapshot.documents_named(tokenize("the Quokka ISA 1.10"), other)
    within = frozenset({ids["quokka-isa-2.2.md"]})
    hits = snapshot.search("passage", tokenize("status register"), scope, 10, within)
    assert {p.document_id for p in snapshot.load(hits).values()} == within
