"""Kernlore as a retriever of llama-index, over the client.

Knows the client's answers and llama-index's node types, nothing of the store. Importing it imports
llama-index, which takes about two seconds, so nothing else in the product imports this module.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.callbacks.base import CallbackManager
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

from retrieval.client import Excerpt, Kernlore

# For the program, not for the model: ids would only cost tokens in a prompt or noise in a vector.
_FOR_THE_PROGRAM = ["document", "retrieval_id", "version", "category"]


@dataclass(frozen=True)
class Narrowing:
    """What every query of one retriever has in common. None leaves it to the service."""

    hardware: str | None = None
    signal: str | None = None
    op: str | None = None
    language: str | None = None
    dtype: str | None = None
    k: int | None = None
    max_tokens: int | None = None
    categories: Sequence[str] | None = None
    run_id: str | None = None


class KernloreRetriever(BaseRetriever):
    """Nodes are excerpts in ranked order; `retrieval_id` in their metadata is what to report
    against with `Kernlore.report`.
    """

    def __init__(
        self,
        client: Kernlore,
        narrowing: Narrowing | None = None,
        *,
        callback_manager: CallbackManager | None = None,
        **options: Any,
    ) -> None:
        """options: the fields of `Narrowing`, for callers who would rather not build one."""
        if narrowing is not None and options:
            raise TypeError("give a Narrowing or its fields as keywords, not both")
        super().__init__(callback_manager=callback_manager)
        self._client = client
        self._narrowing = narrowing or Narrowing(**options)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        query = query_bundle.query_str.strip() or None
        answer = self._client.retrieve(query=query, **asdict(self._narrowing))
        return [_node(excerpt, answer.retrieval_id) for excerpt in answer.excerpts]

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return await asyncio.to_thread(self._retrieve, query_bundle)


def _node(excerpt: Excerpt, retrieval_id: str) -> NodeWithScore:
    page = excerpt.page or {}
    node = TextNode(
        id_=excerpt.id,
        text=excerpt.text,
        metadata={
            "document": excerpt.document.id,
            "title": excerpt.document.title,
            "version": excerpt.document.version,
            "section": excerpt.section,
            "page": page.get("label") or page.get("index"),
            "hardware": list(excerpt.hardware),
            "category": excerpt.category,
            "citation": excerpt.citation,
            "retrieval_id": retrieval_id,
        },
        excluded_llm_metadata_keys=_FOR_THE_PROGRAM,
        excluded_embed_metadata_keys=_FOR_THE_PROGRAM,
    )
    return NodeWithScore(node=node, score=excerpt.score)
