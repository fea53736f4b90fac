"""Times of a whole program: launches, waits, copies, builds and kernels, by the names of its
functions and kernels.

Rows of host functions differ from those of a device by their names: functions of CUDA, HIP, Level
Zero, OpenCL, Vulkan and the C library, ranges of Python, and entries of PyTorch's profiler.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from retrieval.profiles.lexicon import pattern_of, words_of
from retrieval.profiles.profile import Kernel, Metric, Profile, time_shares, total_times

MOSTLY_COPIES = 80.0  # per cent of the time from which on copies lead, not a kernel
NAMED = 60  # characters of a kernel's name in a sentence
OF_OPERATORS = "torch_profiler"  # whose operators and kernels also copy on the device
MANY = 3  # names in a sentence
LITTLE = 30.0  # per cent of the time below which the rows are a part of a table

_HOST = pattern_of("host_functions")
# Functions whose names tables cut ("cuLaunchK ..."), behind the prefix of their interface.
_CUT = re.compile(r"(?P<prefix>cuda|cu|hip|ze|cl|vk)(?P<stem>[A-Z]\w*)\s?(?:\u22ef|\u2026|\.{2,3})")
_COPY = pattern_of("copies")
MOVES = pattern_of("moving_operators")
_ACROSS = pattern_of("transfers")
_COMMAND = pattern_of("commands")
_MOVED = re.compile(f"{_COPY.pattern}|{MOVES.pattern}", re.IGNORECASE)
_BARRIER = pattern_of("barriers")
_WAIT = pattern_of("host_waits")
WAITS = pattern_of("sampled_waits")
RUNTIMES = pattern_of("openmp_libraries")
_LAUNCH = pattern_of("launches")
_BUILD = pattern_of("builds")
_ALLOCATE = pattern_of("allocations")
# In this order; each function belongs to the first that matches.
_OF_HOST = (
    ("copy_api_pct", "copies", _COPY),
    ("alloc_api_pct", "allocations", _ALLOCATE),
    ("builds_pct", "start-up and compilation", _BUILD),
    ("launch_api_pct", "launches", _LAUNCH),
    ("wait_api_pct", "waits of the host", _WAIT),
)
_ELEMENTWISE = pattern_of("elementwise")
_PRODUCT = pattern_of("products")
_OF_VECTOR = pattern_of("vector_products")
_GROUPS = (
    ("products_pct", _PRODUCT),
    ("elementwise_pct", _ELEMENTWISE),
    ("vector_products_pct", _OF_VECTOR),
)
# Totals that tools print next to their tables, in the unit of the text.
_TIME = r"(?P<time>[\d.,]+ ?(?:ns|us|[µμ]s|ms|s))"
_TOTALS = (
    (re.compile(rf"Self (?!CPU)\w+ time total: *{_TIME}"), "device"),
    (re.compile(rf"Self CPU time total: *{_TIME}"), "host"),
    (re.compile(r"Total Device Time for .{1,40}\((?P<unit>ns)\):\s+(?P<time>\d+)"), "device"),
    (re.compile(r"Total Execution Time \((?P<unit>ns)\):\s+(?P<time>\d+)"), "host"),
)
_BUSY = re.compile(r"GPU was busy for .{1,30}\((?P<share>[\d.]+)% of the trace\)")
_CALLING = re.compile(r"calling \w+ APIs took .{1,30}\((?P<share>[\d.]+)% of the trace\)")


def is_host(name: str) -> bool:
    """Whether a row is of a function or range of the host."""
    return bool(_HOST.search(name))


def completed(name: str) -> str:
    """The name of a host function that a table has cut; other names as they are."""
    if (cut := _CUT.fullmatch(name)) is None:
        return name
    whole = next(
        (known for known in words_of("whole_names") if known.startswith(cut["stem"])), cut["stem"]
    )
    return cut["prefix"] + whole


def is_copy(name: str) -> bool:
    """Whether a row is a copy."""
    return bool(_COPY.search(name))


def of_program(
    kind: str,
    rows: Sequence[Kernel],
    functions: Sequence[Kernel] = (),
    more: Mapping[str, Metric] | None = None,
    notes: Sequence[str] = (),
) -> Profile:
    """The profile of a program: its kernels and copies in `rows`, functions of the host among them
    or in `functions`; `more` are further metrics of the leading kernel."""
    named = [row for row in rows if is_host(row.name)]
    if len(named) < len(rows) and all(_COMMAND.search(row.name) for row in named):
        named = []  # commands of a device among its kernels
    device = total_times(_of_one_whole([row for row in rows if row not in named]))
    host = total_times(_of_one_whole([*functions, *named]))
    work = [row for row in device if not is_copy(row.name) and not _BARRIER.search(row.name)]
    copies = _MOVED if kind == OF_OPERATORS else _COPY
    metrics = {**_of_host(host), **_of_device(device, work, copies), **(more or {})}
    waited = sum(row.us for row in host if _kind_of(row.name) is _WAIT)
    if waited and (us := sum(row.us for row in device)):
        metrics["wait_per_device_pct"] = round(100 * waited / us)
    copied = _share(device, _COPY) >= MOSTLY_COPIES
    leading = device[0] if device and (copied or not work) else next(iter(work), None)
    name = leading.name if leading else ""
    return Profile(
        kind,
        name,
        metrics,
        device,
        (*notes, *_sentences(device, host, leading, metrics)),
        functions=host,
    )


def _of_one_whole(rows: Sequence[Kernel]) -> list[Kernel]:
    """The rows, without printed shares where these are of several tables."""
    several = sum(row.pct for row in rows) > 110 and all(row.us for row in rows)
    return [replace(row, pct=0.0) for row in rows] if several else [*rows]


def totals_of(text: str) -> dict[str, Metric]:
    """The shares of the time in which the device is busy and in which the host calls functions of
    the device, from the totals that the text prints."""
    printed = {"gpu_busy_pct": _BUSY.search(text), "api_trace_pct": _CALLING.search(text)}
    if shares := {name: float(found["share"]) for name, found in printed.items() if found}:
        return {**shares}
    found: dict[str, float] = {}
    for pattern, side in _TOTALS:
        for match in pattern.finditer(text):
            number = float(re.sub(r"[^\d.]", "", match["time"]))
            unit = re.sub(r"[\d., ]", "", match["time"]) or match.groupdict().get("unit") or "ns"
            us = number * {"ns": 1e-3, "ms": 1e3, "s": 1e6}.get(unit, 1.0)
            found[side] = max(us, found.get(side, 0.0))
    device, whole = found.get("device", 0.0), found.get("host", 0.0)
    # A host that does not wait may have a shorter time than its kernels.
    return {"gpu_busy_pct": round(100 * device / whole, 2)} if 0 < device < whole else {}


def _share(rows: Sequence[Kernel], pattern: re.Pattern[str]) -> float:
    shares = ((row["name"], float(row["pct"])) for row in time_shares(rows))
    return round(min(sum(pct for name, pct in shares if pattern.search(name)), 100.0), 2)


def _of_host(functions: Sequence[Kernel]) -> dict[str, Metric]:
    """Shares of the kinds of host functions in the time of all, and the number of launches."""
    metrics: dict[str, Metric] = {}
    for row in time_shares(functions):
        kind = next((m for m, _, pattern in _OF_HOST if pattern.search(row["name"])), None)
        if kind is not None:
            metrics[kind] = round(float(metrics.get(kind, 0.0)) + float(row["pct"]), 2)
    launches = [f for f in functions if _is_launch(f.name)]
    if launches:
        metrics["launch_api_calls"] = sum(row.calls for row in launches)
    return metrics


def _is_launch(name: str) -> bool:
    kind = next((metric for metric, _, pattern in _OF_HOST if pattern.search(name)), None)
    return kind == "launch_api_pct"


def _of_device(
    device: Sequence[Kernel], work: Sequence[Kernel], copies: re.Pattern[str]
) -> dict[str, Metric]:
    """Shares of kinds of kernels, and the runs of the leading one and the time of one."""
    metrics: dict[str, Metric] = {}
    for name, pattern in (*_GROUPS, ("copies_pct", copies), ("barriers_pct", _BARRIER)):
        if share := _share(device, pattern):
            metrics[name] = share
    if across := _share([row for row in device if is_copy(row.name)] and device, _ACROSS):
        metrics["transfers_pct"] = min(across, float(metrics.get("copies_pct", 0.0)))
    if device and not any(row.us for row in device) and (share := _share(device, WAITS)):
        metrics["sync_sample_pct"] = share
    if _share(device, _COPY) >= MOSTLY_COPIES:
        work = device
    if work and work[0].calls:
        metrics["kernel_runs"] = work[0].calls
        if work[0].us:
            metrics["duration_us"] = work[0].us / work[0].calls
    return metrics


# -- in words


def _sentences(
    device: Sequence[Kernel],
    host: Sequence[Kernel],
    leading: Kernel | None,
    metrics: Mapping[str, Metric],
) -> tuple[str, ...]:
    """What the rows show: the functions of the host first, then the kernel with most time."""
    said = []
    if host and any(row.us or row.pct for row in host):
        said.append(_of_functions(host, metrics))
    if host and not device:
        said.append(
            "the rows are functions of the host and no kernel: they do not show what limits a"
            " kernel; record the device too (`nsys stats --report cuda_gpu_kern_sum`,"
            " ProfilerActivity.CUDA, `unitrace -d`, rocprofv3 --kernel-trace)"
        )
    if leading is not None and (leading.us or leading.pct):
        said.append(_of_leading(device, leading))
        printed = sum(row.pct for row in device) or sum(row.pct for row in host)
        if 0 < printed < LITTLE:
            said.append(
                f"the rows that are shown have {printed:.3g} % of the time: paste the first ones"
            )
    return tuple(said)


def _of_functions(host: Sequence[Kernel], metrics: Mapping[str, Metric]) -> str:
    parts = []
    for metric, words, pattern in _OF_HOST:
        share = float(metrics.get(metric, 0.0))
        named = [row.name for row in host if _kind_of(row.name) is pattern][:MANY]
        if share >= 1 and named:
            parts.append((share, f"{words} {share:g} % ({', '.join(named)})"))
    shares = {row["name"]: float(row["pct"]) for row in time_shares(host)}
    others = [row.name for row in host if _kind_of(row.name) is None]
    parts += [(shares[name], f"{name[:NAMED]} {shares[name]:g} %") for name in others[:MANY]]
    listed = [text for share, text in sorted(parts, key=lambda part: -part[0]) if share >= 1]
    if calls := float(metrics.get("launch_api_calls", 0.0)):
        listed = [*listed[: MANY + 1], f"{calls:,.0f} launches"]
    return f"of the host's time: {'; '.join(listed[: MANY + 2])}"


def _kind_of(name: str) -> re.Pattern[str] | None:
    return next((pattern for _, _, pattern in _OF_HOST if pattern.search(name)), None)


def _of_leading(device: Sequence[Kernel], leading: Kernel) -> str:
    share = next(row["pct"] for row in time_shares(device) if row["name"] == leading.name)
    name = leading.name if len(leading.name) <= NAMED else leading.name[: NAMED - 3] + "..."
    runs = ""
    if leading.us and leading.calls:
        calls = f"{leading.calls:,.0f} run{'s' * (leading.calls != 1)}"
        runs = f": {calls} of {_shown(leading.us / leading.calls)}"
    of = "the time of the rows" if len(device) > 1 or share < 100 else "the time"
    return f"{name} takes {share:g} % of {of}{runs}"


def _shown(us: float) -> str:
    for factor, unit in ((1e6, "s"), (1e3, "ms"), (1.0, "us")):
        if us >= factor:
            return f"{us / factor:.3g} {unit}"
    return f"{us * 1e3:.3g} ns"
