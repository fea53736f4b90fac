"""The llama-index retriever: excerpts become nodes, options are sent, outcomes can be reported."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pytest
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.indices.query.query_transform.base import IdentityQueryTransform
from llama_index.core.retrievers import TransformRetriever
from llama_index.core.schema import MetadataMode

from kb import answers as contract
from retrieval.client import Kernlore, KernloreClientError, Part
from retrieval.llama import KernloreRetriever

pytestmark = pytest.mark.slow(seconds=3)


def excerpt(number: int, score: float, page: Mapping[str, Any] | None) -> contract.Excerpt:
    return contract.Excerpt(
        id=f"psg_{number}",
        category="hardware",
        hardware=("h100",),
        text=f"Text {number}.",
        document=contract.DocumentRef("doc_1", "Tuning notes", 2),
        section="Shared memory > Banks",
        page=page,
        score=score,
        channels={},
        citation=f"Tuning notes ({number})",
    )


class InProcess:
    """A service in this process with two excerpts for any request."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def send(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        json: Any | None = None,
        files: Sequence[Part] | None = None,
    ) -> tuple[int, Any]:
        self.asked.append(json)
        if (json or {}).get("hardware") == "h10":
            return 404, {"code": "unknown_hardware", "message": "h10", "hint": "", "details": {}}
        excerpts = (excerpt(1, 0.9, {"index": 11, "label": "xii"}), excerpt(2, 0.4, None))
        empty = contract.Verdict()
        return 200, asdict(contract.Answer("ret_1", empty, None, excerpts, (), (), "context"))


@pytest.fixture
def service() -> InProcess:
    return InProcess()


def test_excerpts_become_nodes_in_order(service: InProcess) -> None:
    retriever = KernloreRetriever(Kernlore(backend=service), hardware="h100", k=2)
    assert isinstance(retriever, BaseRetriever)
    first, second = retriever.retrieve("how to pad")
    assert (first.node_id, first.score, first.text) == ("psg_1", 0.9, "Text 1.")
    assert first.metadata == {
        "document": "doc_1",
        "title": "Tuning notes",
        "version": 2,
        "section": "Shared memory > Banks",
        "page": "xii",
        "hardware": ["h100"],
        "category": "hardware",
        "citation": "Tuning notes (1)",
        "retrieval_id": "ret_1",
    }
    assert first.node.ref_doc_id == "doc_1"
    assert (second.node_id, second.metadata["page"]) == ("psg_2", None)
    asked = {"query": "how to pad", "hardware": "h100", "k": 2, "fields": ["excerpts"]}
    assert service.asked == [asked]


def test_every_option_narrows_every_query(service: InProcess) -> None:
    options: dict[str, Any] = {
        "signal": "bank_conflict",
        "hardware": "h100",
        "op": "matmul",
        "language": "triton",
        "dtype": "fp16",
        "k": 5,
        "max_tokens": 900,
        "categories": ["guidance"],
        "run_id": "run_1",
        "roles": ["pad"],
        "fields": ["excerpts"],
    }
    retriever = KernloreRetriever(Kernlore(backend=service), **options)
    retriever.retrieve("q")
    retriever.retrieve("  ")
    assert service.asked == [{"query": "q", **options}, options]


@pytest.mark.parametrize("option", ["chip", "query"])
def test_unknown_option_is_refused_at_once(service: InProcess, option: str) -> None:
    options: dict[str, Any] = {option: "h100"}
    with pytest.raises(TypeError, match=option):
        KernloreRetriever(Kernlore(backend=service), **options)


def test_model_reads_citations_but_no_ids(service: InProcess) -> None:
    node = KernloreRetriever(Kernlore(backend=service)).retrieve("q")[0].node
    shown = node.get_content(MetadataMode.LLM)
    assert "Tuning notes (1)" in shown and "Text 1." in shown
    assert "ret_1" not in shown and "doc_1" not in shown


def test_unknown_hardware_is_an_error(service: InProcess) -> None:
    retriever = KernloreRetriever(Kernlore(backend=service), hardware="h10")
    with pytest.raises(KernloreClientError, match="unknown_hardware"):
        retriever.retrieve("q")


def test_retriever_can_be_awaited(service: InProcess) -> None:
    retriever = KernloreRetriever(Kernlore(backend=service))
    nodes = asyncio.run(retriever.aretrieve("q"))
    assert [node.node_id for node in nodes] == ["psg_1", "psg_2"]


def test_retriever_composes_with_those_of_llama_index(service: InProcess) -> None:
    ours = KernloreRetriever(Kernlore(backend=service))
    composed = TransformRetriever(retriever=ours, query_transform=IdentityQueryTransform())
    assert [node.node_id for node in composed.retrieve("q")] == ["psg_1", "psg_2"]


def test_retriever_uses_running_service(service_url: str) -> None:
    with Kernlore(service_url, timeout=60) as client:
        nodes = KernloreRetriever(client, hardware="h100", k=4).retrieve("shared memory banks")
        assert 0 < len(nodes) <= 4 and nodes[0].text and nodes[0].metadata["title"]
        client.report(nodes[0].metadata["retrieval_id"], used=[nodes[0].node_id])


def test_excerpts_of_a_search_have_their_texts(service_url: str) -> None:
    with Kernlore(service_url, timeout=60) as client:
        found = client.search("shared memory banks", hardware="h100")
        assert found and all(excerpt.text for excerpt in found)
        nodes = KernloreRetriever(client, hardware="h100").retrieve("shared memory banks")
        assert nodes and all(node.text for node in nodes)
