"""Which of several texts nearly repeat an earlier one, by the words that they share."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from itertools import chain

from kb.tokens import tokenize

DUPLICATE = 0.85  # share of the smaller one's words above which two texts repeat each other
REMEMBERED = 10_000  # texts whose words are kept: the same passages stand in many answers


@lru_cache(maxsize=REMEMBERED)
def words_of(text: str) -> frozenset[str]:
    """The different words of a text."""
    return frozenset(tokenize(text))


class Repeats:
    """The texts that were new so far. Two repeat each other when they share more than `share` of
    the smaller one's words.
    """

    def __init__(self, share: float = DUPLICATE) -> None:
        self._share = share
        self._sizes: list[int] = []  # words of each text
        self._with: dict[str, list[int]] = {}  # the texts that have a word, by their place

    def is_new(self, text: str) -> bool:
        """Whether the text repeats none of the earlier ones; then it is one of them from now on."""
        words = words_of(text)
        # One count over all earlier texts: comparing sets pair by pair takes several times as long.
        shared = Counter(chain.from_iterable(self._with.get(word, ()) for word in words))
        for place, count in shared.items():
            if count > self._share * min(len(words), self._sizes[place]):
                return False
        for word in words:
            self._with.setdefault(word, []).append(len(self._sizes))
        self._sizes.append(len(words))
        return True
