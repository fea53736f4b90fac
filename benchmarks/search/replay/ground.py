"""Where points are measured, and in which language their kernels are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["cpu", "cuda"]


@dataclass(frozen=True)
class Ground:
    """device: as torch calls it. language: of every recipe that takes part."""

    device: Kind
    language: str


CPP = Ground("cpu", "cpp")
TRITON = Ground("cuda", "triton")
GROUNDS = (CPP, TRITON)
