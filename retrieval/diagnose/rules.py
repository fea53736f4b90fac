"""The diagnosis rules as data, and the checks of the table.

Reads `data/diagnosis.toml`. `diagnosis` evaluates the rules. A table that loads has no rule that
reads an unknown metric, names an unknown signal, or depends on a later rule.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal

from kb.errors import InvalidKnowledge, InvalidPredicate, nearest
from kb.hardware.spec import HardwareSpec, MetricAlias, RuleSpec
from kb.predicates import Predicate, compile_predicate
from kb.validity import Checked, Validity, of_source
from retrieval.diagnose.metrics import MetricRegistry, Normalised, load_metrics, parse_quantity
from retrieval.diagnose.signals import DATA, SignalRegistry, load_signals

OF_PROCESSORS = "perf"  # the collector whose counters no accelerator has
Confidence = Literal["A", "B", "C"]

_REQUIRED = frozenset({"id", "when", "confidence", "source"})
_OPTIONAL = frozenset(
    {"signal", "rank", "tags", "rules_out", "next", "parent"}
    | {"vendors", "other_than", "enabled", "verified", "exclusive"}
)


@dataclass(frozen=True)
class Rule:
    """One row of the table; the header of `data/diagnosis.toml` explains each field."""

    id: str
    when: Predicate
    signal: str | None
    confidence: Confidence
    source: str
    rank: int
    tags: tuple[str, ...]
    rules_out: tuple[str, ...]
    next: tuple[str, ...]
    parent: str | None
    vendors: tuple[str, ...]
    other_than: tuple[str, ...]
    enabled: bool
    verified: bool
    exclusive: bool

    @property
    def validity(self) -> tuple[Validity, ...]:
        """The versions of tools that its source names; `ran` if a profile taken here agreed."""
        checked: Checked = "ran" if self.verified else "read"
        return of_source(self.source, checked=checked)


@dataclass(frozen=True)
class RuleTable:
    """The rules in file order, with the registries against which their names were checked."""

    rules: tuple[Rule, ...]
    metrics: MetricRegistry
    signals: SignalRegistry

    def __iter__(self) -> Iterator[Rule]:
        return iter(self.rules)

    def for_hardware(self, lineage: frozenset[str], collectors: frozenset[str]) -> tuple[Rule, ...]:
        """The enabled rules for a lineage. Without a lineage, the reporting profilers determine the
        vendor, and counters of perf a processor; without either, the rules of every vendor apply,
        except those for single chips."""
        vendors = lineage - {"any"}
        if not vendors:
            known = self.metrics.collectors
            vendors = frozenset(v for c in collectors for v in known.get(c, ()))
            if not vendors and OF_PROCESSORS not in collectors:
                vendors = frozenset(v for row in known.values() for v in row)
        return tuple(
            rule
            for rule in self
            if rule.enabled
            and (not rule.vendors or vendors & {*rule.vendors})
            and not vendors & {*rule.other_than}
        )


def rules_from(
    data: Mapping[str, Any], origin: str, metrics: MetricRegistry, signals: SignalRegistry
) -> RuleTable:
    """Parse the table and check every name in it. Raises InvalidKnowledge, which names `origin`
    (the file) and the rule."""
    rules: dict[str, Rule] = {}
    produced: set[str] = set()
    for row in data.get("rules", []):
        rule = _rule(row, origin)
        problem = _problem(rule, rules, produced, metrics, signals)
        if problem:
            raise _broken(origin, f"rule {rule.id!r} {problem}")
        rules[rule.id] = rule
        if rule.signal:
            produced.add(rule.signal)
    return RuleTable(tuple(rules.values()), metrics, signals)


def _rule(row: Mapping[str, Any], origin: str) -> Rule:
    name = row.get("id", "?")
    odd = (_REQUIRED - row.keys()) | (row.keys() - _REQUIRED - _OPTIONAL)
    if odd:
        raise _broken(
            origin, f"rule {name!r} has missing or unknown keys: {', '.join(sorted(odd))}"
        )
    if row["confidence"] not in ("A", "B", "C"):
        raise _broken(origin, f"rule {name!r} needs confidence A, B or C")
    try:
        when = compile_predicate(row["when"])
    except InvalidPredicate as problem:
        raise _broken(origin, f"rule {name!r}: {problem.message}") from problem
    return Rule(
        id=name,
        when=when,
        signal=row.get("signal"),
        confidence=row["confidence"],
        source=row["source"],
        rank=row.get("rank", 40),
        tags=tuple(row.get("tags", ())),
        rules_out=tuple(row.get("rules_out", ())),
        next=tuple(row.get("next", ())),
        parent=row.get("parent"),
        vendors=tuple(row.get("vendors", ())),
        other_than=tuple(row.get("other_than", ())),
        enabled=row.get("enabled", True),
        verified=row.get("verified", False),
        exclusive=row.get("exclusive", False),
    )


def _problem(
    rule: Rule,
    earlier: Mapping[str, Rule],
    produced: set[str],
    metrics: MetricRegistry,
    signals: SignalRegistry,
) -> str | None:
    names = rule.when.names()
    used_signals = {rule.signal, *rule.rules_out} - {None}
    checks = (
        (rule.id in earlier, "is defined twice"),
        (rule.parent is not None and rule.parent not in earlier, "needs an earlier parent"),
        (bool(used_signals - {*signals.ids}), "names an unknown signal"),
        (bool({*names.signals} - produced), "reads a signal that no earlier rule finds"),
        (any(n not in metrics for n in (*names.metrics, *rule.next)), "names an unknown metric"),
        (bool(names.parameters), "reads a recipe parameter"),
    )
    return next((message for failed, message in checks if failed), None)


def _broken(origin: str, message: str) -> InvalidKnowledge:
    return InvalidKnowledge(f"{origin}: {message}", hint=f"Correct {origin} and load it again.")


@lru_cache(maxsize=1)
def load_rules() -> RuleTable:
    """The built-in rules."""
    path = DATA / "diagnosis.toml"
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    return rules_from(data, path.name, load_metrics(), load_signals())


# -- rules and metric aliases of hardware descriptions over a chip's own counters
#
# The engine of the built-in rules evaluates them, after the built-in ones, for the chips of the
# lineage. A counter is read under the profiler's name for it; canonical metrics can also be read by
# their plain names.

RANK = 40  # rank of these rules


@dataclass(frozen=True)
class OwnRules:
    """The rules and aliases of a lineage: `rules` in order, the chip's own first, and `aliases` by
    the counter's name."""

    rules: tuple[RuleSpec, ...] = ()
    aliases: Mapping[str, MetricAlias] = field(default_factory=dict)

    @property
    def counters(self) -> frozenset[str]:
        """Every counter that a rule or an alias reads."""
        read = (name for r in self.rules for name in compile_predicate(r.when).names().parameters)
        return frozenset((*read, *self.aliases))


NO_RULES = OwnRules()


def rules_of(specs: Mapping[str, HardwareSpec], lineage: Sequence[str]) -> OwnRules:
    """The rules of a chip and its ancestors; if two share an id or a counter, the nearest takes
    precedence."""
    rules: dict[str, RuleSpec] = {}
    aliases: dict[str, MetricAlias] = {}
    for place in lineage:
        spec = specs.get(place)
        for rule in spec.rules if spec is not None else ():
            rules.setdefault(rule.id, rule)
        aliases = {**(spec.metrics if spec is not None else {}), **aliases}
    return OwnRules(tuple(rules.values()), aliases) if rules or aliases else NO_RULES


def check_own(spec: HardwareSpec) -> None:
    """Raises InvalidKnowledge for a rule or alias of a description that names an unknown signal or
    canonical metric, or has the id of a built-in rule; the message names the nearest."""
    signals, metrics = load_signals().ids, tuple(metric.name for metric in load_metrics())
    taken = {rule.id for rule in load_rules()}
    for index, rule in enumerate(spec.rules):
        place = f"{spec.id}: rules[{index}] ({rule.id})"
        names = compile_predicate(rule.when).names()
        _known(f"{place}.signal", "signal", [rule.signal], signals)
        _known(f"{place}.when", "signal", names.signals, signals)
        _known(f"{place}.when", "metric", names.metrics, metrics)
        if rule.id in taken:
            raise InvalidKnowledge(
                f"{place}: {rule.id!r} is a built-in rule",
                hint=f"Use a unique id, like {spec.id}-{rule.id}.",
            )
    for counter, alias in spec.metrics.items():
        _known(f"{spec.id}: metrics.{counter}.canonical", "metric", [alias.canonical], metrics)


def _known(place: str, kind: str, names: Sequence[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            near = nearest(name, known)
            hint = f"Nearest: {', '.join(near)}. " if near else ""
            own = (
                " A counter of the chip is written without `metrics.`." if kind == "metric" else ""
            )
            raise InvalidKnowledge(
                f"{place}: unknown {kind} {name!r}",
                hint=f"{hint}Correct it and register the file again.{own}",
                details={"nearest": near},
            )


def as_rules(own: OwnRules) -> tuple[Rule, ...]:
    """Convert to rows of the rule table."""
    return tuple(
        Rule(
            id=rule.id,
            when=compile_predicate(rule.when),
            signal=rule.signal,
            confidence=rule.confidence,
            source=f"{rule.title}: {rule.why}" if rule.why else rule.title,
            rank=RANK,
            tags=(),
            rules_out=(),
            next=(),
            parent=None,
            vendors=(),
            other_than=(),
            enabled=True,
            verified=False,
            exclusive=False,
        )
        for rule in own.rules
    )


def with_aliases(
    normalised: Normalised, raw: Mapping[str, float | str], own: OwnRules
) -> Normalised:
    """Add the canonical metrics of own counters; a directly reported metric takes precedence. Names
    that a rule or an alias reads are removed from the unrecognised ones."""
    values, sources = dict(normalised.values), dict(normalised.sources)
    for counter, alias in own.aliases.items():
        reported = alias.canonical in values and sources.get(alias.canonical) != "derived"
        if counter not in raw or reported:
            continue
        unit = load_metrics().get(alias.canonical).unit
        number = parse_quantity(raw[counter], unit, alias.scale)
        if number is not None:
            values[alias.canonical], sources[alias.canonical] = number, counter
    unrecognised = tuple(n for n in normalised.unrecognised if n not in own.counters)
    return replace(normalised, values=values, sources=sources, unrecognised=unrecognised)


def counters_of(raw: Mapping[str, float | str]) -> dict[str, float]:
    """The reported numbers by the profiler's names."""
    numbers = ((name, parse_quantity(value, "1")) for name, value in raw.items())
    return {name: number for name, number in numbers if number is not None}
