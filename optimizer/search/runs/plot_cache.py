"""The plots of runs for readers of a service: drawn once for as long as a run stays as it is."""

from __future__ import annotations

import threading
from collections import OrderedDict

from optimizer.search.runs.run_store import run_plots, run_store
from retrieval.knowledge_base import KnowledgeBase

KEPT = 64  # runs; the plots of one are some 100 kB


class PlotCache:
    """`plots` may be called from any thread."""

    def __init__(self) -> None:
        # Protects _kept, and the drawing library, which is for one thread at a time. Who asks for
        # a second plot of a run waits for the first, and gets both from one drawing.
        self._drawing = threading.Lock()
        self._kept: OrderedDict[tuple[str, str, str], dict[str, bytes]] = OrderedDict()

    def plots(self, base: KnowledgeBase, run_id: str) -> dict[str, bytes]:
        """What `run_plots` answers. Raises NotFound, also where the reader of `base` may not see
        the run.
        """
        store = run_store(base)
        run = store.run(run_id)
        key = (run_id, run.state, f"{store.size(run_id)} {run.result}")
        with self._drawing:
            if key not in self._kept:
                self._kept[key] = run_plots(base, run_id)
                while len(self._kept) > KEPT:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(key)
            return self._kept[key]
