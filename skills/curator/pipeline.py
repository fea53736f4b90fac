"""From a trajectory to stored candidates: gate, contrast, draft, lint, normalise, match.

`judge` is a function of the trajectory, a snapshot of the library and the answers of whoever
drafted: the same ones give the same decisions. `distil` takes the snapshot, judges and stores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kb.catalog.engine import Catalog
from kb.embedding import Embedder
from kb.hardware.names import NameIndex
from kb.scope import ALL_ACCESS
from skills.curator import changes
from skills.curator.distillation import Distillation, Library, Lifter, Means, recorded_from
from skills.curator.drafting import sentences
from skills.curator.drafting.delta import Drafter
from skills.curator.drafting.draft import Draft, compose
from skills.curator.judging import Judging, checked
from skills.curator.matching.match import Match, Texts, match
from skills.curator.reading.contrast import ADOPTED, UNNAMED, WRITTEN, Roles, contrast
from skills.curator.reading.echo import APPLIED, Shown
from skills.curator.reading.evidence import rows_of
from skills.curator.reading.gate import gate
from skills.curator.reading.normalise import body_key, kernel_key
from skills.curator.records import Change, Operation, Step, Trajectory
from skills.curator.storing import means_of, snapshot, store_deltas
from skills.schema import MAX_NAME

GONE = frozenset({"quarantined"})  # a person took it out: it is not learned again


def distil(
    trajectory: Trajectory,
    catalog: Catalog,
    *,
    drafter: Drafter | None = None,
    lifter: Lifter | None = None,
    embedder: Embedder | None = None,
    roles: Roles | None = None,
    shown: Mapping[str, str] | None = None,
    access_scope: str = ALL_ACCESS,
) -> Distillation:
    """Judge a trajectory over the catalog's library and store what it teaches.

    embedder: without one, skills in other words are not recognised. roles: of recipes' parameters,
    else as the library's recipes say. shown: texts of the excerpts that steps were shown, by id.
    Raises Conflict where the library changed meanwhile; then nothing is stored.
    """
    library = snapshot(catalog, trajectory, access_scope)
    means = means_of(catalog, library, roles=roles, shown=shown, embedder=embedder)
    judged = judge(trajectory, library, means, drafter=drafter, lifter=lifter)
    return store_deltas(catalog, [judged], access_scope)[0]


def judge(
    trajectory: Trajectory,
    library: Library,
    means: Means,
    *,
    drafter: Drafter | None = None,
    lifter: Lifter | None = None,
) -> Distillation:
    """What a trajectory teaches this library. Stores nothing."""
    run = Judging(
        trajectory,
        means,
        {known.row.name: known for known in library.known},
        set(library.taken),
        drafter,
        lifter,
        Texts(means.embedder),
        NameIndex(means.names),
    )
    for step in trajectory.steps:
        _step(run, step)
    return Distillation(
        trajectory=trajectory,
        library=library,
        means=means,
        decisions=tuple(run.decisions),
        deltas=tuple(run.deltas),
        drafter=drafter.name if drafter is not None else "",
        answers=run.answers,
        after=Library(tuple(run.known.values()), frozenset(run.taken)),
    )


def replay(record: Mapping[str, Any], means: Means, lifter: Lifter | None = None) -> Distillation:
    """Judge a stored distillation again. means: only its embedder is used."""
    made = recorded_from(record, means.embedder)
    drafter = sentences.Replayed(made.drafter, made.answers) if made.drafter else None
    return judge(made.trajectory, made.library, made.means, drafter=drafter, lifter=lifter)


def _step(run: Judging, step: Step) -> None:
    passed, decision = gate(run.trajectory, step, run.seen)
    run.decisions.append(decision)
    if step.child.kernel is not None:
        run.seen.setdefault(kernel_key(step.child.kernel), step.child.number)
    if passed is None:
        return
    cause = _attributed(run, step)
    change, decision = contrast(step, passed, run.means.roles, attributed=cause is not None)
    run.decisions.append(decision)
    if change is None:
        return
    evidence = rows_of(run.trajectory, change, passed.evidence)
    draft = compose(run.trajectory, change, evidence)
    found = cause or _applied(run, change)
    if found is not None:
        _match_decided(run, change, draft, found)
        return
    lifted = _lifted(run, change, draft)
    if lifted is None:
        return
    _learn(run, change, lifted)


def _learn(run: Judging, change: Change, draft: Draft) -> None:
    asked = sentences.ask(run, change, draft)
    draft, node = asked.draft, change.step.child.number
    unnamed = draft.transformation == UNNAMED
    if unnamed and asked.operation not in ("ADD_EVIDENCE", "REFINE"):
        run.decide("draft", node, False, "no rule and nobody names what the new lines do")
        return
    if not asked.asked:
        run.decide("draft", node, True, "drafted without a model", name=draft.name)
    if not checked(run, change, draft):
        return
    draft = _normalised(run, node, draft)
    found = sentences.agreed(run, asked, draft)
    if found is None and unnamed:
        return  # `agreed` said why the skill that was named is not the one
    if found is None:
        found = match(draft, list(run.known.values()), run.texts, run.means.lineages)
    if found is None:
        run.decide("match", node, True, "nothing in the library says this", name=draft.name)
        changes.add(run, node, draft)
        return
    refine = asked.operation == "REFINE" and found.tier == "named"
    _match_decided(run, change, draft, found, refine=refine)


def _match_decided(
    run: Judging, change: Change, draft: Draft, found: Match, *, refine: bool = False
) -> None:
    node, name = change.step.child.number, found.known.row.name
    similar = vars(found.similarity) if found.similarity is not None else {}
    if found.known.row.state in GONE:
        run.decide("match", node, False, f"{name} says this, and a person took it out")
        return
    if found.opposite and found.tier != "attributed":
        changes.contradict(run, node, draft, found)
        return
    operation: Operation = "REFINE" if refine else "ADD_EVIDENCE"
    reason = f"{name} says this already ({found.tier})"
    run.decide("match", node, True, reason, operation=operation, **similar)
    changes.support(run, node, draft, found, refine=refine)


# -- what is known already


def _attributed(run: Judging, step: Step) -> Match | None:
    """The skill that made the change for certain."""
    by_id = {known.row.id: known for known in run.known.values()}
    for id_ in step.attributed:
        name = id_.partition("#")[0]  # a skill's move is told as `name#number`
        known = run.known.get(name) or by_id.get(id_)  # type: ignore[call-overload]
        if known is not None:
            return Match(known, "attributed", False)
    return None


def _applied(run: Judging, change: Change) -> Match | None:
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


def _lifted(run: Judging, change: Change, draft: Draft) -> Draft | None:
    """A whole kernel is knowledge only as a recipe; anything else is as it was."""
    node = change.step.child.number
    if change.transformation != WRITTEN and not _foreign_recipe(run, change):
        return _without_excerpts(run, change, draft)
    if run.lifter is None:
        reason = "a whole kernel against the reference: nothing to compare, and no recipe of it"
        run.decide("draft", node, False, reason)
        return None
    found = run.lifter.lift(run.trajectory, change)
    if isinstance(found, str):
        run.decide("draft", node, False, f"it cannot be lifted to a recipe: {found}")
        return None
    transformation = ADOPTED + found.name
    before = tuple(found.signals) or change.before
    adopted = replace(change, transformation=transformation, pattern=(), before=before)
    again = compose(run.trajectory, adopted, draft.evidence)
    run.decide("draft", node, True, f"lifted to the recipe {found.name}")
    return replace(again, recipe=found.recipe, files=found.files)


def _foreign_recipe(run: Judging, change: Change) -> bool:
    """An instance of a recipe that is none of the library's: the lifter may have its template."""
    kernel = change.step.child.kernel
    if run.lifter is None or kernel is None or not change.transformation.startswith(ADOPTED):
        return False
    return kernel.recipe is not None and kernel.recipe not in run.taken


def _without_excerpts(run: Judging, change: Change, draft: Draft) -> Draft:
    """Without code that a document shows: the passage is in the store already."""
    ids = change.step.shown.get("excerpts", ())
    shown = Shown({id_: run.means.shown[id_] for id_ in ids if id_ in run.means.shown})
    source, share = shown.source_of("\n".join(draft.after))
    if not change.pattern or share < APPLIED:
        return draft
    reason = f"its code is that of {source} and is left out"
    run.decide("draft", change.step.child.number, True, reason, share=share)
    return replace(draft, before=(), after=(), sources=(*draft.sources, f"passage {source}"))


def _normalised(run: Judging, node: int, draft: Draft) -> Draft:
    """With a name that nothing else has."""
    base = draft.name
    name, number = base, 2
    while name in run.taken:
        suffix = f"-{number}"
        name, number = base[: MAX_NAME - len(suffix)].rstrip("-") + suffix, number + 1
    draft = replace(draft, name=name)
    run.decide("normalise", node, True, name, body=body_key(draft.template()))
    return draft
