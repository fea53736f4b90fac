"""Bodies of `POST /retrieve` for the description of the interface."""

from __future__ import annotations

from typing import Any

from retrieval.diagnose.signals import load_signals

_LOG = (
    "triton.runtime.errors.OutOfResources: out of resource: shared memory, "
    "Required: 294912, Hardware limit: 232448. Reducing block sizes or `num_stages` may help."
)
_METRICS = {
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": 91.4,
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": 22.8,
    "launch__registers_per_thread": 64,
}


def retrieve_examples() -> dict[str, Any]:
    """An example for every signal, then one for every other way to ask."""
    examples: dict[str, Any] = {
        signal.id: {
            "summary": f"signal, {signal.group}: {signal.title}",
            "value": {"signal": signal.id, "hardware": "h100"},
        }
        for signal in load_signals()
    }
    question = "How do I overlap global loads with matrix instructions?"
    ways = {
        "raw log": {"log": _LOG, "hardware": "h100", "language": "triton"},
        "profiler metrics": {"metrics": _METRICS, "hardware": "h100", "op": "softmax"},
        "question": {"query": question, "hardware": "mi300x", "categories": ["hardware"]},
        "combination": {
            "signal": "memory_bound",
            "metrics": _METRICS,
            "query": question,
            "hardware": "h200",
            "op": "matmul",
            "language": "triton",
            "dtype": "bf16",
            "k": 10,
            "max_tokens": 3000,
        },
        "several signals, and roles that can be changed": {
            "signals": ["register_spill", "memory_bound"],
            "roles": ["tile_m", "tile_n", "warps"],
            "hardware": "h100",
        },
        "a first kernel": {
            "task": "write",
            "hardware": "h100",
            "op": "softmax",
            "language": "cuda",
            "max_tokens": 24000,
        },
    }
    return examples | {name: {"summary": name, "value": value} for name, value in ways.items()}
