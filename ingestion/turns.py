"""Whose texts are embedded next, so that one large document does not keep out all others.

What people sent goes before what is built in. Shares (what was sent together, or is about the same
hardware) get equal parts of a batch. Within a share the document goes first that lacks the fewest
texts: it is ready soonest. A part of the batch goes to the oldest document all the same, so that
small ones that keep coming cannot hold it up for ever. Knows no catalog."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

OLDEST = 4  # one in so many of a share's texts is the oldest document's


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
    """How many texts of each document come into a batch of so many; documents without any are left
    out.
    """
    ahead = [document for document in waiting if not document.behind] or waiting
    shares: dict[str, list[Waiting]] = {}
    for document in ahead:
        shares.setdefault(document.share, []).append(document)
    sizes = {share: sum(d.texts for d in documents) for share, documents in shares.items()}
    allotted: dict[str, int] = {}
    for share, texts in equal_parts(sizes, batch).items():
        allotted |= _within_share(shares[share], texts)
    return {document_id: texts for document_id, texts in allotted.items() if texts}


def equal_parts(wanted: Mapping[str, int], batch: int) -> dict[str, int]:
    """`batch` in equal parts, none larger than is wanted; what one leaves goes to the others."""
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
