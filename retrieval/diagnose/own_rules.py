"""Rules and metric aliases in hardware descriptions over a chip's own counters.

The engine of the built-in rules evaluates them, after the built-in ones, for the chips of the
lineage. A counter is read under the profiler's name for it; canonical metrics can also be read by
their plain names. Does not know thresholds or the hardware registry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from kb.errors import InvalidKnowledge, nearest
from kb.hardware.spec import HardwareSpec, MetricAlias, RuleSpec
from kb.predicates import compile_predicate
from retrieval.diagnose.metrics import Normalised, load_metrics, parse_quantity
from retrieval.diagnose.rules import Rule, load_rules
from retrieval.diagnose.signals import load_signals

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
