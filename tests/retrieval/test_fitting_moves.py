"""The moves of an answer: decided ones, those of the requested roles, and those that depend only on
values.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from kb.catalog.facts import Fact
from kb.catalog.knowledge.moves import StoredMove
from kb.hardware.spec import SignatureSpec
from kb.ids import MoveId
from retrieval.compose.kernels import with_defaults
from retrieval.compose.moves import MAX_MOVES, fitting_moves, settings_of, shrunk, too_small
from retrieval.diagnose.diagnosis import Diagnoser
from retrieval.diagnose.signals import load_signals
from retrieval.request import RetrieveRequest
from retrieval.search.names import language_of_kernel


def move(
    name: str, role: str, when: str, signals: tuple[str, ...] = ("memory_bound",)
) -> StoredMove:
    return StoredMove(
        MoveId(f"mv_{name}"), name, when, signals,
        {"role": role, "direction": "set", "to": name},
        None, "why", (), (), None, None, None, "accepted", "builtin",
    )  # fmt: skip


CROWD = [move(f"m{n}", "fuse", "signals.memory_bound") for n in range(MAX_MOVES + 2)]


def names(
    moves: list[StoredMove], metrics: dict[str, float], roles: tuple[str, ...] = ()
) -> list[str]:
    fitting = fitting_moves(moves, ["memory_bound"], metrics, {}, {}, (), roles)
    return [item.name for item in fitting]


def test_other_roles_do_not_displace_requested_ones() -> None:
    moves = [*CROWD, move("wide", "vector", "signals.memory_bound")]
    anything = names(moves, {})
    assert anything == [item.name for item in CROWD[:MAX_MOVES]]
    assert names(moves, {}, ("vector",)) == [*anything, "wide"]


def test_best_of_equal_changes_is_listed() -> None:
    sure = move("sure", "stages", "signals.memory_bound")
    twin = replace(sure, name="twin", predicate="signals.memory_bound and metrics.l2_hit_pct < 50")
    other = replace(sure, name="other", change={**sure.change, "direction": "decrease"})
    assert names([twin, sure, other], {}) == ["sure", "other"]


def test_move_with_a_measured_condition_precedes_a_general_one() -> None:
    general = move("general", "prefetch", "signals.memory_bound")
    pages = move("pages", "layout", "signals.memory_bound and metrics.dtlb_miss_pct >= 2")
    assert names([general, pages], {"dtlb_miss_pct": 31.6}) == ["pages", "general"]
    assert names([general, pages], {"dtlb_miss_pct": 0.1}) == ["general"]


def test_move_that_needs_only_the_language_stays_with_its_signal() -> None:
    padded = move("padded", "pad", "signals.bank_conflict and problem.language == 'hip'")
    padded = replace(padded, signals=("bank_conflict",))
    other = replace(move("other", "unroll", "signals.latency_bound"), signals=("latency_bound",))
    signals = ["bank_conflict", "latency_bound"]
    listed = fitting_moves([other, padded], signals, {}, {}, {}, (), (), ("hip", "triton"))
    assert [item.name for item in listed] == ["padded", "other"]


def test_operator_moves_without_operator_are_listed_only_alone() -> None:
    asking = "signals.memory_bound and known(problem.op) and problem.op == '{}'"
    operators = ("attention", "softmax", "matmul", "scan")
    of_operators = [move(op, "fuse", asking.format(op)) for op in operators]
    unsure = move("unsure", "order", "signals.memory_bound and metrics.l2_hit_pct < 50")
    sure = move("sure", "vector", "signals.memory_bound")
    assert names([*of_operators, unsure, sure], {})[:2] == ["sure", "unsure"]
    undecided = [
        move(op, "fuse", f"signals.memory_bound and problem.op == '{op}'") for op in operators
    ]
    assert names([*undecided, unsure, sure], {}) == ["sure", "unsure"]
    assert names(undecided, {}) == ["attention", "softmax"]


@pytest.mark.parametrize(
    ("languages", "listed"),
    [((), True), (("triton",), True), (("triton", "cuda"), True), (("nki",), False)],
)
def test_move_of_a_language_needs_chip_that_has_it(
    languages: tuple[str, ...], listed: bool
) -> None:
    of_triton = move("one", "warps", "signals.memory_bound and problem.language == 'triton'")
    [*fitting] = fitting_moves([of_triton], ["memory_bound"], {}, {}, {}, (), (), languages)
    assert [m.name for m in fitting] == ["one"] * listed
    if listed:
        sure = languages == ("triton",)
        assert fitting[0].applies is (True if sure else None)
        assert fitting[0].missing == (() if sure else ("problem.language",))


def test_move_without_signal_needs_true_predicate() -> None:
    far = move("far", "vector", "metrics.roofline_pct < 60", ())
    assert names([far], {"roofline_pct": 20}) == ["far"]
    assert names([far], {"roofline_pct": 90}) == []
    assert names([far], {}) == []  # it did not compile, so there are no times
    speaking = move("near", "vector", "signals.memory_bound and metrics.roofline_pct < 60")
    assert names([far, speaking], {"roofline_pct": 20}) == ["near", "far"]


def test_all_signals_of_a_request_are_in_verdict_in_order() -> None:
    request = RetrieveRequest(signal="poor_reuse", signals=("memory_bound", "poor_reuse"))
    verdict = Diagnoser(load_signals()).conclude(request, {}, (), ()).verdict
    assert verdict.signal_ids == ("poor_reuse", "memory_bound")
    assert {signal.confidence for signal in verdict.signals} == {"given"}


LAUNCH, SPILL, TENSOR = "launch_error", "register_spill", "tensor_core_underuse"
ILLEGAL = "illegal_memory_access"
NEXT_TO = "bytes after the nearest allocation at 0x7f of size 64 bytes"
OF_ERRORS = [
    move("threads", "threads", f"signals.{LAUNCH}", (LAUNCH,)),
    move("rebuild", "library", f"signals.{LAUNCH}", (LAUNCH,)),
    move("widen", "dtype", f"signals.{ILLEGAL}", (ILLEGAL,)),
    move("mask-tail", "mask", f"signals.{ILLEGAL}", (ILLEGAL,)),
    move("wider", "tile_n", f"signals.{TENSOR}", (TENSOR,)),
    move("in-flight", "accumulate", f"signals.{TENSOR}", (TENSOR,)),
    move("smaller", "tile_n", f"signals.{SPILL}", (SPILL,)),
    move("bisect", "fuse", "signals.compile_error", ("compile_error",)),
    move("mask-all", "mask", "signals.correctness_mismatch", ("correctness_mismatch",)),
    move("flush", "accumulate", "signals.correctness_mismatch", ("correctness_mismatch",)),
    move("round-up", "block", "signals.compile_error", ("compile_error",)),
]
C7510 = "(C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to "


@pytest.mark.parametrize(
    ("log", "listed"),
    [
        ("CUDA error: no kernel image is available for execution on the device", ["rebuild"]),
        ("hipErrorNoBinaryForGpu: Unable to find code object for all devices", ["rebuild"]),
        ("CUDA driver version is insufficient for CUDA runtime version", ["rebuild"]),
        ("ZQ-9: no code object for this chip; hipErrorNoBinaryForGpu", ["rebuild"]),
        ("Pointer argument (at 0) cannot be accessed from Triton (cpu tensor?)", []),
        ("Expected all tensors to be on the same device, but found cuda:0 and cpu!", []),
        ("RuntimeError: CUDA error: invalid configuration argument", ["threads", "rebuild"]),
        (f"{C7510}insufficient register resources for the wgmma pipeline", ["smaller"]),
        (f"{C7510}non wgmma instructions defining accumulator registers", ["in-flight"]),
        ('k.cu(4): error: identifier "nope" is undefined', []),
        ('k.cu(4): error: expected a ";"', []),
        ("ValueError: arange's range must be a power of 2", ["round-up"]),
        (f"and is 4 {NEXT_TO}", ["mask-tail"]),
        (f"and is 4,096 {NEXT_TO}", ["widen", "mask-tail"]),
        ("nvcc error : 'cicc' died due to signal 11", ["bisect", "round-up"]),
        ("The rows are NaN if N is not a multiple of the block", ["mask-all"]),
        ("With lengths not divisible by 64 it gives wrong values at the end", ["mask-all"]),
        ("RuntimeError: PTXAS error: codegen stopped", []),
        ("clEnqueueNDRangeKernel failed: CL_INVALID_WORK_GROUP_SIZE (-54)", ["threads"]),
    ],
)
def test_moves_follow_recognised_error(log: str, listed: list[str]) -> None:
    own = SignatureSpec(r"ZQ-9: no code object", LAUNCH, "Built for another chip", "Rebuild.")
    request = RetrieveRequest(log=log)
    conclusion = Diagnoser(load_signals()).conclude(request, {}, (), (own,))
    moves = fitting_moves(OF_ERRORS, conclusion.remedied, {}, {}, {}, (), mending=conclusion.roles)
    assert [item.name for item in moves] == listed


@pytest.mark.parametrize("reason", ["insufficient register resources for the wgmma pipeline", ""])
def test_reason_in_message_precedes_advice_of_chip(reason: str) -> None:
    own = SignatureSpec("wgmma.mma_async instructions are serialized", TENSOR, "Serial", "Move it.")
    request = RetrieveRequest(log=f"ptxas info : {C7510}{reason}")
    first = Diagnoser(load_signals()).conclude(request, {}, (), (own,)).verdict.signatures[0]
    assert ("Shrink the accumulator" in first["remedy"]) == bool(reason)


@pytest.mark.parametrize(
    ("kernel", "languages", "language"),
    [
        ("transpose_naive(const float *, float *, int)", ("cuda", "cute"), "cuda"),
        ("void k<float, 32>(float*, int)", ("hip",), "hip"),
        ("void at::native::copy<float>(float *)", ("cuda",), None),
        ("matmul_kernel", ("cuda",), None),
        ("k(float *)", (), None),
    ],
)
def test_language_of_kernel_with_types(
    kernel: str, languages: tuple[str, ...], language: str | None
) -> None:
    assert language_of_kernel(kernel, languages) == language


def test_named_signal_has_all_its_moves() -> None:
    request = RetrieveRequest(signal=LAUNCH, log="Pointer argument (at 0) cannot be accessed from")
    conclusion = Diagnoser(load_signals()).conclude(request, {}, (), ())
    assert conclusion.remedied == conclusion.mendable == (LAUNCH,) and conclusion.roles == {}


@pytest.mark.parametrize(
    ("change", "factor"),
    [
        ({"role": "stages", "direction": "decrease"}, 1.15),
        ({"role": "tile_m", "direction": "decrease"}, 2),
        ({"role": "tile_m", "direction": "decrease", "to": 64}, None),
        ({"role": "tile_m", "direction": "increase"}, None),
        ({"role": "fuse", "direction": "decrease"}, None),
    ],
)
def test_shrinking_move_has_least_factor(change: dict[str, object], factor: float | None) -> None:
    (answered,) = fitting_moves(
        [replace(CROWD[0], change=change)], ["memory_bound"], {}, {}, {}, ()
    )
    assert shrunk(answered, 1.145).change.get("factor") == factor
    assert shrunk(answered, 2.6).change.get("factor") in (None, 4, 2.6)


# -- recipes in contexts are sources that a compiler accepts

RECIPES = sorted(Path("skills/library").resolve().glob("*/references/recipe.json"))


def source_of(path: Path) -> tuple[str, str]:
    """The language and the source of a recipe as a context prints it."""
    body = json.loads(path.read_text(encoding="utf-8"))
    template = (path.parents[1] / body["template"]).read_text(encoding="utf-8")
    return body["language"], with_defaults(body, template)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ here")
def test_cpp_recipes_compile_as_printed() -> None:
    command = ["g++", "-std=c++17", "-fopenmp", "-march=native", "-fsyntax-only", "-x", "c++", "-"]
    failed = {}
    for path in RECIPES:
        language, source = source_of(path)
        if language == "cpp" and "amx" not in path.as_posix():
            compiled = subprocess.run(command, input=source, capture_output=True, text=True)
            if compiled.returncode:
                failed[path.parents[1].name] = compiled.stderr
    assert not failed


def test_python_recipes_define_every_name(tmp_path: Path) -> None:
    for path in RECIPES:
        language, source = source_of(path)
        if language != "cpp":
            (tmp_path / f"{path.parents[1].name}.py").write_text(source, encoding="utf-8")
    rules = ["check", "--isolated", "--no-cache", "--select", "F821,F823,E9", str(tmp_path)]
    checked = subprocess.run([sys.executable, "-m", "ruff", *rules], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


# -- moves for low occupancy raise the least limit, and need what is free

LIMITS = ("registers", "shared_mem", "warps", "blocks")
OF_LIMITS = [
    replace(
        move(name, role, "signals.occupancy_limited"),
        signals=("occupancy_limited",),
        change={"role": role, "direction": direction},
        limit_fact=fact,
    )
    for name, role, direction, fact in (
        ("smaller", "block", "decrease", "registers_per_unit"),
        ("fewer stages", "stages", "decrease", "shared_memory_per_unit"),
        ("more warps", "warps", "increase", "max_threads_per_block"),
        ("fewer warps", "warps", "decrease", "max_threads_per_block"),
    )
]


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        ((42, 228, 64, 32), ["more warps"]),
        ((2, 8, 8, 32), ["smaller", "more warps"]),
        ((8, 1, 8, 32), ["fewer stages"]),
        ((3, 3, 2, 32), ["fewer warps"]),
        ((2, 2, 8, 32), ["smaller", "fewer stages", "more warps"]),
        ({"insufficient_lds_pct": 61, "insufficient_registers_pct": 2}, ["fewer stages"]),
        ({"insufficient_registers_pct": 40}, ["smaller", "more warps"]),
        ({"occupancy_limit_blocks": 16}, [m.name for m in OF_LIMITS]),
    ],
)
def test_move_raises_the_least_limit(metrics: object, expected: list[str]) -> None:
    if isinstance(metrics, tuple):
        metrics = {f"occupancy_limit_{n}": v for n, v in zip(LIMITS, metrics, strict=True)}
    assert isinstance(metrics, dict)
    listed = fitting_moves(OF_LIMITS, ["occupancy_limited"], metrics, {}, {}, ())
    assert [item.name for item in listed] == expected


@pytest.mark.parametrize(
    ("role", "metric", "key", "limit"),
    [
        ("pad", "shared_memory_per_block_bytes", "shared_memory_per_block", 65536),
        ("stages", "shared_memory_per_block_bytes", "shared_memory_per_unit", 167936),
        ("tile_n", "registers_per_thread", "max_registers_per_thread", 255),
    ],
)
def test_move_that_needs_a_used_up_resource_follows(
    role: str, metric: str, key: str, limit: int
) -> None:
    grows = replace(
        move("grows", role, "signals.memory_bound"), change={"role": role, "direction": "increase"}
    )
    moves = [grows, move("permutes", "swizzle", "signals.memory_bound")]
    facts = {key: fact_of(key, limit)}
    for used, first in ((limit, "permutes"), (limit / 2, "grows")):
        listed = fitting_moves(moves, ["memory_bound"], {metric: used}, facts, {}, ())
        assert listed[0].name == first and len(listed) == 2
    full = fitting_moves(moves, ["memory_bound"], {metric: limit}, facts, {}, ())[1]
    assert full.limit is not None and full.limit["value"] == limit
    assert f"uses {limit:g} of {limit:g}" in full.why


def fact_of(key: str, number: float) -> Fact:
    values: dict[str, Any] = dict.fromkeys(field.name for field in fields(Fact))
    values |= {"id": key, "hardware_id": "chip", "key": key, "number": number, "unit": "count"}
    return Fact(**{**values, "text": str(number), "title": "Manual", "locator": "1"})


def test_move_to_a_value_that_the_log_prints_is_left_out() -> None:
    stages = move(
        "three", "stages", "signals.memory_bound and (not known(num_stages) or num_stages > 2)"
    )
    three = replace(stages, change={"role": "stages", "direction": "set", "to": 3})
    fewer = replace(three, name="fewer", change={"role": "stages", "direction": "decrease"})

    def listed(log: str) -> list[str]:
        found = fitting_moves(
            [three, fewer], ["memory_bound"], {}, {}, {}, (), settings=settings_of(log)
        )
        return [item.name for item in found]

    launch = "kernel[grid](a, BLOCK_M=128, num_warps=8, num_stages={})"
    assert listed("") == ["three", "fewer"]
    assert listed(launch.format(4)) == ["three", "fewer"]
    assert listed(launch.format(3)) == ["fewer"]
    assert listed(launch.format(1)) == []
    assert settings_of("num_stages: 3\nnum_stages: 4, num_warps: 4") == {"num_warps": 4}


@pytest.mark.parametrize(
    ("to", "factor", "settings", "left_out"),
    [
        (3, 4.0, {}, True),
        (2, 1.2, {}, False),
        (2, 4.0, {"num_stages": 8}, False),
        (3, 1.2, {"num_stages": 3}, True),
        (1, 3.0, {"num_stages": 3}, False),
    ],
)
def test_stages_that_free_too_little_are_left_out(
    to: int, factor: float, settings: dict[str, int], left_out: bool
) -> None:
    (stages,) = fitting_moves(
        [move("stages", "stages", "signals.memory_bound")], ["memory_bound"], {}, {}, {}, ()
    )
    fewer = replace(stages, change={"role": "stages", "direction": "set", "to": to})
    assert too_small(fewer, factor, settings) is left_out
    assert not too_small(
        replace(fewer, change={**fewer.change, "role": "tile_k"}), factor, settings
    )
