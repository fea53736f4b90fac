"""Equal requests have equal answers, and a change of the documents is in the next one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from kb.answers import Answer
from kb.embedding import LocalEmbedder, Vectors
from retrieval.knowledge_base import Retriever
from retrieval.request import RetrieveRequest
from tests.fixtures import Store

pytestmark = pytest.mark.slow(seconds=5)

MANUAL = (
    "# Chip\n\n## Bank conflicts\n\nPad rows of shared memory by one word against bank"
    " conflicts.\n\n## Occupancy\n\nOccupancy falls with the registers of a thread.\n"
)


@dataclass
class Asking:
    store: Store
    retriever: Retriever

    def __call__(self, **given: Any) -> Answer:
        request = RetrieveRequest(**{"query": "bank conflicts", "hardware": "h100", **given})
        return self.retriever.retrieve(request)


@pytest.fixture(scope="module")
def ask(module_store: Store) -> Iterator[Asking]:
    module_store.ingest("manual.md", MANUAL, hardware=("h100",))
    retriever = module_store.retriever()
    yield Asking(module_store, retriever)
    retriever.close()


def shown(answer: Answer) -> Sequence[str]:
    return [excerpt.text for excerpt in answer.excerpts]


def test_equal_requests_have_equal_answers_with_distinct_ids(ask: Asking) -> None:
    first = ask(run_id="run_1", node_id="node_1")
    second = ask(run_id="run_2")
    assert first.excerpts and first.retrieval_id != second.retrieval_id
    assert replace(first, retrieval_id="") == replace(second, retrieval_id="")


def test_query_is_embedded_once(ask: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    embedded: list[str] = []
    encode = LocalEmbedder.encode_query

    def counted(embedder: LocalEmbedder, text: str) -> Vectors:
        embedded.append(text)
        return encode(embedder, text)

    monkeypatch.setattr(LocalEmbedder, "encode_query", counted)
    ask(query="rows that are padded")
    assert "rows that are padded" in embedded
    count = len(embedded)
    ask(query="rows that are padded", k=3)
    assert len(embedded) == count


@pytest.mark.parametrize("given", [{}, {"query": None, "signal": "bank_conflict"}])
def test_uploads_and_deletions_change_next_answer(ask: Asking, given: dict[str, Any]) -> None:
    before = ask(**given)
    added = ask.store.ingest(
        "more.md", "# More\n\n## Bank conflicts\n\nUse a swizzle.\n", hardware=("h100",)
    )
    assert any("swizzle" in text for text in shown(ask(**given)))
    ask.store.documents.delete(added.document_id)
    after = ask(**given)
    assert shown(after) == shown(before) and after.context == before.context


def test_unhelpful_excerpts_are_omitted_from_next_answer_of_a_run(ask: Asking) -> None:
    log = "error: bank conflicts in shared memory"
    first = ask(run_id="run_3", log=log)
    again = ask(run_id="run_3", log=log)
    assert first.parts and {part.id for part in first.parts}.isdisjoint(p.id for p in again.parts)
    assert ask(run_id="run_4", log=log).context == first.context
