"""The arrays of a launch and the report of a run. Knows files, not instructions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
ITEM_BYTES = {"float64": 8, "int64": 8, "float16": 2, "bfloat16": 2}


class Trap(Exception):
    """A violation by the kernel. kind: one of chip.json's errors."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind, self.text = kind, text


def decoded(array: Array, dtype: str) -> Array:
    """As 32-bit floats; bfloat16 is stored in 16-bit words."""
    if dtype == "bfloat16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32)


def encoded(array: Array, dtype: str) -> Array:
    if dtype != "bfloat16":
        return array.astype(dtype)
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32).astype(np.uint64)
    nearest = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(array), np.uint16(0x7FC0), nearest)


class Tensors:
    """Device memory by argument: inputs in their order, then outputs. Outputs start as NaN."""

    def __init__(
        self, program: Mapping[str, Any], manifest: Mapping[str, Any], folder: Path
    ) -> None:
        self.inputs: list[str] = program["inputs"]
        self.outputs: list[str] = program["outputs"]
        self.memory: dict[str, Array] = {}
        self._shapes: dict[str, list[int]] = {}
        rows = {role: _of_role(manifest, role) for role in ("input", "output")}
        for role, names in (("input", self.inputs), ("output", self.outputs)):
            given = len(rows[role])
            if given != len(names):
                raise Trap("launch", f"{len(names)} {role}s are declared, {given} are given")
            for name, tensor in zip(names, rows[role], strict=True):
                self._shapes[name] = tensor["shape"]
                self.memory[name] = np.full(math.prod(tensor["shape"]), np.nan, np.float32)
        for name, tensor in zip(self.inputs, rows["input"], strict=True):
            array = np.load(folder / tensor["file"], allow_pickle=False)
            self.memory[name] = np.ascontiguousarray(decoded(array, tensor["dtype"])).reshape(-1)

    def shape(self, argument: str) -> tuple[int, int]:
        """As a matrix: the last dimension is the row."""
        shape = self._shapes[argument] or [1]
        return math.prod(shape[:-1]), shape[-1]


def _of_role(manifest: Mapping[str, Any], role: str) -> list[Mapping[str, Any]]:
    """Weights count as inputs."""
    return [t for t in manifest["tensors"] if (t["role"] == "output") == (role == "output")]


def store_outputs(tensors: Tensors, manifest: Mapping[str, Any], folder: Path) -> None:
    for name, tensor in zip(tensors.outputs, _of_role(manifest, "output"), strict=True):
        array = encoded(tensors.memory[name], tensor["dtype"]).reshape(tensor["shape"])
        np.save(folder / tensor["file"], array)


def report(machine: Any, cycles: int, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The report of a run: cycles, time and the counters of the manual."""
    chip, channels = machine.chip, machine.channels
    time_us = cycles / chip["clock_hz"] * 1e6
    moved = sum(channels.bytes.values())
    bandwidth = chip["dma_bytes_per_cycle"] * (1 + chip["duplex"])
    needed = sum(math.prod(t["shape"]) * ITEM_BYTES.get(t["dtype"], 4) for t in manifest["tensors"])
    family = chip["family"]
    metrics = {
        "duration_us": time_us,
        "cycles": cycles,
        "launches": 1,
        "dram_read_bytes": channels.bytes["read"],
        "dram_write_bytes": channels.bytes["write"],
        "dram_bytes": moved,
        "dram_throughput_pct": _share(moved, cycles * bandwidth),
        "bytes_ratio": moved / needed if needed else None,
        "load_efficiency_pct": _share(channels.useful["read"], channels.bytes["read"]),
        "store_efficiency_pct": _share(channels.useful["write"], channels.bytes["write"]),
        "shared_memory_per_block_bytes": machine.program["scratch_bytes"],
        f"{family}_instructions": machine.executed,
        f"{family}_issue_pct": _share(machine.executed, cycles),
        f"{family}_lane_words": machine.counts["lanes"],
        f"{family}_transfers": channels.started,
        **{f"{family}_stall_{cause}_cycles": count for cause, count in machine.stalls.items()},
    }
    known = {name: value for name, value in metrics.items() if value is not None}
    return {"cycles": cycles, "time_us": time_us, "metrics": known}


def _share(part: float, whole: float) -> float | None:
    return 100 * part / whole if whole else None
