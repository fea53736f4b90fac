"""The sentences, code and figures of a skill's text, from a change and without a model.

Everything that proposers wrote is left out: sentences come from `roles.toml`, names from the
trajectory, code from the two kernels without their comments, and every figure is a reference to an
evidence row.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from kb.catalog.skills import EvidenceRow
from kb.moves_vocabulary import direction_of
from kb.problem_terms import canonical_dtype, canonical_op
from retrieval.diagnose.signals import load_signals
from skills.curator.contrast import ADOPTED, rule_named
from skills.curator.records import KernelChange, ParameterChange
from skills.trajectories.records import Trajectory

MOST_SIGNALS = 3
MOST_CASES = 6  # named in the text; all are evidence
MOST_LINES = 24  # of each side of a snippet
COMPARE = (
    "Correctness on each case against the reference, then the time with and without the change in"
    " the same session."
)
CODE = {"torch": "python", "triton": "python", "cpp": "cpp", "cuda": "cuda", "hip": "cpp"}


@dataclass(frozen=True)
class SkillSentences:
    """The sentences of a skill, without code; figures only as references."""

    description: str
    when: tuple[str, ...]
    when_not: tuple[str, ...]
    steps: tuple[str, ...]
    check: tuple[str, ...]
    failure_signs: tuple[str, ...]

    def texts(self) -> dict[str, str]:
        """The sentences by section; several are joined by line breaks."""
        return {
            name: value if isinstance(value, str) else "\n".join(value)
            for name, value in vars(self).items()
        }


@lru_cache(maxsize=1)
def roles() -> Mapping[str, Mapping[str, str]]:
    """The sentences about each knob, by role."""
    path = Path(__file__).with_name("roles.toml")
    sentences: dict[str, dict[str, str]] = tomllib.loads(path.read_text(encoding="utf-8"))
    return sentences


# -- conditions


def leading_signals(change: KernelChange) -> tuple[str, ...]:
    """Signals of the parent's verdict that are known here, the leading ones first."""
    known = load_signals()
    signals = tuple(s for s in dict.fromkeys(change.before) if s in known)
    return signals if is_adopted(change) else signals[:MOST_SIGNALS]


def required_signals(change: KernelChange) -> tuple[str, ...]:
    """Signals without which the change is not offered. None for a recipe: a search begins with it,
    whatever the verdict of what was there before."""
    return () if is_adopted(change) else leading_signals(change)


def is_adopted(change: KernelChange) -> bool:
    """Whether the change is the use of a recipe."""
    return change.transformation.startswith(ADOPTED)


# -- sentences


def reason_for(role: str, direction: str) -> str:
    """Why a knob is moved in a direction, as `roles.toml` says it."""
    key = {"add": "increase", "remove": "decrease", "swap": "set"}.get(direction, direction)
    return roles()[role][key]


def words_of(trajectory: Trajectory, change: KernelChange) -> SkillSentences:
    """The sentences of a change that needs no model."""
    subject, proposal = trajectory.subject, change.step.proposal
    place = place_of(trajectory, change)
    instance = (
        (f"It is an instance of the recipe `{proposal.recipe}`.",) if _of_recipe(change) else ()
    )
    required = required_signals(change)
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
    if change.polarity == "use":
        signs = (*signs, "The time does not fall beyond noise: take the change back.")
    return SkillSentences(
        description=_description(change, place, seen),
        when=(f"The kernel is {place}{dtype}.", *instance, *signals, sizes),
        when_not=(far, *none),
        steps=steps,
        check=(*check, COMPARE),
        failure_signs=signs,
    )


def place_of(trajectory: Trajectory, change: KernelChange) -> str:
    """What kernel a change is about, with its article: `a softmax kernel in cpp on x86-64`."""
    op = canonical_op(trajectory.subject.op).replace("_", " ")
    article = "an" if op[0] in "aeiou" else "a"
    language = change.step.proposal.bundle.language
    return f"{article} {op} kernel in {language} on {trajectory.hardware}"


def _of_recipe(change: KernelChange) -> bool:
    return bool(change.parameters) and change.step.proposal.recipe is not None


def _low(title: str) -> str:
    return title[:1].lower() + title[1:]


def _description(change: KernelChange, place: str, seen: str) -> str:
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


def _fate(change: KernelChange) -> str:
    evaluation = change.step.child.evaluation
    validity = evaluation.validity if evaluation is not None else ""
    return {"not_compiled": "fail to compile", "incorrect": "incorrect"}.get(validity, "fail")


def _phrase(change: KernelChange) -> str:
    """The change in words."""
    if change.parameters:
        return " and ".join(_parameter_phrase(p) for p in change.parameters)
    if is_adopted(change):
        return f"use the recipe {change.transformation.removeprefix(ADOPTED)}"
    return change.transformation.replace("-", " ")


def _parameter_phrase(parameter: ParameterChange) -> str:
    direction = direction_of(parameter.before, parameter.after)
    return f"{direction} the {roles()[parameter.role]['knob']} (`{parameter.name}`)"


def _advice(change: KernelChange) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
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
            f" {reason_for(p.role, direction_of(p.before, p.after))}"
            for p in change.parameters
        ]
        used = [roles()[p.role] for p in change.parameters]
        return (*steps, last), tuple(r["check"] for r in used), tuple(r["sign"] for r in used)
    if is_adopted(change):
        name = change.transformation.removeprefix(ADOPTED)
        first = f"Instantiate the recipe `{name}` with the values under After."
        return (first, "Then tune one value at a time."), (), ()
    rule = rule_named(change.transformation, change.step.proposal.bundle.language)
    first = f"Apply {change.transformation.replace('-', ' ')} as shown under After."
    if rule is None or not rule.role:
        return (first, last), (), ()
    role = roles()[rule.role]
    why = reason_for(rule.role, rule.direction)
    return (f"{first} {why}", last), (role["check"],), (role["sign"],)


def _value(name: str, value: Any) -> str:
    return f"`{name}`" if value is None else f"`{name} = {value}`"


# -- code, figures, sources


def snippet(change: KernelChange) -> tuple[tuple[str, ...], tuple[str, ...], str]:
    """Lines before and after the change, and the language of their code block."""
    if change.parameters:
        before = [f"{p.name} = {p.before}" for p in change.parameters if p.before is not None]
        return tuple(before), tuple(f"{p.name} = {p.after}" for p in change.parameters), "text"
    if is_adopted(change):
        return (
            (),
            tuple(f"{k} = {v}" for k, v in sorted(change.step.proposal.values.items())),
            "text",
        )
    gone = _cut([line[1:] for line in change.pattern if line.startswith("-")])
    came = _cut([line[1:] for line in change.pattern if line.startswith("+")])
    return gone, came, CODE.get(change.step.proposal.bundle.language, "text")


def _cut(lines: Sequence[str]) -> tuple[str, ...]:
    """Moved to the left, and not more than one can take in."""
    depth = min((len(line) - len(line.lstrip()) for line in lines), default=0)
    shown = [line[depth:] for line in lines[:MOST_LINES]]
    return (*shown, "...") if len(lines) > MOST_LINES else tuple(shown)


def effect_lines(change: KernelChange, evidence: Sequence[EvidenceRow]) -> tuple[str, ...]:
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


def sources_of_change(trajectory: Trajectory, change: KernelChange) -> tuple[str, ...]:
    """The run and the evaluations that a change was measured in."""
    parent, child = change.step.parent, change.step.child
    lines = [f"run {trajectory.id}, node {child.number} against node {parent.number}"]
    for side in (child, parent):
        if side.evaluation is not None and side.evaluation.key:
            lines.append(f"evaluation {side.evaluation.key}")
    return tuple(lines)
