"""The fixed text that frameworks print under every error is removed from the query."""

from __future__ import annotations

import random
import re
import sys

import pytest

from kb.tokens import STOP_WORDS
from retrieval.compose.excerpts import BITS, DUPLICATE, Repeats, words_of
from retrieval.diagnose.log_lines import without_boilerplate, without_program
from retrieval.diagnose.message import message_at
from retrieval.diagnose.metrics import load_metrics
from retrieval.search.plan import DENSE_LOG, Plan, make_plan

TORCH = """\
{0} kernel errors might be asynchronously reported at some other API call, so the stacktrace below \
might be incorrect.
For debugging consider passing {1}
Compile with `TORCH_USE_{0}_DSA` to enable device-side assertions.
"""
JAX = """\
For simplicity, JAX has removed its internal frames from the traceback of the following exception. \
Set JAX_TRACEBACK_FILTERING=off to include these.
--------------------
The above exception was the direct cause of the following exception:
"""
DYNAMO = """\
Set TORCHDYNAMO_VERBOSE=1 for the internal stack trace (please do this especially if you're \
reporting a bug to PyTorch). For even more developer context, set TORCH_LOGS="+dynamo"
"""
ERROR = "no kernel image is available for execution on the device"
TRAILERS = [
    TORCH.format("CUDA", "CUDA_LAUNCH_BLOCKING=1"),
    TORCH.format("HIP", "AMD_SERIALIZE_KERNEL=3"),
    f"Search for `cudaErrorNoKernelImageForDevice' in https://docs.nvidia.com/x.html for more "
    f"information.\n{TORCH.format('CUDA', 'CUDA_LAUNCH_BLOCKING=1')}",
    JAX,
    DYNAMO,
]


def plan_of(log: str) -> Plan:
    return make_plan(query=None, log=log, metrics={}, registry=load_metrics(), signals=(), op=None)


@pytest.mark.parametrize("trailer", TRAILERS)
def test_trailer_is_removed_from_query(trailer: str) -> None:
    assert plan_of(f"{ERROR}\n{trailer}") == plan_of(ERROR)
    assert plan_of(f"{trailer}{ERROR}") == plan_of(ERROR)
    on_one_line = " ".join(f"{ERROR} {trailer}".split())
    assert "asynchronously" not in without_boilerplate(on_one_line)


@pytest.mark.parametrize("trailer", TRAILERS)
def test_log_of_only_trailer_is_unchanged(trailer: str) -> None:
    assert without_boilerplate(trailer) == trailer
    assert not plan_of(trailer).empty


def test_question_about_switch_is_unchanged() -> None:
    question = "CUDA_LAUNCH_BLOCKING=1 makes the kernel pass, without it the results are wrong"
    assert without_boilerplate(question) == question


def test_long_log_is_encoded_by_its_decisive_lines() -> None:
    noise = "".join(f"[{n}/90] Building object number {n} of the extension\n" for n in range(30))
    log = f"{noise}softmax.cu(41): error: {ERROR}\n{noise}"
    text = plan_of(log).phrases[0].text
    assert ERROR in text
    assert "Building object" not in text
    assert len(text) <= DENSE_LOG


def test_short_log_is_encoded_whole() -> None:
    log = f"softmax.cu(41): error: {ERROR}\nmake: *** [softmax.o] Error 1"
    assert plan_of(log).phrases[0].text == log


def test_question_with_long_log_is_encoded_whole() -> None:
    log = "".join(f"error {chr(97 + n)}: {ERROR}\n" for n in range(20))
    plan = make_plan(
        query="which targets were compiled?",
        log=log,
        metrics={},
        registry=load_metrics(),
        signals=(),
        op="softmax",
    )
    text = plan.phrases[0].text
    assert text.startswith("which targets were compiled? error")
    assert text.endswith(" softmax")


def test_words_of_the_requested_chip_weigh_less() -> None:
    """They are rare, so they would rank titles with the chip's name over the subject."""
    plan = make_plan(
        query="rows of a gather on the MI455X",
        log=None,
        metrics={},
        registry=load_metrics(),
        signals=(),
        op=None,
        chip=["MI455X"],
    )
    subject, chip = plan.words[:2]
    assert "gather" in subject.tokens and "mi455x" in chip.tokens
    assert chip.weight < subject.weight
    assert "mi455x" not in subject.tokens


def test_listing_and_frames_are_no_part_of_a_message() -> None:
    log = (
        "Traceback (most recent call last):\n"
        '  File "/home/me/attn.py", line 88, in <module>\n'
        "    _fwd[grid](q, k, v, o, HEAD_DIM=80)\n"
        "triton.compiler.errors.CompilationError: at 2:13:\n"
        "def _fwd(Q, HEAD_DIM: tl.constexpr):\n"
        "    offs_d = tl.arange(0, HEAD_DIM)\n"
        "             ^\n"
        "arange's range must be a power of 2\n"
    )
    assert without_program(log).splitlines()[1:] == [
        "triton.compiler.errors.CompilationError: at 2:13:",
        "arange's range must be a power of 2",
    ]
    assert message_at(log.splitlines(), 4)[1:] == ["arange's range must be a power of 2"]


# -- repeated texts of an answer: exactly those that the definition on sets of words gives

VOCABULARY = [f"word{n}" for n in range(3 * BITS)]  # enough words to share bits


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"[^\W_]+", text.lower())) - STOP_WORDS


def _by_sets(texts: list[str]) -> list[bool]:
    stored: list[frozenset[str]] = []
    new = []
    for text in texts:
        words = _words(text)
        new.append(
            all(len(words & other) <= DUPLICATE * min(len(words), len(other)) for other in stored)
        )
        if new[-1]:
            stored.append(words)
    return new


def test_repeats_equal_those_by_sets_of_words() -> None:
    rng = random.Random(7)
    texts: list[str] = ["", "word1", ""]
    for size in (3, 40, 400, 2000):
        for _ in range(12):
            words = rng.sample(VOCABULARY, size)
            texts.append(" ".join(words))
            stored = rng.uniform(0.8, 0.9)  # around the share from which a text is a repeat
            changed = [w if rng.random() < stored else rng.choice(VOCABULARY) for w in words]
            texts.append(" ".join(changed))
    repeats = Repeats()
    expected = _by_sets(texts)
    assert [repeats.is_new(text) for text in texts] == expected
    assert 5 < expected.count(False) < len(texts) - 5


def test_markup_between_words_does_not_matter() -> None:
    text = "Call `cp.async.wait_group` before the barrier: else shared memory holds old values."
    marked = (
        "call CP ASYNC wait group, before (the) barrier; else **shared** memory holds OLD values"
    )
    other = "Call `cp.async.bulk` after the barrier: then global memory holds all new results."
    assert words_of(text).size == words_of(marked).size
    repeats = Repeats()
    assert [repeats.is_new(t) for t in (text, marked, other)] == [True, False, True]


def test_text_takes_less_memory_than_its_set_of_words() -> None:
    text = " ".join(random.Random(3).sample(VOCABULARY, 300))
    stored, words = words_of(text), _words(text)
    taken = stored.hashes.nbytes + sys.getsizeof(stored.mask)
    as_set = sys.getsizeof(words) + sum(map(sys.getsizeof, words))
    assert stored.size == len(words) and taken * 9 < as_set
