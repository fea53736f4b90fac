"""Derived facts: does the stated value follow from its formula?

Only arithmetic over numbers and fact keys is evaluated (`kb.predicates.compile_formula`); anything
else leaves the formula as text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from kb.errors import InvalidPredicate
from kb.hardware.spec import FactSpec, HardwareSpec
from kb.predicates import Bindings, compile_formula

TOLERANCE = 0.01
MAX_LENGTH = 300


@dataclass(frozen=True)
class FormulaCheck:
    """Whether a formula gives the stated value.

    `unchecked` means that it is not arithmetic, or that a fact it names has no number; `message`
    says which. `computed` is in the unit of the fact.
    """

    state: Literal["agrees", "differs", "unchecked"]
    message: str = ""
    computed: float | None = None


class NotArithmetic(Exception):
    """Carries the reason why a formula cannot be evaluated."""


def check_formula(fact: FactSpec, numbers: Mapping[str, float]) -> FormulaCheck:
    """Evaluate a derived fact's formula over the numbers of other facts and compare within 1 %."""
    if not isinstance(fact.value, (int, float)):
        return FormulaCheck("unchecked", "the value is text")
    try:
        computed = evaluate(fact.formula, numbers)
    except NotArithmetic as reason:
        return FormulaCheck("unchecked", str(reason))
    if math.isclose(computed, fact.value, rel_tol=TOLERANCE):
        return FormulaCheck("agrees", computed=computed)
    message = f"{fact.key} = {fact.value:g}, but its formula gives {computed:g}"
    return FormulaCheck("differs", message, computed)


def formula_warnings(
    spec: HardwareSpec, inherited: Mapping[str, float] | None = None
) -> tuple[str, ...]:
    """One sentence for each derived fact whose formula disagrees with its value.

    `inherited` holds the numbers of the parents' facts, which a formula may name too.
    """
    numbers = dict(inherited or {})
    for fact in spec.facts:
        if isinstance(fact.value, (int, float)):
            numbers[fact.key] = float(fact.value)
    checks = [check_formula(fact, numbers) for fact in spec.facts if fact.kind == "derived"]
    return tuple(check.message for check in checks if check.state == "differs")


def evaluate(formula: str, numbers: Mapping[str, float]) -> float:
    """The value of a formula whose names are keys of `numbers`; raises NotArithmetic."""
    if len(formula) > MAX_LENGTH:
        raise NotArithmetic(f"longer than {MAX_LENGTH} characters")
    try:
        computed = compile_formula(formula).compute(Bindings(parameters=numbers))
    except InvalidPredicate as error:
        raise NotArithmetic("not arithmetic") from error
    if computed.missing:
        raise NotArithmetic(f"no number known for {computed.missing[0]}")
    if computed.value is None or isinstance(computed.value, str):
        raise NotArithmetic("; ".join(computed.reasons) or "not arithmetic")
    return float(computed.value)
