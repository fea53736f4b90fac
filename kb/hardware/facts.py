"""Facts about hardware: their keys, their units, and whether a derived fact fits its formula.

Keys. `fact_keys.toml` lists the known ones with unit, meaning, plausible range and the labels under
which manuals print them. Nothing here knows a particular chip.

Units. Each dimension has one canonical unit. Convention for prefixes without an `i`: a size (KB,
MB, GB of a cache or memory) counts in powers of 1024, a rate (GB/s, GHz, TFLOPS, W) in powers of
1000, because that is how chip manuals mean them. `KiB`, `GiB/s` are always binary. Units of bits
per second and transfers per second are unknown here on purpose: their case is too often wrong.

Formulas. Only arithmetic over numbers and fact keys is evaluated
(`kb.predicates.compile_formula`); anything else leaves the formula as text.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from kb.errors import InvalidPredicate
from kb.hardware.spec import FactSpec, HardwareSpec
from kb.predicates import Bindings, compile_formula

# What a value that was read is about: the hardware itself, a family above it, or not clear.
SubjectKind = Literal["chip", "family", "unclear"]
CANONICAL_UNITS = ("count", "threads", "B", "B/s", "bit", "Hz", "flop/s", "op/s", "W", "text")

_STEPS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5, "e": 6}
_PREFIXES = ("", "k", "M", "G", "T")
_BINARY_SIZES = ("B", "KiB", "MiB", "GiB", "TiB")
_SIZES = ("B", "kB", "MB", "GB", "TB")
_WORDS = {"kilo": "k", "mega": "m", "giga": "g", "tera": "t", "peta": "p"}
# a small b is a bit
_BYTE = re.compile(r"([kKmMgGtTpPeE]?)(i?)(?:B|[bB]ytes?)")
_RATE = re.compile(r"([kKmMgGtTpPeE]?)(i?)(?:B|[bB]ytes?)(?:/s|/sec|/second|ps)")
_HERTZ = re.compile(r"([kmgt]?)hz", re.IGNORECASE)
_FLOPS = re.compile(r"([kmgtpe]?)(?:flops|flops?/s|flops?/sec)", re.IGNORECASE)
_OPS = re.compile(r"([kmgtpe]?)(?:ops|i?ops|ops?/s|ops?/sec)", re.IGNORECASE)
_WATT = re.compile(r"(k?)(?:w|watts?)", re.IGNORECASE)
_PLAIN = {
    "bit": "bit",
    "bits": "bit",
    "threads": "threads",
    "thread": "threads",
    "lanes": "threads",
    "work-items": "threads",
    "count": "count",
    "text": "text",
}


@dataclass(frozen=True)
class Unit:
    """A unit; `factor` converts a value to the `canonical` unit.

    `assumed` says that the factor rests on the convention for prefixes (see the module).
    """

    canonical: str
    factor: float
    assumed: bool = False


@lru_cache(maxsize=512)
def find_unit(text: str) -> Unit | None:
    """The unit a spelling means, or None."""
    spelled = text.strip()
    for word, letter in _WORDS.items():
        if spelled.lower().startswith(word):
            spelled = letter + spelled[len(word) :]
    if spelled.lower() in _PLAIN:
        return Unit(_PLAIN[spelled.lower()], 1.0)
    return _sized(spelled) or _decimal(spelled)


def _sized(spelled: str) -> Unit | None:
    if match := _BYTE.fullmatch(spelled):
        return Unit("B", _binary(match[1]), assumed=bool(match[1]) and not match[2])
    if match := _RATE.fullmatch(spelled):
        factor = _binary(match[1]) if match[2] else _thousands(match[1])
        return Unit("B/s", factor)
    return None


def _decimal(spelled: str) -> Unit | None:
    for pattern, canonical in ((_HERTZ, "Hz"), (_FLOPS, "flop/s"), (_OPS, "op/s"), (_WATT, "W")):
        if match := pattern.fullmatch(spelled):
            return Unit(canonical, _thousands(match[1]))
    return None


def _binary(prefix: str) -> float:
    return float(1024 ** _STEPS[prefix.lower()])


def _thousands(prefix: str) -> float:
    return float(1000 ** _STEPS[prefix.lower()])


_LARGEST = 4  # tera: datasheets write 1979 TFLOPS, not 1.979 PFLOPS
_DIGITS = 6


def readable(value: float | str, unit: str) -> str:
    """A value as a person writes it: "12 GiB", "1.6 TB/s", "64 threads", "132".

    A size is in KiB, MiB, GiB where powers of 1024 make it round, in kB, MB, GB where powers of
    1000 do, else about so many of the former. (Read from a manual, KB is 1024 bytes.) More than six
    digits of a rate or size are rounded; the exact value is for `number`.
    """
    if isinstance(value, str):
        return value
    if unit in ("B/s", "Hz", "flop/s", "op/s", "W"):
        return _scaled(value, unit)
    if unit == "B":
        return _size(value)
    plain = f"{value:.0f}" if float(value).is_integer() else repr(value)
    return plain if unit in ("count", "text", "") else f"{plain} {unit}"


def _size(value: float) -> str:
    for base, units in ((1024, _BINARY_SIZES), (1000, _SIZES)):
        largest = _power(value, base)
        for power in (largest, max(largest - 1, 0)):  # 1464 KiB rather than 1.43 MiB
            scaled = value / float(base) ** power
            if scaled == round(scaled, 2):
                return f"{_digits(scaled)} {units[power]}"
    power = _power(value, 1024)
    return f"about {_digits(round(value / 1024.0**power, 2))} {_BINARY_SIZES[power]}"


def _scaled(value: float, unit: str) -> str:
    power = _power(value, 1000)
    return f"{_digits(value / 1000.0**power)} {_PREFIXES[power]}{unit}"


def _power(value: float, base: int) -> int:
    return max((p for p in range(_LARGEST + 1) if abs(value) >= float(base) ** p), default=0)


def _digits(value: float) -> str:
    rounded = float(f"{value:.{_DIGITS}g}")
    return f"{rounded:.0f}" if rounded.is_integer() else repr(rounded)


@dataclass(frozen=True)
class FactKey:
    """A known key. `labels` and `weak` are patterns of whole labels (weak ones leave doubt).

    `tail` is a pattern of what may follow a value in a table cell. `nouns` and `sentences` are
    patterns of running text with placeholders, `per` is what such a value must be about (the chip,
    one of its compute units, or anything), `bound` says that "up to" states the value, and
    `unless` matches sentences that are about something else.
    """

    key: str
    unit: str
    meaning: str
    range: tuple[float, float] | None
    labels: re.Pattern[str]
    weak: re.Pattern[str] | None
    tail: re.Pattern[str] | None
    item_bytes: int | None
    nouns: tuple[str, ...] = ()
    sentences: tuple[str, ...] = ()
    per: Literal["chip", "unit", ""] = ""
    bound: bool = False
    unless: re.Pattern[str] | None = None

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
        nouns=tuple(entry.get("nouns", ())),
        sentences=tuple(entry.get("sentences", ())),
        per=entry.get("per", ""),
        bound=entry.get("bound", False),
        unless=_any_of(entry["unless"]) if "unless" in entry else None,
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


TOLERANCE = 0.01
MAX_LENGTH = 300


@dataclass(frozen=True)
class FormulaCheck:
    """Whether a formula gives the stated value.

    `unchecked` means that it is not arithmetic, or that a fact it names has no number; `message`
    says which. `computed` is in the unit of the fact.
    """

    state: Literal["agrees", "differs", "unchecked"]
    message: str = ""
    computed: float | None = None


class NotArithmetic(Exception):
    """Carries the reason why a formula cannot be evaluated."""


def check_formula(fact: FactSpec, numbers: Mapping[str, float]) -> FormulaCheck:
    """Evaluate a derived fact's formula over the numbers of other facts and compare within 1 %."""
    if not isinstance(fact.value, (int, float)):
        return FormulaCheck("unchecked", "the value is text")
    try:
        computed = evaluate(fact.formula, numbers)
    except NotArithmetic as reason:
        return FormulaCheck("unchecked", str(reason))
    if math.isclose(computed, fact.value, rel_tol=TOLERANCE):
        return FormulaCheck("agrees", computed=computed)
    message = f"{fact.key} = {fact.value:g}, but its formula gives {computed:g}"
    return FormulaCheck("differs", message, computed)


def formula_warnings(
    spec: HardwareSpec, inherited: Mapping[str, float] | None = None
) -> tuple[str, ...]:
    """One sentence for each derived fact whose formula disagrees with its value.

    `inherited` holds the numbers of the parents' facts, which a formula may name too.
    """
    numbers = dict(inherited or {})
    for fact in spec.facts:
        if isinstance(fact.value, (int, float)):
            numbers[fact.key] = float(fact.value)
    checks = [check_formula(fact, numbers) for fact in spec.facts if fact.kind == "derived"]
    return tuple(check.message for check in checks if check.state == "differs")


def evaluate(formula: str, numbers: Mapping[str, float]) -> float:
    """The value of a formula whose names are keys of `numbers`; raises NotArithmetic."""
    if len(formula) > MAX_LENGTH:
        raise NotArithmetic(f"longer than {MAX_LENGTH} characters")
    try:
        computed = compile_formula(formula).compute(Bindings(parameters=numbers))
    except InvalidPredicate as error:
        raise NotArithmetic("not arithmetic") from error
    if computed.missing:
        raise NotArithmetic(f"no number known for {computed.missing[0]}")
    if computed.value is None or isinstance(computed.value, str):
        raise NotArithmetic("; ".join(computed.reasons) or "not arithmetic")
    return float(computed.value)
