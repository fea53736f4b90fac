"""Which of several texts nearly repeat an earlier one, by the words that they share."""

from __future__ import annotations

from functools import lru_cache

from kb.tokens import distinct_tokens

DUPLICATE = 0.85  # share of the smaller one's words above which two texts repeat each other
REMEMBERED = 10_000  # texts whose words are kept: the same passages stand in many answers
_DIGITS = b"01" + bytes(254)  # from a byte for each word to the digits of a binary number


@lru_cache(maxsize=REMEMBERED)
def words_of(text: str) -> frozenset[str]:
    """The different words of a text."""
    return distinct_tokens(text)


class Repeats:
    """The texts that were new so far. Two repeat each other when they share more than `share` of
    the smaller one's words.
    """

    def __init__(self, share: float = DUPLICATE) -> None:
        self._share = share
        self._texts: list[tuple[int, int]] = []  # of each text: the bits of its words, their number
        self._bits: dict[str, int] = {}  # the bit of each word

    def is_new(self, text: str) -> bool:
        """Whether the text repeats none of the earlier ones; then it is one of them from now on."""
        words = words_of(text)
        # Words as bits of one number: what two texts share takes a tenth of the time of two sets.
        held = bytearray(len(self._bits) + len(words))
        for word in words:
            held[self._bits.setdefault(word, len(self._bits))] = 1
        own = int(held[::-1].translate(_DIGITS), 2) if words else 0  # the last digit is bit 0
        for other, size in self._texts:
            if (own & other).bit_count() > self._share * min(len(words), size):
                return False
        self._texts.append((own, len(words)))
        return True
