"""Held-out cases for a problem that declares none: other sizes of what its file names.

A size is a whole number that the file assigns at module level and that its inputs are made from.
Derived cases are checked, not timed: only the declared shapes are claimed. Runs nothing to find
them; `fitting` runs the reference to see which of them exist.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kb.errors import KernloreError
from optimizer.evaluation.problem.load import assigned
from optimizer.evaluation.problem.spec import HELD_OUT, Case, Problem
from optimizer.evaluation.problem.tensors import OpenCase, open_case

TOO_LARGE = 1 << 28  # bytes of a case, beyond which nothing is derived: it would take too long


@dataclass(frozen=True)
class Derived:
    """Derived cases that the reference runs on, and a note that says which, or why none."""

    cases: tuple[Case, ...]
    note: str


def derived_cases(problem: Problem, base: Case) -> tuple[Case, ...]:
    """Cases like `base` with one size less and one more (the size that the inputs use last), and
    with half of the first size (the batch). Empty where the file names no size.
    """
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


def fitting(problem: Problem, base: Case) -> Derived:
    """The derived cases of `base` whose inputs the reference takes, and what is to be said of
    them. Runs the reference."""
    wanted = derived_cases(problem, base)
    if not wanted:
        return Derived((), f"{HELD_OUT}none: no size of its inputs is a constant of its file")
    signature = open_case(problem, base).signature
    if signature.compulsory_bytes > TOO_LARGE:
        return Derived((), f"{HELD_OUT}none: the case {base.name} is too large to be varied")
    shapes = [tensor.shape for tensor in signature.of("input")]
    cases, refused = [], []
    for case in wanted:
        try:
            other = open_case(problem, case)
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
    return Derived(tuple(cases), f"{HELD_OUT}derived from the sizes of the file: {text}{without}")


def _has_elements(case: OpenCase) -> bool:
    return all(output.elements for output in case.outputs)


def _sizes(source: str) -> Mapping[str, int]:
    """Whole numbers above 1 by name, of those that get_inputs uses, in the order of their use."""
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
    """Of plain assignments, `a, b = 1, 2` too."""
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
