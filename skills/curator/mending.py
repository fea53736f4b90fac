"""Errors that were mended: a kernel that failed, the one that followed it, and the lines between.

A pair is a failed kernel and its child, or the failed kernel and the next one from the same parent,
which is how a model repairs its own; drafts that a model had compiled in its conversation count as
failed kernels too. The same error mended on two different kernels is a lesson. Works on
trajectories and stores nothing.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Literal

from kb.catalog.skills import FAILURES
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.records import Evaluation
from optimizer.search.records import Proposal
from retrieval.diagnose.error_words import code_in, first_error, fixed_words, says, shared_words
from skills.curator.contrast import LineDifference, difference
from skills.curator.gate import mistrust
from skills.curator.mended_lines import lines_at
from skills.curator.records import Decision
from skills.curator.texts import canonical, is_python, kernel_key, shown_lines
from skills.trajectories.records import MeasuredKernel, Trajectory, TrajectoryStep

STAGE = "mend"  # of decisions
WRITERS = frozenset({"llm", "external"})  # origins of kernels that a model or a person wrote
# Of more lines than these on either side, only those that the message points at can be the cure.
MOST_CHANGED = 16
NEAR = 0.5  # share of equal lines from which a sibling counts as a repair of the one before
NEAR_COPY = 0.8  # from which two kernels of one problem are the same kernel for a lesson
REACHED = {"not_compiled": 0, "crashed": 1, "timed_out": 1, "incorrect": 2, "correct": 3}
Outcome = Literal["right", "further", "other error"]
# Drafts that a model had compiled before its answer, by number of the node, in their order.
Drafts = Mapping[int, Sequence["CompiledDraft"]]


@dataclass(frozen=True)
class CompiledDraft:
    """A draft and what the compiler said of it; an empty log where it compiled."""

    files: Mapping[str, str]
    log: str


@dataclass(frozen=True)
class Mend:
    """A failed kernel and what followed it in one run.

    `failed` and `node` are numbers of nodes; `draft` counts the draft that failed from 1 where it
    was one of the conversation that led to `node`. `error` is the message as it was printed,
    `words` are its fixed words, `code` is the chip's own error code in it. `outcome` is what came
    of the change. `before` and `after` are whole kernels, `lines` those that differ; where more
    than MOST_CHANGED differ (`changed` counts them), those that the message points at.
    """

    run: str
    problem: str
    problem_sha256: str
    op: str
    hardware: str
    lineage: tuple[str, ...]
    failed: int
    draft: int
    node: int
    validity: str
    outcome: Outcome
    error: str
    words: str
    code: str
    before: Bundle
    after: Bundle
    lines: LineDifference
    changed: int
    signals: tuple[str, ...]
    evaluations: tuple[str, ...]
    device: str
    toolchain: str
    simulated: bool

    @property
    def language(self) -> str:
        """Of both kernels."""
        return self.before.language

    @property
    def key(self) -> tuple[str, str, str]:
        """Equal for the same error on the same chip in the same language."""
        return self.hardware, self.language, self.code or self.words


@dataclass(frozen=True)
class Lesson:
    """One error that was mended on different kernels. `shown` are the two mends that a text shows;
    `mends` are all of it, the shown ones first. `words` are what their messages share."""

    words: str
    shown: tuple[Mend, Mend]
    mends: tuple[Mend, ...]

    @property
    def code(self) -> str:
        """The chip's error code; empty where the messages name none."""
        return self.shown[0].code


@dataclass(frozen=True)
class Mends:
    """The mends of some trajectories with the decisions that led to them."""

    mends: tuple[Mend, ...] = ()
    decisions: tuple[tuple[str, Decision], ...] = field(default=())  # with the id of the run


# -- the mends of one run


def mends_of(
    trajectory: Trajectory, codes: Collection[str] = (), drafts: Drafts | None = None
) -> Mends:
    """The errors that a run mended. `codes` are the error codes of the chip's cards."""
    mends: list[Mend] = []
    decisions: list[tuple[str, Decision]] = []
    for draft, step in _pairs(trajectory, drafts or {}):
        outcome = _mend(trajectory, draft, step, codes)
        if isinstance(outcome, Mend):
            mends.append(outcome)
            reason = f"{outcome.error[:120]!r} of {_name(draft, step)}: {outcome.outcome}"
            decision = Decision(STAGE, step.child.number, True, reason)
        else:
            reason = f"after {_name(draft, step)}: {outcome}"
            decision = Decision(STAGE, step.child.number, False, reason)
        decisions.append((trajectory.id, decision))
    return Mends(tuple(mends), tuple(decisions))


def _name(draft: int, step: TrajectoryStep) -> str:
    return f"draft {draft}" if draft else f"node {step.parent.number}"


def _pairs(trajectory: Trajectory, drafts: Drafts) -> Iterator[tuple[int, TrajectoryStep]]:
    """(number of a draft or 0, failed kernel to the kernel that followed it)."""
    last: dict[int, MeasuredKernel] = {}  # the kernel before from the same parent
    for step in trajectory.steps:
        if step.child.evaluation is None or not _written(step.child):
            continue
        if _failed(step.parent) and _written(step.parent):
            yield 0, step
        earlier = last.get(step.parent.number)
        if earlier is not None and _failed(earlier) and _near(earlier, step.child):
            yield 0, replace(step, parent=earlier)
        last[step.parent.number] = step.child
        yield from _of_conversation(step, drafts.get(step.child.number, ()))


def _of_conversation(
    step: TrajectoryStep, drafts: Sequence[CompiledDraft]
) -> Iterator[tuple[int, TrajectoryStep]]:
    """The last draft that did not compile, to the kernel that was handed in.

    Earlier drafts of the same conversation are steps on the way: what mended them is in the end
    the same kernel, so they would be the same mend counted twice.
    """
    failed = [(n, draft) for n, draft in enumerate(drafts, 1) if draft.log]
    evaluation = step.child.evaluation
    if not failed or evaluation is None:
        return
    number, draft = failed[-1]
    proposal = step.proposal
    main = proposal.bundle.main if proposal.bundle.main in draft.files else ""
    if not main:
        return
    bundle = replace(proposal.bundle, files=dict(draft.files), main=main)
    refused = replace(
        evaluation,
        key="",
        validity="not_compiled",
        message="",
        log=draft.log,
        flags=(),
        checks=(),
        timings=(),
        speedup=None,
    )
    side = MeasuredKernel(step.child.number, Proposal(bundle, proposal.synthesizer), refused)
    yield number, replace(step, parent=side)


def _failed(side: MeasuredKernel) -> bool:
    return side.evaluation is not None and side.evaluation.validity in FAILURES


def _written(side: MeasuredKernel) -> bool:
    """Whether a model or a person wrote the kernel."""
    return side.bundle is not None and side.bundle.origin in WRITERS


def _near(before: MeasuredKernel, after: MeasuredKernel) -> bool:
    ours, theirs = before.bundle, after.bundle
    return ours is not None and theirs is not None and likeness(ours, theirs) >= NEAR


def likeness(kernel: Bundle, other: Bundle) -> float:
    """The share of lines that two kernels have in common, from 0 to 1; comments do not count."""
    matcher = difflib.SequenceMatcher(None, _lines(kernel), _lines(other), autojunk=False)
    return matcher.ratio()


def _lines(kernel: Bundle) -> list[str]:
    return [
        canonical(line)
        for name, text in sorted(kernel.files.items())
        for line in shown_lines(text, python=is_python(kernel.language, name))
    ]


def _mend(
    trajectory: Trajectory, draft: int, step: TrajectoryStep, codes: Collection[str]
) -> Mend | str:
    """What a change mended, or why it teaches nothing."""
    before, after = step.parent.proposal, step.child.proposal
    failed, then = step.parent.evaluation, step.child.evaluation
    if before is None or after is None or failed is None or then is None:
        return "there is no kernel or no evaluation"
    refused = mistrust(trajectory, step)
    if refused:
        return refused
    if before.bundle.language != after.bundle.language:
        return "the kernel that followed is in another language"
    wrong = failed.validity == "incorrect"
    log = failed.message if wrong else failed.log or failed.message
    error = first_error(log, codes)
    if not error:
        return "the failed kernel left no message"
    code = code_in(error, codes)
    words = fixed_words(error, before.bundle.source, after.bundle.source, code)
    outcome = _outcome(failed.validity, then, code, words)
    if outcome is None:
        return f"{then.validity}: the error was not mended"
    whole = difference(before.bundle, after.bundle)
    changed = max(len(whole.gone), len(whole.came))
    lines: LineDifference | None = whole
    if changed > MOST_CHANGED:  # models tend to write the whole kernel anew
        lines = lines_at(before.bundle, after.bundle, log, code, words)
    if not changed or lines is None:
        return (
            f"{changed} lines changed, at most {MOST_CHANGED} can be shown as the cure, and the"
            " message points at none of them"
        )
    subject = trajectory.subject
    return Mend(
        run=trajectory.id,
        problem=subject.name,
        problem_sha256=subject.sha256,
        op=subject.op,
        hardware=trajectory.hardware,
        lineage=trajectory.lineage,
        failed=step.parent.number,
        draft=draft,
        node=step.child.number,
        validity=failed.validity,
        outcome=outcome,
        error=error,
        words=words,
        code=code,
        before=before.bundle,
        after=after.bundle,
        lines=lines,
        changed=changed,
        signals=() if draft else step.parent.signals,
        evaluations=tuple(key for key in (failed.key, then.key) if key),
        device=then.device,
        toolchain=then.toolchain,
        simulated=then.timing == "simulator",
    )


def _outcome(before: str, then: Evaluation, code: str, words: str) -> Outcome | None:
    """What came of a kernel that failed; None where the error stayed or an earlier one came."""
    after, log = then.validity, then.log or then.message
    if after not in REACHED or before not in REACHED:
        return None
    if after == "correct":
        return "right"
    if REACHED[after] != REACHED[before]:
        return "further" if REACHED[after] > REACHED[before] else None
    same = code_in(log, (code,)) if code else says(log, words)
    return None if same or not log.strip() else "other error"


# -- lessons


def lessons_of(mends: Sequence[Mend]) -> tuple[list[Lesson], list[str]]:
    """The errors that were mended on two different kernels, and in words why the others are not
    enough."""
    groups: dict[tuple[str, str, str], list[Mend]] = {}
    for mend in mends:
        groups.setdefault(mend.key, []).append(mend)
    lessons, short = [], []
    for key in sorted(groups):
        lesson = _lesson(groups[key])
        if isinstance(lesson, str):
            short.append(f"{' '.join(key)[:160]}: {lesson}")
        else:
            lessons.append(lesson)
    return lessons, short


def _lesson(group: Sequence[Mend]) -> Lesson | str:
    by_kernels: dict[tuple[str, str], Mend] = {}
    for mend in group:  # a copy of a kernel in another node is the same mend
        by_kernels.setdefault((kernel_key(mend.before), kernel_key(mend.after)), mend)
    mends = list(by_kernels.values())
    pairs = [pair for pair in combinations(mends, 2) if _different(*pair)]
    if not pairs:
        return "mended on one kernel; two different ones are needed"
    if all(mend.outcome == "other error" for mend in mends):
        return "no kernel came further after the change; another error took its place"
    if mends[0].validity == "incorrect":
        # "y is off by" says nothing of the cause: there the changes have to agree.
        pairs = [pair for pair in pairs if _shared_change(*pair)]
        if not pairs:
            return "results were wrong, and the changes have no line in common"
    shown = min(pairs, key=_rank)
    words = shared_words([mend.words for mend in shown])
    if not words:
        return "the messages share no beginning"
    others = tuple(m for m in mends if m not in shown and m.words.startswith(words))
    return Lesson(words, shown, (*shown, *others))


def _different(mend: Mend, other: Mend) -> bool:
    """Whether two mends are of different kernels: other problems, or no near copies."""
    if kernel_key(mend.before) == kernel_key(other.before):
        return False
    if mend.problem_sha256 != other.problem_sha256:
        return True
    return likeness(mend.before, other.before) < NEAR_COPY


def _rank(pair: tuple[Mend, Mend]) -> tuple[int, int, int]:
    """Right kernels first, then different problems, then the fewest changed lines."""
    first, second = pair
    wrong = sum(mend.outcome != "right" for mend in pair)
    same = int(first.problem_sha256 == second.problem_sha256)
    changed = sum(len(mend.lines.gone) + len(mend.lines.came) for mend in pair)
    return wrong, same, changed


def _shared_change(mend: Mend, other: Mend) -> bool:
    ours = {canonical(line).strip() for line in mend.lines.came}
    return bool(ours & {canonical(line).strip() for line in other.lines.came})
