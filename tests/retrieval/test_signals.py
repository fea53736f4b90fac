"""The signal vocabulary is complete and consistent; errors on mistyped ids name the nearest."""

import pytest

from kb.errors import InvalidKnowledge, UnknownSignal
from retrieval.diagnose.signals import load_signals, signals_from

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
