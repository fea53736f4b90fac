"""Nearest passages: from Chroma in very large hardware scopes, otherwise and while Chroma does not
respond from the snapshot.

For a request about one chip, exact search scans the codes of its scope, which takes some
milliseconds. A graph index is worth its memory only in scopes of more than EXACT_UP_TO passages
(docs/scale.md). Results of Chroma are matched against the snapshot, so deleted passages never come
back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import structlog

from kb.embedding import Vectors
from kb.errors import StoreAway
from kb.scope import AccessScope
from retrieval.snapshot.snapshot import Snapshot

if TYPE_CHECKING:
    from kb.index.chroma import ChromaIndex, IndexSyncReport

EXACT_UP_TO = 200_000  # passages about the hardware of a request
SPARE = 50  # entries requested in excess, since some may belong to deleted passages
log = structlog.get_logger(__name__)


class NearIndex:
    """Queries Chroma after `catch_up` has opened it, in scopes of more than `exact_up_to` passages.
    Safe to share between threads."""

    def __init__(self, chroma: ChromaIndex, exact_up_to: int = EXACT_UP_TO) -> None:
        self._chroma = chroma
        self._exact_up_to = exact_up_to
        self._away: StoreAway | None = StoreAway(
            "the vector index is being opened", hint="Vectors are searched exactly until then."
        )

    @property
    def away(self) -> StoreAway | None:
        """The error for which Chroma is not queried, or None."""
        return self._away

    def catch_up(self) -> IndexSyncReport:
        """Synchronise Chroma with the catalog and query it from now on. Raises StoreAway."""
        try:
            report = self._chroma.open_or_rebuild()
        except StoreAway as error:
            self._lose(error)
            raise
        self._away = None
        return report

    def check(self) -> None:
        """Check whether the server responds; see `away`."""
        try:
            self._chroma.check()
        except StoreAway as error:
            self._lose(error)

    def sync(self, scopes: Iterable[str] | None = None) -> None:
        """Synchronise these hardware scopes (None: all) with the catalog, if Chroma responds."""
        if self._away is not None:
            return  # left to `catch_up`
        try:
            self._chroma.sync(scopes)
        except StoreAway as error:
            self._lose(error)

    def nearest(
        self,
        snapshot: Snapshot,
        hardware: Sequence[str] | None,
        vector: Vectors,
        limit: int,
        access: AccessScope,
    ) -> dict[int, float]:
        """At most `limit` passages about this hardware (None: any) nearest to a unit vector, best
        first: number -> cosine."""
        if self._away is None and snapshot.with_vectors(hardware, access) > self._exact_up_to:
            try:
                return self._from_chroma(snapshot, hardware, vector, limit, access)
            except StoreAway as error:
                self._lose(error)
        return snapshot.near(hardware, vector, limit, access)

    def _from_chroma(
        self,
        snapshot: Snapshot,
        hardware: Sequence[str] | None,
        vector: Vectors,
        limit: int,
        access: AccessScope,
    ) -> dict[int, float]:
        scopes = snapshot.hardware_scopes if hardware is None else hardware
        cosines = self._chroma.query(scopes, vector, limit + SPARE, access)
        found = {seq: cosines[i] for i, seq in snapshot.numbers(cosines).items()}
        # Rounded as in exact search, so that equal texts have the same order.
        best = sorted(found, key=lambda seq: (-round(found[seq], 5), seq))
        return {seq: found[seq] for seq in best[:limit]}

    def _lose(self, error: StoreAway) -> None:
        if self._away is None:
            log.warning("searching without Chroma", reason=error.message)
        self._away = error
