"""Facts of a chip that a question names."""

from dataclasses import fields
from typing import Any

import pytest

from kb.catalog.facts import Fact
from retrieval.compose.facts import named_facts

KEYS = (
    *("memory_size", "memory_bandwidth", "shared_memory_per_unit", "shared_memory_per_block"),
    *("shared_memory_banks", "compute_units", "warp_size", "l2_size", "l2_bandwidth"),
    *("peak_matrix_fp8", "peak_fp32", "x_tensor_memory_size", "max_registers_per_thread"),
)


def fact(key: str) -> Fact:
    values: dict[str, Any] = dict.fromkeys(field.name for field in fields(Fact))
    values |= {"id": key, "hardware_id": "talon", "key": key, "number": 64.0, "unit": "B"}
    values |= {"text": "64", "kind": "datasheet", "title": "Manual", "locator": "1"}
    return Fact(**values)


FACTS = {key: fact(key) for key in KEYS}


@pytest.mark.parametrize(
    ("question", "keys"),
    [
        ("What are HBM3e capacity and bandwidth?", {"memory_size", "memory_bandwidth"}),
        ("How large is the L2?", {"l2_size"}),
        ("how many SMs are there", {"compute_units"}),
        ("What is the wavefront size?", {"warp_size"}),
        ("how much tensor memory has an SM", {"x_tensor_memory_size"}),
        ("peak fp8 rate of the matrix units", {"peak_matrix_fp8"}),
        ("How many LDS banks are there?", {"shared_memory_banks"}),
        (
            "How much Unified Buffer can a kernel use?",
            {"shared_memory_per_unit", "shared_memory_per_block"},
        ),
        ("How do I hide the latency of memory?", set()),
        ("Can I use thread blocks of one warp with shared memory?", set()),
        ("Why is my kernel slow?", set()),
    ],
)
def test_question_for_a_value_gets_its_facts(question: str, keys: set[str]) -> None:
    assert {named.key for named in named_facts(question, FACTS)} == keys


def test_fact_has_value_with_unit_and_source() -> None:
    [named] = named_facts("How large is the L2?", FACTS)
    assert (named.value, named.source, named.hardware) == ("64 B", "Manual, 1", "talon")
