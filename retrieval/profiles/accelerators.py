"""Accelerators' own profilers. XLA: the op profile that XProf (TensorBoard's profiler)
exports; AWS Neuron: summaries of `neuron-profile`.

Formats, from its protobuf files and recorded exports:
- op profile, JSON: {byCategory | byProgram: node}, a node is {name, metrics: {rawTime in
  picoseconds, flops and bandwidthUtils as shares of the peak, occurrences}, children, xla: {op,
  category}}; names may be in snake case.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from retrieval.profiles.profile import Kernel, Metric, Profile, choice_note, number, total_times

KIND = "xprof"
_ROOTS = ("byCategoryExcludeIdle", "byCategory", "byProgram", "by_category", "by_program")
_PICOSECONDS = 1e-6


def read_json(decoded: object) -> Profile | None:
    """The operations of an op profile; None for any other JSON."""
    if not isinstance(decoded, Mapping):
        return None
    root = next((decoded[name] for name in _ROOTS if isinstance(decoded.get(name), Mapping)), None)
    if root is None or "metrics" not in root:
        return None
    leaves = list(_leaves(root))
    kernels = total_times([Kernel(name, calls, us) for name, calls, us, _ in leaves if us])
    if not kernels:
        return Profile(KIND, notes=("the op profile has no times",))
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
    return Profile(KIND, kernels[0].name, measured, kernels, choice_note(kernels))


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

NEURON_KIND = "neuron-profile"
_TIME = "total_time"
_MARKS = ("hbm_read_bytes", "mfu_estimated_percent", "tensor_engine_active_time_percent")


def read_neuron(decoded: object) -> Profile | None:
    """The counters of the program with the longest run time; None if the JSON is not a summary."""
    summaries = dict(_summaries(decoded))
    if not summaries:
        return None
    times = {name: number(row.get(_TIME)) or 0.0 for name, row in summaries.items()}
    kernels = total_times([Kernel(name, 1, time * 1e6) for name, time in times.items()])
    return Profile(
        NEURON_KIND,
        kernels[0].name,
        _metrics(summaries[kernels[0].name]),
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
        if isinstance(row, Mapping) and _TIME in row and any(mark in row for mark in _MARKS):
            yield name, row


def _metrics(summary: Mapping[str, Any]) -> dict[str, Metric]:
    metrics: dict[str, Metric] = {}
    for name, value in summary.items():
        counted = None if isinstance(value, str) else number(value)
        if counted is not None:
            metrics[str(name)] = counted
    seconds = number(summary[_TIME])
    if seconds:
        metrics["duration_us"] = seconds * 1e6
    return metrics
