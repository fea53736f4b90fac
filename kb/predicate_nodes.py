"""The compiled form of an expression: frozen nodes that compute a value, or say why they cannot.

Knows nothing about text: `kb.predicates` parses, checks and compiles. Evaluation never raises,
since the values come from profilers and users; whatever does not fit makes the result unknown.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

Value = bool | int | float | str
Kind = Literal["number", "text", "truth", "any"]

NAMESPACES: dict[str, Kind] = {
    "signals": "truth",
    "metrics": "number",
    "facts": "any",
    "problem": "any",
}
# Larger magnitudes are no measurement, and integers stay cheap however a text multiplies them.
LARGEST = 1e30


@dataclass(frozen=True)
class Bindings:
    """The values an expression may read. A name that is absent, or bound to None, is unknown.

    `signals` are the ids of a verdict; None means that there is no verdict, so every signal is
    unknown.
    """

    signals: Collection[str] | None = None
    metrics: Mapping[str, Value | None] = field(default_factory=dict)
    facts: Mapping[str, Value | None] = field(default_factory=dict)
    problem: Mapping[str, Value | None] = field(default_factory=dict)
    parameters: Mapping[str, Value | None] = field(default_factory=dict)

    def lookup(self, namespace: str, key: str) -> Value | None:
        """The value of a name, or None where it is unknown."""
        if namespace == "signals":
            return None if self.signals is None else key in self.signals
        values: Mapping[str, Value | None] = getattr(self, namespace)
        return values.get(key)


class Used(NamedTuple):
    """A value that decided the result; `test` is the comparison it stood in, as written."""

    name: str
    value: Value
    test: str | None


@dataclass(frozen=True)
class Computed:
    """The value of an expression, None when unknown; then `missing` and `reasons` say why.

    Both `used` and `missing` hold only what mattered: in `a and b` with a false, b is in neither.
    """

    value: Value | None
    missing: tuple[str, ...] = ()
    used: tuple[Used, ...] = ()
    reasons: tuple[str, ...] = ()


class Node(Protocol):
    """A part of a compiled expression. `kind` is what it can yield; computing never raises."""

    @property
    def kind(self) -> Kind: ...

    def compute(self, bindings: Bindings) -> Computed: ...


def _merge(value: Value | None, parts: Collection[Computed], reason: str | None = None) -> Computed:
    """A result made of its parts' evidence, each piece named once and in reading order."""
    reasons = [r for part in parts for r in part.reasons] + ([reason] if reason else [])
    return Computed(
        value,
        tuple(dict.fromkeys(m for part in parts for m in part.missing)),
        tuple(dict.fromkeys(u for part in parts for u in part.used)),
        tuple(dict.fromkeys(reasons)),
    )


def kind_of(value: Value) -> Kind:
    """The kind of a value; a truth value is no number."""
    if isinstance(value, bool):
        return "truth"
    return "text" if isinstance(value, str) else "number"


def is_finite(value: int | float) -> bool:
    """Whether a number is within the range of measurements (1e30)."""
    return -LARGEST <= value <= LARGEST  # false for NaN; an int too large for a float is fine


@dataclass(frozen=True)
class Constant:
    """A literal."""

    value: Value

    @property
    def kind(self) -> Kind:
        return kind_of(self.value)

    def compute(self, bindings: Bindings) -> Computed:
        return Computed(self.value)


@dataclass(frozen=True)
class Name:
    """A name of a namespace, or a parameter; `test` is the comparison it stands in."""

    namespace: str
    key: str
    test: str | None = None

    @property
    def kind(self) -> Kind:
        return NAMESPACES.get(self.namespace, "any")

    @property
    def full(self) -> str:
        """The name as it is written."""
        return self.key if self.namespace == "parameters" else f"{self.namespace}.{self.key}"

    def compute(self, bindings: Bindings) -> Computed:
        value = bindings.lookup(self.namespace, self.key)
        if value is None:
            return Computed(None, missing=(self.full,))
        if not isinstance(value, (bool, int, float, str)):
            return Computed(None, reasons=(f"{self.full} is a {type(value).__name__}",))
        if kind_of(value) == "number" and not is_finite(value):  # type: ignore[arg-type]
            return Computed(None, missing=(self.full,), reasons=(f"{self.full} is not finite",))
        return Computed(value, used=(Used(self.full, value, self.test),))


@dataclass(frozen=True)
class Known:
    """`known(x)`: whether the name has a value."""

    name: Name
    kind: Kind = "truth"

    def compute(self, bindings: Bindings) -> Computed:
        result = self.name.compute(bindings)
        return Computed(result.value is not None, used=result.used)


@dataclass(frozen=True)
class Number:
    """Arithmetic and functions over numbers; one unknown operand makes the result unknown."""

    label: str
    function: Callable[..., int | float]
    operands: tuple[Node, ...]
    kind: Kind = "number"

    def compute(self, bindings: Bindings) -> Computed:
        parts = [operand.compute(bindings) for operand in self.operands]
        values = [part.value for part in parts]
        if any(value is None for value in values):
            return _merge(None, parts)
        wrong = next((v for v in values if v is not None and kind_of(v) != "number"), None)
        if wrong is not None:
            return _merge(None, parts, f"{self.label} needs numbers, got {wrong!r}")
        try:
            result = self.function(*values)
        except (ZeroDivisionError, ValueError, OverflowError) as problem:
            return _merge(None, parts, f"{self.label}: {problem}")
        if not is_finite(result):
            return _merge(None, parts, f"{self.label}: the result is out of range")
        return _merge(result, parts)


@dataclass(frozen=True)
class Compare:
    """A comparison of two values of one kind."""

    symbol: str
    left: Node
    right: Node
    kind: Kind = "truth"

    def compute(self, bindings: Bindings) -> Computed:
        left, right = self.left.compute(bindings), self.right.compute(bindings)
        if left.value is None or right.value is None:
            return _merge(None, (left, right))
        problem = incomparable(self.symbol, kind_of(left.value), kind_of(right.value))
        if problem:
            return _merge(None, (left, right), f"{problem}: {left.value!r}, {right.value!r}")
        return _merge(COMPARISONS[self.symbol](left.value, right.value), (left, right))


@dataclass(frozen=True)
class Member:
    """`item in [..]`, or `not in`."""

    item: Node
    options: tuple[Value, ...]
    negated: bool
    kind: Kind = "truth"

    def compute(self, bindings: Bindings) -> Computed:
        item = self.item.compute(bindings)
        if item.value is None:
            return item
        kind = kind_of(item.value)
        if any(kind_of(option) != kind for option in self.options):
            return _merge(None, (item,), f"cannot compare {item.value!r} with the list")
        return _merge((item.value in self.options) != self.negated, (item,))


@dataclass(frozen=True)
class Not:
    """The opposite of a truth value; of unknown it is unknown."""

    operand: Node
    kind: Kind = "truth"

    def compute(self, bindings: Bindings) -> Computed:
        part = truth(self.operand, bindings)
        return _merge(None if part.value is None else not part.value, (part,))


@dataclass(frozen=True)
class Join:
    """`and` (decided by a False) or `or` (decided by a True)."""

    decisive: bool
    operands: tuple[Node, ...]
    kind: Kind = "truth"

    def compute(self, bindings: Bindings) -> Computed:
        parts = [truth(operand, bindings) for operand in self.operands]
        deciding = [part for part in parts if part.value is self.decisive]
        if deciding:
            return _merge(self.decisive, deciding)
        unknown = any(part.value is None for part in parts)
        return _merge(None if unknown else not self.decisive, parts)


def truth(node: Node, bindings: Bindings) -> Computed:
    """The value of a node as a truth value; anything else is unknown, with the reason."""
    part = node.compute(bindings)
    if part.value is None or isinstance(part.value, bool):
        return part
    return _merge(None, (part,), f"{part.value!r} is neither true nor false")


def incomparable(symbol: str, left: Kind, right: Kind) -> str | None:
    """Why two kinds cannot be compared by this symbol, or None where they can."""
    known = {left, right} - {"any"}
    if len(known) > 1:
        return f"cannot compare a {left} with a {right}"
    if symbol not in ("==", "!=") and known & {"text", "truth"}:
        return f"{known.pop()} has no order"
    return None


COMPARISONS: dict[str, Callable[[object, object], bool]] = {
    "<": operator.lt,  # type: ignore[dict-item]
    "<=": operator.le,  # type: ignore[dict-item]
    ">": operator.gt,  # type: ignore[dict-item]
    ">=": operator.ge,  # type: ignore[dict-item]
    "==": operator.eq,
    "!=": operator.ne,
}
