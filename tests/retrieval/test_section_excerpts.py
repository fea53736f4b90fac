"""Whole sections as excerpts: every passage of a long section can be the hit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kb.scope import ScopeFilter
from retrieval.compose.excerpts import make_excerpts, signal_excerpts
from retrieval.search.ranking import Ranked

pytestmark = pytest.mark.slow(seconds=6)

if TYPE_CHECKING:
    from tests.fixtures import Store


def manual(count: int) -> str:
    """A section of one very long sentence and a short one."""
    endless = ", ".join(f"row of a tile {'goes ' * (n % 3)}behind {n}" for n in range(count))
    return f"# Manual\n\n## Rows\n\nFirst, {endless}.\n\nThen all rows are read.\n"


def test_sentence_longer_than_excerpt_is_no_error(store: Store) -> None:
    """Only text after its last passage starts with a sentence, and that was not ranked."""
    for count in range(80, 104):  # some leave room for the next sentence
        store.submit(f"{count}.md", manual(count), hardware=("h100",))
    store.worker().drain()
    scope = ScopeFilter(("h100",), ("hardware",))
    snapshot = store.snapshots.current()
    live = snapshot.load(range(2_000), scope)
    assert len(live) > 100
    for seq, passage in live.items():
        ranked = [Ranked(seq, 1.0, 1.0, 0.0, "hardware")]
        (excerpt,) = signal_excerpts(snapshot, ranked, scope, 1, None)
        assert excerpt.id == passage.id and passage.id in excerpt.passages


def test_excerpt_starts_with_sentence_and_lists_its_passages(store: Store) -> None:
    clauses = "; ".join(f"bank {n} serves one read of the tile per cycle" for n in range(9))
    text = " ".join(f"Rule {n} is old: {clauses}." for n in range(12))
    store.ingest("banks.md", f"# Manual\n\n## Banks\n\n{text}\n", hardware=("h100",))
    scope = ScopeFilter(("h100",), ("hardware",))
    snapshot = store.snapshots.current()
    live = snapshot.load(range(500), scope)
    cut = [seq for seq, passage in live.items() if passage.text.startswith("bank ")]
    assert cut  # passages end within these sentences
    by_id = {passage.id: passage for passage in live.values()}
    for seq in cut:
        ranked = [Ranked(seq, 1.0, 1.0, 0.0, "hardware")]
        (excerpt,) = signal_excerpts(snapshot, ranked, scope, 1, "bank_conflict")
        assert excerpt.text.startswith("Rule ") and excerpt.id == live[seq].id
        assert live[seq].text in excerpt.text
        (worded,) = make_excerpts(snapshot, ranked, scope, 1)
        assert (worded.id, worded.text) == (excerpt.id, excerpt.text)
        first, *others = [by_id[i].text for i in excerpt.passages]
        assert first.endswith(excerpt.text.removesuffix("\n".join(["", *others])))


def test_excerpt_takes_on_the_end_of_its_sentence(store: Store) -> None:
    clauses = "; ".join(f"bank {n} serves one read of the tile per cycle" for n in range(20))
    store.ingest("banks.md", f"# Manual\n\n## Banks\n\nThe rule: {clauses}.\n", hardware=("h100",))
    scope = ScopeFilter(("h100",), ("hardware",))
    snapshot = store.snapshots.current()
    live = snapshot.load(range(500), scope)
    assert len(live) > 1
    ranked = [Ranked(seq, 9.0 - seq, 1.0, 0.0, "hardware") for seq in sorted(live)]
    (excerpt,) = make_excerpts(snapshot, ranked, scope, 9)
    assert excerpt.passages == tuple(live[seq].id for seq in sorted(live))


def test_shipped_kernel_has_one_excerpt(store: Store) -> None:
    words = ("load alpha bravo", "store charlie delta", "wait echo foxtrot", "add golf hotel")
    text = "".join(f"# Step {n}\n\n{part} number {n}.\n\n" for n, part in enumerate(words))
    for key in ("builtin/samples/h100/axpy.md", "manual.md"):
        message = {"hardware": ("h100",), "source_key": key, "origin": key.split("/")[0]}
        store.ingest(key, text.replace("number", key), **message)
    scope = ScopeFilter(("h100",))
    snapshot = store.snapshots.current()
    passages = snapshot.load(range(100), scope)
    ranked = [Ranked(seq, 1.0, 1.0, 0.0, "hardware") for seq in passages]
    for excerpts in (
        make_excerpts(snapshot, ranked, scope, 20),
        signal_excerpts(snapshot, ranked, scope, 20, None),
    ):
        titles = [excerpt.document.id for excerpt in excerpts]
        assert sorted(map(titles.count, set(titles))) == [1, len(words)]
