"""Expressions of `[toolchains.LANG.scalars]`: numbers that a program is handed beside its tensors,
such as `x.shape[0]`, `1 / input[0].shape[1]` or `eps`.

Each reference becomes a parameter of the predicate engine (`kb.predicates`), which does the rest;
nothing is ever handed to `eval`. Does not know which tensors and constants a problem has.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from kb.errors import InvalidPredicate
from kb.predicates import Bindings, Computed, Expression, compile_expression

MAX_SCALAR = 300  # characters
_HINT = (
    "Write arithmetic over x.shape[0], input[0].shape[1], weight[0].elements, output[0].ndim and"
    " constants of the reference such as eps; + - * / // %, min max abs ceil floor log2 sqrt."
)


@dataclass(frozen=True)
class ScalarFormula:
    """A compiled scalar. `references` are the names that it reads, as it writes them."""

    text: str
    references: tuple[str, ...]
    _expression: Expression

    def compute(self, values: Mapping[str, int | float]) -> Computed:
        """The number, or None with `missing` references or `reasons`. `values` are by reference."""
        bound = {_parameter(n): values.get(name) for n, name in enumerate(self.references)}
        result = self._expression.compute(Bindings(parameters=bound))
        names = {_parameter(n): name for n, name in enumerate(self.references)}
        missing = tuple(names.get(name, name) for name in result.missing)
        return Computed(result.value, missing, (), result.reasons)


@lru_cache(maxsize=1024)
def compile_scalar(text: str) -> ScalarFormula:
    """Compile one expression. Raises InvalidPredicate, which says what to write instead."""
    if len(text) > MAX_SCALAR:
        raise _invalid(text, f"longer than {MAX_SCALAR} characters")
    try:
        tree = ast.parse(" ".join(text.split()), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as problem:
        raise _invalid(text, f"cannot be read: {problem}") from problem
    collected = _References(text)
    flat = ast.unparse(collected.visit(tree))
    try:
        expression = compile_expression(flat)
        # A comparison is no number; `x + 0` accepts every operand that may be one.
        compile_expression(f"({flat}) + 0")
    except InvalidPredicate as problem:
        raise _invalid(text, problem.message.partition(" (column")[0]) from problem
    return ScalarFormula(text, tuple(collected.names), expression)


class _References(ast.NodeTransformer):
    """Replaces every reference by a parameter and keeps what it was."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.names: list[str] = []

    def visit_Call(self, node: ast.Call) -> ast.AST:
        node.args = [self.visit(argument) for argument in node.args]
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return self._parameter(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        return self._parameter(node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        return self._parameter(node)

    def _parameter(self, node: ast.expr) -> ast.Name:
        name = self._written(node)
        if name.endswith(".shape"):
            raise _invalid(self.text, f"{name} is a list of sizes: write {name}[0]")
        if name not in self.names:
            self.names.append(name)
        return ast.Name(_parameter(self.names.index(name)), ast.Load())

    def _written(self, node: ast.expr) -> str:
        match node:
            case ast.Name():
                return node.id
            case ast.Attribute():
                return f"{self._written(node.value)}.{node.attr}"
            case ast.Subscript(slice=ast.Constant(value=int() as index)) if index is not True:
                return f"{self._written(node.value)}[{index}]"
            case ast.Subscript(
                slice=ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as index))
            ):
                return f"{self._written(node.value)}[-{index}]"
        raise _invalid(self.text, f"{ast.unparse(node)[:80]} is no name of a tensor or constant")


def _parameter(number: int) -> str:
    return f"reference{number}"


def _invalid(text: str, message: str) -> InvalidPredicate:
    return InvalidPredicate(message, hint=_HINT, details={"expression": text[:MAX_SCALAR]})
