"""Keeps the lexical index and the columns of the ranking in memory while a service runs.

Requests never wait for them: as long as what is in memory is not what their transaction sees, the
tables answer, with the same rows. It is made anew once the tables have been still for a moment, so
a thousand manuals that arrive cost it once, not a thousand times.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog
from sqlalchemy import Connection
from threadpoolctl import threadpool_limits

from kb.catalog.engine import Catalog
from kb.catalog.knowledge import candidates, lexical
from kb.index import near
from kb.memory import collect_once_and_freeze, limit_arenas, return_freed_memory

LOOK_SECONDS = 1.0  # between two looks at the tables; still for so long, they are read

log = structlog.get_logger(__name__)


class KeptInMemory:
    """A thread of its own between `start` and `stop`. `heading_weight` is that of the searches,
    `model` the fingerprint of the embedding model; `follow` is called after each look at tables
    that are still, for what else has to catch up with other processes.
    """

    def __init__(
        self,
        catalog: Catalog,
        heading_weight: float,
        model: Callable[[], str],
        look_seconds: float = LOOK_SECONDS,
        follow: Callable[[], object] = lambda: None,
    ) -> None:
        self._catalog = catalog
        self._model = model
        self._heading_weight = heading_weight
        self._look_seconds = look_seconds
        self._follow = follow
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="in-memory", daemon=True)

    def start(self) -> None:
        """Look at the tables from now on. From then on a product of numpy takes one thread of this
        process: a second waits for the next product by spinning, and of two processors that took
        the time in which another request is answered.
        """
        threadpool_limits(1, user_api="blas")
        limit_arenas()
        self._thread.start()

    def stop(self) -> None:
        """End the thread; what it is making is finished first."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        last: object = None
        while not self._stop.is_set():
            try:
                with self._catalog.read() as connection:
                    state = candidates.state(connection)
                    made = state == last and self._keep(connection)
                if made:
                    collect_once_and_freeze()
                    return_freed_memory()  # making it takes twice what stays
                if state == last:
                    self._follow()
                last = state
            except Exception:  # the thread's boundary: the tables answer meanwhile
                log.exception("nothing can be kept in memory; the tables answer")
            self._stop.wait(self._look_seconds)

    def _keep(self, connection: Connection) -> bool:
        """Whether anything had to be made."""
        made = (
            lexical.keep_in_memory(connection, self._heading_weight),
            candidates.keep_in_memory(connection, self._model()),
            near.keep_in_memory(connection, self._model()),
        )
        return any(made)
