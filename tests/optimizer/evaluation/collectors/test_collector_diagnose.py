"""From an evaluation to signals: failures by their logs, working kernels by their measurements."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kb.hardware.spec import SignatureSpec
from kb.plain import from_json
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.collectors.ceilings import BandwidthPoint, Ceilings, MeasuredRate
from optimizer.evaluation.collectors.probe import tool
from optimizer.evaluation.collectors.profilers import (
    Collected,
    ProfileJob,
    collect_all,
    collect_lines,
    collect_torch_profile,
    write_job,
)
from optimizer.evaluation.correctness.prepared import PreparedCase
from optimizer.evaluation.diagnose import DiagnosisInputs, diagnose_evaluation
from optimizer.evaluation.problem.load import load_problem
from optimizer.evaluation.records import (
    CaseCheck,
    CaseTiming,
    Evaluation,
    EvaluationVerdict,
    Flag,
    OutputError,
)
from optimizer.evaluation.roofline import CaseWork
from optimizer.evaluation.toolchains.base import Compiled, EvaluationTarget, Loader
from optimizer.evaluation.toolchains.cpp import CppToolchain
from tests.evaluations import RIGHT
from tests.problem_files import model_text

pytestmark = pytest.mark.slow(seconds=8)

MIB = 1 << 20
CPU = EvaluationTarget("x86-64", ("x86-64", "any"), "native", "cpu")
SIZES = ((1, 136.5), (8, 58.1), (32, 57.8), (128, 53.2), (960, 25.7))
# Two cores of a virtual machine, as measured by the collector.
DEVICE = Ceilings(
    device="seen",
    kind="cpu",
    threads=2,
    cache_bytes=480 * MIB,
    copy=tuple(BandwidthPoint(size * MIB, rate * 1e9, 0.02, 20) for size, rate in SIZES),
    matmul={"float32": MeasuredRate(335.9e9, 0.02, 50)},
    dispatch=MeasuredRate(1.97e-6, 0.03, 50),
    waited=0.01,
)
STREAM = CaseWork("elementwise", "float32", 64 * MIB, 64 * MIB)
EVALUATION = replace(
    RIGHT,
    reached="benchmark",
)
KERNEL = """
#include "kernlore_abi.h"
KERNLORE_EXPORT int kernlore_run(const kernlore_tensor *t, const kernlore_counts *c) {
  const float *x = (const float *)t[0].data;
  float *y = (float *)t[1].data;
  int64_t n = t[0].shape[0];
  BODY
  return 0;
}
"""
STREAMING = "for (int64_t i = 0; i < n; i++) { float v = x[i] * 1.5f; y[i] = v > 0 ? v : 0; }"
# Every element depends on the previous one.
CHAINED = "float s = 0; for (int64_t i = 0; i < n; i++) { s = s * 0.5f + x[i]; y[i] = s; }"


def compiled(body: str, folder: Path) -> Compiled:
    source = KERNEL.replace("BODY", body)
    bundle = Bundle({"kernel.cpp": source}, "kernel.cpp", "cpp", "kernlore_run")
    return CppToolchain().compile(bundle, CPU, folder, ())


def timed(microseconds: float, **changes: object) -> Evaluation:
    timing = CaseTiming("main", "measured", 2 * microseconds, microseconds, None, 100)
    return replace(EVALUATION, timings=(timing,), **changes)  # type: ignore[arg-type]


def context(work: CaseWork = STREAM, **changes: object) -> DiagnosisInputs:
    reported = DiagnosisInputs(("x86-64", "any"), {}, {"main": work}, DEVICE)
    return replace(reported, **changes)  # type: ignore[arg-type]


def ids(verdict: EvaluationVerdict) -> list[str]:
    return list(verdict.signal_ids)


# -- working kernels


def test_stream_near_copy_bandwidth_is_done(tmp_path: Path) -> None:
    done = compiled(STREAMING, tmp_path)
    assert done.ok and int(done.metrics["packed_instructions"]) > 0
    verdict = diagnose_evaluation(timed(2_700.0, metrics=done.metrics), context())
    assert ids(verdict) == ["memory_bound", "at_roofline"]
    assert verdict.primary == "memory_bound"
    share, _ = [e for e in verdict.signals[1].evidence if e["name"] == "roofline_pct"]
    assert 85 <= share["value"] <= 105 and share["raw"] == "roofline_pct"


def test_recorded_evaluations_of_three_candidates() -> None:
    """relu(x * 1.5 + bias) over 4096 x 4096 float32 on two cores, with their ceilings."""
    sizes = [size * MIB for size in (1, 8, 32, 72, 192, 960)]
    copy = (132.5e9, 58.1e9, 57.8e9, 57.6e9, 29.3e9, 25.8e9)
    clone = (124.4e9, 57.4e9, 53.6e9, 8.94e9, 7.69e9, 7.80e9)
    quiet = replace(
        DEVICE,
        copy=tuple(
            BandwidthPoint(size, rate, 0.02, 20) for size, rate in zip(sizes, copy, strict=True)
        ),
        clone=tuple(
            BandwidthPoint(size, rate, 0.02, 20) for size, rate in zip(sizes, clone, strict=True)
        ),
    )
    work = CaseWork("elementwise", "float32", 4096 * 4097 * 4, 4096 * 4096 * 4)
    here = context(work, ceilings=quiet)
    fused = timed(17_186.8, metrics={"packed_instructions": 8, "vec_missed": 0})
    assert ids(diagnose_evaluation(fused, here)) == ["memory_bound", "at_roofline"]
    scalar = timed(135_673.8, metrics={"packed_instructions": 0, "vec_missed": 1})
    assert ids(diagnose_evaluation(scalar, here)) == ["not_vectorized"]
    chain = replace(
        here, collected=[Collected("torch_profiler", {"kernel_launches": 3.0, "copies_pct": 0})]
    )
    model = replace(timed(56_661.2), language="torch")
    assert ids(diagnose_evaluation(model, chain)) == ["poor_reuse"]


def test_time_below_ceiling_means_wrong_ceiling() -> None:
    product = replace(STREAM, op="matmul", flops=8_000_000_000)
    assert ids(diagnose_evaluation(timed(26_000.0), context(product))) == [
        "compute_bound",
        "at_roofline",
    ]  # 92 %
    verdict = diagnose_evaluation(timed(17_000.0), context(product))  # 140 %
    assert ids(verdict) == [] and verdict.ruled_out == ()
    assert ids(diagnose_evaluation(timed(1_900.0), context())) == []  # 132 % of the copy rate
    assert "ipc" in verdict.measure_next


def test_verdict_has_its_evidence() -> None:
    verdict = diagnose_evaluation(timed(3_600.0, metrics={"packed_instructions": 8}), context())
    assert verdict.metrics["packed_instructions"] == 8 and verdict.metrics["call_us"] == 3_600
    assert 60 < float(verdict.metrics["copy_bandwidth_pct"]) < 85
    assert verdict.problem["compulsory_bytes"] == STREAM.compulsory_bytes
    broken = diagnose_evaluation(failed("not_compiled", "no", "error: x"), context())
    assert broken.metrics == {}  # nothing was timed


def test_stream_at_70_percent_is_memory_bound_and_not_done() -> None:
    verdict = diagnose_evaluation(timed(3_600.0), context())
    assert ids(verdict) == ["memory_bound"]
    assert "bytes_ratio" in verdict.measure_next


def test_scalar_code_far_from_roof_is_not_vectorized(tmp_path: Path) -> None:
    done = compiled(CHAINED, tmp_path)
    assert done.ok and done.metrics == {"packed_instructions": 0, "vec_missed": 1}
    verdict = diagnose_evaluation(timed(30_000.0, metrics=done.metrics), context())
    assert ids(verdict) == ["not_vectorized"]
    assert "l1d_miss_pct" in verdict.measure_next
    # The same code at the speed of memory gains nothing from wider instructions.
    fast = diagnose_evaluation(timed(2_700.0, metrics=done.metrics), context())
    assert ids(fast) == ["memory_bound", "at_roofline"]
    assert "not_vectorized" in {entry["signal"] for entry in fast.ruled_out}


def test_unfused_chain_has_poor_reuse() -> None:
    chain = Collected("torch_profiler", {"kernel_launches": 6.0, "copies_pct": 2.0})
    model = replace(timed(11_000.0), language="torch")
    assert ids(diagnose_evaluation(model, context(collected=[chain]))) == ["poor_reuse"]
    copies = Collected("torch_profiler", {"kernel_launches": 2.0, "copies_pct": 48.0})
    assert ids(diagnose_evaluation(model, context(collected=[copies]))) == ["poor_reuse"]


def test_many_operators_on_little_data_are_launch_bound() -> None:
    small = CaseWork("elementwise", "float32", 4096, 4096)
    chain = Collected("torch_profiler", {"kernel_launches": 6.0})
    model = replace(timed(15.0), language="torch")
    verdict = diagnose_evaluation(model, context(small, collected=[chain]))
    assert ids(verdict) == ["launch_overhead"]


@pytest.mark.parametrize(
    ("microseconds", "signals"),
    [
        (7_500, ["compute_bound", "at_roofline"]),
        (10_000, ["compute_bound"]),
        (90_000, ["poor_reuse"]),
    ],
)
def test_product_against_matmul_peak(microseconds: float, signals: list[str]) -> None:
    work = CaseWork("matmul", "float32", 8 * MIB, 4 * MIB, flops=2 * 1024**3)
    metrics = {"packed_instructions": 300, "vec_missed": 0}
    verdict = diagnose_evaluation(timed(microseconds, metrics=metrics), context(work))
    assert ids(verdict) == signals


def test_impossible_time_is_a_measurement_error() -> None:
    verdict = diagnose_evaluation(timed(1_000.0), context())
    assert ids(verdict) == ["measurement_error"]


def test_ceilings_of_a_busy_machine_are_not_used() -> None:
    verdict = diagnose_evaluation(timed(2_700.0), context(ceilings=replace(DEVICE, waited=0.5)))
    assert ids(verdict) == [] and verdict.primary == "unknown"
    assert "busy" in verdict.hint
    assert "not measured" in diagnose_evaluation(timed(1.0), context(ceilings=None)).hint


def test_gpu_counters_lead_and_compulsory_bytes_are_supplied() -> None:
    work = CaseWork("elementwise", "float32", 2 * 4 * 64 * MIB, 4 * 64 * MIB)
    counters = Collected(
        "ncu",
        {
            "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": 89.57,
            "lts__throughput.avg.pct_of_peak_sustained_elapsed": 92.21,
            "sm__throughput.avg.pct_of_peak_sustained_elapsed": 5.72,
            "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct": 100.0,
            "dram__bytes.sum": "786134784 B",
        },
        [{"name": "add", "calls": 1, "us": 182.4, "pct": 100.0}],
        call_bytes=786134784.0,
    )
    gpu = replace(timed(185.0), hardware="h200", device="cuda", language="triton")
    lineage = ("h200", "hopper", "nvidia", "any")
    surroundings = context(work, lineage=lineage, ceilings=None, collected=[counters])
    verdict = diagnose_evaluation(gpu, surroundings)
    assert ids(verdict) == ["memory_bound", "at_roofline"]
    assert verdict.kernels[0]["name"] == "add"
    spilled = replace(gpu, metrics={"n_spills": 12})
    assert ids(diagnose_evaluation(spilled, surroundings))[0] == "register_spill"


# -- failures


def failed(validity: str, message: str, log: str = "", **changes: object) -> Evaluation:
    reported = replace(EVALUATION, validity=validity, message=message, log=log, timing="none")  # type: ignore[arg-type]
    return replace(reported, **changes)  # type: ignore[arg-type]


def test_real_compiler_error(tmp_path: Path) -> None:
    done = compiled("undeclared_thing(x);", tmp_path)
    verdict = diagnose_evaluation(failed("not_compiled", "", done.log), context())
    assert verdict.primary == "compile_error"
    assert verdict.signatures[0]["id"] == "cc-undeclared" and verdict.signatures[0]["remedy"]


@pytest.mark.parametrize(
    ("validity", "message", "log", "signal"),
    [
        ("not_compiled", "the compiler said nothing known", "zork", "compile_error"),
        ("not_compiled", "", "x.cpp:(.text+0x1): undefined reference to `foo'", "link_error"),
        (
            "not_compiled",
            "",
            "triton.runtime.errors.OutOfResources: out of resource: shared memory,"
            " Required: 300000, Hardware limit: 232448.",
            "shared_memory_limit",
        ),
        ("crashed", "the runner was ended by SIGSEGV", "", "illegal_memory_access"),
        ("crashed", "the runner was ended by SIGBUS", "", "misaligned_access"),
        ("crashed", "the runner was ended by SIGXCPU", "", "timeout"),
        ("crashed", "the runner was ended by SIGKILL", "", "out_of_memory"),
        ("crashed", "the runner was ended by SIGABRT", "std::bad_alloc", "out_of_memory"),
        ("crashed", "the runner was ended by SIGFPE", "", "launch_error"),
        ("crashed", "the runner ended with exit code 3", "", "launch_error"),
        ("crashed", "out of memory", "", "out_of_memory"),
        (
            "crashed",
            "RuntimeError('...')",
            "CUDA error: an illegal memory access was encountered",
            "illegal_memory_access",
        ),
        ("timed_out", "no answer within 30 s", "", "timeout"),
        ("incorrect", "output 0 has shape (3,), expected (4,)", "", "correctness_mismatch"),
    ],
)
def test_failures_become_signals(validity: str, message: str, log: str, signal: str) -> None:
    verdict = diagnose_evaluation(failed(validity, message, log), context())
    assert verdict.primary == signal
    assert verdict.signals[0].evidence


def wrong(worst: float, quantile: float = 1.0, message: str = "") -> Evaluation:
    error = OutputError("output0", "float", worst, 1e-5, quantile, 1e-5, (3, 7))
    check = CaseCheck("main", 1, False, (error,), message)
    return failed("incorrect", "case main: off", checks=(check,))


def test_lost_digits_nan_and_wrong_results_are_distinguished() -> None:
    precise = diagnose_evaluation(wrong(0.004), context(replace(STREAM, reduction_length=4096)))
    assert ids(precise) == ["numerical_instability", "correctness_mismatch"]
    assert {"reduction_length", "main/output0"} <= {e["name"] for e in precise.signals[0].evidence}
    assert ids(diagnose_evaluation(wrong(math.inf, math.inf), context()))[0] == (
        "numerical_instability"
    )
    assert ids(diagnose_evaluation(wrong(1.7), context())) == ["correctness_mismatch"]
    edge = diagnose_evaluation(wrong(1.7, 0.0), context())
    assert any("borders" in str(e["test"]) + str(e["value"]) for e in edge.signals[0].evidence)


def test_differing_second_call_is_nondeterminism() -> None:
    good = OutputError("output0", "float", 0.0, 1e-5, 0.0, 1e-5)
    check = CaseCheck("main", 1, False, (good,), "a second call differs: output0 is off by 2")
    verdict = diagnose_evaluation(failed("incorrect", "off", checks=(check,)), context())
    assert ids(verdict) == ["nondeterminism", "correctness_mismatch"]


def test_rejected_candidate_has_only_reason() -> None:
    flags = (Flag(29, "reject", "3.0 us a call, but moving its data takes 300 us"),)
    verdict = diagnose_evaluation(failed("rejected", "3.0 us", flags=flags), context())
    assert ids(verdict) == ["measurement_error"] and "300 us" in verdict.hint
    cheat = diagnose_evaluation(failed("rejected", "", flags=(Flag(4, "reject", "x"),)), context())
    assert ids(cheat) == [] and cheat.primary == "unknown"


def test_errors_of_a_new_chip_match_its_signatures() -> None:
    own = SignatureSpec(r"ZK-\d+: bank overflow", "shared_memory_limit", "Bank overflow", "Shrink.")
    log = "ZK-17: bank overflow in tile 3"
    verdict = diagnose_evaluation(failed("not_compiled", "", log), context(signatures=[own]))
    assert verdict.primary == "shared_memory_limit"
    assert diagnose_evaluation(failed("not_compiled", "", log), context()).primary == (
        "compile_error"
    )


# -- the real collectors

PROBLEM = model_text("torch.relu(x * 1.5 + 0.25)", "torch.randn(256, 256)")


def test_cpu_profilers_run_candidate_in_separate_process(tmp_path: Path) -> None:
    path = tmp_path / "problem.py"
    path.write_text(PROBLEM)
    problem = load_problem(path)
    case = PreparedCase(problem, problem.cases[0], "cpu")
    candidate = tmp_path / "candidate.py"
    candidate.write_text(PROBLEM.replace("class Model", "class ModelNew"))
    job = write_job(
        tmp_path / "job",
        Loader("python", candidate, "ModelNew"),
        case,
        case.values(1).tensors,
        device="cpu",
        threads=1,
    )
    found = {collected.collector: collected for collected in collect_all(job)}
    operators = found["torch_profiler"]
    assert operators.metrics["kernel_launches"] == 3
    assert {row["name"] for row in operators.kernels} == {"aten::mul", "aten::add", "aten::relu"}
    if tool("perf").available:
        assert float(found["perf"].metrics["instructions"]) > 0
    else:
        assert found["perf"].not_measured
    verdict = diagnose_evaluation(timed(40.0), context(collected=[*found.values()]))
    assert verdict.kernels and ("perf" in verdict.not_measured) != tool("perf").available


WALK = """#include "kernlore_abi.h"
KERNLORE_EXPORT int walk(const kernlore_tensor *t, const kernlore_counts *c) {
  const float *x = t[0].data;
  float *y = t[1].data;
  for (long i = 0; i < 256; i++)
    for (long j = 0; j < 256; j++)
      y[i * 256 + j] = x[j * 256 + i] / (x[i] + 3.0f);
  return 0;
}
"""


@pytest.mark.skipif(shutil.which("perf") is None, reason="perf is not installed")
def test_lines_of_a_compiled_candidate_are_sampled_and_stored(tmp_path: Path) -> None:
    path = tmp_path / "problem.py"
    path.write_text(PROBLEM)
    case = PreparedCase(load_problem(path), load_problem(path).cases[0], "cpu")
    bundle = Bundle(language="cpp", files={"walk.c": WALK}, main="walk.c", entry="walk")
    compiled = CppToolchain().compile(bundle, CPU, tmp_path, ())
    assert compiled.loader is not None, compiled.log
    tensors = case.values(1).tensors
    job = write_job(tmp_path / "job", compiled.loader, case, tensors, device="cpu", threads=1)
    report = collect_lines(job, call_us=200.0)
    if report.not_measured:
        pytest.skip(report.not_measured)
    verdict = diagnose_evaluation(timed(40.0), context(collected=[report], source=WALK))
    first = verdict.lines[0]
    assert first.last == 7 and first.share_pct > 50 and "x[j * 256 + i]" in first.source[-1]
    assert first.signals and set(first.signals) <= {*verdict.signal_ids}
    assert from_json(EvaluationVerdict, verdict.as_json()).lines == verdict.lines


def test_python_lines_are_not_sampled_on_cpu(tmp_path: Path) -> None:
    report = collect_lines(ProfileJob(tmp_path, "cpu", 1, {"kind": "python"}), 1.0)
    assert "compiled candidates only" in report.not_measured


def test_exception_under_profiler_loses_only_figures(tmp_path: Path) -> None:
    candidate = tmp_path / "candidate.py"
    candidate.write_text(
        "class ModelNew:\n    def __init__(self):\n        raise OSError('gone')\n"
    )
    torch.save([], tmp_path / "tensors.pt")
    spec: dict[str, object] = {
        "kind": "python",
        "path": str(candidate),
        "entry": "ModelNew",
        "init_args": [],
        "gradients": False,
        "overwritten": [],
        "dtype": None,
        "scalars": [],
        "state": [],
        "expected": [],
        "tensors": str(tmp_path / "tensors.pt"),
        "scratch": str(tmp_path),
        "device": "cpu",
        "threads": 1,
        "calls": 1,
    }
    report = collect_torch_profile(ProfileJob(tmp_path, "cpu", 1, spec))
    assert not report.metrics and "gone" in report.not_measured
