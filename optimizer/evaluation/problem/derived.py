"""Held-out cases for a problem that declares none, with other sizes.

A size is a whole number that the file assigns at module level and that its inputs depend on.
Derived cases are checked, not timed: only the declared shapes are claimed. They are found without
running the file; `fitting` runs the reference to see which of them it accepts.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kb.errors import KernloreError
from optimizer.evaluation.problem.load import assigned
from optimizer.evaluation.problem.open_case import OpenCase
from optimizer.evaluation.problem.spec import HELD_OUT, Case, Problem

TOO_LARGE = 1 << 28  # bytes of a case, above which deriving others would take too long


@dataclass(frozen=True)
class DerivedCases:
    """Derived cases that the reference accepts, and a note that lists them, or explains their
    absence."""

    cases: tuple[Case, ...]
    note: str


def derived_cases(problem: Problem, base: Case) -> tuple[Case, ...]:
    """Cases like `base` with the size that the inputs use last one less and one more, and with half
    of the first size (the batch). Empty if the file names no size."""
    sizes = _sizes(problem.source)
    names = [name for name in sizes if isinstance(base.constants.get(name, 2), int)]
    if not names:
        return ()
    values = {name: base.constants.get(name, sizes[name]) for name in names}
    first, last = names[0], names[-1]
    wanted = [(last, values[last] - 1), (last, values[last] + 1), (first, values[first] // 2)]
    chosen = dict.fromkeys(pair for pair in wanted if pair[1] > 0)
    return tuple(
        replace(
            base,
            name=f"{name}={value}",
            constants={**base.constants, name: value},
            timed=False,
            held_out=True,
        )
        for name, value in chosen
    )


def fitting(problem: Problem, base: Case) -> DerivedCases:
    """The derived cases of `base` that the reference accepts. Runs it."""
    wanted = derived_cases(problem, base)
    if not wanted:
        return DerivedCases((), f"{HELD_OUT}none: no size of its inputs is a constant of its file")
    # Drawing the values of a large case, and running it on a CPU, would take minutes.
    signature = OpenCase(problem, base, shapes_only=True).signature
    if signature.compulsory_bytes > TOO_LARGE:
        return DerivedCases((), f"{HELD_OUT}none: the case {base.name} is too large to be varied")
    shapes = [tensor.shape for tensor in signature.of("input")]
    cases, refused = [], []
    for case in wanted:
        try:
            other = OpenCase(problem, case)
            varied = [tensor.shape for tensor in other.signature.of("input")] != shapes
        except KernloreError as error:
            refused.append(f"{case.name} ({error.message[:120]})")
            continue
        if varied and _has_elements(other):
            cases.append(case)
        else:
            refused.append(f"{case.name} (its inputs do not change)")
    text = ", ".join(case.name for case in cases) or "none"
    without = f"; not possible: {', '.join(refused)}" if refused else ""
    return DerivedCases(
        tuple(cases), f"{HELD_OUT}derived from the sizes of the file: {text}{without}"
    )


def _has_elements(case: OpenCase) -> bool:
    return all(output.elements for output in case.outputs)


def _sizes(source: str) -> Mapping[str, int]:
    """Whole numbers above 1 by name that get_inputs uses, in the order of their use."""
    tree = ast.parse(source)
    known = _whole_numbers(tree)
    uses = {name: _loaded([node]) for node in tree.body for name in assigned(_module(node))}
    makes = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name == "get_inputs"
    ]
    order: list[str] = []
    waiting = _loaded(makes)
    while waiting:
        name = waiting.pop(0)
        if name not in order:
            order.append(name)
            waiting = [*(used for used in uses.get(name, ()) if used != name), *waiting]
    return {name: known[name] for name in order if known.get(name, 0) > 1}


def _module(node: ast.stmt) -> ast.Module:
    return ast.Module([node], [])


def _loaded(nodes: Sequence[ast.AST]) -> list[str]:
    """Names that are read, in the order of the text."""
    names = [
        part
        for node in nodes
        for part in ast.walk(node)
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)
    ]
    return [part.id for part in sorted(names, key=lambda part: (part.lineno, part.col_offset))]


def _whole_numbers(tree: ast.Module) -> dict[str, int]:
    """Whole numbers in plain assignments, also `a, b = 1, 2`."""
    numbers: dict[str, int] = {}
    for node in tree.body:
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            pairs: list[tuple[ast.expr, ast.expr]] = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(target.elts, node.value.elts, strict=False))
            for name, value in pairs:
                if isinstance(name, ast.Name) and isinstance(value, ast.Constant):
                    number = value.value
                    if isinstance(number, int) and not isinstance(number, bool):
                        numbers[name.id] = number
    return numbers
