"""Answers for the versions of a caller's tools."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kb.answers import Answer
from kb.catalog.knowledge.validities import CheckedValidity, record_checks
from kb.errors import UnknownHardware
from kb.hardware.spec import FactSpec, HardwareSpec
from kb.settings import Settings
from kb.validity import Validity
from retrieval.diagnose.rules import load_rules
from retrieval.knowledge_base import KnowledgeBase, Retriever
from retrieval.request import RetrieveRequest
from tests.fixtures import Store

pytestmark = pytest.mark.slow(seconds=5)

MANUAL = """---
sources:
  - {title: "Triton 3.7.1 source", publisher: "Triton", locator: "dot", url: "", read: 2026-11-20}
validity:
  - {tool: triton, min: "3.8", section: "Contraction is opt-in", checked: read, date: 2026-11-29}
  - {tool: triton, max: "3.5", section: "Old fusion", checked: ran, date: 2026-11-29}
  - {tool: triton, min: "3.6", holds: false, section: "Old fusion", checked: ran, date: 2026-11-30}
---
# Fusion of multiply and add

## Contraction is opt-in

Contraction of multiply and add is off in tl.dot unless the launch asks for fusion.

## Old fusion

Contraction of multiply and add was on, and fusion of add cost nothing.

## Costs of fusion

Fusion of multiply and add saves instructions on any machine.
"""


@pytest.fixture(scope="module")
def store(module_store: Store) -> Store:
    module_store.ingest("manual.md", MANUAL, hardware=("h100",))
    return module_store


@pytest.fixture(scope="module")
def retriever(store: Store) -> Retriever:
    return store.retriever()


def ask(retriever: Retriever, **given: Any) -> Answer:
    request = {"query": "contraction of multiply and add, fusion", "hardware": "h100"}
    return retriever.retrieve(RetrieveRequest(**{**request, **given}))


def marks(answer: Answer) -> dict[str, str]:
    return {e.section.rpartition(" > ")[2]: e.mark for e in answer.excerpts}


def test_newer_statements_are_marked_and_refuted_ones_omitted(retriever: Retriever) -> None:
    answer = ask(retriever, versions={"triton": "3.6.0"})
    assert answer.versions == {"triton": "3.6.0"}
    assert marks(answer) == {
        "Contraction is opt-in": "needs Triton 3.8; yours is 3.6.0",
        "Costs of fusion": "",
    }
    assert 'versions="needs Triton 3.8; yours is 3.6.0"' in answer.context
    assert "cost nothing" not in answer.context
    old = ask(retriever, versions={"triton": "3.4"})
    assert marks(old)["Old fusion"] == "" and "cost nothing" in old.context
    new = ask(retriever, versions={"triton": "3.9"})
    assert marks(new) == {"Contraction is opt-in": "", "Costs of fusion": ""}


def test_versions_of_a_request_override_those_of_its_log(retriever: Retriever) -> None:
    log = "triton==3.6.0\nerror: failed to compile\n"
    assert ask(retriever, log=log).versions == {"triton": "3.6.0"}
    assert ask(retriever, log=log, versions={"triton": "3.9"}).versions == {"triton": "3.9"}


def test_without_versions_answers_are_unmarked(retriever: Retriever) -> None:
    answer = ask(retriever)
    assert set(marks(answer).values()) == {""} and len(marks(answer)) == 3
    assert answer.versions == {} and " versions=" not in answer.context
    held = {e.section.rpartition(" > ")[2]: e.validity for e in answer.excerpts}
    assert held["Contraction is opt-in"][0].min == "3.8"


def test_refuted_statement_is_shown_only_for_other_versions(
    store: Store, retriever: Retriever
) -> None:
    document = store.ingest("kernel.md", "# Kernel\n\n## A fusion\n\nFusion of add by hand.\n")

    def checked(version: str, holds: bool) -> None:
        validity = Validity("clang", version, version, "", "", "compiled", "2026-11-29", holds)
        row = CheckedValidity(document.document_id, "Kernel", validity, "", document.document_id)
        with store.catalog.write() as connection:
            record_checks(connection, [row])

    checked("18", True)
    assert "Fusion of add by hand" in ask(retriever).context
    checked("19", False)
    assert "Fusion of add by hand" not in ask(retriever).context
    assert "Fusion of add by hand" in ask(retriever, versions={"clang": "18.1"}).context
    checked("19", True)
    assert "Fusion of add by hand" in ask(retriever).context


def test_cached_values_are_separate_for_each_set_of_refuted_entries(retriever: Retriever) -> None:
    snapshot = retriever.snapshots.current()
    names = []
    for name in ("first", "second"):
        rest = snapshot.hiding((f"skill:{name}",), snapshot.knowledge)
        names.append(rest.keep("kernels", 1, partial(str, name)))
    assert names == ["first", "second"]


def test_signatures_state_the_versions_that_print_them(retriever: Retriever) -> None:
    log = "error: failed\nk.py: arange's range must be a power of 2"
    [row] = retriever.retrieve(RetrieveRequest(log=log)).diagnosis.signatures[:1]
    assert row["id"] == "triton-arange-power-of-2"
    assert {"triton"} == {validity.tool for validity in row["validity"] if validity.tool}


def test_empty_data_directory_says_how_to_load_knowledge(tmp_path: Path) -> None:
    base = KnowledgeBase(Settings(data_dir=tmp_path / "empty"))
    with pytest.raises(UnknownHardware, match="has no hardware yet") as unknown:
        base.retriever.retrieve(RetrieveRequest(signal="memory_bound", hardware="h100"))
    assert "kernlore ingest --builtin" in (unknown.value.hint or "")
    base.close()


def test_facts_and_rules_state_how_they_were_checked(store: Store) -> None:
    source = {"title": "Data sheet", "publisher": "Acme", "date": "2026-11-20"}
    read = FactSpec("memory_bandwidth", 3e12, "B/s", "datasheet", locator="Table 1", **source)
    measured = FactSpec("l2_bandwidth", 6e12, "B/s", "measured", locator="nvcc 13.0", **source)
    store.registry.put(HardwareSpec("acme-v", "Acme V", "acme", facts=(read, measured)), "api")
    facts = store.registry.effective_facts("acme-v")
    assert facts["memory_bandwidth"].validity == (Validity(target="acme-v", date="2026-11-20"),)
    assert facts["l2_bandwidth"].validity[0].checked == "ran"
    assert facts["l2_bandwidth"].validity[0].min == "13.0"
    rules = {rule.id: rule.validity[0] for rule in load_rules()}
    assert rules["nvidia-bank-conflict"].tool == "ncu"
    assert rules["nvidia-bank-conflict"].min == "2026.1"
    assert rules["nvidia-coalesced"].checked == "ran"
