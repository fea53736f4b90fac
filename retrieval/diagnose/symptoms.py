"""Signals that the prose of a log names in words, for logs without a known error line.

Reads the symptoms of `data/signals.toml`. A symptom is a claim of the author and no measurement, so
its confidence is C. Denials ("without bank conflicts", "register spills: 0") are not symptoms.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from retrieval.diagnose.signals import Signal, SignalRegistry
from retrieval.diagnose.signatures import OF_WORDS, ErrorSignature, SignatureMatch

MAX_TEXT = 20_000  # characters that are searched
MAX_SYMPTOMS = 2  # signals
REMEDY = "The text says so and no error line does: confirm it by a measurement or the full message."

_DENIED = re.compile(
    r"(?:\b(?:no|without|avoid\w*|prevent\w*|eliminat\w*|free of|zero|0|not|never|nor)\b|n't\b)"
    r"\W{1,4}(?:[\w-]{1,20}\W{1,3}){0,2}$",
    re.IGNORECASE,
)
_NONE = re.compile(r"\W{0,4}[:=]\s{0,4}0\b(?!\.)")
_SENTENCE_END = re.compile(r"[.!?](?=\s)|\n\s*\n|\n(?=\s{0,4}[-*#|>])")
BEFORE = 60  # characters in which a denial is searched for
MAX_SENTENCE = 300


def symptoms_in(text: str, signals: SignalRegistry) -> list[SignatureMatch]:
    """The signals that the text names, at most MAX_SYMPTOMS in the order of their first mention."""
    text = text[:MAX_TEXT]
    mentions = [
        (place, order, signal)
        for order, signal in enumerate(signals)
        if (place := min(_mentions(text, signals.symptoms[signal.id]), default=None)) is not None
    ]
    return [_match(text, place, signal) for place, _, signal in sorted(mentions, key=_first)][
        :MAX_SYMPTOMS
    ]


def _first(mention: tuple[int, int, Signal]) -> tuple[int, int]:
    return mention[:2]


def _mentions(text: str, symptoms: Sequence[Sequence[re.Pattern[str]]]) -> Iterator[int]:
    """The place of the first claim of each symptom."""
    for first, *others in symptoms:
        claimed = (m.start() for m in first.finditer(text) if not _is_denied(text, m))
        place = next(claimed, None)
        if place is not None and all(other.search(text) for other in others):
            yield place


def _is_denied(text: str, match: re.Match[str]) -> bool:
    before = text[max(0, match.start() - BEFORE) : match.start()]
    ended = [end.end() for end in _SENTENCE_END.finditer(before)]
    before = before[ended[-1] :] if ended else before
    return _DENIED.search(before) is not None or _NONE.match(text, match.end()) is not None


def _match(text: str, place: int, signal: Signal) -> SignatureMatch:
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
