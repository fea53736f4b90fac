"""From metrics to a verdict: which signals hold, on what evidence, and what would settle the rest.

Knows no thresholds (they are data, see `rules`) and no documents. Deterministic: equal inputs give
equal verdicts, in the same order. A rule whose evidence is missing abstains; it never guesses.

How rules interact: they are tried in file order, so `signals.X` sees what earlier rules found, and
a child counts only when its parent fired. Then, root causes first, each fired rule removes the
signals it rules out; a finding that has itself been ruled out rules out nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kb.predicates import Bindings, Outcome, Value
from retrieval.diagnose.metrics import IMPLAUSIBLE, Normalised
from retrieval.diagnose.rules import Confidence, Rule, RuleTable, load_rules

MAX_NEXT = 8


@dataclass(frozen=True)
class Evidence:
    """One value a rule relied on. `raw` is the profiler's own name, "derived", or empty."""

    name: str
    value: Value
    test: str | None
    rule: str
    source: str
    raw: str = ""


@dataclass(frozen=True)
class Finding:
    """A signal that holds; the confidence is that of the best rule behind it."""

    id: str
    confidence: Confidence
    evidence: tuple[Evidence, ...]
    tags: tuple[str, ...]


@dataclass(frozen=True)
class RuledOut:
    """A signal refuted, or explained away, by a rule that fired."""

    signal: str
    rule: str
    evidence: tuple[Evidence, ...]


@dataclass(frozen=True)
class Abstention:
    """A rule that had some of its evidence but not all; `missing` are the names it lacks."""

    rule: str
    signal: str
    missing: tuple[str, ...]


@dataclass(frozen=True)
class Verdict:
    """Signals, root causes first; empty when nothing is known to be wrong.

    measure_next: canonical metric names that would settle the open questions.
    """

    signals: tuple[Finding, ...] = ()
    ruled_out: tuple[RuledOut, ...] = ()
    abstained: tuple[Abstention, ...] = ()
    measure_next: tuple[str, ...] = ()
    unrecognised: tuple[str, ...] = ()

    @property
    def primary(self) -> str:
        """The id of the first signal, or "unknown"."""
        return self.signals[0].id if self.signals else "unknown"


@dataclass(frozen=True)
class _Tried:
    index: int
    rule: Rule
    outcome: Outcome

    @property
    def order(self) -> tuple[int, str, int]:
        return self.rule.rank, self.rule.confidence, self.index


def diagnose(
    metrics: Normalised,
    facts: Mapping[str, Value | None] | None = None,
    problem: Mapping[str, Value | None] | None = None,
    hardware_lineage: Sequence[str] = (),
    *,
    table: RuleTable | None = None,
) -> Verdict:
    """The verdict on one kernel launch under the built-in rules, or those of `table`."""
    table = table or load_rules()
    facts, problem = facts or {}, problem or {}
    full = table.metrics.derive(metrics, facts, problem)
    rules = table.for_hardware(frozenset(hardware_lineage), full.collectors)
    tried = _try_rules(rules, full, facts, problem)
    fired = sorted((t for t in tried if t.outcome.value), key=lambda t: t.order)
    alone = [t for t in fired if t.rule.exclusive]
    if alone:
        impossible = _impossible(alone[0].rule, full, table)
        return Verdict(
            signals=_findings(alone, full, impossible),
            measure_next=full.implausible[:MAX_NEXT],
            unrecognised=full.unrecognised,
        )
    ruled_out = _rule_out(fired, full)
    gone = {entry.signal for entry in ruled_out}
    standing = [t for t in fired if t.rule.signal not in gone]
    found = _findings(standing, full)
    abstained = _abstentions(tried, gone | {finding.id for finding in found})
    return Verdict(
        signals=found,
        ruled_out=ruled_out,
        abstained=abstained,
        measure_next=_measure_next(standing, abstained, full),
        unrecognised=full.unrecognised,
    )


def _try_rules(
    rules: Sequence[Rule],
    metrics: Normalised,
    facts: Mapping[str, Value | None],
    problem: Mapping[str, Value | None],
) -> list[_Tried]:
    """Every applicable rule whose parent fired, with its outcome, in file order."""
    tried: list[_Tried] = []
    fired: set[str] = set()
    signals: set[str] = set()
    bindings = Bindings(signals, metrics.values, facts, problem)
    for index, rule in enumerate(rules):
        if rule.parent and rule.parent not in fired:
            continue
        outcome = rule.when.evaluate(bindings)
        tried.append(_Tried(index, rule, outcome))
        if outcome.value:
            fired.add(rule.id)
            if rule.signal:
                signals.add(rule.signal)
    return tried


def _rule_out(fired: Iterable[_Tried], metrics: Normalised) -> tuple[RuledOut, ...]:
    gone: dict[str, RuledOut] = {}
    for t in fired:
        if t.rule.signal in gone:
            continue
        for signal in t.rule.rules_out:
            gone.setdefault(signal, RuledOut(signal, t.rule.id, _evidence(t, metrics)))
    return tuple(gone.values())


def _findings(
    fired: Iterable[_Tried], metrics: Normalised, extra: tuple[Evidence, ...] = ()
) -> tuple[Finding, ...]:
    """One finding a signal, in the order of the first rule that found it."""
    groups: dict[str, list[_Tried]] = {}
    for t in fired:
        if t.rule.signal:
            groups.setdefault(t.rule.signal, []).append(t)
    return tuple(
        Finding(
            id=signal,
            confidence=min(t.rule.confidence for t in group),
            evidence=tuple(e for t in group for e in _evidence(t, metrics)) + extra,
            tags=tuple(dict.fromkeys(tag for t in group for tag in t.rule.tags)),
        )
        for signal, group in groups.items()
    )


def _evidence(tried: _Tried, metrics: Normalised) -> tuple[Evidence, ...]:
    rule = tried.rule
    return tuple(
        Evidence(
            name=(name := used.name.removeprefix("metrics.")),
            value=used.value,
            test=used.test.replace("metrics.", "") if used.test else None,
            rule=rule.id,
            source=rule.source,
            raw=metrics.sources.get(name, ""),
        )
        for used in tried.outcome.used
    )


def _impossible(rule: Rule, metrics: Normalised, table: RuleTable) -> tuple[Evidence, ...]:
    """The values that cannot be, when that is what the rule is about."""
    if IMPLAUSIBLE not in rule.when.names().metrics:
        return ()
    bounds = [(name, table.metrics.get(name)) for name in metrics.implausible]
    return tuple(
        Evidence(
            name=name,
            value=metrics.values[name],
            test=f"{metric.low:g} <= {name} <= {metric.high:g}",
            rule=rule.id,
            source=rule.source,
            raw=metrics.sources.get(name, ""),
        )
        for name, metric in bounds
        if metric.low is not None and metric.high is not None
    )


def _abstentions(tried: Iterable[_Tried], settled: set[str]) -> tuple[Abstention, ...]:
    """Rules that could still add a signal and had at least one of the metrics they read."""
    return tuple(
        Abstention(t.rule.id, t.rule.signal, t.outcome.missing)
        for t in tried
        if t.rule.signal
        and t.rule.signal not in settled
        and t.outcome.value is None
        and t.outcome.missing
        and any(used.name.startswith("metrics.") for used in t.outcome.used)
    )


def _measure_next(
    standing: Iterable[_Tried], abstained: Iterable[Abstention], metrics: Normalised
) -> tuple[str, ...]:
    wanted = [name for t in standing for name in t.rule.next]
    wanted += [
        name.removeprefix("metrics.")
        for abstention in abstained
        for name in abstention.missing
        if name.startswith("metrics.")
    ]
    return tuple(dict.fromkeys(n for n in wanted if n not in metrics.values))[:MAX_NEXT]
