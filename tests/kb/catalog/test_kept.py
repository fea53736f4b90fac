"""What is kept in memory holds for its revision alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from kb.catalog import Catalog, meta, open_catalog
from kb.catalog.kept import MOST_ENTRIES, Kept, look_up, revision_of
from kb.catalog.knowledge import passages
from kb.catalog.knowledge.passages import Patch
from kb.catalog.skills.evidence import present_toolchains
from kb.catalog.skills.reading import error_words
from kb.catalog.skills.writing import record_toolchain
from kb.scope import ScopeFilter
from tests.kb.catalog.stored_skills import named, put

if TYPE_CHECKING:
    from tests.fixtures import Store

MANUAL = "# Manual\n\n## Shared memory\n\nOne block may take 227 KiB of shared memory.\n"
CHIP = ScopeFilter(("h100",), ("hardware",))


class Reads:
    """Counts what is asked for, and answers with the catalog's revision."""

    def __init__(self, connection: sa.Connection) -> None:
        self.connection = connection
        self.asked: list[str] = []

    def __call__(self, keys: Sequence[str]) -> dict[str, str]:
        self.asked += keys
        return {key: f"{key} at {meta.revision(self.connection)}" for key in keys}


def values(catalog: Catalog, *keys: str) -> tuple[dict[str, str], list[str]]:
    """What a new transaction gets, and what of it was read."""
    with catalog.read() as connection:
        read = Reads(connection)
        return look_up(connection, "tests", keys, read), read.asked


def bump(catalog: Catalog) -> None:
    with catalog.write() as connection:
        meta.bump_revision(connection)


def test_a_value_is_read_once_a_revision(catalog: Catalog) -> None:
    assert values(catalog, "a", "b") == ({"a": "a at 0", "b": "b at 0"}, ["a", "b"])
    assert values(catalog, "b", "c") == ({"b": "b at 0", "c": "c at 0"}, ["c"])
    bump(catalog)
    assert values(catalog, "b") == ({"b": "b at 1"}, ["b"])


def test_a_change_of_skills_leaves_what_does_not_depend_on_them(catalog: Catalog) -> None:
    def asked(skills: bool) -> list[str]:
        with catalog.read() as connection:
            read = Reads(connection)
            look_up(connection, f"tests, {skills}", ["a"], read, skills=skills)
            return read.asked

    assert asked(True) == asked(False) == ["a"]
    with catalog.write() as connection:
        meta.bump_skills(connection)
    assert (asked(True), asked(False)) == (["a"], [])
    bump(catalog)
    assert (asked(True), asked(False)) == (["a"], ["a"])


def test_each_transaction_gets_what_it_sees(catalog: Catalog) -> None:
    """Two at once at different revisions, of which the older began first."""
    with catalog.read() as older:
        assert revision_of(older) == 0
        bump(catalog)
        assert values(catalog, "a")[0] == {"a": "a at 1"}
        assert look_up(older, "tests", ["a"], Reads(older)) == {"a": "a at 0"}
    assert values(catalog, "a")[0] == {"a": "a at 1"}


def test_another_process_changes_what_is_kept(catalog: Catalog) -> None:
    assert values(catalog, "a")[0] == {"a": "a at 0"}
    other = open_catalog(catalog.data_dir)
    bump(other)
    other.close()
    assert values(catalog, "a") == ({"a": "a at 1"}, ["a"])


def test_a_write_keeps_nothing_and_sees_its_own(catalog: Catalog) -> None:
    with pytest.raises(RuntimeError), catalog.write() as connection:
        meta.bump_revision(connection)
        read = Reads(connection)
        assert look_up(connection, "tests", ["a"], read) == {"a": "a at 1"}
        assert look_up(connection, "tests", ["a"], read) == {"a": "a at 1"}
        assert read.asked == ["a", "a"]
        raise RuntimeError("taken back")
    assert values(catalog, "a") == ({"a": "a at 0"}, ["a"])


def test_an_area_is_bounded() -> None:
    kept = Kept()
    area = kept.area("tests", 0, most=2)
    area |= {1: 1, 2: 2, 3: 3}
    assert kept.area("tests", 0, most=3) is area
    assert kept.area("tests", 0, most=2) == {}
    assert MOST_ENTRIES > 1_000


def test_a_correction_a_revision_and_a_deletion_hold_at_once(store: Store) -> None:
    submitted = store.ingest("h100.md", MANUAL, hardware=("h100",))

    def texts() -> list[str]:
        with store.catalog.read() as connection:
            seqs = connection.exec_driver_sql("SELECT seq FROM passages ORDER BY seq").scalars()
            return [p.text for p in passages.load(connection, seqs.all(), CHIP).values()]

    assert texts() == texts() == ["One block may take 227 KiB of shared memory."]
    with store.catalog.read() as connection:
        (passage,) = passages.load(connection, range(100), CHIP).values()
    passages.correct(store.catalog, passage.id, Patch(text="One block may take 99 KiB."), "anna")
    assert texts() == ["One block may take 99 KiB."]
    store.ingest("h100.md", MANUAL.replace("227", "228"), hardware=("h100",))
    assert texts() == ["One block may take 228 KiB of shared memory."]
    store.documents.delete(submitted.document_id)
    assert texts() == []


def test_words_of_errors_and_toolchains_are_those_of_each_revision(catalog: Catalog) -> None:
    def seen() -> tuple[dict[str, str], object]:
        with catalog.read() as connection:
            words = error_words(connection, ("candidate",))
            return words, present_toolchains(connection)

    assert seen() == ({}, {})
    mend = named("mend-it", transformation="mend-e7", metadata={"files": {}, "error": "too large"})
    with catalog.write() as connection:
        put(connection, mend)
    assert seen() == ({"mend-it": "too large"}, {})
    with catalog.write() as connection:
        record_toolchain(connection, "h100", "cpp g++ 14")
    assert seen() == ({"mend-it": "too large"}, {"h100": {"cpp": "cpp g++ 14"}})
    with catalog.write() as connection:
        put(connection, replace(mend, metadata={"error": "no room"}, content_sha256="other"))
    assert seen()[0] == {"mend-it": "no room"}
