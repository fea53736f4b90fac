"""Reductions of a kernel that need fewer walks along its rows: a sum that is there twice is made
once; a sum of squares about the mean is made beside the sum, by Welford's updates; the sum of a
softmax, and that of its logarithms, beside the maximum.

B. P. Welford, "Note on a method for calculating corrected sums of squares and products",
Technometrics 4 (1962). M. Milakov and N. Gimelshein, "Online normalizer calculation for softmax",
arXiv:1805.02867 (2018). Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isclose

from optimizer.search.synthesizers.traced.expression import Expression, renamed
from optimizer.search.synthesizers.traced.launches import Launch, Placed, every_load

Terms = tuple[tuple[int, Expression], ...]  # with their signs


@dataclass(frozen=True)
class Together:
    """Reductions that one walk makes, by the buffer of the one that the others need."""

    squares: Mapping[str, str] = field(default_factory=dict)  # about the mean, by the sum
    powers: Mapping[str, str] = field(default_factory=dict)  # sums of exp(x - maximum)
    # Sums of x - maximum, with what is added to every term besides and does not change along a row.
    differences: Mapping[str, tuple[str, Terms]] = field(default_factory=dict)

    @property
    def followers(self) -> dict[str, tuple[str, ...]]:
        """The reductions that are made beside each first one."""
        result: dict[str, tuple[str, ...]] = {}
        for first, name in (*self.squares.items(), *self.powers.items()):
            result[first] = (name,)
        for first, (name, _) in self.differences.items():
            result[first] = (*result[first], name)
        return result

    @property
    def allowed(self) -> set[tuple[str, str]]:
        """Pairs of which the second may need the first and stand in the same walk."""
        return {
            (before, name)
            for first, names in self.followers.items()
            for number, name in enumerate(names)
            for before in (first, *names[:number])
        }


def together(launch: Launch) -> Together:
    """What a walk along the rows of this kernel makes together."""
    return Together(_squares_about_means(launch), *_softmax_sums(launch))


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


def _softmax_sums(launch: Launch) -> tuple[dict[str, str], dict[str, tuple[str, Terms]]]:
    """Sums of exp(x - maximum) by the buffer of the maximum of x, and sums of what is x - maximum
    but for terms that do not change along a row."""
    made = {part.out.name for part in launch.placed}
    reduced = [p for p in launch.placed if p.role == "reduce" and p.body.dtype == "float32"]
    maxima = {part.out.name: part.body for part in reduced if part.combine == "max"}
    sums = [part for part in reduced if part.combine == "sum"]
    powers: dict[str, str] = {}
    for part in sums:
        if part.body.name == "exp":
            most = _maximum(part.body.args[0], maxima)
            if most is not None:
                powers.setdefault(most, part.out.name)
    differences: dict[str, tuple[str, Terms]] = {}
    for part in sums:
        body, terms = part.body, []
        most = _maximum(body, maxima)
        while most is None and body.name in ("sub", "add"):
            sign = -1 if body.name == "sub" else 1
            body, term = body.args
            terms.append((sign, term))
            most = _maximum(body, maxima)
        if most not in powers:
            continue
        known = {most, powers[most]}
        fixed = all(launch.axes.c not in term.variables for _, term in terms)
        if fixed and not {str(e.value) for _, t in terms for e in every_load(t)} & made - known:
            differences.setdefault(most, (part.out.name, tuple(terms)))
    return powers, differences


def _maximum(of: Expression, maxima: Mapping[str, Expression]) -> str | None:
    """The buffer of the maximum of x, where this is x - maximum."""
    if of.name != "sub" or of.args[1].name != "load":
        return None
    name = str(of.args[1].value)
    return name if maxima.get(name) is of.args[0] else None


def _squares_about_means(launch: Launch) -> dict[str, str]:
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


def beside(parts: Sequence[Placed], followers: Mapping[str, Sequence[str]]) -> list[Placed]:
    """The stages with those that are made beside another one right behind it."""
    by_name = {part.out.name: part for part in parts}
    moved = {name for names in followers.values() for name in names}
    ordered: list[Placed] = []
    for part in parts:
        if part.out.name not in moved:
            ordered += [part, *(by_name[name] for name in followers.get(part.out.name, ()))]
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
