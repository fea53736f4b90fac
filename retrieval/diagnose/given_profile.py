"""Convert the profiler output in a request to metrics of the request.

Only metrics that a rule, a move or a skill can read are used: a complete report of ncu has a
thousand counters, whose names would dominate the search. Does not know profilers;
`retrieval.profiles` does.

The sentences of a profiler's own rules (ncu's OPT, WRN and INF lines, also quoted by people) give
signals; `data/advice.toml` has the phrases.
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_right
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from kb.answers import ProfileRead
from kb.errors import InvalidRequest
from kb.hardware.spec import HardwareSpec
from kb.predicates import Bindings, Predicate, compile_predicate
from retrieval.diagnose.diagnosis import diagnose
from retrieval.diagnose.hot_lines import filled
from retrieval.diagnose.metrics import MAX_NAME, load_metrics, normalise
from retrieval.diagnose.rules import rules_of
from retrieval.diagnose.signals import DATA
from retrieval.diagnose.signatures import SignatureIndex, load_signatures
from retrieval.profiles.counters import counters, counters_of, growths, is_sweep, rates, sweep
from retrieval.profiles.lexicon import labels
from retrieval.profiles.profile import Advised, Metric, Profile, time_shares
from retrieval.profiles.quantities import quantities
from retrieval.profiles.reader import read_profile
from retrieval.profiles.tables import NO_UNIT
from retrieval.request import RetrieveRequest

BY_ADDRESS = (
    "the profile has instructions and no source lines: build with -lineinfo (nvcc) or -g (gcc,"
    " clang, hipcc) and profile again, with `--import-source yes --print-source cuda,sass` for ncu"
)
TIMES_ONLY = (
    "the profile has times and no counters that a rule reads: profile the kernel that takes most of"
    " the time with ncu, rocprofv3 or perf stat to learn what limits it"
)
MAX_KERNELS = 20  # listed in an answer
MAX_EXAMPLES = 10  # counters listed in an error message


class KnownHardware(Protocol):
    """Registered hardware, from a snapshot or the registry."""

    def get(self, name: str) -> HardwareSpec: ...

    def lineage(self, hardware_id: str) -> tuple[str, ...]: ...

    def all(self) -> Mapping[str, HardwareSpec]: ...

    def effective_facts(self, name: str) -> Mapping[str, Any]: ...


def with_profile(
    request: RetrieveRequest, chips: KnownHardware
) -> tuple[RetrieveRequest, ProfileRead | None]:
    """The request with the profile's metrics instead of its text, and a summary of the profile.
    Metrics given by the caller take precedence. A text of no known profiler is added to the log; a
    profile with known errors is a log too, and a log that is a profile is read as one.
    Raises InvalidRequest for a profile without words, or without lines, times, and counters known
    to a rule or to the chip's own rules; and UnknownHardware."""
    if request.hardware is None or (request.profile is None and request.log is None):
        return with_known_counters(request)
    lineage = chips.lineage(chips.get(request.hardware).id)
    return with_known_counters(request, rules_of(chips.all(), lineage).counters)


def with_known_counters(
    request: RetrieveRequest, own_counters: Collection[str] = ()
) -> tuple[RetrieveRequest, ProfileRead | None]:
    """Like `with_profile`, with the counters that the chip's own rules read."""
    text = request.profile
    if text is None:
        if request.log and is_profile(request.log):
            with suppress(InvalidRequest):
                as_profile = replace(request, profile=request.log, log=None)
                return with_known_counters(as_profile, own_counters)
        notes = readings(request.metrics) if request.metrics else request.notes
        advised = advice_of(request.log or "")
        if request.log and not (notes or advised or known_errors().match(request.log, 1)):
            notes = tuple(filter(None, (numbers_in(request.log),)))
        return replace(request, advised=advised, notes=notes), None
    request = replace(request, advised=advice_of(text))
    try:
        profile = _read(text, own_counters)
    except InvalidRequest as error:
        if not re.search(r"[A-Za-z]{3}", text):
            raise
        return _as_log(request, error)
    known = _known(profile.metrics, own_counters)
    timed = any(row.us or row.pct for row in (*profile.kernels, *profile.functions))
    if not known and not profile.lines and not timed and not profile.notes:
        raise _nothing_known(profile)
    said = readings(known)
    read = ProfileRead(
        kind=profile.kind,
        kernel=profile.kernel,
        metrics=known,
        unread=len(profile.metrics) - len(known),
        kernels=tuple(time_shares(profile.kernels)[:MAX_KERNELS]),
        functions=tuple(time_shares(profile.functions)[:MAX_KERNELS]),
        notes=(*said, *profile.notes, *_advice(profile, known)),
    )
    log = request.log
    if known_errors().match(text, 1):
        log = "\n".join(filter(None, (log, text)))
    without = replace(request, profile=None, log=log, lines=profile.lines, line_unit=profile.unit)
    metrics = {**known, **(request.metrics or {})}
    in_words = profile.kind in _LISTED or profile.kind == "words"
    by_words = tuple(sorted(_metrics_of_labels() & known.keys())) if in_words else ()
    return replace(without, metrics=metrics, notes=read.notes, by_words=by_words), read


@lru_cache(maxsize=1)
def _metrics_of_labels() -> frozenset[str]:
    return frozenset(label.metric for label in labels())


LEAST_NUMBERS = 2  # with a name and a unit
MOST_NUMBERS = 6  # in a note


def numbers_in(text: str) -> str:
    """The named numbers of a text that no rule reads, and what to measure; empty without any."""
    named = {
        q.names[0]: f"{q.names[0]} {q.number:g} {q.unit}"
        for q in quantities(text[:MAX_STATED])
        if q.names and q.unit and not q.words and _NAME.fullmatch(q.names[0])
    }
    if len(named) < LEAST_NUMBERS:
        return ""
    listed = ", ".join([*named.values()][:MOST_NUMBERS])
    return (
        f"numbers were read that decide nothing alone ({listed}): measure the shares of the peak of"
        " memory and of the units for the part with most time (ncu, rocprofv3, perf stat)"
    )


MAX_STATED = 20_000  # characters of a text without a profile that are read for numbers
# A name of at most 50 characters in a note; a remark in brackets, or half of one, is none.
_NAME = re.compile(r"(?!\()(?=.{1,50}$)(?:[^()]|\([^()]*\))+")


def _as_log(request: RetrieveRequest, error: InvalidRequest) -> tuple[RetrieveRequest, ProfileRead]:
    """The request with the text of a profile that cannot be read in its log, where known messages
    and the prose of people are still found; the summary names the unread profile."""
    log = "\n".join(filter(None, (request.log, request.profile)))
    note = numbers_in(request.profile or "")
    note = note or f"{error.message}: its lines were read as those of a log. {error.hint}"
    if request.advised:
        note = "the text has sentences of a profiler's rules and no table: paste the counters too"
    read = ProfileRead(
        kind="text", kernel="", metrics={}, unread=0, kernels=(), notes=(note.strip(),)
    )
    return replace(request, profile=None, log=log), read


@lru_cache(maxsize=1)
def known_errors() -> SignatureIndex:
    """The signatures of all tools."""
    return SignatureIndex(load_signatures())


def _known(metrics: Mapping[str, Metric], own: Collection[str]) -> dict[str, Metric]:
    """The metrics that a rule may read."""
    unknown = {*load_metrics().normalise(metrics).unrecognised} - {*own}
    return {name: value for name, value in metrics.items() if name[:MAX_NAME] not in unknown}


# Profiles whose counters are listed by name, so that any layout of them can be read.
_LISTED = ("perf", "counters", "table", "nvprof", "ggml", "pcm")


def _read(text: str, own: Collection[str]) -> Profile:
    """The profile, with the counters that its text lists in any layout. Raises InvalidRequest for a
    text without a profile and without a counter that is known here."""
    refused = None
    try:
        profile = read_profile(text)
    except InvalidRequest as error:
        profile, refused = Profile("counters"), error
    timed = any(row.us for row in (*profile.kernels, *profile.functions))
    if profile.lines or profile.kind not in _LISTED:
        return profile
    if timed or profile.functions:
        beside = _known(counters(text, columns=False), own) if profile.kind == "table" else {}
        return replace(profile, metrics={**beside, **profile.metrics})
    listed = {**_without_words(_known(counters(text), own)), **_growths(text), **rates(text)}
    least = 1 if NO_UNIT in profile.notes else len(profile.kernels) / 2
    if len(listed) < least:
        return profile
    if profile.kernels:  # shares of names that are counters
        profile = Profile("counters")
    swept = sweep(text) if refused is not None and len(listed) < 2 else None
    if swept is not None:
        return Profile("table", metrics={**listed, **swept.metrics}, notes=swept.notes)
    if refused is not None and not listed:
        raise refused
    return replace(profile, metrics={**listed, **profile.metrics})


def _without_words(known: Mapping[str, Metric]) -> dict[str, Metric]:
    """The metrics without those by the words of a label where a counter names them too."""
    own = {name: value for name, value in known.items() if name not in _metrics_of_labels()}
    named = normalise(own).sources.keys() if own else frozenset()
    return {name: value for name, value in known.items() if name in own or name not in named}


LEAST_COUNTERS = 2  # different known counters of a text that is a list of them


def is_profile(text: str) -> bool:
    """Whether a text of an unknown kind is a profile: by the tables and lines of one form in it, or
    because known counters fill a good part of its lines."""
    try:
        return bool(read_profile(text, loose=False))
    except InvalidRequest:
        numbers = quantities(text)
        if _known(counters_of(numbers, rows=True), ()) or is_sweep(text):
            return True
        lines = sum(1 for line in text.splitlines() if line.strip())
        known = normalise(
            _known(counters_of(numbers, sentences=False), ())
        ).sources  # one states that none is implausible
        return len(known) - 1 >= max(LEAST_COUNTERS, lines / 5)


def shows_signals(text: str, any_counter: bool = False) -> bool:
    """Whether a text that is not a profile by its form has, read as one, counters that a rule
    concludes a signal from, or with `any_counter` one that a rule may read."""
    try:
        profile = _read(text, ())
    except InvalidRequest:
        return False
    if NO_UNIT in profile.notes:
        return False
    known = _known(profile.metrics, ())
    listed = known if profile.kind != "counters" else _known(counters(text, sentences=False), ())
    if any_counter and len(normalise(listed).values) > 1:  # one states that none is implausible
        return True
    return bool(profile.lines or readings(listed) or diagnose(normalise(known)).signals)


def _growths(text: str) -> dict[str, Metric]:
    """How counters change from the first column of a table to the second, where they are known."""
    changed = growths(text)
    canonical = normalise(dict.fromkeys(changed, 1.0)).sources
    named = {
        f"{metric}_growth": changed[raw] for metric, raw in canonical.items() if raw in changed
    }
    return {name: round(ratio, 3) for name, ratio in named.items() if name in load_metrics()}


MOST_READINGS = 3


def readings(metrics: Mapping[str, Metric]) -> tuple[str, ...]:
    """A summary of the metrics, also if no rule concludes a signal."""
    values = normalise(metrics).values
    bindings = Bindings(metrics=values)
    said = [filled(text, values) for when, text in _readings() if when.evaluate(bindings).value]
    return tuple(said[:MOST_READINGS])


@lru_cache(maxsize=1)
def _readings() -> tuple[tuple[Predicate, str], ...]:
    data = tomllib.loads((DATA / "diagnosis.toml").read_text(encoding="utf-8"))
    return tuple((compile_predicate(row["when"]), row["text"]) for row in data["readings"])


def _advice(profile: Profile, known: Mapping[str, Any]) -> tuple[str, ...]:
    """How to measure the missing counters."""
    if profile.lines and not any(row.line for row in profile.lines):
        return (BY_ADDRESS,)
    return () if known or profile.lines or not profile.kernels else (TIMES_ONLY,)


def _nothing_known(profile: Profile) -> InvalidRequest:
    examples = list(profile.metrics)[:MAX_EXAMPLES]
    return InvalidRequest(
        f"no rule reads a counter of this profile of {profile.kind}: {', '.join(examples)}",
        hint="Measure more of the kernel, or declare the chip's own counters in its description.",
        details={"counters": examples},
    )


MAX_SENTENCE = 300
REACH = 160  # characters before a sentence with its estimated speed-up
_MARKS = re.compile(r"^[\s>]*(?:OPT|WRN|INF|-{5,})?\s*")
_ESTIMATE = re.compile(r"Est\. (?:Local )?Speedup: (?P<pct>[\d.]+)%")
_SHARE = re.compile(r"represents? about (?P<pct>[\d.]+)%")


def advice_of(text: str) -> tuple[Advised, ...]:
    """The signals that the rules of a profiler name, the largest stated gain first."""
    starts, parts, length = [], [], 0
    for line in text.splitlines():
        starts.append(length)
        if bare := " ".join(_MARKS.sub("", line).split()):
            parts.append(bare + " ")
            length += len(parts[-1])
    flat = "".join(parts)
    found: dict[str, Advised] = {}
    for pattern, signal in _phrases():
        match = pattern.search(flat)
        if match is None or signal in found:
            continue
        begin = flat.rfind(". ", 0, match.start()) + 1
        end = flat.find(". ", match.end())
        sentence = flat[begin : end if end >= 0 else len(flat)].strip()
        estimate = [m for m in _ESTIMATE.finditer(flat, max(0, match.start() - REACH), match.end())]
        share = _SHARE.search(flat, match.start(), match.end() + 1_200)
        stated = estimate[-1] if estimate else share
        pct = float(stated["pct"]) if stated is not None else 0.0
        number = bisect_right(starts, match.start())
        found[signal] = Advised(signal, sentence[:MAX_SENTENCE], number, pct)
    few_warps = not _ESTIMATE.search(flat) and not found.keys().isdisjoint(_FEW_WARPS)
    return tuple(
        sorted(
            found.values(),
            key=lambda advised: (few_warps and advised.signal == "latency_bound", -advised.pct),
        )
    )


# Few warps are a cause of stalls; where ncu estimates no gains, the share of a stall is none.
_FEW_WARPS = ("occupancy_limited", "grid_too_small")


@lru_cache(maxsize=1)
def _phrases() -> tuple[tuple[re.Pattern[str], str], ...]:
    path = Path(__file__).parents[1] / "data" / "advice.toml"
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    return tuple(
        (re.compile(row["phrase"], re.IGNORECASE), row["signal"]) for row in data["advice"]
    )
