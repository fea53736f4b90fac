"""Mended errors: a kernel that failed, the kernel that followed it, and the lines that changed.

A pair is a failed kernel and its child, or the failed kernel and the next one from the same parent,
which is how a model repairs its own. Drafts that a model had compiled in its conversation count as
failed kernels too. An error that was mended on two different kernels is a lesson. Works on
trajectories and stores nothing.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

from kb.catalog.skills import FAILURES
from optimizer.evaluation.bundle import Bundle
from optimizer.search.records import Proposal
from retrieval.diagnose.error_words import code_in, first_error, fixed_words, says, shared_words
from skills.curator.comparison import (
    LineDifference,
    canonical,
    difference,
    is_python,
    kernel_key,
    likeness,
    without_comments,
)
from skills.curator.draft import WRITERS
from skills.curator.gate import reason_to_distrust
from skills.curator.records import Decision
from skills.trajectories.records import (
    EvaluationSummary,
    MeasuredKernel,
    Trajectory,
    TrajectoryStep,
)

STAGE = "mend"  # of decisions
# If more lines changed on either side, only those that the message points at can be the cure.
MOST_CHANGED = 16
NEAR = 0.5  # share of equal lines from which a sibling counts as a repair
NEAR_COPY = 0.8  # from which two kernels of one problem count as the same kernel
MOST_PAIRS = 4  # of lines that a message points at
ALIKE = 0.5  # share of equal characters from which a line replaces another
REACHED = {"not_compiled": 0, "crashed": 1, "timed_out": 1, "incorrect": 2, "correct": 3}
MendOutcome = Literal["right", "further", "other error"]
_LOCATION = re.compile(r"^\s*(?:([\w./\\+-]{1,200})[:(]|line )(\d{1,7})\b")


@dataclass(frozen=True)
class CompiledDraft:
    """A draft and the compiler's log, which is empty if it compiled."""

    files: Mapping[str, str]
    log: str


# Drafts that a model had compiled before its answer, in order, by number of the node.
Drafts = Mapping[int, Sequence[CompiledDraft]]


@dataclass(frozen=True)
class Mend:
    """A failed kernel and the one that followed it in one search.

    `search` is the trajectory without its steps, `step` the failed kernel as parent and the next
    one as child. `draft` counts the failed draft from 1 if it was one of the conversation that led
    to the child, else it is 0. `error` is the message as printed, `words` its fixed words, `code`
    the chip's own error code in it. `lines` are those that differ; if more than MOST_CHANGED do
    (`changed` counts them), those that the message points at.
    """

    search: Trajectory
    step: TrajectoryStep
    draft: int
    outcome: MendOutcome
    error: str
    words: str
    code: str
    lines: LineDifference
    changed: int

    @property
    def run(self) -> str:
        """Id of the search."""
        return self.search.id

    @property
    def failed(self) -> int:
        """Number of the failed node; that of the child for a draft."""
        return self.step.parent.number

    @property
    def node(self) -> int:
        """Number of the node that followed."""
        return self.step.child.number

    @property
    def before(self) -> Bundle:
        """The failed kernel."""
        assert self.step.parent.bundle is not None
        return self.step.parent.bundle

    @property
    def after(self) -> Bundle:
        """The kernel that followed."""
        return self.step.proposal.bundle

    @property
    def validity(self) -> str:
        """Validity of the failed kernel."""
        assert self.step.parent.evaluation is not None
        return self.step.parent.evaluation.validity

    @property
    def result(self) -> EvaluationSummary:
        """The evaluation of the kernel that followed."""
        assert self.step.child.evaluation is not None
        return self.step.child.evaluation

    @property
    def evaluations(self) -> list[str]:
        """Keys of the two evaluations; a draft has none."""
        kernels = (self.step.parent.evaluation, self.step.child.evaluation)
        return [kernel.key for kernel in kernels if kernel is not None and kernel.key]

    @property
    def language(self) -> str:
        """The language of both kernels."""
        return self.before.language

    @property
    def key(self) -> tuple[str, str, str]:
        """Equal for the same error on the same chip in the same language."""
        return self.search.hardware, self.language, self.code or self.words


@dataclass(frozen=True)
class Lesson:
    """One error that was mended on different kernels. A text shows the two mends `shown`, which
    come first in `mends`. `words` are those that their messages share."""

    words: str
    shown: tuple[Mend, Mend]
    mends: tuple[Mend, ...]

    @property
    def code(self) -> str:
        """The chip's error code; empty if the messages name none."""
        return self.shown[0].code


@dataclass(frozen=True)
class SearchMends:
    """The mends of one search, with the decisions that led to them."""

    mends: tuple[Mend, ...]
    decisions: tuple[Decision, ...]


# -- the mends of one search


def mends_of(
    trajectory: Trajectory,
    codes: Collection[str] = (),
    logs: Mapping[int, str] | None = None,
    drafts: Drafts | None = None,
) -> SearchMends:
    """The errors that a search mended. `codes` are the error codes of the chip's cards, `logs` the
    compiler's logs by number of the node."""
    mends: list[Mend] = []
    decisions: list[Decision] = []
    for draft, step, log in _pairs(trajectory, logs or {}, drafts or {}):
        number = step.child.number
        later_log = (logs or {}).get(number, "")
        result = _mend(trajectory, draft, step, (log, later_log), codes)
        failed = f"draft {draft}" if draft else f"node {step.parent.number}"
        if isinstance(result, Mend):
            mends.append(result)
            reason = f"{result.error[:120]!r} of {failed}: {result.outcome}"
        else:
            reason = f"after {failed}: {result}"
        decisions.append(Decision(STAGE, number, isinstance(result, Mend), reason))
    return SearchMends(tuple(mends), tuple(decisions))


def _pairs(
    trajectory: Trajectory, logs: Mapping[int, str], drafts: Drafts
) -> Iterator[tuple[int, TrajectoryStep, str]]:
    """(number of a draft or 0, failed kernel to the kernel that followed, log of the failed)."""
    last: dict[int, MeasuredKernel] = {}  # the kernel before from the same parent
    for step in trajectory.steps:
        parent, child = step.parent, step.child
        if child.evaluation is None or not _written(child):
            continue
        if _failed(parent) and _written(parent):
            yield 0, step, logs.get(parent.number, "")
        earlier = last.get(parent.number)
        if earlier is not None and _failed(earlier) and _near(earlier, child):
            yield 0, replace(step, parent=earlier), logs.get(earlier.number, "")
        last[parent.number] = child
        yield from _of_conversation(step, child.evaluation, drafts.get(child.number, ()))


def _of_conversation(
    step: TrajectoryStep, evaluation: EvaluationSummary, drafts: Sequence[CompiledDraft]
) -> Iterator[tuple[int, TrajectoryStep, str]]:
    """The last draft that did not compile, to the answered kernel.

    Earlier drafts of the conversation end in the same kernel, so they would count one mend twice.
    """
    failed = [(number, draft) for number, draft in enumerate(drafts, 1) if draft.log]
    if not failed:
        return
    number, draft = failed[-1]
    proposal = step.proposal
    if proposal.bundle.main not in draft.files:
        return
    refused = replace(
        evaluation,
        key="",
        validity="not_compiled",
        message="",
        checks=(0, 0),
        signals=(),
        cases=(),
        speedup=None,
        flags=(),
        rejected=False,
    )
    bundle = replace(proposal.bundle, files=dict(draft.files))
    kernel = MeasuredKernel(step.child.number, Proposal(bundle, proposal.synthesizer), refused)
    yield number, replace(step, parent=kernel), draft.log


def _failed(kernel: MeasuredKernel) -> bool:
    return kernel.evaluation is not None and kernel.evaluation.validity in FAILURES


def _written(kernel: MeasuredKernel) -> bool:
    """Whether a model or a person wrote the kernel."""
    return kernel.bundle is not None and kernel.bundle.origin in WRITERS


def _near(before: MeasuredKernel, after: MeasuredKernel) -> bool:
    ours, theirs = before.bundle, after.bundle
    return ours is not None and theirs is not None and likeness(ours, theirs) >= NEAR


def _mend(
    trajectory: Trajectory,
    draft: int,
    step: TrajectoryStep,
    logs: tuple[str, str],
    codes: Collection[str],
) -> Mend | str:
    """The mend of a pair, or the reason why it teaches nothing. `logs` are those of both
    kernels."""
    before, after = step.parent.bundle, step.child.bundle
    failed, then = step.parent.evaluation, step.child.evaluation
    if before is None or after is None or failed is None or then is None:
        return "there is no kernel or no evaluation"
    refused = reason_to_distrust(trajectory, step, {})
    if refused:
        return refused
    if before.language != after.language:
        return "the kernel that followed is in another language"
    wrong = failed.validity == "incorrect"
    log = failed.message if wrong else logs[0] or failed.message
    error = first_error(log, codes)
    if not error:
        return "the failed kernel left no message"
    code = code_in(error, codes)
    words = fixed_words(error, before.source, after.source, code)
    outcome = _outcome(failed.validity, then.validity, logs[1] or then.message, code, words)
    if outcome is None:
        return f"{then.validity}: the error was not mended"
    whole = difference(before, after)
    changed = max(len(whole.gone), len(whole.came))
    lines: LineDifference | None = whole
    if changed > MOST_CHANGED:  # models tend to write the whole kernel anew
        lines = _lines_at(before, after, log, code, words)
    if not changed or lines is None:
        return (
            f"{changed} lines changed, at most {MOST_CHANGED} can be shown as the cure, and the"
            " message points at none of them"
        )
    search = replace(trajectory, steps=())
    return Mend(search, step, draft, outcome, error, words, code, lines, changed)


def _outcome(before: str, after: str, log: str, code: str, words: str) -> MendOutcome | None:
    """The outcome for a kernel that failed; None if the error stayed or an earlier one came."""
    if after not in REACHED or before not in REACHED:
        return None
    if after == "correct":
        return "right"
    if REACHED[after] != REACHED[before]:
        return "further" if REACHED[after] > REACHED[before] else None
    same = code_in(log, (code,)) if code else says(log, words)
    return None if same or not log.strip() else "other error"


# -- the lines that a message points at


def _lines_at(
    before: Bundle, after: Bundle, log: str, code: str, words: str
) -> LineDifference | None:
    """The lines that the messages of one error point at and that are gone, with the most similar
    line that came for each; None if no message names a line, or no similar line came.

    The error is that of the chip's `code`, or without one that with these fixed `words`.
    """
    new, old = _bare_lines(after), {_plain(line) for line in _bare_lines(before)}
    present = {_plain(line) for line in new}
    came = [line.strip() for line in new if line.strip() and _plain(line) not in old]
    pairs: dict[str, str] = {}
    for line in _pointed_at(before, log, code, words):
        plain = _plain(line)
        if plain and plain not in present and plain not in pairs and len(pairs) < MOST_PAIRS:
            closest = _closest(plain, came)
            if closest is not None:
                pairs[plain] = closest
    if not pairs:
        return None
    return LineDifference(tuple(pairs), tuple(dict.fromkeys(pairs.values())))


def _pointed_at(kernel: Bundle, log: str, code: str, words: str) -> Iterator[str]:
    """Lines of the kernel that messages of the error name, in the order of the messages."""
    for message in log.splitlines():
        location = _LOCATION.match(message)
        if location is None or not (code_in(message, (code,)) if code else says(message, words)):
            continue
        name = (location[1] or kernel.main).replace("\\", "/").rpartition("/")[2]
        texts = [t for path, t in kernel.files.items() if path.rpartition("/")[2] == name]
        lines = _bare(kernel, texts[0]) if texts else []
        number = int(location[2])
        if 1 <= number <= len(lines):
            yield lines[number - 1]


def _bare_lines(kernel: Bundle) -> list[str]:
    return [line for text in kernel.files.values() for line in _bare(kernel, text)]


def _bare(kernel: Bundle, text: str) -> list[str]:
    """The lines of a text without comments. Line numbers are those of the source unless a comment
    has several lines."""
    return without_comments(text, python=is_python(kernel.language)).splitlines()


def _plain(line: str) -> str:
    return canonical(line).strip()


def _closest(line: str, others: Sequence[str]) -> str | None:
    """The most similar line by characters; an equal first word counts extra."""

    def score(other: str) -> float:
        plain = _plain(other)
        ratio = difflib.SequenceMatcher(None, line, plain, autojunk=False).ratio()
        return ratio + 0.25 * (line.split(maxsplit=1)[0] == plain.split(maxsplit=1)[0])

    best = max(others, key=score, default=None)
    return best if best is not None and score(best) >= ALIKE else None


# -- lessons


def lessons_of(mends: Sequence[Mend]) -> tuple[list[Lesson], list[str]]:
    """The errors that were mended on two different kernels, and for each other error a sentence on
    what is missing."""
    groups: dict[tuple[str, str, str], list[Mend]] = {}
    for mend in mends:
        groups.setdefault(mend.key, []).append(mend)
    lessons, missing = [], []
    for key in sorted(groups):
        lesson = _lesson(groups[key])
        if isinstance(lesson, str):
            missing.append(f"{' '.join(key)[:160]}: {lesson}")
        else:
            lessons.append(lesson)
    return lessons, missing


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
        # "y is off by" names no cause, so the changes have to agree.
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
    """Whether two mends are of different kernels: of two problems, or not near copies."""
    if kernel_key(mend.before) == kernel_key(other.before):
        return False
    if mend.search.subject.sha256 != other.search.subject.sha256:
        return True
    return likeness(mend.before, other.before) < NEAR_COPY


def _rank(pair: tuple[Mend, Mend]) -> tuple[int, int, int]:
    """Right kernels first, then different problems, then the fewest changed lines."""
    first, second = pair
    wrong = sum(mend.outcome != "right" for mend in pair)
    same = int(first.search.subject.sha256 == second.search.subject.sha256)
    changed = sum(len(mend.lines.gone) + len(mend.lines.came) for mend in pair)
    return wrong, same, changed


def _shared_change(mend: Mend, other: Mend) -> bool:
    ours, theirs = ({_plain(line) for line in m.lines.came} for m in (mend, other))
    return bool(ours & theirs)
