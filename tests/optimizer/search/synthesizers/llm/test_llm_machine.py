"""Facts that a prompt must have on the machine and on earlier kernels: one test for each that a
reader of real requests missed or misunderstood.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kb.hardware.schema import extensions_of, lacking
from optimizer.evaluation.collectors.probe import DeviceIdentity
from optimizer.evaluation.records import CaseTiming, EvaluationVerdict
from optimizer.search.knowledge import ShownKnowledge, ShownMove
from optimizer.search.records import REFERENCE, Node, Proposal, node_from_json
from optimizer.search.runs.hardware_view import machine_here, machine_of
from optimizer.search.synthesizers.base import HardwareView, ProposalContext
from optimizer.search.synthesizers.llm.prompt import ModelPrompt, compose
from optimizer.search.synthesizers.llm.templates import Fence
from tests.optimizer.search.synthesizers.llm.llm_contexts import context, knowledge
from tests.optimizer.search.synthesizers.llm.llm_servers import block, blocks
from tests.optimizer.search.synthesizers.llm.test_llm_prompt import broken, child, reference

FLAGS = ("avx", "avx2", "fma", "f16c")
CACHES = {"L1d": 32 << 10, "L2": 512 << 10, "L3": 32 << 20}
FACTS: dict[str, float | str] = {
    "vector_bits": 256.0,
    "l1_size": 32768.0,
    "x_amx_tiles": 8,
    "x_avx512_registers": 32,
    "x_avx_registers": 16,
}


def cpu(flags: tuple[str, ...] = FLAGS, lineage: tuple[str, ...] = ("x86-64",)) -> HardwareView:
    identity = DeviceIdentity(
        "d", "cpu", "AMD EPYC", "u", None, None, cores=8, flags=flags, caches=CACHES
    )
    machine = machine_of(identity, lineage, "AuthenticAMD 25 1", processors=4, threads=3)
    return HardwareView(lineage[0], lineage, "cpu", ("cpp",), FACTS, machine=machine)


def busy(number: int, rough: bool = True, of: int = REFERENCE, **changes: Any) -> Node:
    """A correct kernel that could not be timed."""
    times: dict[str, Any] = {"rough_us": 812.4, "rough_baseline_us": 4123.0} if rough else {}
    why = "timing must be repeated: the processors were busy in 10 of 10 pairs of blocks"
    timing = CaseTiming("main", "repeat", reason=why, **times)
    unmeasured: dict[str, Any] = {"timing": "repeat", "speedup": None, "timings": (timing,)}
    return child(number, of=of, **{"verdict": EvaluationVerdict(), **unmeasured, **changes})


def first(*tried: Node, **changes: Any) -> ProposalContext:
    """A context whose parent is the reference, after these kernels."""
    bare = reference()
    assert bare.evaluation is not None
    bare = replace(bare, evaluation=replace(bare.evaluation, verdict=EvaluationVerdict()))
    return context(parent=bare, seen=tried, tried=tried, **changes)


def prompt(given: ProposalContext) -> ModelPrompt:
    return compose(given, Fence(), budget=6_000, tools=False)


def sources(of: ModelPrompt) -> int:
    return sum(kind == "source" for kind, _ in blocks(of.user)[0])


def outside(text: str) -> str:
    return blocks(text)[1]


# -- the machine


def test_number_of_threads_and_processors_is_stated() -> None:
    text = prompt(context(hardware=cpu())).user
    message = "processors that may be used: 4; a kernel runs with 3 threads"
    assert message in block(text, "hardware")
    assert "`omp_get_max_threads()` is 3 on this machine" in outside(text)


def test_processor_is_described_before_any_compilation() -> None:
    text = block(prompt(first(hardware=cpu())).user, "hardware")
    assert "processor of this machine: AMD EPYC (AuthenticAMD 25 1)" in text
    assert "caches, as one core sees them: L1d 32 KiB, L2 512 KiB, L3 32 MiB" in text
    assert "it has: AVX2, FMA, F16C" in text


def test_machine_is_described_by_its_probe() -> None:
    machine = machine_here(("x86-64",))
    assert machine.name and machine.processors >= machine.threads >= 1
    assert not set(machine.extensions) & set(machine.lacks)


def test_absent_target_has_no_facts_of_this_machine() -> None:
    away = HardwareView("x86-64", ("x86-64",), None, ("cpp",), FACTS)
    text = prompt(context(hardware=away)).user
    assert "processor of this machine" not in text and "- amx tiles: 8" in text
    assert "`omp_get_max_threads()` is the number that the reference has too" in outside(text)


def test_facts_of_missing_units_are_omitted() -> None:
    text = block(prompt(context(hardware=cpu())).user, "facts")
    assert "amx" not in text and "avx512" not in text
    assert "- avx registers: 16" in text and "- l1 size: 32,768 B" in text
    whole = cpu((*FLAGS, "avx512f", "amx_tile"))
    assert "- amx tiles: 8" in block(prompt(context(hardware=whole)).user, "facts")


def test_missing_units_are_stated_where_family_is_quoted() -> None:
    reported = replace(knowledge(), situation="AMX tiles are fast.", target="AVX-512 has masks.")
    text = prompt(context(hardware=cpu(), knowledge=reported)).user
    assert "it lacks, whatever else is said of its family: AVX-512, AVX-VNNI, AMX" in block(
        text, "hardware"
    )
    reminder = "This machine's processor lacks AVX-512, AVX-VNNI, AMX: what needs them"
    assert outside(text).count(reminder) == 2
    whole = prompt(context(hardware=cpu(()), knowledge=reported)).user
    assert "lacks, whatever" not in whole and "processor lacks" not in whole


def test_missing_macros_and_vector_widths_are_not_offered() -> None:
    text = outside(prompt(context(hardware=cpu())).user)
    assert "(`__AVX2__`, `__FMA__`, `__F16C__`)" in text
    assert "prefer_vector_width (128 | 256)," in text
    arm = replace(cpu(("sve", "asimd"), ("neoverse-v2", "arm")), facts={})
    text = outside(prompt(context(hardware=arm)).user)
    assert "(`__ARM_FEATURE_SVE`)" in text and "prefer_vector_width (128 | 256 | 512)" in text


def test_moves_to_missing_units_are_omitted() -> None:
    to_amx = ShownMove(
        "mv_amx", "bring it to AMX", {"role": "layout"}, None, None, "AMX is idle", True
    )
    tile = knowledge().moves[0]
    reported = ShownKnowledge("r", moves=(to_amx, tile))
    shown = prompt(context(hardware=cpu(), knowledge=reported))
    assert shown.shown == {tile.id}
    assert "mv_amx" in prompt(context(knowledge=reported)).shown


def test_move_is_limited_by_reported_value() -> None:
    wider = ShownMove(
        "mv_wide",
        "fill the register",
        {"role": "vector", "factor": 2},
        512,
        "vector_bits",
        "",
        True,
    )
    reported = ShownKnowledge("r", moves=(wider,), facts={"vector_bits": 256, "cache_line": 64})
    shown = prompt(context(hardware=cpu(), knowledge=reported)).user
    assert "limit: 256 (vector_bits)" in block(shown, "move")


# -- earlier kernels


def test_disturbed_times_are_shown_as_rough() -> None:
    text = prompt(first(busy(1))).user
    message = block(text, "earlier")
    assert "result: correct, no figure yet: the processors were busy in 10 of 10 pairs" in message
    assert (
        "the fastest of calls that other work disturbed, an order of magnitude at best" in message
    )
    assert "case main about 810 us a call, the reference about 4100 us" in message
    as_parent = block(prompt(context(parent=busy(3))).user, "verdict")
    assert "not measured: " in as_parent and "about 810 us a call" in as_parent


def test_unknown_time_is_stated() -> None:
    text = block(prompt(first(busy(1, rough=False))).user, "earlier")
    assert "the processors were busy" in text and "No time of its calls is known" in text


def test_rough_time_is_stored_but_not_a_figure() -> None:
    node = busy(1)
    again = node_from_json(node.as_json())
    assert again.evaluation is not None and again.evaluation.timings[0].rough_us == 812.4
    assert again.merit == 0.0 and again.speedup is None


def test_kernel_without_figure_is_not_called_best() -> None:
    text = prompt(first(busy(1))).user
    assert "best so far" not in text
    assert "Node 1, right, with no figure yet, whole. Go on from it where it helps." in outside(
        text
    )
    measured = child(2)
    assert "The best so far, whole." in outside(prompt(first(measured, best=measured)).user)


def test_reference_is_not_called_only_kernel_after_others() -> None:
    def start(given: ProposalContext) -> str:
        return outside(prompt(given).user).partition("# The kernel to start from\n")[2]

    assert start(first()) == ""
    assert start(first(busy(1))).startswith("Node 1, a right kernel in place of the reference")
    failed = start(first(broken(1)))
    assert (
        failed.startswith("The reference above: what was written")
        and "none of it is right" in (failed.partition("\n\n")[0])
    )
    forgetful = first(busy(1), with_memory=False)
    assert start(replace(forgetful, seen=())) == ""


def test_earlier_kernel_names_its_parent() -> None:
    def made(node: Node, *nearby: int) -> Node:
        assert node.proposal is not None
        return replace(node, proposal=replace(node.proposal, alternatives=nearby))

    text = block(prompt(first(made(busy(2), 1))).user, "earlier")
    assert text.startswith("node 2, written anew, with node 1 to go on from")
    assert "node 0" not in text
    alone = block(prompt(first(busy(1))).user, "earlier")
    assert alone.startswith("node 1, written anew\n")
    changed = context(seen=(made(child(5, of=3), 4),), tried=())
    assert block(prompt(changed).user, "earlier").startswith(
        "node 5, changed from node 3, with node 4 beside it"
    )


def test_stored_alternatives_equal_those_in_prompt() -> None:
    assert prompt(first(busy(1))).alternatives == (1,)
    assert prompt(first(broken(1))).alternatives == () == prompt(first()).alternatives
    # Later failed kernels are dropped first, the one to continue from never.
    both = first(busy(1), broken(2))
    assert sources(prompt(both)) == 2
    cut = compose(both, Fence(), budget=1, tools=False)
    assert cut.alternatives == (1,) and "source stands under Earlier kernels" in cut.user
    assert sources(cut) == 1


def test_proposal_of_an_older_run_has_no_alternatives() -> None:
    row = busy(1).as_json()
    del row["proposal"]["alternatives"]
    read = node_from_json(row).proposal
    assert isinstance(read, Proposal) and read.alternatives == ()
    row["proposal"]["beside"] = [4]  # the name of the field up to 0.1
    read = node_from_json(row).proposal
    assert isinstance(read, Proposal) and read.alternatives == (4,)


def test_prompt_without_signal_does_not_refer_to_one() -> None:
    composed = prompt(context(parent=busy(3)))
    assert "led by the leading signal where one is listed, else by" in composed.system
    assert "led by the first signal" not in composed.system
    assert "no signal: nothing that was measured names" in block(composed.user, "verdict")
    assert "no signal" not in block(prompt(context()).user, "verdict")


def test_query_has_extensions_of_machine() -> None:
    assert cpu().lacks == lacking(("x86-64",), FLAGS)
    assert cpu().machine is not None
    assert cpu().machine.extensions == extensions_of(("x86-64",), FLAGS)  # type: ignore[union-attr]
