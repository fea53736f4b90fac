"""What llama-index gives out of the box on the same texts: its default vector index, and that fused
with its BM25 retriever.

Default chunks (1,024 tokens, overlap 200), the same embedding weights, which read the first 256
word-pieces of a chunk. The one setting is the number of results: with the default of two, nothing
could be compared.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from llama_index.core import Document, VectorStoreIndex
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.llms import MockLLM
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.retrievers.fusion_retriever import FUSION_MODES
from pydantic import PrivateAttr

from benchmarks.report import say
from benchmarks.retrieval.baselines import TOP, Ask, Texts, by_id, by_phrase, excerpt
from benchmarks.retrieval.encoders import VectorCache
from benchmarks.retrieval.scoring import Answers, Request

VECTOR = "llama-index vector index"
FUSION = "llama-index fusion retriever"
FUSION_PHRASE = "llama-index fusion retriever, signal as a plain phrase"


def has_bm25() -> bool:
    """Whether the package llama-index-retrievers-bm25 is installed."""
    return find_spec("bm25s") is not None and find_spec("llama_index.retrievers") is not None


class CachedEmbedding(BaseEmbedding):
    """Our weights as llama-index sees an embedding model."""

    _cache: VectorCache = PrivateAttr()

    def __init__(self, cache: VectorCache) -> None:
        super().__init__(model_name="benchmark", embed_batch_size=256)
        self._cache = cache

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return [vector.tolist() for vector in self._cache.encode(texts)]

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embeddings([query])[0]

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_query_embedding(query)


def llama_answers(
    requests: Mapping[str, Request], texts: Texts, cache: VectorCache
) -> dict[str, Answers]:
    """The answers of each method, by its name; without its BM25 package only the vector index."""
    logging.getLogger("llama_index").setLevel(logging.ERROR)
    methods: dict[str, tuple[str, Ask]] = {VECTOR: ("vector", by_id)}
    if has_bm25():
        methods |= {FUSION: ("fusion", by_id), FUSION_PHRASE: ("fusion", by_phrase)}
    answers: dict[str, dict[str, list[dict[str, Any]]]] = {name: {} for name in methods}
    embedding = CachedEmbedding(cache)
    by_scope: dict[str | None, list[str]] = {}
    for row, request in requests.items():
        by_scope.setdefault(request.get("hardware"), []).append(row)
    for scope, rows in by_scope.items():
        retrievers = _retrievers(texts, scope, embedding)
        for name, (kind, ask) in methods.items():
            for row in rows:
                hits = retrievers[kind].retrieve(ask(requests[row])) if kind in retrievers else []
                answers[name][row] = [excerpt(n.node.get_content(), scope) for n in hits[:TOP]]
        say(f"llama-index: {scope or 'all hardware'} done")
    return dict(answers)


def _retrievers(
    texts: Texts, scope: str | None, embedding: CachedEmbedding
) -> dict[str, BaseRetriever]:
    """One index per hardware is its filter."""
    documents = [Document(text=text.text) for text in texts.about(scope) if text.text.strip()]
    if not documents:
        return {}
    index = VectorStoreIndex.from_documents(documents, embed_model=embedding)
    vector = index.as_retriever(similarity_top_k=TOP)
    retrievers: dict[str, BaseRetriever] = {"vector": vector}
    if has_bm25():
        retrievers["fusion"] = _fusion([vector, _bm25(index)])
    return retrievers


def _bm25(index: VectorStoreIndex) -> BaseRetriever:
    from llama_index.retrievers.bm25 import BM25Retriever

    retriever: BaseRetriever = BM25Retriever.from_defaults(
        docstore=index.docstore, similarity_top_k=TOP
    )
    return retriever


def _fusion(retrievers: Sequence[BaseRetriever]) -> BaseRetriever:
    return QueryFusionRetriever(
        list(retrievers),
        llm=MockLLM(),
        mode=FUSION_MODES.RECIPROCAL_RANK,
        similarity_top_k=TOP,
        num_queries=1,  # no model to write further queries with
        use_async=False,
    )
