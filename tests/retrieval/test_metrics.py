"""Any profiler output becomes a canonical value or a query word, never an error."""

import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kb.errors import InvalidKnowledge, NotFound, PayloadTooLarge
from retrieval.diagnose.metrics import (
    MAX_METRICS,
    load_metrics,
    metrics_from,
    normalise,
    parse_quantity,
)

CANONICAL = [
    *(
        "dram_throughput_pct",
        "l2_throughput_pct",
        "l1_throughput_pct",
        "compute_throughput_pct",
        "memory_throughput_pct",
    ),
    *(
        "duration_us",
        "load_efficiency_pct",
        "sectors_per_request",
        "bank_conflict_ratio",
        "occupancy_pct",
    ),
    *(
        "theoretical_occupancy_pct",
        "registers_per_thread",
        "shared_memory_per_block_bytes",
        "spill_bytes",
    ),
    *(
        "waves_per_unit",
        "tensor_pipe_pct",
        "long_scoreboard_stall_share",
        "barrier_stall_share",
        "l1_hit_pct",
        "l2_hit_pct",
    ),
    *("launches", "bytes_ratio"),
]


def test_canonical_names_and_their_documentation() -> None:
    registry = load_metrics()
    assert [name for name in CANONICAL if name not in registry] == []
    for metric in registry:
        assert metric.description and metric.query_words


@pytest.mark.parametrize(
    ("raw", "value", "canonical", "expected"),
    [
        ("gpu__time_duration.sum", "182,432", "duration_us", 182.432),
        ("gpu__time_duration.sum", "1.44 ms", "duration_us", 1440.0),
        ("Duration [ms]", "3.2", "duration_us", 3200.0),
        ("dram__bytes.sum", "786.13 Mbyte", "dram_bytes", 786_130_000.0),
        ("launch__shared_mem_per_block", "96 Kbyte/block", "shared_memory_per_block_bytes", 96_000),
        ("launch__registers_per_thread", "26 register/thread", "registers_per_thread", 26),
        ("SM__THROUGHPUT.avg.pct_of_peak_sustained_elapsed", 5.72, "compute_throughput_pct", 5.72),
        ("n_spills", 3, "spill_bytes", 12),
        ("FETCH_SIZE", 2, "dram_read_bytes", 2048),
        ("tma_memory_bound", "23.5%", "tma_memory_bound_pct", 23.5),
        ("smsp__warp_issue_stalled_barrier_per_warp_active.pct", 40, "barrier_stall_share", 0.4),
        ("dram_throughput_pct", "91", "dram_throughput_pct", 91),
        ("smsp__warp_issue_stalled_gmma_per_warp_active.pct", 40, "gmma_stall_share", 0.4),
        ("VALUBusy", 25, "vector_pipe_pct", 25),
        ("LDS Bank Conflicts/Access", 0.75, "lds_conflicts_per_access", 0.75),
        ("hbm_read_bytes", "3.5 GiB", "dram_read_bytes", 3.5 * 1024**3),
    ],
)
def test_raw_names_and_units(raw: str, value: float | str, canonical: str, expected: float) -> None:
    normalised = normalise({raw: value})
    assert normalised.values[canonical] == pytest.approx(expected)
    assert normalised.sources[canonical] == raw
    assert normalised.unrecognised == ()


@pytest.mark.parametrize(
    "value",
    [
        *("", "n/a", "1,5", "1.234,5", "--", "1e999", "9" * 100, "12 parsec", "12 Gbyte/second"),
        *(1e300, 10**400, float("nan"), float("inf"), True, None, [1]),
    ],
)
def test_non_number_is_unrecognised(value: object) -> None:
    normalised = normalise({"dram__bytes.sum": value})  # type: ignore[dict-item]
    assert "dram_bytes" not in normalised.values
    assert normalised.unrecognised == ("dram__bytes.sum",)


def test_unknown_names_are_returned_and_cut() -> None:
    normalised = normalise({"unpacker_write_efficiency": 0.21, "x" * 5000: 1})
    assert normalised.unrecognised == ("unpacker_write_efficiency", "x" * 200)


def test_too_many_metrics_are_refused() -> None:
    with pytest.raises(PayloadTooLarge):
        normalise({f"m{i}": 1 for i in range(MAX_METRICS + 1)})


def test_raw_names_of_one_metric_do_not_depend_on_order() -> None:
    one = {"DRAM Throughput": 70.0, "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": 80.0}
    other = dict(reversed(one.items()))
    assert normalise(one).values["dram_throughput_pct"] == 80.0
    assert list(normalise(one).values.items()) == list(normalise(other).values.items())


def test_formulas_use_metrics_facts_and_problem_and_yield_to_reported_values() -> None:
    normalised = normalise({"FETCH_SIZE": 1024, "WRITE_SIZE": 1024, "DurationNs": 1000})
    assert normalised.values["dram_bytes"] == 2 * 1024**2
    full = load_metrics().derive(
        normalised, {"memory_bandwidth": 5.3e12}, {"compulsory_bytes": 1024**2}
    )
    assert full.values["dram_throughput_pct"] == pytest.approx(39.57, abs=0.01)
    assert full.values["bytes_ratio"] == 2
    assert full.sources["bytes_ratio"] == "derived"
    assert normalise({"TCC_HIT_sum": 1, "TCC_MISS_sum": 3}).values["l2_hit_pct"] == 25
    reported = normalise({"TCC_HIT_sum": 1, "TCC_MISS_sum": 3, "L2CacheHit": 50})
    assert reported.values["l2_hit_pct"] == 50
    assert "l2_hit_pct" not in normalise({"TCC_HIT_sum": 0, "TCC_MISS_sum": 0}).values


@pytest.mark.parametrize("reported", [0.8195, "0.8195", 81.95, "81.95 %", "81.95%"])
def test_neuron_percent_field_is_a_fraction_or_percentage(reported: float | str) -> None:
    normalised = normalise({"mbu_estimated_percent": reported, "dma_active_time_percent": reported})
    assert normalised.values["dram_throughput_pct"] == pytest.approx(81.95)
    assert normalised.values["dma_active_pct"] == pytest.approx(81.95)
    assert normalised.implausible == ()


def test_neuron_fraction_of_one_is_100_percent() -> None:
    assert normalise({"mfu_estimated_percent": 1}).values["model_flops_utilization_pct"] == 100


def test_amd_compute_share_is_that_of_busier_pipe() -> None:
    pipes = normalise({"VALUBusy": 25, "MfmaUtil": 85})
    assert pipes.values["compute_throughput_pct"] == 85
    assert "compute_throughput_pct" not in normalise({"VALUBusy": 25}).values


def test_documented_neuron_profile_fields_are_read() -> None:
    manuals = Path(__file__).parents[2] / "hw_manuals" / "hardware"
    pages = [page for place in ("aws", "trainium2") for page in (manuals / place).glob("*.md")]
    words = {word for page in pages for word in re.findall(r"`(\w+)`", page.read_text())}
    fields = {w for w in words if w.endswith(("_percent", "_bytes", "_intensity"))}
    assert {"mbu_estimated_percent", "dma_active_time_percent", "spill_save_bytes"} <= fields
    assert normalise(dict.fromkeys(fields, 0.5)).unrecognised == ()


def test_impossible_values_are_returned_and_named() -> None:
    normalised = normalise({"dram_throughput_pct": 131, "occupancy_pct": 50})
    assert normalised.implausible == ("dram_throughput_pct",)
    assert normalise({"dram_throughput_pct": 104.9}).implausible == ()


def test_collector_gives_counters_of_a_formula() -> None:
    registry = load_metrics()
    assert registry.raw_names("bank_conflict_ratio", "ncu") == (
        "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
        "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",
    )
    producers = {c for c in registry.collectors if registry.raw_names("bank_conflict_ratio", c)}
    assert producers == {"ncu"}
    with pytest.raises(NotFound, match="dram_bits"):
        registry.get("dram_bits")


@given(
    st.dictionaries(
        st.text(max_size=40), st.one_of(st.text(max_size=30), st.floats(), st.integers())
    )
)
def test_any_profiler_value_raises_nothing(raw: dict[str, float | str]) -> None:
    normalised = normalise(raw)
    assert all(math.isfinite(value) for value in normalised.values.values())


@given(st.integers(0, 10**12))
def test_thousands_separators(number: int) -> None:
    assert parse_quantity(f"{number:,}", "1") == number
    assert parse_quantity(hex(number), "B") == number


def test_invalid_registry_is_refused() -> None:
    row = {
        "name": "a",
        "unit": "furlong",
        "kind": "count",
        "description": "d",
        "query_words": ["a"],
    }
    with pytest.raises(InvalidKnowledge, match="furlong"):
        metrics_from({"metrics": [row]}, "team.toml")
    with pytest.raises(InvalidKnowledge, match="may not"):
        metrics_from({"metrics": [row | {"unit": "1", "derived": ["metrics.b * 2"]}]}, "team.toml")
