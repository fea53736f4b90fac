"""Chips of examples/new_chip, drawn by its script, and their own limits."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "new_chip"
SEEDS = (2, 3, 7)  # drawn chips with a binding scratchpad limit


def chip_script() -> Any:
    """The script as a module; it is a program outside any package."""
    spec = importlib.util.spec_from_file_location("new_chip", EXAMPLE / "chip.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CHIPS = chip_script()


def legal(values: Mapping[str, int], chip: Mapping[str, Any], size: int = 64) -> bool:
    """Count as the chip's compiler does, from the drawn numbers and not from the manual."""
    m, n, k = (values[f"TILE_{axis}"] for axis in "MNK")
    pitches = ((k + values["PAD"]) * 4, n * 4, n * 4)
    used = sum(rows * pitch for rows, pitch in zip((m, k, m), pitches, strict=True))
    return (
        used <= chip["scratchpad_bytes"]
        and m * -(-n // chip["lanes"]) <= chip["vector_registers"]
        and not any(columns % chip["lanes"] for columns in (n, k))
        and not any(pitch % chip["bank_width"] for pitch in pitches)
        and not any(size % tile for tile in (m, n, k))
    )
