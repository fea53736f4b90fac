"""The step in which a model may write the sentences: asked once, mended once, else left out in the
open. What it answers is checked as if anybody had written it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from skills.curator.changes import CuratorRun, findings, renamed
from skills.curator.contrast import UNNAMED
from skills.curator.draft import DraftedSkill
from skills.curator.drafter import BadDelta, DraftTask, ModelDelta, answer_from
from skills.curator.match import Match, comparable, nearest, same_moves
from skills.curator.records import KernelChange, Operation
from skills.curator.texts import ShownTexts, strip
from skills.curator.wording import SkillSentences

TRIES = 2  # the answer and one repair
# Of a sentence list, the share that may come out of the store before the text says nothing new.
MOST_ECHO = 0.5


@dataclass(frozen=True)
class WrittenDraft:
    """A draft, as a model wrote it where it could. `asked` says that there was a model. `operation`
    is what it answered, None where none of it is kept; `skill` is the one that the answer is
    about."""

    draft: DraftedSkill
    asked: bool
    operation: Operation | None = None
    skill: str = ""


def ask(run: CuratorRun, change: KernelChange, draft: DraftedSkill) -> WrittenDraft:
    """The draft as the model puts it; without a model, or with two refused answers, as it was."""
    if run.drafter is None:
        return WrittenDraft(draft, False)
    node = change.step.child.number
    close = tuple(known.row for known in nearest(draft, list(run.known.values()), run.texts))
    task, answers = DraftTask(change, draft, close), list[str]()
    for _ in range(TRIES):
        answer = run.drafter.propose(task)
        answers.append(answer)
        run.answers[str(node)] = tuple(answers)
        try:
            delta = answer_from(answer, change, close)
            written = _written(run, change, draft, delta)
        except BadDelta as problem:
            task = replace(task, problem=str(problem), refused=answer)
            continue
        run.decide("draft", node, True, f"{run.drafter.name} answered {delta.operation}")
        return WrittenDraft(written, True, delta.operation, delta.skill)
    reason = f"the draft of {run.drafter.name} was refused: {task.problem}; drafted without it"
    run.decide("draft", node, False, reason, answers=len(answers))
    return WrittenDraft(draft, True)


def agreed(run: CuratorRun, written: WrittenDraft, draft: DraftedSkill) -> Match | None:
    """The skill that the model named, where the measurement allows it; a person decides about the
    rest."""
    if written.operation in (None, "ADD"):
        return None
    node, known = draft.evidence[0].details["node"], run.known[written.skill]
    if written.operation == "DEPRECATE":
        run.decide("match", node, False, f"held for a person: is {written.skill} wrong?")
        return None
    opposite = known.row.polarity != draft.polarity
    alike = comparable(draft, known, run.context.lineages) and same_moves(draft, known.row)
    if not alike:
        reason = (
            f"{written.skill} is about something else; the model's {written.operation} is left out"
        )
    elif opposite != (written.operation == "CONTRADICT"):
        reason = f"the figures do not say so; {written.operation} of {written.skill} is left out"
    else:
        return Match(known, "named", opposite)
    run.decide("match", node, False, reason)
    return None


def _written(
    run: CuratorRun, change: KernelChange, draft: DraftedSkill, delta: ModelDelta
) -> DraftedSkill:
    """The draft with the model's sentences. Raises BadDelta for what the linter refuses."""
    if delta.operation == "ADD" and delta.transformation and draft.transformation == UNNAMED:
        draft = renamed(draft, delta.transformation)
    if delta.words is None:
        return draft
    words = _without_echo(run, change, delta.words)
    drafter = run.drafter.name if run.drafter is not None else ""
    written = replace(draft, words=words, written_by=drafter)
    problems = findings(run, change, written)
    if problems:
        raise BadDelta("; ".join(problems[:5]))
    return written


def _without_echo(run: CuratorRun, change: KernelChange, words: SkillSentences) -> SkillSentences:
    """Without what the step was shown from the store."""
    texts = dict(run.context.shown)
    ids = {id_ for shown in change.step.shown.values() for id_ in shown}
    shown = {id_: text for id_, text in texts.items() if id_ in ids}
    shown |= {n: k.row.body for n, k in run.known.items() if n in ids or k.row.id in ids}
    known = ShownTexts(shown)
    kept: dict[str, str | tuple[str, ...]] = {}
    for name, value in vars(words).items():
        lines = (value,) if isinstance(value, str) else value
        stripped = [strip(line, known) for line in lines]
        left = tuple(s.text for s in stripped if s.text and s.share <= MOST_ECHO)
        if not left:
            raise BadDelta(f"{name} says what the store says already")
        kept[name] = left[0] if isinstance(value, str) else left
    return SkillSentences(**kept)  # type: ignore[arg-type]
