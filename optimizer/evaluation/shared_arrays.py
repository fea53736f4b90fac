"""Memory that the supervisor shares with a runner, and a store that gives it out again.

Fresh memory is faulted in page by page, which takes ten times as long as writing it. Only memory
that no living process maps goes back to the store. What is given out a second time holds nothing of
its last use outside of its arrays; those are the taker's to write.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

from optimizer.evaluation.runner.memory import Arrays, Place, create, lay_out, pin, unpin

Specs = Sequence[tuple[str, Sequence[int]]]
KEPT_BYTES = 16 << 30  # at most, and no more than a quarter of what is free
_PAGES = "SC_AVPHYS_PAGES"


@dataclass(frozen=True)
class Shared:
    """A memory file and views on it. `used` says that it held something else before. `pinned` says
    that its pages stay in place for a GPU (see `optimizer.evaluation.runner.memory.pin`), as long
    as it is kept."""

    fd: int
    places: list[Place]
    size: int
    arrays: Arrays
    used: bool = False
    pinned: bool = False

    def close(self) -> None:
        """Unpin and close the file; the views stay valid while they are held."""
        if self.pinned:
            unpin(self.arrays)
        os.close(self.fd)


class SharedStore:
    """Gives out shared memory. `keeps` says whether memory that was given back is given out again.
    May be used by several threads."""

    def __init__(self, keeps: bool = False) -> None:
        self._keeps = keeps
        self._room = _room() if keeps else 0
        self._free: list[Shared] = []
        self._lock = threading.Lock()

    def take(self, specs: Specs, pinned: bool = False) -> Shared:
        """Memory for arrays of these (dtype, shape) pairs: zeros, or whatever it held where it was
        used before. `pinned` asks for pinned memory, where that can be had."""
        places, size = lay_out(specs)
        shared = self._reusable(places) or _created(places, size)
        if pinned and not shared.pinned:
            shared = replace(shared, pinned=pin(shared.arrays))
        return shared

    def _reusable(self, places: Sequence[Place]) -> Shared | None:
        """Memory laid out like this, by chance: where it lies decides some hundredths of a kernel's
        time, which shall not always fall on the same side."""
        with self._lock:
            fitting = [n for n, shared in enumerate(self._free) if shared.places == places]
            if not fitting:
                return None
            shared = self._free.pop(random.choice(fitting))
        shared.arrays.clear_gaps()
        return shared

    def give(self, shared: Shared, reusable: bool) -> None:
        """Give memory back. `reusable` says that no process maps it any more."""
        with self._lock:
            held = sum(kept.size for kept in self._free)
            if self._keeps and reusable and held + shared.size <= self._room:
                self._free.append(replace(shared, used=True))
                return
        shared.close()

    def close(self) -> None:
        """Close what is kept. What is given back later is closed at once."""
        with self._lock:
            self._keeps = False
            free, self._free = self._free, []
        for shared in free:
            shared.close()


def _created(places: list[Place], size: int) -> Shared:
    fd = create(size)
    return Shared(fd, places, size, Arrays(fd, places, size))


def _room() -> int:
    """Bytes that may be kept."""
    free = os.sysconf(_PAGES) * os.sysconf("SC_PAGE_SIZE") if _PAGES in os.sysconf_names else 0
    return min(KEPT_BYTES, free // 4)
