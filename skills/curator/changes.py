"""One pass over a trajectory: its state, and the changes of the library that it proposes.

A change is a new skill, more evidence for one, or two that contradict each other. Figures of two
skills are never averaged. A candidate's scope may widen to what was measured; a skill in use keeps
its claim until that is verified.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kb.catalog.skills import EvidenceRow, SkillDraft, SkillRow, SkillScopes, structured_key
from kb.hardware.lineage import NameIndex
from kb.ids import SkillId, derived_id
from skills.curator.contrast import ADOPTED
from skills.curator.distillation import CuratorContext
from skills.curator.draft import WHEN, Draft, predicate_of, slug
from skills.curator.drafter import Drafter
from skills.curator.evidence import dangling, render
from skills.curator.match import Apart, Known, Match, Texts, apart, backing
from skills.curator.records import Change, Decision, Delta, Lift, Narrowing, Operation
from skills.format.lint import Allowed, lint, unsafe
from skills.format.schema import advice
from skills.format.skillfile import content_sha256
from skills.trajectories.records import Trajectory


@dataclass
class CuratorRun:
    """The state of one pass over a trajectory.

    `known` grows with what the pass itself decides, so that a later step meets it. `answers` are
    those of the drafter and `lifted` those of lifting, by node. `seen` holds the code of earlier
    candidates, and the node of each. `text_node` is the node that may be taught as text.
    """

    trajectory: Trajectory
    context: CuratorContext
    known: dict[str, Known]
    taken: set[str]
    drafter: Drafter | None
    lift: Lift | None
    texts: Texts
    names: NameIndex
    decisions: list[Decision] = field(default_factory=list)
    deltas: list[Delta] = field(default_factory=list)
    answers: dict[str, tuple[str, ...]] = field(default_factory=dict)
    lifted: dict[str, Any] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)
    text_node: int | None = None

    def decide(self, stage: str, node: int, passed: bool, reason: str, **details: Any) -> bool:
        """Record a decision; returns `passed`."""
        self.decisions.append(Decision(stage, node, passed, reason, details))
        return passed

    def add(self, delta: Delta, known: Known) -> None:
        """Keep a delta, and the skill as it is after it."""
        self.deltas.append(delta)
        self.known[known.row.name] = known
        self.taken.add(known.row.name)


def findings(run: CuratorRun, change: Change, draft: Draft) -> list[str]:
    """What the linter refuses in a draft, before and after figures are put in; empty for a clean
    one."""
    template, description = draft.template(), draft.words.description
    texts = {"description": description, "body": template}
    problems = [str(finding) for finding in lint(texts, allowed(run, change))]
    missing = dangling(template + description, draft.evidence)
    problems += [f"{text} refers to no figure" for text in missing]
    if not missing:
        problems += [str(f) for f in unsafe("the rendered body", render(template, draft.evidence))]
    for name, text in sorted(draft.files.items()):
        problems += [str(f) for f in unsafe(name, text)]
    return list(dict.fromkeys(problems))


def checked(run: CuratorRun, change: Change, draft: Draft) -> bool:
    """Record what the linter says about a draft; whether it is clean."""
    problems = findings(run, change, draft)
    reason = "; ".join(problems[:3]) if problems else "clean"
    return run.decide("lint", change.step.child.number, not problems, reason, findings=problems)


def allowed(run: CuratorRun, change: Change) -> Allowed:
    """The parameter values and hardware names that a text about this change may contain."""
    values = {str(v) for p in change.parameters for v in (p.before, p.after) if v is not None}
    if change.transformation.startswith(ADOPTED):
        values |= {str(value) for value in change.step.proposal.values.values()}
    hardware = {run.trajectory.hardware, *run.trajectory.lineage}
    return Allowed(frozenset(values), frozenset(hardware), run.names)


def renamed(draft: Draft, transformation: str) -> Draft:
    """The draft under the name of a transformation that a model gave."""
    name = slug(draft.scopes.hardware[0], transformation, draft.scopes.ops[0], draft.polarity)
    return replace(draft, transformation=transformation, name=name)


# -- deltas


def add(run: CuratorRun, node: int, draft: Draft, *, conflicts_with: str = "") -> None:
    """Propose a new candidate. `conflicts_with` names the skill of opposite effect."""
    skill = draft.skill()
    reason = f"learned from {run.trajectory.id}, node {node}"
    delta = Delta("ADD", node, skill.name, reason, skill, draft.evidence, conflicts_with)
    run.add(delta, Known(_row(skill), draft.evidence))


def support(
    run: CuratorRun, node: int, draft: Draft, matched: Match, *, refine: bool = False
) -> None:
    """Propose more evidence for a skill that says this already. `refine` also takes over the
    draft's text, where the skill is still a candidate of the curator's."""
    known = matched.known
    added = tuple(row for row in draft.evidence if not _is_there(row, known.evidence))
    if not added:
        run.decide("match", node, False, f"{known.row.name} has this measurement already")
        return
    revised = None
    if refine:
        revised = _refined(known, draft)
    elif matched.tier in ("content", "key", "words"):
        revised = widened(known, draft)
    if refine and revised is None:
        reason = f"{known.row.name} is no candidate of the curator's: its text stays"
        run.decide("match", node, False, reason)
    operation: Operation = "REFINE" if refine and revised is not None else "ADD_EVIDENCE"
    reason = f"measured again in {run.trajectory.id}, node {node} ({matched.tier})"
    row = _follow(known.row, revised) if revised is not None else known.row
    delta = Delta(
        operation,
        node,
        known.row.name,
        reason,
        revised,
        added,
        version=known.row.version,
    )
    run.add(delta, Known(row, (*known.evidence, *added)))


def contradict(run: CuratorRun, node: int, draft: Draft, matched: Match) -> None:
    """Propose what follows from two opposite effects: both conditions are narrowed by what differs.
    Where nothing differs, the measurement is held against the skill and a person decides."""
    known, separated = matched.known, apart(draft, matched.known)
    if separated is None:
        reason = f"{known.row.name} says the opposite, and nothing differs between the two"
        run.decide("match", node, False, reason, held=True)
        added = tuple(row for row in draft.evidence if not _is_there(row, known.evidence))
        if added:
            version = known.row.version
            delta = Delta("CONTRADICT", node, known.row.name, reason, None, added, version=version)
            run.add(delta, Known(known.row, (*known.evidence, *added)))
        return
    reason = f"{known.row.name} has the opposite effect; they differ in {separated.what}"
    run.decide("match", node, True, reason, ours=separated.ours, theirs=separated.theirs)
    name = known.row.name
    add(run, node, _narrowed(draft, separated), conflicts_with=name)
    narrowing, row = None, known.row
    if separated.parts:
        predicate = _and(row.predicate or "", separated.theirs)
        narrowing = Narrowing(predicate, separated.parts)
        row = replace(row, predicate=predicate, version=row.version + 1)
    delta = Delta(
        "CONTRADICT",
        node,
        name,
        reason,
        conflicts_with=run.deltas[-1].skill,
        narrowing=narrowing,
        version=known.row.version,
    )
    run.add(delta, Known(row, known.evidence))


def _narrowed(draft: Draft, separated: Apart) -> Draft:
    condition = (
        f"The {separated.what} differs: there the opposite was measured, see the linked skill."
    )
    words = replace(draft.words, when_not=(*draft.words.when_not, condition))
    predicate = _and(draft.predicate, separated.ours)
    moves = tuple({**move, "when": predicate} for move in draft.moves)
    return replace(draft, words=words, predicate=predicate, moves=moves)


def _and(predicate: str, condition: str) -> str:
    if not predicate or not condition:
        return predicate or condition
    return f"({predicate}) and {condition}"


def _is_there(row: EvidenceRow, evidence: Sequence[EvidenceRow]) -> bool:
    return _measurement(row) in {_measurement(other) for other in evidence}


def _measurement(row: EvidenceRow) -> tuple[Any, ...]:
    details = row.details
    return (row.evaluation_id, row.case_id, details.get("run"), details.get("node"))


# -- texts that follow an earlier one


def widened(known: Known, draft: Draft) -> SkillDraft | None:
    """A candidate of the curator's whose scopes and sizes include what was measured now. None where
    they do already, or where the skill is in use, narrowed or somebody else's."""
    row, scopes = known.row, draft.scopes
    pairs = backing(known)
    mine = row.tier == "learned" and row.state == "candidate" and "curator" in row.metadata
    if not mine or row.predicate != predicate_of(row.scopes.ops, row.scopes.signals, pairs):
        return None
    joined = SkillScopes(
        **{kind: _union(getattr(row.scopes, kind), getattr(scopes, kind)) for kind in vars(scopes)}
    )
    both = [*pairs, *draft.evidence]
    predicate = predicate_of(joined.ops, joined.signals, both)
    if joined == row.scopes and predicate == row.predicate:
        return None
    sentence = f"- The same effect was measured for {_situation(scopes)}.\n"
    drafted = dict(row.metadata["curator"])
    template, body = drafted["template"], row.body
    if joined != row.scopes and sentence not in body:
        title = f"## {WHEN[row.polarity]}\n\n"
        template, body = (text.replace(title, title + sentence, 1) for text in (template, body))
    return _revised(row, joined, predicate, body, {**drafted, "template": template})


def _union(ours: Sequence[str], theirs: Sequence[str]) -> tuple[str, ...]:
    """Of two scopes; an empty one restricts nothing and stays so."""
    return tuple(sorted({*ours, *theirs})) if ours and theirs else ()


def _situation(scopes: SkillScopes) -> str:
    parts = (scopes.ops, scopes.languages, scopes.dtypes, scopes.hardware)
    return ", ".join(", ".join(part) for part in parts if part)


def _refined(known: Known, draft: Draft) -> SkillDraft | None:
    """The new text under the old name; only of a candidate that the curator wrote."""
    row = known.row
    if row.tier != "learned" or row.state != "candidate" or "curator" not in row.metadata:
        return None
    return replace(draft, name=row.name, transformation=row.transformation).skill()


def _revised(
    row: SkillRow, scopes: SkillScopes, predicate: str, body: str, drafted: dict[str, Any]
) -> SkillDraft:
    copied = {
        name: getattr(row, name)
        for name in SkillDraft.__dataclass_fields__
        if name not in ("scopes", "predicate", "body", "metadata", "moves", "content_sha256")
    }
    draft = SkillDraft(
        **copied,
        scopes=scopes,
        predicate=predicate,
        body=body,
        metadata={**row.metadata, "curator": drafted},
        moves=tuple({**move, "when": predicate} for move in row.moves),
        content_sha256="",
    )
    return replace(draft, content_sha256=content_sha256(advice(draft)))


def _follow(row: SkillRow, draft: SkillDraft) -> SkillRow:
    version = row.version + (draft.content_sha256 != row.content_sha256)
    return replace(_row(draft), id=row.id, version=version)


def _row(draft: SkillDraft) -> SkillRow:
    """A draft as it will be read from the catalog; without the times of storing."""
    copied = {
        name: getattr(draft, name)
        for name in SkillRow.__dataclass_fields__
        if name in SkillDraft.__dataclass_fields__ and name not in ("moves", "sources")
    }
    return SkillRow(
        **copied,
        id=SkillId(derived_id("sk", draft.name)),
        state="candidate",
        structured_key=structured_key(draft.scopes, draft.transformation),
        moves=tuple(draft.moves),
        sources=tuple(draft.sources),
        trials=0,
        wins=0,
        last_used_at=None,
        written_at="",
        created_at="",
        updated_at="",
    )
