"""Diagnosis of an evaluation: signals with their evidence, in the form of the diagnosis that
/retrieve returns.

A failure is diagnosed from its log and its errors; a correct kernel from all its measurements, by
the rule table. Measures nothing. Thresholds of speed are data of `retrieval`; those here separate
lost precision from a wrong result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from kb.answers import SignalFinding, Verdict
from kb.hardware.spec import SignatureSpec
from kb.predicates import Value
from optimizer.evaluation.collectors.ceilings import Ceilings
from optimizer.evaluation.collectors.profilers import Collected
from optimizer.evaluation.records import (
    CaseTiming,
    Evaluation,
    EvaluationVerdict,
    OutputError,
    Violation,
)
from optimizer.evaluation.roofline import CaseWork, metrics_of
from retrieval.diagnose.diagnosis import Diagnoser
from retrieval.diagnose.rules import NO_RULES, OwnRules
from retrieval.diagnose.signals import load_signals
from retrieval.profiles.profile import Metric
from retrieval.request import RetrieveRequest

# An error up to this share of the output's own size is lost precision, above it a wrong result.
SMALL_ERROR = 0.05
SOURCE = "Kernlore evaluation"
# How a process ended -> its signal, if the log names none.
ENDINGS: Mapping[str, str] = {
    "SIGSEGV": "illegal_memory_access",
    "SIGBUS": "misaligned_access",
    "SIGABRT": "illegal_memory_access",
    "SIGILL": "launch_error",
    "SIGFPE": "launch_error",
    "SIGXCPU": "timeout",
    "SIGXFSZ": "launch_error",
    "SIGKILL": "out_of_memory",
}
ONE_CALL = ("cpp",)  # languages whose candidate is one function, called once


@dataclass(frozen=True)
class DiagnosisInputs:
    """Input of a diagnosis, in addition to the evaluation.

    `works` holds the least work of the timed cases by name. `signatures` are error texts of the
    hardware's own tools, `rules` its own rules over its counters. `collected` are profilers'
    reports on the candidate, whose source is `source`.
    """

    lineage: Sequence[str] = ()
    facts: Mapping[str, Value | None] | None = None
    works: Mapping[str, CaseWork] | None = None
    ceilings: Ceilings | None = None
    signatures: Sequence[SignatureSpec] = ()
    rules: OwnRules = NO_RULES
    collected: Sequence[Collected] = ()
    source: str = ""


@lru_cache(maxsize=1)
def _diagnoser() -> Diagnoser:
    return Diagnoser(load_signals())


def diagnose_evaluation(evaluation: Evaluation, inputs: DiagnosisInputs) -> EvaluationVerdict:
    """The diagnosis, by the log or by measurements.

    A failed evaluation has no metrics: counts and times do not explain why a kernel is wrong.
    """
    reader = FAILURES.get(evaluation.validity)
    timing, work = leading_case(evaluation, inputs.works or {})
    metrics = {} if reader else gathered(evaluation, inputs, timing, work)
    diagnosis = reader(evaluation, inputs) if reader else _correct(evaluation, inputs, metrics)
    refused = {c.collector: c.not_measured for c in inputs.collected if c.not_measured}
    return EvaluationVerdict(
        **vars(diagnosis),
        metrics=metrics,
        problem=quantities(work) if work else {},
        case=timing.case if timing is not None else _failed_case(evaluation),
        op=work.op if work else "",
        kernels=tuple(_kernels(inputs.collected)),
        not_measured=refused,
    )


# -- failures


def _failed_case(evaluation: Evaluation) -> str:
    return next((check.case for check in evaluation.checks if not check.ok), "")


def _from_log(evaluation: Evaluation, inputs: DiagnosisInputs, log: str) -> Verdict:
    request = RetrieveRequest(
        log=log or " ", hardware=evaluation.hardware, language=evaluation.language
    )
    own = inputs.signatures
    conclusion = _diagnoser().conclude(
        request, inputs.facts or {}, tuple(inputs.lineage), tuple(own)
    )
    return conclusion.verdict


def _evidence(rule: str, name: str, value: Value, test: str = "") -> dict[str, Any]:
    return {
        "name": name,
        "value": value,
        "test": test or None,
        "rule": rule,
        "source": SOURCE,
        "raw": "",
    }


def _with(diagnosis: Verdict, first: Iterable[SignalFinding]) -> Verdict:
    """Findings of the harness before those of the log, each signal once."""
    signals: dict[str, SignalFinding] = {}
    for finding in (*first, *diagnosis.signals):
        signals.setdefault(finding.id, finding)
    return replace(diagnosis, signals=tuple(signals.values()))


def _otherwise(
    diagnosis: Verdict, signal: str, confidence: str, evidence: Mapping[str, Any]
) -> Any:
    """The log's diagnosis, or this signal if it has none."""
    if diagnosis.signals:
        return diagnosis
    return replace(diagnosis, signals=(SignalFinding(signal, confidence, (evidence,)),), hint="")


def _not_compiled(evaluation: Evaluation, inputs: DiagnosisInputs) -> Any:
    diagnosis = _from_log(evaluation, inputs, evaluation.log or evaluation.message)
    evidence = _evidence("compiler-failed", "message", evaluation.message[:300])
    return _otherwise(diagnosis, "compile_error", "A", evidence)


def _timed_out(evaluation: Evaluation, inputs: DiagnosisInputs) -> Verdict:
    diagnosis = _from_log(evaluation, inputs, evaluation.log)
    evidence = _evidence("no-answer", "stage", evaluation.reached)
    return _with(diagnosis, [SignalFinding("timeout", "A", (evidence,))])


def _crashed(evaluation: Evaluation, inputs: DiagnosisInputs) -> Any:
    """The log names the cause more often than the exit of the process."""
    diagnosis = _from_log(evaluation, inputs, f"{evaluation.log}\n{evaluation.message}")
    ending = next((name for name in ENDINGS if name in evaluation.message), "")
    evidence = _evidence("process-ended", "message", evaluation.message[:300])
    confidence = "B" if ending in ("SIGSEGV", "SIGBUS", "SIGXCPU") else "C"
    return _otherwise(diagnosis, ENDINGS.get(ending, "launch_error"), confidence, evidence)


def _unsupported(evaluation: Evaluation, inputs: DiagnosisInputs) -> Verdict:
    """The kernel declined an input: nothing failed on the hardware."""
    del inputs
    hint = f"The kernel declines an input: {evaluation.message}. Add its dtype and shape."
    return Verdict(hint=hint)


def _incorrect(evaluation: Evaluation, inputs: DiagnosisInputs) -> Verdict:
    diagnosis = Verdict(measure_next=("run_to_run_mismatches",))
    if evaluation.log:
        diagnosis = _from_log(evaluation, inputs, evaluation.log)
    return _with(diagnosis, _wrong_results(evaluation, inputs))


def _wrong_results(evaluation: Evaluation, inputs: DiagnosisInputs) -> Iterator[SignalFinding]:
    """Not finite, only imprecise, different at every call, or plainly wrong."""
    wrong = [
        (check.case, error)
        for check in evaluation.checks
        if not check.ok
        for error in check.errors
        if not error.ok
    ]
    second = [c for c in evaluation.checks if not c.ok and "second call differs" in c.message]
    if second:
        yield SignalFinding(
            "nondeterminism",
            "A",
            (_evidence("second-call-differs", "message", second[0].message[:300]),),
        )
    unstable = [row for row in wrong if _precision(row[1])]
    if unstable and len(unstable) == len(wrong):
        case, error = unstable[0]
        lengths = inputs.works or {}
        length = lengths[case].reduction_length if case in lengths else None
        yield SignalFinding(
            "numerical_instability", "B", tuple(_of_error(case, error, "lost-precision", length))
        )
    details = [e for case, error in wrong[:3] for e in _of_error(case, error, "outside-bound")]
    evidence = details or [_evidence("refused", "message", evaluation.message[:300])]
    yield SignalFinding("correctness_mismatch", "A", tuple(evidence))


def _precision(error: OutputError) -> bool:
    """NaN or infinity, or an error that is small compared with the output."""
    return error.kind == "float" and (not math.isfinite(error.worst) or error.worst < SMALL_ERROR)


def _of_error(
    case: str, error: OutputError, rule: str, length: int | None = None
) -> Iterator[dict[str, Any]]:
    if not math.isfinite(error.worst):
        yield _evidence(rule, f"{case}/{error.output}", "not finite", "finite")
        return
    yield _evidence(
        rule, f"{case}/{error.output}", error.worst, f"largest error <= {error.allowed:.3g}"
    )
    if error.worst > error.allowed and error.quantile <= error.quantile_allowed:
        where = ", ".join(map(str, error.where))
        yield _evidence(rule, "place", f"few elements only, as at [{where}]: look at the borders")
    if length is not None:
        yield _evidence(rule, "reduction_length", length)


def _rejected(evaluation: Evaluation, inputs: DiagnosisInputs) -> Verdict:
    """Measurements of a rejected candidate are not diagnosed."""
    del inputs
    reasons = tuple(flag for flag in evaluation.flags if flag.severity == "reject")
    impossible = [flag for flag in reasons if flag.defence == Violation.IMPOSSIBLE_TIME]
    signals = tuple(
        SignalFinding(
            "measurement_error", "A", (_evidence("faster-than-physics", "time", flag.message),)
        )
        for flag in impossible[:1]
    )
    message = "; ".join(flag.message for flag in reasons) or evaluation.message
    return Verdict(signals=signals, hint=f"The candidate was rejected: {message}.")


Reader = Callable[[Evaluation, DiagnosisInputs], Verdict]
FAILURES: Mapping[str, Reader] = {
    "not_compiled": _not_compiled,
    "timed_out": _timed_out,
    "crashed": _crashed,
    "unsupported": _unsupported,
    "incorrect": _incorrect,
    "rejected": _rejected,
}


# -- correct kernels


def _correct(
    evaluation: Evaluation, inputs: DiagnosisInputs, metrics: Mapping[str, Metric]
) -> Verdict:
    timing, work = leading_case(evaluation, inputs.works or {})
    by_line = next((collected for collected in inputs.collected if collected.lines), None)
    request = RetrieveRequest(
        lines=by_line.lines if by_line else (),
        line_unit=by_line.unit if by_line else "samples",
        draft=inputs.source or None,
        metrics=metrics,
        hardware=evaluation.hardware,
        language=evaluation.language,
        op=work.op if work else None,
        dtype=work.dtype if work else None,
        problem=quantities(work) if work else None,
    )
    conclusion = _diagnoser().conclude(
        request, inputs.facts or {}, tuple(inputs.lineage), (), inputs.rules
    )
    return replace(conclusion.verdict, hint=_hint(conclusion.verdict, inputs, timing))


def leading_case(
    evaluation: Evaluation, works: Mapping[str, CaseWork]
) -> tuple[CaseTiming | None, CaseWork | None]:
    """The timed case that moves or computes most, because ceilings explain it best. None for both
    if no case is known."""
    known = [t for t in evaluation.timings if t.state == "measured" and t.case in works]
    if not known:
        return None, next(iter(works.values()), None)
    chosen = max(known, key=lambda t: (works[t.case].compulsory_bytes, works[t.case].flops))
    return chosen, works[chosen.case]


def quantities(work: CaseWork) -> dict[str, float | str]:
    """Values of `problem.<name>` in predicates: sizes in bytes, flops, rows, and the precision
    policy."""
    known: dict[str, float | str] = {
        **work.shape,
        "compulsory_bytes": work.compulsory_bytes,
        "compulsory_read_bytes": work.read_bytes,
        "element_bytes": work.element_bytes,
        "precision_policy": "relaxed" if work.relaxed else "strict",
    }
    if work.flops:
        known["flops"] = work.needed_flops
        known["flops_counted_from"] = work.counted_from
    if work.reduction_length is not None:
        known["reduction_length"] = work.reduction_length
    return known


def gathered(
    evaluation: Evaluation,
    inputs: DiagnosisInputs,
    timing: CaseTiming | None,
    work: CaseWork | None,
) -> dict[str, Metric]:
    """Static, collected and derived metrics by raw names. A profiler's metric replaces a
    compiler's."""
    metrics: dict[str, Metric] = dict(evaluation.metrics)
    if evaluation.language in ONE_CALL:
        metrics["num_launches"] = 1
    for collected in inputs.collected:
        metrics |= collected.metrics
    if work is None:
        return metrics
    if timing is not None and timing.candidate_us:
        launches = _launches(metrics)
        metrics |= metrics_of(work, timing.candidate_us * 1e-6, inputs.ceilings, launches)
        metrics |= _busy(evaluation, inputs.collected, timing.candidate_us)
    moved = [c.call_bytes for c in inputs.collected if c.call_bytes]
    if moved and work.whole:
        metrics["bytes_over_compulsory"] = moved[0] / work.compulsory_bytes
    return metrics


def _busy(
    evaluation: Evaluation, collected: Sequence[Collected], call_us: float
) -> dict[str, Metric]:
    """Share of a call in which the device runs a kernel. A profiler's wall clock cannot tell,
    because it includes the profiler."""
    kernels = _kernels([c for c in collected if c.collector == "torch_profiler"])
    if evaluation.device != "cuda" or not kernels:
        return {}
    return {"device_busy_pct": round(min(100.0, 100 * sum(k["us"] for k in kernels) / call_us), 2)}


def _launches(metrics: Mapping[str, Metric]) -> float | None:
    for name in ("kernel_launches", "num_launches"):
        value = metrics.get(name)
        if isinstance(value, int | float):
            return float(value)
    return None


def _hint(diagnosis: Verdict, inputs: DiagnosisInputs, timing: CaseTiming | None) -> str:
    if timing is not None and inputs.ceilings is None:
        return "The ceilings of this device were not measured; shares of them are not known."
    if timing is not None and inputs.ceilings is not None and not inputs.ceilings.trusted:
        return (
            "The ceilings were measured while the machine was busy, so no share of them is given;"
            " measure them again on a quiet machine."
        )
    return diagnosis.hint


def _kernels(collected: Sequence[Collected]) -> list[dict[str, Any]]:
    """Kernels or operators of a call, from the first collector that reported any."""
    return next(([dict(row) for row in c.kernels] for c in collected if c.kernels), [])
