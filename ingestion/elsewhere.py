"""What a worker asks of other machines that read and embed in its place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ingestion.on_node import File
from ingestion.read import ReadDocument
from kb.hardware.spec import HardwareSpec


class Elsewhere(Protocol):
    """Reads and embeds on other machines."""

    def read(self, file: File, specs: Mapping[str, HardwareSpec]) -> ReadDocument:
        """What a file yields; raises what its parser raised."""
        ...

    def encode(self, texts: Sequence[str]) -> list[NDArray[np.float32]]:
        """One vector for each text."""
        ...
