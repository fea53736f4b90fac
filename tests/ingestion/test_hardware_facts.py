"""Facts of sources that disagree."""

from __future__ import annotations

from ingestion.hardware import SourcedFact, find_conflicts


def sourced(
    value: float | str, source: str, key: str = "memory_size", unit: str = "B"
) -> SourcedFact:
    return SourcedFact(key, "H200", value, unit, source)


def test_disagreeing_sources_conflict() -> None:
    facts = [sourced(141e9, "datasheet"), sourced(141 * 2**30, "guide"), sourced(141e9, "blog")]
    (conflict,) = find_conflicts(facts)
    assert (conflict.key, conflict.subject, len(conflict.values)) == ("memory_size", "H200", 3)
    assert "powers of 1024" in conflict.reason


def test_rounded_rates_agree_and_counts_must_be_equal() -> None:
    rates = [sourced(v, str(v), "memory_bandwidth", "B/s") for v in (4.8e12, 4.83e12)]
    assert find_conflicts(rates) == []
    assert find_conflicts([sourced(132, "a", "compute_units", "count")] * 2) == []
    counts = [sourced(v, str(v), "compute_units", "count") for v in (132, 133)]
    assert len(find_conflicts(counts)) == 1


def test_subjects_are_compared_without_case_and_separately() -> None:
    a = SourcedFact("l2_size", "MI300X", 1, "B", "a")
    assert find_conflicts([a, SourcedFact("l2_size", "MI 300X", 1, "B", "b")]) == []
    assert len(find_conflicts([a, SourcedFact("l2_size", "mi-300x", 2, "B", "b")])) == 1
    assert find_conflicts([a, SourcedFact("l2_size", "MI250", 2, "B", "b")]) == []


def test_different_units_and_texts_conflict() -> None:
    pair = [sourced(1, "a"), sourced(1, "b", unit="bit")]
    assert find_conflicts(pair)[0].reason == "different units: B, bit"
    texts = [sourced("gfx942", "a", "cc", "text"), sourced("GFX942 ", "b", "cc", "text")]
    assert find_conflicts(texts) == []
