"""The diagnosis rules as data, and the checks of the table.

Reads `data/diagnosis.toml`. `diagnosis` evaluates the rules. A table that loads has no rule that
reads an unknown metric, names an unknown signal, or depends on a later rule.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from kb.errors import InvalidKnowledge, InvalidPredicate
from kb.predicates import Predicate, compile_predicate
from kb.validity import Checked, Validity, of_source
from retrieval.diagnose.metrics import MetricRegistry, load_metrics
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
