"""The signals and topics of a passage, by the words of a vocabulary.

A tag names the subject, so one common word in a sentence is not enough: the heading must contain
the topic, or the text a topic of several words, or most words of a signal's phrase. Knows nothing
about which signals exist."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from kb.ids import sha256
from kb.tokens import tokenize

PHRASE_SHARE = 0.6  # of a phrase's words
PHRASE_WORDS = 4  # and at least so many of them

Tag = tuple[str, str]


@dataclass(frozen=True)
class SignalWords:
    """The names of one signal: short topics, and phrases as manuals use them."""

    topics: tuple[str, ...]
    phrases: tuple[str, ...]


class Tagger:
    """Tags text with the signals and topics of one vocabulary."""

    def __init__(self, vocabulary: Mapping[str, SignalWords]) -> None:
        self._topics: dict[str, tuple[str, ...]] = {}
        self._signal_topics: dict[str, frozenset[str]] = {}  # of several words, by signal
        # Indexes of the few topics and phrases that share a word with a passage.
        self._topics_with: dict[str, list[str]] = defaultdict(list)  # by the topic's first word
        self._phrases: list[tuple[str, int]] = []  # signal, number of words
        self._phrases_with: dict[str, list[int]] = defaultdict(list)
        for signal, words in sorted(vocabulary.items()):
            for topic in words.topics:
                if topic not in self._topics:
                    self._topics[topic] = tuple(tokenize(topic))  # empty for function words alone
                    for first in self._topics[topic][:1]:
                        self._topics_with[first].append(topic)
            several = (topic for topic in words.topics if len(self._topics[topic]) > 1)
            self._signal_topics[signal] = frozenset(several)
            for phrase in words.phrases:
                tokens = frozenset(tokenize(phrase))
                for token in tokens:
                    self._phrases_with[token].append(len(self._phrases))
                self._phrases.append((signal, len(tokens)))
        self.fingerprint = sha256(repr(sorted(vocabulary.items())))[:12]

    def tags(self, path: Sequence[str], text: str) -> tuple[Tag, ...]:
        """(kind, value) pairs, kind `signal` or `topic`, in order."""
        heading = tokenize(path[-1]) if path else []
        body = tokenize(text)
        topics = self._topics_in(heading, 1) | self._topics_in(body, 2)
        signals = self._signals_in({*heading, *body})
        signals |= {signal for signal, own in self._signal_topics.items() if topics & own}
        return tuple(
            [("signal", value) for value in sorted(signals)]
            + [("topic", value) for value in sorted(topics)]
        )

    def _topics_in(self, tokens: Sequence[str], words: int) -> set[str]:
        """The topics of at least so many words in the tokens."""
        near = (topic for token in set(tokens) for topic in self._topics_with.get(token, ()))
        return {
            topic
            for topic in near
            if len(self._topics[topic]) >= words and _has(tokens, self._topics[topic])
        }

    def _signals_in(self, present: Collection[str]) -> set[str]:
        """The signals with a phrase most of whose words are present."""
        shared = Counter(n for token in present for n in self._phrases_with.get(token, ()))
        return {
            self._phrases[n][0]
            for n, count in shared.items()
            if count >= PHRASE_WORDS and count >= PHRASE_SHARE * self._phrases[n][1]
        }


def _has(tokens: Sequence[str], words: Sequence[str]) -> bool:
    """Whether the words are adjacent in the tokens."""
    width = len(words)
    return bool(words) and any(
        tokens[start] == words[0] and tuple(tokens[start : start + width]) == tuple(words)
        for start in range(len(tokens) - width + 1)
    )
