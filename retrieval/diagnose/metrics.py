"""The typed metric registry: converts raw profiler names to canonical names and units.

Reads `data/metrics.toml`. Does not know rules or hardware. Accepts any profiler output: an unknown
name, or a value that is not a number, is returned as unrecognised and is no error.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Any

from kb.errors import InvalidKnowledge, InvalidRequest, NotFound, PayloadTooLarge, nearest
from kb.predicates import Bindings, CompiledExpression, Value, compile_expression
from retrieval.diagnose.signals import DATA

MAX_METRICS = 20_000
MAX_NAME = 200
MAX_NUMBER_TEXT = 64  # characters of a number with its unit
LARGEST_QUANTITY = 1e18
IMPLAUSIBLE = "implausible_metrics"
DERIVED = "derived"
WANTED = {
    "%": "a number of percent",
    "share": "a number from 0 to 1",
    "us": 'a number of microseconds, or a text such as "12 ms"',
    "B": 'a number of bytes, or a text such as "12 Mbyte"',
    "B/s": 'a number of bytes per second, or a text such as "12 GB/s"',
    "1": "a number",
}
UNITS = tuple(WANTED)
SHARES_OF_ONE = ("occupancy_pct", "theoretical_occupancy_pct")
NO_VALUE = frozenset({"", "n/a", "na", "nan", "inf", "-inf", "-", "--", "none", "null", "(null)"})
MAX_WRONG = 20  # metrics in the details of an error


class MetricNotANumber(InvalidRequest):
    """The value of a known metric is no number."""

    status = 422


@dataclass(frozen=True)
class Alias:
    """A raw name, the collector that reports it, and the factor to the canonical unit."""

    name: str
    collector: str
    scale: float


@dataclass(frozen=True)
class Metric:
    """One quantity. `low` and `high` bound the physically possible values, in `unit`; `derived` are
    formulas that compute it from others."""

    name: str
    unit: str
    kind: str
    description: str
    query_words: tuple[str, ...]
    low: float | None
    high: float | None
    aliases: tuple[Alias, ...]
    derived: tuple[CompiledExpression, ...]

    def plausible(self, value: float) -> bool:
        """Whether a value in the metric's unit is physically possible."""
        return (self.low is None or value >= self.low) and (self.high is None or value <= self.high)


@dataclass(frozen=True)
class Normalised:
    """Normalised metrics. `values` are by canonical name, in canonical units. `sources` are the raw
    names they came from, or "derived". `unrecognised` are raw names without a rule, which are good
    query words. `implausible` are canonical names whose value is physically impossible.
    `collectors` are the profilers that reported."""

    values: Mapping[str, float]
    unrecognised: tuple[str, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    implausible: tuple[str, ...] = ()
    collectors: frozenset[str] = frozenset()


@dataclass(frozen=True)
class _Reading:
    rank: int
    value: float
    raw: str
    collector: str | None


@dataclass(frozen=True)
class MetricRegistry:
    """All metrics by canonical name, and the vendors of each collector."""

    metrics: Mapping[str, Metric]
    collectors: Mapping[str, tuple[str, ...]]
    _aliases: Mapping[str, tuple[Metric, int, Alias | None]]

    @cached_property
    def _counters(self) -> Mapping[str, Metric]:
        """A metric of each counter with several statistics, such as `c.avg`, `c.max`."""
        return {_counter(name): entry[0] for name, entry in self._aliases.items() if "." in name}

    def __iter__(self) -> Iterator[Metric]:
        return iter(self.metrics.values())

    def __contains__(self, name: object) -> bool:
        return name in self.metrics

    def get(self, name: str) -> Metric:
        """The metric of this canonical name. Raises NotFound, which names the nearest."""
        try:
            return self.metrics[name]
        except KeyError:
            near = ", ".join(nearest(name, self.metrics)) or "none close"
            raise NotFound(f"unknown metric {name!r}", hint=f"Nearest metrics: {near}.") from None

    def raw_names(self, name: str, collector: str) -> tuple[str, ...]:
        """The raw names that a collector has to report for this metric, including inputs of a
        formula; empty if it cannot report it. Raises NotFound for an unknown metric."""
        metric = self.get(name)
        direct = tuple(alias.name for alias in metric.aliases if alias.collector == collector)
        if direct:
            return direct[:1]
        for formula in metric.derived:
            parts = [self.raw_names(part, collector) for part in formula.names().metrics]
            if parts and all(parts):
                return tuple(dict.fromkeys(raw for part in parts for raw in part))
        return ()

    def check_numbers(self, raw: Mapping[str, float | str]) -> None:
        """Raises MetricNotANumber for texts that are no number where the name is that of a metric.
        Placeholders of profilers for missing values are accepted."""
        wrong = {}
        for name, value in raw.items():
            if not isinstance(value, str) or value.strip().lower() in NO_VALUE:
                continue
            entry = self._aliases.get(_fold(str(name)))
            if entry is not None and self._number(entry, name, value) is None:
                wrong[str(name)[:MAX_NAME]] = entry[0]
            # Another statistic of a counter, in a unit that is not known here.
            same = self._counters.get(_counter(str(name)))
            if entry is None and same is not None and not any(map(str.isdigit, value)):
                wrong[str(name)[:MAX_NAME]] = same
        if not wrong:
            return
        name, metric = next(iter(wrong.items()))
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise MetricNotANumber(
            f"metrics.{name}: {str(raw[name])[:40]!r} is no number{more}",
            hint=f"Send {WANTED[metric.unit]} ({metric.name}: {metric.description.rstrip('.')}),"
            f" or leave {name[:MAX_NAME]} out.",
            details={"metrics": {n: m.unit for n, m in list(wrong.items())[:MAX_WRONG]}},
        )

    def normalise(self, raw: Mapping[str, float | str]) -> Normalised:
        """Canonical values of raw profiler metrics; if two raw names map to one metric, the earlier
        alias takes precedence. Raises PayloadTooLarge over MAX_METRICS."""
        if len(raw) > MAX_METRICS:
            raise PayloadTooLarge(
                f"{len(raw)} metrics, at most {MAX_METRICS}",
                hint="Send one kernel launch at a time.",
            )
        readings: dict[str, _Reading] = {}
        unrecognised: list[str] = []
        for name, value in raw.items():
            entry = self._aliases.get(_fold(str(name)))
            number = self._number(entry, name, value)
            if entry is None or number is None:
                unrecognised.append(str(name)[:MAX_NAME])
                continue
            metric, rank, alias = entry
            reading = _Reading(rank, number, str(name), alias.collector if alias else None)
            best = readings.get(metric.name)
            if best is None or (reading.rank, reading.raw) < (best.rank, best.raw):
                readings[metric.name] = reading
        ordered = {name: readings[name] for name in self.metrics if name in readings}
        reported = Normalised(
            values={name: reading.value for name, reading in ordered.items()},
            unrecognised=tuple(dict.fromkeys(unrecognised)),
            sources={name: reading.raw for name, reading in ordered.items()},
            collectors=frozenset(r.collector for r in ordered.values() if r.collector),
        )
        return self.derive(reported)

    def _number(
        self, entry: tuple[Metric, int, Alias | None] | None, name: str, value: object
    ) -> float | None:
        if entry is None:
            return None
        metric, _, alias = entry
        written = _unit_in_name(name)
        if metric.name in SHARES_OF_ONE and (number := parse_quantity(value, "1")) is not None:
            # Written as a share of 1 or in per cent; one warp of the fewest is more than 1 %.
            return 100 * number if 0 <= number <= 1 else number
        if written and isinstance(value, (int, float, str)) and not isinstance(value, bool):
            value = f"{value} {written}"
        return parse_quantity(value, metric.unit, alias.scale if alias else 1.0)

    def derive(
        self,
        normalised: Normalised,
        facts: Mapping[str, Value | None] | None = None,
        problem: Mapping[str, Value | None] | None = None,
    ) -> Normalised:
        """Add the results of formulas over the values, the hardware's facts and the problem."""
        values = dict(normalised.values)
        sources = dict(normalised.sources)
        bindings = Bindings(metrics=values, facts=facts or {}, problem=problem or {})
        pending = [m for m in self if m.derived and m.name not in values]
        progress = True
        while progress:
            progress = False
            for metric in [m for m in pending if m.name not in values]:
                number = _first_known(metric.derived, bindings)
                if number is not None:
                    values[metric.name], sources[metric.name] = number, DERIVED
                    progress = True
        values.pop(IMPLAUSIBLE, None)
        implausible = tuple(n for n, v in values.items() if not self.metrics[n].plausible(v))
        values[IMPLAUSIBLE] = float(len(implausible))
        sources[IMPLAUSIBLE] = ", ".join(implausible) or DERIVED
        return replace(normalised, values=values, sources=sources, implausible=implausible)


def _first_known(formulas: tuple[CompiledExpression, ...], bindings: Bindings) -> float | None:
    for formula in formulas:
        value = formula.compute(bindings).value
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
    return None


_NAME_UNIT = re.compile(r"^(?P<name>[^\[\]]{1,180})\[(?P<unit>[^\[\]]{1,30})\]\s*$")


def _unit_in_name(name: str) -> str | None:
    match = _NAME_UNIT.match(name[:MAX_NAME])
    return match["unit"].strip() if match else None


def _fold(name: str) -> str:
    """Profilers differ in case, white space and joints, and some append "[unit]" to the name."""
    match = _NAME_UNIT.match(name[:MAX_NAME])
    folded = (match["name"] if match else name[:MAX_NAME]).lower()
    return " ".join(re.sub(r"(?<=[a-z0-9])-(?=[a-z0-9])", "_", folded).split())


def _counter(name: str) -> str:
    """The counter of `dram__throughput.avg.pct_of_peak_sustained_elapsed`."""
    return _fold(name).partition(".")[0]


def metrics_from(data: Mapping[str, Any], origin: str) -> MetricRegistry:
    """Parse a registry. Raises InvalidKnowledge, which names the `origin`."""
    collectors = {row["name"]: tuple(row["vendors"]) for row in data.get("collectors", [])}
    metrics: dict[str, Metric] = {}
    aliases: dict[str, tuple[Metric, int, Alias | None]] = {}
    for row in data.get("metrics", []):
        metric = _metric(row, collectors, origin)
        if metric.name in metrics:
            raise _broken(origin, f"metric {metric.name!r} is defined twice")
        metrics[metric.name] = metric
        for rank, alias in enumerate((None, *metric.aliases)):
            key = _fold(alias.name if alias else metric.name)
            # toplev prints the nodes of the top-down tree without perf's prefix.
            for name in dict.fromkeys((key, key.removeprefix("tma_"))):
                if name in aliases and aliases[name][0] is not metric:
                    raise _broken(origin, f"{name!r} names two metrics")
                known = aliases.setdefault(name, (metric, rank, alias))
                aliases[name] = (metric, known[1], known[2] or alias)
    for metric in metrics.values():
        for formula in metric.derived:
            _check_formula(formula, metric, metrics, origin)
    return MetricRegistry(MappingProxyType(metrics), collectors, MappingProxyType(aliases))


def _metric(row: Mapping[str, Any], collectors: Mapping[str, Any], origin: str) -> Metric:
    low, high = row.get("range", (None, None))
    metric = Metric(
        name=row["name"],
        unit=row["unit"],
        kind=row["kind"],
        description=row["description"],
        query_words=tuple(row["query_words"]),
        low=low,
        high=high,
        aliases=tuple(
            Alias(a["name"], a["collector"], float(a.get("scale", 1)))
            for a in row.get("aliases", [])
        ),
        derived=tuple(compile_expression(text) for text in row.get("derived", [])),
    )
    if metric.unit not in UNITS:
        raise _broken(origin, f"{metric.name!r} has unknown unit {metric.unit!r}")
    for alias in metric.aliases:
        if alias.collector not in collectors:
            raise _broken(origin, f"{metric.name!r} has unknown collector {alias.collector!r}")
    return metric


def _check_formula(
    formula: CompiledExpression, metric: Metric, metrics: Mapping[str, Metric], origin: str
) -> None:
    names = formula.names()
    unknown = [n for n in names.metrics if n not in metrics or n == metric.name]
    if unknown or names.signals or names.parameters:
        raise _broken(
            origin, f"the formula of {metric.name!r} reads what it may not: {formula.text}"
        )


def _broken(origin: str, message: str) -> InvalidKnowledge:
    return InvalidKnowledge(f"{origin}: {message}", hint=f"Correct {origin} and load it again.")


@lru_cache(maxsize=1)
def load_metrics() -> MetricRegistry:
    """The built-in metrics."""
    path = DATA / "metrics.toml"
    return metrics_from(tomllib.loads(path.read_text(encoding="utf-8")), path.name)


@lru_cache(maxsize=1)
def nothing() -> Normalised:
    """The result without reported metrics."""
    return load_metrics().normalise({})


def normalise(raw: Mapping[str, float | str]) -> Normalised:
    """Canonical values of raw metrics under the built-in registry."""
    return load_metrics().normalise(raw)


# -- numbers in profiler output: "182,432", "182.43 us", "96 Kbyte/block", "89.6 %", "0xc300"

_QUANTITY = re.compile(
    r"(?P<number>0[xX][0-9a-fA-F]{1,15}"
    r"|[+-]?(?:\d{1,3}(?:,\d{3})+|\d{1,19})?(?:\.\d{1,19})?(?:[eE][+-]?\d{1,3})?)"
    r"[ \t]*(?P<unit>[A-Za-z%µ][A-Za-z/_ .-]{0,31})?"
)
_TIME = {"s": 1e6, "sec": 1e6, "second": 1e6, "ms": 1e3, "msec": 1e3, "msecond": 1e3}
_TIME |= {"us": 1.0, "µs": 1.0, "usec": 1.0, "usecond": 1.0}
_TIME |= {"ns": 1e-3, "nsec": 1e-3, "nsecond": 1e-3}
_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_SIZE = {prefix + name: factor for prefix, factor in _PREFIXES.items() for name in ("b", "byte")}
_SIZE |= {f"{p}ib": 1024.0**power for power, p in enumerate("kmgt", start=1)}
_OPERATIONS = re.compile(r"(?P<prefix>[kmgt]?)flops?(?:/s)?")
_COUNT = {prefix + name: factor for prefix, factor in _PREFIXES.items() for name in ("", "inst")}
# Denominators of a size per unit of work; "Gbyte/second" is a rate.
_PER = ("block", "thread", "cta", "workgroup")


def parse_quantity(raw: object, unit: str, scale: float = 1.0) -> float | None:
    """`raw` in the canonical `unit` (%, share, us, B or 1); None if it is not a finite number.
    `scale` is the factor for a number without a unit. Ambiguous text is None: "1,5" and "1.234,5"
    are refused, since their meaning depends on the locale."""
    if isinstance(raw, bool):
        return None
    if isinstance(raw, (int, float)):
        return _bounded_number(raw, scale)
    if not isinstance(raw, str) or len(raw) > MAX_NUMBER_TEXT:
        return None
    match = _QUANTITY.fullmatch(raw.strip())
    if match is None or not any(character.isdigit() for character in match["number"]):
        return None
    text = match["number"].replace(",", "")
    number = int(text, 16) if text[:2].lower() == "0x" else float(text)
    factor = scale if match["unit"] is None else _unit_factor(match["unit"], unit, scale)
    return None if factor is None else _bounded_number(number, factor)


def _bounded_number(number: int | float, factor: float) -> float | None:
    if not -LARGEST_QUANTITY <= number <= LARGEST_QUANTITY:
        return None
    value = float(number) * factor
    return value if math.isfinite(value) and abs(value) <= LARGEST_QUANTITY else None


def _unit_factor(written: str, unit: str, scale: float) -> float | None:
    """The factor from the written unit to `unit`, or None."""
    name = written.strip().lower()
    if unit in ("%", "share"):
        return ({"%": 1.0} if unit == "%" else {"%": 0.01}).get(name)
    if unit == "us":
        return _TIME.get(name.removesuffix("s") if len(name) > 3 else name)
    if unit == "B/s":
        size, _, per = name.partition("/")
        return _SIZE.get(size.rstrip("s").strip()) if per in ("s", "sec", "second") else None
    if unit == "B":
        size, _, per = name.partition("/")
        return _SIZE.get(size.rstrip("s").strip()) if per in ("", *_PER) else None
    if name in _TIME or name == "%" or name.rstrip("s") in _SIZE:
        return None
    if operations := _OPERATIONS.fullmatch(name):
        return _PREFIXES[operations["prefix"]]
    return _COUNT.get(name, scale)
