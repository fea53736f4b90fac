"""Verdicts on a real profile, on each vendor's counters, and on missing evidence."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kb.answers import Verdict
from kb.errors import InvalidKnowledge
from retrieval.diagnose.diagnosis import diagnose
from retrieval.diagnose.metrics import load_metrics, normalise
from retrieval.diagnose.rules import load_rules, rules_from
from retrieval.diagnose.signals import load_signals

H200 = ("h200", "hopper", "nvidia", "any")
MI300X = ("mi300x", "cdna3", "amd", "any")
CPU = ("x86-64", "any")
A100 = ("a100", "ampere", "nvidia", "any")
TRAINIUM2 = ("trainium2", "neuroncore-v3", "aws", "any")

# ncu 2025.3.1 on an H200, --clock-control none --csv: two Triton kernels over 64M fp32, 805 MB
# compulsory each.
COMMON = {
    "l1tex__t_sector_hit_rate.pct": "0",
    "launch__occupancy_limit_registers": "16",
    "launch__occupancy_limit_shared_mem": "32",
    "launch__waves_per_multiprocessor": "31.03",
    "sm__maximum_warps_per_active_cycle_pct": "100",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active": "0",
    "smsp__inst_executed_op_local_ld.sum": "0",
}
LONG_SCOREBOARD = "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio"
STREAMING_ADD = COMMON | {
    "dram__bytes.sum": "786,134,784",
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": "89.57",
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": "89.57",
    "gpu__time_duration.sum": "182,432",
    "l1tex__data_bank_conflicts_pipe_lsu.sum": "731,101",
    "l1tex__throughput.avg.pct_of_peak_sustained_active": "22.93",
    "launch__registers_per_thread": "26",
    "lts__t_sector_hit_rate.pct": "34.59",
    "lts__throughput.avg.pct_of_peak_sustained_elapsed": "92.21",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "5.72",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "84.05",
    LONG_SCOREBOARD: "167.52",
    "smsp__average_warps_issue_stalled_short_scoreboard_per_issue_active.ratio": "13.70",
    "smsp__issue_active.avg.pct_of_peak_sustained_active": "5.90",
    "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct": "100",
}
STRIDED_GATHER = COMMON | {
    "dram__bytes.sum": "4,547,290,624",
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": "65.62",
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": "65.62",
    "gpu__time_duration.sum": "1,440,096",
    "l1tex__data_bank_conflicts_pipe_lsu.sum": "2,376,030",
    "l1tex__throughput.avg.pct_of_peak_sustained_active": "14.10",
    "launch__registers_per_thread": "28",
    "lts__t_sector_hit_rate.pct": "9.50",
    "lts__throughput.avg.pct_of_peak_sustained_elapsed": "91.33",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "2.68",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "71.37",
    LONG_SCOREBOARD: "117.58",
    "smsp__average_warps_issue_stalled_short_scoreboard_per_issue_active.ratio": "36.39",
    "smsp__issue_active.avg.pct_of_peak_sustained_active": "2.70",
    "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct": "12.50",
}
COMPULSORY = {"compulsory_bytes": 3 * 4 * 64 * 1024**2}


def ids(verdict: Verdict) -> list[str]:
    return list(verdict.signal_ids)


def verdict_of(
    raw: Mapping[str, float | str], lineage: tuple[str, ...] = H200, **problem: str
) -> Verdict:
    return diagnose(normalise(raw), {}, dict(problem), lineage)


def test_streaming_add_is_at_bandwidth_roof() -> None:
    verdict = diagnose(normalise(STREAMING_ADD), {}, COMPULSORY, H200)
    assert ids(verdict) == ["memory_bound", "at_roofline"]
    assert "uncoalesced_access" in {entry["signal"] for entry in verdict.ruled_out}
    assert verdict.unrecognised == ()
    (dram,) = [e for e in verdict.signals[1].evidence if e["name"] == "dram_throughput_pct"]
    assert (dram["value"], dram["test"]) == (89.57, "dram_throughput_pct >= 85")
    assert dram["raw"] == "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"


def test_roofline_rule_abstains_without_compulsory_bytes() -> None:
    verdict = diagnose(normalise(STREAMING_ADD), {}, {}, H200)
    assert ids(verdict) == ["memory_bound"]
    assert "nvidia-bytes-unavoidable" in {entry["rule"] for entry in verdict.abstained}
    assert verdict.measure_next[0] == "bytes_ratio"


@pytest.mark.parametrize("problem", [{}, COMPULSORY])
def test_strided_gather_is_uncoalesced_not_only_memory_bound(problem: dict[str, int]) -> None:
    verdict = diagnose(normalise(STRIDED_GATHER), {}, problem, H200)
    assert verdict.primary == "uncoalesced_access"
    assert ids(verdict) == ["uncoalesced_access", "memory_bound"]
    assert {"at_roofline", "memory_latency", "poor_reuse"} <= {
        e["signal"] for e in verdict.ruled_out
    }


@pytest.mark.parametrize("raw", [STREAMING_ADD, STRIDED_GATHER])
def test_raw_bank_conflict_counts_need_wavefronts(raw: dict[str, float | str]) -> None:
    verdict = diagnose(normalise(raw), {}, {}, H200)
    assert "bank_conflict" not in ids(verdict)
    with_wavefronts = raw | {
        "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum": 300,
        "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum": 1000,
    }
    assert "bank_conflict" in ids(diagnose(normalise(with_wavefronts), {}, {}, H200))


def test_impossible_percentage_allows_no_other_conclusion() -> None:
    verdict = diagnose(normalise(STRIDED_GATHER | {"l1_hit_pct": 131}), {}, COMPULSORY, H200)
    assert ids(verdict) == ["measurement_error"]
    assert verdict.measure_next == ("l1_hit_pct",)
    assert any(e["name"] == "l1_hit_pct" and e["value"] == 131 for e in verdict.signals[0].evidence)


def test_no_metrics_give_no_verdict() -> None:
    verdict = diagnose(normalise({}), {}, {}, H200)
    assert verdict == Verdict()
    assert verdict.primary == "unknown"
    assert verdict_of({"mystery": 1}).unrecognised == ("mystery",)


@pytest.mark.parametrize(
    ("raw", "lineage", "problem", "signal"),
    [
        ({"n_spills": 12}, H200, {}, "register_spill"),
        ({"n_spills": 12}, (), {}, "register_spill"),
        ({".vgpr_spill_count": 4}, MI300X, {}, "register_spill"),
        ({"gpu__time_duration.sum": 4000}, H200, {}, "launch_overhead"),
        ({"DurationNs": 4000}, MI300X, {}, "launch_overhead"),
        ({"hbm_util": 0.3, "VALUBusy": 20, "MfmaUtil": 4}, MI300X, {}, "latency_bound"),
        ({"hbm_util": 0.3, "VALUBusy": 20}, MI300X, {"op": "softmax"}, "latency_bound"),
        ({"hbm_util": 0.8, "VALUBusy": 20}, MI300X, {}, "memory_bound"),
        ({"LDSBankConflict": 9}, MI300X, {}, "bank_conflict"),
        ({"workgroup_count": 300}, MI300X, {}, "grid_too_small"),
        ({"MfmaUtil": 12}, MI300X, {"op": "matmul"}, "tensor_core_underuse"),
        ({"instructions": 50, "cycles": 100}, CPU, {}, "latency_bound"),
        ({"branch-misses": 9, "branches": 100}, CPU, {}, "divergence"),
        ({"vec_missed": 1, "packed_instructions": 0}, CPU, {}, "not_vectorized"),
        ({"nan_count": 1}, (), {}, "numerical_instability"),
        ({"mismatch_pct": 2}, (), {}, "correctness_mismatch"),
        (
            {"mma_instructions": 0},
            H200,
            {"op": "matmul", "dtype": "bfloat16"},
            "tensor_core_underuse",
        ),
    ],
)
def test_one_counter_of_each_collector(
    raw: Mapping[str, float | str], lineage: tuple[str, ...], problem: dict[str, str], signal: str
) -> None:
    assert verdict_of(raw, lineage, **problem).primary == signal


def test_child_rule_counts_only_after_its_parent() -> None:
    children = {
        "tma_memory_bound": 40,
        "tma_l2_bound": 30,
        "tma_l1_bound": 30,
        "tma_4k_aliasing": 50,
    }
    assert ids(verdict_of({"tma_backend_bound": 10} | children, CPU)) == []
    assert ids(verdict_of({"tma_backend_bound": 60} | children, CPU)) == ["cache_thrash"]
    without_l1 = children | {"tma_l1_bound": 1, "tma_l2_bound": 1}
    assert "cache_thrash" not in ids(verdict_of({"tma_backend_bound": 60} | without_l1, CPU))


def test_bandwidth_overrides_leading_stall() -> None:
    stalled = {"issue_active_pct": 6, "long_scoreboard_stall_share": 0.9, "l2_throughput_pct": 30}
    idle = verdict_of(stalled | {"dram_throughput_pct": 30})
    assert "memory_latency" in ids(idle)
    busy = verdict_of(stalled | {"dram_throughput_pct": 90})
    assert "memory_latency" not in ids(busy)
    assert ids(busy) == ["memory_bound"]


def test_node_without_known_children_counts_itself() -> None:
    node: dict[str, float | str] = {"tma_backend_bound": 60, "tma_memory_bound": 50}
    alone = verdict_of(node, CPU)
    assert ids(alone) == ["memory_latency"]
    assert {"tma_dram_bound_pct", "tma_l1_bound_pct"} <= set(alone.measure_next)
    dram = verdict_of(node | {"tma_dram_bound": 40}, CPU)
    assert ids(dram) == ["memory_bound"]
    assert dram.signals[0].confidence == "C"
    assert {"tma_mem_bandwidth_pct", "tma_mem_latency_pct"} <= set(dram.measure_next)
    chase: dict[str, float | str] = {"tma_mem_bandwidth": 3, "tma_mem_latency": 38}
    assert ids(verdict_of(node | {"tma_dram_bound": 40} | chase, CPU)) == ["memory_latency"]


def test_l1_bound_yields_to_more_specific_signals() -> None:
    node: dict[str, float | str] = {"tma_backend_bound": 60, "tma_memory_bound": 50}
    l1 = verdict_of(node | {"tma_l1_bound": 40}, CPU)
    assert ids(l1) == []
    assert "tma_l1_latency_dependency_pct" in l1.measure_next
    chain = node | {"tma_l1_bound": 40, "tma_l1_latency_dependency": 30}
    assert ids(verdict_of(chain, CPU)) == ["latency_bound"]
    others = {"tma_4k_aliasing": 1, "tma_dtlb_load": 2, "tma_l1_latency_dependency": 3}
    assert ids(verdict_of(node | {"tma_l1_bound": 40} | others, CPU)) == ["onchip_bandwidth"]


def test_busy_matrix_pipe_is_not_latency_bound() -> None:
    idle_vectors: dict[str, float | str] = {"VALUBusy": 25, "hbm_util": 0.2}
    busy = verdict_of(idle_vectors | {"MfmaUtil": 85}, MI300X, op="matmul")
    assert ids(busy) == ["compute_bound"]
    assert "latency_bound" in {entry["signal"] for entry in busy.ruled_out}
    unknown = verdict_of(idle_vectors, MI300X, op="matmul")
    assert ids(unknown) == [] and "tensor_pipe_pct" in unknown.measure_next
    idle = verdict_of(idle_vectors | {"MfmaUtil": 3}, MI300X, op="matmul")
    assert set(ids(idle)) == {"tensor_core_underuse", "latency_bound"}


@pytest.mark.parametrize(("workgroups", "signals"), [(303, ["grid_too_small"]), (304, [])])
def test_one_workgroup_per_unit_fills_mi300x(workgroups: int, signals: list[str]) -> None:
    verdict = verdict_of({"workgroup_count": workgroups}, MI300X)
    assert ids(verdict) == signals
    assert {finding.confidence for finding in verdict.signals} <= {"C"}


def test_cache_misses_of_a_stream_are_not_poor_reuse_on_amd() -> None:
    stream: dict[str, float | str] = {"hbm_util": 0.8, "VALUBusy": 10, "L2CacheHit": 12}
    assert ids(verdict_of(stream, MI300X)) == ["memory_bound", "at_roofline"]
    once = verdict_of(stream | {"bytes_over_compulsory": 1.1}, MI300X)
    assert ids(once) == ["memory_bound", "at_roofline"]
    again = verdict_of(stream | {"bytes_over_compulsory": 2.4}, MI300X)
    assert ids(again) == ["poor_reuse", "memory_bound"]
    below = verdict_of(stream | {"hbm_util": 0.79}, MI300X)
    assert ids(below) == ["memory_bound"]


def test_cpu_cache_misses_count_by_their_bytes() -> None:
    few: dict[str, float | str] = {"cycles": 1e10, "LLC-loads": 2e5, "LLC-load-misses": 9e4}
    assert ids(verdict_of(few, CPU)) == []
    many = few | {"LLC-loads": 2e8, "LLC-load-misses": 1.5e8}
    assert ids(verdict_of(many, CPU)) == ["memory_bound"]
    apart = few | {"LLC-loads": 2e7, "LLC-load-misses": 1.5e7, "instructions": 2e8}
    assert ids(verdict_of(apart, CPU)) == ["memory_latency", "latency_bound"]


def test_wide_loads_of_a_stream_do_not_thrash_l1() -> None:
    wide: dict[str, float | str] = {
        "cycles": 1e9,
        "instructions": 2e8,
        "L1-dcache-loads": 6e7,
        "L1-dcache-load-misses": 6e7,
    }
    memory: dict[str, float | str] = {"LLC-loads": 6e7, "LLC-load-misses": 5e7}
    assert ids(verdict_of(wide | memory, CPU)) == ["memory_bound"]
    assert "cache_thrash" not in ids(verdict_of(wide, CPU))
    assert "cache_thrash" in ids(verdict_of(wide, CPU, op="matmul"))
    assert "cache_thrash" not in ids(verdict_of(wide | {"copy_bandwidth_pct": 80}, CPU))


def test_cpu_counters_give_no_verdict_on_accelerator() -> None:
    for lineage in (H200, MI300X, TRAINIUM2):
        assert ids(verdict_of({"IPC": 0.3, "L1-dcache-load-misses": 5}, lineage)) == []


WGMMA_FACTS: dict[str, int] = {
    "registers_per_unit": 65536,
    "warp_size": 32,
    "shared_memory_per_unit": 233472,
    "shared_memory_per_block": 232448,
}


@pytest.mark.parametrize(
    ("counters", "limited"),
    [
        ({"mma_instructions": 64}, False),
        ({"mma_instructions": 0}, True),
        ({"smsp__warp_issue_stalled_gmma_per_warp_active.pct": 12}, False),
        ({"sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active": 46}, False),
        ({"sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active": 0}, True),
        ({"Compute (SM) Throughput": 92}, False),
    ],
)
def test_few_warps_are_normal_for_wgmma(counters: dict[str, float], limited: bool) -> None:
    resources: dict[str, float] = {"n_regs": 168, "metadata.shared": 200_704}
    verdict = diagnose(normalise(resources | counters), WGMMA_FACTS, {}, H200)
    assert ("occupancy_limited" in ids(verdict)) is limited


def test_issue_rate_of_matrix_instructions_counts_before_hopper_only() -> None:
    issued: dict[str, float | str] = {
        "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active": 5
    }
    assert ids(verdict_of(issued, H200, op="matmul")) == []
    assert ids(verdict_of(issued, ("b200", "blackwell", "nvidia", "any"), op="matmul")) == []
    assert ids(verdict_of(issued, (), op="matmul")) == []
    assert ids(verdict_of(issued, A100, op="matmul")) == ["tensor_core_underuse"]
    cycles = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"
    assert ids(verdict_of(issued | {cycles: 55}, A100, op="matmul")) == []


@pytest.mark.parametrize(("pipe", "signal"), [(80, "compute_bound"), (30, "tensor_core_underuse")])
def test_wait_for_wgmma_is_a_limit_or_missing_overlap(pipe: float, signal: str) -> None:
    waiting: dict[str, float | str] = {
        "smsp__issue_active.avg.pct_of_peak_sustained_active": 12,
        "smsp__warp_issue_stalled_gmma_per_warp_active.pct": 55,
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active": pipe,
    }
    assert ids(verdict_of(waiting, H200)) == [signal]


def test_vendor_rules_apply_to_their_vendor_only() -> None:
    raw: dict[str, float | str] = {"duration_us": 7}
    assert ids(verdict_of(raw, H200)) == ["launch_overhead"]
    assert ids(verdict_of(raw, MI300X)) == []
    assert ids(verdict_of({"gpu__time_duration.sum": 7000}, ())) == ["launch_overhead"]
    assert ids(verdict_of({"DurationNs": 7000}, ())) == []


def test_facts_of_hardware_are_used() -> None:
    facts = {"shared_memory_per_block": 232448, "shared_memory_per_unit": 233472}
    metrics = normalise({"metadata.shared": 300000})
    assert diagnose(metrics, facts, {}, H200).primary == "shared_memory_limit"
    assert diagnose(metrics, {}, {}, H200).abstained[0]["missing"] == (
        "facts.shared_memory_per_block",
    )


def test_verdict_is_independent_of_metric_order() -> None:
    forward = diagnose(normalise(STRIDED_GATHER), {}, COMPULSORY, H200)
    backward = diagnose(normalise(dict(reversed(STRIDED_GATHER.items()))), {}, COMPULSORY, H200)
    assert forward == backward


def test_every_metric_of_an_enabled_rule_has_collector() -> None:
    table = load_rules()
    without = {
        (rule.id, name)
        for rule in table
        if rule.enabled
        for name in rule.when.names().metrics
        if not any(table.metrics.raw_names(name, c) for c in table.metrics.collectors)
    }
    assert without == set()


def test_disabled_rules_are_not_marked_verified() -> None:
    off = [rule for rule in load_rules() if not rule.enabled]
    assert off
    assert not any(rule.verified for rule in off)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"when": "metrics.nothing > 1"}, "unknown metric"),
        ({"when": "metrics.ipc >"}, "invalid syntax"),
        ({"when": "signals.memory_bound"}, "no earlier rule"),
        ({"when": "tile_m > 1"}, "recipe parameter"),
        ({"signal": "slow"}, "unknown signal"),
        ({"parent": "later"}, "earlier parent"),
        ({"confidence": "D"}, "confidence"),
        ({"colour": "red"}, "unknown keys: colour"),
    ],
)
def test_invalid_rule_is_refused(change: dict[str, str], message: str) -> None:
    row = {"id": "r", "when": "metrics.ipc > 1", "confidence": "A", "source": "s"} | change
    with pytest.raises(InvalidKnowledge, match=message):
        rules_from({"rules": [row]}, "team.toml", load_metrics(), load_signals())


@pytest.mark.parametrize(
    ("raw", "signal"),
    [
        ({"dram_throughput_pct": 90, "compute_throughput_pct": 10}, "memory_bound"),
        ({"dram_throughput_pct": 10, "compute_throughput_pct": 92}, "compute_bound"),
        ({"bank_conflict_ratio": 0.6}, "bank_conflict"),
        ({"bytes_ratio": 2.5}, "poor_reuse"),
        ({"dram_throughput_pct": 20, "compute_throughput_pct": 20}, "latency_bound"),
    ],
)
def test_chip_without_own_rules_is_diagnosed(raw: dict[str, float | str], signal: str) -> None:
    assert verdict_of(raw, ("nova-1", "nova")).primary == signal


@pytest.mark.parametrize(
    ("limit", "signal"),
    [
        ({"compute_throughput_pct": 92, "dram_throughput_pct": 10}, "compute_bound"),
        ({"compute_throughput_pct": 10, "dram_throughput_pct": 92}, "memory_bound"),
    ],
)
def test_harmless_finding_at_limit_does_not_lead(
    limit: dict[str, float | str], signal: str
) -> None:
    """Repeated fetches during busy arithmetic, conflicts during busy memory."""
    raw = limit | {"bytes_ratio": 1.4 if signal == "memory_bound" else 2.5}
    verdict = verdict_of(raw | {"bank_conflict_ratio": 0}, ("nova-1", "nova"))
    assert ids(verdict) == [signal]
    conflicts = verdict_of(limit | {"bank_conflict_ratio": 0.6}, H200)
    assert (conflicts.primary == "bank_conflict") is (signal == "compute_bound")


def test_idle_lanes_explain_busy_vector_units() -> None:
    busy: dict[str, float | str] = {"VALUBusy": 92.1, "VALUUtilization": 48.6}
    assert ids(verdict_of(busy, MI300X)) == ["divergence", "compute_bound", "at_roofline"]
    assert "divergence" not in ids(verdict_of(busy | {"VALUUtilization": 92}, MI300X))
    assert "divergence" not in ids(verdict_of(busy | {"VALUBusy": 8}, MI300X))


def test_top_down_metrics_of_amd_processors_are_read() -> None:
    zen: dict[str, float | str] = {"backend_bound": 60, "backend_bound_memory": 45}
    assert ids(verdict_of(zen | {"backend_bound_cpu": 15}, CPU)) == ["memory_latency"]


def test_chip_with_own_rules_uses_only_them() -> None:
    (finding,) = verdict_of({"bank_conflict_ratio": 0.6}, H200).signals
    assert finding.confidence == "A"  # the vendor's rule, not the general one


# -- verdicts on profiler output of kernels of known kind: the right signal leads, wrong ones are
# absent

CAPTURES = Path(__file__).with_name("captures")
LINEAGES = {
    "h20": ("h20", "hopper", "nvidia", "any"),
    "h100": ("h100", "hopper", "nvidia", "any"),
    "h200": ("h200", "hopper", "nvidia", "any"),
    "h800": ("h800", "hopper", "nvidia", "any"),
    "b200": ("b200", "blackwell", "nvidia", "any"),
    "a100": ("a100", "ampere", "nvidia", "any"),
    "rtx3060": ("rtx3060", "ampere", "nvidia", "any"),
    "l4": ("l4", "nvidia", "any"),
    "t4": ("t4", "nvidia", "any"),
    "gfx906": ("gfx906", "amd", "any"),
    "mi210": ("mi210", "amd", "any"),
    "mi300x": ("mi300x", "cdna3", "amd", "any"),
    "mi350x": ("mi350x", "amd", "any"),
    "mi355x": ("mi355x", "amd", "any"),
    "x86-64": ("x86-64", "any"),
    "trainium1": ("trainium1", "aws", "any"),
    "trainium2": ("trainium2", "neuroncore-v3", "aws", "any"),
    "inferentia2": ("inferentia2", "aws", "any"),
}
FACTS = {
    "hopper": {
        "registers_per_unit": 65536,
        "warp_size": 32,
        "shared_memory_per_unit": 233472,
        "shared_memory_per_block": 232448,
        "compute_units": 132,
    }
}
KERNELS = [
    kernel
    for path in sorted(CAPTURES.glob("*.toml"))
    for kernel in tomllib.loads(path.read_text(encoding="utf-8"))["kernels"]
]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: f"{kernel['chip']} {kernel['name']}")
def test_kernel_of_known_kind_is_recognised(kernel: dict[str, Any]) -> None:
    lineage = LINEAGES[kernel["chip"]]
    facts = {k: v for place in lineage for k, v in FACTS.get(place, {}).items()}
    problem: dict[str, str] = {key: kernel[key] for key in ("op", "dtype") if key in kernel}
    verdict = diagnose(
        normalise(kernel["counters"]), facts | kernel.get("facts", {}), problem, lineage
    )
    signals = verdict.signal_ids
    if kernel["leads"]:
        assert verdict.primary == kernel["leads"]
    assert set(kernel.get("also", ())) <= set(signals)
    assert not set(kernel.get("never", ())) & set(signals)


def test_every_vendor_has_published_or_recorded_kernels() -> None:
    measured = {k["chip"] for k in KERNELS if k["origin"] != "typical"}
    assert {"h100", "h200", "mi300x", "x86-64", "trainium2"} <= measured
    assert all(k.get("source") for k in KERNELS if k["origin"] == "published")
