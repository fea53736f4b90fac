"""A GPU machine without a catalog: the hardware's facts straight from its files, the ceilings as
measured now, and what the numbers were measured on.

Needs torch and nothing else of Kernlore's dependencies.
"""

from __future__ import annotations

import subprocess
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

from optimizer.collectors.ceilings import Ceilings, DeviceStore
from optimizer.toolchains.base import Target

HARDWARE = Path(__file__).resolve().parents[1] / "hw_manuals" / "hardware"
# Which source of a number counts, as in the catalog.
RANK = {"datasheet": 0, "measured": 1, "derived": 2}
THREADS = 8  # of torch on the CPU side


def target_of(hardware: str, device: str | None) -> Target:
    """What a toolchain needs to know; device None compiles only."""
    lineage: list[str] = []
    facts: dict[str, float | str] = {}
    place: str | None = hardware
    while place:
        told = tomllib.loads((HARDWARE / place / "hardware.toml").read_text(encoding="utf-8"))
        lineage.append(place)
        facts = {**_values(told), **facts}
        place = told.get("parent")
    arch = str(facts.get("compute_capability", "")).replace(".", "") or None
    here = "cuda" if device == "cuda" else None
    return Target(hardware, (*lineage, "any"), arch, here, facts)


def _values(told: dict[str, Any]) -> dict[str, float | str]:
    rows = sorted(told.get("facts", []), key=lambda row: -RANK[row["kind"]])
    return {row["key"]: row["value"] for row in rows}


def ceilings_here(folder: Path) -> Ceilings:
    """Measured once for this machine, then read from the folder."""
    return DeviceStore(folder).ensure("cuda", THREADS)


def device_line() -> str:
    """GPU, driver and the versions that decide what was measured."""
    asked = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    name, driver = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split(
        ", ", 1
    )
    versions = [f"{package} {metadata.version(package)}" for package in ("torch", "triton")]
    return f"{name}, driver {driver.splitlines()[0].strip()}, {', '.join(versions)}"


def ceilings_line(ceilings: Ceilings) -> str:
    """The ceilings that shares are of."""
    products = ", ".join(f"{t} {f.value / 1e12:.0f}" for t, f in ceilings.matmul.items())
    launch = f", launch {1e6 * ceilings.launch.value:.1f} us" if ceilings.launch else ""
    return (
        f"Measured ceilings: copy {ceilings.copy_bandwidth / 1e12:.2f} TB/s, matrix products in"
        f" TFLOP/s {products}{launch}."
    )
