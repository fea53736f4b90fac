"""Integer arithmetic over loop variables, for the places of tensors.

An index is a sum of atoms with integer coefficients and an offset. An atom is a loop variable, a
quotient or a remainder by a constant, or an integer that is read from a tensor. Sums are sorted, so
that equal indices compare equal. Quotients and remainders are simplified if the ranges of the
variables allow it: a reshape that splits a dimension and one that joins it again leave no
arithmetic. Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import gcd
from typing import Any, Union

UNBOUNDED = 1 << 62


@dataclass(frozen=True)
class Var:
    """A loop variable that counts from 0 to `extent` - 1."""

    name: str
    extent: int


@dataclass(frozen=True)
class Quotient:
    """`index` divided by a positive constant, rounded down."""

    index: Index
    by: int


@dataclass(frozen=True)
class Remainder:
    """Remainder of `index`, which is never negative, by a positive constant."""

    index: Index
    by: int


@dataclass(frozen=True)
class Read:
    """The integer value of an ElementExpression, with its bounds."""

    value: Any
    low: int = -UNBOUNDED
    high: int = UNBOUNDED


Atom = Union[Var, Quotient, Remainder, Read]  # noqa: UP007 - the names are defined below each other


@dataclass(frozen=True)
class Index:
    """`offset` plus the sum of atoms times coefficients; no coefficient is 0, no atom twice."""

    terms: tuple[tuple[Atom, int], ...] = ()
    offset: int = 0

    def __add__(self, other: Index | int) -> Index:
        if isinstance(other, int):
            return Index(self.terms, self.offset + other)
        return _sum([*self.terms, *other.terms], self.offset + other.offset)

    def __sub__(self, other: Index | int) -> Index:
        return self + (other * -1 if isinstance(other, Index) else -other)

    def __mul__(self, factor: int) -> Index:
        if factor == 0:
            return Index()
        return Index(tuple((a, c * factor) for a, c in self.terms), self.offset * factor)

    def __floordiv__(self, by: int) -> Index:
        """Rounded down. `by` is positive."""
        if by == 1:
            return self
        whole, rest = _split(self, by)
        low, high = bounds(rest)
        if low >= 0 and high < by:
            return whole
        if low // by == high // by and high < UNBOUNDED:
            return whole + low // by
        nested = _quotient_within(rest, by) if low >= 0 else None
        if nested is not None:
            return whole + nested
        turns = _turns(low, by)
        return whole - turns + Index(((Quotient(rest + turns * by, by), 1),))

    def __mod__(self, by: int) -> Index:
        """The remainder of a whole number that is never negative. `by` is positive."""
        if by == 1:
            return Index()
        _, rest = _split(self, by)
        low, high = bounds(rest)
        if low >= 0 and high < by:
            return rest
        if low // by == high // by and high < UNBOUNDED:
            return rest - by * (low // by)
        nested = _remainder_within(rest, by) if low >= 0 else None
        if nested is not None:
            return nested
        return Index(((Remainder(rest + _turns(low, by) * by, by), 1),))

    @property
    def variable(self) -> Var | None:
        """The loop variable that it consists of, if any."""
        if len(self.terms) == 1 and not self.offset:
            (atom, factor) = self.terms[0]
            if isinstance(atom, Var) and factor == 1:
                return atom
        return None

    def factor(self, variable: Var) -> int | None:
        """The coefficient of a variable, 0 if it does not occur, None if it occurs inside another
        atom."""
        result = 0
        for atom, factor in self.terms:
            if atom == variable:
                result = factor
            elif variable in variables_of_atom(atom):
                return None
        return result


def index(of: Var | int) -> Index:
    """A variable or a number as an index."""
    return Index(((of, 1),)) if isinstance(of, Var) else Index((), of)


def axis(of: Var) -> Index:
    """A variable as an index; 0 for a variable of extent 1."""
    return index(of) if of.extent > 1 else Index()


def read(value: Any, low: int = -UNBOUNDED, high: int = UNBOUNDED) -> Index:
    """The integer that an expression yields, as an index."""
    return Index(((Read(value, low, high), 1),))


def _sum(terms: list[tuple[Atom, int]], offset: int) -> Index:
    total: dict[Atom, int] = {}
    for atom, factor in terms:
        total[atom] = total.get(atom, 0) + factor
    kept = [(atom, factor) for atom, factor in total.items() if factor]
    return Index(tuple(sorted(kept, key=lambda term: repr(term[0]))), offset)


def _split(whole: Index, by: int) -> tuple[Index, Index]:
    """`whole` = first * by + second; the second has the terms that are no multiples of `by`."""
    multiples = [(a, c // by) for a, c in whole.terms if c % by == 0]
    rest = [(a, c) for a, c in whole.terms if c % by]
    quotient, remainder = divmod(whole.offset, by)
    return _sum(multiples, quotient), _sum(rest, remainder)


def _quotient_within(rest: Index, by: int) -> Index | None:
    """The quotient with fewer operations, if possible. `rest` is not negative."""
    if len(rest.terms) == 1 and not rest.offset:
        ((atom, factor),) = rest.terms
        if isinstance(atom, Quotient) and factor == 1:  # x // a // b = x // (a * b)
            return atom.index // (atom.by * by)
    for step, large, _ in _steps(rest, by):
        return large // (by // step)
    return None


def _remainder_within(rest: Index, by: int) -> Index | None:
    """As `_quotient_within`, of the remainder."""
    for atom, factor in rest.terms:
        # x % (n * by) = x, but for multiples of `by`
        if isinstance(atom, Remainder) and factor > 0 and factor * atom.by % by == 0:
            return (rest - Index(((atom, factor),)) + atom.index * factor) % by
    for step, large, small in _steps(rest, by):
        return large % (by // step) * step + small
    return None


def _steps(rest: Index, by: int) -> Iterator[tuple[int, Index, Index]]:
    """Divisors of `by` with rest = first * divisor + second, and second < divisor."""
    common = {gcd(factor, by) for _, factor in rest.terms}
    for step in sorted(common - {1, by}, reverse=True):
        large, small = _split(rest, step)
        low, high = bounds(small)
        if low >= 0 and high < step:
            yield step, large, small


def _turns(low: int, by: int) -> int:
    """Number of times that `by` must be added to avoid negative values: C rounds towards zero."""
    return max(0, -(low // by)) if low > -UNBOUNDED else 0


def bounds(of: Index) -> tuple[int, int]:
    """The least and the greatest value."""
    low = high = of.offset
    for atom, factor in of.terms:
        least, most = _bounds_of_atom(atom)
        ends = (least * factor, most * factor)
        low, high = low + min(ends), high + max(ends)
    return max(low, -UNBOUNDED), min(high, UNBOUNDED)


def _bounds_of_atom(atom: Atom) -> tuple[int, int]:
    if isinstance(atom, Var):
        return 0, max(atom.extent - 1, 0)
    if isinstance(atom, Read):
        return atom.low, atom.high
    low, high = bounds(atom.index)
    if isinstance(atom, Quotient):
        return low // atom.by, high // atom.by
    return 0, atom.by - 1


def variables_of_atom(atom: Atom) -> frozenset[Var]:
    if isinstance(atom, Var):
        return frozenset([atom])
    if isinstance(atom, Read):
        return frozenset(atom.value.variables)
    return variables(atom.index)


def variables(of: Index) -> frozenset[Var]:
    """All loop variables of an index."""
    return frozenset().union(*(variables_of_atom(atom) for atom, _ in of.terms))


def substituted(of: Index, values: Mapping[Var, Index]) -> Index:
    """The index with variables replaced by indices."""
    result = Index((), of.offset)
    for atom, factor in of.terms:
        result = result + _substituted_atom(atom, values) * factor
    return result


def _substituted_atom(atom: Atom, values: Mapping[Var, Index]) -> Index:
    if isinstance(atom, Var):
        return values.get(atom, index(atom))
    if isinstance(atom, Read):
        return read(atom.value.substituted(values), atom.low, atom.high)
    inner = substituted(atom.index, values)
    return inner // atom.by if isinstance(atom, Quotient) else inner % atom.by


def rejoined(of: Index) -> Index:
    """The index with quotients and remainders of one division joined again."""
    result = Index((), of.offset)
    for atom, factor in of.terms:
        result = result + _rejoined_atom(atom) * factor
    for atom, factor in result.terms:
        if isinstance(atom, Remainder):
            # x = by * (x // by) + x % by, if the first summand occurs too
            quotient = atom.index // atom.by * (factor * atom.by)
            joined = result - Index(((atom, factor),)) - quotient + atom.index * factor
            if len(joined.terms) < len(result.terms):
                return rejoined(joined)
    return result


def _rejoined_atom(atom: Atom) -> Index:
    if isinstance(atom, Quotient):
        return _quotient(rejoined(atom.index), atom.by)
    if isinstance(atom, Remainder):
        return rejoined(atom.index) % atom.by
    return Index(((atom, 1),))


def _quotient(of: Index, by: int) -> Index:
    """The quotient; divides by a factor of the divisor first if that leaves fewer terms."""
    if len(of.terms) == 1 and not of.offset and isinstance(of.terms[0][0], Remainder):
        (inner, factor) = of.terms[0]
        assert isinstance(inner, Remainder)
        if factor == 1 and inner.by % by == 0:  # x % (by * n) // by = x // by % n
            return rejoined(_quotient(inner.index, by) % (inner.by // by))
    for _, factor in of.terms:
        common = gcd(factor, by)
        if 1 < common < by:
            part = rejoined(of // common)
            if len(part.terms) < len(of.terms):
                return _quotient(part, by // common)
    return of // by


def flattened(indices: tuple[Index, ...], shape: tuple[int, ...]) -> Index:
    """The place in contiguous memory, in elements."""
    place = Index()
    for part, size in zip(indices, shape, strict=True):
        place = place * size + part
    return place


def unflattened(place: Index, shape: tuple[int, ...]) -> tuple[Index, ...]:
    """The indices of a place in contiguous memory of this shape."""
    result: list[Index] = []
    for size in reversed(shape[1:]):
        result.append(place % size)
        place = place // size
    return (place, *reversed(result)) if shape else ()


def index_text(of: Index, value: Callable[[Any], str], divided: str) -> str:
    """The index as text of C++ or Triton, which differ in `divided`, the operator of quotients.
    `value` returns the text of an integer that is read from a tensor."""

    def atom_text(atom: Atom) -> str:
        if isinstance(atom, Var):
            return atom.name
        if isinstance(atom, Read):
            return value(atom.value)
        sign = divided if isinstance(atom, Quotient) else "%"
        return f"(({index_text(atom.index, value, divided)}) {sign} {atom.by})"

    parts = [
        f"{factor} * {atom_text(atom)}" if factor != 1 else atom_text(atom)
        for atom, factor in of.terms
    ]
    if of.offset or not parts:
        parts.append(str(of.offset))
    return " + ".join(parts)
