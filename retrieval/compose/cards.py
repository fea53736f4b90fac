"""Blocks of symbol cards: names of a language with signatures, meanings, limits and examples; and
the choice of cards for a chip that has too many. Facts of a chip that a question for a value names.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from itertools import islice, zip_longest

from kb.answers import NamedFact
from kb.catalog.facts import Fact
from kb.catalog.knowledge.symbols import Symbol
from kb.hardware.facts import readable
from kb.hardware.schema import is_lacking_name
from kb.problem_terms import canonical_dtype, guide_words, problem_terms
from kb.prompt_tokens import count_tokens
from kb.tokens import STOP_WORDS, tokenize
from retrieval.compose.sections import Block, fenced
from retrieval.search.names import names_in
from retrieval.snapshot.lexicon import Term
from retrieval.snapshot.ontology import load_ontology

BRIEF = 160  # characters of a meaning in one line
_SENTENCE = re.compile(r".{20,}?[.!?](?=\s|$)")


def symbol_line(*symbols: Symbol) -> str:
    """A card as one list entry: signature, meaning, operands, limits, example. Symbols with the
    same description share an entry."""
    first = symbols[0]
    heads = [_head(symbol) for symbol in symbols]
    lines = [f"- {', '.join(heads)} ({first.kind}): {_flat(first.meaning)}".rstrip(": ")]
    if first.operands:
        operands = "; ".join(
            f"{name}: {meaning}" if meaning else name for name, meaning in first.operands
        )
        if operands not in heads[0]:
            lines.append(f"  operands: {_flat(operands)}")
    meaning = _flat(first.meaning)
    limits = [_flat(text) for text in first.limits if _flat(text) not in meaning]
    if limits:
        lines.append(f"  limits: {' '.join(limits)}")
    if first.further:
        lines.append(f"  {_flat('; '.join(first.further))}")
    for symbol in symbols:
        if symbol.example:
            lines.append(_example(symbol.example.strip()))
    return "\n".join(lines)


def signature_line(*symbols: Symbol) -> str:
    """Cards by their signatures alone; cards without one get a brief line."""
    if not any(symbol.signature not in ("", symbol.name) for symbol in symbols):
        return brief_line(*symbols)
    return f"- {', '.join(map(_head, symbols))}"


def brief_line(*symbols: Symbol) -> str:
    """A card in one line: signature and the first sentence of its meaning."""
    first = symbols[0]
    heads = ", ".join(map(_head, symbols))
    sentence = _SENTENCE.match(_flat(first.meaning))
    meaning = (sentence[0] if sentence else _flat(first.meaning))[:BRIEF]
    return f"- {heads} ({first.kind}): {meaning}".rstrip(": ")


def _head(symbol: Symbol) -> str:
    head = symbol.signature or symbol.name
    return f"`{head}`" if symbol.name in head else f"{symbol.name}: `{head}`"


def _flat(text: str) -> str:
    return " ".join(text.split())


def _example(example: str) -> str:
    if "\n" not in example:
        return f"  example: `{example}`"
    return "  example:\n" + "\n".join(f"    {line}" for line in example.splitlines())


def symbol_blocks(symbols: Sequence[Symbol], room: int, needed: Sequence[str] = ()) -> list[Block]:
    """Fit the cards into `room` tokens: one block per document, in the given order. Every name
    takes precedence over details: a card that does not fit in full is shortened to one line and, if
    the lines of all cards do not fit, to its signature. The remaining room lengthens the lines,
    first those of the names in `needed`, in their order."""
    rank = {name: number for number, name in enumerate(needed)}

    def urgency(alike: Sequence[Symbol]) -> int:
        return min(rank.get(symbol.name, len(rank)) for symbol in alike)

    kinds = _alike(symbols)
    forms = [brief_line, symbol_line]
    if sum(count_tokens(brief_line(*alike)) + 1 for alike in kinds) > room:
        kinds = _each_name_first(sorted(kinds, key=urgency))
        forms.insert(0, signature_line)
    entries: list[tuple[list[Symbol], str]] = []
    left = room
    for alike in kinds:
        line = forms[0](*alike)
        cost = count_tokens(line) + 1
        if cost <= left:
            left -= cost
            entries.append((alike, line))
    for longer in forms[1:]:
        for n in sorted(range(len(entries)), key=lambda n: urgency(entries[n][0])):
            alike, shorter = entries[n]
            line = longer(*alike)
            more = count_tokens(line) - count_tokens(shorter)
            if more <= left:
                left -= more
                entries[n] = (alike, line)
    groups: dict[str, list[tuple[list[Symbol], str]]] = {}
    for entry in entries:
        groups.setdefault(entry[0][0].document_id, []).append(entry)
    return [_symbol_block(group) for group in groups.values()]


def _each_name_first(kinds: Sequence[list[Symbol]]) -> list[list[Symbol]]:
    """In the same order, except that further entries of names already listed come last."""
    new: list[list[Symbol]] = []
    again: list[list[Symbol]] = []
    seen: set[str] = set()
    for alike in kinds:
        names = {symbol.name for symbol in alike}
        (again if names <= seen else new).append(alike)
        seen |= names
    return [*new, *again]


def _symbol_block(entries: Sequence[tuple[list[Symbol], str]]) -> Block:
    first = entries[0][0][0]
    source = f"{first.document_title} (v{first.version}), symbols"
    text = "\n".join(line for _, line in entries)
    block = fenced("symbols", first.id, source, first.hardware, text)
    sections = dict.fromkeys(symbol.section_id for alike, _ in entries for symbol in alike)
    return replace(block, sections=tuple(sections))


def _alike(symbols: Sequence[Symbol]) -> list[list[Symbol]]:
    """Group symbols that share a description, at the position of the first."""
    groups: dict[tuple[object, ...], list[Symbol]] = {}
    for symbol in symbols:
        described = (symbol.section_id, symbol.kind, _flat(symbol.meaning), symbol.operands)
        same = (*described, symbol.limits, symbol.further) if symbol.meaning else (symbol.id,)
        groups.setdefault(same, []).append(symbol)
    return list(groups.values())


# -- the choice


def cards_by_use(codes: Sequence[str], cards: Sequence[Symbol]) -> list[Symbol]:
    """The cards of names that occur in sources, those of the most frequent names first. Of
    documents with the same name, each source takes the one of which it uses most names."""
    cards = [card for card in cards if card.kind != "error"]
    known = {card.name for card in cards}
    uses: Counter[str] = Counter()
    chosen: set[tuple[str, str]] = set()
    for code in codes:
        used = _uses(code, known)
        uses += used
        named = {(card.document_id, card.name) for card in cards if card.name in used}
        weight = Counter(document for document, _ in named)
        most = {name: max(weight[d] for d, n in named if n == name) for name in used}
        chosen |= {(d, name) for d, name in named if weight[d] == most[name]}
    rank = {name: place for place, (name, _) in enumerate(uses.most_common())}
    found = [card for card in cards if (card.document_id, card.name) in chosen]
    return sorted(found, key=lambda card: rank[card.name])


def _uses(code: str, known: Collection[str]) -> Counter[str]:
    """How often names occur in a source. Of a dotted word, such as an instruction with modifiers,
    the longest beginning that is a name counts."""
    uses = Counter(names_in(code, known))
    for word in _DOTTED.findall(code):
        while word and word not in known:
            word = word.rpartition(".")[0]
        if word:
            uses[word] += 1
    return uses


MOST_NAMES = 32
MOST_TOKENS = 1_000
COMPUTED_IN = "float32"  # type in which narrower floats are computed
# Aliases of element types that are also ordinary words.
_COMMON_WORDS = frozenset({"half", "short", "long", "single", "char", "int"})
_BYTES = frozenset({"int8", "uint8"})  # text does not distinguish signed from unsigned bytes
_WORD = re.compile(r"[A-Za-z]\w*")
_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*")


def chosen_names(
    cards: Sequence[Symbol],
    *,
    op: str | None,
    operators: Sequence[str] = (),
    dtypes: Collection[str] = (),
    lacks: Sequence[str] = (),
) -> list[Symbol]:
    """At most MOST_NAMES of these cards, in document order. The sections take turns with their best
    card, starting with sections about the operators. Without dtypes, cards of all are considered.
    """
    there = [c for c in cards if not is_lacking_name(c.name, (c.signature, *c.limits), lacks)]
    accepted = {canonical_dtype(dtype) for dtype in dtypes}
    fitting = [c for c in there if not accepted or _is_of(c, accepted)]
    words = _words([guide_words(op) if op else "", *(o.replace("_", " ") for o in operators)])
    scores = _scores(fitting, words)
    chosen = {c.id for c in islice(_in_turns(fitting, scores), MOST_NAMES)}
    return [card for card in fitting if card.id in chosen]


def _is_of(card: Symbol, dtypes: Collection[str]) -> bool:
    """Whether the card is about one of these element types, or about none in particular. The card's
    own text takes precedence over its heading."""
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
    """Names of element types in text, including plurals."""
    terms = problem_terms()
    names = {**{dtype: dtype for dtype in terms.dtypes}, **terms.dtype_aliases}
    names = {name: dtype for name, dtype in names.items() if name not in _COMMON_WORDS}
    return {**names, **{f"{name}s": dtype for name, dtype in names.items()}}


def _words(texts: Iterable[str]) -> frozenset[str]:
    return frozenset(token for text in texts for token in tokenize(text) if token not in STOP_WORDS)


def _scores(cards: Sequence[Symbol], query_words: Collection[str]) -> dict[str, float]:
    """The overlap of each card and its heading with `query_words`; rare words weigh most."""
    words = {c.id: _words([c.name, c.meaning, *c.path[-1:]]) & set(query_words) for c in cards}
    counts = Counter(word for present in words.values() for word in present)
    return {i: sum(1 / counts[word] for word in present) for i, present in words.items()}


def _in_turns(cards: Sequence[Symbol], scores: Mapping[str, float]) -> Iterable[Symbol]:
    """The best card of each section, then the second of each."""
    sections: dict[str, list[Symbol]] = {}
    for card in cards:
        sections.setdefault(card.section_id, []).append(card)
    ordered = [sorted(section, key=lambda c: -scores[c.id]) for section in sections.values()]
    ordered.sort(key=lambda section: -scores[section[0].id])  # stable, like the sorts above
    return (card for turn in zip_longest(*ordered) for card in turn if card is not None)


# -- facts of a chip that a question for a value names

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
    "width": ("wide",),
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
ON_CHIP = "on_chip_memory"  # the concept of the facts of shared memory


def named_facts(
    question: str, facts: Mapping[str, Fact], terms: Iterable[Term] = ()
) -> tuple[NamedFact, ...]:
    """The facts whose keys a question for a value names: it has all words of the key but the weak
    ones, or other words for them, as the ontology, `_SPELLED` and the `terms` of the chip's manuals
    have them. A key whose words are part of those of another one is left out: tensor memory is not
    the chip's memory."""
    if not _ASKS_FOR_VALUE.search(question):
        return ()
    for name in sorted({t.term for t in terms if t.concept == ON_CHIP}, key=len, reverse=True):
        question = re.sub(rf"(?i)\b{re.escape(name)}\b", "shared memory", question)
    words = _fact_words(question)
    found: dict[str, frozenset[str]] = {}
    for key, fact in facts.items():
        parts = _words_of_key(key) | ({"size"} if fact.unit == "B" else frozenset())
        common, strong = parts & words, parts - _WEAK
        if strong and strong <= common and common != {"memory"}:
            found[key] = common
    keys = [key for key, own in found.items() if not any(own < other for other in found.values())]
    keys.sort(key=lambda key: -len(found[key]))
    return tuple(_named(facts[key]) for key in keys[:MOST_NAMED])


@lru_cache(maxsize=4_096)
def _words_of_key(key: str) -> frozenset[str]:
    return _fact_words(key.replace("_", " "))


def _fact_words(text: str) -> frozenset[str]:
    """The words of a question or key. Memory on the chip and compute units are one word each,
    whatever their name."""
    text = _UNITS.sub(" compute_units ", _on_chip_memory().sub(" shared_memory ", text))
    words = re.findall(r"[a-z0-9_]+", _GENERATION.sub(r"\1", text).lower())
    return frozenset(_MEANINGS.get(word, word) for word in words)


@lru_cache(maxsize=1)
def _on_chip_memory() -> re.Pattern[str]:
    """The names of memory on a chip, the longest first. Abbreviations have their case."""
    concept = load_ontology().concepts[ON_CHIP]
    names = [*concept.names, *(name for own in concept.families.values() for name in own)]
    names.sort(key=len, reverse=True)
    cased = (re.escape(n) if n.isupper() else f"(?i:{re.escape(n)})" for n in names)
    return re.compile(rf"\b(?:{'|'.join(cased)})\b")


def _named(fact: Fact) -> NamedFact:
    value = fact.text if fact.number is None else readable(fact.number, fact.unit)
    source = ", ".join(filter(None, (fact.title, fact.locator)))
    origin = (fact.hardware_id, fact.kind, source, fact.url)
    return NamedFact(fact.id, fact.key, value, fact.number, fact.unit, *origin)
