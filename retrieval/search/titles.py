"""The signals that a heading names, and how clearly.

A request checks the headings of some hundred sections against all signals. So the words of titles
are indexed and the results for headings are cached.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import lru_cache

from kb.tokens import tokenize
from retrieval.diagnose.signals import Signal

ELSEWHERE = 0.4  # factor on a heading's weight for each word about something related to the signal
# affinity of a heading that contains the words of the id, begins with them
BY_ID, LEADING = 0.9, 1.0
BY_TITLE, TITLE_RANGE = 0.8, 0.4  # of one that contains the first of the titles; less for the last
REMEMBERED = 20_000  # cached headings: the same occur in many rankings


@dataclass(frozen=True)
class Heading:
    """The signals in a heading, by id: `affinity` is how clearly it names each, 0 to 1, without
    zeros; `named` are those whose id it contains; `aside` those to which it is only related."""

    words: frozenset[str]
    affinity: Mapping[str, float]
    named: frozenset[str]
    aside: frozenset[str]


@dataclass(frozen=True)
class _Phrase:
    """A phrase in headings and its relation to a signal: its name, something related (`elsewhere`),
    or one of its titles, with the affinity `share`."""

    words: frozenset[str]
    signal: str
    share: float = 0.0
    is_name: bool = False
    elsewhere: bool = False


class Titles:
    """The titles of all signals. Safe to share between threads."""

    def __init__(self, signals: Iterable[Signal]) -> None:
        self._by_word: dict[str, list[_Phrase]] = {}
        self._several_words: set[str] = set()
        for signal in signals:
            if "_" in signal.id:
                self._several_words.add(signal.id)
            for phrase in _phrases(signal):
                if phrase.words:
                    self._by_word.setdefault(min(phrase.words), []).append(phrase)
        self.of = lru_cache(maxsize=REMEMBERED)(self._read)

    def affinity(self, heading: str, signal: str) -> float:
        """How clearly a heading names the signal, 0 to 1: by the words of its id, else by one of
        its `headings`; earlier ones weigh more. Words about something related lower it."""
        return self.of(heading).affinity.get(signal, 0.0)

    def of_another(self, heading: str, signal: str) -> float:
        """How clearly a heading is the title of another signal's section, 0 to 1. 0 if it contains
        the words of this signal's id, or names it more than half as clearly. A heading that begins
        with another signal's id belongs to that one, even with topics of this one; but an id of one
        word may begin headings of several."""
        read = self.of(heading)
        if signal in read.named:
            return 0.0
        rivals = [
            (affinity, other in self._several_words)
            for other, affinity in read.affinity.items()
            if other != signal
        ]
        named, several_words = max(rivals, default=(0.0, False))
        whole = named == LEADING and several_words
        return named if whole or read.affinity.get(signal, 0.0) <= named / 2 else 0.0

    def _read(self, heading: str) -> Heading:
        tokens = tokenize(heading)
        present = frozenset(tokens)
        matches = [p for word in present for p in self._by_word.get(word, ()) if p.words <= present]
        best: dict[str, float] = {}
        for phrase in matches:
            share = phrase.share
            if phrase.is_name:
                leads = frozenset(tokens[: len(phrase.words)]) == phrase.words
                share = LEADING if leads else BY_ID
            if not phrase.elsewhere:
                best[phrase.signal] = max(share, best.get(phrase.signal, 0.0))
        named = frozenset(phrase.signal for phrase in matches if phrase.is_name)
        near = [phrase.signal for phrase in matches if phrase.elsewhere]
        affinity = {
            signal: share * ELSEWHERE ** near.count(signal) for signal, share in best.items()
        }
        return Heading(present, affinity, named, frozenset(near) - named)


def _phrases(signal: Signal) -> Iterable[_Phrase]:
    yield _Phrase(words_of(_name(signal)), signal.id, is_name=True)
    for place, title in enumerate(signal.headings):
        less = TITLE_RANGE * place / len(signal.headings)
        yield _Phrase(words_of(title), signal.id, BY_TITLE - less)
    for near in signal.elsewhere:
        yield _Phrase(words_of(near), signal.id, elsewhere=True)


def _name(signal: Signal) -> str:
    """The words of its id, spelled as in titles: "on-chip bandwidth", not "onchip bandwidth"."""
    first = signal.headings[0] if signal.headings else ""
    same = "".join(filter(str.isalnum, first)).lower() == signal.id.replace("_", "")
    return first if same else signal.id.replace("_", " ")


@lru_cache(maxsize=REMEMBERED)
def words_of(text: str) -> frozenset[str]:
    """The different words of a title."""
    return frozenset(tokenize(text))


def contains_signal(text: str, signal: str) -> bool:
    """Whether a text contains a signal's id or the words of it: `memory_bound`, memory-bound."""
    return _signal_pattern(signal).search(text) is not None


@lru_cache(maxsize=1_000)
def _signal_pattern(signal: str) -> re.Pattern[str]:
    words = "[ _-]".join(map(re.escape, signal.split("_")))
    return re.compile(rf"(?<![A-Za-z_]){words}(?![A-Za-z_])", re.IGNORECASE)


def contains_phrase(present: AbstractSet[str], phrase: str) -> bool:
    """Whether all words of a phrase are among these."""
    words = words_of(phrase)
    return bool(words) and words <= present
