"""The text of a debugging skill: an error that was mended on two kernels, with its fixed words, its
cause and the changed lines of both.

Every sentence is a template filled with what was measured or printed. The cause is what the chip's
own card says of the error code, or of a symbol in the message; without one, the compiler's words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kb.catalog.knowledge.symbols import Symbol
from kb.catalog.skills import MEND, EvidenceRow, SkillDraft, SkillScopes
from kb.hardware.lineage import NameIndex
from kb.hardware.table_reader import Problems
from kb.ids import derived_id, sha256
from kb.problem_terms import canonical_op
from retrieval.diagnose.signals import load_signals
from retrieval.search.names import names_in
from skills.curator.draft import CODE
from skills.curator.mending import MOST_CHANGED, Lesson, Mend
from skills.format.lint import Allowed, lint
from skills.format.schema import DEBUGGING, MAX_NAME, advice, check, sources_of
from skills.format.skillfile import content_sha256

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
class Cause:
    """What a manual says about an error: the words, and the card that they stand on."""

    card: Symbol

    @property
    def text(self) -> str:
        """The card's own words, bounded."""
        parts = [self.card.meaning, *self.card.limits, *self.card.further]
        return " ".join(" ".join(part for part in parts if part).split())[:MOST_QUOTED]

    @property
    def source(self) -> str:
        """Where the card stands."""
        place = " > ".join(self.card.path)
        return f"{self.card.document_title}, version {self.card.version}, {place} ({self.card.id})"


def cause_of(lesson: Lesson, cards: Sequence[Symbol]) -> Cause | None:
    """The card of the error code in the messages, else of a symbol that both name; None where no
    manual says anything."""
    by_name = {card.name: card for card in cards if card.meaning or card.limits or card.further}
    named = [names_in(mend.error, set(by_name)) for mend in lesson.shown]
    shared = [name for name in named[0] if name in named[1]]
    shared.sort(key=lambda name: (name != lesson.code, by_name[name].kind != ERROR))
    return Cause(by_name[shared[0]]) if shared else None


def debugging_skill(lesson: Lesson, cause: Cause | None) -> SkillDraft:
    """The skill of a lesson as it is stored: a learned candidate."""
    first = lesson.shown[0]
    body = _body(lesson, cause)
    rows = evidence_of(lesson.mends)
    draft = SkillDraft(
        name=_name(lesson),
        tier="learned",
        transformation=f"{MEND}{_slug(lesson.code) if lesson.code else _digest(lesson)}",
        description=(
            f"Use when a kernel in {first.language} on {first.hardware} {_FATES[first.validity]}"
            f" and its log says: {lesson.words}. Shows the cause and the lines that mended it on"
            " different kernels. Whether the advice helps elsewhere is not yet measured."
        ),
        body=body,
        scopes=SkillScopes(
            hardware=(first.hardware,), languages=(first.language,), signals=_signals(lesson)
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
                "evidence": [row.id for row in rows],
            },
        },
        compatibility="; ".join([first.language, first.hardware]),
        origin_run_id=first.run,
        toolchain_id=first.toolchain or None,
    )
    return replace(draft, content_sha256=content_sha256(advice(draft)))


def findings(lesson: Lesson, draft: SkillDraft, names: NameIndex) -> list[str]:
    """What the linter refuses in the text; empty for a clean one."""
    numbers = {str(n) for mend in lesson.mends for n in (mend.failed, mend.draft, mend.node)}
    hardware = frozenset({lesson.shown[0].hardware, *lesson.shown[0].lineage})
    texts = {"description": draft.description, "body": draft.body}
    problems = [str(f) for f in lint(texts, Allowed(frozenset(numbers), hardware, names))]
    shown = [line for mend in lesson.shown for line in (*mend.lines.gone, *mend.lines.came)]
    if any("```" in text for text in (*shown, *(mend.error for mend in lesson.shown))):
        problems.append("a line closes the block that it is quoted in")
    form = Problems(draft.name)
    check(advice(draft), draft.name, form)
    problems += [str(problem) for problem in form.entries]
    return list(dict.fromkeys(problems))


def evidence_of(mends: Sequence[Mend]) -> tuple[EvidenceRow, ...]:
    """One row for each mend. There is no figure in it: what it says is that the error went.
    created_at is empty: whoever stores the rows dates them."""
    return tuple(_row(mend) for mend in mends)


def _row(mend: Mend) -> EvidenceRow:
    return EvidenceRow(
        id=derived_id("ev", mend.run, mend.failed, mend.draft, mend.node),
        hardware_id=mend.hardware,
        device_id=mend.device or None,
        toolchain_id=mend.toolchain or None,
        problem_id=mend.problem_sha256 or None,
        case_id=None,
        evaluation_id=mend.evaluations[-1] if mend.evaluations else None,
        kind="simulator" if mend.simulated else "pair",
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
            "problem": mend.problem,
            "op": canonical_op(mend.op),
            "language": mend.language,
            "polarity": "use",
        },
        created_at="",
    )


# -- text


def _body(lesson: Lesson, cause: Cause | None) -> str:
    parts = [
        ("When to use", _when(lesson)),
        ("When not", "- Another message comes first in the log: that one is mended first."),
        ("Cause", _cause(lesson, cause)),
        ("Cure", "\n\n".join(map(_cure, lesson.shown))),
        ("Evidence", "\n".join(map(_evidence, lesson.mends))),
        (
            "How to check",
            "- The message is gone from the log, and the kernel is right in every case of its"
            " problem.",
        ),
        ("Sources", "\n".join(f"- {line}" for line in _sources(lesson, cause))),
    ]
    return "\n\n".join(f"## {title}\n\n{text}" for title, text in parts)


def _when(lesson: Lesson) -> str:
    first = lesson.shown[0]
    lines = [
        f"- The kernel is in {first.language} and runs on {first.hardware}.",
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


def _cause(lesson: Lesson, cause: Cause | None) -> str:
    if cause is None:
        said = list(dict.fromkeys(mend.error[:MOST_LINE] for mend in lesson.shown))
        text = "No card of the chip's documents has this error. What was printed:"
        return "\n".join([text, "", "```text", *said, "```"])
    text = f"The chip's documents say of `{cause.card.name}` (see Sources):"
    return "\n".join([text, "", "```text", cause.text, "```"])


def _cure(mend: Mend) -> str:
    code = "diff" if mend.language in CODE else "text"
    gone, came = (
        [f"{sign} {line.strip()[:MOST_LINE]}" for line in lines]
        for sign, lines in (("-", mend.lines.gone), ("+", mend.lines.came))
    )
    head = f"In the kernel of {mend.problem}, `-` before and `+` after:"
    if mend.changed > MOST_CHANGED:
        head = (
            f"In the kernel of {mend.problem}, which was changed in more places: the lines that the"
            " message points at (`-`), and what came in their place (`+`):"
        )
    return "\n".join([head, "", f"```{code}", *gone, *came, "```"])


def _evidence(mend: Mend) -> str:
    draft = f"draft {mend.draft} before node {mend.node}" if mend.draft else f"node {mend.failed}"
    after = "" if mend.draft else f", mended in node {mend.node}"
    return f"- {mend.problem}: {draft} {_FATES[mend.validity]}{after}; {_OUTCOMES[mend.outcome]}."


def _sources(lesson: Lesson, cause: Cause | None) -> list[str]:
    lines = [cause.source] if cause is not None else []
    for mend in lesson.mends:
        failed = f"draft {mend.draft} of it" if mend.draft else f"node {mend.failed}"
        lines.append(f"run {mend.run}, node {mend.node} against {failed}")
        lines += [f"evaluation {key}" for key in mend.evaluations]
    return list(dict.fromkeys(lines))


def _signals(lesson: Lesson) -> tuple[str, ...]:
    """Signals that the verdicts of both failed kernels name."""
    known = load_signals()
    mine, theirs = (mend.signals for mend in lesson.shown)
    return tuple(sorted(s for s in mine if s in theirs and s in known))


def _name(lesson: Lesson) -> str:
    """Equal for the same error on the same chip in the same language, and no other."""
    first, digest = lesson.shown[0], _digest(lesson)
    place = f"{_slug(first.hardware)}-{MEND}{_slug(first.language)}"
    text = f"{place}-{_slug(first.code or first.words)}"
    return f"{text[: MAX_NAME - len(digest) - 1].strip('-')}-{digest}"


def _digest(lesson: Lesson) -> str:
    return sha256("\x1f".join(lesson.shown[0].key))[:6]


def _slug(text: str) -> str:
    words = "".join(c if c.isascii() and c.isalnum() else "-" for c in text.lower()).split("-")
    return "-".join(word for word in words if word)[:40].strip("-") or ERROR
