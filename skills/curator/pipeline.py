"""From a trajectory to deltas of the library: gate, contrast, draft, lint, normalise, match.

`propose_deltas` is a function of the trajectory, a snapshot of the library and the answers of the
model and of lifting: the same ones give the same decisions. It stores nothing;
`skills.curator.distil` takes the snapshot and stores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kb.embedding import Embedder
from kb.hardware.lineage import NameIndex
from optimizer.search.runs.skill_moves import skill_of
from skills.curator import changes, sentences
from skills.curator.changes import CuratorRun, checked
from skills.curator.contrast import ADOPTED, UNNAMED, WRITTEN, contrast
from skills.curator.distillation import CuratorContext, Distillation, Library, recorded_from
from skills.curator.draft import Draft, compose
from skills.curator.drafter import Drafter, Replayed
from skills.curator.evidence import rows_of
from skills.curator.gate import gate
from skills.curator.kernel_text import as_text, is_written, text_node
from skills.curator.match import Match, Texts, match
from skills.curator.records import Change, Lift, Lifted, Operation
from skills.curator.texts import APPLIED, Shown, body_key, kernel_key
from skills.format.schema import MAX_NAME, TEXT
from skills.trajectories.records import Step, Trajectory

GONE = frozenset({"quarantined"})  # a person took it out: it is not learned again


def propose_deltas(
    trajectory: Trajectory,
    library: Library,
    context: CuratorContext,
    *,
    drafter: Drafter | None = None,
    lift: Lift | None = None,
) -> Distillation:
    """What a trajectory teaches this library, as deltas with the decisions behind them.

    `drafter` may write the sentences of skills; `lift` makes recipes of kernels. Without them,
    drafts have the curator's own sentences and whole kernels teach nothing. Stores nothing.
    """
    run = CuratorRun(
        trajectory,
        context,
        {known.row.name: known for known in library.known},
        set(library.taken),
        drafter,
        lift,
        Texts(context.embedder),
        NameIndex(context.names),
    )
    run.text_node = text_node(trajectory, context.roles)
    for step in trajectory.steps:
        _step(run, step)
    return Distillation(
        trajectory=trajectory,
        library=library,
        context=context,
        decisions=tuple(run.decisions),
        deltas=tuple(run.deltas),
        drafter=drafter.name if drafter is not None else "",
        answers=run.answers,
        lifted=run.lifted,
        after=Library(tuple(run.known.values()), frozenset(run.taken)),
    )


def replay(
    record: Mapping[str, Any],
    embedder: Embedder | None = None,
    lifted: Mapping[str, Any] | None = None,
) -> Distillation:
    """Judge a stored distillation again, with the answers that were recorded.

    `embedder` must be the one that it was made with. `lifted` is what lifting answered, by node;
    None where nothing could be lifted. Raises InvalidKnowledge for another format or embedder.
    """
    recorded = recorded_from(record, embedder)
    return propose_deltas(
        recorded.trajectory,
        recorded.library,
        recorded.context,
        drafter=Replayed(recorded.drafter, recorded.answers) if recorded.drafter else None,
        lift=recorded_lift(lifted) if lifted is not None else None,
    )


def recorded_lift(lifted: Mapping[str, Any]) -> Lift:
    """Lifting that repeats recorded answers, by node."""

    def lift(trajectory: Trajectory, change: Change) -> Lifted | str:
        answer = lifted.get(str(change.step.child.number), "the record has no answer")
        if isinstance(answer, str):
            return answer
        return Lifted(**{**answer, "signals": tuple(answer.get("signals", ()))})

    return lift


def _step(run: CuratorRun, step: Step) -> None:
    passed, decision = gate(run.trajectory, step, run.seen)
    run.decisions.append(decision)
    if step.child.bundle is not None:
        run.seen.setdefault(kernel_key(step.child.bundle), step.child.number)
    if passed is None:
        return
    cause = _attributed(run, step)
    change, decision = contrast(step, passed, run.context.roles, attributed=cause is not None)
    run.decisions.append(decision)
    if change is None:
        return
    evidence = rows_of(run.trajectory, change, passed.evidence)
    draft = compose(run.trajectory, change, evidence)
    matched = cause or _applied(run, change)
    if matched is not None:
        _match_decided(run, change, draft, matched)
        return
    lifted = _lifted(run, change, draft)
    if lifted is None:
        return
    _learn(run, change, lifted)


def _learn(run: CuratorRun, change: Change, draft: Draft) -> None:
    written = sentences.ask(run, change, draft)
    draft, node = written.draft, change.step.child.number
    unnamed = draft.transformation == UNNAMED
    if unnamed and written.operation not in ("ADD_EVIDENCE", "REFINE"):
        run.decide("draft", node, False, "no rule and nobody names what the new lines do")
        return
    if not written.asked:
        run.decide("draft", node, True, "drafted without a model", name=draft.name)
    if not checked(run, change, draft):
        return
    draft = _normalised(run, node, draft)
    matched = sentences.agreed(run, written, draft)
    if matched is None and unnamed:
        return  # `agreed` recorded why the skill that was named does not match
    if matched is None:
        matched = match(draft, list(run.known.values()), run.texts, run.context.lineages)
    if matched is None:
        run.decide("match", node, True, "nothing in the library says this", name=draft.name)
        changes.add(run, node, draft)
        return
    refine = written.operation == "REFINE" and matched.tier == "named"
    _match_decided(run, change, draft, matched, refine=refine)


def _match_decided(
    run: CuratorRun, change: Change, draft: Draft, matched: Match, *, refine: bool = False
) -> None:
    node, name = change.step.child.number, matched.known.row.name
    similar = vars(matched.similarity) if matched.similarity is not None else {}
    if matched.known.row.state in GONE:
        run.decide("match", node, False, f"{name} says this, and a person took it out")
        return
    if matched.opposite and matched.tier != "attributed":
        changes.contradict(run, node, draft, matched)
        return
    operation: Operation = "REFINE" if refine else "ADD_EVIDENCE"
    reason = f"{name} says this already ({matched.tier})"
    run.decide("match", node, True, reason, operation=operation, **similar)
    changes.support(run, node, draft, matched, refine=refine)


# -- what is known already


def _attributed(run: CuratorRun, step: Step) -> Match | None:
    """The skill that made the change for certain."""
    by_id = {known.row.id: known for known in run.known.values()}
    for id_ in step.proposal.attributed:
        name = skill_of(id_)
        known = run.known.get(name) or by_id.get(id_)  # type: ignore[call-overload]
        if known is not None:
            return Match(known, "attributed", False)
    return None


def _applied(run: CuratorRun, change: Change) -> Match | None:
    """The skill whose text is most of what the change added: the change is its use."""
    added = "\n".join(line[1:] for line in change.pattern if line.startswith("+"))
    names = [n for n in change.step.shown.get("skills", ()) if n in run.known]
    texts = {}
    for name in names:
        row = run.known[name].row
        files = row.metadata.get("files", {})
        texts[name] = "\n".join([row.body, *(files[key] for key in sorted(files))])
    name, share = Shown(texts).source_of(added)
    if not name or share < APPLIED:
        return None
    known = run.known[name]
    return Match(known, "applied", known.row.polarity != change.polarity)


# -- drafts


def _lifted(run: CuratorRun, change: Change, draft: Draft) -> Draft | None:
    """A whole kernel is knowledge only as a recipe; anything else is as it was."""
    node = change.step.child.number
    if change.transformation != WRITTEN and not _foreign_recipe(run, change):
        if is_written(change) and run.drafter is None and node == run.text_node:
            draft = as_text(run.trajectory, change, draft)
            reason = "no rule names what the new lines do; drafted as a text skill"
            run.decide("draft", node, True, reason, kind=TEXT)
        return _without_excerpts(run, change, draft)
    if run.lift is None:
        reason = "a whole kernel against the reference: nothing to compare, and no recipe of it"
        return _as_text(run, change, draft, reason)
    lifted = run.lift(run.trajectory, change)
    run.lifted[str(node)] = lifted if isinstance(lifted, str) else lifted.as_json()
    if isinstance(lifted, str):
        return _as_text(run, change, draft, f"it cannot be lifted to a recipe: {lifted}")
    transformation = ADOPTED + lifted.name
    before = tuple(lifted.signals) or change.before
    adopted = replace(change, transformation=transformation, pattern=(), before=before)
    again = compose(run.trajectory, adopted, draft.evidence)
    run.decide("draft", node, True, f"lifted to the recipe {lifted.name}")
    return replace(again, recipe=lifted.recipe, files=lifted.files)


def _as_text(run: CuratorRun, change: Change, draft: Draft, reason: str) -> Draft | None:
    """The kernel as text, where a model or a person wrote it and it is the run's fastest."""
    node = change.step.child.number
    if not is_written(change):
        run.decide("draft", node, False, reason)
        return None
    if node != run.text_node:
        reason = f"{reason}; as text, this run teaches node {run.text_node}, which is faster"
        run.decide("draft", node, False, reason)
        return None
    text = as_text(run.trajectory, change, draft)
    run.decide("draft", node, True, f"{reason}; drafted as a text skill", kind=TEXT)
    return text


def _foreign_recipe(run: CuratorRun, change: Change) -> bool:
    """An instance of a recipe that is none of the library's: lifting may have its template."""
    if run.lift is None or not change.transformation.startswith(ADOPTED):
        return False
    recipe = change.step.proposal.recipe
    return recipe is not None and recipe not in run.taken


def _without_excerpts(run: CuratorRun, change: Change, draft: Draft) -> Draft:
    """Without code that a document shows: the passage is in the store already."""
    ids = change.step.shown.get("excerpts", ())
    shown = Shown({id_: run.context.shown[id_] for id_ in ids if id_ in run.context.shown})
    source, share = shown.source_of("\n".join(draft.after))
    if not change.pattern or share < APPLIED:
        return draft
    reason = f"its code is that of {source} and is left out"
    run.decide("draft", change.step.child.number, True, reason, share=share)
    return replace(draft, before=(), after=(), sources=(*draft.sources, f"passage {source}"))


def _normalised(run: CuratorRun, node: int, draft: Draft) -> Draft:
    """With a name that nothing else has."""
    base = draft.name
    name, number = base, 2
    while name in run.taken:
        suffix = f"-{number}"
        name, number = base[: MAX_NAME - len(suffix)].rstrip("-") + suffix, number + 1
    draft = replace(draft, name=name)
    run.decide("normalise", node, True, name, body=body_key(draft.template()))
    return draft
