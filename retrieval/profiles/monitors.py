"""Samples of the programs that watch a device: the table of nvidia-smi, `nvidia-smi dmon`,
`--query-gpu` as CSV, and the table of rocm-smi. Only texts that hold nothing else: reports of
errors often begin with such a table."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from statistics import fmean

from retrieval.profiles.profile import Profile

MONITOR = "monitor"
IDLE = 25  # percent below which a device with memory in use mostly waits

_LINE = re.compile(
    r"\s*(?:[-+|=#*]|\d+[ ,%]|[A-Z]\w{2} [A-Z]\w{2} +\d+ |\w[\w.]*(?: \[[%\w]+\])?,)"
)
_NVIDIA = re.compile(r"\|\s*(?P<used>\d+)MiB\s*/\s*(?P<all>\d+)MiB\s*\|\s*(?P<busy>\d+)%")
_ROCM = re.compile(r"^\d+\s.*\s(?P<vram>\d+)%\s+(?P<busy>\d+)%\s*$", re.M)


def read(text: str) -> Profile | None:
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
