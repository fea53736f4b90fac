"""Read the output of any supported profiler as a `Profile`; the text determines the kind."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import chain

from kb.errors import InvalidRequest
from retrieval.profiles import (
    intel,
    linux_perf,
    neuron,
    nsight,
    nsys,
    proton,
    rocm,
    tables,
    torch_profile,
    xcode,
    xla,
)
from retrieval.profiles.profile import Profile

READ = (
    "What these print is read, unchanged: `ncu --csv`, also with `--page raw` and `--page source`"
    " (`--print-source cuda,sass` for lines), and ncu's text report; `nsys stats` as text or CSV,"
    " with `--profile FILE` also the file of `nsys export --type sqlite`; nvprof;"
    " rocprof's, rocprofv3's and rocprof-compute's CSV of counters and statistics, stats_*.csv and"
    " code.json of a thread trace, and samples of the program counter; `perf stat` as text, with"
    " `-x,` or with `-j`, `perf annotate --stdio`; Proton's .hatchet file and the"
    " tree of proton-viewer; `unitrace -d`; `vtune -report summary`; XProf's op profile and HLO"
    " statistics; counters exported by Xcode; PyTorch's profiler as a"
    " table or an exported trace; `neuron-profile view --output-format summary-json`;"
    " `toplev`; and any table with a column of names and a column of times or shares."
)
# The first characters of files that are not text, with the tool and the command that prints them.
_BINARY = {
    "NVR": ("Nsight Compute", "ncu --import FILE --page details"),
    "SQLite format 3": ("a database", "nsys stats FILE"),
    "PERFILE2": ("perf record", "perf annotate --stdio -l -i FILE"),
    "QDSTRM": ("Nsight Systems", "nsys stats FILE"),
}
_OF_JSON: tuple[Callable[[object], Profile | None], ...] = (
    torch_profile.read_json,
    neuron.read,
    proton.read,
    rocm.read_json,
    xla.read_json,
)
_OF_TEXT: tuple[Callable[[str], Profile | None], ...] = (
    nsight.read,
    nsys.read,
    nsys.read_nvprof,
    intel.read_unitrace,
    xla.read_table,
    xcode.read,
    rocm.read,
    torch_profile.read_table,
    linux_perf.read,
    intel.read_vtune,
    intel.read_toplev,
    proton.read_text,
    lambda text: _read_markdown(text),  # defined below
    tables.read,
)


def read_profile(text: str) -> Profile:
    """A profile with a metric, a line or the time of a kernel. Raises InvalidRequest, which lists
    the supported profilers, for a text of an unknown profiler or an empty profile.
    """
    if (
        tool := next((t for mark, t in _BINARY.items() if text.startswith(mark)), None)
    ) is not None:
        raise InvalidRequest(
            f"the profile is a binary file of {tool[0]}", hint=f"Print it: `{tool[1]}`. {READ}"
        )
    profile = _recognised(text.lstrip("\ufeff"))
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
    timed = any(kernel.us or kernel.pct for kernel in profile.kernels)
    return not profile.metrics and not profile.lines and not timed


def _recognised(text: str) -> Profile | None:
    decoded = _decoded(text)
    try:
        of_json = (read(decoded) for read in _OF_JSON) if decoded is not None else iter(())
        of_text = (read(text) for read in _OF_TEXT)
        found = next((p for p in chain(of_json, of_text) if p is not None), None)
        # A reader that knows the tool may not know this table of it.
        table = tables.read(text) if found and _is_empty(found) else None
        if found is None or table is None:
            return found
        return replace(table, kind=found.kind, notes=(*found.notes, *table.notes))
    except csv.Error as error:
        raise InvalidRequest(f"the profile is no readable CSV: {error}", hint=READ) from error


_RULE = re.compile(r"[\s|:-]*-[\s|:-]*")
_MARKS = re.compile(r"[*_`\u2937\u21b3\u2514\u2500>]+")


def _read_markdown(text: str) -> Profile | None:
    """Counters in a Markdown table of names and values; with several columns, the first."""
    pairs: dict[str, str] = {}
    inside = False
    for line in text.splitlines():
        cells = [_MARKS.sub("", cell).strip() for cell in line.strip().strip("|").split("|")]
        if "|" not in line or len(cells) < 2:
            inside = False
        elif _RULE.fullmatch(line):
            inside = True
        elif inside and cells[0]:
            pairs.setdefault(cells[0].lstrip("- "), cells[1].replace(" %", "%"))
    bare = {re.sub(r"\s*\([^)]*\)$", "", name): value for name, value in pairs.items()}
    if len(bare.keys() & {"Back-End Bound", "Memory Bound", "Core Bound", "Retiring"}) >= 2:
        rows = "\n".join(f"{name}: {value}" for name, value in bare.items())
        return intel.read_vtune(f"CPI Rate: 0\n{rows}")
    return rocm.read_pairs(pairs)


def _decoded(text: str) -> object:
    """The JSON in a text, after any log lines of the profiler; None without JSON."""
    start = 0 if text.lstrip()[:1] in ("{", "[") else text.find("\n{") + 1
    if start == 0 and text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        return json.loads(text[start:])
    except (ValueError, RecursionError):
        return None
