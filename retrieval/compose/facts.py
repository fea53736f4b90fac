"""Facts of a chip that a question for a value names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from kb.answers import NamedFact
from kb.catalog.facts import Fact
from kb.hardware.facts import readable
from retrieval.snapshot.ontology import load_ontology

# Words of questions for those of the keys of facts.
_SPELLED = {
    "size": ("capacity", "large", "big", "much", "sizes"),
    "memory": ("hbm", "dram", "gddr", "lpddr", "vram"),
    "bandwidth": ("fast", "bandwidths", "throughput"),
    "peak": ("rate", "rates", "flops", "tflops", "performance"),
    "banks": ("bank", "banked"),
    "threads": ("thread",),
    "registers": ("register", "vgprs", "grf"),
    "warp": ("wavefront", "wave", "subgroup", "simdgroup"),
}
_UNITS = re.compile(r"(?i)\b(?:compute units|(?:streaming )?multiprocessors|sms|cus|cores)\b")
_GENERATION = re.compile(r"(?i)\b(hbm|gddr|lpddr)\d\w*")
_MEANINGS = {word: canonical for canonical, words in _SPELLED.items() for word in words}
# Words of keys that a question need not have.
_WEAK = frozenset({"x", "size", "per", "unit", "block", "thread", "max", "matrix", "count"})
_ASKS_FOR_VALUE = re.compile(
    r"(?i)\b(?:how (?:many|much|large|big|wide|fast|long|is|are)|what|which|most|max|maximum|limit"
    r"|limits|peak|sizes?|capacity|bandwidth|rate)\b"
)
MOST_NAMED = 6


def named_facts(question: str, facts: Mapping[str, Fact]) -> tuple[NamedFact, ...]:
    """The facts whose keys a question for a value names: it has all words of the key but the weak
    ones, or other words for them, as the ontology and `_SPELLED` have them. A key whose words are
    part of those of another one is left out: tensor memory is not the chip's memory."""
    if not _ASKS_FOR_VALUE.search(question):
        return ()
    words = _words(question)
    found: dict[str, frozenset[str]] = {}
    for key in facts:
        parts = _words_of_key(key)
        common, strong = parts & words, parts - _WEAK
        if strong and strong <= common and common != {"memory"}:
            found[key] = common
    keys = [key for key, own in found.items() if not any(own < other for other in found.values())]
    keys.sort(key=lambda key: -len(found[key]))
    return tuple(_named(facts[key]) for key in keys[:MOST_NAMED])


@lru_cache(maxsize=4_096)
def _words_of_key(key: str) -> frozenset[str]:
    return _words(key.replace("_", " "))


def _words(text: str) -> frozenset[str]:
    """The words of a question or key. Memory on the chip and compute units are one word each,
    whatever their name."""
    text = _UNITS.sub(" compute_units ", _on_chip_memory().sub(" shared_memory ", text))
    words = re.findall(r"[a-z0-9_]+", _GENERATION.sub(r"\1", text).lower())
    return frozenset(_MEANINGS.get(word, word) for word in words)


@lru_cache(maxsize=1)
def _on_chip_memory() -> re.Pattern[str]:
    """The names of memory on a chip, the longest first. Abbreviations have their case."""
    concept = load_ontology().concepts["on_chip_memory"]
    names = [*concept.names, *(name for own in concept.families.values() for name in own)]
    names.sort(key=len, reverse=True)
    cased = (re.escape(n) if n.isupper() else f"(?i:{re.escape(n)})" for n in names)
    return re.compile(rf"\b(?:{'|'.join(cased)})\b")


def _named(fact: Fact) -> NamedFact:
    value = fact.text if fact.number is None else readable(fact.number, fact.unit)
    source = ", ".join(filter(None, (fact.title, fact.locator)))
    origin = (fact.hardware_id, fact.kind, source, fact.url)
    return NamedFact(fact.id, fact.key, value, fact.number, fact.unit, *origin)
