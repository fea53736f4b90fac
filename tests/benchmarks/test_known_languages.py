"""The tables of knowledge on and off are made from the rows that are kept."""

from __future__ import annotations

import pytest

from benchmarks.search.known_languages import STORED, ratio, report, rows_of

pytestmark = pytest.mark.slow(seconds=3)


def test_the_stored_arms_are_read_and_compared() -> None:
    on, off = rows_of(STORED / "cpu-on.zip"), rows_of(STORED / "cpu-off.zip")
    assert on.keys() == off.keys() and len(on) == 8
    assert off["scaled_product_relu"].drafts == ("incorrect", "correct")
    assert off["scaled_product_relu"].gain == 1.0 and on["scaled_product_relu"].gain > 1.2
    assert on["focal_loss"].tokens > 2 * off["focal_loss"].tokens
    gpu, cpu, cuda, first, second = report(STORED)
    assert gpu.startswith("## Triton") and "| rotary_queries |" in gpu and "n=8" in cpu
    assert "| scaled_product_relu | 1.00 | 1.93 | incorrect | correct |" in cuda
    assert "n=11" in first and "Right at the first draft: 11 with, 11 without" in first
    assert "| attention_201 | 9.57 | 11.27 |" in second and "n=8" in second


def test_a_ratio_of_equal_gains_is_one() -> None:
    assert ratio([(2.0, 2.0), (3.0, 3.0)]) == "1.00 [1.00, 1.00]"
    assert ratio([(4.0, 1.0), (1.0, 1.0)]).startswith("2.00 [1.00, 4.00]")
