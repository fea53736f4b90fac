"""Units of facts: one canonical unit per dimension, and how the spellings found in manuals convert
to it.

Convention for prefixes without an `i`: a size (KB, MB, GB of a cache or memory) counts in powers of
1024, a rate (GB/s, GHz, TFLOPS, W) in powers of 1000, because that is how chip manuals mean them.
`KiB`, `GiB/s` are always binary. Units of bits per second and transfers per second are unknown here
on purpose: their case is too often wrong.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

CANONICAL_UNITS = ("count", "threads", "B", "B/s", "bit", "Hz", "flop/s", "op/s", "W", "text")

_STEPS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5, "e": 6}
_WORDS = {"kilo": "k", "mega": "m", "giga": "g", "tera": "t", "peta": "p"}
# a small b is a bit
_BYTE = re.compile(r"([kKmMgGtTpPeE]?)(i?)(?:B|[bB]ytes?)")
_RATE = re.compile(r"([kKmMgGtTpPeE]?)(i?)(?:B|[bB]ytes?)(?:/s|/sec|/second|ps)")
_HERTZ = re.compile(r"([kmgt]?)hz", re.IGNORECASE)
_FLOPS = re.compile(r"([kmgtpe]?)(?:flops|flops?/s|flops?/sec)", re.IGNORECASE)
_OPS = re.compile(r"([kmgtpe]?)(?:ops|i?ops|ops?/s|ops?/sec)", re.IGNORECASE)
_WATT = re.compile(r"(k?)(?:w|watts?)", re.IGNORECASE)
_PLAIN = {
    "bit": "bit",
    "bits": "bit",
    "threads": "threads",
    "thread": "threads",
    "lanes": "threads",
    "work-items": "threads",
    "count": "count",
    "text": "text",
}


@dataclass(frozen=True)
class Unit:
    """factor: what one of it is in `canonical`. assumed: the factor rests on the convention
    above.
    """

    canonical: str
    factor: float
    assumed: bool = False


@lru_cache(maxsize=512)
def find_unit(text: str) -> Unit | None:
    """The unit a spelling means, or None."""
    spelled = text.strip()
    for word, letter in _WORDS.items():
        if spelled.lower().startswith(word):
            spelled = letter + spelled[len(word) :]
    if spelled.lower() in _PLAIN:
        return Unit(_PLAIN[spelled.lower()], 1.0)
    return _sized(spelled) or _decimal(spelled)


def _sized(spelled: str) -> Unit | None:
    if found := _BYTE.fullmatch(spelled):
        return Unit("B", _binary(found[1]), assumed=bool(found[1]) and not found[2])
    if found := _RATE.fullmatch(spelled):
        factor = _binary(found[1]) if found[2] else _thousands(found[1])
        return Unit("B/s", factor)
    return None


def _decimal(spelled: str) -> Unit | None:
    for pattern, canonical in ((_HERTZ, "Hz"), (_FLOPS, "flop/s"), (_OPS, "op/s"), (_WATT, "W")):
        if found := pattern.fullmatch(spelled):
            return Unit(canonical, _thousands(found[1]))
    return None


def _binary(prefix: str) -> float:
    return float(1024 ** _STEPS[prefix.lower()])


def _thousands(prefix: str) -> float:
    return float(1000 ** _STEPS[prefix.lower()])
