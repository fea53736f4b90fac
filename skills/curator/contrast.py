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
from typing import Literal

from kb.catalog.skills.evidence import FAILURES
from kb.problem_terms import direction_of, transformation_of
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.records import Interval
from optimizer.evaluation.timing.statistics import bounded, independent_ratio
from optimizer.search.records import Proposal
from optimizer.search.synthesizers.recipe.recipe import Recipe
from skills.curator.comparison import LineDifference, canonical, code_lines, difference, kernel_key
from skills.curator.excerpt import kernel_code
from skills.curator.records import (
    ADOPTED,
    UNNAMED,
    WRITTEN,
    Decision,
    KernelChange,
    ParameterChange,
    Polarity,
    Roles,
)
from skills.curator.structure import STRUCTURES, structure_of
from skills.format.lint import is_name
from skills.trajectories.records import (
    EvaluationSummary,
    MeasuredKernel,
    Trajectory,
    TrajectoryStep,
)

# -- the gate
#
# Which changes may become knowledge. They were measured by this product, are correct, certainly
# faster and new, and have no open integrity flag. An informative failure passes as a change to
# avoid. Asks no model.

# How far the lower bound must be from 1, as a ratio. It is the standard deviation, in log units,
# between two processes that run the same code, as the harness measured it (`BETWEEN` of its block
# timing, `python -m benchmarks.evaluation.checks`). A ratio's interval contains it already; the
# floor allows for the many candidates that are looked at.
NOISE_FLOOR: Mapping[str, float] = {"cpu": 0.018, "gpu": 0.005}
# Texts state bounds to two digits, rounded outwards: a gain must differ from 1.00 there.
LEAST_GAIN = 0.01
GPU_LANGUAGES = frozenset({"triton", "cuda", "hip"})
TIMED = frozenset({"measured", "simulator"})


@dataclass(frozen=True)
class GatePass:
    """A change that may be learned from. `evidence` is the kind of its evidence rows."""

    polarity: Polarity
    evidence: Literal["pair", "simulator"]
    gain: Interval | None


def gate(
    trajectory: Trajectory, step: TrajectoryStep, seen: Mapping[str, int]
) -> tuple[GatePass | None, Decision]:
    """Whether a change may be learned from, with the decision. `seen` maps the code of the run's
    earlier candidates (`comparison.kernel_key`) to their nodes."""

    def decided(
        passed: GatePass | None, reason: str, **details: object
    ) -> tuple[GatePass | None, Decision]:
        return passed, Decision("gate", step.child.number, passed is not None, reason, details)

    refused = reason_to_distrust(trajectory, step, seen)
    if refused:
        return decided(None, refused)
    child, parent = step.child.evaluation, step.parent.evaluation
    assert child is not None  # `reason_to_distrust` refuses these
    if child.validity in FAILURES:
        # A lesson only if the parent worked: then the change is what broke it.
        if parent is None or not parent.correct or step.parent.proposal is None:
            return decided(None, f"{child.validity}, and no working parent beside it")
        reason = f"{child.validity} where the parent was correct"
        return decided(GatePass("avoid", "pair", None), reason, polarity="avoid")
    passed, count = child.checks
    if not child.correct or passed != count or count == 0:
        return decided(None, f"{child.validity}, {passed} of {count} checks passed")
    if child.timing not in TIMED:
        return decided(None, _untimed(trajectory, child))
    gain = gain_of(step.parent, step.child)
    if gain is None:
        return decided(None, "parent and child have no figures of the same clock")
    floor = noise_floor(step.proposal.bundle.language)
    kind: Literal["pair", "simulator"] = "simulator" if child.timing == "simulator" else "pair"
    figures = {"low": gain.low, "high": gain.high, "floor": floor, "evidence": kind}
    interval = f"[{gain.low:.3f}, {gain.high:.3f}]"
    if gain.low > 1 + floor:
        reason = f"faster than its parent beyond noise: {interval}"
        return decided(GatePass("use", kind, gain), reason, polarity="use", **figures)
    if gain.high < 1 - floor:
        reason = f"slower than its parent beyond noise: {interval}"
        return decided(GatePass("avoid", kind, gain), reason, polarity="avoid", **figures)
    return decided(None, f"no certain difference from its parent: {interval}")


def noise_floor(language: str) -> float:
    """The distance from 1 that a bound needs, as a ratio; that of a CPU for a language that also
    runs on one."""
    return max(NOISE_FLOOR["gpu" if language in GPU_LANGUAGES else "cpu"], LEAST_GAIN)


def gain_of(
    parent: MeasuredKernel, child: MeasuredKernel, case: str | None = None
) -> Interval | None:
    """Child over parent with its 95 % interval, on one case if given; None if either has no bounded
    figure of the same clock.

    Each was timed against the reference in its own session, so their errors are independent. The
    reference itself is 1 by definition.
    """
    own = _speedup(child, case)
    if own is None or not bounded(own):
        return None
    if parent.proposal is None:
        return own
    other = _speedup(parent, case)
    if other is None or parent.evaluation is None or child.evaluation is None:
        return None
    same_clock = parent.evaluation.timing == child.evaluation.timing
    return independent_ratio(own, other) if same_clock else None


def _speedup(kernel: MeasuredKernel, case: str | None) -> Interval | None:
    if case is None:
        return kernel.speedup
    timing = kernel.timing(case)
    return timing.speedup if timing is not None else None


def reason_to_distrust(
    trajectory: Trajectory, step: TrajectoryStep, seen: Mapping[str, int]
) -> str:
    """Reason to distrust a change independently of its effect, or "": it was not measured here, has
    odd names or integrity flags, or its code is not new."""
    child, subject = step.child, trajectory.subject
    if not trajectory.evaluated_here:
        return "its figures are not of this product's harness"
    proposal, evaluation = child.proposal, child.evaluation
    if proposal is None or evaluation is None:
        return "there is no kernel or no evaluation"
    language, values = proposal.bundle.language, proposal.values
    names = [subject.name, subject.op, subject.family, trajectory.hardware, language]
    names += [subject.dtype or "float32", evaluation.key, trajectory.id, *trajectory.lineage]
    names += [proposal.recipe or "none", *values, *(timing.case for timing in evaluation.cases)]
    names += [name for sizes in subject.sizes.values() for name in sizes]
    names += [value for value in values.values() if isinstance(value, str)]
    odd = next((name for name in names if not is_name(name)), None)
    if odd is not None:
        return f"{odd[:40]!r} is no name"
    return _integrity(step) or _repeated(step, seen)


def _integrity(step: TrajectoryStep) -> str:
    for name, kernel in (("it", step.child), ("its parent", step.parent)):
        evaluation = kernel.evaluation
        if evaluation is None:
            continue
        flags = "; ".join(evaluation.flags)
        if evaluation.rejected or evaluation.validity == "rejected":
            return f"{name} was rejected: {flags or 'an integrity finding'}"
        if evaluation.held:
            return f"held for a person: {name} was flagged for review: {flags}"
    return ""


def _repeated(step: TrajectoryStep, seen: Mapping[str, int]) -> str:
    key = kernel_key(step.proposal.bundle)
    if step.parent.bundle is not None and kernel_key(step.parent.bundle) == key:
        return "the code is its parent's, but for comments, spacing or names"
    if key in seen:
        return f"the code is that of node {seen[key]}"
    return ""


def _untimed(trajectory: Trajectory, child: EvaluationSummary) -> str:
    """The reason for a missing figure, and the remedy."""
    if child.timing != "repeat":
        return f"timing is {child.timing}"
    again = f"run `kernlore trajectories verify {trajectory.id}`"
    if trajectory.id.startswith("run_"):
        again = "search again"
    return f"timing is repeat: the machine was busy. Stop other work and {again}"


# -- contrasts

# Two parameters that change together may need each other; of more, the cause is not known.
MOST_CAUSES = 2
VECTORIZE = "vectorize-global-access"
# Rules that are a part of another one.
PARTS = {
    name: ("reduce-in-warp", "reduce-across-warps") for name in ("warp-per-row", "block-per-row")
}

_NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.])")
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)\s*(?::\s*[\w.]+\s*)?=\s*(\d+)(?![\w.])")


@dataclass(frozen=True)
class CodeRule:
    """A transformation of free code, recognised by a pattern in the lines that came, or by the
    `structure` before and after. `role` and `direction` are those of its move, empty if it has
    none; then `why` is its reason. `when` is a condition on the kernel before, `signals` those of
    its verdict that the change answers. A `minor` rule names a change only if no other does."""

    name: str
    languages: frozenset[str]
    added: re.Pattern[str]
    role: str = ""
    direction: str = ""
    structure: bool = False
    minor: bool = False
    when: str = ""
    why: str = ""
    signals: tuple[str, ...] = ()


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
    rules = rules_in(step)
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
            **{
                **row,
                "languages": frozenset(row["languages"]),
                "added": re.compile(row["added"]),
                "signals": tuple(row.get("signals", ())),
            }
        )
        for row in data["rules"]
    )
    return rules, data["constants"]


def constant_role(name: str) -> str | None:
    """The role of a named number in source code, or None."""
    return _vocabulary()[1].get(name.lower())


def rules_named(transformation: str, language: str) -> list[CodeRule]:
    """The rules behind a transformation of free code, which may be several joined by `-and-`."""
    named = transformation.split("-and-")
    return [r for r in _vocabulary()[0] if r.name in named and language in r.languages]


def rules_in(step: TrajectoryStep, *, whole: bool = False) -> tuple[str, ...]:
    """Names of the structures that a step's kernel has and its parent lacks, in the order of the
    rules; of a `whole` kernel all that it has."""
    kernel = step.proposal.bundle
    parent = None if whole else step.parent.bundle
    new, old = ("" if k is None else _source(k) for k in (kernel, parent))
    before, after = structure_of(parent), structure_of(kernel)
    found: list[CodeRule] = []
    for rule in _vocabulary()[0]:
        if kernel.language not in rule.languages:
            continue
        if rule.structure:
            holds = STRUCTURES[rule.name](before, after)
            holds = holds and (rule.name != VECTORIZE or _scalar_loads(step.parent))
        else:
            holds = bool(rule.added.search(new)) and not rule.added.search(old)
        if holds and rule.name not in [other.name for other in found]:
            found.append(rule)
    names = {rule.name for rule in found if not rule.minor}
    parts = {part for name in names for part in PARTS.get(name, ())}
    return tuple(r.name for r in found if r.name not in parts and not (r.minor and names))


def _source(kernel: Bundle) -> str:
    return kernel_code(kernel).source or "\n".join(code_lines(kernel))


def _scalar_loads(kernel: MeasuredKernel) -> bool:
    """Whether its compiled code has loads that can be wider, as far as that was counted."""
    metrics = kernel.evaluation.metrics if kernel.evaluation is not None else {}
    return metrics.get("ld_global_scalar") != 0 or not metrics.get("ld_global_vector")


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
