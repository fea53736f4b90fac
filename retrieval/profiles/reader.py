"""Read the output of any supported profiler as a `Profile`; the text determines the kind."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from itertools import chain

from kb.errors import InvalidRequest
from retrieval.profiles import (
    accelerators,
    linux_perf,
    nsight,
    proton,
    resources,
    rocm,
    stated,
    tables,
    tool_logs,
    torch_profile,
)
from retrieval.profiles.profile import Profile

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
_OF_JSON: tuple[Callable[[object], Profile | None], ...] = (
    torch_profile.read_json,
    accelerators.read_neuron,
    proton.read,
    rocm.read_json,
    accelerators.read_json,
)
_OF_TEXT: tuple[Callable[[str], Profile | None], ...] = (
    stated.read_simulated,
    stated.read_ports,
    nsight.read,
    resources.read,
    tool_logs.read_monitor,
    tool_logs.read,
    rocm.read,
    linux_perf.read,
    proton.read_text,
)


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
            found = stated.read_words(text)
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
