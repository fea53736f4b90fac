"""Removal of a chip: its obstacles, removed and remaining data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from kb import clock
from kb.catalog import tables as t
from kb.catalog.keys import Keys
from kb.catalog.skills.reading import SkillScopes
from kb.catalog.skills.writing import set_state
from kb.errors import Conflict, Forbidden, UnknownHardware
from kb.hardware.schema import parse_hardware
from kb.scope import AccessScope
from kb.settings import Settings
from retrieval.hardware_removal import remove_hardware
from retrieval.knowledge_base import KnowledgeBase
from tests.kb.catalog.stored_skills import named, put
from tests.stored_text import files_with

pytestmark = pytest.mark.slow(seconds=6)

if TYPE_CHECKING:
    from tests.fixtures import Store

SHEET = """# Orbis-3 qyzzavon data sheet

| Property | Orbis-3 |
|---|---|
| L2 cache size | 48 MiB |
| TDP | 333 W |
"""
GUIDE = """# Guide

Both chips have a talon that moves tiles.

## The well of Orbis-3

The well of Orbis-3 has 192 banks.
"""


@pytest.fixture
def base(store: Store, tmp_path: Path) -> Iterator[KnowledgeBase]:
    for chip in ("orbis-3", "kestrel-2"):
        spec = {"id": chip, "name": chip, "vendor": "o", "summary": f"Qyzzavon of {chip}."}
        store.registry.put(parse_hardware(spec, "t"), "api")
    (tmp_path / "knowledge").mkdir()
    settings = Settings(data_dir=store.data_dir, knowledge_dir=tmp_path / "knowledge")
    opened = KnowledgeBase(settings)
    yield opened
    opened.close()


def refused(base: KnowledgeBase, *, with_documents: bool = False) -> Conflict:
    with pytest.raises(Conflict) as caught:
        remove_hardware(base, "orbis-3", with_documents=with_documents)
    assert "orbis-3" in base.registry.all()
    assert caught.value.hint
    return caught.value


def test_chip_is_removed_with_description_and_facts(base: KnowledgeBase, store: Store) -> None:
    sheet = store.ingest("sheet.md", SHEET, hardware=("orbis-3",)).document_id
    ids = [fact.id for fact in store.registry.facts("orbis-3")]
    store.registry.set_status(ids[:1], "accepted", "ana")
    assert sheet in refused(base).details["in_the_way"]
    removed = remove_hardware(base, "Orbis 3", with_documents=True)
    assert removed.documents_removed == (sheet,)
    assert (removed.facts_removed, removed.decided_facts_removed) == (len(ids), 1)
    assert "orbis-3" not in base.registry.all()
    assert "orbis-3" not in store.registry.all()  # a registry loaded earlier
    with pytest.raises(UnknownHardware):
        remove_hardware(base, "orbis-3")
    assert not [f for f in files_with(store.data_dir, "qyzzavon") if "orbis-3" in str(f)]
    with base.catalog.read() as connection:
        assert not connection.execute(sa.select(t.passages.c.id)).all()


def test_id_can_be_registered_again(base: KnowledgeBase) -> None:
    remove_hardware(base, "orbis-3")
    spec = {"id": "orbis-3", "name": "Other", "vendor": "p", "parent": "kestrel-2"}
    assert base.registry.put(parse_hardware(spec, "t"), "api") == "created"
    assert base.registry.lineage("orbis-3") == ("orbis-3", "kestrel-2")
    assert base.registry.get("other").id == "orbis-3"


def test_child_hardware_blocks_removal(base: KnowledgeBase) -> None:
    spec = {"id": "orbis-3x", "name": "x", "vendor": "o", "parent": "orbis-3"}
    base.registry.put(parse_hardware(spec, "t"), "api")
    assert refused(base).details["in_the_way"] == ["orbis-3x"]
    remove_hardware(base, "orbis-3x")
    remove_hardware(base, "orbis-3")


def test_built_in_chip_cannot_be_removed(base: KnowledgeBase) -> None:
    folder = base.settings.knowledge_dir / "hardware" / "orbis-3"
    folder.mkdir(parents=True)
    (folder / "hardware.toml").write_text("")
    assert "built in" in refused(base, with_documents=True).message


def test_active_skill_for_this_chip_alone_blocks_removal(base: KnowledgeBase) -> None:
    alone, both = SkillScopes(hardware=("orbis-3",)), SkillScopes(hardware=("orbis-3", "kestrel-2"))
    with base.catalog.write() as connection:
        for name, scopes in (("alone", alone), ("both", both)):
            put(connection, named(name, scopes=scopes, tier="curated"))
    assert refused(base).details["in_the_way"] == ["alone"]
    with base.catalog.write() as connection:
        set_state(connection, "alone", "retired", actor="ana", reason="test")
    remove_hardware(base, "orbis-3")


def test_key_for_this_chip_alone_blocks_removal(base: KnowledgeBase) -> None:
    keys = Keys(base.catalog)
    key = keys.create("reader", hardware=("orbis-3", "kestrel-2")).key
    assert refused(base).details["in_the_way"] == [key.id]
    keys.revoke(key.id)
    remove_hardware(base, "orbis-3")


def test_restricted_caller_removes_nothing(base: KnowledgeBase) -> None:
    mine = AccessScope(hardware=frozenset({"orbis-3", "any"}), own=frozenset({"orbis-3"}))
    base.registry = base.registry.seen_by(mine)
    with pytest.raises(Forbidden):
        remove_hardware(base, "orbis-3")


def test_running_run_blocks_removal_and_ended_one_stays(base: KnowledgeBase) -> None:
    with base.catalog.write() as connection:
        connection.execute(
            t.problems.insert().values(
                id="prb_1",
                name="p",
                sha256="1",
                provider="file",
                op_family="other",
                blob_key="",
                created_at=clock.now(),
            )
        )
        connection.execute(
            t.runs.insert().values(
                id="run_1",
                problem_id="prb_1",
                hardware_id="orbis-3",
                state="running",
                policy="best-first",
                seed=0,
                cost_usd=0.0,
                created_at=clock.now(),
            )
        )
    assert refused(base).details["in_the_way"] == ["run_1"]
    with base.catalog.write() as connection:
        connection.execute(t.runs.update().values(state="ended", finished_at=clock.now()))
    assert remove_hardware(base, "orbis-3").runs_kept == 1
    assert base.registry.lineage_or_id("orbis-3") == ("orbis-3",)
    assert base.registry.values_if_known("orbis-3") == {}


def test_document_being_read_blocks_removal(base: KnowledgeBase, store: Store) -> None:
    queued = store.submit("sheet.md", SHEET, hardware=("orbis-3",)).document_id
    assert refused(base, with_documents=True).details["in_the_way"] == [queued]
    store.worker().drain()
    remove_hardware(base, "orbis-3", with_documents=True)


def test_document_about_two_chips_keeps_other(base: KnowledgeBase, store: Store) -> None:
    both = store.ingest("guide.md", GUIDE, hardware=("orbis-3", "kestrel-2")).document_id
    removed = remove_hardware(base, "orbis-3", with_documents=True)
    assert (removed.documents_removed, removed.documents_kept) == ((), (both,))
    assert base.documents.get(both).hardware == ("kestrel-2",)
    with base.catalog.read() as connection:
        about = connection.execute(
            sa.select(t.passages.c.text, t.passage_hardware.c.hardware_id).join(
                t.passage_hardware, t.passage_hardware.c.passage_id == t.passages.c.id
            )
        ).all()
    chips = {("banks" in row.text, row.hardware_id) for row in about}
    # Knowledge about the removed chip alone is not attributed to the other.
    assert chips == {(False, "kestrel-2"), (True, "orbis-3")}
