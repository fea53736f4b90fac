"""Libraries that this process has built already. A winner is measured again several times, in fresh
processes; building it each time takes longer than measuring it, above all with nvcc.

They are kept in memory, where no candidate can reach them. Standard library only.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path

from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.toolchains.base import Compiled, Target

MOST = 32  # libraries
MOST_BYTES = 8 << 20  # of one library; a larger one is built again

_Key = tuple[str, str, str | None, str | None]


class BuiltLibraries:
    """Shared libraries by candidate and target, the latest `MOST` of them. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[_Key, tuple[Compiled, bytes]] = OrderedDict()

    def restored(self, bundle: Bundle, target: Target, library: Path) -> Compiled | None:
        """Write the candidate's library to `library` again, with the result of building it; None
        where it is not kept."""
        with self._lock:
            kept = self._kept.get(_key(bundle, target))
            if kept is None:
                return None
            self._kept.move_to_end(_key(bundle, target))
        compiled, content = kept
        library.write_bytes(content)
        if compiled.loader is None:
            return compiled
        return replace(compiled, loader=replace(compiled.loader, path=library))

    def keep(self, bundle: Bundle, target: Target, library: Path, compiled: Compiled) -> None:
        """Keep a library that was built."""
        if not compiled.ok or library.stat().st_size > MOST_BYTES:
            return
        with self._lock:
            self._kept[_key(bundle, target)] = (compiled, library.read_bytes())
            while len(self._kept) > MOST:
                self._kept.popitem(last=False)


def _key(bundle: Bundle, target: Target) -> _Key:
    return bundle.sha256, target.hardware, target.arch, target.device
