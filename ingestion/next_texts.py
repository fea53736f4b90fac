"""Which texts a worker embeds next: of its own documents, as `ingestion.turns` allots them.

What another worker reads is left to that one, or all replicas of a service would embed the same.
"""

from __future__ import annotations

from ingestion.turns import Waiting, allot
from kb.catalog.engine import Catalog
from kb.catalog.jobs import Jobs, Turn
from kb.catalog.knowledge import embeddings
from kb.catalog.knowledge.embeddings import MissingText

# Passages a transaction: as many as take about EMBED_SECONDS. An upload waits for the batch at
# hand, and larger ones encode hardly faster.
EMBED_SECONDS = 3.0
FIRST_BATCH, LARGEST_BATCH = 64, 512


class BatchSize:
    """How many texts a worker embeds at a time."""

    def __init__(self) -> None:
        self.texts = FIRST_BATCH

    def took(self, texts: int, seconds: float) -> None:
        """Let the next batch take about EMBED_SECONDS, by what this one took."""
        if 2 * texts >= self.texts or seconds > EMBED_SECONDS:
            fitting = int(texts * EMBED_SECONDS / max(seconds, 0.001))
            self.texts = min(max(fitting, FIRST_BATCH), 2 * self.texts, LARGEST_BATCH)


def next_texts(
    catalog: Catalog, jobs: Jobs, model: str, batch: int, owner: str
) -> list[MissingText]:
    """A batch of texts without a vector of this model, each once, of the documents whose turn it
    is.
    """
    turns = jobs.turns()
    others = jobs.held_by_others(owner)
    with catalog.read() as connection:
        pending = embeddings.pending(connection, model)
        waiting = []
        for document_id, left in pending.items():
            if document_id in others:
                continue
            # A corrected passage has no job, and a person waits for it.
            turn = turns.get(document_id) or Turn(share=document_id)
            waiting.append(Waiting(document_id, turn.share, turn.behind, left.texts, left.first))
        allotted = allot(waiting, batch)
        return embeddings.missing(connection, model, allotted)
