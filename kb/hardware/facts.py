"""Keys, units and formulas of facts about hardware. Knows no particular chip.

Keys. `fact_keys.toml` lists the known ones with unit, meaning, plausible range and the labels that
manuals print.

Units. Each dimension has one canonical unit. Prefixes without `i` are, as in manuals of chips,
powers of 1024 for sizes (KB, MB, GB of a cache or memory), powers of 1000 for rates (GB/s, GHz,
TFLOPS, W); `KiB` and `GiB/s` are always binary. Units of bits per second and transfers per second
are not supported, because their case is too often wrong in manuals.

Formulas are arithmetic over numbers and fact keys (`kb.predicates.compile_formula`).
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
from typing import Any, Literal, TypeGuard

from kb.errors import InvalidPredicate
from kb.hardware.spec import FactSpec
from kb.predicates import Bindings, compile_formula

# The subject of a value in a document: the hardware itself, its family, or unclear.
SubjectKind = Literal["chip", "family", "unclear"]

_STEPS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5, "e": 6}
_PREFIXES = ("", "k", "M", "G", "T")
_BINARY_SIZES = ("B", "KiB", "MiB", "GiB", "TiB")
_SIZES = ("B", "kB", "MB", "GB", "TB")
_WORDS = {"kilo": "k", "mega": "m", "giga": "g", "tera": "t", "peta": "p"}
# A lower-case b alone is a bit.
_BYTE = re.compile(r"([kKmMgGtTpPeE]?)(i?)(?:B|[bB]ytes?)")
_RATE = re.compile(r"([kKmMgGtTpPeE]?)(i?)(?:B|[bB]ytes?)(?:/s|/sec|/second|ps)")
_HERTZ = re.compile(r"([kmgt]?)hz", re.IGNORECASE)
_FLOPS = re.compile(r"([kmgtpe]?)(?:flops|flops?/s|flops?/sec)", re.IGNORECASE)
_OPS = re.compile(r"([kmgtpe]?)(?:ops|i?ops|ops?/s|ops?/sec)", re.IGNORECASE)
_WATT = re.compile(r"(k?)(?:w|watts?)", re.IGNORECASE)
_WITH_UNIT = re.compile(r"(\d[\d,_]*\.?\d*(?:[eE][+-]?\d+)?)\s*([A-Za-z/-]*)")
_LARGEST_POWER = 4  # tera: datasheets write 1979 TFLOPS, not 1.979 PFLOPS
_DIGITS = 6
_MAX_FORMULA = 300  # characters
_FORMULA_TOLERANCE = 0.01
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
    """A unit. `factor` converts a value to the `canonical` unit; `assumed` means that it depends on
    the convention for prefixes in the module docstring."""

    canonical: str
    factor: float
    assumed: bool = False


@lru_cache(maxsize=512)
def find_unit(text: str) -> Unit | None:
    """The unit of a spelling, or None."""
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


def readable(value: float | str, unit: str) -> str:
    """A value for display: "12 GiB", "1.6 TB/s", "64 threads", "132", rounded to six digits.

    A size is in KiB, MiB or GiB if that gives a round number, else in kB, MB or GB if that does,
    else "about" a number of the former.
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
    return max((p for p in range(_LARGEST_POWER + 1) if abs(value) >= float(base) ** p), default=0)


def _digits(value: float) -> str:
    rounded = float(f"{value:.{_DIGITS}g}")
    return f"{rounded:.0f}" if rounded.is_integer() else repr(rounded)


@dataclass(frozen=True)
class FactKey:
    """A known key. `labels` and `weak` are patterns of whole labels, weak ones ambiguous.

    `tail` is a pattern of text after the value in a table cell. `nouns` and `sentences` are
    patterns of running text with placeholders; there, `per` is the required subject (the chip, one
    of its compute units, or any), `bound` means that "up to" states the value, and `unless` matches
    sentences about other subjects.
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
        """Whether the fact can have this value in its canonical unit."""
        return self.range is None or self.range[0] <= value <= self.range[1]


@cache
def fact_keys() -> Mapping[str, FactKey]:
    """The known keys, in the order of `fact_keys.toml`."""
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


_LARGEST = 1e100
MAX_TEXT = 200  # characters of a value


@dataclass(frozen=True)
class ValueProblem:
    """Why a fact cannot have a value, and what to write instead."""

    reason: str
    fix: str
    out_of_range: bool = False


def value_problem(key: str, value: object) -> ValueProblem | None:
    """Why the fact cannot have this value in the unit of its key; None for a usable one. Valid for
    every source of a value: a hardware.toml, a request, a page."""
    known = fact_keys().get(key)
    if isinstance(value, str):
        if known is not None and known.unit != "text":
            return ValueProblem(f"text where a number in {known.unit} belongs", "write it unquoted")
        if not value.strip() or len(value) > MAX_TEXT:
            return ValueProblem(f"empty or over {MAX_TEXT} characters", "a short text")
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return ValueProblem("neither number nor text", "write a number in the key's unit")
    if not is_quantity(value):
        return ValueProblem(f"{str(value)[:20]} cannot be", "a finite number, not negative")
    if known is not None and known.unit == "text":
        return ValueProblem(f"{key} is text", f'write value = "{value}"')
    if known is not None and not known.plausible(value):
        low, high = known.range or (0.0, math.inf)
        reason = f"{value:g} {known.unit} is outside {low:g} .. {high:g}"
        return ValueProblem(reason, f"convert it to {known.unit} without prefix", out_of_range=True)
    return None


def value_with_unit(key: str, text: str) -> float | None:
    """The number of a text such as "192 KiB" or "1.4 GHz" in the canonical unit of a key; None
    if it is no number with a unit that fits the key."""
    match = _WITH_UNIT.fullmatch(text.strip())
    known = fact_keys().get(key)
    if match is None or (known is not None and known.unit == "text"):
        return None
    number = float(match[1].replace(",", "").replace("_", ""))
    if not match[2]:
        return number
    unit = find_unit(match[2])
    if unit is None and known is not None and known.tail is not None:
        return number if known.tail.fullmatch(match[2]) else None  # "2 cores" of a count
    if unit is None or (known is not None and unit.canonical != known.unit):
        return None
    return number * unit.factor


def stated_value(key: str, text: str) -> tuple[float | None, str]:
    """The number, None for a text, and the canonical unit of a value under a known or own key."""
    number, known = value_with_unit(key, text), fact_keys().get(key)
    if known is not None:
        return number, known.unit
    unit = find_unit(match[2]) if (match := _WITH_UNIT.fullmatch(text.strip())) else None
    if number is None:
        return None, "text"
    return number, unit.canonical if unit is not None else "count"


def key_problem(key: str) -> str:
    """Why a fact cannot have this key; empty for a known one or one of an author's own."""
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,63}", key):
        return f"{key[:64]!r} is not a key: lower case words joined by _, like l2_size"
    meant = mistyped_key(key)
    return f"{key} looks like a typing error of {meant}; an own key begins with x_" if meant else ""


def is_quantity(value: object) -> TypeGuard[int | float]:
    """Whether a value is a number within the range of facts. TOML integers are unbounded."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 <= value <= _LARGEST


def mistyped_key(key: str) -> str | None:
    """The known key that `key` is probably a typing error of, or None.

    Keys that differ in a digit are different: `peak_matrix_fp6` is no typing error of
    `peak_matrix_fp8`. Keys that start with `x_` are user-defined.
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
    """Number of insertions, deletions, replacements and transpositions between two short words."""
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


def formula_problem(fact: FactSpec, numbers: Mapping[str, float]) -> str:
    """Evaluate the formula of a derived fact over numbers by fact key. Returns why it does not give
    the stated value within 1 %, or why it cannot be evaluated, or ""."""
    if not isinstance(fact.value, int | float):
        return "the value is text"
    if len(fact.formula) > _MAX_FORMULA:
        return f"longer than {_MAX_FORMULA} characters"
    try:
        computed = compile_formula(fact.formula).compute(Bindings(parameters=numbers))
    except InvalidPredicate:
        return "not arithmetic"
    if computed.missing:
        return f"no number known for {computed.missing[0]}"
    if computed.value is None or isinstance(computed.value, str):
        return "; ".join(computed.reasons) or "not arithmetic"
    if math.isclose(computed.value, fact.value, rel_tol=_FORMULA_TOLERANCE):
        return ""
    return f"{fact.key} = {fact.value:g}, but its formula gives {computed.value:g}"
