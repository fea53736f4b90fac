"""Queued documents are named, and are found by their words as soon as they are read."""

from __future__ import annotations

import threading

import pytest

from kb.answers import Answer
from retrieval.request import RetrieveRequest
from tests.fixtures import Store

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
