"""What just happened, as signals: given by the caller, read from a log, or concluded from metrics.

Joins the three sources into one diagnosis; the leading signal comes first. Knows nothing about
documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kb.hardware.spec import SignatureSpec
from kb.predicates import Value
from retrieval.answer import Diagnosis, RetrieveRequest, SignalFinding
from retrieval.diagnose.diagnosis import Finding, diagnose
from retrieval.diagnose.metrics import Normalised, load_metrics
from retrieval.diagnose.signals import SignalRegistry
from retrieval.diagnose.signatures import (
    ErrorSignature,
    SignatureIndex,
    SignatureMatch,
    load_signatures,
    signature_from_mapping,
)

MAX_SIGNATURES = 8


@dataclass(frozen=True)
class Verdict:
    """The diagnosis for the caller and, for moves and skills, the signals and metric values behind
    it.
    """

    diagnosis: Diagnosis
    signals: tuple[str, ...]
    metrics: Mapping[str, float]


class Diagnoser:
    """Keeps one compiled signature index per set of hardware signatures."""

    def __init__(self, signals: SignalRegistry) -> None:
        self._signals = signals
        self._indexes: dict[tuple[SignatureSpec, ...], SignatureIndex] = {}

    def conclude(
        self,
        request: RetrieveRequest,
        facts: Mapping[str, Value | None],
        lineage: Sequence[str],
        own: Sequence[SignatureSpec],
    ) -> Verdict:
        """own: error signatures of the hardware's lineage. Raises UnknownSignal for a given one."""
        findings: dict[str, SignalFinding] = {}
        for given in request.given_signals:
            signal = self._signals.get(given).id
            findings[signal] = SignalFinding(signal, "given")
        matches = self._index(own).match(request.log, MAX_SIGNATURES) if request.log else []
        for match in matches:
            findings.setdefault(match.signature.signal, _from_log(match))
        normalised = _with_extracted(load_metrics().normalise(request.metrics or {}), matches)
        measured = diagnose(normalised, facts, request.problem_values, lineage)
        for finding in measured.signals:
            findings.setdefault(finding.id, _from_metrics(finding))
        diagnosis = Diagnosis(
            signals=tuple(findings.values()),
            unrecognised=measured.unrecognised,
            ruled_out=tuple(
                {"signal": r.signal, "rule": r.rule, "evidence": [asdict(e) for e in r.evidence]}
                for r in measured.ruled_out
            ),
            abstained=tuple(asdict(a) for a in measured.abstained),
            measure_next=measured.measure_next,
            signatures=tuple(_signature(match) for match in matches),
            hint=_hint(request, bool(findings)),
        )
        return Verdict(diagnosis, tuple(findings), normalised.values)

    def _index(self, own: Sequence[SignatureSpec]) -> SignatureIndex:
        key = tuple(own)
        if key not in self._indexes:
            extra = [signature_from_mapping(asdict(spec), "hardware") for spec in key]
            self._indexes[key] = SignatureIndex([*extra, *load_signatures()])
        return self._indexes[key]


def _from_log(match: SignatureMatch) -> SignalFinding:
    signature: ErrorSignature = match.signature
    evidence = {
        "signature": signature.id,
        "title": signature.title,
        "line": match.line[:300],
        "line_number": match.line_number,
        "source": signature.origin,
    }
    return SignalFinding(signature.signal, "A", (evidence,))


def _from_metrics(finding: Finding) -> SignalFinding:
    return SignalFinding(finding.id, finding.confidence, tuple(asdict(e) for e in finding.evidence))


def _signature(match: SignatureMatch) -> dict[str, Any]:
    return {
        "id": match.signature.id,
        "signal": match.signature.signal,
        "title": match.signature.title,
        "remedy": match.signature.remedy,
        "line": match.line[:300],
        "line_number": match.line_number,
        "extracted": dict(match.extracted),
    }


def _with_extracted(normalised: Normalised, matches: Sequence[SignatureMatch]) -> Normalised:
    """Numbers that a compiler printed ("8 bytes spill stores") count as metrics."""
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


def _hint(request: RetrieveRequest, found: bool) -> str:
    if request.hardware is None and (request.given_signals or request.log or request.metrics):
        return (
            "No hardware was named: the answer holds only what is true of any chip."
            " Add `hardware` (GET /hardware lists the ids) for the chip's own manuals."
        )
    if not found and (request.log or request.metrics):
        return "No rule or error signature fired; the answer follows the words alone."
    return ""
