"""The diagnosis of a request: signals given by the caller, read from a log or concluded from
metrics, with their evidence and the metrics that would settle open questions.

Does not know thresholds (they are data, see `rules`) or documents. Deterministic: equal inputs give
equal verdicts, in the same order. A rule with missing evidence abstains.

Interaction of rules: they are evaluated in file order, so `signals.X` refers to signals of earlier
rules, and a child counts only if its parent fired. Then, root causes first, each fired rule removes
the signals that it rules out; a rule whose own signal has been ruled out rules out nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from kb.answers import HotLines, SignalFinding, Verdict
from kb.hardware.spec import SignatureSpec
from kb.predicates import Bindings, PredicateResult, Value
from retrieval.diagnose.hot_lines import FILLED, findings_of, hot_lines, metrics_of
from retrieval.diagnose.log_lines import is_advisory
from retrieval.diagnose.metrics import IMPLAUSIBLE, Normalised, load_metrics, nothing
from retrieval.diagnose.rules import (
    NO_RULES,
    OwnRules,
    Rule,
    RuleTable,
    as_rules,
    counters_of,
    load_rules,
    with_aliases,
)
from retrieval.diagnose.signals import Signal, SignalRegistry
from retrieval.diagnose.signatures import (
    OF_CARDS,
    OF_WORDS,
    WRAPPER,
    ErrorSignature,
    SignatureIndex,
    SignatureMatch,
    load_signatures,
    signature_from_mapping,
)
from retrieval.profiles.profile import Advised
from retrieval.request import RetrieveRequest

MAX_NEXT = 8
FULL_OCCUPANCY = 85.0  # per cent of the warps, from which on limits of occupancy are no question
MAX_SIGNATURES = 8
REMEMBERED = 1_000  # cached verdicts without metrics, one for each chip and problem
MAX_LOG_LINE = 300  # characters of a log line in a verdict
LEADING_SHARE = 20.0  # per cent of the samples from which on a line's signals lead


@dataclass(frozen=True)
class Conclusion:
    """A verdict, and the metrics by canonical name and unit that moves and skills are matched
    against. `remedied` are the signals whose moves apply, the leading one first: an error may name
    a cause other than its own signal. `roles` are those of moves that can fix a signal, if the
    error determines them; empty roles mean that no change of the kernel can."""

    verdict: Verdict
    metrics: Mapping[str, float]
    remedied: tuple[str, ...] = ()
    roles: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def mendable(self) -> tuple[str, ...]:
        """The signals of the verdict that a change of the kernel can fix."""
        return tuple(s for s in self.verdict.signal_ids if self.roles.get(s) != ())


def no_codes(log: str) -> list[SignatureMatch]:
    """For a chip without documents."""
    return []


class Diagnoser:
    """Joins the three sources of signals. Caches one compiled signature index per set of hardware
    signatures."""

    def __init__(self, signals: SignalRegistry) -> None:
        self._signals = signals
        self._indexes: dict[tuple[SignatureSpec, ...], SignatureIndex] = {}
        self._without_metrics: dict[object, Verdict] = {}

    def conclude(
        self,
        request: RetrieveRequest,
        facts: Mapping[str, Value | None],
        lineage: Sequence[str],
        signatures: Sequence[SignatureSpec],
        own: OwnRules = NO_RULES,
        codes: Callable[[str], list[SignatureMatch]] = no_codes,
        refuted: frozenset[str] = frozenset(),
    ) -> Conclusion:
        """Diagnose a request: signals that it names first, then those of its log, then those of its
        metrics.

        `facts` are of the hardware, `lineage` is the hardware with its families, `signatures` are
        the error texts and `own` the rules over counters that they declare; `codes` finds the error
        codes of its documents in a log that matches no signature; `refuted` are ids of signatures
        that the caller's tools do not print. Raises UnknownSignal for a signal
        in the request, and InvalidKnowledge for a broken signature.
        """
        findings: dict[str, SignalFinding] = {}
        for name in request.given_signals:
            signal = self._signals.get(name).id
            findings[signal] = SignalFinding(signal, "given")
        matches = [
            replace(match, facts=facts)
            for match in self._matches(request.log or "", signatures, codes)
            if match.signature.id not in refuted
        ]
        for match in matches:
            if match.signature.origin != OF_WORDS:
                findings.setdefault(match.signature.signal, _finding_of_log(match))
        raw = request.metrics or {}
        reported = with_aliases(load_metrics().normalise(raw), raw, own) if raw else nothing()
        metrics = _with_extracted(reported, matches)
        if metrics is nothing():
            measured = self._unmeasured(facts, request.problem_values, lineage, own)
        else:
            measured = diagnose(
                metrics, facts, request.problem_values, lineage, own=own, counters=counters_of(raw)
            )
        measured = _of_words(measured, request.by_words)
        lines = hot_lines(request.lines, request.line_unit, request.draft) if request.lines else ()
        for finding in _with_lines(measured, lines):
            findings.setdefault(finding.id, finding)
        refuted_signals = {row["signal"] for row in measured.ruled_out}
        for finding in _of_advice(request.advised):
            if finding.id not in refuted_signals:
                findings.setdefault(finding.id, finding)
        for n, match in enumerate(matches):  # measurements precede words, and confirm them
            if match.signature.origin == OF_WORDS and match.signature.signal in findings:
                matches[n] = replace(match, signature=replace(match.signature, remedy=""))
            findings.setdefault(match.signature.signal, _finding_of_log(match))
        verdict = Verdict(
            lines=lines,
            signals=tuple(findings.values()),
            unrecognised=measured.unrecognised,
            ruled_out=measured.ruled_out,
            abstained=measured.abstained,
            measure_next=measured.measure_next,
            signatures=tuple(_signature_json(match) for match in matches),
            hint=_hint(request, bool(findings)),
        )
        led = {m.signature.signal: m for m in reversed(matches)}
        by_log = {s: m for s, m in led.items() if s not in request.given_signals}
        causes = {signal: match.cause or signal for signal, match in by_log.items()}
        remedied = tuple(dict.fromkeys(causes.get(signal, signal) for signal in findings))
        roles = {s: m.roles for s, m in by_log.items() if s in remedied and m.roles is not None}
        return Conclusion(verdict, {**metrics.values, **metrics_of(lines)}, remedied, roles)

    def _matches(
        self,
        log: str,
        signatures: Sequence[SignatureSpec],
        codes: Callable[[str], list[SignatureMatch]],
    ) -> list[SignatureMatch]:
        """The known errors of a log; without any, the chip's own error codes in it; without these,
        the signals that its prose names."""
        if not log:
            return []
        known = self._index(signatures).match(log, MAX_SIGNATURES)
        return known or codes(log) or symptoms_in(log, self._signals)

    def _unmeasured(
        self,
        facts: Mapping[str, Value | None],
        problem: Mapping[str, Value | None],
        lineage: Sequence[str],
        own: OwnRules,
    ) -> Verdict:
        """The verdict of the rules without metrics, which most requests lack."""
        key = (tuple(facts.items()), tuple(problem.items()), tuple(lineage), own.rules)
        verdict = self._without_metrics.get(key)
        if verdict is None:
            verdict = diagnose(nothing(), facts, problem, lineage, own=own)
            if len(self._without_metrics) >= REMEMBERED:
                self._without_metrics.clear()
            self._without_metrics[key] = verdict
        return verdict

    def _index(self, specs: Sequence[SignatureSpec]) -> SignatureIndex:
        key = tuple(specs)
        if key not in self._indexes:
            extra = [signature_from_mapping(asdict(spec), "hardware") for spec in key]
            self._indexes[key] = SignatureIndex([*extra, *load_signatures()])
        return self._indexes[key]


def _of_words(measured: Verdict, names: Collection[str]) -> Verdict:
    """The verdict, with a confidence of B at most where the metrics are named in words."""
    signals = tuple(
        replace(finding, confidence=max(finding.confidence, "B"))
        if any(evidence.get("raw") in names for evidence in finding.evidence)
        else finding
        for finding in measured.signals
    )
    return replace(measured, signals=signals) if names else measured


# -- from the log


def _finding_of_log(match: SignatureMatch) -> SignalFinding:
    signature = match.signature
    evidence = {
        "signature": signature.id,
        "title": match.title,
        "line": match.line[:MAX_LOG_LINE],
        "line_number": match.line_number,
        "source": signature.origin,
    }
    confidence = "B" if signature.is_general else "A"
    if signature.origin in (OF_CARDS, OF_WORDS) or signature.level == WRAPPER:
        confidence = "C"
    return SignalFinding(signature.signal, confidence, (evidence,))


def _signature_json(match: SignatureMatch) -> dict[str, Any]:
    return {
        "id": match.signature.id,
        "signal": match.signature.signal,
        "class": match.failure_class,
        "title": match.title,
        "remedy": match.remedy,
        "line": match.line[:MAX_LOG_LINE],
        "line_number": match.line_number,
        "extracted": dict(match.extracted),
        "quantities": match.quantities,
        "advice": match.advice.text if match.advice else None,
    }


def _of_advice(advised: Sequence[Advised]) -> Iterator[SignalFinding]:
    """The signals that the profiler's own rules name, after those that its counters show."""
    for advice in advised:
        evidence = {
            "signature": "profiler-rule",
            "title": "The profiler's own rule says so",
            "line": advice.sentence,
            "line_number": advice.line,
            "source": "profiler",
        }
        yield SignalFinding(advice.signal, "A", (evidence,))


def _with_extracted(normalised: Normalised, matches: Sequence[SignatureMatch]) -> Normalised:
    """Numbers printed by a compiler ("8 bytes spill stores") count as metrics."""
    extracted = {k: v for match in reversed(matches) for k, v in match.extracted.items()}
    if not extracted:
        return normalised
    return Normalised(
        values={**extracted, **normalised.values},
        unrecognised=normalised.unrecognised,
        sources={**dict.fromkeys(extracted, "log"), **normalised.sources},
        implausible=normalised.implausible,
        collectors=normalised.collectors | {"static"},
    )


def _with_lines(measured: Verdict, lines: Sequence[HotLines]) -> Iterator[SignalFinding]:
    """The signals of lines with a large share, then those of the whole kernel, then those of other
    lines. Signals that the counters of the whole kernel refute are left out."""
    refuted = {row["signal"] for row in measured.ruled_out}
    whole = {finding.id: finding.evidence for finding in measured.signals}
    first = [group for group in lines[:1] if group.cause in FILLED]  # others wait behind it
    leading = [group for group in lines if group in first or group.share_pct >= LEADING_SHARE]
    further = [group for group in lines if group not in leading]
    for finding in findings_of(leading):
        if finding.id not in refuted:
            yield replace(finding, evidence=(*finding.evidence, *whole.get(finding.id, ())))
    yield from measured.signals
    yield from (f for f in findings_of(further) if f.id not in refuted)


def _hint(request: RetrieveRequest, any_signal: bool) -> str:
    if not any_signal and request.notes:
        return f"No rule fired. The profile: {request.notes[0]}."
    if request.hardware is None and (request.given_signals or request.log or request.metrics):
        return (
            "No hardware was named: the answer holds only what is true of any chip."
            " Add `hardware` (GET /hardware lists the ids) for the chip's own manuals."
        )
    if not any_signal and (request.log or request.metrics):
        return "No rule or error signature fired; the answer follows the words alone."
    return ""


# -- from the metrics, by rules


@dataclass(frozen=True)
class Evidence:
    """One value that a rule relied on. `test` is the comparison that it decided, `raw` the
    profiler's name of the metric, "derived" or empty."""

    name: str
    value: Value
    test: str | None
    rule: str
    source: str
    raw: str = ""


@dataclass(frozen=True)
class Abstention:
    """A rule with some of its evidence missing; `missing` are the names."""

    rule: str
    signal: str
    missing: tuple[str, ...]


@dataclass(frozen=True)
class _Tried:
    index: int
    rule: Rule
    outcome: PredicateResult

    @property
    def order(self) -> tuple[int, str, int]:
        return self.rule.rank, self.rule.confidence, self.index


def diagnose(
    metrics: Normalised,
    facts: Mapping[str, Value | None] | None = None,
    problem: Mapping[str, Value | None] | None = None,
    hardware_lineage: Sequence[str] = (),
    *,
    own: OwnRules = NO_RULES,
    counters: Mapping[str, float] | None = None,
) -> Verdict:
    """The verdict on one kernel launch under the built-in rules.

    `metrics` are normalised (canonical names and units), `facts` are of the hardware, `problem`
    holds the values of `problem.<name>` in predicates. `own` are rules in the hardware's
    descriptions, which read `counters` by the profiler's names.
    """
    table = load_rules()
    facts, problem = facts or {}, problem or {}
    full = table.metrics.derive(metrics, facts, problem)
    rules = table.for_hardware(frozenset(hardware_lineage), full.collectors) + as_rules(own)
    tried = _try_rules(rules, full, Bindings((), full.values, facts, problem, counters or {}))
    fired = sorted((t for t in tried if t.outcome.value), key=lambda t: t.order)
    exclusive = [t for t in fired if t.rule.exclusive]
    if exclusive:
        impossible = _impossible(exclusive[0].rule, full, table)
        return Verdict(
            signals=_findings(exclusive, full, impossible),
            measure_next=full.implausible[:MAX_NEXT],
            unrecognised=full.unrecognised,
        )
    ruled_out = _rule_out(fired, full)
    standing = [t for t in fired if t.rule.signal not in ruled_out]
    findings = _findings(standing, full)
    abstained = _abstentions(tried, {*ruled_out, *(finding.id for finding in findings)})
    return Verdict(
        signals=findings,
        ruled_out=tuple(ruled_out.values()),
        abstained=tuple(asdict(abstention) for abstention in abstained),
        measure_next=_measure_next(standing, abstained, full),
        unrecognised=full.unrecognised,
    )


def _try_rules(rules: Sequence[Rule], metrics: Normalised, known: Bindings) -> list[_Tried]:
    """Every applicable rule whose parent fired, with its outcome, in file order. `known` are the
    values for predicates in addition to the signals of earlier rules; a canonical metric is also in
    it by its plain name."""
    tried: list[_Tried] = []
    fired: set[str] = set()
    signals: set[str] = set()
    parameters = {**metrics.values, **known.parameters}
    bindings = replace(known, signals=signals, parameters=parameters)
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


def _rule_out(fired: Iterable[_Tried], metrics: Normalised) -> dict[str, dict[str, Any]]:
    """The refuted or explained signals, each as {signal, rule, evidence}."""
    ruled_out: dict[str, dict[str, Any]] = {}
    for t in fired:
        if t.rule.signal in ruled_out:
            continue
        for signal in t.rule.rules_out:
            evidence = [asdict(e) for e in _evidence(t, metrics)]
            row = {"signal": signal, "rule": t.rule.id, "evidence": evidence}
            ruled_out.setdefault(signal, row)
    return ruled_out


def _findings(
    fired: Iterable[_Tried], metrics: Normalised, extra: tuple[Evidence, ...] = ()
) -> tuple[SignalFinding, ...]:
    """One finding for each signal, in the order of the first rule behind it, with the best
    confidence of its rules."""
    groups: dict[str, list[_Tried]] = {}
    for t in fired:
        if t.rule.signal:
            groups.setdefault(t.rule.signal, []).append(t)
    return tuple(
        SignalFinding(
            id=signal,
            confidence=min(t.rule.confidence for t in group),
            evidence=tuple(
                asdict(e) for e in (*(e for t in group for e in _evidence(t, metrics)), *extra)
            ),
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
    """The physically impossible values, if the rule is about these."""
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
    """Rules that could still add a signal and had at least one of their metrics."""
    return tuple(
        Abstention(t.rule.id, t.rule.signal, t.outcome.missing)
        for t in tried
        if t.rule.signal
        and t.rule.signal not in settled
        and t.outcome.value is None
        and t.outcome.missing
        and any(_is_measured(used.name) for used in t.outcome.used)
    )


def _is_measured(name: str) -> bool:
    """Whether the name is a metric or a counter of the chip (which has no namespace)."""
    return name.startswith("metrics.") or "." not in name


def _measure_next(
    standing: Iterable[_Tried], abstained: Iterable[Abstention], metrics: Normalised
) -> tuple[str, ...]:
    names = [name for t in standing for name in t.rule.next]
    names += [
        name.removeprefix("metrics.")
        for abstention in abstained
        for name in abstention.missing
        if _is_measured(name)
    ]
    if metrics.values.get("occupancy_pct", 0.0) >= FULL_OCCUPANCY:
        names = [name for name in names if "occupancy" not in name]
    return tuple(dict.fromkeys(n for n in names if n not in metrics.values))[:MAX_NEXT]


# -- from prose: signals that a log without a known error line names in words, which are claims of
# the author and not measurements. Denials ("without bank conflicts", "register spills: 0") do not
# count.

MAX_PROSE = 20_000  # characters that are searched
MAX_SYMPTOMS = 2  # signals
REMEDY = "The text says so and no error line does: confirm it by a measurement or the full message."

_DENIED = re.compile(
    r"(?:\b(?:no|without|avoid\w*|prevent\w*|eliminat\w*|free of|zero|0|not|never|nor)\b|n't\b)"
    r"\W{1,4}(?:[\w-]{1,20}\W{1,3}){0,2}$",
    re.IGNORECASE,
)
_ZERO_OF = re.compile(r"\b(?:0|zero|no)\s[\w-]+$", re.IGNORECASE)
_NONE = re.compile(r"\W{0,4}[:=]\s{0,4}0\b(?!\.)")
_SENTENCE_END = re.compile(r"[.!?](?=\s)|\n\s*\n|\n(?=\s{0,4}[-*#|>])")
BEFORE = 60  # characters in which a denial is searched for
MAX_SENTENCE = 300


def symptoms_in(text: str, signals: SignalRegistry) -> list[SignatureMatch]:
    """The signals that the text names, at most MAX_SYMPTOMS in the order of their first mention."""
    text = text[:MAX_PROSE]
    mentions = [
        (place, order, signal)
        for order, signal in enumerate(signals)
        if (place := min(_mentions(text, signals.symptoms[signal.id]), default=None)) is not None
    ]
    return [_claimed(text, place, signal) for place, _, signal in sorted(mentions, key=_place_of)][
        :MAX_SYMPTOMS
    ]


def _place_of(mention: tuple[int, int, Signal]) -> tuple[int, int]:
    return mention[:2]


def _mentions(text: str, symptoms: Sequence[Sequence[re.Pattern[str]]]) -> Iterator[int]:
    """The place of the first claim of each symptom."""
    for first, *others in symptoms:
        claimed = (m.start() for m in first.finditer(text) if not _is_denied(text, m))
        place = next(claimed, None)
        if place is not None and all(other.search(text) for other in others):
            yield place


def _is_denied(text: str, match: re.Match[str]) -> bool:
    end = text.find("\n", match.start())
    if is_advisory(text[text.rfind("\n", 0, match.start()) + 1 : end if end >= 0 else None]):
        return True
    before = text[max(0, match.start() - BEFORE) : match.start()]
    ended = [end.end() for end in _SENTENCE_END.finditer(before)]
    before = before[ended[-1] :] if ended else before
    denied = _DENIED.search(before) or _ZERO_OF.search(match[0]) or _NONE.match(text, match.end())
    return denied is not None


def _claimed(text: str, place: int, signal: Signal) -> SignatureMatch:
    """A match whose line is the sentence around the place."""
    starts = [end.end() for end in _SENTENCE_END.finditer(text, 0, place)]
    following = _SENTENCE_END.search(text, place)
    end = following.end() if following else len(text)
    sentence = " ".join(text[starts[-1] if starts else 0 : end].split())
    signature = ErrorSignature(
        id=f"words-{signal.id}",
        toolchain=OF_WORDS,
        pattern="",
        signal=signal.id,
        title=signal.title,
        remedy=REMEDY,
        origin=OF_WORDS,
    )
    return SignatureMatch(signature, text.count("\n", 0, place) + 1, sentence[:MAX_SENTENCE], {})
