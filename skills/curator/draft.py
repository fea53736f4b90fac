"""A skill's text from a change, without a model: when the change applies, its steps, code, figures
and conditions.

It contains nothing that a proposer wrote but code: sentences come from `roles.toml`, names from the
trajectory, and every figure is a reference to an evidence row. A model may rewrite the sentences
(`drafter`) and nothing else. A kernel that is right and faster but cannot become a recipe is
drafted as a text with its key lines.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from kb.catalog.skills.reading import EvidenceRow, SkillDraft, SkillScopes
from kb.errors import InvalidKnowledge
from kb.ids import derived_id
from kb.problem_terms import canonical_dtype, canonical_op, direction_of, problem_terms
from optimizer.evaluation.problem.spec import SIZES
from optimizer.evaluation.records import CaseTiming, Interval
from retrieval.diagnose.signals import load_signals
from skills.curator.comparison import kernel_key
from skills.curator.contrast import (
    VECTORIZE,
    CodeRule,
    GatePass,
    contrast,
    gain_of,
    matching_rules,
    rules_in,
    rules_named,
)
from skills.curator.excerpt import excerpt
from skills.curator.records import UNNAMED, WRITTEN, KernelChange, Roles
from skills.curator.structure import NAMES, VECTORS, differences, needs, structure_of
from skills.format.lint import is_name
from skills.format.schema import MAX_NAME, TEXT, sources_of
from skills.format.skillfile import with_content_hash
from skills.trajectories.records import MeasuredKernel, Trajectory, TrajectoryStep

WHEN = {"use": "When to use", "avoid": "When it hurts"}
MOST_SIGNALS = 3
MOST_CASES = 6  # named in the text; all of them are evidence
MOST_LINES = 24  # of a snippet of a whole kernel
# Characters of both sides: a rewritten kernel cannot be applied from a part of it.
MOST_CODE = 6_600
MOST_LIMITS = 5
# A skill is offered for sizes this many times smaller or larger than measured: the text states the
# measured ones, and its user measures again.
TESTED_MARGIN = 4.0
COMPARE = (
    "Correctness on each case against the reference, then the time with and without the change in"
    " the same session."
)
CODE = {"torch": "python", "triton": "python", "cpp": "cpp", "cuda": "cuda", "hip": "cpp"}
COMPARED = "Leave everything else as it is, build, and compare with the kernel before."
LAUNCHED = "Fit the launch to it, build, and compare with the kernel before."
WRITERS = frozenset({"llm", "external"})  # origins of kernels that a model or a person wrote
AROUND = 1  # lines shown before and after one that a rule names
CHANGED = "change-kernel"
# Shares of measured limits in percent, as a verdict gives them.
LIMITS = {"matmul_peak_pct": "matrix product rate", "copy_bandwidth_pct": "copy bandwidth"}
LEAST_SHARE, MOST_SHARE = 1.0, 110.0
EvidenceKind = Literal["pair", "simulator"]


@dataclass(frozen=True)
class SkillSentences:
    """The sentences of a skill, without code; figures are references."""

    description: str
    when: tuple[str, ...]
    when_not: tuple[str, ...]
    steps: tuple[str, ...]
    check: tuple[str, ...]
    failure_signs: tuple[str, ...]


@dataclass(frozen=True)
class DraftedSkill:
    """A skill before it is stored. `before` and `after` are lines of code or of parameters,
    `sources` the entries of the last section. `kind` is set for a skill that is not a
    transformation (see `skills.format.schema`)."""

    name: str
    transformation: str
    polarity: str
    words: SkillSentences
    before: tuple[str, ...]
    after: tuple[str, ...]
    code: str
    effect: tuple[str, ...]
    scopes: SkillScopes
    predicate: str
    moves: tuple[Mapping[str, Any], ...]
    sources: tuple[str, ...]
    evidence: tuple[EvidenceRow, ...]
    family: str
    recipe: Mapping[str, Any] | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    written_by: str = "curator"
    kind: str = ""

    @property
    def language(self) -> str:
        return self.scopes.languages[0]

    def template(self) -> str:
        """The body with references in place of figures."""
        words = self.words
        parts = [
            (WHEN[self.polarity], listed(words.when)),
            ("When not", listed(words.when_not)),
            ("Steps", "\n".join(f"{n}. {step}" for n, step in enumerate(words.steps, 1))),
            ("Before", fenced(self.code, self.before)),
            ("After", fenced(self.code, self.after)),
            ("Expected effect", "\n".join(self.effect)),
            ("How to check", listed(words.check)),
            ("Failure signs", listed(words.failure_signs)),
            ("Sources", listed(self.sources)),
        ]
        return sections(parts)

    def skill(self) -> SkillDraft:
        """The skill as it is stored: figures in place, a learned candidate of its run."""
        template, row = self.template(), self.evidence[0]
        body = render(template, self.evidence)
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
                    "template": template,
                    "evidence": [[row.evaluation_id, row.case_id] for row in self.evidence],
                    "family": self.family,
                    "written_by": self.written_by,
                },
            },
            compatibility="; ".join([self.language, self.scopes.hardware[0], *self.scopes.dtypes]),
            origin_run_id=row.details["run"],
            toolchain_id=row.toolchain_id,
        )
        return with_content_hash(draft)


def sections(parts: Sequence[tuple[str, str]]) -> str:
    """The (title, text) pairs that have a text, as Markdown sections."""
    return "\n\n".join(f"## {title}\n\n{text}" for title, text in parts if text)


def listed(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def fenced(code: str, lines: Sequence[str]) -> str:
    """The lines as a code block of a language; empty without lines."""
    return "\n".join([f"```{code}", *lines, "```"]) if lines else ""


def compose(
    trajectory: Trajectory, change: KernelChange, evidence: Sequence[EvidenceRow]
) -> DraftedSkill:
    """The draft of a change with at least one evidence row, without a model."""
    subject = trajectory.subject
    scopes = SkillScopes(
        hardware=(trajectory.hardware,),
        languages=(change.language,),
        ops=(canonical_op(subject.op),),
        dtypes=(canonical_dtype(subject.dtype),) if subject.dtype else (),
        signals=tuple(sorted(_leading_signals(change))),
    )
    predicate = predicate_of(scopes.ops, _required_signals(change), evidence)
    before, after, code = _snippet(change)
    return DraftedSkill(
        name=slug(trajectory.hardware, change.transformation, subject.op, change.polarity),
        transformation=change.transformation,
        polarity=change.polarity,
        words=_sentences(trajectory, change),
        before=before,
        after=after,
        code=code,
        effect=_effect_lines(change, evidence),
        scopes=scopes,
        predicate=predicate,
        moves=_moves(change, predicate),
        sources=_sources(trajectory, change),
        evidence=tuple(evidence),
        family=subject.family,
    )


def slug(hardware: str, transformation: str, op: str, polarity: str = "use") -> str:
    """`<hardware>-<transformation>-<op>` as the name of a skill."""
    avoid = "avoid-" if polarity == "avoid" else ""
    text = f"{hardware}-{avoid}{transformation}-{canonical_op(op)}"
    return slugged(text)[:MAX_NAME].strip("-")


def slugged(text: str) -> str:
    """The text in the characters of a skill's name: lower-case words with hyphens."""
    words = "".join(c if c.isascii() and c.isalnum() else "-" for c in text.lower()).split("-")
    return "-".join(word for word in words if word)


# -- conditions


def _leading_signals(change: KernelChange) -> tuple[str, ...]:
    """Registered signals of the parent's verdict, the leading ones first. Of a change of code only
    those that its rules answer: any other is no reason for it."""
    known = load_signals()
    signals = tuple(s for s in dict.fromkeys(change.before) if s in known)
    if not (change.parameters or change.adopted or change.transformation == WRITTEN):
        answered = {signal for rule in _rules(change) for signal in rule.signals}
        signals = tuple(s for s in signals if s in answered)
    return signals if change.adopted else signals[:MOST_SIGNALS]


def _rules(change: KernelChange) -> list[CodeRule]:
    """The rules that name a change of code."""
    return rules_named(change.transformation, change.language)


def _required_signals(change: KernelChange) -> tuple[str, ...]:
    """Signals without which the change is not offered. A recipe needs no signal: a search begins
    with it before it has a verdict."""
    return () if change.adopted else _leading_signals(change)


def predicate_of(
    ops: Sequence[str], signals: Sequence[str], evidence: Sequence[EvidenceRow]
) -> str:
    """The precondition: operators, signals of the parent, sizes near the measured ones."""
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
    """The range (lowest, highest) of each quantity of predicates over the rows that have it. Row
    counts and lengths are left out: bytes and the terms of a sum bound the claim well enough, and
    with all of them it would hold for one shape alone."""
    ranges = {}
    for name in sorted(problem_terms().quantities.keys() - SIZES):
        values = [row.details.get("sizes", {}).get(name) for row in evidence]
        numbers = [float(v) for v in values if isinstance(v, int | float) and v > 0]
        if numbers:
            ranges[name] = (min(numbers), max(numbers))
    return ranges


def _moves(change: KernelChange, predicate: str) -> tuple[Mapping[str, Any], ...]:
    if change.polarity == "avoid":
        return ()
    if change.parameters:
        return tuple(
            _move(
                f"{direction}-{p.role}",
                predicate,
                p.role,
                direction,
                p.after if direction == "set" else None,
            )
            for p in change.parameters
            for direction in [direction_of(p.before, p.after)]
        )
    rules = [rule for rule in _rules(change) if rule.role]
    return tuple(_move(rule.name, predicate, rule.role, rule.direction) for rule in rules)


def _move(
    name: str, predicate: str, role: str, direction: str, to: Any = None
) -> Mapping[str, Any]:
    changed = {"role": role, "direction": direction, **({} if to is None else {"to": to})}
    return {"id": name, "when": predicate, "change": changed, "why": reason_for(role, direction)}


# -- sentences


@lru_cache(maxsize=1)
def roles() -> Mapping[str, Mapping[str, str]]:
    path = Path(__file__).with_name("roles.toml")
    sentences: dict[str, dict[str, str]] = tomllib.loads(path.read_text(encoding="utf-8"))
    return sentences


def reason_for(role: str, direction: str) -> str:
    """Why a parameter role is moved in a direction (`roles.toml`)."""
    key = {"add": "increase", "remove": "decrease", "swap": "set"}.get(direction, direction)
    return roles()[role][key]


def _sentences(trajectory: Trajectory, change: KernelChange) -> SkillSentences:
    subject, recipe = trajectory.subject, change.step.proposal.recipe
    place = place_of(trajectory, change)
    instance = (
        (f"It is an instance of the recipe `{recipe}`.",) if change.parameters and recipe else ()
    )
    required = _required_signals(change)
    titles = [load_signals().get(signal).title for signal in required]
    verdict = " or ".join(_low(title) for title in titles)
    seen = f" whose verdict is: {verdict}" if verdict else ""
    dtype = f", {canonical_dtype(subject.dtype)}" if subject.dtype else ""
    sizes = "Sizes, element types and hardware near those under Expected effect."
    far = "Sizes, element types or hardware far from those measured: measure first."
    signals = [
        f"Its verdict names `{signal}`: {_low(title)}."
        for signal, title in zip(required, titles, strict=True)
    ]
    none = ("The verdict names none of these signals.",) if signals else ()
    steps, check, signs = _advice(change)
    applies = tuple(rule.when for rule in _rules(change) if rule.when)
    if change.polarity == "use":
        signs = (*signs, "The time does not fall beyond noise: take the change back.")
    return SkillSentences(
        description=_description(change, place, seen),
        when=(f"The kernel is {place}{dtype}.", *applies, *instance, *signals, sizes),
        when_not=(far, *none, *_limits(change)),
        steps=steps,
        check=(*check, COMPARE),
        failure_signs=signs,
    )


def _limits(change: KernelChange) -> tuple[str, ...]:
    """What the code after needs and the code before does not."""
    parent, rewritten = change.step.parent.bundle, not (change.parameters or change.adopted)
    if parent is None or not rewritten or change.polarity == "avoid":
        return ()
    found = needs(structure_of(parent), structure_of(change.step.proposal.bundle))
    return tuple(found[:MOST_LIMITS])


def place_of(trajectory: Trajectory, change: KernelChange) -> str:
    """The kernel of a change in words: `a softmax kernel in cpp on x86-64`."""
    op = canonical_op(trajectory.subject.op).replace("_", " ")
    article = "an" if op[0] in "aeiou" else "a"
    return f"{article} {op} kernel in {change.language} on {trajectory.hardware}"


def _low(title: str) -> str:
    return title[:1].lower() + title[1:]


def _description(change: KernelChange, place: str, seen: str) -> str:
    what = _phrase(change)
    if change.polarity == "use":
        return (
            f"Use when tuning {place}{seen}. {what[:1].upper()}{what[1:]}. Measured in one search;"
            " do not use for sizes, element types or hardware far from those measured."
        )
    evaluation = change.step.child.evaluation
    validity = evaluation.validity if evaluation is not None else ""
    fates = {"not_compiled": "fail to compile", "incorrect": "incorrect"}
    fate = "slower" if change.gain is not None else fates.get(validity, "fail")
    return (
        f"Avoid on {place}{seen}: to {what} made the kernel {fate}. Measured in one search; it says"
        " nothing about other sizes, element types or hardware."
    )


def _phrase(change: KernelChange) -> str:
    if change.parameters:
        return " and ".join(
            f"{direction_of(p.before, p.after)} the {roles()[p.role]['knob']} (`{p.name}`)"
            for p in change.parameters
        )
    if change.adopted:
        return f"use the recipe {change.adopted}"
    return change.transformation.replace("-", " ")


def _advice(change: KernelChange) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Steps, checks, failure signs."""
    last = COMPARED
    used = [roles()[p.role] for p in change.parameters]
    checks, signs = tuple(r["check"] for r in used), tuple(r["sign"] for r in used)
    if change.polarity == "avoid":
        steps = [
            f"Keep {_value(p.name, p.before)}; {_value(p.name, p.after)} is what failed here."
            for p in change.parameters
        ]
        return tuple(steps), checks, signs
    if change.parameters:
        steps = [
            f"Change {_value(p.name, p.before)} to {_value(p.name, p.after)}."
            f" {reason_for(p.role, direction_of(p.before, p.after))}"
            for p in change.parameters
        ]
        return (*steps, last), checks, signs
    if change.adopted:
        first = f"Instantiate the recipe `{change.adopted}` with the values under After."
        return (first, "Then tune one value at a time."), (), ()
    steps = [_step(rule) for rule in _rules(change)]
    used = [roles()[rule.role] for rule in _rules(change) if rule.role]
    limits = ("Each point under When not, for the new code and its launch.",)
    checks = (*(r["check"] for r in used), *(limits if _limits(change) else ()))
    parent = change.step.parent.bundle
    if parent is not None and any(rule.structure for rule in _rules(change)):
        found = differences(structure_of(parent), structure_of(change.step.proposal.bundle))
        said = (NAMES, VECTORS) if VECTORIZE in change.transformation else (NAMES,)
        others = [text for text in found if not text.startswith(said)]
        steps += [f"What differs beside it or with it: {' '.join(others)}"] if others else []
        last = LAUNCHED
    steps = steps or [f"Apply {change.transformation.replace('-', ' ')} as shown under After."]
    return (*steps, last), checks, tuple(r["sign"] for r in used)


def _step(rule: CodeRule) -> str:
    why = reason_for(rule.role, rule.direction) if rule.role else rule.why
    return f"Apply {rule.name.replace('-', ' ')} as shown under After. {why}".strip()


def _value(name: str, value: Any) -> str:
    return f"`{name}`" if value is None else f"`{name} = {value}`"


# -- code, figures, sources


def _snippet(change: KernelChange) -> tuple[tuple[str, ...], tuple[str, ...], str]:
    """Lines before and after the change, and the language of their code block."""
    if change.parameters:
        before = [f"{p.name} = {p.before}" for p in change.parameters if p.before is not None]
        return tuple(before), tuple(f"{p.name} = {p.after}" for p in change.parameters), "text"
    if change.adopted:
        values = sorted(change.step.proposal.values.items())
        return (), tuple(f"{name} = {value}" for name, value in values), "text"
    code, parent = CODE.get(change.language, "text"), change.step.parent.bundle
    shown = excerpt(parent, change.step.proposal.bundle, MOST_CODE) if parent is not None else None
    if shown is not None and change.transformation != WRITTEN:
        return *shown, code
    gone = [line[1:] for line in change.pattern if line.startswith("-")]
    return _cut(gone, MOST_LINES), _cut(change.added, MOST_LINES), code


def _cut(lines: Sequence[str], most: int) -> tuple[str, ...]:
    """At most `most` lines, without their common indentation."""
    depth = min(map(_depth, lines), default=0)
    shown = [line[depth:] for line in lines[:most]]
    return (*shown, "...") if len(lines) > most else tuple(shown)


def _effect_lines(change: KernelChange, evidence: Sequence[EvidenceRow]) -> tuple[str, ...]:
    """The lines of `Expected effect`, with figures as references to evidence rows."""
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
    tuned = bool(change.parameters or change.adopted)
    for n in range(1, min(len(evidence), MOST_CASES) + 1):
        ref = f"ev:{n}."
        lines.append(
            f"- {{{{{ref}case_id}}}} on {{{{{ref}hardware_id}}}} ({{{{{ref}sizes}}}}):"
            f" {{{{{ref}speedup}}}}, from {{{{{ref}speedup_low}}}} to {{{{{ref}speedup_high}}}},"
            f" {{{{{ref}n}}}} pairs of blocks{'' if tuned else _level(evidence[n - 1], ref)}"
        )
    if len(evidence) > 1:
        bounds = "from {{ev:all.speedup_low}} to {{ev:all.speedup_high}}"
        lines += ["", f"Over all cases the bounds run {bounds}."]
    return tuple(lines)


def _level(row: EvidenceRow, ref: str) -> str:
    """Time, and speed against the reference or the share of a measured limit, before and after: a
    gain over a slow kernel is not one over a good kernel."""
    if row.kind == "simulator" or row.baseline_us is None or row.measured_us is None:
        return ""
    parts = [f"; time from {{{{{ref}baseline_us}}}} to {{{{{ref}measured_us}}}} us"]
    if row.details.get("over_reference"):
        parts.append(
            f", speed as a share of the reference's from {{{{{ref}reference_before}}}} to"
            f" {{{{{ref}reference_after}}}}"
        )
    parts += [
        f", share of the measured {limit} from {{{{{ref}{name}_before}}}} to"
        f" {{{{{ref}{name}_after}}}}"
        for name, limit in LIMITS.items()
        if row.details.get(name)
    ]
    return "".join(parts)


def _sources(trajectory: Trajectory, change: KernelChange) -> tuple[str, ...]:
    """The run and the evaluations that a change was measured in."""
    parent, child = change.step.parent, change.step.child
    lines = [f"run {trajectory.id}, node {child.number} against node {parent.number}"]
    for kernel in (child, parent):
        if kernel.evaluation is not None and kernel.evaluation.key:
            lines.append(f"evaluation {kernel.evaluation.key}")
    origin = change.step.provenance.items()
    lines += [f"{name} {text}" for name, text in origin if is_name(name) and is_name(text)]
    return tuple(lines)


# -- a kernel as text


def text_node(passed: Iterable[tuple[TrajectoryStep, GatePass]], roles: Roles) -> int | None:
    """The node whose kernel a run may teach as text, or None. Of the changes that passed the gate
    with a kernel that a model or a person wrote and no rule names, it is the certainly fastest: a
    text for each would say nearly the same."""
    merits = []
    for step, gate_pass in passed:
        change = contrast(step, gate_pass, roles)[0]
        if change is not None and is_written(change) and step.child.speedup is not None:
            merits.append((step.child.speedup.low, step.child.number))
    return max(merits, key=lambda merit: merit[0])[1] if merits else None


def is_written(change: KernelChange) -> bool:
    """Whether a model or a person wrote the faster kernel, and no rule or recipe names the
    change."""
    unnamed = change.transformation in (WRITTEN, UNNAMED)
    return unnamed and change.polarity == "use" and change.step.proposal.origin in WRITERS


def as_text(trajectory: Trajectory, change: KernelChange, draft: DraftedSkill) -> DraftedSkill:
    """The draft of a kernel that cannot become a recipe: its key lines, and the named structures
    that its parent lacks."""
    kernel, parent = change.step.proposal.bundle, change.step.parent.bundle
    whole = change.transformation == WRITTEN
    compared = "its parent" if parent is not None else "the reference"
    moves = rules_in(change.step, whole=whole)
    transformation = f"{WRITTEN if whole else CHANGED}-{kernel_key(kernel)[:6]}"
    description = (
        f"Use when writing {place_of(trajectory, change)}. Key lines of a kernel that was right and"
        f" faster than {compared} in one search; it is no recipe. Do not use for sizes, element"
        " types or hardware far from those measured."
    )
    dtype = trajectory.subject.dtype or "the element type of the problem"
    limits = (
        f"Right in the cases under Expected effect and in {dtype} on"
        f" {trajectory.hardware}; nothing is known of others."
    )
    words = replace(
        draft.words,
        description=description,
        when_not=(*draft.words.when_not, limits),
        steps=_text_steps(change, moves, compared),
    )
    return replace(
        draft,
        name=slug(trajectory.hardware, transformation, trajectory.subject.op),
        transformation=transformation,
        words=words,
        before=() if whole else draft.before,
        after=key_lines(change) if whole else draft.after,
        code=CODE.get(kernel.language, "text"),
        kind=TEXT,
    )


def _text_steps(change: KernelChange, moves: Sequence[str], compared: str) -> tuple[str, ...]:
    """The named structures, each with the reason that its rule gives, or what differs."""
    named = ", ".join(f"`{name}`" for name in moves)
    first = (
        f"Read the lines under After. Structures of the kernel that {compared} has not: {named}."
        if moves
        else f"Read the lines under After. No rule here has a name for what {compared} has not."
    )
    rules = rules_named("-and-".join(moves), change.language)
    reasons = [(r, reason_for(r.role, r.direction) if r.role else r.why) for r in rules]
    steps = [first, *(f"`{rule.name}`: {reason}" for rule, reason in reasons if reason)]
    parent = change.step.parent.bundle
    if parent is not None and not moves:
        steps += differences(structure_of(parent), structure_of(change.step.proposal.bundle))
    return (*steps, "Take over what differs for your own shapes, build, and compare.")


def key_lines(change: KernelChange) -> tuple[str, ...]:
    """At most MOST_LINES lines of a whole kernel in order, with `...` for gaps: those that a rule
    names with their neighbours, then the most deeply nested ones, where its time goes."""
    lines = change.added
    chosen: dict[int, None] = {}
    for number, line in enumerate(lines):
        if matching_rules(line, "", change.language):
            near = range(max(0, number - AROUND), min(len(lines), number + AROUND + 1))
            chosen |= dict.fromkeys(near)
    deepest = sorted(range(len(lines)), key=lambda n: (-_depth(lines[n]), n))
    chosen |= dict.fromkeys(deepest)
    numbers = sorted(list(chosen)[:MOST_LINES])
    depth = min((_depth(lines[n]) for n in numbers), default=0)
    shown: list[str] = []
    for before, number in zip([-1, *numbers], numbers, strict=False):
        shown += ["..."] if number != before + 1 else []
        shown.append(lines[number][depth:])
    return (*shown, "...") if numbers and numbers[-1] + 1 < len(lines) else tuple(shown)


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


# -- evidence rows, and the figures of a text as references to them
#
# `{{ev:2.speedup_low}}` is a field of the second row, `{{ev:all.speedup_low}}` the lowest bound of
# all rows. Texts are stored rendered, with their template. Bounds are rounded outwards.

REFERENCE = re.compile(r"\{\{ev:([A-Za-z0-9]+)\.([a-z_]+)\}\}")
_ANY_REFERENCE = re.compile(r"\{\{[^}]*\}\}")


def rows_of(
    trajectory: Trajectory, change: KernelChange, kind: EvidenceKind
) -> tuple[EvidenceRow, ...]:
    """One row for each case that both kernels were timed on; otherwise one for the whole change.
    created_at is empty until the rows are stored."""
    parent, child = change.step.parent, change.step.child
    assert child.evaluation is not None
    rows = []
    for timing in child.evaluation.cases:
        gain = gain_of(parent, child, timing.case)
        if gain is not None:
            rows.append(_evidence_row(trajectory, change, kind, timing, gain))
    return tuple(rows) or (_evidence_row(trajectory, change, kind, None, change.gain),)


def _evidence_row(
    trajectory: Trajectory,
    change: KernelChange,
    kind: EvidenceKind,
    timing: CaseTiming | None,
    gain: Interval | None,
) -> EvidenceRow:
    parent, child, subject = change.step.parent, change.step.child, trajectory.subject
    evaluation, proposal = child.evaluation, change.step.proposal
    assert evaluation is not None
    name = timing.case if timing is not None else None
    before = None  # the parent's time; the parent may be the reference
    if timing is not None and parent.proposal is None:
        before = timing.baseline_us
    elif timing is not None and (own := parent.timing(timing.case)) is not None:
        before = own.candidate_us
    searched = subject.cases.get("searched", ())
    # A failure names no case, but if one alone is searched, it was that.
    sized = name or (searched[0] if len(searched) == 1 else "")
    details = {
        "run": trajectory.id,
        "parent": parent.number,
        "node": child.number,
        "parent_evaluation": parent.evaluation.key if parent.evaluation is not None else None,
        "transformation": change.transformation,
        "polarity": change.polarity,
        "validity": evaluation.validity,
        "problem": subject.name,
        "op": canonical_op(subject.op),
        "dtype": canonical_dtype(subject.dtype) if subject.dtype else None,
        "language": change.language,
        "recipe": proposal.recipe if change.parameters else None,
        "sizes": dict(subject.sizes.get(sized, {})),
        "synthesizer": proposal.synthesizer,
        "origin": proposal.origin,
        **({"reviewed": evaluation.reviewed} if evaluation.reviewed else {}),
        **({"provenance": dict(change.step.provenance)} if change.step.provenance else {}),
        **(_shares(parent, child, timing) if timing is not None and change.pattern else {}),
    }
    return EvidenceRow(
        id=derived_id("ev", trajectory.id, child.number, name, evaluation.key),
        hardware_id=trajectory.hardware,
        device_id=evaluation.device or None,
        toolchain_id=evaluation.toolchain or None,
        problem_id=subject.sha256 or None,
        case_id=name,
        evaluation_id=evaluation.key,
        kind=kind,
        n=gain.n if gain is not None else 1,
        baseline_us=before,
        measured_us=timing.candidate_us if timing is not None else None,
        speedup=gain.value if gain is not None else None,
        speedup_low=gain.low if gain is not None else None,
        speedup_high=gain.high if gain is not None else None,
        details=details,
    )


def _shares(
    parent: MeasuredKernel, child: MeasuredKernel, timing: CaseTiming
) -> dict[str, tuple[float, float]]:
    """Speed over the reference, and the shares of limits that either verdict has, as pairs of
    parent and child. The work is equal, so a missing share follows from the times."""
    assert child.evaluation is not None
    own = parent.timing(timing.case)
    if parent.proposal is None or own is None or parent.evaluation is None:
        return {}
    found = {}
    if own.speedup is not None and timing.speedup is not None:
        found["over_reference"] = (own.speedup.value, timing.speedup.value)
    was, now = own.candidate_us, timing.candidate_us
    if not was or not now or len(child.evaluation.cases) != 1:
        return found
    for name in LIMITS:
        before, after = (side.metrics.get(name) for side in (parent.evaluation, child.evaluation))
        if isinstance(after, float):
            pair = (after * now / was, after)
        elif isinstance(before, float):
            pair = (before, before * was / now)
        else:
            continue
        # A share below says nothing, and one above is that of a cache.
        if LEAST_SHARE <= pair[1] <= MOST_SHARE:
            found[name] = pair
    return found


def _down(value: float | None) -> str | None:
    return None if value is None else f"{math.floor(value * 100) / 100:.2f}"


def _up(value: float | None) -> str | None:
    return None if value is None else f"{math.ceil(value * 100) / 100:.2f}"


def _sizes(details: Mapping[str, Any]) -> str:
    sizes = [f"{name}={value:.12g}" for name, value in sorted(details.get("sizes", {}).items())]
    return ", ".join(sizes) or "sizes not recorded"


def _pair(row: EvidenceRow, name: str, place: int, unit: str) -> str | None:
    pair = row.details.get(name)
    if not pair:
        return None
    value = pair[place]
    return f"{value:.0f}{unit}" if value >= 10 else f"{value:.2g}{unit}"


_FIGURES: Mapping[str, Callable[[EvidenceRow], str | None]] = {
    "speedup": lambda row: None if row.speedup is None else f"{row.speedup:.2f}",
    "speedup_low": lambda row: _down(row.speedup_low),
    "speedup_high": lambda row: _up(row.speedup_high),
    "baseline_us": lambda row: None if row.baseline_us is None else f"{row.baseline_us:.1f}",
    "measured_us": lambda row: None if row.measured_us is None else f"{row.measured_us:.1f}",
    "reference_before": lambda row: _pair(row, "over_reference", 0, ""),
    "reference_after": lambda row: _pair(row, "over_reference", 1, ""),
    **{
        f"{name}_{side}": lambda row, name=name, n=n: _pair(row, name, n, " %")  # type: ignore[misc]
        for name in LIMITS
        for n, side in enumerate(("before", "after"))
    },
    "n": lambda row: str(row.n),
    "case_id": lambda row: row.case_id or "all cases",
    "hardware_id": lambda row: row.hardware_id,
    "kind": lambda row: row.kind,
    "validity": lambda row: str(row.details.get("validity", "")).replace("_", " ") or None,
    "sizes": lambda row: _sizes(row.details),
}
# Over all rows there are bounds and counts; figures are never averaged.
_FIGURES_OF_ALL: Mapping[str, Callable[[Sequence[EvidenceRow]], str | None]] = {
    "speedup_low": lambda rows: _down(
        min((row.speedup_low for row in rows if row.speedup_low is not None), default=None)
    ),
    "speedup_high": lambda rows: _up(
        max((row.speedup_high for row in rows if row.speedup_high is not None), default=None)
    ),
    "n": lambda rows: str(sum(row.n for row in rows)) if rows else None,
}
FIELDS = tuple(_FIGURES)


def dangling(template: str, evidence: Sequence[EvidenceRow]) -> list[str]:
    missing = []
    for match in _ANY_REFERENCE.finditer(template):
        exact = REFERENCE.fullmatch(match.group())
        if exact is None or _figure_of(exact.group(1), exact.group(2), evidence) is None:
            missing.append(match.group())
    return missing


def render(template: str, evidence: Sequence[EvidenceRow]) -> str:
    """The text with figures in place of references. Raises InvalidKnowledge for a reference without
    one."""

    def figure(match: re.Match[str]) -> str:
        value = _figure_of(match.group(1), match.group(2), evidence)
        if value is None:
            raise InvalidKnowledge(
                f"{match.group()} refers to no figure",
                hint=f"There are {len(evidence)} rows with the fields {', '.join(FIELDS)}.",
            )
        return value

    return REFERENCE.sub(figure, template)


def _figure_of(row: str, name: str, evidence: Sequence[EvidenceRow]) -> str | None:
    if row == "all":
        return _FIGURES_OF_ALL[name](evidence) if name in _FIGURES_OF_ALL else None
    if name not in _FIGURES or not row.isdigit() or not 1 <= int(row) <= len(evidence):
        return None
    return _FIGURES[name](evidence[int(row) - 1])
