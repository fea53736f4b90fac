"""The columns of the ranking are the same from memory and from the tables."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import sqlalchemy as sa
from kb.catalog.kept import made
from kb.catalog.knowledge.candidates import Columns, keep_in_memory, members_of, sample

from kb.catalog.knowledge import hits, passages
from kb.catalog.knowledge.passages import Patch, correct
from kb.catalog.meta import bump_revision, state
from kb.catalog.tables import candidates
from kb.scope import CATEGORIES, ScopeFilter

if TYPE_CHECKING:
    from tests.fixtures import Store

MANUAL = "# Manual\n\n" + "\n\n".join(
    f"## Part {n}\n\nPart {n} moves bytes through the queue.\n\n```\nld r{n}\n```" for n in range(8)
)
EVERYTHING = ScopeFilter(None, CATEGORIES)
HARDWARE = ScopeFilter(None, ("hardware",))


def rows(columns: Columns) -> list[tuple[object, ...]]:
    others = [getattr(columns, name).tolist() for name in ("seqs", "sections", "prose", "code")]
    more = [columns.categories.tolist(), columns.access.tolist(), columns.embedded.tolist()]
    vectors = [vector.tobytes() for vector in columns.vectors]
    return list(zip(*others, *more, vectors, strict=True))


def both_ways(store: Store, scope: ScopeFilter) -> list[tuple[object, ...]]:
    """The rows about every second passage, from the tables and then from memory."""
    model = store.embedder.fingerprint
    with store.catalog.read() as connection:
        seqs = range(0, 200, 2)
        connection.info["kernlore_kept"].made.pop("candidates", None)
        read = rows(candidates(connection, seqs, model, scope))
        assert keep_in_memory(connection, model)
        assert rows(candidates(connection, seqs, model, scope)) == read
    return read


def test_memory_and_tables_agree(store: Store) -> None:
    document = store.ingest("queue.md", MANUAL, hardware=("h100",), category="hardware")
    store.ingest("rules.md", "# Rules\n\nAlign rows.", category="constraint")
    assert {row[4] for row in both_ways(store, EVERYTHING)} == {"hardware", "constraint"}
    with store.catalog.write() as connection:
        connection.execute(sa.text("UPDATE passages SET kind = 'code' WHERE seq % 4 = 0"))
        bump_revision(connection)
    read = both_ways(store, HARDWARE)
    assert {row[4] for row in read} == {"hardware"} and {row[3] for row in read} == {True, False}
    assert all(row[6] for row in read)  # each with its vector
    with store.catalog.write() as connection:
        connection.execute(
            sa.text(
                "DELETE FROM embeddings WHERE text_sha256 IN"
                " (SELECT embed_sha256 FROM passages WHERE seq % 2 = 0)"
            )
        )
        bump_revision(connection)
    assert {row[6] for row in both_ways(store, HARDWARE)} == {True, False}
    store.documents.delete(document.document_id)
    assert both_ways(store, HARDWARE) == []


def test_sections_have_the_same_members_from_memory_and_from_the_tables(store: Store) -> None:
    store.ingest("queue.md", MANUAL, hardware=("h100",), category="hardware")
    store.ingest("rules.md", "# Rules\n\nAlign rows.", category="constraint")
    model = store.embedder.fingerprint
    with store.catalog.read() as connection:
        numbers = connection.exec_driver_sql("SELECT DISTINCT seq FROM sections").scalars().all()
        wanted = [*numbers, max(numbers) + 1]  # the last is no section
        connection.info["kernlore_kept"].made.pop("candidates", None)
        read = members_of(connection, wanted, model)
        assert keep_in_memory(connection, model)
        kept = members_of(connection, wanted, model)
    there = kept.sizes > 0
    assert kept.sections[there].tolist() == read.sections.tolist()
    assert kept.sizes[there].tolist() == read.sizes.tolist()
    assert kept.seqs.tolist() == read.seqs.tolist() and len(read.seqs) > 8


def test_hits_stand_where_the_passages_do(store: Store) -> None:
    document = store.ingest("queue.md", MANUAL, hardware=("h100",), category="hardware")
    store.ingest("other.md", f"{MANUAL}\n\nOf mi300x.", hardware=("mi300x",))
    store.ingest("rules.md", "# Rules\n\nAlign rows.", category="constraint")
    one_chip = ScopeFilter(("h100", "any"), CATEGORIES)

    def placed(rows: dict[int, hits.Hit]) -> dict[int, tuple[object, ...]]:
        return {n: (h.id, h.section_id, h.document_id, h.hardware) for n, h in rows.items()}

    for scope in (EVERYTHING, HARDWARE, one_chip):
        with store.catalog.read() as connection:
            light = placed(hits.load(connection, range(200), scope))
            whole = passages.load(connection, range(200), scope)
            assert light == placed({**whole}) and light
            assert placed(hits.load(connection, range(200), scope)) == light  # read whole by now
        with store.catalog.write() as connection:
            bump_revision(connection)  # nothing is kept of it
    store.documents.delete(document.document_id)
    with store.catalog.read() as connection:
        left = hits.load(connection, range(200), EVERYTHING).values()
        assert left and document.document_id not in {hit.document_id for hit in left}


def test_a_sample_is_the_same_from_memory_and_from_the_tables(store: Store) -> None:
    for chip in ("h100", "mi300x"):
        store.ingest(f"{chip}.md", f"{MANUAL}\n\nOf {chip}.", hardware=(chip,))
    store.ingest("rules.md", "# Rules\n\nAlign rows.", category="constraint")
    model = store.embedder.fingerprint
    one_chip = ScopeFilter(("h100", "hopper", "nvidia", "any"), CATEGORIES)
    sizes = []
    for scope in (EVERYTHING, HARDWARE, one_chip, ScopeFilter(("nobody",), CATEGORIES)):
        with store.catalog.read() as connection:
            connection.info["kernlore_kept"].made.pop("candidates", None)
            read = sample(connection, model, scope, 5)
            assert keep_in_memory(connection, model)
            kept = sample(connection, model, scope, 5)
        from_memory, from_tables = kept.rows(), read.rows()
        assert from_memory is not None and from_tables is not None
        for memory, tables in zip(from_memory, from_tables, strict=True):
            assert memory.tolist() == tables.tolist()
        assert kept.own is None  # its vectors are those of the columns
        sizes.append(sum(read.counted))
    assert sizes[0] > 0 and sizes[2] > 0 and sizes[3] == 0


def test_a_sample_holds_no_columns(store: Store) -> None:
    """Else those of the last state would be held beside new ones."""
    submitted = store.ingest("queue.md", MANUAL, hardware=("h100",), category="hardware")
    model = store.embedder.fingerprint
    with store.catalog.read() as connection:
        assert keep_in_memory(connection, model)
        kept = sample(connection, model, EVERYTHING, 5)
        assert kept.rows() is not None
    store.documents.delete(submitted.document_id)
    with store.catalog.read() as connection:
        assert keep_in_memory(connection, model)
    gc.collect()
    assert kept.rows() is None


def test_what_changes_is_no_longer_in_memory(store: Store) -> None:
    """A correction and a new version hold at once; a change of a skill costs nothing."""
    model = store.embedder.fingerprint
    submitted = store.ingest("queue.md", MANUAL, hardware=("h100",), category="hardware")

    def in_memory() -> bool:
        with store.catalog.read() as connection:
            last = made(connection, "candidates")
            return last is not None and last[0] == (model, state(connection))

    def keep() -> None:
        with store.catalog.read() as connection:
            keep_in_memory(connection, model)

    keep()
    with store.catalog.write() as connection:
        bump_revision(connection)
    assert in_memory()
    passage = store.passages_of(submitted.document_id)[0]
    correct(store.catalog, passage.id, Patch(text="Part 0 has no queue."), "anna")
    assert not in_memory()
    keep()
    assert in_memory()
    store.ingest("queue.md", MANUAL.replace("bytes", "words"), hardware=("h100",))
    assert not in_memory()
