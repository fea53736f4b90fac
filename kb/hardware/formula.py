"""Arithmetic of derived facts: does the stated value follow from its formula?

Only numbers, fact keys, `+ - * / // % **` and brackets are evaluated; anything else leaves the
formula as text.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from kb.hardware.spec import FactSpec, HardwareSpec

TOLERANCE = 0.01
MAX_LENGTH = 300
_MAX_EXPONENT = 64

_OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


@dataclass(frozen=True)
class FormulaCheck:
    """unchecked: not arithmetic, or a fact it names has no number; `message` says which."""

    state: Literal["agrees", "differs", "unchecked"]
    message: str = ""
    computed: float | None = None


class _NotArithmetic(Exception):
    """Carries the reason why a formula cannot be evaluated."""


def check_formula(fact: FactSpec, numbers: Mapping[str, float]) -> FormulaCheck:
    """Evaluate a derived fact's formula over the numbers of other facts and compare within 1 %."""
    if not isinstance(fact.value, (int, float)):
        return FormulaCheck("unchecked", "the value is text")
    try:
        computed = evaluate(fact.formula, numbers)
    except _NotArithmetic as reason:
        return FormulaCheck("unchecked", str(reason))
    if math.isclose(computed, fact.value, rel_tol=TOLERANCE):
        return FormulaCheck("agrees", computed=computed)
    message = f"{fact.key} = {fact.value:g}, but its formula gives {computed:g}"
    return FormulaCheck("differs", message, computed)


def formula_warnings(
    spec: HardwareSpec, inherited: Mapping[str, float] | None = None
) -> tuple[str, ...]:
    """One sentence per derived fact whose formula disagrees with its value.

    inherited: numbers of the parents' facts, which a formula may name too.
    """
    numbers = dict(inherited or {})
    for fact in spec.facts:
        if isinstance(fact.value, (int, float)):
            numbers[fact.key] = float(fact.value)
    checks = [check_formula(fact, numbers) for fact in spec.facts if fact.kind == "derived"]
    return tuple(check.message for check in checks if check.state == "differs")


def evaluate(formula: str, numbers: Mapping[str, float]) -> float:
    if len(formula) > MAX_LENGTH:
        raise _NotArithmetic(f"longer than {MAX_LENGTH} characters")
    try:
        tree = ast.parse(formula.strip(), mode="eval")
        value = float(_value(tree.body, numbers))
    except (SyntaxError, ValueError, RecursionError) as error:
        raise _NotArithmetic("not arithmetic") from error
    except (ZeroDivisionError, OverflowError) as error:
        raise _NotArithmetic(str(error)) from error
    if not math.isfinite(value):
        raise _NotArithmetic("not a finite number")
    return value


def _value(node: ast.expr, numbers: Mapping[str, float]) -> float:
    match node:
        case ast.Constant(value=bool()):
            raise _NotArithmetic("not arithmetic")
        case ast.Constant(value=int() | float() as number):
            return float(number)
        case ast.Name(id=name):
            if name not in numbers:
                raise _NotArithmetic(f"no number known for {name}")
            return numbers[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, numbers)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _power(_value(left, numbers), _value(right, numbers))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left, numbers), _value(right, numbers))
    raise _NotArithmetic("not arithmetic")


def _power(base: float, exponent: float) -> float:
    if abs(exponent) > _MAX_EXPONENT or (base < 0 and exponent != int(exponent)):
        raise _NotArithmetic("not arithmetic")
    return float(base**exponent)
