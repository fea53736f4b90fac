"""A question about a quantity: the passage that states it comes first."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from kb.catalog.facts import Fact
from retrieval.compose.cards import named_facts
from retrieval.search.by_names import asked_value, stated_share
from retrieval.snapshot.lexicon import SectionTexts, terms_of
from retrieval.snapshot.ontology import load_ontology

SIZES = (
    "A core has two memories, a 24MiB SBUF as the main storage and a 2MiB PSUM for sums. Both have"
    " 128 partitions."
)
STRIDES = (
    "When the stride is less than 16 bytes, SBUF/PSUM can supply 128 elements/cycle at 1.4 GHz."
)
FAST = "The SBUF supplies FP32, BF16 and INT8 at 128 elements/cycle, its peak bandwidth."
RATES = (
    "Matrix units:\n\n| Format | X1 Flops/Clock/CU |\n|---|---|\n| FP64 | 256 |\n| FP16 | 1024 |"
)
LIMITS = "| Model | LDS (KiB) |\n| --- | --- |\n| X1 | 64 |"


@pytest.mark.parametrize(
    ("question", "with_value", "without"),
    [
        ("How large is the SBUF?", SIZES, STRIDES),
        ("How large are SBUF and PSUM and how many partitions do they have?", SIZES, STRIDES),
        ("What is the peak FP16 matrix throughput?", RATES, STRIDES),
        ("What is the size of the LDS?", LIMITS, "An LDS access of 16 bytes is served in phases."),
        ("How large is the LDS?", LIMITS, "Permute 128-bit LDS instructions by the row."),
        ("How many wavefronts can one compute unit run?", "At most 32 wavefronts per CU.", RATES),
        ("What is the peak FP32 throughput of the chip?", "190 BF16 and 47.5 FP32 TFLOPS.", FAST),
        ("How fast is INT8?", "It has 380 INT8 TOPS, 190 FP16/BF16/TF32 TFLOPS.", FAST),
        ("What is the bf16 performance?", "The peak is 0.9 petaflops in BF16.", FAST),
        ("What is the BF16 bandwidth of the SBUF?", FAST, "190 BF16 TFLOPS beside the SBUF."),
        ("What clock does the NPU run at?", "The NPU clock is 1.4 GHz.", "The NPU has 2 MiB."),
    ],
)
def test_text_states_the_value_that_is_asked_for(
    question: str, with_value: str, without: str
) -> None:
    asked = asked_value(question)
    assert asked is not None
    assert stated_share(with_value, asked) > 0.9
    assert stated_share(without, asked) == 0.0


@pytest.mark.parametrize(
    "question",
    [
        "How do I reduce the size of the tile?",
        "Which engine computes exp?",
        "Why is my kernel slow?",
        "How large?",
    ],
)
def test_other_questions_ask_for_no_value(question: str) -> None:
    assert asked_value(question) is None


# -- facts of a chip that a question names

KEYS = (
    *("memory_size", "memory_bandwidth", "shared_memory_per_unit", "shared_memory_per_block"),
    *("shared_memory_banks", "compute_units", "warp_size", "l2_size", "l2_bandwidth"),
    *(
        "x_dma_data_width",
        "peak_matrix_fp8",
        "peak_fp32",
        "x_tensor_memory_size",
        "max_registers_per_thread",
    ),
)


def fact(key: str) -> Fact:
    values: dict[str, Any] = dict.fromkeys(field.name for field in fields(Fact))
    values |= {
        "id": key,
        "hardware_id": "talon",
        "key": key,
        "number": 64.0,
        "unit": "B" if "size" in key or "_per_" in key else "count",
    }
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
        ("How wide is the DMA data path?", {"x_dma_data_width"}),
        (
            "How large is the TCDM and how many banks has it?",
            {"shared_memory_per_unit", "shared_memory_per_block", "shared_memory_banks"},
        ),
        (
            "How large is the scratchpad and how many banks has it?",
            {"shared_memory_per_unit", "shared_memory_per_block", "shared_memory_banks"},
        ),
        ("How do I hide the latency of memory?", set()),
        ("Can I use thread blocks of one warp with shared memory?", set()),
        ("Why is my kernel slow?", set()),
    ],
)
def test_question_for_a_value_gets_its_facts(question: str, keys: set[str]) -> None:
    assert {named.key for named in named_facts(question, FACTS)} == keys


def test_question_with_a_term_of_the_manuals_gets_its_facts() -> None:
    question = "How large is the local vault?"
    text = "The Local Vault is a scratchpad of each core."
    terms = terms_of([SectionTexts("s", ["Memory"], [text])], load_ontology())
    assert named_facts(question, FACTS) == ()
    keys = {named.key for named in named_facts(question, FACTS, terms)}
    assert keys == {"shared_memory_per_unit", "shared_memory_per_block"}


def test_fact_has_value_with_unit_and_source() -> None:
    [named] = named_facts("How large is the L2?", FACTS)
    assert (named.value, named.source, named.hardware) == ("64 B", "Manual, 1", "talon")
