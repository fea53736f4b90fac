"""Debugging skills: errors that were mended in stored searches, as candidate skills.

A mend is a failed kernel, the kernel that followed it, and the lines that changed. The kernel that
followed is its child, or the next one from the same parent, which is how a model repairs its own;
drafts that a model had compiled in its conversation count as failed kernels too. An error that was
mended on two different kernels is a lesson, and its skill has the fixed words of the error, its
cause, and the changed lines of two kernels. Every sentence is a template filled with measurements
or printed text. Looking again at the same searches changes nothing.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from typing import Any, Literal

from sqlalchemy import Connection

from kb.catalog.knowledge import symbols
from kb.catalog.knowledge.symbols import Symbol
from kb.catalog.skills.evidence import FAILURES, evidence_of
from kb.catalog.skills.reading import MEND, EvidenceRow, SkillDraft, SkillScopes, find_skill
from kb.errors import KernloreError
from kb.hardware.lineage import NameIndex
from kb.hardware.table_reader import Problems
from kb.ids import derived_id, sha256
from kb.problem_terms import canonical_op
from optimizer.evaluation.bundle import Bundle
from optimizer.search.records import Proposal
from optimizer.search.runs.run_store import run_store
from optimizer.search.synthesizers.llm.conversation import FolderTranscripts, ModelTranscript
from retrieval.diagnose.log_digest import (
    code_in,
    contains_words,
    first_error,
    fixed_words,
    shared_words,
)
from retrieval.diagnose.signals import load_signals
from retrieval.knowledge_base import KnowledgeBase
from retrieval.search.names import names_in
from skills.curator.comparison import (
    LineDifference,
    canonical,
    difference,
    is_python,
    kernel_key,
    likeness,
    without_comments,
)
from skills.curator.contrast import reason_to_distrust
from skills.curator.distil import store_delta
from skills.curator.draft import CODE, WRITERS, fenced, listed, sections, slugged
from skills.curator.pipeline import REMOVED
from skills.curator.records import Decision, Delta, StoredDelta
from skills.format.lint import Allowed, lint
from skills.format.schema import DEBUGGING, MAX_NAME, advice, check, sources_of
from skills.format.skillfile import with_content_hash
from skills.trajectories.reading import (
    StoredSearch,
    stored_search,
    stored_transcript,
    trajectory_of,
    trajectory_store,
)
from skills.trajectories.records import (
    EvaluationSummary,
    MeasuredKernel,
    Trajectory,
    TrajectoryStep,
)

STAGE = "mend"  # of decisions
MOST_SEARCHES = 10_000
COMPILES = "It compiles."  # result of the tool `compile_draft` for such a draft
# If more lines changed on either side, only those that the message points at can be the cure.
MOST_CHANGED = 16
NEAR = 0.5  # share of equal lines from which a sibling counts as a repair
NEAR_COPY = 0.8  # from which two kernels of one problem count as the same kernel
MOST_PAIRS = 4  # of lines that a message points at
ALIKE = 0.5  # share of equal characters from which a line replaces another
ERROR = "error"  # kind of the cards of error codes
MOST_LINE = 160  # characters of a changed line or a message
MOST_QUOTED = 600  # characters of a card
REACHED = {
    "not_compiled": 0,
    "crashed": 1,
    "timed_out": 1,
    "unsupported": 1,
    "incorrect": 2,
    "correct": 3,
}
_FATES = {
    "not_compiled": "does not compile",
    "crashed": "crashes",
    "unsupported": "declines an input",
    "timed_out": "does not end within its deadline",
    "incorrect": "computes wrong results",
}
_OUTCOMES = {
    "right": "it was right in every case after the change",
    "further": "it came further after the change and failed later",
    "other error": "this error was gone after the change, and another one came",
}
_LOCATION = re.compile(r"^\s*(?:([\w./\\+-]{1,200})[:(]|line )(\d{1,7})\b")
MendOutcome = Literal["right", "further", "other error"]


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

    `search` is the trajectory without its steps. `failed` and `node` are the numbers of the nodes;
    `draft` counts the failed draft from 1 if it was one of the conversation that led to `node`,
    else it is 0. `error` is the message as printed, `words` its fixed words, `code` the chip's own
    error code in it. `lines` are those that differ; if more than MOST_CHANGED do (`changed` counts
    them), those that the message points at. `result` is the evaluation of the kernel that followed.
    """

    search: Trajectory
    failed: int
    draft: int
    node: int
    validity: str
    outcome: MendOutcome
    error: str
    words: str
    code: str
    before: Bundle
    after: Bundle
    lines: LineDifference
    changed: int
    signals: tuple[str, ...]
    evaluations: tuple[str, ...]
    result: EvaluationSummary

    @property
    def language(self) -> str:
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
class MendedErrors:
    """The result of looking for mended errors in the stored searches.

    `runs` counts the searches that were read. `decisions` are about pairs of kernels, with the id
    of their search. `short` names the missing condition of each mended error that is no lesson yet,
    `skipped` the reason why a search could not be read.
    """

    runs: int
    decisions: tuple[tuple[str, Decision], ...]
    short: tuple[str, ...]
    skipped: tuple[str, ...]
    stored: tuple[StoredDelta, ...]

    def as_json(self) -> dict[str, Any]:
        return {
            **vars(self),
            "decisions": [{"run": run, **asdict(decision)} for run, decision in self.decisions],
            "stored": [asdict(delta) for delta in self.stored],
        }


def distil_errors(base: KnowledgeBase) -> MendedErrors:
    """Find mended errors in all stored searches, and store all lessons or none."""
    mends: list[Mend] = []
    decisions: list[tuple[str, Decision]] = []
    skipped: list[str] = []
    transcripts = FolderTranscripts(base.settings.data_dir / "transcripts")
    cards: dict[tuple[str, ...], list[Symbol]] = {}  # by lineage
    runs = [run.id for run in run_store(base).latest(MOST_SEARCHES)]
    rows = trajectory_store(base).latest(MOST_SEARCHES, ("ready",))
    identities = [*reversed(runs), *reversed([row.id for row in rows])]  # the oldest first
    for identity in identities:
        try:
            search = stored_search(base, identity)
            whole = trajectory_of(base, search)
            if whole.lineage not in cards:
                with base.catalog.read() as connection:
                    cards[whole.lineage] = symbols.listed(connection, whole.lineage)
            codes = {card.name for card in cards[whole.lineage] if card.kind == ERROR}
            drafts = {
                step.child.number: drafts_in(transcript)
                for step in whole.steps
                if (transcript := stored_transcript(transcripts, step.proposal)) is not None
            }
            found, judged = mends_of(whole, codes, _logs(search), drafts)
        except KernloreError as problem:
            skipped.append(f"{identity}: {problem.message}")
            continue
        mends += found
        decisions += ((identity, decision) for decision in judged)
    lessons, short = lessons_of(mends)
    stored: list[StoredDelta] = []
    names = NameIndex({i: (s.id, s.name, *s.aliases) for i, s in base.registry.all().items()})
    with base.catalog.write() as connection:
        for lesson in lessons:
            about = lesson.shown[0].search
            delta, decision = _delta(connection, lesson, cards[about.lineage], names)
            decisions.append((about.id, decision))
            if delta is not None:
                stored.append(store_delta(connection, delta, about.id))
    read = len(identities) - len(skipped)
    return MendedErrors(read, tuple(decisions), tuple(short), tuple(skipped), tuple(stored))


def _delta(
    connection: Connection, lesson: Lesson, cards: Sequence[Symbol], names: NameIndex
) -> tuple[Delta | None, Decision]:
    """The delta of a lesson with the decision; None if the library does not change."""
    first = lesson.shown[0]
    card = card_of(lesson, cards)
    draft = debugging_skill(lesson, card)
    rows = tuple(map(_evidence_row, lesson.mends))

    def decided(passed: bool, reason: str, stage: str = "match") -> Decision:
        return Decision(stage, first.node, passed, reason, {"skill": draft.name})

    def measurement(row: EvidenceRow) -> tuple[Any, ...]:
        return tuple(row.details.get(name) for name in ("run", "parent", "draft", "node"))

    known = find_skill(connection, draft.name)
    if known is not None and known.state in REMOVED:
        return None, decided(False, f"{draft.name} says this, and a person took it out")
    if known is not None:
        present = {measurement(row) for row in evidence_of(connection, known.id)}
        added = tuple(row for row in rows if measurement(row) not in present)
        if not added:
            return None, decided(False, f"{draft.name} has these mends already")
        reason = f"mended again in {added[0].details['run']}"
        version = known.version
        delta = Delta("ADD_EVIDENCE", first.node, draft.name, reason, None, added, version=version)
        return delta, decided(True, f"{draft.name} says this already")
    problems = _findings(lesson, draft, names)
    if problems and card is not None:  # a card may name other chips: then only the message is shown
        draft = debugging_skill(lesson, None)
        problems = _findings(lesson, draft, names)
    if problems:
        return None, decided(False, "; ".join(problems[:3]), "lint")
    runs = ", ".join(dict.fromkeys(mend.search.id for mend in lesson.mends))
    delta = Delta("ADD", first.node, draft.name, f"mended in {runs}", draft, rows)
    return delta, decided(True, f"drafted {draft.name}", STAGE)


# -- the mends of one search


def _logs(search: StoredSearch) -> dict[int, str]:
    """The compiler's logs by number of the node; a duplicate has that of the node it repeats."""
    nodes = ((n, n if n.same_as is None else search.tree[n.same_as]) for n in search.tree)
    return {
        node.number: measured.evaluation.log
        for node, measured in nodes
        if measured.evaluation is not None
    }


def drafts_in(transcript: ModelTranscript) -> list[CompiledDraft]:
    """The drafts of a conversation with the compiler's logs, in order."""
    answers = {
        str(message["tool_call_id"]): str(message["content"])
        for message in transcript.messages
        if message["role"] == "tool"
    }
    drafts = []
    for message in transcript.messages:
        for call in message.get("tool_calls") or ():
            files = _files(call) if call["function"]["name"] == "compile_draft" else {}
            lines = answers.get(call["id"], "").strip().splitlines()
            log = "\n".join(lines[1:-1]).strip()  # without the first and last line, which mark it
            if files and log and not log.startswith("failed: "):
                drafts.append(CompiledDraft(files, "" if log == COMPILES else log))
    return drafts


def _files(call: Mapping[str, Any]) -> dict[str, str]:
    try:
        files = json.loads(call["function"]["arguments"])["files"]
    except (ValueError, KeyError, TypeError):
        return {}
    texts = files.items() if isinstance(files, dict) else ()
    return {str(name): text for name, text in texts if isinstance(text, str)}


def mends_of(
    trajectory: Trajectory,
    codes: Collection[str] = (),
    logs: Mapping[int, str] | None = None,
    drafts: Drafts | None = None,
) -> tuple[list[Mend], list[Decision]]:
    """The errors that a search mended, with a decision for each pair of kernels. `codes` are the
    error codes of the chip's cards, `logs` the compiler's logs by number of the node."""
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
    return mends, decisions


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
        if earlier is not None and _failed(earlier) and _is_repair(earlier, child):
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
    return kernel.bundle is not None and kernel.bundle.origin in WRITERS


def _is_repair(before: MeasuredKernel, after: MeasuredKernel) -> bool:
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
    changed = max(len(whole.removed), len(whole.added))
    lines: LineDifference | None = whole
    if changed > MOST_CHANGED:  # models tend to write the whole kernel anew
        lines = _lines_at(before, after, log, code, words)
    if not changed or lines is None:
        return (
            f"{changed} lines changed, at most {MOST_CHANGED} can be shown as the cure, and the"
            " message points at none of them"
        )
    return Mend(
        search=replace(trajectory, steps=()),
        failed=step.parent.number,
        draft=draft,
        node=step.child.number,
        validity=failed.validity,
        outcome=outcome,
        error=error,
        words=words,
        code=code,
        before=before,
        after=after,
        lines=lines,
        changed=changed,
        signals=step.parent.signals,
        evaluations=tuple(key for key in (failed.key, then.key) if key),
        result=then,
    )


def _outcome(before: str, after: str, log: str, code: str, words: str) -> MendOutcome | None:
    """The outcome for a kernel that failed; None if the error stayed or an earlier one came."""
    if after not in REACHED or before not in REACHED:
        return None
    if after == "correct":
        return "right"
    if REACHED[after] != REACHED[before]:
        return "further" if REACHED[after] > REACHED[before] else None
    same = code_in(log, (code,)) if code else contains_words(log, words)
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
        if location is None or not (
            code_in(message, (code,)) if code else contains_words(message, words)
        ):
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
    """The errors that were mended on two different kernels, and for each other error a sentence
    with the missing condition."""
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
    changed = sum(len(mend.lines.removed) + len(mend.lines.added) for mend in pair)
    return wrong, same, changed


def _shared_change(mend: Mend, other: Mend) -> bool:
    ours, theirs = ({_plain(line) for line in m.lines.added} for m in (mend, other))
    return bool(ours & theirs)


# -- the skill of a lesson


def card_of(lesson: Lesson, cards: Sequence[Symbol]) -> Symbol | None:
    """The card of the error code in the messages, otherwise of a symbol that both name, or None."""
    by_name = {card.name: card for card in cards if card.meaning or card.limits or card.further}
    named = [names_in(mend.error, set(by_name)) for mend in lesson.shown]
    shared = [name for name in named[0] if name in named[1]]
    shared.sort(key=lambda name: (name != lesson.code, by_name[name].kind != ERROR))
    return by_name[shared[0]] if shared else None


def debugging_skill(lesson: Lesson, card: Symbol | None) -> SkillDraft:
    """The skill of a lesson, a learned candidate. `card` states the cause."""
    first = lesson.shown[0]
    hardware = first.search.hardware
    body = _body(lesson, card)
    draft = SkillDraft(
        name=_name(lesson),
        tier="learned",
        transformation=f"{MEND}{_slug(lesson.code) if lesson.code else _digest(lesson)}",
        description=(
            f"Use when a kernel in {first.language} on {hardware} {_FATES[first.validity]}"
            f" and its log says: {lesson.words}. Shows the cause and the lines that mended it on"
            " different kernels. Whether the advice helps elsewhere is not yet measured."
        ),
        body=body,
        scopes=SkillScopes(
            hardware=(hardware,), languages=(first.language,), signals=_signals(lesson)
        ),
        content_sha256="",
        origin="run",
        sources=sources_of(body),
        metadata={
            "allowed_tools": None,
            "other": {},
            "files": {},
            "kind": DEBUGGING,
            "error": lesson.words,
            "mended": {
                "key": list(first.key),
                "evidence": [_evidence_row(mend).id for mend in lesson.mends],
            },
        },
        compatibility="; ".join([first.language, hardware]),
        origin_run_id=first.search.id,
        toolchain_id=first.result.toolchain or None,
    )
    return with_content_hash(draft)


def _findings(lesson: Lesson, draft: SkillDraft, names: NameIndex) -> list[str]:
    numbers = {str(n) for mend in lesson.mends for n in (mend.failed, mend.draft, mend.node)}
    search = lesson.shown[0].search
    hardware = frozenset({search.hardware, *search.lineage})
    texts = {"description": draft.description, "body": draft.body}
    problems = [str(f) for f in lint(texts, Allowed(frozenset(numbers), hardware, names))]
    shown = [line for mend in lesson.shown for line in (*mend.lines.removed, *mend.lines.added)]
    if any("```" in text for text in (*shown, *(mend.error for mend in lesson.shown))):
        problems.append("a line closes the block that it is quoted in")
    form = Problems(draft.name)
    check(advice(draft), draft.name, form)
    problems += [str(problem) for problem in form.entries]
    return list(dict.fromkeys(problems))


def _evidence_row(mend: Mend) -> EvidenceRow:
    """The row of a mend, which has no figure: the error went."""
    result, subject = mend.result, mend.search.subject
    return EvidenceRow(
        id=derived_id("ev", mend.search.id, mend.failed, mend.draft, mend.node),
        hardware_id=mend.search.hardware,
        device_id=result.device or None,
        toolchain_id=result.toolchain or None,
        problem_id=subject.sha256 or None,
        evaluation_id=mend.evaluations[-1] if mend.evaluations else None,
        kind="simulator" if result.timing == "simulator" else "pair",
        n=1,
        details={
            "run": mend.search.id,
            "parent": mend.failed,
            "draft": mend.draft,
            "node": mend.node,
            "error": mend.error[:MOST_LINE],
            "before": mend.validity,
            "outcome": mend.outcome,
            "problem": subject.name,
            "op": canonical_op(subject.op),
            "language": mend.language,
            "polarity": "use",
        },
    )


# -- text


def _body(lesson: Lesson, card: Symbol | None) -> str:
    parts = [
        ("When to use", _when(lesson)),
        ("When not", "- Another message comes first in the log: that one is mended first."),
        ("Cause", _cause(lesson, card)),
        ("Cure", "\n\n".join(map(_cure, lesson.shown))),
        ("Evidence", "\n".join(map(_evidence, lesson.mends))),
        (
            "How to check",
            "- The message is gone from the log, and the kernel is right in every case of its"
            " problem.",
        ),
        ("Sources", listed(_sources(lesson, card))),
    ]
    return sections(parts)


def _when(lesson: Lesson) -> str:
    first = lesson.shown[0]
    lines = [
        f"- The kernel is in {first.language} and runs on {first.search.hardware}.",
        f"- It {_FATES[first.validity]}, and the log has this message; names, numbers and paths in"
        " it differ:",
        "",
        fenced("text", [lesson.words]),
    ]
    known = load_signals()
    signals = [f"- The diagnosis names `{s}`: {known.get(s).title}." for s in _signals(lesson)]
    return "\n".join([*lines, *(["", *signals] if signals else [])])


def _cause(lesson: Lesson, card: Symbol | None) -> str:
    if card is None:
        said = list(dict.fromkeys(mend.error[:MOST_LINE] for mend in lesson.shown))
        text = "No card of the chip's documents has this error. What was printed:"
        return f"{text}\n\n{fenced('text', said)}"
    text = f"The chip's documents say of `{card.name}` (see Sources):"
    parts = [card.meaning, *card.limits, *card.further]
    quoted = " ".join(" ".join(part for part in parts if part).split())[:MOST_QUOTED]
    return f"{text}\n\n{fenced('text', [quoted])}"


def _cure(mend: Mend) -> str:
    code = "diff" if mend.language in CODE else "text"
    gone, came = (
        [f"{sign} {line.strip()[:MOST_LINE]}" for line in lines]
        for sign, lines in (("-", mend.lines.removed), ("+", mend.lines.added))
    )
    problem = mend.search.subject.name
    head = f"In the kernel of {problem}, `-` before and `+` after:"
    if mend.changed > MOST_CHANGED:
        head = (
            f"In the kernel of {problem}, which was changed in more places: the lines that the"
            " message points at (`-`), and what came in their place (`+`):"
        )
    return f"{head}\n\n{fenced(code, [*gone, *came])}"


def _evidence(mend: Mend) -> str:
    draft = f"draft {mend.draft} before node {mend.node}" if mend.draft else f"node {mend.failed}"
    after = "" if mend.draft else f", mended in node {mend.node}"
    problem = mend.search.subject.name
    return f"- {problem}: {draft} {_FATES[mend.validity]}{after}; {_OUTCOMES[mend.outcome]}."


def _sources(lesson: Lesson, card: Symbol | None) -> list[str]:
    lines: list[str] = []
    if card is not None:
        place = " > ".join(card.path)
        lines.append(f"{card.document_title}, version {card.version}, {place} ({card.id})")
    for mend in lesson.mends:
        failed = f"draft {mend.draft} of it" if mend.draft else f"node {mend.failed}"
        lines.append(f"run {mend.search.id}, node {mend.node} against {failed}")
        lines += [f"evaluation {key}" for key in mend.evaluations]
    return list(dict.fromkeys(lines))


def _signals(lesson: Lesson) -> tuple[str, ...]:
    known = load_signals()
    mine, theirs = (mend.signals for mend in lesson.shown)
    return tuple(sorted(s for s in mine if s in theirs and s in known))


def _name(lesson: Lesson) -> str:
    """Unique for the error, the chip and the language."""
    first, digest = lesson.shown[0], _digest(lesson)
    place = f"{_slug(first.search.hardware)}-{MEND}{_slug(first.language)}"
    text = f"{place}-{_slug(first.code or first.words)}"
    return f"{text[: MAX_NAME - len(digest) - 1].strip('-')}-{digest}"


def _digest(lesson: Lesson) -> str:
    return sha256("\x1f".join(lesson.shown[0].key))[:6]


def _slug(text: str) -> str:
    return slugged(text)[:40].strip("-") or ERROR
