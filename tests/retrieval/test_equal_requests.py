"""An equal request is answered from memory, and never with what does not hold any more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from kb.index.exact import ExactIndex

from kb.answers import Answer
from retrieval.request import RetrieveRequest
from retrieval.service import Retriever
from tests.fixtures import Store

pytestmark = pytest.mark.slow(seconds=5)

MANUAL = (
    "# Chip\n\n## Bank conflicts\n\nPad rows of shared memory by one word against bank"
    " conflicts.\n\n## Occupancy\n\nOccupancy falls with the registers of a thread.\n"
)


class Counting(ExactIndex):
    """Counts searches; `generation` is set by the test, as an index does that was synchronised."""

    searches = 0

    def query(self, *args: Any, **kwargs: Any) -> dict[int, float]:
        self.searches += 1
        return super().query(*args, **kwargs)


@dataclass
class Asking:
    """Asks, and says how many searches the last answer took."""

    store: Store
    index: Counting
    retriever: Retriever
    searches: int = 0

    def __call__(self, **given: Any) -> Answer:
        before = self.index.searches
        request = RetrieveRequest(**{"query": "bank conflicts", "hardware": "h100", **given})
        answer = self.retriever.retrieve(request)
        self.searches = self.index.searches - before
        return answer


@pytest.fixture
def ask(tmp_path: Any, embedder: Any, parsers: Any, tagger: Any) -> Iterator[Asking]:
    store = Store(tmp_path, embedder, parsers, tagger)
    store.ingest("manual.md", MANUAL, hardware=("h100",))
    index = Counting(store.catalog, store.embedder.fingerprint)
    retriever = Retriever(store.catalog, store.registry, store.embedder, lambda: index)
    yield Asking(store, index, retriever)
    retriever.close()
    store.catalog.close()


def shown(answer: Answer) -> Sequence[str]:
    return [excerpt.text for excerpt in answer.excerpts]


def test_an_equal_request_is_not_searched_for_again(ask: Asking) -> None:
    first = ask(run_id="run_1", node_id="node_1")
    assert ask.searches
    second = ask(run_id="run_2")
    assert not ask.searches
    assert first.retrieval_id != second.retrieval_id
    assert first.as_json() | {"retrieval_id": ""} == second.as_json() | {"retrieval_id": ""}


@pytest.mark.parametrize(
    "given",
    [
        {"query": "bank conflict"},
        {"hardware": "h200"},
        {"k": 1},
        {"max_tokens": 300},
        {"categories": ("hardware",)},
        {"log": "error: too many bank conflicts"},
        {"metrics": {"smsp__cycles_active.avg": 1.0}},
    ],
)
def test_whatever_differs_is_searched_for(ask: Asking, given: dict[str, Any]) -> None:
    ask()
    ask(**given)
    assert ask.searches


def test_what_was_uploaded_and_deleted_since_counts(ask: Asking) -> None:
    before = ask()
    added = ask.store.ingest(
        "more.md", "# More\n\nBank conflicts vanish with a swizzle.\n", hardware=("h100",)
    )
    assert any("swizzle" in text for text in shown(ask())) and ask.searches
    ask.store.documents.delete(added.document_id)
    after = ask()
    assert ask.searches and shown(after) == shown(before)


def test_an_index_that_was_brought_up_to_the_catalog_is_searched_again(ask: Asking) -> None:
    ask()
    ask.index.generation = 1
    ask()
    assert ask.searches
    ask()
    assert not ask.searches


def test_what_a_run_was_shown_in_vain_is_left_out_of_its_next_answer(ask: Asking) -> None:
    log = "error: bank conflicts in shared memory"
    first = ask(run_id="run_1", log=log)
    again = ask(run_id="run_1", log=log)
    assert first.parts and {part.id for part in first.parts}.isdisjoint(p.id for p in again.parts)
    assert ask(run_id="run_2", log=log).context == first.context


SIGNAL = {"query": None, "signal": "bank_conflict"}


@pytest.mark.parametrize(
    "given", [{"k": 1}, {"max_tokens": 600}, {"exclude": ("psg_0",)}, {"run_id": "run_1"}]
)
def test_the_order_of_a_bare_signal_is_that_of_every_depth_and_budget(
    ask: Asking, given: dict[str, Any]
) -> None:
    ask(**SIGNAL)
    kept = ask(**SIGNAL, **given)
    assert not ask.searches
    ask.index.generation = 1
    fresh = ask(**SIGNAL, **given)
    assert ask.searches
    assert kept.context == fresh.context and shown(kept) == shown(fresh)


@pytest.mark.parametrize(
    "given",
    [
        {"hardware": "h200"},
        {"signal": "occupancy_limited"},
        {"op": "softmax"},
        {"query": "bank conflicts"},
        {"metrics": {"smsp__cycles_active.avg": 1.0}},
    ],
)
def test_the_order_of_another_signal_chip_or_operator_is_found_anew(
    ask: Asking, given: dict[str, Any]
) -> None:
    ask(**SIGNAL)
    ask(**{**SIGNAL, **given})
    assert ask.searches


def test_the_order_of_a_bare_signal_holds_for_one_state_of_the_documents(ask: Asking) -> None:
    before = ask(**SIGNAL)
    added = ask.store.ingest(
        "more.md", "# More\n\n## Bank conflicts\n\nUse a swizzle.\n", hardware=("h100",)
    )
    assert any("swizzle" in text for text in shown(ask(**SIGNAL, k=19))) and ask.searches
    ask.store.documents.delete(added.document_id)
    assert shown(ask(**SIGNAL, k=18)) == shown(before) and ask.searches
    ask.index.generation = 1
    ask(**SIGNAL, k=17)
    assert ask.searches
