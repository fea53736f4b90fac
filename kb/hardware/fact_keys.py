"""The fact keys known by name: unit, meaning, plausible range and the labels under which manuals
print them.

The data is `fact_keys.toml`; nothing here knows a particular chip.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True)
class FactKey:
    """labels and weak: whole-label patterns (weak ones leave doubt). tail: what may follow a
    value in a cell.
    """

    key: str
    unit: str
    meaning: str
    range: tuple[float, float] | None
    labels: re.Pattern[str]
    weak: re.Pattern[str] | None
    tail: re.Pattern[str] | None
    item_bytes: int | None

    def plausible(self, value: float) -> bool:
        """False for a number that this fact cannot have in its canonical unit."""
        return self.range is None or self.range[0] <= value <= self.range[1]


@cache
def fact_keys() -> Mapping[str, FactKey]:
    """Every known key, in the order in which they are documented."""
    with Path(__file__).with_name("fact_keys.toml").open("rb") as file:
        raw: dict[str, dict[str, Any]] = tomllib.load(file)
    return MappingProxyType({key: _fact_key(key, entry) for key, entry in raw.items()})


def _fact_key(key: str, entry: Mapping[str, Any]) -> FactKey:
    bounds = entry.get("range")
    return FactKey(
        key=key,
        unit=entry["unit"],
        meaning=entry["meaning"],
        range=(float(bounds[0]), float(bounds[1])) if bounds else None,
        labels=_any_of(entry["labels"]),
        weak=_any_of(entry["weak"]) if "weak" in entry else None,
        tail=_any_of(entry["tail"]) if "tail" in entry else None,
        item_bytes=entry.get("item_bytes"),
    )


def _any_of(patterns: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns), re.IGNORECASE)


def mistyped_key(key: str) -> str | None:
    """The known key that `key` most likely was meant to be, or None when it looks like a key of its
    own.

    Keys that differ in a digit are never taken for typing errors: `peak_matrix_fp6` beside
    `peak_matrix_fp8` is a new fact. A key that starts with `x_` is always somebody's own.
    """
    known = fact_keys()
    if key in known or key.startswith("x_"):
        return None
    digits = re.findall(r"\d+", key)
    near = [
        (distance, name)
        for name in known
        if re.findall(r"\d+", name) == digits
        and (distance := edit_distance(key, name)) <= (2 if len(name) >= 8 else 1)
    ]
    return min(near)[1] if near else None


def edit_distance(left: str, right: str) -> int:
    """Insertions, deletions, replacements and swaps of neighbours between two short words."""
    rows = [list(range(len(right) + 1))]
    for i, a in enumerate(left, 1):
        row = [i]
        for j, b in enumerate(right, 1):
            best = min(rows[-1][j] + 1, row[-1] + 1, rows[-1][j - 1] + (a != b))
            if i > 1 and j > 1 and a == right[j - 2] and b == left[i - 2]:
                best = min(best, rows[-2][j - 2] + 1)
            row.append(best)
        rows.append(row)
    return rows[-1][-1]
