"""The walkable tree over a real catalog: every path resolves, counts add up, wrong paths have
hints.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import pytest

from kb.catalog import Catalog
from kb.catalog.hardware import HardwareRegistry
from kb.catalog.knowledge.documents import Documents
from kb.catalog.knowledge.versions import (
    DocumentSource,
    PassageDraft,
    SectionDraft,
    VersionContent,
    activate,
    register,
)
from kb.errors import NotFound
from kb.hardware.schema import parse_hardware
from kb.ids import sha256
from kb.scope import ALL_ACCESS, AccessScope
from retrieval.knowledge_tree import KnowledgeNode, knowledge_node, topic_slug
from retrieval.snapshot.store import SnapshotStore

pytestmark = pytest.mark.slow(seconds=5)

# Per section: heading, hardware of the heading, and its passages' (text, tags).
Sections = list[tuple[str, tuple[str, ...] | None, list[tuple[str, list[tuple[str, str]]]]]]


def chips(catalog: Catalog) -> HardwareRegistry:
    registry = HardwareRegistry(catalog)
    for name, parent in (
        ("nvidia", None),
        ("hopper", "nvidia"),
        ("h100", "hopper"),
        ("h200", "hopper"),
    ):
        spec = {"id": name, "name": name.upper(), "vendor": "nvidia", "summary": "A test chip."}
        if parent:
            spec["parent"] = parent
        registry.put(parse_hardware(spec, name), "user")
    return registry


def add(
    catalog: Catalog,
    key: str,
    category: str,
    hardware: tuple[str, ...],
    sections: Sections,
    access_scope: AccessScope = ALL_ACCESS,
) -> str:
    """Make a document current as the ingestion worker does; returns its id."""
    source = DocumentSource(
        source_key=key,
        title=key.title(),
        category=category,
        hardware=hardware,
        languages=(),
        file_name=f"{key}.md",
        format="markdown",
        sha256=sha256(key + repr(sections)),
        size_bytes=1,
        blob_key=sha256(key),
        pipeline="test",
        access_scope=access_scope,
    )
    content = VersionContent(
        sections=[SectionDraft((heading,), 1, None, hardware=h) for heading, h, _ in sections],
        passages=[
            PassageDraft(n, "text", text, "", None, (), 300, tuple(tags))
            for n, (_, _, passages) in enumerate(sections)
            for text, tags in passages
        ],
    )
    with catalog.write() as connection:
        registered = register(connection, [source])[0]
        assert registered.version_id is not None
        activate(connection, [(registered.version_id, content)])
    return registered.document_id


BANDWIDTH, BANKS = ("topic", "memory bandwidth"), ("topic", "bank conflicts")


@pytest.fixture
def stocked(catalog: Catalog) -> Catalog:
    chips(catalog)
    add(
        catalog,
        "h100 manual",
        "hardware",
        ("h100",),
        [
            ("Memory", None, [("HBM3 moves data.", [BANDWIDTH]), ("L2 is large.", [])]),
            ("Banks", None, [("32 banks.", [BANKS, BANDWIDTH]), ("Pad rows.", [BANKS])]),
            ("On H200", ("h200",), [("More memory.", [BANDWIDTH])]),
        ],
    )
    add(
        catalog,
        "h100 tuning",
        "hardware",
        ("h100",),
        [("Copies", None, [("Use bulk copies.", [BANDWIDTH, ("topic", "Memory-Bandwidth")])])],
    )
    add(catalog, "family", "hardware", ("hopper",), [("TMA", None, [("It copies.", [])])])
    add(catalog, "advice", "guidance", (), [("Fuse", None, [("Do.", [("topic", "fusion")])])])
    add(catalog, "rules", "constraint", (), [("Mask", None, [("Must.", [("signal", "x")])])])
    add(catalog, "private", "guidance", (), [("Own", None, [("Mine.", [])])], AccessScope("team-a"))
    return catalog


def node(catalog: Catalog, path: str, access_scope: AccessScope = ALL_ACCESS) -> KnowledgeNode:
    return knowledge_node(base_of(catalog, access_scope), path)


def base_of(catalog: Catalog, access_scope: AccessScope = ALL_ACCESS) -> Any:
    """A knowledge base with nothing else opened."""
    return SimpleNamespace(
        catalog=catalog,
        registry=HardwareRegistry(catalog),
        snapshots=snapshots_of(catalog),
        access=access_scope,
    )


@lru_cache(maxsize=1)
def snapshots_of(catalog: Catalog) -> SnapshotStore:
    return SnapshotStore(catalog, "no model")


def walk(catalog: Catalog, path: str = "") -> Iterator[KnowledgeNode]:
    here = node(catalog, path)
    yield here
    for child in here.children:
        yield from walk(catalog, child.path)


def leaves(catalog: Catalog, path: str) -> set[str]:
    return {text.id for place in walk(catalog, path) for text in place.texts}


def test_every_child_resolves_with_counts_of_its_parent(stocked: Catalog) -> None:
    nodes = list(walk(stocked))
    assert {place.kind for place in nodes} == {
        "root",
        "category",
        "hardware",
        "topic",
        "document",
        "section",
    }
    for place in nodes:
        for child in place.children:
            below = node(stocked, child.path)
            assert (below.path, below.kind, below.title) == (child.path, child.kind, child.title)
            assert (below.documents, below.passages) == (child.documents, child.passages)


def test_counts_add_up(stocked: Catalog) -> None:
    for place in walk(stocked):
        assert len(leaves(stocked, place.path)) == place.passages
        if place.kind in ("root", "topic", "document"):
            assert sum(child.passages for child in place.children) == place.passages
        if place.kind == "topic":
            assert sum(child.documents for child in place.children) == place.documents
        if place.kind == "section":
            assert len(place.texts) == place.passages


def test_levels_of_each_category(stocked: Catalog) -> None:
    assert [c.path for c in node(stocked, "").children] == ["constraint", "guidance", "hardware"]
    assert [c.path for c in node(stocked, "guidance").children] == ["guidance/fusion"]
    assert [c.path for c in node(stocked, "constraint").children] == ["constraint/untagged"]
    assert [c.path for c in node(stocked, "hardware").children] == [
        "hardware/h100",
        "hardware/h200",
        "hardware/hopper",
    ]
    assert [c.path.rsplit("/")[-1] for c in node(stocked, "hardware/h100").children] == [
        "bank-conflicts",
        "memory-bandwidth",
        "untagged",
    ]


def test_section_holds_only_passages_in_scope_and_topic(stocked: Catalog) -> None:
    document = node(stocked, "hardware/h100/bank-conflicts").children[0]
    section = node(stocked, document.path).children[0]
    assert [text.text for text in node(stocked, section.path).texts] == ["32 banks.", "Pad rows."]
    assert leaves(stocked, "hardware/h100").isdisjoint(leaves(stocked, "hardware/h200"))


def test_two_spellings_of_a_topic_are_one_node(stocked: Catalog) -> None:
    place = node(stocked, "hardware/h100/memory-bandwidth")
    assert (place.documents, place.passages) == (2, 3)


def test_part_of_a_topic_name_gives_hint(stocked: Catalog) -> None:
    for path in ("hardware/h100/memory", "hardware/H100/bandwidth", "hardware/h100/Memory Bandw"):
        place = node(stocked, path)
        assert place.path == "hardware/h100/memory-bandwidth"
        assert "nearest" in place.hint


@pytest.mark.parametrize(
    ("path", "near"),
    [
        ("hardwares", "hardware"),
        ("hardware/h10", "h100"),
        ("hardware/h100/tensor", "hardware/h100/"),
        ("hardware/h100/memory/doc_1", "hardware/h100/memory-bandwidth/doc_"),
    ],
)
def test_unknown_path_error_names_its_neighbours(stocked: Catalog, path: str, near: str) -> None:
    with pytest.raises(NotFound) as error:
        node(stocked, path)
    assert near in error.value.hint


def test_section_has_no_children(stocked: Catalog) -> None:
    section = next(place for place in walk(stocked) if place.kind == "section")
    with pytest.raises(NotFound, match="nothing below"):
        node(stocked, f"{section.path}/more")


def test_registered_chip_without_documents_is_an_empty_node(catalog: Catalog) -> None:
    chips(catalog)
    place = node(catalog, "hardware/h100")
    assert (place.passages, place.children) == (0, ())
    assert "hardware/hopper" in place.hint
    assert node(catalog, "").passages == 0


def test_documents_of_other_scopes_are_not_in_tree(stocked: Catalog) -> None:
    assert "private" not in repr([place for place in walk(stocked)]).lower()
    assert node(stocked, "guidance", AccessScope("team-a")).passages == 1


def test_deleted_document_is_not_in_tree(stocked: Catalog) -> None:
    document = node(stocked, "guidance/fusion").children[0]
    Documents(stocked).delete(document.path.rsplit("/", 1)[-1])
    assert node(stocked, "guidance").passages == 0


def test_slugs() -> None:
    assert topic_slug("Memory  bandwidth") == "memory-bandwidth"
    assert topic_slug("untagged") != "untagged"
    assert topic_slug("???").startswith("topic-")
