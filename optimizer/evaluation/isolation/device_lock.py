"""One measurement at a time on a device, over all processes of this machine."""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path
from typing import IO


def physical(device: str, number: int = 0) -> str:
    """A name of the very device that this process knows by the number. Processes that see different
    GPUs, as by CUDA_VISIBLE_DEVICES, count each from 0 and need not wait for one another."""
    plain = device if number == 0 else f"{device}{number}"
    if device != "cuda":
        return plain
    import torch  # takes seconds, and a CPU needs nothing of it

    if not torch.cuda.is_available():
        return plain
    return f"{device}-{torch.cuda.get_device_properties(number).uuid}"


class DeviceLock:
    """A context that waits until nobody else measures on the device. The kernel frees it when the
    process ends, however it ends.

    Whoever has measured may leave processes that are still being ended: it holds a mark until they
    are gone (`departing`), and nobody begins to time beside a mark (`alone`).
    """

    def __init__(self, device: str, folder: Path | None = None, number: int = 0) -> None:
        place, device = folder or Path(tempfile.gettempdir()), physical(device, number)
        self._path = place / f"kernlore-device-{device}-{os.getuid()}.lock"
        self._marks = self._path.with_suffix(".ending")
        self._file: IO[bytes] | None = None

    def __enter__(self) -> DeviceLock:
        self._file = self._path.open("ab")
        fcntl.flock(self._file, fcntl.LOCK_EX)
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def departing(self) -> IO[bytes]:
        """A mark that what was measured here is still being ended; gone when it is closed. To be
        made while the lock is held."""
        mark = self._marks.open("ab")
        fcntl.flock(mark, fcntl.LOCK_SH)
        return mark

    def alone(self) -> None:
        """Wait until there is no mark, of whatever process. To be called while the lock is held, so
        that none is made meanwhile."""
        with self._marks.open("ab") as marks:
            fcntl.flock(marks, fcntl.LOCK_EX)
