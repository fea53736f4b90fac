"""The terms that a manual uses for concepts of the field: "SBUF" for on-chip memory.

Terms are read from the text: a definition ("SBUF is the on-chip memory of ..."), an abbreviation
with its long form, a name that a sentence introduces ("this RAM is called L1"), a row of a
glossary. A term of ordinary words is left out, because it would match everywhere. Does not know
which chip a document is about (`Knowledge`). Decisions of people are in the description of the
chip; `corrected` applies them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from kb.tokens import tokenize
from retrieval.snapshot.ontology import Ontology

How = Literal["definition", "abbreviation", "introduction", "glossary", "family", "name", "person"]
MAX_QUOTE = 240  # characters
MAX_TERMS = 40  # of one document
MAX_DEFINITION = 14  # words of a definition in which its concept is looked for
_GLOSSARY = re.compile(r"glossar|terminolog|acronym|abbreviation|definitions|\bterms\b", re.I)
_MARKS = "`*_\"' "
_NAME = r"[`*\"']{0,2}[A-Za-z][\w+./-]*(?: [A-Z0-9][\w+./-]*){0,3}[`*\"']{0,2}"
_SENTENCE = re.compile(r"(?<=[.!?:])\s+(?=[A-Z`*\"])|\n\s*(?:[-*•] +)?")
_DEFINITION = re.compile(
    rf"^(?:The|An?|Each|Every)? ?(?P<term>{_NAME})(?: \((?P<also>[^()]{{2,40}})\))?,?"
    r" (?:is|are|refers? to|denotes?|stands? for|means)"
    r" (?:called )?(?P<meaning>(?:an?|the|one|each|its|on|local|fast|software)\b.*)"
)
_BOTH = re.compile(r"(?P<long>(?:[A-Za-z][\w/-]* ){1,5})\((?P<short>[A-Z][A-Za-z0-9_-]{1,11})\)")
_CALLED = re.compile(
    r"(?P<before>.*?)(?:,|\(| is| are| also| often| commonly| usually| typically| sometimes| so-)*"
    rf" ?\b(?:called|known as|referred to as)(?: the| an?)? (?P<term>{_NAME})"
)
# A subject that refers to the previous sentence: "This RAM is called L1."
_AGAIN = re.compile(
    r"^(?:This|These|The latter) (?:memory|memories|RAM|SRAM|buffers?|storage|units?|engines?"
    r"|cores?|queues?|registers?|caches?|instructions?)$"
)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)|:\w+:`~?([^`<]*)(?:<[^`]*>)?`")
# Where the noun phrase of a definition ends: "a queue of requests for the core" is a queue.
_PHRASE_ENDS = re.compile(
    r"[.;:,(]|\b(?:that|which|for|to|used|where|when|of|in|within|inside|with"
    r"|on(?! ?-?chip)|between|from|by|at|per)\b"
)


class SectionTexts(NamedTuple):
    """Sections as they are stored: `texts` are those of its passages, in reading order."""

    id: str
    path: Sequence[str]
    texts: Sequence[str]


@dataclass(frozen=True)
class Term:
    """A term of a document for a concept. `quote` is the defining text, in section `section_id`;
    both are empty for a name of the ontology: one of every manual ("name") or of a family; and for
    a decision of a person, whose concept is empty if the term means none. `passages` counts the
    document's passages with it."""

    term: str
    concept: str
    how: How
    quote: str = ""
    section_id: str = ""
    passages: int = 0


def corrected(terms: Iterable[Term], decided: Mapping[str, str]) -> list[Term]:
    """The terms of a document after decisions: the concept of each term, "" for none."""
    known = {term.casefold() for term in decided}
    kept = [term for term in terms if term.term.casefold() not in known]
    return [*kept, *(Term(term, concept, "person") for term, concept in decided.items())]


def terms_of(sections: Iterable[SectionTexts], ontology: Ontology) -> list[Term]:
    """The terms that a document defines, in reading order; of one term the first definition."""
    found: dict[str, Term] = {}
    for section in sections:
        glossary = bool(section.path) and _GLOSSARY.search(section.path[-1]) is not None
        for text in section.texts:
            for term, concept, how, quote in _terms_in(text, glossary, ontology):
                key = term.casefold()
                if key not in found:
                    found[key] = Term(term, concept, how, quote, section.id)
        if len(found) >= MAX_TERMS:
            break
    return list(found.values())[:MAX_TERMS]


_Read = tuple[str, str, How, str]


def _terms_in(text: str, glossary: bool, ontology: Ontology) -> Iterator[_Read]:
    defines = " is " in text or " are " in text or " refers to " in text or "stands for" in text
    introduces = "called" in text or "known as" in text or "referred to" in text or "named" in text
    shortens = "(" in text
    if not (defines or introduces or shortens or glossary):
        return
    before = ""
    for sentence in _SENTENCE.split(_LINK.sub(lambda link: link[1] or link[2] or "", text)):
        quote = " ".join(sentence.split())[:MAX_QUOTE]
        if shortens and "(" in sentence:
            yield from _abbreviations(sentence, quote, ontology)
        if defines and (match := _DEFINITION.match(sentence)):
            yield from _definition(match, quote, ontology)
        if introduces and (match := _CALLED.match(sentence)):
            concept = ontology.head_of(match["before"])
            if concept is None and _AGAIN.search(match["before"]):
                concept = ontology.concept_in(before)
            yield from _named(match["term"], concept, "introduction", quote, ontology)
        if glossary and (row := _glossary_row(sentence)):
            concept = ontology.head_of(_beginning(row[1]))
            yield from _named(row[0], concept, "glossary", quote, ontology)
        before = sentence


def _abbreviations(sentence: str, quote: str, ontology: Ontology) -> Iterator[_Read]:
    for match in _BOTH.finditer(sentence):
        words = match["long"].split()
        short = match["short"]
        for count in range(len(words), 1, -1):
            long = words[-count:]
            if _shortens(short, long):
                concept = ontology.head_of(" ".join(long))
                yield from _named(short, concept, "abbreviation", quote, ontology)
                break


def _shortens(short: str, words: Sequence[str]) -> bool:
    """Whether the letters of an abbreviation are, in order, in these words, from the first one's
    initial on; the last word contributes too."""
    letters = [c for c in short.lower() if c.isalpha()]
    text, at = " ".join(words).lower(), 0
    if not letters or text[0] != letters[0] or words[-1][0].lower() not in letters:
        return False
    for letter in letters:
        at = text.find(letter, at) + 1
        if not at:
            return False
    return True


def _definition(match: re.Match[str], quote: str, ontology: Ontology) -> Iterator[_Read]:
    concept = ontology.head_of(_beginning(match["meaning"]))
    yield from _named(match["term"], concept, "definition", quote, ontology)
    if match["also"] and len(match["also"].split()) <= 2:
        yield from _named(match["also"], concept, "definition", quote, ontology)


def _beginning(text: str) -> str:
    """The noun phrase at the beginning of a definition: "the one of" and the like are skipped."""
    text = re.sub(r"^(?:one of|a (?:kind|type|set|piece|block|form) of)\b", "", text)
    return " ".join(_PHRASE_ENDS.split(text)[0].split()[:MAX_DEFINITION])


def _glossary_row(line: str) -> tuple[str, str] | None:
    """The term and its meaning, of a row of a table or an entry of a list."""
    cells = [cell.strip(_MARKS) for cell in line.strip("| ").split("|")]
    if len(cells) < 2:
        cells = [part.strip(_MARKS) for part in re.split(r":| [\u2013\u2014-] ", line, maxsplit=1)]
    if len(cells) < 2 or not 0 < len(cells[0].split()) <= 4:
        return None
    return cells[0], cells[1]


def _named(
    term: str, concept: str | None, how: How, quote: str, ontology: Ontology
) -> Iterator[_Read]:
    term = term.strip(_MARKS + ".")
    if concept is not None and _is_distinct(term) and not ontology.is_name(term, concept):
        yield term, concept, how, quote


def _is_distinct(term: str) -> bool:
    """Whether a term cannot be an ordinary word: capitals after its first letter, a digit, an
    underscore, or several capitalised words."""
    if not 2 <= len(term) <= 40 or not tokenize(term) or not any(map(str.isupper, term)):
        return False
    words = term.split()
    if len(words) > 1:
        return all(word[0].isupper() or word[0].isdigit() for word in words)
    return any(c.isupper() for c in term[1:]) or any(c.isdigit() or c == "_" for c in term)
