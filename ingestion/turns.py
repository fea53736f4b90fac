"""Which texts are embedded next, so that a large document does not block all others.

Uploads come before built-in documents. Shares (uploads of one group, or about the same hardware)
get equal parts of a batch. Within a share the document with the fewest missing texts comes first,
because it is ready soonest; a part of the batch is for the oldest document, so that a stream of
small ones cannot delay it forever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kb.catalog.engine import Catalog
from kb.catalog.jobs import Jobs, Turn
from kb.catalog.knowledge import candidates, embeddings
from kb.catalog.knowledge.embeddings import MissingText

OLDEST = 4  # one of so many texts of a share is for the oldest document
# Texts in a transaction: as many as take EMBED_SECONDS. An upload waits for the current batch, and
# larger ones are hardly faster.
EMBED_SECONDS = 3.0
FIRST_BATCH, LARGEST_BATCH = 64, 512


class BatchSize:
    """The number of texts that a worker embeds at a time."""

    def __init__(self) -> None:
        self.texts = FIRST_BATCH

    def took(self, texts: int, seconds: float) -> None:
        """Adapt the next batch to EMBED_SECONDS, by the time of the last one."""
        if 2 * texts >= self.texts or seconds > EMBED_SECONDS:
            fitting = int(texts * EMBED_SECONDS / max(seconds, 0.001))
            self.texts = min(max(fitting, FIRST_BATCH), 2 * self.texts, LARGEST_BATCH)


def next_texts(
    catalog: Catalog, jobs: Jobs, model: str, batch: int, owner: str
) -> list[MissingText]:
    """A batch of texts without a vector of this model, each once, of the documents whose turn it
    is. Documents of other workers are theirs to embed.
    """
    turns = jobs.turns()
    others = jobs.held_by_others(owner)
    with catalog.read() as connection:
        waiting = []
        for document_id, left in candidates.pending(connection, model).items():
            if document_id not in others:
                # A corrected passage has no job, and a person waits for it.
                turn = turns.get(document_id) or Turn(share=document_id)
                waiting.append(
                    Waiting(document_id, turn.share, turn.behind, left.texts, left.first)
                )
        return embeddings.missing(connection, model, allot(waiting, batch))


@dataclass(frozen=True)
class Waiting:
    """A document with texts to embed. `first` orders documents by age; one that is `behind` waits
    for all that are not.
    """

    document_id: str
    share: str
    behind: bool
    texts: int
    first: int


def allot(waiting: Sequence[Waiting], batch: int) -> dict[str, int]:
    """The number of texts of each document in a batch; documents without any are left out."""
    first = [document for document in waiting if not document.behind] or waiting
    shares: dict[str, list[Waiting]] = {}
    for document in first:
        shares.setdefault(document.share, []).append(document)
    sizes = {share: sum(d.texts for d in documents) for share, documents in shares.items()}
    allotted: dict[str, int] = {}
    for share, texts in equal_parts(sizes, batch).items():
        allotted |= _within_share(shares[share], texts)
    return {document_id: texts for document_id, texts in allotted.items() if texts}


def equal_parts(wanted: Mapping[str, int], batch: int) -> dict[str, int]:
    """`batch` in equal parts, none larger than wanted; the rest of a small one goes to others."""
    parts: dict[str, int] = {}
    left = batch
    for position, name in enumerate(sorted(wanted, key=lambda name: (wanted[name], name))):
        # Rounded up: of two shares and one text, one gets it.
        equal = -(-left // (len(wanted) - position))
        parts[name] = min(wanted[name], equal)
        left -= parts[name]
    return parts


def _within_share(documents: Sequence[Waiting], texts: int) -> dict[str, int]:
    oldest = min(documents, key=lambda document: document.first)
    parts = {oldest.document_id: min(oldest.texts, -(-texts // OLDEST))}
    left = texts - parts[oldest.document_id]
    for document in sorted(documents, key=lambda d: (d.texts, d.first)):
        more = min(left, document.texts - parts.get(document.document_id, 0))
        parts[document.document_id] = parts.get(document.document_id, 0) + more
        left -= more
    return parts
