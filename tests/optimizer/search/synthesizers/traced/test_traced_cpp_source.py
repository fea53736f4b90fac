"""The text of a generated C++ kernel: only the functions that it calls, and vectors that the
processor has.
"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from optimizer.search.records import REFERENCE, Node
from optimizer.search.synthesizers.base import CaseView, HardwareView, ProposalContext
from optimizer.search.synthesizers.traced.cpp import header_for
from optimizer.search.synthesizers.traced.synthesizer import TracedSynthesizer
from tests.optimizer.search.synthesizers.compiler.proposals import evaluated
from tests.optimizer.search.synthesizers.llm.llm_contexts import context
from tests.problem_files import model_text


def given(forward: str, bits: float | None = 256.0) -> ProposalContext:
    base = context(parent=Node(REFERENCE, None, "evaluated", None, None))
    case = base.problem.main
    source = model_text(forward, "torch.randn(64, 32)")
    view = CaseView("main", case.signature, {}, True, "float32", source=source)
    facts: dict[str, float | str] = {} if bits is None else {"vector_bits": bits}
    hardware = HardwareView("x86-64", ("x86-64",), "cpu", ("cpp",), facts)
    return replace(base, problem=replace(base.problem, cases=(view,)), hardware=hardware)


@pytest.mark.parametrize(
    ("forward", "called", "absent"),
    [
        ("x * 2", {"kl_read", "kl_write"}, {"kl_exp", "kl_erf", "kl_digamma", "kl_bfloat16"}),
        ("torch.sigmoid(x)", {"kl_sigmoid", "kl_exp", "kl_bits"}, {"kl_tanh", "kl_log"}),
        ("x.erfinv()", {"kl_erfinv"}, {"kl_erf", "kl_exp", "kl_lgamma"}),
    ],
)
def test_kernel_has_only_functions_that_it_calls(
    forward: str, called: set[str], absent: set[str]
) -> None:
    proposal = TracedSynthesizer().propose(given(forward))
    assert proposal is not None
    defined = set(re.findall(r"\bkl_\w+(?=\()", proposal.bundle.source))
    assert called <= defined and not absent & defined
    assert "kl_bfloat16" not in proposal.bundle.source


def test_type_includes_its_overloads_and_their_calls() -> None:
    text = header_for("kl_write(&out[0], kl_read((kl_bfloat16 *)p));")
    assert "struct kl_bfloat16" in text and "kl_bits" in text and "kl_exp" not in text
    assert header_for("").count("\n") < 8


@pytest.mark.parametrize(("bits", "width"), [(256.0, "256"), (512.0, "512"), (None, "512")])
def test_vectors_are_at_most_as_wide_as_the_processors(bits: float | None, width: str) -> None:
    synthesizer = TracedSynthesizer()
    at = given("x * 2", bits)
    first = synthesizer.propose(at)
    assert first is not None and first.values["prefer_vector_width"] == width
    node = Node(1, REFERENCE, "evaluated", first, None)
    widths = set()
    tried = [node]
    while (more := synthesizer.propose(replace(at, parent=node, tried=tried))) is not None:
        widths.add(more.values["prefer_vector_width"])
        tried.append(Node(len(tried) + 1, 1, "evaluated", more, None))
    assert widths == ({"256"} if bits == 256 else {"256", "512"})


@pytest.mark.parametrize(("speed", "goes_on"), [(0.25, False), (0.9, True)])
def test_hopeless_kernels_are_abandoned_after_one(speed: float, goes_on: bool) -> None:
    messages: list[str] = []
    synthesizer = TracedSynthesizer(messages.append)
    at = given("x * 2")
    first = synthesizer.propose(at)
    assert first is not None
    node = evaluated(1, first, speed)
    more = [synthesizer.propose(replace(at, parent=node, tried=[node])) for _ in range(2)]
    assert all(proposal is not None for proposal in more) == goes_on
    assert [f"{speed}x of the reference" in line for line in messages] == (
        [] if goes_on else [True]
    )
