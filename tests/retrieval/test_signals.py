"""The vocabulary of signals, and signals that a report names in words, without an error line."""

from pathlib import Path

import pytest

from kb.errors import InvalidKnowledge, UnknownSignal
from retrieval.diagnose.diagnosis import Diagnoser, symptoms_in
from retrieval.diagnose.signals import load_signals, signals_from
from retrieval.request import RetrieveRequest

SIGNALS = load_signals()
NUMBA = """```python
@cuda.jit
def blend(a, b, out):  # float32 arrays
    i = cuda.grid(1)
    out[i] = (a[i] * 0.25 + b[i] * 0.75)
```
This numba kernel is four times slower than the same code in C."""
REPORTS = [
    ("bank_conflict", "The column of the tile is read with stride 32, a 32-way bank\nconflict."),
    ("illegal_memory_access", "On some inputs the gather reads past the end of the index array."),
    ("illegal_memory_access", "We see a GPU memory fault as soon as the batch exceeds 64."),
    ("sync_stall", "About 30% of the time is spent in the barrier after each stage."),
    ("sync_stall", "The OpenMP barrier after each row costs more than the row."),
    ("grid_too_small", "The reduction runs with only 4 blocks on a card of 132 SMs."),
    ("grid_too_small", "nsys shows **low** SM activity during the scan."),
    ("launch_overhead", "Even an empty kernel takes 30 us from Python."),
    ("launch_overhead", "Each step consists of thousands of tiny kernels."),
    ("launch_overhead", "@cuda.jit\ndef nothing(x):\n    pass\n\ntimeit: 40 µs per loop"),
    ("nondeterminism", "The logits differ slightly between two runs of the same prompt."),
    ("nondeterminism", "Calling it with the same input gives different outputs."),
    ("correctness_mismatch", "With an odd head size the kernel silently returns garbage values."),
    ("correctness_mismatch", "For N = 7 the sums don't agree with the eager baseline."),
    ("accidental_fp64", "The constants in the shader are doubles, so it is slow."),
    ("accidental_fp64", NUMBA),
    ("timeout", "Compilation takes more than 20 minutes for this kernel."),
    ("timeout", "torch.compile hangs on the second graph."),
    ("uncoalesced_access", "Each thread reads a row, which gives uncoalesced loads."),
    ("register_spill", "The new compiler release spills ~200 bytes in the same kernel."),
    ("not_vectorized", "GCC 13 fails to vectorize the inner loop."),
]


@pytest.mark.parametrize(("signal", "report"), REPORTS)
def test_symptom_in_words_gives_its_signal(signal: str, report: str) -> None:
    verdict = Diagnoser(SIGNALS).conclude(RetrieveRequest(log=report), {}, (), ()).verdict
    assert verdict.primary == signal
    assert verdict.signals[0].confidence == "C"
    line = verdict.signals[0].evidence[0]["line"]
    assert line and line in " ".join(report.split())


@pytest.mark.parametrize(
    "text",
    [
        "The tile is padded to avoid shared memory bank conflicts.",
        "The run finished without illegal memory accesses.",
        "register spills: 0",
        "The results are not wrong results of the reference.",
        "This kernel never deadlocks.",
        "Built the wheel in 20 minutes and installed it.",
        "Throughput is 1.9 TB/s at batch 32.",
    ],
)
def test_negated_and_absent_symptoms_give_no_signal(text: str) -> None:
    assert symptoms_in(text, SIGNALS) == []


def test_logs_of_success_have_no_symptom() -> None:
    lines = Path(__file__).with_name("success_lines.txt").read_text().splitlines()
    found = {line: [m.signature.signal for m in symptoms_in(line, SIGNALS)] for line in lines}
    assert {line: names for line, names in found.items() if names} == {}


def test_error_lines_and_measurements_take_precedence_over_words() -> None:
    prose = "It has bank conflicts."
    log = f"{prose}\nCUDA error: an illegal memory access was encountered"
    conclude = Diagnoser(SIGNALS).conclude
    assert conclude(RetrieveRequest(log=log), {}, (), ()).verdict.signal_ids == (
        "illegal_memory_access",
    )
    metrics: dict[str, float | str] = {"dram__throughput.avg.pct_of_peak_sustained_elapsed": 91.0}
    verdict = conclude(RetrieveRequest(log=prose, metrics=metrics), {}, ("nvidia",), ()).verdict
    assert verdict.signal_ids == ("memory_bound", "bank_conflict")


def test_invalid_symptom_is_named() -> None:
    row = {
        "id": "x",
        "group": "g",
        "title": "t",
        "description": "d",
        "related": [],
        "topics": [],
        "phrases": ["a", "b", "c"],
        "symptoms": ["(open"],
    }
    with pytest.raises(InvalidKnowledge, match="symptom of 'x'"):
        signals_from({"signals": [row]}, "test")


# -- the signal vocabulary is complete and consistent; errors on mistyped ids name the nearest

EXPECTED = [
    *("compile_error", "link_error", "unsupported_dtype", "shared_memory_limit", "register_limit"),
    *("illegal_memory_access", "misaligned_access", "out_of_memory", "timeout", "launch_error"),
    *("correctness_mismatch", "numerical_instability", "nondeterminism"),
    *(
        "memory_bound",
        "memory_latency",
        "uncoalesced_access",
        "bank_conflict",
        "cache_thrash",
        "poor_reuse",
    ),
    *(
        "onchip_bandwidth",
        "compute_bound",
        "tensor_core_underuse",
        "instruction_mix",
        "not_vectorized",
        "accidental_fp64",
    ),
    *(
        "instruction_cache",
        "latency_bound",
        "occupancy_limited",
        "register_spill",
        "launch_overhead",
        "load_imbalance",
    ),
    *(
        "grid_too_small",
        "tail_effect",
        "sync_stall",
        "divergence",
        "at_roofline",
        "measurement_error",
        "unknown",
    ),
]


def test_every_known_signal_has_distinct_phrases() -> None:
    registry = load_signals()
    assert sorted(registry.ids) == sorted(EXPECTED)
    for signal in registry:
        assert len(set(signal.phrases)) == len(signal.phrases) >= 3
        assert signal.title and signal.description and signal.group
        assert signal.topics
        assert signal.id not in signal.related


def test_unknown_signal_error_names_nearest() -> None:
    with pytest.raises(UnknownSignal) as caught:
        load_signals().get("memry_bound")
    assert "memory_bound" in caught.value.hint


def test_unknown_related_signal_is_refused() -> None:
    row = {
        "id": "a",
        "group": "g",
        "title": "t",
        "description": "d",
        "phrases": ["x", "y", "z"],
        "related": ["b"],
        "topics": ["t"],
    }
    with pytest.raises(InvalidKnowledge, match="unknown signal 'b'"):
        signals_from({"signals": [row]}, "team.toml")
    with pytest.raises(InvalidKnowledge, match="3 phrases"):
        signals_from({"signals": [row | {"phrases": ["x"]}]}, "team.toml")
    with pytest.raises(InvalidKnowledge, match="unknown keys: colour"):
        signals_from({"signals": [row | {"colour": "red"}]}, "team.toml")


def test_unknown_signal_suggests_the_one_whose_title_has_its_words() -> None:
    with pytest.raises(UnknownSignal) as caught:
        load_signals().get("matrix_units_idle")
    assert caught.value.details["nearest"][0] == "tensor_core_underuse"
