"""A kernel as text: what a skill says of a right and faster kernel that cannot be a recipe.

It has the kernel's key lines as they are, the named structures that it has and its parent has not,
and its figures. One kernel of a run teaches such a text, the one that is certainly fastest: a text
for each would say nearly the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from skills.curator.contrast import (
    UNNAMED,
    WRITTEN,
    Roles,
    contrast,
    matching_rules,
    rule_named,
    rules_in,
)
from skills.curator.draft import DraftedSkill, slug
from skills.curator.gate import gate
from skills.curator.records import KernelChange
from skills.curator.texts import kernel_key
from skills.curator.wording import CODE, MOST_LINES, place_of, reason_for
from skills.format.schema import TEXT
from skills.trajectories.records import Trajectory

WRITERS = frozenset({"llm", "external"})  # origins of kernels that a model or a person wrote
AROUND = 1  # lines shown on either side of one that a rule names
CHANGED = "change-kernel"


def text_node(trajectory: Trajectory, roles: Roles) -> int | None:
    """The node whose kernel a run may teach as text: of those that pass the gate, were written by
    a model or a person and have no name, the certainly fastest. None where there is none."""
    seen: dict[str, int] = {}
    best: tuple[float, int] | None = None
    for step in trajectory.steps:
        passed, _ = gate(trajectory, step, seen)
        number = step.child.number
        if step.child.bundle is not None:
            seen.setdefault(kernel_key(step.child.bundle), number)
        if passed is None or passed.polarity != "use" or step.child.speedup is None:
            continue
        change, _ = contrast(step, passed, roles)
        if change is None or not is_written(change):
            continue
        merit = step.child.speedup.low
        if best is None or merit > best[0]:
            best = merit, number
    return best[1] if best is not None else None


def is_written(change: KernelChange) -> bool:
    """Whether a model or a person wrote the kernel, and no rule or recipe names the change."""
    unnamed = change.transformation in (WRITTEN, UNNAMED)
    return unnamed and change.polarity == "use" and change.step.proposal.origin in WRITERS


def as_text(trajectory: Trajectory, change: KernelChange, draft: DraftedSkill) -> DraftedSkill:
    """The draft of a kernel that cannot be lifted, with its key lines and what it has that its
    parent has not."""
    kernel, parent = change.step.proposal.bundle, change.step.parent.bundle
    whole = change.transformation == WRITTEN
    compared = "its parent" if parent is not None else "the reference"
    moves = rules_in(kernel, None if whole else parent)
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
        steps=_steps(moves, compared, kernel.language),
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


def _steps(moves: Sequence[str], compared: str, language: str) -> tuple[str, ...]:
    """What the kernel has, each structure with the reason that its rule gives."""
    named = ", ".join(f"`{name}`" for name in moves)
    first = (
        f"Read the lines under After. Structures of the kernel that {compared} has not: {named}."
        if moves
        else f"Read the lines under After. No rule here has a name for what {compared} has not."
    )
    rules = [rule_named(name, language) for name in moves]
    reasons = [f"`{r.name}`: {reason_for(r.role, r.direction)}" for r in rules if r and r.role]
    return (first, *reasons, "Take over what differs for your own shapes, build, and compare.")


def key_lines(change: KernelChange) -> tuple[str, ...]:
    """At most MOST_LINES lines of a whole kernel, as they are and in their order, with `...` where
    others stand between: those that a rule names with their neighbours, then the most deeply nested
    ones, where its time goes."""
    lines = [line[1:] for line in change.pattern if line.startswith("+")]
    language = change.step.proposal.bundle.language
    chosen: dict[int, None] = {}
    for number, line in enumerate(lines):
        if matching_rules(line, "", language):
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
