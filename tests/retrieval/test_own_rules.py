"""Rules and aliases of a hardware description over the chip's own counters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kb.errors import InvalidKnowledge
from kb.hardware.schema import parse_hardware
from kb.hardware.spec import HardwareSpec, MetricAlias, RuleSpec
from retrieval.diagnose.diagnosis import Diagnoser
from retrieval.diagnose.rules import NO_RULES, OwnRules, check_own, rules_of
from retrieval.diagnose.signals import load_signals
from retrieval.request import RetrieveRequest

STALLS = RuleSpec(
    "waits-on-memory",
    "toy_stall_dram / toy_cycles > 0.4",
    "latency_bound",
    "The core waits for memory",
    "double buffering hides it",
)
METRICS: dict[str, float | str] = {"toy_stall_dram": 60, "toy_cycles": "100", "toy_other": 3.0}


def verdict(own: OwnRules, metrics: dict[str, float | str] | None = None) -> Any:
    request = RetrieveRequest(metrics=metrics or METRICS, hardware="toy")
    return Diagnoser(load_signals()).conclude(request, {}, ("toy",), (), own)


def test_rule_over_own_counters_concludes_with_evidence() -> None:
    concluded = verdict(OwnRules((STALLS,))).verdict
    [finding] = concluded.signals
    assert (finding.id, finding.confidence) == ("latency_bound", "C")
    assert {row["name"]: row["value"] for row in finding.evidence} == {
        "toy_stall_dram": 60,
        "toy_cycles": 100,
    }
    assert {row["rule"] for row in finding.evidence} == {"waits-on-memory"}
    assert finding.evidence[0]["test"] == "toy_stall_dram / toy_cycles > 0.4"
    assert "double buffering" in finding.evidence[0]["source"]
    assert concluded.unrecognised == ("toy_other",)


def test_without_own_rules_verdicts_are_unchanged() -> None:
    assert verdict(NO_RULES).verdict.signals == ()
    assert verdict(NO_RULES).verdict.unrecognised == tuple(METRICS)
    assert (
        verdict(OwnRules((STALLS,)), {"toy_stall_dram": 10, "toy_cycles": 100}).verdict.signals
        == ()
    )


def test_rule_without_its_counter_abstains_and_requests_it() -> None:
    concluded = verdict(OwnRules((STALLS,)), {"toy_stall_dram": 60}).verdict
    assert concluded.abstained[0]["missing"] == ("toy_cycles",)
    assert concluded.measure_next == ("toy_cycles",)


def test_rule_reads_canonical_metrics_and_earlier_signals() -> None:
    more = RuleSpec(
        "both",
        "signals.latency_bound and dram_throughput_pct < 20 and metrics.dram_throughput_pct > 1",
        "occupancy_limited",
        "Little in flight",
        confidence="B",
    )
    concluded = verdict(OwnRules((STALLS, more)), {**METRICS, "dram_throughput_pct": 5.0}).verdict
    assert [(s.id, s.confidence) for s in concluded.signals if s.id == "occupancy_limited"] == [
        ("occupancy_limited", "B")
    ]


def test_alias_maps_counter_to_canonical_metric() -> None:
    own = OwnRules((), {"toy.conflicts": MetricAlias("bank_conflict_ratio", 0.01)})
    concluded = verdict(own, {"toy.conflicts": 50.0})
    assert concluded.metrics["bank_conflict_ratio"] == 0.5
    assert concluded.verdict.unrecognised == ()
    evidence = [row for s in concluded.verdict.signals for row in s.evidence]
    assert "toy.conflicts" in {row["raw"] for row in evidence}


def spec(**changes: Any) -> HardwareSpec:
    plain = parse_hardware('id = "toy"\nname = "Toy"\nvendor = "toys"', "toy")
    return replace(plain, **changes)


def test_nearest_description_takes_precedence() -> None:
    above = replace(STALLS, signal="memory_bound")
    specs = {
        "toy": spec(rules=(STALLS,)),
        "toys": spec(id="toys", rules=(above, replace(above, id="other"))),
    }
    own = rules_of(specs, ("toy", "toys", "any"))
    assert [(r.id, r.signal) for r in own.rules] == [
        ("waits-on-memory", "latency_bound"),
        ("other", "memory_bound"),
    ]
    assert rules_of({}, ("x",)) is NO_RULES


@pytest.mark.parametrize(
    ("changed", "message", "hint"),
    [
        ({"signal": "latency_bond"}, "rules[0] (waits-on-memory).signal", "latency_bound"),
        ({"when": "metrics.dram_byte > 1"}, "unknown metric 'dram_byte'", "dram_bytes"),
        ({"when": "signals.latency and x > 1"}, "unknown signal 'latency'", "latency_bound"),
        ({"id": "impossible-value"}, "is a built-in rule", "toy-impossible-value"),
    ],
)
def test_unknown_names_are_refused_with_nearest(
    changed: dict[str, Any], message: str, hint: str
) -> None:
    with pytest.raises(InvalidKnowledge) as refused:
        check_own(spec(rules=(replace(STALLS, **changed),)))
    assert message in refused.value.message and hint in (refused.value.hint or "")
    check_own(spec(rules=(STALLS,)))
    with pytest.raises(InvalidKnowledge, match="canonical: unknown metric"):
        check_own(spec(metrics={"a": MetricAlias("nothing")}))
