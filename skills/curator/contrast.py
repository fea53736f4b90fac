"""The change between parent and child, as structure: parameters with their roles, an adopted
recipe, or lines of code whose pattern has a name. Reads the two kernels and no text about them. A
change whose cause cannot be named teaches nothing.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from kb.moves_vocabulary import direction_of, transformation_of
from optimizer.evaluation.bundle import Bundle
from optimizer.search.records import Proposal
from optimizer.search.synthesizers.recipe.recipe import Recipe
from skills.curator.comparison import LineDifference, canonical, code_lines, difference
from skills.curator.gate import GatePass
from skills.curator.records import (
    ADOPTED,
    UNNAMED,
    WRITTEN,
    Decision,
    KernelChange,
    ParameterChange,
    Roles,
)
from skills.trajectories.records import TrajectoryStep

# Two parameters that change together may need each other; of more, the cause is not known.
MOST_CAUSES = 2

_NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.])")
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)\s*(?::\s*[\w.]+\s*)?=\s*(\d+)(?![\w.])")


@dataclass(frozen=True)
class CodeRule:
    """A transformation of free code, recognised by a pattern in the lines that came. `role` and
    `direction` are those of its move, empty if it has none."""

    name: str
    languages: frozenset[str]
    added: re.Pattern[str]
    role: str = ""
    direction: str = ""


def contrast(
    step: TrajectoryStep, passed: GatePass, roles: Roles, *, attributed: bool = False
) -> tuple[KernelChange | None, Decision]:
    """The change of a step that passed the gate, or None if it cannot be named, with the decision.
    `attributed` means that a skill certainly made it, which is cause enough."""
    change = _change(step, passed, roles)
    node = step.child.number
    if isinstance(change, str):
        return None, Decision("contrast", node, False, change)
    if passed.polarity == "avoid" and not change.parameters and not attributed:
        reason = "a failure teaches only where one or two parameters explain it"
        return None, Decision("contrast", node, False, reason)
    details = {
        "transformation": change.transformation,
        "parameters": [[p.name, p.role, p.before, p.after] for p in change.parameters],
        "lines": len(change.pattern),
    }
    reason = change.transformation or "free code that no rule names"
    return change, Decision("contrast", node, True, reason, details)


def _change(step: TrajectoryStep, passed: GatePass, roles: Roles) -> KernelChange | str:
    """The change, or the reason why it cannot be named."""

    def named(
        transformation: str,
        parameters: tuple[ParameterChange, ...] = (),
        pattern: tuple[str, ...] = (),
    ) -> KernelChange:
        return KernelChange(
            step=step,
            polarity=passed.polarity,
            transformation=transformation,
            parameters=parameters,
            before=step.parent.signals,
            after=step.child.signals,
            gain=passed.gain,
            pattern=pattern,
        )

    parent, child = step.parent.proposal, step.proposal
    if child.recipe is not None and (parent is None or parent.recipe != child.recipe):
        return named(ADOPTED + child.recipe)
    if parent is None or parent.bundle.language != child.bundle.language:
        return named(WRITTEN, pattern=tuple(f"+{line}" for line in code_lines(child.bundle)))
    parameters: tuple[ParameterChange, ...] | str
    if child.recipe is not None:
        parameters = _values(parent, child, roles.get(child.recipe, {}))
        parameters = parameters or "the values are its parent's, and the code differs"
    else:
        lines = difference(parent.bundle, child.bundle)
        parameters = _constants(lines)
    if isinstance(parameters, str):
        return parameters
    if parameters:
        moved = ((p.role, direction_of(p.before, p.after)) for p in parameters)
        return named(transformation_of(moved), parameters)
    if not lines.added:
        return "no line came: what was taken away has no name"
    new, old = "\n".join(lines.added), "\n".join(code_lines(parent.bundle))
    rules = matching_rules(new, old, child.bundle.language)
    pattern = (*(f"-{line}" for line in lines.removed), *(f"+{line}" for line in lines.added))
    return named("-and-".join(rules) if len(rules) <= MOST_CAUSES else UNNAMED, (), pattern)


def _values(
    parent: Proposal, child: Proposal, roles: Mapping[str, str]
) -> tuple[ParameterChange, ...] | str:
    """The parameters in which two instances of one recipe differ."""
    changed = [
        name for name in sorted(child.values) if parent.values.get(name) != child.values[name]
    ]
    unknown = [name for name in changed if name not in roles]
    if unknown:
        return f"nobody says what {unknown[0]} of {child.recipe} is"
    if len(changed) > MOST_CAUSES:
        return f"{len(changed)} parameters changed at once: the cause cannot be named"
    return tuple(
        ParameterChange(name, roles[name], parent.values.get(name), child.values[name])
        for name in changed
    )


def _constants(lines: LineDifference) -> tuple[ParameterChange, ...] | str:
    """Named numbers of free code that changed while the code around them stayed; () if more
    changed."""
    if not lines.added or len(lines.removed) != len(lines.added):
        return ()
    changed: dict[str, tuple[int, int]] = {}
    for gone, came in zip(lines.removed, lines.added, strict=True):
        if _NUMBER.sub("#", canonical(gone)) != _NUMBER.sub("#", canonical(came)):
            return ()
        before, after = dict(_ASSIGNED.findall(gone)), dict(_ASSIGNED.findall(came))
        differing = {n: (int(before[n]), int(after[n])) for n in after if before[n] != after[n]}
        if not differing or len(_NUMBER.findall(gone)) != len(_NUMBER.findall(came)):
            return ()
        changed |= differing
    named = {name: constant_role(name) for name in changed}
    if any(role is None for role in named.values()):
        return ()
    if len(changed) > MOST_CAUSES:
        return f"{len(changed)} constants changed at once: the cause cannot be named"
    return tuple(
        ParameterChange(name, role, *changed[name])
        for name, role in sorted(named.items())
        if role is not None
    )


# -- the vocabulary


@lru_cache(maxsize=1)
def _vocabulary() -> tuple[tuple[CodeRule, ...], Mapping[str, str]]:
    """The rules, and the roles of named constants."""
    path = Path(__file__).with_name("transformations.toml")
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    rules = tuple(
        CodeRule(
            row["name"],
            frozenset(row["languages"]),
            re.compile(row["added"]),
            row.get("role", ""),
            row.get("direction", ""),
        )
        for row in data["rules"]
    )
    return rules, data["constants"]


def constant_role(name: str) -> str | None:
    """The role of a named number in source code, or None."""
    return _vocabulary()[1].get(name.lower())


def rule_named(transformation: str, language: str) -> CodeRule | None:
    """The rule behind a transformation of free code."""
    rules = (r for r in _vocabulary()[0] if r.name == transformation and language in r.languages)
    return next(rules, None)


def rules_in(kernel: Bundle, parent: Bundle | None) -> tuple[str, ...]:
    """Names of the structures that a kernel has and its parent lacks, in the order of the rules;
    without a parent, all that it has."""
    old = "\n".join(code_lines(parent)) if parent is not None else ""
    return matching_rules("\n".join(code_lines(kernel)), old, kernel.language)


def matching_rules(new: str, old: str, language: str) -> tuple[str, ...]:
    """Names of the rules that match the new code and not the old."""
    names = dict.fromkeys(
        rule.name
        for rule in _vocabulary()[0]
        if language in rule.languages and rule.added.search(new) and not rule.added.search(old)
    )
    return tuple(names)


def roles_of(recipes: Iterable[Recipe]) -> dict[str, dict[str, str]]:
    """Recipe -> parameter -> its role as moves name it."""
    return {recipe.name: {p.name: p.role for p in recipe.parameters} for recipe in recipes}
