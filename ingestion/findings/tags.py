"""Which signals and topics a passage speaks of, by the words of a vocabulary that is handed in.

A tag is a claim about the subject, so a common word inside a sentence does not earn it: a topic
must stand in the heading, or as a phrase of several words in the text, or most words of a signal's
own phrase must be there. Knows nothing about which signals exist."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kb.ids import sha256
from kb.tokens import tokenize

PHRASE_SHARE = 0.6  # of a phrase's words
PHRASE_WORDS = 4  # and at least so many of them

Tag = tuple[str, str]


@dataclass(frozen=True)
class SignalWords:
    """How a vocabulary names one signal: short topics, and phrases as a manual would put it."""

    topics: tuple[str, ...]
    phrases: tuple[str, ...]


class Tagger:
    """Tags text with the signals and topics of one vocabulary."""

    def __init__(self, vocabulary: Mapping[str, SignalWords]) -> None:
        self._topics: dict[str, tuple[str, ...]] = {}
        self._signal_topics: dict[str, tuple[str, ...]] = {}
        self._phrases: dict[str, tuple[frozenset[str], ...]] = {}
        for signal, words in sorted(vocabulary.items()):
            self._signal_topics[signal] = words.topics
            self._phrases[signal] = tuple(frozenset(tokenize(phrase)) for phrase in words.phrases)
            for topic in words.topics:
                self._topics[topic] = tuple(tokenize(topic))  # empty for function words alone
        self.fingerprint = sha256(repr(sorted(vocabulary.items())))[:12]

    def tags(self, path: Sequence[str], text: str) -> tuple[Tag, ...]:
        """(kind, value) pairs, kind `signal` or `topic`, in order."""
        heading = tokenize(path[-1]) if path else []
        body = tokenize(text)
        topics = self._in(heading, 1) | self._in(body, 2)
        present = set(heading) | set(body)
        signals = {
            signal
            for signal, names in self._signal_topics.items()
            if topics & {name for name in names if len(self._topics[name]) > 1}
            or any(_mostly(phrase, present) for phrase in self._phrases[signal])
        }
        return tuple(
            [("signal", value) for value in sorted(signals)]
            + [("topic", value) for value in sorted(topics)]
        )

    def _in(self, tokens: Sequence[str], words: int) -> set[str]:
        """The topics of at least so many words that stand in the tokens."""
        # Nearly every topic has a word that is not there; to look for its place would take as long
        # as everything else that is done with a passage.
        present = set(tokens)
        return {
            topic
            for topic, of_topic in self._topics.items()
            if len(of_topic) >= words and present.issuperset(of_topic) and _has(tokens, of_topic)
        }


def _has(tokens: Sequence[str], words: Sequence[str]) -> bool:
    """Whether the words stand next to each other in the tokens."""
    width = len(words)
    return bool(words) and any(
        tokens[start] == words[0] and tuple(tokens[start : start + width]) == tuple(words)
        for start in range(len(tokens) - width + 1)
    )


def _mostly(phrase: frozenset[str], present: set[str]) -> bool:
    shared = len(phrase & present)
    return shared >= PHRASE_WORDS and shared >= PHRASE_SHARE * len(phrase)
