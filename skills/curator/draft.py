"""A skill's text from a change: what an engineer needs to apply it, without a model.

`wording` writes the sentences. A model may write them instead (`drafter`); code, conditions,
figures and sources stay the curator's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kb.catalog.skills import EvidenceRow, SkillDraft, SkillScopes
from kb.moves_vocabulary import direction_of
from kb.problem_terms import canonical_dtype, canonical_op, problem_terms
from optimizer.evaluation.problem.spec import SIZES
from skills.curator.contrast import rule_named
from skills.curator.evidence import render
from skills.curator.records import Change, ParameterChange
from skills.curator.wording import (
    Words,
    effect_lines,
    leading_signals,
    reason_for,
    required_signals,
    snippet,
    sources_of_change,
    words_of,
)
from skills.format.schema import MAX_NAME, advice, sources_of
from skills.format.skillfile import content_sha256
from skills.trajectories.records import Trajectory

WHEN = {"use": "When to use", "avoid": "When it hurts"}
MOST_SIGNALS = 3
MOST_CASES = 6  # named in the text; all are evidence
MOST_LINES = 24  # of each side of a snippet
# A skill is offered for sizes this many times smaller or larger than measured: whoever uses it
# measures again, and the text says what was measured.
TESTED_MARGIN = 4.0
COMPARE = (
    "Correctness on each case against the reference, then the time with and without the change in"
    " the same session."
)
CODE = {"torch": "python", "triton": "python", "cpp": "cpp", "cuda": "cuda", "hip": "cpp"}


@dataclass(frozen=True)
class Draft:
    """A skill before it is stored. `before` and `after` are lines of code or of parameters,
    `sources` the entries of the last section. `kind` is set where it is no transformation (see
    `skills.format.schema`)."""

    name: str
    transformation: str
    polarity: str
    words: Words
    before: tuple[str, ...]
    after: tuple[str, ...]
    code: str
    effect: tuple[str, ...]
    scopes: SkillScopes
    predicate: str
    moves: tuple[Mapping[str, Any], ...]
    sources: tuple[str, ...]
    compatibility: str
    evidence: tuple[EvidenceRow, ...]
    family: str
    language: str
    run_id: str
    toolchain_id: str | None = None
    recipe: Mapping[str, Any] | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    written_by: str = "curator"
    kind: str = ""

    def template(self) -> str:
        """The body with references in place of figures."""
        words = self.words
        parts = [
            (WHEN[self.polarity], _listed(words.when)),
            ("When not", _listed(words.when_not)),
            ("Steps", "\n".join(f"{n}. {step}" for n, step in enumerate(words.steps, 1))),
            ("Before", _fenced(self.code, self.before)),
            ("After", _fenced(self.code, self.after)),
            ("Expected effect", "\n".join(self.effect)),
            ("How to check", _listed(words.check)),
            ("Failure signs", _listed(words.failure_signs)),
            ("Sources", _listed(self.sources)),
        ]
        return "\n\n".join(f"## {title}\n\n{text}" for title, text in parts if text)

    def skill(self) -> SkillDraft:
        """The skill as it is stored: figures in place, a learned candidate of its run."""
        body = render(self.template(), self.evidence)
        draft = SkillDraft(
            name=self.name,
            tier="learned",
            transformation=self.transformation,
            description=render(self.words.description, self.evidence),
            body=body,
            scopes=self.scopes,
            content_sha256="",
            origin="run",
            polarity=self.polarity,
            predicate=self.predicate or None,
            moves=self.moves,
            recipe=self.recipe,
            sources=sources_of(body),
            metadata={
                "allowed_tools": None,
                "other": {},
                "files": dict(self.files),
                **({"kind": self.kind} if self.kind else {}),
                "curator": {
                    "template": self.template(),
                    "evidence": [[row.evaluation_id, row.case_id] for row in self.evidence],
                    "family": self.family,
                    "written_by": self.written_by,
                },
            },
            compatibility=self.compatibility,
            origin_run_id=self.run_id,
            toolchain_id=self.toolchain_id,
        )
        return replace(draft, content_sha256=content_sha256(advice(draft)))


def _listed(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _fenced(code: str, lines: Sequence[str]) -> str:
    return "\n".join([f"```{code}", *lines, "```"]) if lines else ""


def compose(trajectory: Trajectory, change: Change, evidence: Sequence[EvidenceRow]) -> Draft:
    """The draft that needs no model, of a change with at least one evidence row."""
    subject, kernel = trajectory.subject, change.step.proposal.bundle
    evaluation = change.step.child.evaluation
    assert evaluation is not None  # the gate passes no other
    scopes = SkillScopes(
        hardware=(trajectory.hardware,),
        languages=(kernel.language,),
        ops=(canonical_op(subject.op),),
        dtypes=(canonical_dtype(subject.dtype),) if subject.dtype else (),
        signals=tuple(sorted(leading_signals(change))),
    )
    predicate = predicate_of(scopes.ops, required_signals(change), evidence)
    name = slug(trajectory.hardware, change.transformation, subject.op, change.polarity)
    before, after, code = snippet(change)
    return Draft(
        name=name,
        transformation=change.transformation,
        polarity=change.polarity,
        words=words_of(trajectory, change),
        before=before,
        after=after,
        code=code,
        effect=effect_lines(change, evidence),
        scopes=scopes,
        predicate=predicate,
        moves=_moves(change, predicate),
        sources=sources_of_change(trajectory, change),
        compatibility="; ".join([kernel.language, trajectory.hardware, *scopes.dtypes]),
        evidence=tuple(evidence),
        family=subject.family,
        language=kernel.language,
        run_id=trajectory.id,
        toolchain_id=evaluation.toolchain or None,
    )


def slug(hardware: str, transformation: str, op: str, polarity: str = "use") -> str:
    """`<hardware>-<transformation>-<op>` in the letters that a skill's name may have."""
    avoid = "avoid-" if polarity == "avoid" else ""
    text = f"{hardware}-{avoid}{transformation}-{canonical_op(op)}".lower()
    words = "".join(c if c.isascii() and c.isalnum() else "-" for c in text).split("-")
    return "-".join(w for w in words if w)[:MAX_NAME].strip("-")


# -- conditions


def predicate_of(
    ops: Sequence[str], signals: Sequence[str], evidence: Sequence[EvidenceRow]
) -> str:
    """Where a skill is offered: operators, signals of the parent, sizes near those measured."""
    listed = ", ".join(f"'{op}'" for op in sorted(ops))
    parts = [f"problem.op in [{listed}]"]
    named = [f"signals.{name}" for name in sorted(signals)]
    if named:
        joined = " or ".join(named)
        parts.append(f"({joined})" if len(named) > 1 else joined)
    for name, (low, high) in tested(evidence).items():
        least, most = math.floor(low / TESTED_MARGIN), math.ceil(high * TESTED_MARGIN)
        parts.append(f"problem.{name} >= {least} and problem.{name} <= {most}")
    return " and ".join(parts)


def tested(evidence: Sequence[EvidenceRow]) -> dict[str, tuple[float, float]]:
    """The range (lowest, highest) of each quantity over the rows that have it; only quantities that
    predicates know. Rows and their lengths are left out: bytes and the terms of a sum bound what
    was measured, and with both a claim would hold for one shape alone.
    """
    ranges = {}
    for name in sorted(problem_terms().quantities.keys() - SIZES):
        values = [row.details.get("sizes", {}).get(name) for row in evidence]
        numbers = [float(v) for v in values if isinstance(v, int | float) and v > 0]
        if numbers:
            ranges[name] = (min(numbers), max(numbers))
    return ranges


def _moves(change: Change, predicate: str) -> tuple[Mapping[str, Any], ...]:
    """The change as data. A failure gives none: moves say what to do."""
    if change.polarity == "avoid":
        return ()
    if change.parameters:
        return tuple(_move(p, predicate) for p in change.parameters)
    rule = rule_named(change.transformation, change.step.proposal.bundle.language)
    if rule is None or not rule.role:
        return ()
    moved = {"role": rule.role, "direction": rule.direction}
    return (
        {"id": rule.name, "when": predicate, "change": moved, "why": reason_for(*moved.values())},
    )


def _move(parameter: ParameterChange, predicate: str) -> Mapping[str, Any]:
    direction = direction_of(parameter.before, parameter.after)
    changed: dict[str, Any] = {"role": parameter.role, "direction": direction}
    if direction == "set":
        changed["to"] = parameter.after
    return {
        "id": f"{direction}-{parameter.role}",
        "when": predicate,
        "change": changed,
        "why": reason_for(parameter.role, direction),
    }
