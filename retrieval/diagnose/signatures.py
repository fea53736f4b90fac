"""Error signatures: a known line of a log, the signal it stands for and what to do about it.

Reads `data/signatures.toml`; signatures of a chip come from its hardware.toml through
`signature_from_mapping`. Knows nothing about where logs come from. Patterns are untrusted and are
matched in linear time (see `linear_patterns`).
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from kb.errors import InvalidKnowledge, InvalidPredicate
from kb.predicates import Bindings, Predicate, compile_predicate
from retrieval.diagnose.linear_patterns import UnsafePattern, compile_linear
from retrieval.diagnose.log_lines import LogIndex, normalise_error, query_lines
from retrieval.diagnose.metrics import load_metrics, parse_quantity
from retrieval.diagnose.signals import DATA, load_signals

__all__ = [
    "ErrorSignature",
    "SignatureIndex",
    "SignatureMatch",
    "load_signatures",
    "normalise_error",
    "query_lines",
    "signature_from_mapping",
]

BUILTIN = "builtin"
# A chip's own signature knows better than a general one of the same line.
HARDWARE_PRIORITY = 95
MAX_MATCHES = 20
MAX_OF_ONE = 3
MAX_WORDS = 600

_TEXTS = ("pattern", "signal", "title", "remedy")
_OPTIONAL = ("id", "toolchain", "priority", "extract", "when")


@dataclass(frozen=True)
class ErrorSignature:
    """What one kind of log line means.

    `extract` pairs named groups of the pattern with canonical metrics. `when` is a predicate over
    the extracted metrics, for reports that only count above a number. `origin` is "builtin" or who
    supplied the signature. Of two that match one line, the higher `priority` (0 to 100) wins.
    """

    id: str
    toolchain: str
    pattern: str
    signal: str
    title: str
    remedy: str
    extract: tuple[tuple[str, str], ...] = ()
    priority: int = HARDWARE_PRIORITY
    when: Predicate | None = None
    origin: str = BUILTIN


@dataclass(frozen=True)
class SignatureMatch:
    """A signature that matches a line of a log; lines count from 1. `extracted` holds canonical
    metrics in canonical units.
    """

    signature: ErrorSignature
    line_number: int
    line: str
    extracted: Mapping[str, float]

    @property
    def _order(self) -> tuple[int, int, str]:
        return -self.signature.priority, self.line_number, self.signature.id


def signature_from_mapping(data: Mapping[str, Any], origin: str) -> ErrorSignature:
    """A signature from TOML or JSON. Raises InvalidKnowledge, which names what is wrong with it."""
    _check_keys(data, origin)
    if data["signal"] not in load_signals():
        raise _broken(origin, f"names unknown signal {data['signal']!r}")
    try:
        compiled = compile_linear(data["pattern"])
        when = compile_predicate(data["when"]) if "when" in data else None
    except (UnsafePattern, InvalidPredicate) as problem:
        raise _broken(origin, f"pattern {data['pattern'][:80]!r}: {problem}") from problem
    extract = tuple(sorted(dict(data.get("extract", {})).items()))
    for group, metric in extract:
        if group not in compiled.groups or metric not in load_metrics():
            raise _broken(origin, f"extract {group!r} -> {metric!r}: no such group or metric")
    digest = hashlib.sha256(data["pattern"].encode()).hexdigest()[:8]
    return ErrorSignature(
        id=data.get("id", f"{origin}-{digest}"),
        toolchain=data.get("toolchain", origin),
        pattern=data["pattern"],
        signal=data["signal"],
        title=data["title"],
        remedy=data["remedy"],
        extract=extract,
        priority=data.get("priority", HARDWARE_PRIORITY),
        when=when,
        origin=origin,
    )


def _check_keys(data: Mapping[str, Any], origin: str) -> None:
    missing = [key for key in _TEXTS if not isinstance(data.get(key), str) or not data[key].strip()]
    unknown = sorted(data.keys() - {*_TEXTS, *_OPTIONAL})
    if missing or unknown:
        raise _broken(origin, f"lacks {missing}, has unknown {unknown}")
    if any(len(data[key]) > MAX_WORDS for key in _TEXTS):
        raise _broken(origin, f"has a text longer than {MAX_WORDS} characters")
    priority = data.get("priority", 0)
    if isinstance(priority, bool) or not isinstance(priority, int) or not 0 <= priority <= 100:
        raise _broken(origin, "has a priority that is no integer from 0 to 100")
    if not isinstance(data.get("extract", {}), Mapping):
        raise _broken(origin, "has an extract that is no table")
    if any(not isinstance(data.get(key, ""), str) for key in ("id", "toolchain", "when")):
        raise _broken(origin, "has an id, toolchain or when that is no text")


def _broken(origin: str, message: str) -> InvalidKnowledge:
    return InvalidKnowledge(
        f"signature of {origin}: {message}",
        hint="A signature has pattern, signal, title and remedy; GET /signals lists the signals.",
    )


class SignatureIndex:
    """Signatures prepared for scanning logs; cheap literals first, then the expressions."""

    def __init__(self, signatures: Iterable[ErrorSignature]) -> None:
        self.signatures = tuple(signatures)
        self._by_keyword: dict[str, list[ErrorSignature]] = {}
        for signature in self.signatures:
            for keyword in compile_linear(signature.pattern).literals:
                self._by_keyword.setdefault(keyword, []).append(signature)

    def match(self, log: str, limit: int = MAX_MATCHES) -> list[SignatureMatch]:
        """The known lines of a log, best first: at most `limit` matches, one for each line and
        three for each signature.
        """
        best: list[SignatureMatch] = []
        for line, keywords in LogIndex(log).lines(self._by_keyword):
            candidates = {s.id: s for k in keywords for s in self._by_keyword[k]}
            matches = [
                match
                for signature in candidates.values()
                if (match := _match(signature, line.number, line.text)) is not None
            ]
            if matches:
                best.append(min(matches, key=lambda match: match._order))
        return _deduplicated(sorted(best, key=lambda match: match._order), limit)


def _match(signature: ErrorSignature, number: int, line: str) -> SignatureMatch | None:
    groups = compile_linear(signature.pattern).search(line)
    if groups is None:
        return None
    extracted: dict[str, float] = {}
    for group, name in signature.extract:
        value = parse_quantity(groups[group], load_metrics().get(name).unit)
        if value is not None:
            extracted[name] = value
    if signature.when and not signature.when.evaluate(Bindings(metrics=extracted)).value:
        return None
    return SignatureMatch(signature, number, line.strip(), extracted)


def _deduplicated(matches: Sequence[SignatureMatch], limit: int) -> list[SignatureMatch]:
    """The first of equal messages, where numbers, paths and names do not count."""
    chosen: list[SignatureMatch] = []
    seen: set[tuple[str, str]] = set()
    counts: dict[str, int] = {}
    for match in matches:
        key = match.signature.id, normalise_error(match.line)
        if key in seen or counts.get(match.signature.id, 0) >= MAX_OF_ONE:
            continue
        seen.add(key)
        counts[match.signature.id] = counts.get(match.signature.id, 0) + 1
        chosen.append(match)
    return chosen[:limit]


@lru_cache(maxsize=1)
def load_signatures() -> tuple[ErrorSignature, ...]:
    """The built-in signatures."""
    path = DATA / "signatures.toml"
    rows = tomllib.loads(path.read_text(encoding="utf-8"))["signatures"]
    signatures = tuple(signature_from_mapping(row, BUILTIN) for row in rows)
    if len({signature.id for signature in signatures}) != len(signatures):
        raise _broken(BUILTIN, "two signatures have the same id")
    return signatures
