"""A GPU machine without a catalog: facts read from files, ceilings measured now, and a line that
describes the machine.

Needs torch and nothing else of Kernlore's dependencies.
"""

from __future__ import annotations

import json
import subprocess
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.report import machine
from optimizer.evaluation.collectors.ceilings import Ceilings, ceilings_from_json, measure_ceilings
from optimizer.evaluation.toolchains.base import EvaluationTarget
from retrieval.diagnose.linear_patterns import trust_patterns

HARDWARE = Path(__file__).resolve().parents[2] / "hw_manuals" / "hardware"
# Which source of a number counts, as in the catalog.
RANK = {"datasheet": 0, "measured": 1, "derived": 2}
THREADS = 8  # of torch on the CPU side


def read_logs_here() -> None:
    """Compile the patterns of error messages with `re` if RE2 is not installed."""
    if find_spec("re2") is None:
        trust_patterns()


def target_of(hardware: str, device: str | None) -> EvaluationTarget:
    """The target of a toolchain; without a device it only compiles."""
    lineage: list[str] = []
    facts: dict[str, float | str] = {}
    place: str | None = hardware
    while place:
        report = tomllib.loads((HARDWARE / place / "hardware.toml").read_text(encoding="utf-8"))
        lineage.append(place)
        facts = {**_values(report), **facts}
        place = report.get("parent")
    arch = str(facts.get("compute_capability", "")).replace(".", "") or None
    return EvaluationTarget(
        hardware, (*lineage, "any"), arch, "cuda" if device == "cuda" else None, facts
    )


def _values(report: dict[str, Any]) -> dict[str, float | str]:
    rows = sorted(report.get("facts", []), key=lambda row: -RANK[row["kind"]])
    return {row["key"]: row["value"] for row in rows}


@dataclass(frozen=True)
class Measured:
    """The machine that the figures of a folder are of: also where they are only reported."""

    device: str
    host: str
    ceilings: Ceilings

    @property
    def line(self) -> str:
        """GPU, software and the ceilings that shares are of."""
        ceilings = self.ceilings
        products = ", ".join(f"{t} {f.value / 1e12:.0f}" for t, f in ceilings.matmul.items())
        launch = f", launch {1e6 * ceilings.launch.value:.1f} us" if ceilings.launch else ""
        return (
            f"{self.device}. Measured ceilings: copy {ceilings.copy_bandwidth / 1e12:.2f} TB/s,"
            f" matrix products in TFLOP/s {products}{launch}."
        )


def machine_of(folder: Path) -> Measured:
    """The machine recorded in the folder, else this one with its ceilings measured."""
    path = folder / "machine.json"
    if path.is_file():
        report = json.loads(path.read_text(encoding="utf-8"))
        return Measured(report["device"], report["host"], ceilings_from_json(report["ceilings"]))
    result = Measured(device_line(), machine(), measure_ceilings("cuda", THREADS))
    folder.mkdir(parents=True, exist_ok=True)
    report = {"device": result.device, "host": result.host, "ceilings": result.ceilings.as_json()}
    path.write_text(json.dumps(report), encoding="utf-8")
    return result


def write_report(path: Path | None, title: str, parts: Sequence[str], measured: Measured) -> None:
    """As `report.write_result`, of the machine that measured."""
    body = "\n\n".join([*parts, f"Measured {measured.host}."])
    print(body)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {title}\n\n{body}\n", encoding="utf-8")


def stored_records(folder: Path, name: str) -> list[dict[str, Any]]:
    """Records of earlier parts of a run, from a file of JSON lines."""
    path = folder / name
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return [json.loads(line) for line in lines]


def store_record(folder: Path, name: str, record: Mapping[str, Any]) -> None:
    with (folder / name).open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(record) + "\n")


def device_line() -> str:
    """GPU, driver and versions of torch and triton."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    report = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    name, driver = report.splitlines()[0].split(", ", 1)
    versions = [f"{package} {metadata.version(package)}" for package in ("torch", "triton")]
    return f"{name}, driver {driver.strip()}, {', '.join(versions)}"
