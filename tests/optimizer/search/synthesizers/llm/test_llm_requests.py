"""Facts that a model that wrote C++ kernels from requests of version 5 missed or misunderstood: one
test for each.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from optimizer.evaluation.abi import Signature, TensorSpec
from optimizer.evaluation.collectors.ceilings import BandwidthPoint, Ceilings, MeasuredRate
from optimizer.evaluation.correctness.prepared import MAX_UNDECIDED
from optimizer.evaluation.problem.check import too_little
from optimizer.evaluation.records import CaseTiming, EvaluationVerdict
from optimizer.search.records import Node
from optimizer.search.runs.hardware_view import clock_megahertz, rates_of
from optimizer.search.synthesizers.base import CaseView, ProposalContext
from optimizer.search.synthesizers.llm.prompt import compose
from optimizer.search.synthesizers.llm.templates import Fence
from tests.optimizer.search.synthesizers.llm.llm_contexts import context
from tests.optimizer.search.synthesizers.llm.llm_servers import block, blocks
from tests.optimizer.search.synthesizers.llm.test_llm_machine import (
    busy,
    cpu,
    first,
    outside,
    prompt,
)
from tests.optimizer.search.synthesizers.llm.test_llm_prompt import child

POINTS = (BandwidthPoint(8 << 20, 1.37e11, 0.0, 9), BandwidthPoint(256 << 20, 2.79e10, 0.0, 9))


def ceilings(**changes: Any) -> Ceilings:
    whole = Ceilings("d", "cpu", 2, 32 << 20, POINTS, POINTS, POINTS)
    return replace(whole, matmul={"float32": MeasuredRate(1.07e11, 0.0, 9)}, **changes)


def with_outputs(*dtypes: str, outputs: str = "float") -> ProposalContext:
    base = context()
    tensors = [base.problem.main.signature.tensors[0]]
    tensors += [TensorSpec(f"output{n}", "output", t, (64,)) for n, t in enumerate(dtypes)]
    case = CaseView("main", Signature(tuple(tensors)), {}, True, "float32")
    problem = replace(base.problem, cases=(case,), policy={"outputs": outputs})
    return replace(base, problem=problem)


# -- comparison of outputs


def test_comparison_of_counts_is_explained() -> None:
    text = outside(prompt(with_outputs("float32", "int64")).user)
    assert "- output0 (float32): compared with a float64 result of the reference" in text
    assert "- output1 (int64): each element must equal the reference's" in text
    assert "(not in float64)" in text and "need not follow the reference's order" in text
    assert f"At most {MAX_UNDECIDED:.0%}".replace("%", " %") in text


def test_sentences_do_not_contradict_each_other() -> None:
    text = outside(prompt(with_outputs("float32", "int64")).user)
    assert "Every output is compared as float" not in text
    plain = outside(prompt(with_outputs("float32", "float32")).user)
    assert "- output0 (float32), output1 (float32): compared with a float64" in plain
    assert "must equal the reference's" not in plain and "bit by bit" not in plain


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ("exact", "- output0 (float32): compared with the reference bit by bit"),
        ("exact, index", "- output1 (int64): indices, compared by the values of the input"),
    ],
)
def test_declared_properties_of_outputs_are_stated(outputs: str, message: str) -> None:
    dtypes = ("float32", "int64")[: outputs.count(",") + 1]
    assert message in outside(prompt(with_outputs(*dtypes, outputs=outputs)).user)


def test_uncounted_operations_are_not_called_zero() -> None:
    assert "0 floating-point" not in too_little(1_000, 0)
    assert "2,000 floating-point operations" in too_little(1_000, 2_000)


# -- ceilings of the machine


def test_measured_ceilings_are_stated() -> None:
    here = replace(cpu(), rates=rates_of(ceilings()))
    text = block(prompt(first(hardware=here)).user, "hardware")
    assert "copying 256 MiB at 27.9 GB/s; copying" in text and "float32 107 GFLOP/s" in text
    assert "at 137 GB/s" in text


def test_unmeasured_ceilings_are_not_stated() -> None:
    text = block(prompt(first(hardware=cpu())).user, "hardware")
    assert rates_of(None) is None and rates_of(ceilings(waited=0.3)) is None
    assert "GB/s" not in text and "GHz" not in text


def test_clock_is_that_of_operating_system() -> None:
    machine = cpu().machine
    assert machine is not None
    here = replace(cpu(), machine=replace(machine, megahertz=2445.4))
    assert "gives it: 2.45 GHz" in block(prompt(first(hardware=here)).user, "hardware")
    assert clock_megahertz() is None or 100 < clock_megahertz() < 10_000  # type: ignore[operator]


def test_measured_share_of_roof_is_stated() -> None:
    timing = (CaseTiming("main", "measured", 100.0, 50.0),)
    known = {"copy_bandwidth_pct": 41.23, "matmul_peak_pct": 0.0}
    node = child(3, verdict=EvaluationVerdict(metrics=known), timings=timing)
    text = block(prompt(context(parent=node)).user, "verdict")
    assert "moving inputs, weights and outputs once 41 %; other arithmetic is not counted" in text
    counted = {**known, "matmul_peak_pct": 60.0}
    node = child(3, verdict=EvaluationVerdict(metrics=counted), timings=timing)
    text = block(prompt(context(parent=node)).user, "verdict")
    assert "its counted products 60 %" in text and "not counted" not in text
    assert "reading alone is faster" not in text
    near = {**known, "copy_bandwidth_pct": 103.8}
    node = child(3, verdict=EvaluationVerdict(metrics=near), timings=timing)
    text = block(prompt(context(parent=node)).user, "verdict")
    assert "outputs once 100 % (the rate of a copy," in text and "reading alone is faster" in text
    node = child(3, verdict=EvaluationVerdict(), timings=timing)
    assert "of its time" not in block(prompt(context(parent=node)).user, "verdict")


# -- earlier kernels


def sources(given: ProposalContext) -> list[str]:
    return [text for kind, text in blocks(prompt(given).user)[0] if kind == "source"]


def rough(number: int, gain: float, of: int = 0) -> Node:
    times: dict[str, Any] = {"rough_us": 100.0, "rough_baseline_us": 100.0 * gain}
    why = "timing must be repeated: the processors were busy"
    return busy(number, of=of, timings=(CaseTiming("main", "repeat", reason=why, **times),))


def test_untimed_kernel_that_seems_faster_is_shown_whole() -> None:
    timed, other = child(2), rough(4, 3.0, of=2)
    given = context(parent=timed, best=timed, seen=(other,), tried=(timed, other))
    text = prompt(given).user
    assert len(sources(given)) == 2 and "Node 4, right, with no figure yet, whole." in text
    assert "The best so far" not in text
    slower = rough(4, 1.1, of=2)
    assert len(sources(replace(given, seen=(slower,), tried=(timed, slower)))) == 1


def test_seemingly_fastest_of_untimed_kernels_is_shown() -> None:
    nodes = (rough(1, 2.0), rough(2, 9.0), rough(3, 4.0))
    text = prompt(first(*nodes)).user
    assert "Node 2, right, with no figure yet, whole." in text
    assert "Node 3, right" not in text
    deeper = context(parent=nodes[0], tried=nodes, seen=())
    assert "Node 2, right, with no figure yet, whole." in prompt(deeper).user
    assert "Node 2, right" not in prompt(replace(deeper, with_memory=False)).user


def test_each_time_states_whether_machine_was_quiet() -> None:
    timing = (CaseTiming("main", "measured", 17251.0, 899.7),)
    text = block(prompt(context(parent=child(3, timings=timing))).user, "verdict")
    assert "899.7 us a call (reference 17251 us in turns with it), processors quiet" in text
    disturbed = prompt(first(rough(1, 4.0))).user
    assert "not to be compared with times of other candidates" in disturbed
    assert "processors quiet" not in disturbed


# -- missing in requests of version 6


def test_each_verdict_names_its_kernel() -> None:
    text = prompt(first(busy(1))).user
    measured = text.partition("# What was measured\n")[2].partition("# Earlier")[0]
    reference, _, node = measured.partition("Node 1:")
    assert reference.strip().startswith("The reference:") and "about 810 us" not in reference
    assert "about 810 us a call" in node
    alone = prompt(context(parent=busy(3))).user.partition("# What was measured about it")[2]
    assert "The reference:" not in alone.partition("#")[0]


def test_kernels_dropped_by_budget_are_among_lessons() -> None:
    nodes = (busy(1), busy(2, rough=False))
    whole = first(*nodes)
    text = compose(whole, Fence(), budget=1, tools=False).user
    message = block(text, "lessons")
    assert "node 1: correct, no figure yet, roughly: case main about 810 us a call" in message
    assert "node 2: correct, no figure yet, roughly: no time is known" in message


def test_lesson_has_time_registers_and_spills() -> None:
    timing = (CaseTiming("main", "measured", 100.0, 38.456),)
    counted = {"n_regs": 96, "n_spills": 4}
    nodes = [
        child(n, verdict=EvaluationVerdict(metrics=counted if n == 1 else {}), timings=timing)
        for n in (1, 2)
    ]
    text = compose(first(*nodes), Fence(), budget=1, tools=False).user
    message = block(text, "lessons")
    assert "(38.46 us), 96 registers a thread, with spills: " in message
    assert "(38.46 us): " in message and "(from node" not in message
    nodes[1] = replace(nodes[1], parent=1)
    message = block(compose(first(*nodes), Fence(), budget=1, tools=False).user, "lessons")
    assert "node 2 (from node 1): " in message
