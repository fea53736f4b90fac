"""Coverage of a chip, over a real catalog."""

from __future__ import annotations

import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from kb.answers import Answer
from kb.catalog import Catalog, open_catalog
from kb.catalog.hardware import HardwareRegistry
from kb.errors import InvalidKnowledge, UnknownHardware
from kb.hardware.facts import fact_keys
from kb.hardware.schema import parse_hardware
from retrieval.coverage import (
    Coverage,
    OnboardingStep,
    Subject,
    coverage,
    coverage_data_from,
    load_coverage_data,
    onboarding_steps,
)
from retrieval.diagnose.signals import DATA, load_signals
from retrieval.request import RetrieveRequest
from tests.catalogs import fresh_data_dir
from tests.fixtures import Store
from tests.retrieval.test_tree import add, base_of, chips, snapshots_of

BOUND = ("signal", "memory_bound")
REGISTERS = ("topic", "registers")


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    catalog = open_catalog(fresh_data_dir(tmp_path))
    chips(catalog)
    yield catalog
    catalog.close()


def coverage_of(catalog: Catalog, hardware: str = "h100") -> Coverage:
    return coverage(base_of(catalog), hardware)


def signal(report: Coverage, name: str) -> Subject:
    return next(s for s in report.signals if s.id == name)


def topic(report: Coverage, name: str) -> Subject:
    return next(s for s in report.topics if s.id == name)


def text(*tags: tuple[str, str]) -> tuple[str, list[tuple[str, str]]]:
    return f"Words of {len(tags)} tags.", list(tags)


def test_state_follows_from_scopes_of_passages(catalog: Catalog) -> None:
    spill, cache = ("signal", "register_spill"), ("signal", "cache_thrash")
    add(catalog, "manual", "hardware", ("h100",), [("A", None, [text(BOUND), text(BOUND, spill)])])
    add(catalog, "family", "hardware", ("hopper",), [("B", None, [text(cache), text(cache)])])
    add(catalog, "sibling", "hardware", ("h200",), [("C", None, [text(("signal", "timeout"))])])
    add(catalog, "advice", "guidance", (), [("D", None, [text(("signal", "divergence"))] * 3)])
    report = coverage_of(catalog)
    assert signal(report, "memory_bound") == Subject(
        "memory_bound", signal(report, "memory_bound").title, "covered", 2, 0, 1
    )
    assert signal(report, "register_spill").state == "thin"
    assert (signal(report, "cache_thrash").state, signal(report, "cache_thrash").inherited) == (
        "thin",
        2,
    )
    assert signal(report, "timeout").state == "missing"
    assert signal(report, "divergence").state == "missing"
    assert (report.lineage, report.documents, report.passages) == (
        ("h100", "hopper", "nvidia"),
        2,
        4,
    )
    assert signal(coverage_of(catalog, "hopper"), "cache_thrash").state == "covered"


def test_passage_with_two_scopes_of_lineage_counts_once(catalog: Catalog) -> None:
    add(catalog, "both", "hardware", ("h100", "hopper"), [("A", None, [text(REGISTERS)])])
    report = topic(coverage_of(catalog), "registers")
    assert (report.own, report.inherited, report.documents, report.state) == (1, 0, 1, "thin")


def test_manual_that_names_a_concept_is_about_its_topic(catalog: Catalog) -> None:
    words: list[tuple[str, list[tuple[str, str]]]] = [
        ("The SBUF holds 24 MiB.", []),
        ("Tiles lie in SBUF and PSUM.", []),
        ("Nothing else is here.", []),
    ]
    add(catalog, "manual", "hardware", ("h100",), [("A", None, words)])
    report = coverage_of(catalog)
    for name in ("on-chip memory", "shared memory"):
        assert topic(report, name) == Subject(name, name, "covered", 2, 0, 1)
    assert topic(report, "registers").state == "missing"


def test_every_signal_and_topic_is_reported(catalog: Catalog) -> None:
    report = coverage_of(catalog)
    assert {s.id for s in report.signals} == set(load_signals().ids)
    assert {s.id for s in report.topics} == {t for s in load_signals() for t in s.topics}
    assert report.signals[0].state == "missing"


def test_three_missing_topics_serve_different_important_signals(catalog: Catalog) -> None:
    empty = coverage_of(catalog).missing_topics
    assert len({t.topic for t in empty}) == 3
    assert "register_spill" in empty[0].signals and empty[0].topic == "registers"
    assert empty[0].weight >= empty[1].weight >= empty[2].weight > 0
    assert all(t.upload.endswith(".") for t in empty)
    tags = [("topic", "registers"), ("signal", "register_spill"), ("signal", "occupancy_limited")]
    tags.append(("signal", "register_limit"))
    add(catalog, "manual", "hardware", ("h100",), [("R", None, [text(*tags)] * 2)])
    after = coverage_of(catalog).missing_topics
    assert "registers" not in {t.topic for t in after}
    assert len(after) == 3


def test_known_and_missing_facts(catalog: Catalog) -> None:
    registry = HardwareRegistry(catalog)
    fact = {
        "key": "memory_bandwidth",
        "value": 3.35e12,
        "unit": "B/s",
        "kind": "datasheet",
        "title": "Data sheet",
        "publisher": "NVIDIA",
        "locator": "Table 1",
        "date": "2026-11-20",
    }
    family = {"id": "hopper", "name": "Hopper", "vendor": "nvidia", "parent": "nvidia"}
    registry.put(parse_hardware({**family, "summary": "A family.", "facts": [fact]}, "f"), "user")
    report = coverage_of(catalog)
    assert [(f.key, f.owner, f.value) for f in report.facts_known] == [
        ("memory_bandwidth", "hopper", 3.35e12)
    ]
    assert {f.key for f in report.facts_missing} == set(fact_keys()) - {"memory_bandwidth"}


def test_names_resolve_and_unknown_chips_do_not(catalog: Catalog) -> None:
    assert coverage_of(catalog, "H100").hardware == "h100"
    with pytest.raises(UnknownHardware):
        coverage_of(catalog, "h900")


def test_number_of_queries_is_independent_of_vocabulary(catalog: Catalog) -> None:
    statements: list[str] = []

    def note(*arguments: object) -> None:
        statements.append(str(arguments[2]))

    snapshots_of(catalog).current()
    with catalog.read() as connection:
        target = connection.engine
    sa.event.listen(target, "before_cursor_execute", note)
    coverage_of(catalog)
    sa.event.remove(target, "before_cursor_execute", note)
    assert sum("passage_tags" in statement for statement in statements) == 1
    assert len(statements) < 40


def test_coverage_data_names_every_topic_and_no_unknown_signal() -> None:
    raw = tomllib.loads((DATA / "coverage.toml").read_text(encoding="utf-8"))
    assert load_coverage_data().weights["memory_bound"] > 1
    del raw["uploads"]["registers"]
    raw["weights"]["memory_bund"] = 3
    with pytest.raises(InvalidKnowledge, match=r"memory_bund.*registers"):
        coverage_data_from(raw, load_signals())


# -- queued documents are named, and are found by their words as soon as they are read

FILLER = "# Filler\n\n" + "\n\n".join(
    f"## Part {n}\n\nThe unit number {n} moves data between the memories of this chip."
    for n in range(40)
)
RARE = "# Notes {n}\n\n## Loads\n\nThe {word} unit moves data between the memories of this chip.\n"
WORDS = ("tarquelin", "osveril", "mabbenoy")


@pytest.fixture
def filled(store: Store) -> Store:
    store.ingest("filler.md", FILLER, hardware=("h100",))
    store.retriever().retrieve(RetrieveRequest(query="loads"))  # publishes the present contents
    for n, word in enumerate(WORDS):
        store.submit(f"notes{n}.md", RARE.format(n=n, word=word), hardware=("h100",))
    return store


def ask(store: Store, query: str, hardware: str | None = "h100") -> Answer:
    return store.retriever().retrieve(RetrieveRequest(query=query, hardware=hardware))


def test_rare_word_finds_its_document_before_embedding(filled: Store) -> None:
    filled.worker().read_all(threading.Event())
    for word in WORDS:
        for hardware in ("h100", None):
            assert word in ask(filled, f"what does the {word} unit move", hardware).excerpts[0].text
    filled.worker().drain()
    for word in WORDS:
        assert word in ask(filled, f"what does the {word} unit move").excerpts[0].text


def test_answer_names_unread_documents(filled: Store) -> None:
    def unread(hardware: str) -> list[str]:
        return [hint for hint in ask(filled, "loads", hardware).hints if "Not read yet" in hint]

    [hint] = unread("h100")
    assert "notes0" in hint
    assert unread("mi300x") == []
    filled.worker().drain()
    assert unread("h100") == []


def test_steps_of_a_chip_count_its_own_facts_and_questions(store: Store) -> None:
    base = base_of(store.catalog)
    base.documents = store.documents

    def step(name: str) -> OnboardingStep:
        steps = onboarding_steps(base, "h200")
        return next(step for step in steps if step.id == name)

    def state(hardware: str, text: str) -> None:
        store.registry.add_fact(
            hardware, "memory_bandwidth", text, document_id=None, locator="1", actor="a person"
        )

    state("hopper", "3 TB/s")
    assert not step("ask").done
    assert not step("facts").done and "1 inherited" in step("facts").note
    state("h200", "4.8 TB/s")
    retriever = store.retriever()
    retriever.retrieve(RetrieveRequest(signal="memory_bound", hardware="h200"))
    retriever.close()  # writes the log
    assert step("ask").done and step("facts").done
