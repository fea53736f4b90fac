"""Debugging skills: errors that were mended in stored searches, as candidate skills with the fixed
words of the error, its cause, and the changed lines of two kernels.

All stored runs and external trajectories are read as for a distillation, with people's decisions
about flags. Every sentence is a template filled with measurements or printed text. The cause is the
chip's own card of the error code, or of a symbol in the message; without one, the compiler's words.
Repeating it changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from sqlalchemy import Connection

from kb.catalog import skills as store
from kb.catalog.knowledge import symbols
from kb.catalog.knowledge.symbols import Symbol
from kb.catalog.skills import MEND, EvidenceRow, SkillDraft, SkillScopes
from kb.errors import KernloreError
from kb.hardware.lineage import NameIndex
from kb.hardware.table_reader import Problems
from kb.ids import derived_id, sha256
from kb.problem_terms import canonical_op
from kb.scope import ALL_ACCESS
from optimizer.search.runs.run_store import run_store
from optimizer.search.synthesizers.llm.conversation import FolderTranscripts, Transcript
from retrieval.diagnose.signals import load_signals
from retrieval.knowledge_base import KnowledgeBase
from retrieval.symbols import names_in
from skills.curator.distil import store_delta
from skills.curator.draft import CODE
from skills.curator.mended_errors import (
    MOST_CHANGED,
    STAGE,
    CompiledDraft,
    Lesson,
    Mend,
    lessons_of,
    mends_of,
)
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
from skills.trajectories.records import Trajectory

MOST_SEARCHES = 10_000
COMPILES = "It compiles."  # result of the tool `compile_draft` for such a draft
ERROR = "error"  # kind of the cards of error codes
MOST_LINE = 160  # characters of a changed line or a message
MOST_QUOTED = 600  # characters of a card
_FATES = {
    "not_compiled": "does not compile",
    "crashed": "crashes",
    "timed_out": "does not end within its deadline",
    "incorrect": "computes wrong results",
}
_OUTCOMES = {
    "right": "it was right in every case after the change",
    "further": "it came further after the change and failed later",
    "other error": "this error was gone after the change, and another one came",
}


@dataclass(frozen=True)
class MendedErrors:
    """The result of looking for mended errors in the stored searches.

    `runs` counts the searches that were read. `decisions` are about pairs of kernels, with the id
    of their search. `short` says for each mended error that is no lesson yet what is missing,
    `skipped` why a search could not be read.
    """

    runs: int
    decisions: tuple[tuple[str, Decision], ...] = ()
    short: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    stored: tuple[StoredDelta, ...] = field(default=())

    def as_json(self) -> dict[str, Any]:
        """The printed form."""
        return {
            "runs": self.runs,
            "decisions": [{"run": run, **asdict(decision)} for run, decision in self.decisions],
            "short": list(self.short),
            "skipped": list(self.skipped),
            "stored": [asdict(delta) for delta in self.stored],
        }


def distil_errors(base: KnowledgeBase) -> MendedErrors:
    """Find mended errors in all stored searches, and store the lessons, all or nothing."""
    mends: list[Mend] = []
    decisions: list[tuple[str, Decision]] = []
    skipped: list[str] = []
    cards = ChipCards(base)
    runs = [run.id for run in run_store(base).latest(MOST_SEARCHES)]
    rows = trajectory_store(base).latest(MOST_SEARCHES, ("ready",))
    identities = [*reversed(runs), *reversed([row.id for row in rows])]  # the oldest first
    for identity in identities:
        try:
            search = stored_search(base, identity)
            whole = trajectory_of(base, search)
            logs = _logs(search)
            found = mends_of(whole, cards.codes(whole), logs, _compiled_drafts(base, whole))
        except KernloreError as problem:
            skipped.append(f"{identity}: {problem.message}")
            continue
        mends += found.mends
        decisions += ((identity, decision) for decision in found.decisions)
    lessons, short = lessons_of(mends)
    stored: list[StoredDelta] = []
    names = NameIndex({i: (s.id, s.name, *s.aliases) for i, s in base.registry.all().items()})
    with base.catalog.write() as connection:
        for lesson in lessons:
            run = lesson.shown[0].run
            delta, decision = _delta(connection, lesson, cards, names)
            decisions.append((run, decision))
            if delta is not None:
                stored.append(store_delta(connection, delta, run))
    return MendedErrors(
        len(identities) - len(skipped),
        tuple(decisions),
        tuple(short),
        tuple(skipped),
        tuple(stored),
    )


def _delta(
    connection: Connection, lesson: Lesson, cards: ChipCards, names: NameIndex
) -> tuple[Delta | None, Decision]:
    """The delta of a lesson with the decision; None if the library does not change."""
    first = lesson.shown[0]
    card = card_of(lesson, cards.of(first.search))
    draft = debugging_skill(lesson, card)
    rows = tuple(map(_evidence_row, lesson.mends))

    def decided(passed: bool, reason: str, stage: str = "match") -> Decision:
        return Decision(stage, first.node, passed, reason, {"skill": draft.name})

    known = store.find(connection, draft.name, ALL_ACCESS)
    if known is not None and known.state in REMOVED:
        return None, decided(False, f"{draft.name} says this, and a person took it out")
    if known is not None:
        present = {_measurement(row) for row in store.evidence_of(connection, known.id)}
        added = tuple(row for row in rows if _measurement(row) not in present)
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
    runs = ", ".join(dict.fromkeys(mend.run for mend in lesson.mends))
    delta = Delta("ADD", first.node, draft.name, f"mended in {runs}", draft, rows)
    return delta, decided(True, f"drafted {draft.name}", STAGE)


def _measurement(row: EvidenceRow) -> tuple[Any, ...]:
    return tuple(row.details.get(name) for name in ("run", "parent", "draft", "node"))


# -- the inputs of a search


class ChipCards:
    """Symbol cards of the chips that searches are about, read once for each lineage."""

    def __init__(self, base: KnowledgeBase) -> None:
        self._base = base
        self._by_lineage: dict[tuple[str, ...], list[Symbol]] = {}

    def of(self, about: Trajectory) -> list[Symbol]:
        """The cards of a chip and of its lineage."""
        lineage = about.lineage
        if lineage not in self._by_lineage:
            with self._base.catalog.read() as connection:
                self._by_lineage[lineage] = symbols.listed(connection, lineage)
        return self._by_lineage[lineage]

    def codes(self, about: Trajectory) -> frozenset[str]:
        """The error codes that the chip's documents define."""
        return frozenset(card.name for card in self.of(about) if card.kind == ERROR)


def _logs(search: StoredSearch) -> dict[int, str]:
    """The compiler's logs by number of the node; a duplicate has that of the node it repeats."""
    nodes = ((n, n if n.same_as is None else search.tree[n.same_as]) for n in search.tree)
    return {
        node.number: measured.evaluation.log
        for node, measured in nodes
        if measured.evaluation is not None
    }


def _compiled_drafts(base: KnowledgeBase, whole: Trajectory) -> dict[int, list[CompiledDraft]]:
    """The drafts that models had compiled before they answered, by number of the node."""
    transcripts = FolderTranscripts(base.settings.data_dir / "transcripts")
    drafts: dict[int, list[CompiledDraft]] = {}
    for step in whole.steps:
        transcript = stored_transcript(transcripts, step.proposal)
        if transcript is not None:
            drafts[step.child.number] = drafts_in(transcript)
    return drafts


def drafts_in(transcript: Transcript) -> list[CompiledDraft]:
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
            log = _unfenced(answers.get(call["id"], ""))
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


def _unfenced(text: str) -> str:
    """A tool's result without its first and last line, which mark it."""
    lines = text.strip().splitlines()
    return "\n".join(lines[1:-1]).strip() if len(lines) > 2 else ""


# -- the skill


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
        origin_run_id=first.run,
        toolchain_id=first.result.toolchain or None,
    )
    return with_content_hash(draft)


def _findings(lesson: Lesson, draft: SkillDraft, names: NameIndex) -> list[str]:
    """The linter's findings in the text; empty for a clean one."""
    numbers = {str(n) for mend in lesson.mends for n in (mend.failed, mend.draft, mend.node)}
    search = lesson.shown[0].search
    hardware = frozenset({search.hardware, *search.lineage})
    texts = {"description": draft.description, "body": draft.body}
    problems = [str(f) for f in lint(texts, Allowed(frozenset(numbers), hardware, names))]
    shown = [line for mend in lesson.shown for line in (*mend.lines.gone, *mend.lines.came)]
    if any("```" in text for text in (*shown, *(mend.error for mend in lesson.shown))):
        problems.append("a line closes the block that it is quoted in")
    form = Problems(draft.name)
    check(advice(draft), draft.name, form)
    problems += [str(problem) for problem in form.entries]
    return list(dict.fromkeys(problems))


def _evidence_row(mend: Mend) -> EvidenceRow:
    """The row of a mend: it has no figure, the error went. created_at is empty until it is
    stored."""
    result, subject = mend.result, mend.search.subject
    return EvidenceRow(
        id=derived_id("ev", mend.run, mend.failed, mend.draft, mend.node),
        hardware_id=mend.search.hardware,
        device_id=result.device or None,
        toolchain_id=result.toolchain or None,
        problem_id=subject.sha256 or None,
        case_id=None,
        evaluation_id=mend.evaluations[-1] if mend.evaluations else None,
        kind="simulator" if result.timing == "simulator" else "pair",
        n=1,
        baseline_us=None,
        measured_us=None,
        speedup=None,
        speedup_low=None,
        speedup_high=None,
        details={
            "run": mend.run,
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
        created_at="",
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
        ("Sources", "\n".join(f"- {line}" for line in _sources(lesson, card))),
    ]
    return "\n\n".join(f"## {title}\n\n{text}" for title, text in parts)


def _when(lesson: Lesson) -> str:
    first = lesson.shown[0]
    lines = [
        f"- The kernel is in {first.language} and runs on {first.search.hardware}.",
        f"- It {_FATES[first.validity]}, and the log has this message; names, numbers and paths in"
        " it differ:",
        "",
        "```text",
        lesson.words,
        "```",
    ]
    known = load_signals()
    signals = [f"- The diagnosis names `{s}`: {known.get(s).title}." for s in _signals(lesson)]
    return "\n".join([*lines, *(["", *signals] if signals else [])])


def _cause(lesson: Lesson, card: Symbol | None) -> str:
    if card is None:
        said = list(dict.fromkeys(mend.error[:MOST_LINE] for mend in lesson.shown))
        text = "No card of the chip's documents has this error. What was printed:"
        return "\n".join([text, "", "```text", *said, "```"])
    text = f"The chip's documents say of `{card.name}` (see Sources):"
    parts = [card.meaning, *card.limits, *card.further]
    quoted = " ".join(" ".join(part for part in parts if part).split())[:MOST_QUOTED]
    return "\n".join([text, "", "```text", quoted, "```"])


def _cure(mend: Mend) -> str:
    code = "diff" if mend.language in CODE else "text"
    gone, came = (
        [f"{sign} {line.strip()[:MOST_LINE]}" for line in lines]
        for sign, lines in (("-", mend.lines.gone), ("+", mend.lines.came))
    )
    problem = mend.search.subject.name
    head = f"In the kernel of {problem}, `-` before and `+` after:"
    if mend.changed > MOST_CHANGED:
        head = (
            f"In the kernel of {problem}, which was changed in more places: the lines that the"
            " message points at (`-`), and what came in their place (`+`):"
        )
    return "\n".join([head, "", f"```{code}", *gone, *came, "```"])


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
        lines.append(f"run {mend.run}, node {mend.node} against {failed}")
        lines += [f"evaluation {key}" for key in mend.evaluations]
    return list(dict.fromkeys(lines))


def _signals(lesson: Lesson) -> tuple[str, ...]:
    """Signals of both failed kernels' verdicts."""
    known = load_signals()
    mine, theirs = (mend.step.parent.signals for mend in lesson.shown)
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
    words = "".join(c if c.isascii() and c.isalnum() else "-" for c in text.lower()).split("-")
    return "-".join(word for word in words if word)[:40].strip("-") or ERROR
