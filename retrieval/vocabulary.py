"""Symbol cards and samples of a chip's languages: listing, search, and corrections of a card."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Le, MaxLen

from kb.catalog.knowledge import symbols
from kb.catalog.knowledge.samples import Sample
from kb.catalog.knowledge.symbols import Symbol, SymbolStatus
from kb.errors import InvalidRequest
from kb.plain import Doc
from retrieval.knowledge_base import KnowledgeBase
from retrieval.search.names import nearest_names, search_symbols
from retrieval.snapshot.lexicon import How
from retrieval.snapshot.ontology import load_ontology

MAX_LISTED = 2_000
MOST_BY_MEANING = 500  # cards compared with a query by meaning, at 6 ms each the first time


@dataclass(frozen=True)
class Symbols:
    """Cards, those that a query means best first. `nearest` are similar names of any language if no
    card fits."""

    symbols: list[Symbol]
    nearest: tuple[str, ...] = ()


@dataclass(frozen=True)
class LexiconTerm:
    """A term of a chip's manuals for a concept of the field. `how`: read from a definition,
    abbreviation, introduction or glossary, then with `quote` and section; a name of the family or
    of every manual; decided by a person. `passages` counts those of the document with the term."""

    term: str
    concept: str
    meaning: str
    how: How
    quote: str
    document_id: str
    section_id: str
    passages: int


@dataclass(frozen=True)
class Lexicon:
    """The terms in the documents about a chip; `decided` are those of its description, with the
    concept of each, empty for none; `concepts` are all concepts with their meanings."""

    hardware: str
    terms: list[LexiconTerm]
    decided: dict[str, str]
    concepts: dict[str, str]


@dataclass(frozen=True)
class Samples:
    """Whole kernels for a chip."""

    samples: list[Sample]


def list_lexicon(base: KnowledgeBase, hardware_id: str) -> Lexicon:
    """Names in the manuals of a chip for memory levels, units, queues and other concepts, with the
    defining sentence. Answers to signals use these terms."""
    spec = base.registry.get(hardware_id)
    concepts = {c.id: c.meaning for c in load_ontology().concepts.values()}
    lexicon = base.snapshots.current().lexicon([spec.id], base.access)
    terms = [
        LexiconTerm(**vars(term), meaning=concepts[term.concept], document_id=document_id)
        for document_id, term in lexicon
    ]
    return Lexicon(spec.id, terms, dict(spec.terms), concepts)


def list_symbols(
    base: KnowledgeBase,
    hardware_id: str,
    q: Annotated[str, Doc("A name, or words about it."), MaxLen(400)] = "",
    limit: Annotated[int, Doc("Most cards."), Ge(1), Le(MAX_LISTED)] = MAX_LISTED,
    status: Annotated[
        SymbolStatus, Doc("proposed, rejected: cards proposed by a language model and not accepted")
    ] = "accepted",
    language: Annotated[str, Doc("Without names of another language."), MaxLen(200)] = "",
) -> Symbols:
    """Cards of instructions, functions, directives, types, registers and error codes: signature,
    operands, limits, an example, and the section that defines them."""
    if not 1 <= limit <= MAX_LISTED:
        raise InvalidRequest(f"limit is {limit}", hint=f"Use 1 to {MAX_LISTED}.")
    lineage = base.registry.lineage(base.registry.resolve(hardware_id))
    if status == "accepted":
        cards = base.snapshots.current().symbols(lineage, access=base.access)
    else:
        with base.catalog.read() as connection:
            cards = symbols.listed(
                connection, lineage, statuses=(status,), access_scope=base.access
            )
    every = cards
    if language:
        cards = [card for card in cards if card.language in ("", language)]
    name = q.strip()
    near: tuple[str, ...] = ()
    if _CODED.fullmatch(name) and not any(_has(card, name) for card in cards):
        near = nearest_names(name, every, None)
        cards = [card for card in cards if card.name in near]
    elif name:
        embed = base.embed if base.dense_ready and len(cards) <= MOST_BY_MEANING else None
        cards = search_symbols(q, cards, embed, limit)
        near = () if cards else nearest_names(name, every, None)
    return Symbols(list(cards[:limit]), near)


# A name of code, `fmadd.s` or `vld1q`: cards of other names do not answer it by their meaning.
_CODED = re.compile(r"[A-Za-z_.%@]\S*(?:[._:]|[a-z][A-Z]|[A-Za-z]\d|\d[A-Za-z])\S*")


def _has(card: Symbol, name: str) -> bool:
    """Whether the card has the name, or a part of it from the beginning."""
    own, asked = card.name.lower(), name.lower()
    return asked in own or (len(own) > 2 and asked.startswith(own)) or asked in card.signature


def symbols_with_words(base: KnowledgeBase, words: str, limit: int) -> list[Symbol]:
    """Cards of any chip whose name has each of the words."""
    with base.catalog.read() as connection:
        return symbols.with_words(connection, words, limit, base.access)


def symbols_of_section(base: KnowledgeBase, section_id: str) -> list[Symbol]:
    """Cards of the names that a section of a document defines."""
    with base.catalog.read() as connection:
        return list(symbols.listed(connection, section=section_id, access_scope=base.access))


def show_symbol(base: KnowledgeBase, symbol_id: str) -> Symbol:
    """The card of a name. Raises NotFound."""
    with base.catalog.read() as connection:
        return symbols.get(connection, symbol_id, base.access)


def list_samples(
    base: KnowledgeBase,
    hardware_id: str,
    operator: Annotated[str, Doc("Only of this operator."), MaxLen(200)] = "",
) -> Samples:
    """Kernels that runs have verified, then those of the chip's manuals."""
    lineage = base.registry.lineage(base.registry.resolve(hardware_id))
    kernels = base.snapshots.current().kernels(lineage, base.access)
    return Samples([k for k in kernels if not operator or k.operator == operator])


def correct_symbol(
    base: KnowledgeBase,
    symbol_id: str,
    signature: Annotated[Annotated[str, MaxLen(2_000)] | None, Doc("How it is written.")] = None,
    meaning: Annotated[Annotated[str, MaxLen(4_000)] | None, Doc("What it does.")] = None,
    example: Annotated[Annotated[str, MaxLen(2_000)] | None, Doc("A line that uses it.")] = None,
    limits: Annotated[Annotated[list[str], MaxLen(50)] | None, Doc("What bounds it.")] = None,
    status: Annotated[
        Literal["accepted", "rejected"] | None,
        Doc("The decision about a card that a model has proposed."),
    ] = None,
    actor: Annotated[str, Doc("Who decides."), MaxLen(200)] = "api",
) -> Symbol:
    """The correction or decision applies to every later version of the document."""
    fix = {
        "signature": signature,
        "meaning": meaning,
        "example": example,
        "limits": limits,
        "status": status,
    }
    given = {name: value for name, value in fix.items() if value is not None}
    return symbols.correct(base.catalog, symbol_id, given, actor, access_scope=base.access)
