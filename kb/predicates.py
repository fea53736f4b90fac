"""The expression language of diagnosis rules, preconditions, moves, recipes and derived facts.

A text is parsed with `ast`, checked against a whitelist and compiled once into frozen nodes;
`eval` is never used. Knows neither the existing names nor the source of values:
`names()` lets a linter check names, `Bindings` carries values. Standard library only, because the
portable search core uses it too.

Invariants: three-valued (Kleene) logic. Errors in the text (syntax, a forbidden construct, operands
whose types can never match) raise `InvalidPredicate` at compilation. Errors in the values (missing,
of another type, division by zero, not finite) make the result unknown, with a reason. A truth value
is not a number, and text has no order ("10.0" < "9.0").
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, NamedTuple, Protocol

from kb.errors import InvalidPredicate

Value = bool | int | float | str
Kind = Literal["number", "text", "truth", "any"]
NAMESPACES: dict[str, Kind] = {
    "signals": "truth",
    "metrics": "number",
    "facts": "any",
    "problem": "any",
}
MAX_LENGTH = 2_000
MAX_DEPTH = 48
MAX_EXPONENT = 64
# No measurement is larger, and integers stay cheap to multiply.
LARGEST = 1e30
_GRAMMAR = (
    "Allowed: and or not, comparisons, + - * / // %, min max abs ceil floor log2 sqrt, known(x), "
    "literals, in [..], and the names signals.X metrics.X facts.X problem.X or a parameter."
)


@dataclass(frozen=True)
class Bindings:
    """The values an expression may read. A name that is absent, or bound to None, is unknown.

    `signals` are the ids of a verdict; without one (None) every signal is unknown.
    """

    signals: Collection[str] | None = None
    metrics: Mapping[str, Value | None] = field(default_factory=dict)
    facts: Mapping[str, Value | None] = field(default_factory=dict)
    problem: Mapping[str, Value | None] = field(default_factory=dict)
    parameters: Mapping[str, Value | None] = field(default_factory=dict)

    def lookup(self, namespace: str, key: str) -> Value | None:
        """The value of a name; None for an unknown one."""
        if namespace == "signals":
            return None if self.signals is None else key in self.signals
        values: Mapping[str, Value | None] = getattr(self, namespace)
        return values.get(key)


class Names(NamedTuple):
    """The names in an expression by namespace, sorted."""

    signals: tuple[str, ...]
    metrics: tuple[str, ...]
    facts: tuple[str, ...]
    problem: tuple[str, ...]
    parameters: tuple[str, ...]


class UsedValue(NamedTuple):
    """A value that decided the result; `test` is the source text of its comparison."""

    name: str
    value: Value
    test: str | None


@dataclass(frozen=True)
class Computed:
    """The value of an expression; None for unknown, with the `missing` names and other `reasons`.

    `used` and `missing` contain only decisive names: in `a and b` with a false, b is in neither.
    """

    value: Value | None
    missing: tuple[str, ...] = ()
    used: tuple[UsedValue, ...] = ()
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class PredicateResult:
    """The truth of a predicate, None for unknown. Other fields as in `Computed`."""

    value: bool | None
    missing: tuple[str, ...]
    used: tuple[UsedValue, ...]
    reasons: tuple[str, ...]


@lru_cache(maxsize=4096)
def compile_predicate(text: str) -> Predicate:
    """Compile a condition. Raises InvalidPredicate, also for an expression whose value can never be
    a truth value."""
    expression = compile_expression(text)
    kind, flat = expression._root.kind, expression.text
    if kind not in ("truth", "any"):
        raise _invalid(flat, f"a {kind} is not a condition", 0, "Compare it with something.")
    return Predicate(flat, expression._root, expression.names())


@lru_cache(maxsize=4096)
def compile_expression(text: str) -> CompiledExpression:
    """Compile an expression such as `metrics.hits / (metrics.hits + metrics.misses)`. Raises
    InvalidPredicate."""
    return _compiled(text, formula=False)


@lru_cache(maxsize=4096)
def compile_formula(text: str) -> CompiledExpression:
    """Compile the arithmetic of a derived fact, such as `compute_units * 228 * 2**10`.

    Its names are fact keys, bound as `parameters`. Raises InvalidPredicate for anything but
    numbers, names, `+ - * / // % **` and brackets.
    """
    expression = _compiled(text, formula=True)
    if expression._root.kind not in ("number", "any"):
        raise _invalid(expression.text, f"a {expression._root.kind} is not a number", 0)
    return expression


@dataclass(frozen=True)
class CompiledExpression:
    """A compiled expression of any type."""

    text: str
    _root: ExpressionNode = field(repr=False, compare=False)
    _names: Names = field(repr=False, compare=False)

    def names(self) -> Names:
        """The names in the expression, for linters."""
        return self._names

    def compute(self, bindings: Bindings) -> Computed:
        """The value under these bindings; unknown rather than an error where values do not fit."""
        return self._root.compute(bindings)


@dataclass(frozen=True)
class Predicate(CompiledExpression):
    """A compiled expression that is true, false or unknown."""

    def evaluate(self, bindings: Bindings) -> PredicateResult:
        """Kleene truth under these bindings, with the values that decided it."""
        result = truth(self._root, bindings)
        value = result.value if isinstance(result.value, bool) else None
        return PredicateResult(value, result.missing, result.used, result.reasons)


def _compiled(text: str, *, formula: bool) -> CompiledExpression:
    flat = " ".join(text.split("\n")).strip()
    compiler = _Compiler(flat, formula=formula)
    root = compiler.node(_parse(flat))
    return CompiledExpression(flat, root, compiler.names())


def _parse(text: str) -> ast.expr:
    if len(text) > MAX_LENGTH:
        raise _invalid(text, f"longer than {MAX_LENGTH} characters", 0, "Split it into several.")
    if not text:
        raise _invalid(text, "the expression is empty", 0)
    if "\\" in text:
        raise _invalid(text, "a backslash is not part of the language", text.index("\\"))
    try:
        tree = ast.parse(text, mode="eval").body
    except SyntaxError as problem:
        raise _invalid(text, f"{problem.msg}", (problem.offset or 1) - 1) from problem
    except (ValueError, MemoryError, RecursionError) as problem:
        raise _invalid(text, f"cannot be parsed: {problem}", 0) from problem
    _check_depth(text, tree)
    return tree


def _check_depth(text: str, tree: ast.AST) -> None:
    """Reject deep trees before any recursion over them; itself not recursive."""
    level = [tree]
    for _ in range(MAX_DEPTH):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        if not level:
            return
    column = getattr(level[0], "col_offset", 0)
    raise _invalid(text, f"nested deeper than {MAX_DEPTH} levels", column, "Split it into several.")


def _invalid(text: str, message: str, column: int, hint: str = _GRAMMAR) -> InvalidPredicate:
    return InvalidPredicate(
        f"{message} (column {column + 1} of {text[:200]!r})",
        hint=hint,
        details={"expression": text[:MAX_LENGTH], "column": column + 1},
    )


def _power(base: float, exponent: float) -> float:
    if abs(exponent) > MAX_EXPONENT or (base < 0 and exponent != int(exponent)):
        raise ValueError(f"{base:g} ** {exponent:g} is out of range")
    return math.pow(base, exponent)


_ARITHMETIC: dict[type[ast.operator], tuple[str, Callable[..., int | float]]] = {
    ast.Add: ("+", operator.add),
    ast.Sub: ("-", operator.sub),
    ast.Mult: ("*", operator.mul),
    ast.Div: ("/", operator.truediv),
    ast.FloorDiv: ("//", operator.floordiv),
    ast.Mod: ("%", operator.mod),
}
# Formulas of derived facts also have powers, as in 2**10.
_FORMULA_ARITHMETIC = _ARITHMETIC | {ast.Pow: ("**", _power)}
_COMPARISONS: dict[type[ast.cmpop], tuple[str, Callable[[Any, Any], bool]]] = {
    ast.Lt: ("<", operator.lt),
    ast.LtE: ("<=", operator.le),
    ast.Gt: (">", operator.gt),
    ast.GtE: (">=", operator.ge),
    ast.Eq: ("==", operator.eq),
    ast.NotEq: ("!=", operator.ne),
}


class _Function(NamedTuple):
    call: Callable[..., int | float]
    fewest: int
    most: int


_FUNCTIONS = {
    "min": _Function(min, 2, 16),
    "max": _Function(max, 2, 16),
    "abs": _Function(abs, 1, 1),
    "ceil": _Function(math.ceil, 1, 1),
    "floor": _Function(math.floor, 1, 1),
    "log2": _Function(math.log2, 1, 1),
    "sqrt": _Function(math.sqrt, 1, 1),
}


class _Compiler:
    """Translates a syntax tree into nodes and collects its names. With `formula`, only numbers,
    plain names, arithmetic with powers and parentheses are allowed."""

    def __init__(self, text: str, *, formula: bool = False) -> None:
        self.text = text
        self.formula = formula
        self.operators = _FORMULA_ARITHMETIC if formula else _ARITHMETIC
        self.keys: dict[str, set[str]] = {}

    def fail(self, message: str, node: ast.AST, hint: str = _GRAMMAR) -> InvalidPredicate:
        return _invalid(self.text, message, getattr(node, "col_offset", 0), hint)

    def node(self, tree: ast.AST, test: str | None = None) -> ExpressionNode:
        if self.formula and not _is_arithmetic(tree):
            raise self.fail(f"{type(tree).__name__} is not arithmetic", tree)
        match tree:
            case ast.Constant():
                return self.constant(tree)
            case ast.Name() | ast.Attribute():
                return self.name(tree, test)
            case ast.BoolOp():
                operands = tuple(self.need(v, "truth", None) for v in tree.values)
                return BooleanNode(isinstance(tree.op, ast.Or), operands)
            case ast.UnaryOp():
                return self.unary(tree, test)
            case ast.BinOp():
                return self.arithmetic(tree, test)
            case ast.Compare():
                return self.comparison(tree)
            case ast.Call():
                return self.call(tree, test)
        raise self.fail(f"{type(tree).__name__} is not part of the language", tree)

    def need(self, tree: ast.AST, kind: Kind, test: str | None) -> ExpressionNode:
        node = self.node(tree, test)
        if node.kind not in (kind, "any"):
            raise self.fail(f"a {kind} is needed here, this is a {node.kind}", tree)
        return node

    def constant(self, tree: ast.Constant) -> ConstantNode:
        value = tree.value
        if value is None:
            raise self.fail("None is not a value", tree, "Write known(x) to test for a value.")
        if not isinstance(value, (bool, int, float, str)):
            raise self.fail(f"a literal of type {type(value).__name__} is not allowed", tree)
        if not isinstance(value, (bool, str)) and not is_finite(value):
            raise self.fail("the number is out of range", tree)
        return ConstantNode(value)

    def name(self, tree: ast.Name | ast.Attribute, test: str | None = None) -> NameNode:
        if isinstance(tree, ast.Name):
            namespace, key = "parameters", tree.id
            if key in NAMESPACES or key in _FUNCTIONS or key == "known":
                raise self.fail(f"{key!r} is reserved and needs a name or a call after it", tree)
        elif isinstance(tree.value, ast.Name) and tree.value.id in NAMESPACES:
            namespace, key = tree.value.id, tree.attr
        else:
            raise self.fail("only signals, metrics, facts and problem have members", tree)
        if key.startswith("_"):
            raise self.fail(f"{key!r} starts with an underscore", tree)
        self.keys.setdefault(namespace, set()).add(key)
        return NameNode(namespace, key, test)

    def unary(self, tree: ast.UnaryOp, test: str | None) -> ExpressionNode:
        if isinstance(tree.op, ast.Not):
            return NegationNode(self.need(tree.operand, "truth", test))
        if isinstance(tree.op, (ast.USub, ast.UAdd)):
            function = operator.neg if isinstance(tree.op, ast.USub) else operator.pos
            return ArithmeticNode("sign", function, (self.need(tree.operand, "number", test),))
        raise self.fail("~ is not part of the language", tree)

    def arithmetic(self, tree: ast.BinOp, test: str | None) -> ExpressionNode:
        if type(tree.op) not in self.operators:
            raise self.fail(f"{type(tree.op).__name__} is not part of the language", tree)
        label, function = self.operators[type(tree.op)]
        sides = (tree.left, tree.right)
        return ArithmeticNode(label, function, tuple(self.need(s, "number", test) for s in sides))

    def comparison(self, tree: ast.Compare) -> ExpressionNode:
        left, links = tree.left, list[ExpressionNode]()
        for op, right in zip(tree.ops, tree.comparators, strict=True):
            links.append(self.link(left, op, right))
            left = right
        return links[0] if len(links) == 1 else BooleanNode(False, tuple(links))

    def link(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> ExpressionNode:
        if isinstance(op, (ast.In, ast.NotIn)):
            return self.member(left, right, isinstance(op, ast.NotIn))
        if type(op) not in _COMPARISONS:
            raise self.fail("`is` is not part of the language", left, "Write == or known(x).")
        symbol, function = _COMPARISONS[type(op)]
        test = ast.unparse(ast.Compare(left, [op], [right]))
        nodes = self.node(left, test), self.node(right, test)
        problem = incomparable(symbol, nodes[0].kind, nodes[1].kind)
        if problem:
            raise self.fail(problem, left)
        return ComparisonNode(symbol, function, *nodes)

    def member(self, left: ast.expr, right: ast.expr, negated: bool) -> ExpressionNode:
        if not isinstance(right, (ast.List, ast.Tuple, ast.Set)) or not right.elts:
            raise self.fail("`in` needs a list of literals", right)
        options = tuple(self.option(element) for element in right.elts)
        test = ast.unparse(ast.Compare(left, [ast.In()], [right]))
        item = self.node(left, test)
        kinds = {kind_of(option) for option in options} | ({item.kind} - {"any"})
        if len(kinds) > 1:
            raise self.fail(f"the list mixes {' and '.join(sorted(kinds))}", right)
        return MembershipNode(item, options, negated)

    def option(self, tree: ast.expr) -> Value:
        match tree:
            case ast.Constant():
                return self.constant(tree).value
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float())):
                number = self.constant(tree.operand).value  # type: ignore[arg-type]
                if not isinstance(number, (bool, str)):
                    return -number
        raise self.fail("`in` needs literals in its list", tree)

    def call(self, tree: ast.Call, test: str | None) -> ExpressionNode:
        label = tree.func.id if isinstance(tree.func, ast.Name) else ""
        if tree.keywords or (label not in _FUNCTIONS and label != "known"):
            raise self.fail(f"no such function: {ast.unparse(tree.func)}", tree)
        if label == "known":
            if len(tree.args) != 1 or not isinstance(tree.args[0], (ast.Name, ast.Attribute)):
                raise self.fail("known(x) takes one name", tree)
            return KnownNode(self.name(tree.args[0]))
        function = _FUNCTIONS[label]
        if not function.fewest <= len(tree.args) <= function.most:
            raise self.fail(f"{label} takes {function.fewest} to {function.most} values", tree)
        operands = tuple(self.need(a, "number", test) for a in tree.args)
        return ArithmeticNode(label, function.call, operands)

    def names(self) -> Names:
        groups = (*NAMESPACES, "parameters")
        return Names(*(tuple(sorted(self.keys.get(group, ()))) for group in groups))


def _is_arithmetic(tree: ast.AST) -> bool:
    match tree:
        case ast.Constant() | ast.Name() | ast.BinOp() | ast.UnaryOp(op=ast.USub()):
            return True
    return False


class ExpressionNode(Protocol):
    """A part of a compiled expression. `kind` is the type of its value; computing never raises."""

    @property
    def kind(self) -> Kind: ...

    def compute(self, bindings: Bindings) -> Computed: ...


@dataclass(frozen=True)
class ConstantNode:
    """A literal."""

    value: Value

    @property
    def kind(self) -> Kind:
        return kind_of(self.value)

    def compute(self, bindings: Bindings) -> Computed:
        return Computed(self.value)


@dataclass(frozen=True)
class NameNode:
    """A name of a namespace, or a parameter; `test` is the source text of its comparison."""

    namespace: str
    key: str
    test: str | None = None

    @property
    def kind(self) -> Kind:
        return NAMESPACES.get(self.namespace, "any")

    @property
    def full(self) -> str:
        """The name as written in the expression."""
        return self.key if self.namespace == "parameters" else f"{self.namespace}.{self.key}"

    def compute(self, bindings: Bindings) -> Computed:
        value = bindings.lookup(self.namespace, self.key)
        if value is None:
            return Computed(None, missing=(self.full,))
        if not isinstance(value, (bool, int, float, str)):
            return Computed(None, reasons=(f"{self.full} is a {type(value).__name__}",))
        if kind_of(value) == "number" and not is_finite(value):  # type: ignore[arg-type]
            return Computed(None, missing=(self.full,), reasons=(f"{self.full} is not finite",))
        return Computed(value, used=(UsedValue(self.full, value, self.test),))


@dataclass(frozen=True)
class KnownNode:
    """`known(x)`: whether the name has a value."""

    name: NameNode
    kind: Kind = "truth"

    def compute(self, bindings: Bindings) -> Computed:
        result = self.name.compute(bindings)
        return Computed(result.value is not None, used=result.used)


@dataclass(frozen=True)
class ArithmeticNode:
    """Arithmetic and functions over numbers; one unknown operand makes the result unknown."""

    label: str
    function: Callable[..., int | float]
    operands: tuple[ExpressionNode, ...]
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
class ComparisonNode:
    """A comparison of two values of one kind."""

    symbol: str
    function: Callable[[Any, Any], bool]
    left: ExpressionNode
    right: ExpressionNode
    kind: Kind = "truth"

    def compute(self, bindings: Bindings) -> Computed:
        left, right = self.left.compute(bindings), self.right.compute(bindings)
        if left.value is None or right.value is None:
            return _merge(None, (left, right))
        problem = incomparable(self.symbol, kind_of(left.value), kind_of(right.value))
        if problem:
            return _merge(None, (left, right), f"{problem}: {left.value!r}, {right.value!r}")
        return _merge(self.function(left.value, right.value), (left, right))


@dataclass(frozen=True)
class MembershipNode:
    """`item in [..]`, or `not in`."""

    item: ExpressionNode
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
class NegationNode:
    """`not`; of an unknown value it is unknown."""

    operand: ExpressionNode
    kind: Kind = "truth"

    def compute(self, bindings: Bindings) -> Computed:
        part = truth(self.operand, bindings)
        return _merge(None if part.value is None else not part.value, (part,))


@dataclass(frozen=True)
class BooleanNode:
    """`and` (decided by a False) or `or` (decided by a True)."""

    decisive: bool
    operands: tuple[ExpressionNode, ...]
    kind: Kind = "truth"

    def compute(self, bindings: Bindings) -> Computed:
        parts = [truth(operand, bindings) for operand in self.operands]
        deciding = [part for part in parts if part.value is self.decisive]
        if deciding:
            return _merge(self.decisive, deciding)
        unknown = any(part.value is None for part in parts)
        return _merge(None if unknown else not self.decisive, parts)


def truth(node: ExpressionNode, bindings: Bindings) -> Computed:
    """The value of a node as a truth value; another value is unknown, with a reason."""
    part = node.compute(bindings)
    if part.value is None or isinstance(part.value, bool):
        return part
    return _merge(None, (part,), f"{part.value!r} is neither true nor false")


def _merge(value: Value | None, parts: Collection[Computed], reason: str | None = None) -> Computed:
    """A result with the evidence of its parts, without duplicates and in reading order."""
    reasons = [r for part in parts for r in part.reasons] + ([reason] if reason else [])
    return Computed(
        value,
        tuple(dict.fromkeys(m for part in parts for m in part.missing)),
        tuple(dict.fromkeys(u for part in parts for u in part.used)),
        tuple(dict.fromkeys(reasons)),
    )


def kind_of(value: Value) -> Kind:
    """The kind of a value; a truth value is not a number."""
    if isinstance(value, bool):
        return "truth"
    return "text" if isinstance(value, str) else "number"


def is_finite(value: int | float) -> bool:
    """Whether a number is within the range of measurements (1e30)."""
    return -LARGEST <= value <= LARGEST  # false for NaN; an int too large for a float is fine


def incomparable(symbol: str, left: Kind, right: Kind) -> str | None:
    """The reason why two kinds cannot be compared by a symbol, or None."""
    known = {left, right} - {"any"}
    if len(known) > 1:
        return f"cannot compare a {left} with a {right}"
    if symbol not in ("==", "!=") and known & {"text", "truth"}:
        return f"{known.pop()} has no order"
    return None
