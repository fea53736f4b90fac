"""AWS Neuron: the summary of `neuron-profile view --output-format summary-json` (or
`neuron-explorer`), and the `summary` of its whole JSON.

Format, from the Neuron documentation's summary page and recorded summaries: {id of the program:
{counter: number}}. `total_time` and other times are in seconds; counters that end in `_percent` are
shares from 0 to 1. Every number has its own name; the total time is also `duration_us`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from retrieval.profiles.profile import Kernel, Metric, Profile, choice_note, number, total_times

KIND = "neuron-profile"
_TIME = "total_time"
_MARKS = ("hbm_read_bytes", "mfu_estimated_percent", "tensor_engine_active_time_percent")


def read(decoded: object) -> Profile | None:
    """The counters of the program with the longest run time; None if the JSON is not a summary."""
    summaries = dict(_summaries(decoded))
    if not summaries:
        return None
    times = {name: number(row.get(_TIME)) or 0.0 for name, row in summaries.items()}
    kernels = total_times([Kernel(name, 1, time * 1e6) for name, time in times.items()])
    return Profile(
        KIND,
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
