"""The tables of Intel's performance counter monitor (pcm, ipm, pcm-memory), and samples of the
programs that watch a device (nvidia-smi, rocm-smi)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from statistics import fmean

from retrieval.profiles.profile import Metric, Profile

PCM = "pcm"
IMBALANCE = 4.0  # times the traffic of the other sockets from which on one socket has it all

_SOCKET = re.compile(
    r"NODE\s+(?P<node>\d+) Mem(?:ory)?(?:\s*(?P<kind>Read|Write))?\s*\(MB/s\)\s*:"
    r"\s*(?P<rate>[\d.]+)",
    re.IGNORECASE,
)


def read(text: str) -> Profile | None:
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
