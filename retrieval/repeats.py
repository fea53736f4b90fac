"""Which of several texts nearly repeat an earlier one, by the words that they share."""

from __future__ import annotations

import string
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kb.tokens import STOP_WORDS

DUPLICATE = 0.85  # share of the smaller one's words above which two texts repeat each other
REMEMBERED = 10_000  # texts, of 1.5 KB: the same passages stand in many answers
_SPACES = str.maketrans(dict.fromkeys(string.punctuation, " "))
BITS = 2048  # of a mask; a text has some hundred words


class _Words(NamedTuple):
    """The different words of a text, `size` of them. Each sets one bit of `mask`, by its hash;
    `hidden` is how many set one that another of them has set already. `hashes` are all 64 bits of
    them, which tell words apart: as a set, words take ten times the memory.
    """

    hashes: NDArray[np.int64]
    mask: int
    hidden: int
    size: int

    def shares(self, other: _Words) -> int:
        """How many words both have."""
        return len(np.intersect1d(self.hashes, other.hashes, assume_unique=True))


@lru_cache(maxsize=REMEMBERED)
def words_of(text: str) -> _Words:
    """The words of a text, as two texts are compared by them: runs of letters and digits, in
    whatever case, but for function words. Search tokens, which are stems too, and names beside
    their parts, agree with these on 99 of 100 pairs of near passages and take three times as long,
    or more where stems are new (benchmarks/results/retrieval_latency.md).
    """
    words = set(text.lower().translate(_SPACES).split()) - STOP_WORDS
    hashes = np.sort(np.fromiter(map(hash, words), np.int64))
    bits = np.zeros(BITS, np.bool_)
    bits[hashes % BITS] = True
    mask = int.from_bytes(np.packbits(bits).tobytes(), "big")
    return _Words(hashes, mask, len(hashes) - mask.bit_count(), len(hashes))


class Repeats:
    """The texts that were new so far. Two repeat each other when they share more than `share` of
    the smaller one's words.
    """

    def __init__(self, share: float = DUPLICATE) -> None:
        self._share = share
        self._texts: list[_Words] = []

    def is_new(self, text: str) -> bool:
        """Whether the text repeats none of the earlier ones; then it is one of them from now on."""
        own = words_of(text)
        _, mask, hidden, size = own
        share = self._share
        # A context compares some thousand pairs, so nothing is called for each but what counts.
        for other in self._texts:
            _, other_mask, other_hidden, other_size = other
            enough = share * (size if size < other_size else other_size)
            # The masks say at least how many words both have, and nearly always about how many:
            # they rule out nearly all pairs, in a tenth of the time of two sets.
            both = (mask & other_mask).bit_count()
            both += hidden if hidden < other_hidden else other_hidden
            if both > enough and own.shares(other) > enough:
                return False
        self._texts.append(own)
        return True
