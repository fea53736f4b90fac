"""Read the output of any supported profiler as a `Profile`; the text determines the kind."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from statistics import fmean
from typing import Any

from kb.errors import InvalidRequest
from retrieval.profiles import (
    linux_perf,
    nsight,
    proton,
    resources,
    rocm,
    tables,
    torch_profile,
)
from retrieval.profiles.profile import Kernel, Metric, Profile, choice_note, number, total_times
from retrieval.profiles.program import of_program
from retrieval.profiles.tables import UNITS

READ = (
    "What these print is read, unchanged: `ncu --csv`, also with `--page raw` and `--page source`"
    " (`--print-source cuda,sass` for lines), and ncu's text report; with `--profile FILE` the file"
    " of `nsys export --type sqlite`; rocprof's, rocprofv3's and rocprof-compute's CSV of counters"
    " and statistics, stats_*.csv and code.json of a thread trace, and samples of the program"
    " counter; `perf stat` as text, with `-x,` or with `-j`, `perf annotate --stdio` and"
    " `perf report --stdio`; Proton's .hatchet file and the tree of proton-viewer; XProf's op"
    " profile and HLO statistics; traces of PyTorch's profiler; `neuron-profile view"
    " --output-format summary-json`; any lines or table of names with times or shares (nsys stats,"
    " nvprof, unitrace, VTune, PyTorch, TensorRT, ONNX Runtime, ggml, gprof); and any list or table"
    " of known counters (nvprof, toplev, VTune, likwid, PAPI, cachegrind), and samples of"
    " nvidia-smi and rocm-smi, and reports of llvm-mca and OSACA."
)
# The first characters of files that are not text, with the tool and the command that prints them.
_BINARY = {
    "NVR": ("Nsight Compute", "ncu --import FILE --page details"),
    "SQLite format 3": ("a database", "nsys stats FILE"),
    "PERFILE2": ("perf record", "perf annotate --stdio -l -i FILE"),
    "QDSTRM": ("Nsight Systems", "nsys stats FILE"),
}


def read_profile(text: str, loose: bool = True) -> Profile:
    """A profile with a metric, a line or the time of a kernel. Not `loose` reads tables with a
    header or several lines of one form only, for texts that may be no profile. Raises
    InvalidRequest, which lists the supported profilers, for a text of an unknown profiler or an
    empty profile."""
    if (
        tool := next((t for mark, t in _BINARY.items() if text.startswith(mark)), None)
    ) is not None:
        raise InvalidRequest(
            f"the profile is a binary file of {tool[0]}", hint=f"Print it: `{tool[1]}`. {READ}"
        )
    profile = _recognised(text.lstrip("\ufeff"), loose)
    if profile is None:
        raise InvalidRequest("the profile is of no profiler that is read here", hint=READ)
    if _is_empty(profile):
        reasons = "; ".join(profile.notes)
        raise InvalidRequest(
            f"the profile of {profile.kind} holds no usable counter"
            + (f": {reasons}" if reasons else ""),
            hint="Profile at least one launch of a kernel, with counters or times. " + READ,
        )
    return profile


def _is_empty(profile: Profile) -> bool:
    timed = any(row.us or row.pct for row in (*profile.kernels, *profile.functions))
    return not profile.metrics and not profile.lines and not timed


def _recognised(text: str, loose: bool) -> Profile | None:
    decoded = _decoded(text)
    try:
        of_json = (read(decoded) for read in _OF_JSON) if decoded is not None else iter(())
        of_text = (read(text) for read in _OF_TEXT)
        found = next((p for p in chain(of_json, of_text) if p is not None), None)
        # A reader that knows the tool may not know this table of it.
        if found is None and loose:
            found = read_words(text)
        table = tables.read(text, loose) if found is None or _is_empty(found) else None
        if found is None or table is None:
            return found or table
        return replace(table, kind=found.kind, notes=(*found.notes, *table.notes))
    except csv.Error as error:
        raise InvalidRequest(f"the profile is no readable CSV: {error}", hint=READ) from error


def _decoded(text: str) -> object:
    """The JSON in a text, after any log lines of the profiler; None without JSON."""
    start = 0 if text.lstrip()[:1] in ("{", "[") else text.find("\n{") + 1
    if start == 0 and text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        return json.loads(text[start:])
    except (ValueError, RecursionError):
        return None


# -- tables of Intel's performance counter monitor (pcm, ipm, pcm-memory)

PCM = "pcm"
IMBALANCE = 4.0  # times the traffic of the other sockets from which on one socket has it all

_SOCKET = re.compile(
    r"NODE\s+(?P<node>\d+) Mem(?:ory)?(?:\s*(?P<kind>Read|Write))?\s*\(MB/s\)\s*:"
    r"\s*(?P<rate>[\d.]+)",
    re.IGNORECASE,
)


def read_pcm(text: str) -> Profile | None:
    """The bytes per second of the sockets, by pcm or pcm-memory; None for other texts."""
    metrics = _traffic(text)
    return Profile(PCM, metrics=metrics, notes=_placement(text)) if metrics else None


def _traffic(text: str) -> dict[str, Metric]:
    """The bytes per second of the busiest socket."""
    rates = _of_sockets(text)
    if not rates:
        return {}
    busiest = max(rates.values())
    return {"achieved_bytes_per_s": sum(rates.values()), "socket_bytes_per_s": busiest}


def _of_sockets(text: str) -> dict[str, float]:
    rates: dict[str, float] = {}
    for found in _SOCKET.finditer(text):
        if found["kind"] is None:
            rates[found["node"]] = 1e6 * float(found["rate"])
    if rates:
        return rates
    place: list[int] = []
    for line in text.splitlines():
        if re.search(r"\|\s+READ \|\s+WRITE \|", line):
            place = [0, 1]
        elif place and (row := re.match(r"\s*SKT\s+(\d+)\s+([\d.]+)\s+([\d.]+)", line)):
            rates[row[1]] = 1e9 * (float(row[2]) + float(row[3]))
    return rates


def _placement(text: str) -> tuple[str, ...]:
    rates = _of_sockets(text)
    if len(rates) < 2:
        return ()
    busiest = max(rates, key=lambda node: rates[node])
    others = max(rate for node, rate in rates.items() if node != busiest)
    if rates[busiest] < IMBALANCE * max(others, 1.0):
        return ()
    return (
        f"socket {busiest} has {rates[busiest] / 1e9:.0f} GB/s and the others at most"
        f" {others / 1e9:.1f}: place memory and threads on all sockets (first touch in parallel,"
        " numactl --interleave=all) to use their bandwidth",
    )


# -- samples of the programs that watch a device: the table of nvidia-smi, `nvidia-smi dmon`,
# `--query-gpu` as CSV, and the table of rocm-smi. Only texts that hold nothing else: reports of
# errors often begin with such a table.

MONITOR = "monitor"
IDLE = 25  # percent below which a device with memory in use mostly waits

_LINE = re.compile(
    r"\s*(?:[-+|=#*]|\d+[ ,%]|[A-Z]\w{2} [A-Z]\w{2} +\d+ |\w[\w.]*(?: \[[%\w]+\])?,)"
)
_NVIDIA = re.compile(r"\|\s*(?P<used>\d+)MiB\s*/\s*(?P<all>\d+)MiB\s*\|\s*(?P<busy>\d+)%")
_ROCM = re.compile(r"^\d+\s.*\s(?P<vram>\d+)%\s+(?P<busy>\d+)%\s*$", re.M)


def read_monitor(text: str) -> Profile | None:
    """The share of time for which the devices are busy; None for other texts."""
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines or not all(_is_of_tool(line) for line in lines):
        return None
    samples = list(_samples(text, lines))
    if not samples:
        return None
    busy = round(fmean(samples), 1)
    notes = ["a sample of a monitor: busy means that any kernel runs, not that it uses the chip"]
    if busy < IDLE:
        used = _NVIDIA.search(text)
        memory = f" with {int(used['used']) / 1024:.1f} GiB in use" if used else ""
        notes.insert(
            0,
            f"the devices are busy for {busy:g} % of the time{memory}: the program waits elsewhere"
            " (input pipeline, work on the CPU, copies, synchronisation, short kernels); profile"
            " the host, load and prepare data in more workers ahead of use",
        )
    return Profile(MONITOR, metrics={"gpu_busy_pct": busy}, notes=tuple(notes))


def _is_of_tool(line: str) -> bool:
    return _LINE.match(line) is not None or bool(
        re.match(r"\s*(?:GPU|Device|Node|nvidia-smi|\$ ?(?:nvidia|rocm)-smi)\b|\s+\(|\W*$", line)
    )


def _samples(text: str, lines: Sequence[str]) -> Iterator[float]:
    if found := list(_NVIDIA.finditer(text)):
        yield from (float(row["busy"]) for row in found)
        return
    if re.search(r"\bGPU%\s*$", text, re.M):
        yield from (float(row["busy"]) for row in _ROCM.finditer(text))
        return
    heads: list[str] = []
    for line in lines:
        comma = "," in line
        cells = [cell.strip() for cell in (line.split(",") if comma else line.lstrip("# ").split())]
        if ("sm" in cells and "mem" in cells) or any("utilization.gpu" in cell for cell in cells):
            heads = cells
        elif heads and len(cells) == len(heads):
            row = dict(zip(heads, cells, strict=True))
            share = next((v for k, v in row.items() if k == "sm" or "utilization.gpu" in k), "")
            if re.fullmatch(r"\d+(?: ?%)?", share):
                yield float(share.rstrip(" %"))


# -- reports of a simulated loop (llvm-mca, OSACA), and amounts that a person states in a sentence:
# shares of the time, the time of a step next to that of the device in it, and traffic as a multiple
# of the least

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


# -- XLA: the op profile that XProf (TensorBoard's profiler) exports
#
# Format, from its protobuf files and recorded exports: {byCategory | byProgram: node}, a node is
# {name, metrics: {rawTime in picoseconds, flops and bandwidthUtils as shares of the peak,
# occurrences}, children, xla: {op, category}}; names may be in snake case.

XPROF = "xprof"
_ROOTS = ("byCategoryExcludeIdle", "byCategory", "byProgram", "by_category", "by_program")
_PICOSECONDS = 1e-6


def read_xprof(decoded: object) -> Profile | None:
    """The operations of an op profile; None for any other JSON."""
    if not isinstance(decoded, Mapping):
        return None
    root = next((decoded[name] for name in _ROOTS if isinstance(decoded.get(name), Mapping)), None)
    if root is None or "metrics" not in root:
        return None
    leaves = list(_leaves(root))
    kernels = total_times([Kernel(name, calls, us) for name, calls, us, _ in leaves if us])
    if not kernels:
        return Profile(XPROF, notes=("the op profile has no times",))
    leading = next(metrics for name, _, _, metrics in leaves if name == kernels[0].name)
    measured: dict[str, Metric] = {}
    if kernels[0].calls:
        measured["duration_us"] = kernels[0].us / kernels[0].calls
    flops = number(leading.get("flops"))
    utils = leading.get("bandwidthUtils", leading.get("bandwidth_utils")) or ()
    hbm = number(utils[0]) if isinstance(utils, list) and utils else None
    if flops is not None:
        measured["xla_flops_share"] = flops
    if hbm is not None:
        measured["xla_hbm_share"] = hbm
    return Profile(XPROF, kernels[0].name, measured, kernels, choice_note(kernels))


def _leaves(root: Mapping[str, Any]) -> Iterator[tuple[str, float, float, Mapping[str, Any]]]:
    """Name, occurrences, microseconds and metrics of each operation."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        children = [c for c in node.get("children") or () if isinstance(c, Mapping)]
        waiting += children
        metrics = node.get("metrics")
        if children or not isinstance(metrics, Mapping) or node.get("name") == "IDLE":
            continue
        raw = number(metrics.get("rawTime", metrics.get("raw_time"))) or 0.0
        calls = number(metrics.get("occurrences")) or 1.0
        yield str(node.get("name", "")), calls, raw * _PICOSECONDS, metrics


# -- AWS Neuron: the summary of `neuron-profile view --output-format summary-json` (or
# `neuron-explorer`), and the `summary` of its whole JSON
#
# Format, from the Neuron documentation's summary page and recorded summaries: {id of the program:
# {counter: number}}. `total_time` and other times are in seconds; counters that end in `_percent`
# are shares from 0 to 1. Every number has its own name; the total time is also `duration_us`.

NEURON = "neuron-profile"
_TOTAL_TIME = "total_time"
_NEURON_MARKS = ("hbm_read_bytes", "mfu_estimated_percent", "tensor_engine_active_time_percent")


def read_neuron(decoded: object) -> Profile | None:
    """The counters of the program with the longest run time; None if the JSON is not a summary."""
    summaries = dict(_summaries(decoded))
    if not summaries:
        return None
    times = {name: number(row.get(_TOTAL_TIME)) or 0.0 for name, row in summaries.items()}
    kernels = total_times([Kernel(name, 1, time * 1e6) for name, time in times.items()])
    return Profile(
        NEURON,
        kernels[0].name,
        _neuron_metrics(summaries[kernels[0].name]),
        kernels,
        choice_note(kernels),
    )


def _summaries(decoded: object) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if not isinstance(decoded, Mapping):
        return
    rows = decoded.get("summary")
    named: dict[str, Any] = {"": decoded, **{str(name): row for name, row in decoded.items()}}
    if isinstance(rows, list):
        named |= {f"summary {place}": row for place, row in enumerate(rows, 1)}
    for name, row in named.items():
        if (
            isinstance(row, Mapping)
            and _TOTAL_TIME in row
            and any(mark in row for mark in _NEURON_MARKS)
        ):
            yield name, row


def _neuron_metrics(summary: Mapping[str, Any]) -> dict[str, Metric]:
    metrics: dict[str, Metric] = {}
    for name, value in summary.items():
        counted = None if isinstance(value, str) else number(value)
        if counted is not None:
            metrics[str(name)] = counted
    seconds = number(summary[_TOTAL_TIME])
    if seconds:
        metrics["duration_us"] = seconds * 1e6
    return metrics


# -- the readers, in the order in which they are tried

_OF_JSON: tuple[Callable[[object], Profile | None], ...] = (
    torch_profile.read_json,
    read_neuron,
    proton.read,
    rocm.read_json,
    read_xprof,
)
_OF_TEXT: tuple[Callable[[str], Profile | None], ...] = (
    read_simulated,
    read_ports,
    nsight.read,
    resources.read,
    read_monitor,
    read_pcm,
    rocm.read,
    linux_perf.read,
    proton.read_text,
)
