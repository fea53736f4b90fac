"""Arithmetic over loop variables."""

from __future__ import annotations

import itertools

import pytest

from optimizer.search.synthesizers.traced.index import (
    Index,
    Quotient,
    Remainder,
    Var,
    bounds,
    flattened,
    index,
    rejoined,
    substituted,
    unflattened,
)

ROW, COLUMN = Var("i", 6), Var("j", 4)


def value(of: Index, at: dict[Var, int]) -> int:
    total = of.offset
    for atom, factor in of.terms:
        if isinstance(atom, Var):
            total += factor * at[atom]
            continue
        assert isinstance(atom, Quotient | Remainder)
        inner = value(atom.index, at)
        assert inner >= 0  # C rounds towards zero
        total += factor * (inner // atom.by if isinstance(atom, Quotient) else inner % atom.by)
    return total


EVERY = [dict(zip((ROW, COLUMN), at, strict=True)) for at in itertools.product(range(6), range(4))]


def test_splitting_and_joining_dimension_leaves_no_arithmetic() -> None:
    place = flattened((index(ROW), index(COLUMN)), (6, 4))
    assert unflattened(place, (6, 4)) == (index(ROW), index(COLUMN))
    assert flattened(unflattened(place, (6, 4)), (6, 4)) == place


@pytest.mark.parametrize("by", [2, 3, 5, 7, 24])
@pytest.mark.parametrize("offset", [0, 1, 11])
def test_symbolic_quotients_and_remainders_equal_numeric_ones(by: int, offset: int) -> None:
    forward = index(ROW) * 4 + index(COLUMN) + offset
    backward = index(ROW) * -4 - index(COLUMN) + 23 + offset
    for place, at in itertools.product((forward, backward), EVERY):
        assert value(place // by, at) == value(place, at) // by
        assert value(place % by, at) == value(place, at) % by


def test_bounds_cover_every_value_and_are_tight() -> None:
    place = index(ROW) * -2 + index(COLUMN) + 3
    values = [value(place, at) for at in EVERY]
    assert bounds(place) == (min(values), max(values))


def test_equal_sums_are_equal_in_any_order() -> None:
    assert index(ROW) + index(COLUMN) == index(COLUMN) + index(ROW)
    assert index(ROW) - index(ROW) == Index()
    assert substituted(index(ROW) * 4 + index(COLUMN), {ROW: Index((), 2)}) == index(COLUMN) + 8


GROUP, PLACE = Var("p", 16), Var("c", 8 * 33)


@pytest.mark.parametrize("by", [2, 3, 4, 6, 8, 11, 12, 24, 33, 264])
@pytest.mark.parametrize("factor", [1, 2, 4, 11])
def test_nested_quotients_and_remainders_equal_numeric_ones(by: int, factor: int) -> None:
    place, group = index(PLACE), index(GROUP)
    every = [
        (place // 3 + group * factor) // by,
        (place // 3 + group * factor) % by,
        (place % 12 * factor + group * 12 * factor) % by,
        (place // 4 % 11 + group * 11) // by % 2,
        (place // 33 + group * 8) % 64 // by,
    ]
    joined = [rejoined(made) for made in every]
    for c, p in itertools.product(range(0, PLACE.extent, 5), range(GROUP.extent)):
        meant = [
            (c // 3 + p * factor) // by,
            (c // 3 + p * factor) % by,
            (c % 12 * factor + p * 12 * factor) % by,
            (c // 4 % 11 + p * 11) // by % 2,
            (c // 33 + p * 8) % 64 // by,
        ]
        for made, again, right in zip(every, joined, meant, strict=True):
            assert value(made, {PLACE: c, GROUP: p}) == right
            assert value(again, {PLACE: c, GROUP: p}) == right


def test_contiguous_group_of_channels_is_read_in_order() -> None:
    """Eight channels of 161 * 16 places are a row; channel and place within it are recovered from
    it.
    """
    row, place = index(Var("p", 2048)), index(Var("c", 8 * 161 * 16))
    channel = (place // 16 // 161 + row * 8) % 64
    inside = (place // 16 % 161) * 16 + place % 2576 % 16
    assert rejoined(row // 8 * 64 * 2576 + channel * 2576 + inside) == row * 20608 + place
    assert channel % 8 == place // 2576
