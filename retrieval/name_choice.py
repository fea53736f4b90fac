"""Which names of a chip's own list are worth showing to who writes a kernel in a language that
models know: those that the machine has, of the problem's element types, the nearest to its
operators first, and a bounded number.

The names of a language as a whole are no such list: they are shown as they are. Knows nothing about
documents.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from itertools import islice, zip_longest

from kb.catalog.knowledge.symbols import Symbol
from kb.hardware.extensions import is_lacking_name
from kb.problem_terms import canonical_dtype, guide_words, problem_terms
from kb.tokens import STOP_WORDS, tokenize

MOST_NAMES = 32
MOST_TOKENS = 1_000
COMPUTED_IN = "float32"  # what narrower floats are computed in
# Aliases of element types that are words of running text too.
_COMMON_WORDS = frozenset({"half", "short", "long", "single", "char", "int"})
_BYTES = frozenset({"int8", "uint8"})  # text does not say whether a byte has a sign
_WORD = re.compile(r"[A-Za-z]\w*")


def chosen_names(
    cards: Sequence[Symbol],
    *,
    op: str | None,
    operators: Sequence[str] = (),
    dtypes: Collection[str] = (),
    lacks: Sequence[str] = (),
) -> list[Symbol]:
    """At most MOST_NAMES of these cards, in the order of their document: of each section in turn
    its best, the sections that speak of the operators first. Without dtypes, those of all."""
    there = [c for c in cards if not is_lacking_name(c.name, (c.signature, *c.limits), lacks)]
    wanted = {canonical_dtype(dtype) for dtype in dtypes}
    fitting = [c for c in there if not wanted or _is_of(c, wanted)]
    words = _words([guide_words(op) if op else "", *(o.replace("_", " ") for o in operators)])
    scores = _scores(fitting, words)
    chosen = {c.id for c in islice(_in_turns(fitting, scores), MOST_NAMES)}
    return [card for card in fitting if card.id in chosen]


def _is_of(card: Symbol, dtypes: Collection[str]) -> bool:
    """Whether it is about one of these element types, or about none in particular. What a card says
    of itself counts before the heading that it stands under."""
    usable = {*dtypes, COMPUTED_IN}
    usable |= _BYTES if usable & _BYTES else frozenset()
    operands = " ".join(meaning for _, meaning in card.operands)
    for text in (f"{card.meaning} {operands} {' '.join(card.limits)}", " ".join(card.path[-1:])):
        if named := _dtypes_in(text):
            return not named.isdisjoint(usable)
    return True


def _dtypes_in(text: str) -> set[str]:
    known = _dtype_words()
    words = (word.lower() for word in _WORD.findall(text))
    return {known[word] for word in words if word in known}


@cache
def _dtype_words() -> Mapping[str, str]:
    """How texts name element types, in the plural too."""
    terms = problem_terms()
    names = {**{dtype: dtype for dtype in terms.dtypes}, **terms.dtype_aliases}
    names = {name: dtype for name, dtype in names.items() if name not in _COMMON_WORDS}
    return {**names, **{f"{name}s": dtype for name, dtype in names.items()}}


def _words(texts: Iterable[str]) -> frozenset[str]:
    return frozenset(token for text in texts for token in tokenize(text) if token not in STOP_WORDS)


def _scores(cards: Sequence[Symbol], wanted: Collection[str]) -> dict[str, float]:
    """How much each card and its heading share with the wanted words, a rare word counting most."""
    words = {c.id: _words([c.name, c.meaning, *c.path[-1:]]) & set(wanted) for c in cards}
    counts = Counter(word for present in words.values() for word in present)
    return {i: sum(1 / counts[word] for word in present) for i, present in words.items()}


def _in_turns(cards: Sequence[Symbol], scores: Mapping[str, float]) -> Iterable[Symbol]:
    """The best of each section, then the second of each."""
    sections: dict[str, list[Symbol]] = {}
    for card in cards:
        sections.setdefault(card.section_id, []).append(card)
    ordered = [sorted(section, key=lambda c: -scores[c.id]) for section in sections.values()]
    ordered.sort(key=lambda section: -scores[section[0].id])  # stable, as all of these
    return (card for turn in zip_longest(*ordered) for card in turn if card is not None)
