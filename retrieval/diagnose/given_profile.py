"""Convert the profiler output in a request to metrics of the request.

Only metrics that a rule, a move or a skill can read are used: a complete report of ncu has a
thousand counters, whose names would dominate the search. Does not know profilers;
`retrieval.profiles` does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Protocol

from kb.answers import ProfileRead
from kb.errors import InvalidRequest
from kb.hardware.spec import HardwareSpec
from retrieval.diagnose.metrics import MAX_NAME, load_metrics
from retrieval.diagnose.own_rules import rules_of
from retrieval.profiles.profile import Profile, time_shares
from retrieval.profiles.reader import read_profile
from retrieval.profiles.tables import pairs
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
    Metrics given by the caller take precedence. A text of no known profiler is added to the log.
    Raises InvalidRequest for a profile without words, or without lines, times, and counters known
    to a rule or to the chip's own rules; and UnknownHardware.
    """
    if request.profile is None or request.hardware is None:
        return with_known_counters(request)
    lineage = chips.lineage(chips.get(request.hardware).id)
    return with_known_counters(request, rules_of(chips.all(), lineage).counters)


def with_known_counters(
    request: RetrieveRequest, own_counters: Collection[str] = ()
) -> tuple[RetrieveRequest, ProfileRead | None]:
    """Like `with_profile`, with the counters that the chip's own rules read."""
    if request.profile is None:
        return request, None
    try:
        profile = _read(request.profile, own_counters)
    except InvalidRequest as error:
        if not any(word.isalpha() for word in request.profile.split()):
            raise
        return _as_log(request, error)
    unknown = {*load_metrics().normalise(profile.metrics).unrecognised} - {*own_counters}
    known = {n: v for n, v in profile.metrics.items() if n[:MAX_NAME] not in unknown}
    if (
        not known
        and not profile.lines
        and not any(kernel.us or kernel.pct for kernel in profile.kernels)
    ):
        raise _nothing_known(profile)
    read = ProfileRead(
        kind=profile.kind,
        kernel=profile.kernel,
        metrics=known,
        unread=len(profile.metrics) - len(known),
        kernels=tuple(time_shares(profile.kernels)[:MAX_KERNELS]),
        notes=(*profile.notes, *_advice(profile, known)),
    )
    metrics = {**known, **(request.metrics or {})}
    return (
        replace(
            request, profile=None, metrics=metrics, lines=profile.lines, line_unit=profile.unit
        ),
        read,
    )


def _as_log(request: RetrieveRequest, error: InvalidRequest) -> tuple[RetrieveRequest, ProfileRead]:
    """The request with the text of a profile that cannot be read in its log, where known messages
    and the prose of people are still found; the summary says what was not read.
    """
    log = "\n".join(filter(None, (request.log, request.profile)))
    note = f"{error.message}: its lines were read as those of a log. {error.hint}"
    read = ProfileRead(
        kind="text", kernel="", metrics={}, unread=0, kernels=(), notes=(note.strip(),)
    )
    return replace(request, profile=None, log=log), read


def _read(text: str, own_counters: Collection[str]) -> Profile:
    """The profile; for a text of an unknown profiler, the lines with a counter that is known here
    and its value. Raises InvalidRequest.
    """
    try:
        return read_profile(text)
    except InvalidRequest:
        listed = pairs(text)
        unknown = {*load_metrics().normalise(listed).unrecognised} - {*own_counters}
        known = {name: value for name, value in listed.items() if name[:MAX_NAME] not in unknown}
        if not known:
            raise
        return Profile("counters", metrics=known)


def _advice(profile: Profile, known: Mapping[str, Any]) -> tuple[str, ...]:
    """How to measure what the profile lacks."""
    if profile.lines and not any(row.line for row in profile.lines):
        return (BY_ADDRESS,)
    return () if known or profile.lines else (TIMES_ONLY,)


def _nothing_known(profile: Profile) -> InvalidRequest:
    examples = list(profile.metrics)[:MAX_EXAMPLES]
    return InvalidRequest(
        f"no rule reads a counter of this profile of {profile.kind}: {', '.join(examples)}",
        hint="Measure more of the kernel, or declare the chip's own counters in its description.",
        details={"counters": examples},
    )
