"""Pairs of kernels that repair an error, and errors that become a lesson."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from optimizer.search.synthesizers.llm.conversation import ModelTranscript
from skills.curator.debugging_skills import (
    MOST_CHANGED,
    CompiledDraft,
    Mend,
    drafts_in,
    lessons_of,
    mends_of,
)
from skills.trajectories.records import MeasuredKernel, Trajectory, TrajectoryStep
from tests.skills.curator.planted import free, measured, trajectory

REST = "".join(f"  y[{n}] = x[{n}];\n" for n in range(9))
UNKNOWN = "k.cpp:2:3: error: unknown function 'scale2'; stop"


def kernel(first: str, rest: str = REST) -> str:
    return f"void kernlore_run(float *x, float *y) {{\n  {first}\n{rest}}}\n"


def side(
    number: int, text: str, log: str = "", validity: str = "correct", **other: Any
) -> MeasuredKernel:
    proposal = free(text)
    bundle = replace(proposal.bundle, origin=other.pop("origin", "llm"))
    speedup = None if log else 1.0
    message = log or other.pop("message", "")
    evaluation = measured(f"ev-{number}", speedup, validity=validity, message=message, **other)
    return MeasuredKernel(number, replace(proposal, bundle=bundle), evaluation)


def mended(
    rest: str = REST,
    *,
    log: str = UNKNOWN,
    validity: str = "not_compiled",
    child: bool = True,
    after: MeasuredKernel | None = None,
    run: str = "run_1",
    first: str = "scale2(x);",
    **other: Any,
) -> Trajectory:
    """A failed kernel, and a correct one as its child or as the next child of its parent."""
    root = MeasuredKernel(0, None, measured("ev-0", None))
    failed = side(1, kernel(first, rest), log, validity, **other)
    right = after or side(2, kernel("scale(x);", rest), **other)
    steps = (TrajectoryStep(root, failed), TrajectoryStep(failed if child else root, right))
    made: Trajectory = trajectory(*steps, run=run)
    return made


def other_problem(made: Trajectory) -> Trajectory:
    return replace(made, subject=replace(made.subject, name="other", sha256="cd" * 32))


def mends(*runs: Trajectory) -> list[Mend]:
    return [mend for run in runs for mend in mends_of(run)[0]]


def test_log_of_a_node_takes_precedence_over_its_message() -> None:
    ([mend], _) = mends_of(mended(), logs={1: "error: another function 'x'; stop"})
    assert mend.words == "error: another function <name>; stop"


@pytest.mark.parametrize("child", [True, False])
def test_child_or_next_sibling_is_a_repair(child: bool) -> None:
    [mend] = mends(mended(child=child))
    assert (mend.failed, mend.node, mend.outcome) == (1, 2, "right")
    assert mend.words == "error: unknown function <name>; stop"
    assert [line.strip() for line in mend.lines.removed] == ["scale2(x);"]


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (mended(after=side(2, kernel("scale(x);"), UNKNOWN, "not_compiled")), "not mended"),
        (mended(after=side(2, kernel("scale2( x );"))), "the code is its parent's"),
        (mended(after=side(2, kernel("scale(x);\n" * (MOST_CHANGED + 1)))), "lines changed"),
        (mended(validity="crashed", after=side(2, kernel("scale(x);"), "error: a b c",
                                               "not_compiled")), "not mended"),
        (mended(after=side(2, kernel("scale(x);"), flags=("odd",))), "flagged for review"),
    ],
)  # fmt: skip
def test_refused_repair_has_reason(made: Trajectory, reason: str) -> None:
    found, decisions = mends_of(made)
    assert found == []
    assert any(reason in decision.reason for decision in decisions), decisions


def test_repair_in_rewritten_kernel_is_the_lines_at_message() -> None:
    """Models rewrite whole kernels; the message locates the wrong lines."""
    log = "\n".join(f"kernel.cpp:{n}: error: unknown function 'scale2'" for n in (2, 3))
    calls = "scale2(x, 1);\n  scale2(y, 2);"
    rest = "".join(f"  x[{n}] *= {n};\n" for n in range(MOST_CHANGED + 9))
    anew = side(2, kernel("scale(x, 1);\n  scale(y, 2);", rest))
    [mend] = mends(mended(after=anew, log=log, first=calls))
    assert mend.lines.removed == ("scale2(x,1);", "scale2(y,2);")
    assert mend.lines.added == ("scale(x, 1);", "scale(y, 2);")
    assert mend.changed > MOST_CHANGED


def test_dissimilar_sibling_is_not_a_repair() -> None:
    unlike = side(2, "int kernlore_run() { return 3; }\n")
    assert mends_of(mended(child=False, after=unlike))[1] == []


@pytest.mark.parametrize("child", [True, False])
def test_recipe_kernels_are_not_repairs(child: bool) -> None:
    assert mends_of(mended(child=child, origin="recipe"))[1] == []


def test_lesson_needs_two_problems_or_two_dissimilar_kernels() -> None:
    one = mends(mended())
    assert lessons_of(one)[0] == []
    copies = mends(mended(), mended(REST + "  y[0] += 1;\n", run="run_2"))
    assert lessons_of(copies)[0] == []
    unlike = "".join(f"  float a{n} = x[{n}] * {n};\n" for n in range(9))
    [lesson], _ = lessons_of(mends(mended(), mended(unlike, run="run_2")))
    assert {mend.search.id for mend in lesson.shown} == {"run_1", "run_2"}
    far = other_problem(mended(REST + "  y[0] += 1;\n", run="run_2"))
    assert len(lessons_of(mends(mended(), far))[0]) == 1
    other_chip = replace(far, hardware="h100")
    assert lessons_of(mends(mended(), other_chip))[0] == []


def wrong(after: str, rest: str = REST, run: str = "run_1") -> Trajectory:
    """A kernel with wrong results, and its correct child."""
    message = "y is off by 0.5 at [3] where 1e-3 is allowed"
    root = MeasuredKernel(0, None, measured("ev-0", None))
    before = side(1, kernel("x[0] = 1;", rest), validity="incorrect", message=message)
    steps = TrajectoryStep(root, before), TrajectoryStep(before, side(2, kernel(after, rest)))
    made: Trajectory = trajectory(*steps, run=run)
    return made


def test_wrong_results_are_lesson_only_if_changes_agree() -> None:
    rest = REST + "  y[1] = 0;\n"
    same = other_problem(wrong("barrier();", rest, "run_2"))
    apart = other_problem(wrong("x[0] = 2;", rest, "run_2"))
    assert len(lessons_of(mends(wrong("barrier();"), same))[0]) == 1
    assert "no line in common" in lessons_of(mends(wrong("barrier();"), apart))[1][0]


# -- drafts of a conversation


def test_last_failed_draft_counts_as_the_failed_kernel() -> None:
    root, right = MeasuredKernel(0, None, measured("ev-0", None)), side(1, kernel("scale(x);"))
    made = trajectory(TrajectoryStep(root, right))
    drafts = [
        CompiledDraft({"kernel.cpp": kernel("scale1(x);")}, "error: an earlier message"),
        CompiledDraft({"kernel.cpp": kernel("scale2(x);")}, UNKNOWN),
    ]
    ([mend], _) = mends_of(made, drafts={1: drafts})
    assert (mend.draft, mend.node, mend.validity) == (2, 1, "not_compiled")


def test_drafts_are_read_from_stored_conversation() -> None:
    def call(identity: str, files: Any) -> dict[str, Any]:
        arguments = json.dumps({"files": files})
        return {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": identity, "function": {"name": "compile_draft", "arguments": arguments}}
            ],
        }

    def answer(identity: str, text: str) -> dict[str, Any]:
        return {"role": "tool", "tool_call_id": identity, "content": f"BEGIN\n{text}\nEND"}

    messages = [
        *(call("1", {"k.cpp": "a"}), answer("1", "error: a\n  b")),
        *(call("2", {"k.cpp": "b"}), answer("2", "It compiles.")),
        *(call("3", "no files"), answer("3", "failed: no files")),
    ]
    drafts = drafts_in(ModelTranscript("run_1", 1, 0, "m", "v3", messages))
    assert drafts == [
        CompiledDraft({"k.cpp": "a"}, "error: a\n  b"),
        CompiledDraft({"k.cpp": "b"}, ""),
    ]
