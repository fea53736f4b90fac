"""What changed between parent and child, as structure: parameters with their roles, a recipe that
was adopted, or lines of code whose pattern has a name. Works from the two kernels, not from what
anybody wrote about them. A change whose cause cannot be named teaches nothing and is refused.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from kb.moves_vocabulary import direction_of, transformation_of
from optimizer.evaluation.bundle import Bundle
from optimizer.search.records import Proposal
from optimizer.search.synthesizers.recipe.recipe import Recipe
from skills.curator.gate import Passed
from skills.curator.records import Decision, KernelChange, ParameterChange
from skills.curator.texts import canonical, is_python, shown_lines
from skills.trajectories.records import TrajectoryStep

# Two that change together may need each other; of more, nobody can say which one it was.
MOST_CAUSES = 2
ADOPTED = "use-recipe-"
WRITTEN = "write-kernel"  # a whole kernel in place of the reference: nothing to compare with
UNNAMED = ""  # free code that no rule knows: only whoever drafts can name it
# Recipe -> its parameters' roles, as the library's recipes have them.
Roles = Mapping[str, Mapping[str, str]]

_NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.])")
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)\s*(?::\s*[\w.]+\s*)?=\s*(\d+)(?![\w.])")


@dataclass(frozen=True)
class CodeRule:
    """A transformation of free code, recognised by what it adds. `role` and `direction` are those
    of the move that it gives; empty for none."""

    name: str
    languages: frozenset[str]
    added: re.Pattern[str]
    role: str = ""
    direction: str = ""


@dataclass(frozen=True)
class LineDifference:
    """Lines without comments that only the parent has, and that only the child has."""

    gone: tuple[str, ...]
    came: tuple[str, ...]


@lru_cache(maxsize=1)
def _vocabulary() -> tuple[tuple[CodeRule, ...], Mapping[str, str]]:
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


def roles_of(recipes: Iterable[Recipe]) -> dict[str, dict[str, str]]:
    """Recipe -> parameter -> its role as moves name it."""
    return {recipe.name: {p.name: p.role for p in recipe.parameters} for recipe in recipes}


def constant_role(name: str) -> str | None:
    """The role of a named number in source code, None where it has none."""
    return _vocabulary()[1].get(name.lower())


def rule_named(transformation: str, language: str) -> CodeRule | None:
    """The rule behind a transformation of free code."""
    rules = (r for r in _vocabulary()[0] if r.name == transformation and language in r.languages)
    return next(rules, None)


def rules_in(kernel: Bundle, parent: Bundle | None) -> tuple[str, ...]:
    """Names of the structures that a kernel has and its parent has not, in the order of the rules;
    without a parent, those that it has."""
    new = "\n".join(_lines(kernel))
    old = "\n".join(_lines(parent)) if parent is not None else ""
    return matching_rules(new, old, kernel.language)


def matching_rules(new: str, old: str, language: str) -> tuple[str, ...]:
    """Names of the rules that some code has and other code has not."""
    names = dict.fromkeys(
        rule.name
        for rule in _vocabulary()[0]
        if language in rule.languages and rule.added.search(new) and not rule.added.search(old)
    )
    return tuple(names)


def contrast(
    step: TrajectoryStep, passed: Passed, roles: Roles, *, attributed: bool = False
) -> tuple[KernelChange | None, Decision]:
    """The change of a step that passed the gate, or None with the decision that says why it cannot
    be named. `attributed` says that a skill made it for certain, which is cause enough."""
    change = _change(step, passed, roles)
    if isinstance(change, str):
        return None, Decision("contrast", step.child.number, False, change)
    if passed.polarity == "avoid" and not change.parameters and not attributed:
        reason = "a failure teaches only where one or two parameters explain it"
        return None, Decision("contrast", step.child.number, False, reason)
    details = {
        "transformation": change.transformation,
        "parameters": [[p.name, p.role, p.before, p.after] for p in change.parameters],
        "lines": len(change.pattern),
    }
    reason = change.transformation or "free code that no rule names"
    return change, Decision("contrast", step.child.number, True, reason, details)


def _change(step: TrajectoryStep, passed: Passed, roles: Roles) -> KernelChange | str:
    parent, child = step.parent.proposal, step.proposal
    if child.recipe is not None and (parent is None or parent.recipe != child.recipe):
        return _built(step, passed, ADOPTED + child.recipe, ())
    if parent is None or parent.bundle.language != child.bundle.language:
        return _built(step, passed, WRITTEN, (), tuple(f"+{line}" for line in _lines(child.bundle)))
    if child.recipe is not None:
        parameters = _values(parent, child, roles.get(child.recipe, {}))
    else:
        parameters = _constants(difference(parent.bundle, child.bundle))
    if isinstance(parameters, str):
        return parameters
    if parameters:
        return _built(step, passed, _named(parameters), parameters)
    if child.recipe is not None:
        return "the values are its parent's, and the code differs"
    return _free(step, passed, parent.bundle, child.bundle)


def _built(
    step: TrajectoryStep,
    passed: Passed,
    transformation: str,
    parameters: tuple[ParameterChange, ...],
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


# -- parameters


def _values(
    parent: Proposal, child: Proposal, roles: Mapping[str, str]
) -> tuple[ParameterChange, ...] | str:
    """Of two instances of one recipe."""
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
    """Numbers of free code that changed while the code around them stayed; () where more did."""
    if not lines.came or len(lines.gone) != len(lines.came):
        return ()
    known = _vocabulary()[1]
    changed: dict[str, tuple[int, int]] = {}
    for gone, came in zip(lines.gone, lines.came, strict=True):
        if _NUMBER.sub("#", canonical(gone)) != _NUMBER.sub("#", canonical(came)):
            return ()
        before, after = dict(_ASSIGNED.findall(gone)), dict(_ASSIGNED.findall(came))
        differing = {n: (int(before[n]), int(after[n])) for n in after if before[n] != after[n]}
        if not differing or len(_NUMBER.findall(gone)) != len(_NUMBER.findall(came)):
            return ()
        changed |= differing
    named = {name: known.get(name.lower()) for name in changed}
    if any(role is None for role in named.values()):
        return ()
    if len(changed) > MOST_CAUSES:
        return f"{len(changed)} constants changed at once: the cause cannot be named"
    return tuple(
        ParameterChange(name, role, *changed[name])
        for name, role in sorted(named.items())
        if role is not None
    )


def _named(parameters: Sequence[ParameterChange]) -> str:
    return transformation_of((p.role, direction_of(p.before, p.after)) for p in parameters)


# -- free code


def _free(
    step: TrajectoryStep, passed: Passed, parent: Bundle, child: Bundle
) -> KernelChange | str:
    lines = difference(parent, child)
    if not lines.came:
        return "no line came: what was taken away has no name"
    old, new = "\n".join(_lines(parent)), "\n".join(lines.came)
    names = matching_rules(new, old, child.language)
    pattern = (*(f"-{line}" for line in lines.gone), *(f"+{line}" for line in lines.came))
    named = "-and-".join(names) if len(names) <= MOST_CAUSES else UNNAMED
    return _built(step, passed, named, (), pattern)


def difference(parent: Bundle, child: Bundle) -> LineDifference:
    """The lines that went and came, spacing and comments aside, in the order of the files."""
    old, new = _lines(parent), _lines(child)
    matcher = difflib.SequenceMatcher(
        None, [canonical(line) for line in old], [canonical(line) for line in new], autojunk=False
    )
    gone: list[str] = []
    came: list[str] = []
    for tag, i, j, k, m in matcher.get_opcodes():
        if tag != "equal":
            gone += old[i:j]
            came += new[k:m]
    return LineDifference(tuple(gone), tuple(came))


def _lines(kernel: Bundle) -> list[str]:
    return [
        line
        for name, text in sorted(kernel.files.items())
        for line in shown_lines(text, python=is_python(kernel.language, name))
    ]
