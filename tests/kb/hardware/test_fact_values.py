"""Values as a person writes them."""

from __future__ import annotations

import pytest

from kb.errors import InvalidKnowledge
from kb.hardware.facts import find_unit, readable
from kb.hardware.schema import parse_hardware


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (12 * 2**30, "B", "12 GiB"),
        (1464 * 2**10, "B", "1464 KiB"),
        (91.5 * 2**10, "B", "91.5 KiB"),
        (128, "B", "128 B"),
        (0, "B", "0 B"),
        (80e9, "B", "80 GB"),
        (141_000_000_007, "B", "about 131.32 GiB"),
        (1.6e12, "B/s", "1.6 TB/s"),
        (1.85e9, "Hz", "1.85 GHz"),
        (1979e12, "flop/s", "1979 Tflop/s"),
        (700, "W", "700 W"),
        (64.0, "threads", "64 threads"),
        (65536.0, "count", "65536"),
        ("9.0", "text", "9.0"),
    ],
)
def test_value_is_readable(value: float | str, unit: str, text: str) -> None:
    assert readable(value, unit) == text


def test_readable_size_parses_to_same_value() -> None:
    number, unit = readable(12 * 2**30, "B").split()
    known = find_unit(unit)
    assert known is not None and float(number) * known.factor == 12 * 2**30


def test_hint_states_exact_size() -> None:
    stated = 'key = "memory_size"\nvalue = 12\nunit = "GB"\nkind = "measured"\ntitle = "T"\n'
    with pytest.raises(InvalidKnowledge) as refused:
        parse_hardware(f'id = "x1"\n[[facts]]\n{stated}date = "2026-01-31"\n', "x1.toml")
    assert 'value = 12884901888, unit = "B"' in f"{refused.value.message} {refused.value.details}"
