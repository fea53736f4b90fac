"""The state of one pass over a trajectory, and the linter's word about a draft in it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from kb.hardware.names import NameIndex
from skills.curator.distillation import Delta, Lifter, Means
from skills.curator.drafting.delta import Drafter
from skills.curator.drafting.draft import Draft, slug
from skills.curator.matching.match import Known, Texts
from skills.curator.reading.contrast import ADOPTED
from skills.curator.reading.evidence import dangling, render
from skills.curator.records import Change, Decision, Trajectory
from skills.lint import Allowed, lint, unsafe


@dataclass
class Judging:
    """known grows with what the pass itself decides, so that a later step meets it. answers: of the
    drafter, by node. seen: codes of earlier candidates, and the node of each."""

    trajectory: Trajectory
    means: Means
    known: dict[str, Known]
    taken: set[str]
    drafter: Drafter | None
    lifter: Lifter | None
    texts: Texts
    names: NameIndex
    decisions: list[Decision] = field(default_factory=list)
    deltas: list[Delta] = field(default_factory=list)
    answers: dict[str, tuple[str, ...]] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)

    def decide(self, stage: str, node: int, passed: bool, reason: str, **details: Any) -> bool:
        self.decisions.append(Decision(stage, node, passed, reason, details))
        return passed

    def add(self, delta: Delta, known: Known) -> None:
        """Keep a delta, and the skill as it is after it."""
        self.deltas.append(delta)
        self.known[known.row.name] = known
        self.taken.add(known.row.name)


def findings(run: Judging, change: Change, draft: Draft) -> list[str]:
    """What the linter refuses of a draft, before and after figures are put in."""
    template, description = draft.template(), draft.words.description
    texts = {"description": description, "body": template}
    found = [str(finding) for finding in lint(texts, allowed(run, change))]
    missing = dangling(template + description, draft.evidence)
    found += [f"{text} refers to no figure" for text in missing]
    if not missing:
        found += [str(f) for f in unsafe("the rendered body", render(template, draft.evidence))]
    for name, text in sorted(draft.files.items()):
        found += [str(f) for f in unsafe(name, text)]
    return list(dict.fromkeys(found))


def checked(run: Judging, change: Change, draft: Draft) -> bool:
    found = findings(run, change, draft)
    reason = "; ".join(found[:3]) if found else "clean"
    return run.decide("lint", change.step.child.number, not found, reason, findings=found)


def allowed(run: Judging, change: Change) -> Allowed:
    """What backs a text about this change."""
    values = {str(v) for p in change.parameters for v in (p.before, p.after) if v is not None}
    kernel = change.step.child.kernel
    if kernel is not None and change.transformation.startswith(ADOPTED):
        values |= {str(value) for value in kernel.values.values()}
    hardware = {run.trajectory.hardware, *run.trajectory.lineage}
    return Allowed(frozenset(values), frozenset(hardware), run.names)


def renamed(draft: Draft, transformation: str) -> Draft:
    """The draft as it is called once somebody named the transformation."""
    name = slug(draft.scopes.hardware[0], transformation, draft.scopes.ops[0], draft.polarity)
    return replace(draft, transformation=transformation, name=name)
