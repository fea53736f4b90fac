"""A llama-index retriever over the Kernlore client.

Depends on the client's answers and llama-index's node types, not on the store. Importing it imports
llama-index, which takes about two seconds, so no other module of the product imports it.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.callbacks.base import CallbackManager
from llama_index.core.schema import (
    NodeRelationship,
    NodeWithScore,
    ObjectType,
    QueryBundle,
    RelatedNodeInfo,
    TextNode,
)

from retrieval.client import Excerpt, Kernlore

# Metadata for the program only: in a prompt ids cost tokens, in a vector they add noise.
_FOR_THE_PROGRAM = ["document", "retrieval_id", "version", "category"]


class KernloreRetriever(BaseRetriever):
    """Retrieves excerpts as nodes in ranked order. The source of a node is its document;
    `retrieval_id` in its metadata is the id for `Kernlore.report`."""

    def __init__(
        self, client: Kernlore, *, callback_manager: CallbackManager | None = None, **options: Any
    ) -> None:
        """`options` are keyword arguments of `Kernlore.retrieve` for every query, like `hardware`
        and `k`. Raises TypeError for an unknown option."""
        known = inspect.signature(client.retrieve).parameters
        unknown = sorted(options.keys() - known.keys() | options.keys() & {"query"})
        if unknown:
            raise TypeError(f"Kernlore.retrieve has no option {unknown[0]!r} for every query")
        super().__init__(callback_manager=callback_manager)
        self._client = client
        # Without `fields` an excerpt whose text is in the context comes without it.
        self._options = {"fields": ("excerpts",), **options}

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        query = query_bundle.query_str.strip() or None
        answer = self._client.retrieve(query=query, **self._options)
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
        relationships={
            NodeRelationship.SOURCE: RelatedNodeInfo(
                node_id=excerpt.document.id, node_type=ObjectType.DOCUMENT
            )
        },
        excluded_llm_metadata_keys=_FOR_THE_PROGRAM,
        excluded_embed_metadata_keys=_FOR_THE_PROGRAM,
    )
    return NodeWithScore(node=node, score=excerpt.score)
