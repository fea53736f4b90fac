"""Reductions of a kernel that need fewer walks along its rows: a sum that is there twice is made
once, and a sum of squares about the mean is made beside the sum, by Welford's updates.

B. P. Welford, "Note on a method for calculating corrected sums of squares and products",
Technometrics 4 (1962). Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isclose

from optimizer.search.synthesizers.traced.expression import Expression, renamed
from optimizer.search.synthesizers.traced.launches import Launch, Placed


def without_twins(launch: Launch) -> Launch:
    """The kernel without reductions of the same values in the same way, but for the first of each
    and those that are stored."""
    first: dict[object, str] = {}
    names: dict[str, str] = {}
    kept: list[Placed] = []
    for part in launch.placed:
        part = replace(part, body=renamed(part.body, names))
        if part.role == "reduce":
            key = (part.body, part.combine, part.out.dtype, part.place)
            earlier = first.setdefault(key, part.out.name)
            if earlier != part.out.name and part.out.name not in launch.stored:
                names[part.out.name] = earlier
                continue
        kept.append(part)
    return replace(launch, placed=tuple(kept))


def squares_about_means(launch: Launch) -> dict[str, str]:
    """Sums of squares about a mean, by the buffer of the sum that the mean is of; each has the
    same values as that sum, which nothing outside of the kernel reads."""
    sums = {
        part.out.name: part
        for part in launch.placed
        if part.role == "reduce" and part.combine == "sum" and part.body.dtype == "float32"
    }
    pairs: dict[str, str] = {}
    for name, part in sums.items():
        mean = _about(part.body)
        total = _sum_of_mean(mean[1], launch.axes.length) if mean is not None else None
        if mean is None or total not in sums or total in launch.stored or total in pairs:
            continue
        if sums[total].body is mean[0]:
            pairs[total] = name
    return pairs


def beside(parts: Sequence[Placed], pairs: Mapping[str, str]) -> list[Placed]:
    """The stages with each sum of squares behind its sum."""
    by_name = {part.out.name: part for part in parts}
    ordered: list[Placed] = []
    for part in parts:
        if part.out.name not in pairs.values():
            ordered.append(part)
        if part.out.name in pairs:
            ordered.append(by_name[pairs[part.out.name]])
    return ordered


def _about(body: Expression) -> tuple[Expression, Expression] | None:
    """The value and what is taken from it, of the square of a difference."""
    if body.name == "square":
        (difference,) = body.args
    elif body.name == "mul" and body.args[0] is body.args[1]:
        difference = body.args[0]
    else:
        return None
    return (difference.args[0], difference.args[1]) if difference.name == "sub" else None


def _sum_of_mean(mean: Expression, terms: int) -> str | None:
    """The buffer that a mean of so many terms is computed from."""
    if mean.name not in ("mul", "div") or mean.args[0].name != "load":
        return None
    factor = mean.args[1]
    if factor.name != "literal" or isinstance(factor.value, str):
        return None
    right = 1 / terms if mean.name == "mul" else terms
    return str(mean.args[0].value) if isclose(factor.value, right, rel_tol=1e-12) else None
