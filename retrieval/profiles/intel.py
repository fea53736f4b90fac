"""Intel: the tables of `unitrace -d`, the text of `vtune -report summary` or `hotspots`, and the
tree of toplev.

Formats, from the oneAPI optimization guide and recorded output:
- unitrace: "== L0 Backend ==", then Kernel, Calls, Time (ns), Time (%), Average (ns), ...; rows of
  ze* functions are copies and commands; "=== Kernel Properties ===" has bytes of spilled registers;
  "Total Execution Time (ns)" and "Total Device Time ... (ns)" above.
- VTune: "Metric: VALUE[% of UNIT]" with deeper metrics indented, explanations behind "|"; a table
  of hotspots with columns Function, Module and CPU Time.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence

from retrieval.profiles.nsys import of_device
from retrieval.profiles.profile import Kernel, Metric, Profile, choice_note, number, total_times

UNITRACE = "unitrace"
VTUNE = "vtune"
_TOTAL = re.compile(r"Total Execution Time \(ns\):\s+(\d+)")
_DEVICE = re.compile(r"Total Device Time for .{1,40}backend \(ns\):\s+(\d+)")
_COLUMN = re.compile(r"Time ?\(ns\)")
_SPILL = "Spill Memory Per Thread"


def read_unitrace(text: str) -> Profile | None:
    """The kernels of the device, and the spill of the leading one; None for another text."""
    if "Backend ==" not in text and "Device Timing Summary" not in text:
        return None
    header: list[str] = []
    kernels, copies, spills = list[Kernel](), list[Kernel](), dict[str, float]()
    for line in text.splitlines():
        cells = [cell.strip() for cell in next(csv.reader([line], skipinitialspace=True), [])]
        if cells and cells[0] in ("Kernel", "Function"):
            header = cells
        elif len(cells) == len(header) > 2 and header[0] == "Kernel":
            row = dict(zip(header, cells, strict=True))
            run = _run(row)
            if run is not None:
                (copies if run.name.startswith("ze") else kernels).append(run)
            elif (
                bytes_ := number(next((c for n, c in row.items() if _SPILL in n), ""))
            ) is not None:
                spills[cells[0]] = bytes_
    if not kernels and not copies:
        return None
    in_order = total_times(kernels)
    more: dict[str, Metric] = {}
    if in_order and spills.get(in_order[0].name):
        more["spill_bytes"] = spills[in_order[0].name]
    total, device = _TOTAL.search(text), _DEVICE.search(text)
    if total and device and int(total[1]):
        more["gpu_busy_pct"] = round(min(100.0, 100 * int(device[1]) / int(total[1])), 2)
    return of_device(UNITRACE, in_order, total_times(copies), more)


def _run(row: dict[str, str]) -> Kernel | None:
    time = next((number(cell) for name, cell in row.items() if _COLUMN.fullmatch(name)), None)
    calls = number(row.get("Calls", ""))
    return Kernel(row["Kernel"], calls, time / 1e3) if calls and time is not None else None


# -- VTune

_LINE = re.compile(
    r"\s*(?P<name>[A-Z][\w/ .()-]{2,50}?):\s+(?P<value>[\d,.]+)(?P<unit>%|s)?(?: of .*)?\s*$"
)
_NAMES = {
    "Back-End Bound": "tma_backend_bound",
    "Memory Bound": "tma_memory_bound",
    "Core Bound": "tma_core_bound",
    "L1 Bound": "tma_l1_bound",
    "L2 Bound": "tma_l2_bound",
    "L3 Bound": "tma_l3_bound",
    "DRAM Bound": "tma_dram_bound",
    "Store Bound": "tma_store_bound",
    "Memory Bandwidth": "tma_mem_bandwidth",
    "Memory Latency": "tma_mem_latency",
    "Divider": "tma_divider",
    "4K Aliasing": "tma_4k_aliasing",
    "DTLB Overhead": "tma_dtlb_load",
    "Front-End Bound": "tma_frontend_bound",
    "Bad Speculation": "tma_bad_speculation",
    "Retiring": "tma_retiring",
    "Serializing Operations": "tma_serializing_operation",
    "Occupancy": "occupancy_pct",
}
_SIGNS = ("of Pipeline Slots", "of Clockticks", "Elapsed Time:", "CPI Rate:", "Effective CPU")


def read_vtune(text: str) -> Profile | None:
    """The top-down tree and the hotspots; None for another text."""
    hotspots = _hotspots(text.splitlines())
    if not hotspots and not any(sign in text for sign in _SIGNS):
        return None
    metrics: dict[str, Metric] = {}
    for line in text.splitlines():
        match = _LINE.match(line.partition("|")[0])
        value = number(match["value"]) if match else None
        if match is None or value is None:
            continue
        if match["name"] == "CPI Rate" and value:
            metrics.setdefault("ipc", round(1 / value, 4))
        elif match["name"] in _NAMES and match["unit"] == "%":
            metrics.setdefault(_NAMES[match["name"]], value)
    if not metrics and not hotspots:
        return None
    name = hotspots[0].name if hotspots else ""
    return Profile(VTUNE, name, metrics, hotspots, choice_note(hotspots))


# -- toplev

TOPLEV = "toplev"
_NODE = re.compile(
    r"(?:[\w-]{1,20}\s+)?(?P<area>[A-Z][\w/.+]{1,30})\s+(?P<node>[A-Z][\w.]{1,120})\s+"
    r"(?P<unit>% ?[A-Za-z_]+|Metric|CoreMetric|SysMetric)\s+(?P<value>[\d.,]{1,20})(?:\s.*)?"
)


def read_toplev(text: str) -> Profile | None:
    """The nodes of the top-down tree and the instructions per cycle that `toplev` of pmu-tools
    prints, each by the last part of its path; None for another text.
    """
    metrics: dict[str, Metric] = {}
    for line in text.splitlines():
        match = _NODE.fullmatch(line.strip())
        value = number(match["value"]) if match else None
        if match is None or value is None:
            continue
        leaf = match["node"].rpartition(".")[2]
        if match["unit"].startswith("%"):
            metrics.setdefault(f"tma_{leaf.lower()}", value)
        elif leaf == "IPC":
            metrics.setdefault("ipc", value)
    return Profile(TOPLEV, metrics=metrics) if metrics else None


def _hotspots(lines: Sequence[str]) -> tuple[Kernel, ...]:
    """The functions of a table under "Function ... CPU Time", whose columns dashes draw."""
    runs: list[Kernel] = []
    columns: list[tuple[int, int]] = []
    place = None
    for before, line in zip(("", *lines), lines, strict=False):
        if "---" in line and not line.strip(" -") and before.startswith("Function"):
            columns = [(match.start(), match.end()) for match in re.finditer("-+", line)]
            heads = [before[a:b].strip() for a, b in columns]
            place = next((i for i, head in enumerate(heads) if head.startswith("CPU Time")), None)
        elif not line.strip():
            columns = []
        elif columns and place is not None:
            cells = [line[a:b].strip() for a, b in columns]
            seconds = number(cells[place].rstrip("s"))
            if seconds is not None:
                runs.append(Kernel(cells[0], 1, seconds * 1e6))
    return total_times(runs)
