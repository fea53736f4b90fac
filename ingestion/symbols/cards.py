"""Cards: the named parts of a chip's languages, as one document defines them.

Read from structure alone, without a model: tables of names, headings that are names, definition
lists and API signatures, list items, prototypes. The same name in several places is one card. All
texts are verbatim and bounded; nothing is a card that neither the document's structure nor its code
shows to be a name. Knows no language and no chip.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence

from ingestion.passages import ParsedSection
from ingestion.symbols.drafts import (
    MAX_FURTHER,
    MAX_LIMIT,
    MAX_LIMITS,
    MAX_MEANING,
    Draft,
    bounded,
    cut,
)
from ingestion.symbols.entries import (
    described_drafts,
    heading_drafts,
    introduced_drafts,
    item_drafts,
)
from ingestion.symbols.error_lists import error_list_drafts
from ingestion.symbols.labelled import labelled_drafts
from ingestion.symbols.listings import listing_drafts
from ingestion.symbols.names import is_error_code, is_type_name, looks_coded
from ingestion.symbols.signed import signed_drafts
from ingestion.symbols.tables import Place, table_drafts
from ingestion.symbols.usage import CodeLines, bounding, limits_for
from kb.catalog.knowledge.symbols import Card, CardKind

_HOSTS = ("python", "py", "c", "cpp", "c++")  # languages that others are written inside of
MAX_CARDS = 2_000  # of one document
MAX_DRAFTS = 10_000
TITLE_LENGTH = 50  # characters; what is shorter is a title and no sentence


def cards_of(sections: Sequence[ParsedSection], languages: Collection[str] = ()) -> list[Card]:
    """The cards of one document, in the order of their definitions. `languages` are those of the
    hardware that it is about."""
    code = CodeLines(sections)
    drafts: dict[str, list[Draft]] = defaultdict(list)
    for number, draft in enumerate(_drafts(sections, code)):
        if number == MAX_DRAFTS:
            break
        if (draft.sure or code.uses(draft.name)) and draft.name not in code.settings:
            drafts[draft.name].append(draft)
    kept = dict(sorted(drafts.items(), key=lambda item: item[1][0].section)[:MAX_CARDS])
    limits = limits_for(sections, kept.keys())
    only = next(iter(languages)) if len(languages) == 1 else ""
    return [
        card
        for name, places in kept.items()
        if (card := _merged(places, limits.get(name, ()), code, only)) and _says(card, places)
    ]


def _says(card: Card, places: Sequence[Draft]) -> bool:
    """Whether a card tells more than that the name exists; in a table or list of names that is
    enough, for it tells a real name from an invented one."""
    listed = any(draft.kind is not None for draft in places)
    return listed or bool(card.meaning or card.signature or card.example)


def _drafts(sections: Sequence[ParsedSection], code: CodeLines) -> Iterator[Draft]:
    for number, section in enumerate(sections):
        place = Place(number, tuple(reversed(section.path[-3:])), code.names)
        yield from heading_drafts(sections, number, place)
        yield from labelled_drafts(section, number)
        yield from signed_drafts(section, number)
        yield from error_list_drafts(section, place)
        yield from _element_drafts(section, place)
        yield from described_drafts(section, place)
        yield from item_drafts(section, place)
        yield from introduced_drafts(section, place)


def _element_drafts(section: ParsedSection, place: Place) -> Iterator[Draft]:
    before = ""
    for element in section.elements:
        if element.table is not None:
            around = (before, *place.around) if before else place.around
            yield from table_drafts(element.table, Place(place.section, around, place.in_code))
        elif element.kind == "code":
            yield from listing_drafts(element, place)
        before = element.text[-300:] if element.kind in ("text", "caption") else ""


def _merged(places: Sequence[Draft], bounds: Sequence[str], code: CodeLines, only: str) -> Card:
    """One card: the richest definition wins, the others fill what it leaves open."""
    ranked = sorted(places, key=lambda draft: -draft.richness)
    best = ranked[0]
    example, language = code.example(best)
    stated = [limit for draft in ranked for limit in draft.limits]
    own = [sentence for draft in ranked for sentence in bounding(draft.meaning)]
    return Card(
        name=best.name,
        kind=_kind(best.name, ranked, code),
        signature=next((d.signature for d in ranked if d.signature), ""),
        operands=next((d.operands for d in ranked if d.operands), ()),
        meaning=_meaning(ranked),
        limits=bounded([*stated, *own, *bounds], MAX_LIMITS, MAX_LIMIT),
        example=example,
        language=_spoken(language or next((d.language for d in ranked if d.language), ""), only),
        section=best.section,
        further=bounded((f for d in ranked for f in d.further), MAX_FURTHER, MAX_LIMIT),
    )


def _spoken(stated: str, only: str) -> str:
    """The language of a card; a document about one language marks its code as that of the host."""
    return only if only and stated in ("", *_HOSTS) else stated


def _meaning(ranked: Sequence[Draft]) -> str:
    """The richest place's words; a mere title ("Exponential") is followed by what another place
    says in more words."""
    meanings = [draft.meaning for draft in ranked if draft.meaning]
    if not meanings or len(meanings[0]) >= TITLE_LENGTH:
        return meanings[0] if meanings else ""
    longer = (text for text in meanings if len(text) > len(meanings[0]) and meanings[0] not in text)
    more = next(longer, "")
    return cut(f"{meanings[0].rstrip('.')}. {more}", MAX_MEANING) if more else meanings[0]


def _kind(name: str, ranked: Sequence[Draft], code: CodeLines) -> CardKind:
    """As the best place states it, or by the shape of the name and its use."""
    called = name in code.called or any("(" in draft.signature for draft in ranked)
    stated = next((draft.kind for draft in ranked if draft.kind), None)
    if stated is not None and _fits(name, stated, called):
        return stated
    if is_error_code(name) and any("error" in draft.meaning[:120].lower() for draft in ranked):
        return "error"
    return kind_by_shape(name, called, name in code.leading)


def _fits(name: str, kind: CardKind, called: bool) -> bool:
    if kind == "error":
        coded = is_error_code(name) or "_" in name or name.isupper()
        return coded or ("error" in name.lower() and looks_coded(name))
    if kind in ("type", "register"):
        return not called or is_type_name(name) or not name[-1].islower() or name[0].isupper()
    return True


def kind_by_shape(name: str, called: bool, leading: bool) -> CardKind:
    """The kind of a name by its shape, and by whether code calls it or begins statements with
    it."""
    if name[0] in ".#@":
        return "directive"
    if called:
        return "function"
    if is_type_name(name):
        return "type"
    if name.isupper() and "_" in name:
        return "constant"
    if leading or name.isupper() or (name.isalnum() and name.islower()):
        return "instruction"
    return "function" if "." in name.strip(".") or "::" in name or "_" in name else "keyword"
