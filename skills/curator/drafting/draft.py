"""A skill's text from a change: what an engineer needs to apply it, without a model.

Everything that was told by proposers is left out: sentences come from `roles.toml`, names from the
trajectory, code from the two kernels without their comments, and every figure is a reference to an
evidence row. A model may write the sentences instead (`drafter`); code, conditions, figures and
sources stay from here.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from kb.catalog.skills import EvidenceRow, SkillDraft, SkillScopes
from kb.moves_vocabulary import direction_of
from kb.problem_terms import canonical_dtype, canonical_op, problem_terms
from retrieval.diagnose.signals import load_signals
from skills.curator.reading.contrast import ADOPTED, rule_named
from skills.curator.reading.evidence import render
from skills.curator.records import Change, ParameterChange, Trajectory
from skills.schema import MAX_NAME, advice, sources_of
from skills.skillfile import content_sha256

WHEN = {"use": "When to use", "avoid": "When it hurts"}
MOST_SIGNALS = 3
MOST_CASES = 6  # told in the text; all are evidence
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
class Words:
    """The sentences of a skill, without code; figures only as references."""

    description: str
    when: tuple[str, ...]
    when_not: tuple[str, ...]
    steps: tuple[str, ...]
    check: tuple[str, ...]
    failure_signs: tuple[str, ...]

    def texts(self) -> dict[str, str]:
        return {
            name: value if isinstance(value, str) else "\n".join(value)
            for name, value in vars(self).items()
        }


@dataclass(frozen=True)
class Draft:
    """A skill before it is stored. before, after: lines of code or of parameters. sources: entries
    of the last section."""

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
        """As it is stored: figures in place, a learned candidate of its run."""
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


@lru_cache(maxsize=1)
def roles() -> Mapping[str, Mapping[str, str]]:
    """What is said of each knob."""
    path = Path(__file__).with_name("roles.toml")
    found: dict[str, dict[str, str]] = tomllib.loads(path.read_text(encoding="utf-8"))
    return found


def compose(trajectory: Trajectory, change: Change, evidence: Sequence[EvidenceRow]) -> Draft:
    """The draft that needs no model."""
    subject, kernel, child = trajectory.subject, change.step.child.kernel, change.step.child
    assert kernel is not None and child.measured is not None
    scopes = SkillScopes(
        hardware=(trajectory.hardware,),
        languages=(kernel.language,),
        ops=(canonical_op(subject.op),),
        dtypes=(canonical_dtype(subject.dtype),) if subject.dtype else (),
        signals=tuple(sorted(_signals(change))),
    )
    predicate = predicate_of(scopes.ops, _conditions(change), evidence)
    name = slug(trajectory.hardware, change.transformation, subject.op, change.polarity)
    before, after, code = _snippet(change)
    return Draft(
        name=name,
        transformation=change.transformation,
        polarity=change.polarity,
        words=_words(trajectory, change),
        before=before,
        after=after,
        code=code,
        effect=_effect(change, evidence),
        scopes=scopes,
        predicate=predicate,
        moves=_moves(change, predicate),
        sources=_sources(trajectory, change),
        compatibility="; ".join([kernel.language, trajectory.hardware, *scopes.dtypes]),
        evidence=tuple(evidence),
        family=subject.family,
        language=kernel.language,
        run_id=trajectory.id,
        toolchain_id=child.measured.toolchain or None,
    )


def slug(hardware: str, transformation: str, op: str, polarity: str = "use") -> str:
    """`<hardware>-<transformation>-<op>` in the letters that a skill's name may have."""
    avoid = "avoid-" if polarity == "avoid" else ""
    text = f"{hardware}-{avoid}{transformation}-{canonical_op(op)}".lower()
    words = "".join(c if c.isascii() and c.isalnum() else "-" for c in text).split("-")
    return "-".join(w for w in words if w)[:MAX_NAME].strip("-")


# -- conditions


def _signals(change: Change) -> tuple[str, ...]:
    """Of the parent's verdict, those that are known here; its first ones lead."""
    known = load_signals()
    found = tuple(s for s in dict.fromkeys(change.before) if s in known)
    return found if _adopted(change) else found[:MOST_SIGNALS]


def _conditions(change: Change) -> tuple[str, ...]:
    """Signals without which the change is not offered. A recipe begins a search, whatever the
    verdict of what was there before."""
    return () if _adopted(change) else _signals(change)


def _adopted(change: Change) -> bool:
    return change.transformation.startswith(ADOPTED)


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
    """Ranges of the quantities over the rows that tell them; only those that predicates know."""
    found = {}
    for name in sorted(problem_terms().quantities):
        values = [row.details.get("sizes", {}).get(name) for row in evidence]
        numbers = [float(v) for v in values if isinstance(v, int | float) and v > 0]
        if numbers:
            found[name] = (min(numbers), max(numbers))
    return found


def _moves(change: Change, predicate: str) -> tuple[Mapping[str, Any], ...]:
    """The change as data. A failure gives none: moves say what to do."""
    if change.polarity == "avoid":
        return ()
    if change.parameters:
        return tuple(_move(p, predicate) for p in change.parameters)
    kernel = change.step.child.kernel
    rule = rule_named(change.transformation, kernel.language if kernel else "")
    if rule is None or not rule.role:
        return ()
    moved = {"role": rule.role, "direction": rule.direction}
    return ({"id": rule.name, "when": predicate, "change": moved, "why": _why(*moved.values())},)


def _move(parameter: ParameterChange, predicate: str) -> Mapping[str, Any]:
    direction = direction_of(parameter.before, parameter.after)
    changed: dict[str, Any] = {"role": parameter.role, "direction": direction}
    if direction == "set":
        changed["to"] = parameter.after
    return {
        "id": f"{direction}-{parameter.role}",
        "when": predicate,
        "change": changed,
        "why": _why(parameter.role, direction),
    }


def _why(role: str, direction: str) -> str:
    said = {"add": "increase", "remove": "decrease", "swap": "set"}.get(direction, direction)
    return roles()[role][said]


# -- sentences


def _words(trajectory: Trajectory, change: Change) -> Words:
    subject, kernel = trajectory.subject, change.step.child.kernel
    assert kernel is not None
    op = canonical_op(subject.op).replace("_", " ")
    article = "an" if op[0] in "aeiou" else "a"
    place = f"{article} {op} kernel in {kernel.language} on {trajectory.hardware}"
    made = (f"It is an instance of the recipe `{kernel.recipe}`.",) if _of_recipe(change) else ()
    conditions = _conditions(change)
    titles = [load_signals().get(signal).title for signal in conditions]
    verdict = " or ".join(_low(title) for title in titles)
    seen = f" whose verdict is: {verdict}" if verdict else ""
    dtype = f", {canonical_dtype(subject.dtype)}" if subject.dtype else ""
    sizes = "Sizes, element types and hardware near those under Expected effect."
    far = "Sizes, element types or hardware far from those measured: measure first."
    signals = [
        f"Its verdict names `{signal}`: {_low(title)}."
        for signal, title in zip(conditions, titles, strict=True)
    ]
    none = ("The verdict names none of these signals.",) if signals else ()
    steps, check, signs = _advice(change)
    if change.polarity == "use":
        signs = (*signs, "The time does not fall beyond noise: take the change back.")
    return Words(
        description=_description(change, place, seen),
        when=(f"The kernel is {place}{dtype}.", *made, *signals, sizes),
        when_not=(far, *none),
        steps=steps,
        check=(*check, COMPARE),
        failure_signs=signs,
    )


def _of_recipe(change: Change) -> bool:
    kernel = change.step.child.kernel
    return bool(change.parameters) and kernel is not None and kernel.recipe is not None


def _low(title: str) -> str:
    return title[:1].lower() + title[1:]


def _description(change: Change, place: str, seen: str) -> str:
    what = _phrase(change)
    if change.polarity == "use":
        return (
            f"Use when tuning {place}{seen}. {what[:1].upper()}{what[1:]}. Measured in one search;"
            " do not use for sizes, element types or hardware far from those measured."
        )
    fate = "slower" if change.gain is not None else _fate(change)
    return (
        f"Avoid on {place}{seen}: to {what} made the kernel {fate}. Measured in one search; it says"
        " nothing about other sizes, element types or hardware."
    )


def _fate(change: Change) -> str:
    validity = change.step.child.measured.validity if change.step.child.measured else ""
    return {"not_compiled": "fail to compile", "incorrect": "incorrect"}.get(validity, "fail")


def _phrase(change: Change) -> str:
    """The change in words."""
    if change.parameters:
        return " and ".join(_parameter_phrase(p) for p in change.parameters)
    if _adopted(change):
        return f"use the recipe {change.transformation.removeprefix(ADOPTED)}"
    return change.transformation.replace("-", " ")


def _parameter_phrase(parameter: ParameterChange) -> str:
    direction = direction_of(parameter.before, parameter.after)
    return f"{direction} the {roles()[parameter.role]['knob']} (`{parameter.name}`)"


def _advice(change: Change) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Steps, checks, failure signs."""
    last = "Leave everything else as it is, build, and compare with the kernel before."
    if change.polarity == "avoid":
        steps = [
            f"Keep {_value(p.name, p.before)}; {_value(p.name, p.after)} is what failed here."
            for p in change.parameters
        ]
        used = [roles()[p.role] for p in change.parameters]
        return tuple(steps), tuple(r["check"] for r in used), tuple(r["sign"] for r in used)
    if change.parameters:
        steps = [
            f"Change {_value(p.name, p.before)} to {_value(p.name, p.after)}."
            f" {_why(p.role, direction_of(p.before, p.after))}"
            for p in change.parameters
        ]
        used = [roles()[p.role] for p in change.parameters]
        return (*steps, last), tuple(r["check"] for r in used), tuple(r["sign"] for r in used)
    if _adopted(change):
        name = change.transformation.removeprefix(ADOPTED)
        first = f"Instantiate the recipe `{name}` with the values under After."
        return (first, "Then tune one value at a time."), (), ()
    kernel = change.step.child.kernel
    rule = rule_named(change.transformation, kernel.language if kernel else "")
    first = f"Apply {change.transformation.replace('-', ' ')} as shown under After."
    if rule is None or not rule.role:
        return (first, last), (), ()
    said = roles()[rule.role]
    why = _why(rule.role, rule.direction)
    return (f"{first} {why}", last), (said["check"],), (said["sign"],)


def _value(name: str, value: Any) -> str:
    return f"`{name}`" if value is None else f"`{name} = {value}`"


# -- code, figures, sources


def _snippet(change: Change) -> tuple[tuple[str, ...], tuple[str, ...], str]:
    kernel = change.step.child.kernel
    assert kernel is not None
    if change.parameters:
        before = [f"{p.name} = {p.before}" for p in change.parameters if p.before is not None]
        return tuple(before), tuple(f"{p.name} = {p.after}" for p in change.parameters), "text"
    if _adopted(change):
        return (), tuple(f"{k} = {v}" for k, v in sorted(kernel.values.items())), "text"
    gone = _cut([line[1:] for line in change.pattern if line.startswith("-")])
    came = _cut([line[1:] for line in change.pattern if line.startswith("+")])
    return gone, came, CODE.get(kernel.language, "text")


def _cut(lines: Sequence[str]) -> tuple[str, ...]:
    """Moved to the left, and not more than one can take in."""
    depth = min((len(line) - len(line.lstrip()) for line in lines), default=0)
    shown = [line[depth:] for line in lines[:MOST_LINES]]
    return (*shown, "...") if len(lines) > MOST_LINES else tuple(shown)


def _effect(change: Change, evidence: Sequence[EvidenceRow]) -> tuple[str, ...]:
    if change.gain is None:
        return (
            "The kernel was {{ev:1.validity}} after the change on {{ev:1.hardware_id}}; its parent"
            " was correct.",
        )
    clock = "Cycles of a simulator, no wall time" if evidence[0].kind == "simulator" else "Measured"
    slower = ", slower than before" if change.polarity == "avoid" else ""
    lines = [
        f"{clock} as one pair of kernels{slower}; whether the advice helps elsewhere is not yet"
        " measured. Speed over the kernel before, with its interval:",
        "",
    ]
    for n in range(1, min(len(evidence), MOST_CASES) + 1):
        ref = f"ev:{n}."
        lines.append(
            f"- {{{{{ref}case_id}}}} on {{{{{ref}hardware_id}}}} ({{{{{ref}sizes}}}}):"
            f" {{{{{ref}speedup}}}}, from {{{{{ref}speedup_low}}}} to {{{{{ref}speedup_high}}}},"
            f" {{{{{ref}n}}}} pairs of blocks"
        )
    if len(evidence) > 1:
        bounds = "from {{ev:all.speedup_low}} to {{ev:all.speedup_high}}"
        lines += ["", f"Over all cases the bounds run {bounds}."]
    return tuple(lines)


def _sources(trajectory: Trajectory, change: Change) -> tuple[str, ...]:
    parent, child = change.step.parent, change.step.child
    lines = [f"run {trajectory.id}, node {child.number} against node {parent.number}"]
    for side in (child, parent):
        if side.measured is not None and side.measured.key:
            lines.append(f"evaluation {side.measured.key}")
    return tuple(lines)
