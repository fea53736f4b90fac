"""Monitors stores on servers while a service runs, and catches up once they answer again. A service
whose stores are all in its data directory does not need it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog

from kb.blobs import Blobs
from kb.errors import StoreAway

if TYPE_CHECKING:
    from retrieval.near import NearIndex

AWAY_SECONDS, LOOK_SECONDS = 5.0, 20.0  # between checks: while a store is away, otherwise

log = structlog.get_logger(__name__)


class StoreWatch:
    """A thread that checks the stores between `start` and `stop`."""

    def __init__(
        self,
        blobs: Blobs,
        load_builtin: Callable[[], bool],
        finish_deletions: Callable[[], None],
        near: Callable[[], NearIndex | None],
    ) -> None:
        """`load_builtin` loads the built-in knowledge and returns whether that succeeded; `near`
        returns the vector index once it uses Chroma on a server.
        """
        self._blobs = blobs
        self._load_builtin = load_builtin
        self._finish_deletions = finish_deletions
        self._near = near
        self._unloaded = False
        self._files_away: StoreAway | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stores", daemon=True)

    @property
    def files_away(self) -> StoreAway | None:
        """The error of the store of files; None while it answers."""
        return self._files_away

    def lose_files(self, error: StoreAway) -> None:
        """Record a failed load of the built-in knowledge, to repeat it once the files answer."""
        self._files_away, self._unloaded = error, True

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the check in progress, which has time limits."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=AWAY_SECONDS)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._check_files()
                self._check_vectors()
            except Exception:  # boundary of the thread: the catalog's server may be away too
                log.warning("stores cannot be checked", exc_info=True)
            near = self._near()
            away = self._files_away or (near is not None and near.away)
            self._stop.wait(AWAY_SECONDS if away else LOOK_SECONDS)

    def _check_files(self) -> None:
        if self._blobs.is_local:
            return
        try:
            self._blobs.check()
        except StoreAway as error:
            if self._files_away is None:
                log.warning("the store of files is away", reason=error.message)
            self._files_away = error
            return
        if self._files_away is not None:
            log.info("the store of files answers")
            self._files_away = None
        if self._unloaded:
            self._unloaded = not self._load_builtin()
        self._finish_deletions()

    def _check_vectors(self) -> None:
        near = self._near()
        if near is None:
            return
        near.check()
        if near.away is not None and not self._stop.is_set():
            try:
                report = near.catch_up()
            except StoreAway:
                return  # `near.away` says why
            log.info("Chroma answers again", added=report.added, removed=report.removed)
