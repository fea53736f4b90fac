"""Reports of a simulated loop (llvm-mca), and amounts that a person states in a sentence: shares of
the time, the time of a step next to that of the device in it, and traffic as a multiple of the
least.
"""

from __future__ import annotations

import re
from dataclasses import replace

from retrieval.profiles.profile import Kernel, Metric, Profile, number
from retrieval.profiles.program import of_program
from retrieval.profiles.tables import UNITS

MCA, WORDS = "llvm-mca", "words"
_TOTAL = re.compile(r"^(Iterations|Total Cycles|Block RThroughput):\s+([\d.]+)\s*$", re.MULTILINE)
_USED = re.compile(r"^\s*- (?P<name>\w+)\s+\[ (?P<pct>[\d.]+)% \]", re.MULTILINE)
_DEPENDENT = re.compile(r"^\s*- (Register|Memory) Dependencies\s+\[ ([\d.]+)% \]", re.MULTILINE)
_LISTED = re.compile(r"^\[(?P<place>[\d.]+)\]\s+- (?P<name>\w+)", re.MULTILINE)
_PRESSURE = re.compile(
    r"^Resource pressure per iteration:\n(?P<heads>.+)\n(?P<cells>.+)$", re.MULTILINE
)
_DIVIDES = re.compile(r"div", re.IGNORECASE)
_TIME = r"(?P<{}>\d+(?:\.\d+)?) ?(?P<{}_unit>ns|us|[\u00b5\u03bc]s|ms|s)\b"
_DEVICE = r"(?:GPU|device|kernels?|accelerator|NPU|TPU)"
# "17 us per call while the GPU did 3 us of work"
_PART = re.compile(
    _TIME.format("whole", "whole")
    + r"[^.;\n]{0,80}?\b(?:while|of which|but|whereas|although|and)\b"
    rf"[^.;\n]{{0,30}}\b{_DEVICE}\b[^.;\n\d]{{0,50}}?" + _TIME.format("part", "part"),
)
_MULTIPLE = re.compile(
    r"(?P<times>\d+(?:\.\d+)?) ?(?:x|\u00d7|times) (?:as much as |of |more than )?(?:the )?"
    r"(?:theoretical|ideal|minimum|minimal|least|compulsory|necessary|required|expected|algorithmic)"
    r"\b.{0,30}\b(?:traffic|bytes|reads?|writes?|data|transfers?|volume)",
    re.IGNORECASE,
)
_TRAFFIC = re.compile(r"\b(?:DRAM|HBM|memory|global|traffic|bytes)\b", re.IGNORECASE)


def read_simulated(text: str) -> Profile | None:
    """The limits of a loop that llvm-mca simulates; None for other texts."""
    totals = {name: float(value) for name, value in _TOTAL.findall(text)}
    if not {"Iterations", "Total Cycles"} <= totals.keys() or not totals["Iterations"]:
        return None
    cycles = totals["Total Cycles"] / totals["Iterations"]
    metrics: dict[str, Metric] = {}
    if cycles and (least := totals.get("Block RThroughput")):
        metrics["mca_throughput_pct"] = round(min(100.0, 100 * least / cycles), 2)
    used = {row["name"]: float(row["pct"]) for row in _USED.finditer(text)}
    names = {row["place"]: row["name"] for row in _LISTED.finditer(text)}
    if not used and cycles and (pressure := _PRESSURE.search(text)):
        heads = re.findall(r"\[([\d.]+)\]", pressure["heads"])
        amounts = [number(cell) or 0.0 for cell in pressure["cells"].split()]
        pairs = zip(heads, amounts, strict=False)
        used = {names.get(place, place): 100 * amount / cycles for place, amount in pairs}
    metrics["mca_divider_pct"] = max(
        (v for k, v in used.items() if _DIVIDES.search(k)), default=0.0
    )
    for kind, share in _DEPENDENT.findall(text):
        metrics[f"mca_{kind.lower()}_dependency_pct"] = float(share)
    leading = sorted(used, key=lambda name: -used[name])[:3]
    said = ", ".join(f"{name} {used[name]:.3g} %" for name in leading if used[name])
    notes = (f"{cycles:.4g} cycles in an iteration" + (f"; in use: {said}" if said else ""),)
    return Profile(MCA, metrics=metrics, notes=notes)


OSACA = "osaca"
# The sums of a report of OSACA: cycles of each port, the critical path, the carried dependency.
_PORTS = re.compile(
    r"^ {4,}(?P<ports>\d+\.\d\d(?: +\d+\.\d+)*) {2,}(?P<path>[\d.]+) +(?P<carried>[\d.]+)\s*$", re.M
)


def read_ports(text: str) -> Profile | None:
    """The limits of a loop that OSACA analyses; None for other texts."""
    sums = _PORTS.search(text)
    if sums is None or "Port pressure in cycles" not in text:
        return None
    ports = [float(cell) for cell in sums["ports"].split()]
    carried, path = float(sums["carried"]), float(sums["path"])
    least = max(ports)
    cycles = max(least, carried) or 1.0
    divides = max((float(m) for m in _DIVIDING.findall(text)), default=0.0)
    metrics: dict[str, Metric] = {
        "mca_throughput_pct": round(100 * least / cycles, 2),
        "mca_divider_pct": round(min(100.0, 100 * divides / cycles), 2),
    }
    said = f"{least:g} of the busiest port, {carried:g} of the dependency from one to the next"
    return Profile(
        OSACA,
        metrics=metrics,
        notes=(f"{cycles:g} cycles in an iteration: {said}, {path:g} of the longest path",),
    )


# The cycles of the divider, behind those of its port, in the row of a division.
_DIVIDING = re.compile(
    r"^ *\d+ \|[ \d.|]*?\d\.\d+ +(\d+\.\d+) \|.*\bv?f?[a-z]*(?:div|sqrt)", re.M | re.I
)

_TAKES = (
    r"(?:is|are|takes?|took|accounts? for|makes? up|uses?|spends?|consumes?|=)"
    r" (?:about |around |roughly |nearly |almost |~ ?)?"
)
_OF_TIME = (
    r"(?P<pct>\d{1,3}(?:\.\d{1,3})?) ?% of (?:the |all |total |overall ){0,2}(?:\w{1,12} ){0,2}"
    r"(?:run ?)?time\b"
)
_NAMED = r"(?P<name>[A-Za-z_][\w:]{2,60})"
_SHARES = (
    re.compile(rf"{_NAMED}(?:\(\))?[`\"']? {_TAKES}{_OF_TIME}"),
    re.compile(
        rf"{_OF_TIME} (?:is|was|goes|went)? ?(?:spent |used )?(?:in|by|on|to|for) [`\"']?{_NAMED}"
    ),
)
_IDENTIFIER = re.compile(r"_|[a-z][A-Z]|::")  # of names that are no words
ONE_WHOLE = 101.0  # per cent, with rounding


def read_words(text: str) -> Profile | None:
    """The amounts of sentences; None for other texts."""
    stated = {m["name"]: float(m["pct"]) for shares in _SHARES for m in shares.finditer(text)}
    rows = [Kernel(name, 1.0, 0.0, pct) for name, pct in stated.items() if _IDENTIFIER.search(name)]
    if sum(row.pct for row in rows) > ONE_WHOLE:
        rows = []
    profile = of_program(WORDS, rows)
    metrics = {name: value for name, value in profile.metrics.items() if name != "kernel_runs"}
    if part := _PART.search(text):
        whole, busy = (float(part[n]) * UNITS[part[f"{n}_unit"]] for n in ("whole", "part"))
        if 0 < busy < whole:
            metrics["gpu_busy_pct"] = round(100 * busy / whole, 1)
    if (multiple := _MULTIPLE.search(text)) and _TRAFFIC.search(text):
        metrics["dram_traffic_multiple"] = float(multiple["times"])
    return replace(profile, metrics=metrics) if metrics or rows else None
