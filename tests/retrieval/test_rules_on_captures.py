"""Verdicts on profiler output of kernels of known kind: the right signal leads, wrong ones are
absent. The records and their sources are in `captures/`.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from retrieval.diagnose.diagnosis import diagnose
from retrieval.diagnose.metrics import normalise

CAPTURES = Path(__file__).with_name("captures")
LINEAGES = {
    "h20": ("h20", "hopper", "nvidia", "any"),
    "h100": ("h100", "hopper", "nvidia", "any"),
    "h200": ("h200", "hopper", "nvidia", "any"),
    "h800": ("h800", "hopper", "nvidia", "any"),
    "b200": ("b200", "blackwell", "nvidia", "any"),
    "a100": ("a100", "ampere", "nvidia", "any"),
    "rtx3060": ("rtx3060", "ampere", "nvidia", "any"),
    "l4": ("l4", "nvidia", "any"),
    "t4": ("t4", "nvidia", "any"),
    "gfx906": ("gfx906", "amd", "any"),
    "mi210": ("mi210", "amd", "any"),
    "mi300x": ("mi300x", "cdna3", "amd", "any"),
    "mi350x": ("mi350x", "amd", "any"),
    "mi355x": ("mi355x", "amd", "any"),
    "x86-64": ("x86-64", "any"),
    "trainium1": ("trainium1", "aws", "any"),
    "trainium2": ("trainium2", "neuroncore-v3", "aws", "any"),
    "inferentia2": ("inferentia2", "aws", "any"),
}
FACTS = {
    "hopper": {
        "registers_per_unit": 65536,
        "warp_size": 32,
        "shared_memory_per_unit": 233472,
        "shared_memory_per_block": 232448,
        "compute_units": 132,
    }
}
KERNELS = [
    kernel
    for path in sorted(CAPTURES.glob("*.toml"))
    for kernel in tomllib.loads(path.read_text(encoding="utf-8"))["kernels"]
]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: f"{kernel['chip']} {kernel['name']}")
def test_kernel_of_known_kind_is_recognised(kernel: dict[str, Any]) -> None:
    lineage = LINEAGES[kernel["chip"]]
    facts = {k: v for place in lineage for k, v in FACTS.get(place, {}).items()}
    problem: dict[str, str] = {key: kernel[key] for key in ("op", "dtype") if key in kernel}
    verdict = diagnose(
        normalise(kernel["counters"]), facts | kernel.get("facts", {}), problem, lineage
    )
    signals = verdict.signal_ids
    if kernel["leads"]:
        assert verdict.primary == kernel["leads"]
    assert set(kernel.get("also", ())) <= set(signals)
    assert not set(kernel.get("never", ())) & set(signals)


def test_every_vendor_has_published_or_recorded_kernels() -> None:
    measured = {k["chip"] for k in KERNELS if k["origin"] != "typical"}
    assert {"h100", "h200", "mi300x", "x86-64", "trainium2"} <= measured
    assert all(k.get("source") for k in KERNELS if k["origin"] == "published")
