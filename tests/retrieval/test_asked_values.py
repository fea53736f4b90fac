"""A question about a quantity: the passage that states it comes first."""

from __future__ import annotations

import pytest

from retrieval.search.values import asked_value, stated_share

SIZES = (
    "A core has two memories, a 24MiB SBUF as the main storage and a 2MiB PSUM for sums. Both have"
    " 128 partitions."
)
STRIDES = (
    "When the stride is less than 16 bytes, SBUF/PSUM can supply 128 elements/cycle at 1.4 GHz."
)
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
