"""Cards: the named parts of a chip's languages, as one document defines them.

Read from structure alone, without a model: tables of names, headings that are names, definition
lists and API signatures, list items, prototypes. Definitions of one name in several places are one
card. All texts are verbatim and bounded; the structure or the code of the document must show that a
card is a name. Knows no language and no chip.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence

from ingestion.elements import Element
from ingestion.passages import ParsedSection
from ingestion.symbols.definitions import (
    MAX_FURTHER,
    MAX_LIMIT,
    MAX_LIMITS,
    MAX_MEANING,
    Definition,
    Surroundings,
    bounded,
    cut,
    definition,
)
from ingestion.symbols.headings import (
    described_definitions,
    heading_definitions,
    labelled_definitions,
    signed_definitions,
)
from ingestion.symbols.lists import (
    error_definitions,
    introduced_definitions,
    item_definitions,
    listing_definitions,
)
from ingestion.symbols.names import is_error_code, is_type_name, looks_coded
from ingestion.symbols.tables import table_definitions
from ingestion.symbols.usage import CodeLines, bounding, limits_for
from kb.catalog.knowledge.symbols import Card, CardKind

MAX_CARDS = 2_000  # of one document
MAX_DEFINITIONS = 10_000
TITLE_LENGTH = 50  # characters; a shorter meaning is a title
_HOSTS = ("", "python", "py", "c", "cpp", "c++")  # languages that embed others


def cards_of(sections: Sequence[ParsedSection], languages: Collection[str] = ()) -> list[Card]:
    """The cards of one document, in the order of their definitions. `languages` are those of its
    hardware.
    """
    code = CodeLines(sections)
    by_name: dict[str, list[Definition]] = defaultdict(list)
    for number, found in enumerate(_definitions(sections, code)):
        if number == MAX_DEFINITIONS:
            break
        name = found.name
        if (found.sure or code.uses(name)) and name not in code.settings:
            by_name[name].append(found)
    selected = dict(sorted(by_name.items(), key=lambda item: item[1][0].section)[:MAX_CARDS])
    limits = limits_for(sections, selected.keys())
    only = next(iter(languages)) if len(languages) == 1 else ""
    cards = []
    for name, places in selected.items():
        card = _merged(places, limits.get(name, ()), code, only)
        # In a table or list of names the name is enough: it tells a real name from an invented one.
        listed = any(place.kind is not None for place in places)
        if listed or card.meaning or card.signature or card.example:
            cards.append(card)
    return cards


def _definitions(sections: Sequence[ParsedSection], code: CodeLines) -> Iterator[Definition]:
    for number, section in enumerate(sections):
        place = Surroundings(number, tuple(reversed(section.path[-3:])), code.names)
        yield from heading_definitions(sections, number, place)
        yield from labelled_definitions(section, number)
        yield from signed_definitions(section, number)
        yield from error_definitions(section, place)
        yield from _in_tables_and_code(section, place)
        yield from described_definitions(section, place)
        yield from item_definitions(section, place)
        yield from introduced_definitions(section, place)


def _in_tables_and_code(section: ParsedSection, place: Surroundings) -> Iterator[Definition]:
    before = ""
    for element in section.elements:
        if element.table is not None:
            around = (before, *place.around) if before else place.around
            here = Surroundings(place.section, around, place.in_code)
            yield from table_definitions(element.table, here)
        elif element.kind == "code":
            yield from listing_definitions(element, place)
            yield from prototype_definitions(element, place)
        before = element.text[-300:] if element.kind in ("text", "caption") else ""


def _merged(
    places: Sequence[Definition], limits: Sequence[str], code: CodeLines, only: str
) -> Card:
    """One card: the richest definition, completed by the others. `only` is the one language of the
    document, if it has one: then it replaces that of an embedding host language.
    """
    ranked = sorted(places, key=lambda place: -place.richness)
    best = ranked[0]
    example, language = code.example(best)
    language = language or next((d.language for d in ranked if d.language), "")
    stated = [limit for d in ranked for limit in d.limits]
    bounds = [sentence for d in ranked for sentence in bounding(d.meaning)]
    return Card(
        name=best.name,
        kind=_kind(best.name, ranked, code),
        signature=next((d.signature for d in ranked if d.signature), ""),
        operands=next((d.operands for d in ranked if d.operands), ()),
        meaning=_meaning(ranked),
        limits=bounded([*stated, *bounds, *limits], MAX_LIMITS, MAX_LIMIT),
        example=example,
        language=only if only and language in _HOSTS else language,
        section=best.section,
        further=bounded((f for d in ranked for f in d.further), MAX_FURTHER, MAX_LIMIT),
    )


def _meaning(ranked: Sequence[Definition]) -> str:
    """The meaning of the richest place; a title ("Exponential") gets a longer one of another."""
    meanings = [place.meaning for place in ranked if place.meaning]
    if not meanings or len(meanings[0]) >= TITLE_LENGTH:
        return meanings[0] if meanings else ""
    longer = (text for text in meanings if len(text) > len(meanings[0]) and meanings[0] not in text)
    more = next(longer, "")
    return cut(f"{meanings[0].rstrip('.')}. {more}", MAX_MEANING) if more else meanings[0]


def _kind(name: str, ranked: Sequence[Definition], code: CodeLines) -> CardKind:
    """The kind by the best place, or by the shape of the name and its use."""
    called = name in code.called or any("(" in d.signature for d in ranked)
    stated = next((d.kind for d in ranked if d.kind), None)
    if stated is not None and _fits(name, stated, called):
        return stated
    if is_error_code(name) and any("error" in d.meaning[:120].lower() for d in ranked):
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
    """The kind of a name by its shape, and by whether code calls it or begins a statement with it
    (`leading`)."""
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


# -- prototypes: functions of a C interface that a header or a code block declares
#
# A prototype for each, or a macro below a comment that states its prototype. A name with optional
# parts in brackets, as `svld1[_f32]`, gives the full name and the short one. A version that a
# condition of the preprocessor requires is a limit, unless most of the block requires it.

MAX_CODE = 2_000_000  # characters of one block
MAX_PARAMETERS = 1_500
LANGUAGES = frozenset(("", "c", "cpp", "c++", "h", "hpp", "cuda", "hip"))
_DECLARED = re.compile(
    r"^[ \t]*(?P<before>[A-Za-z_][\w \t*]{0,160}?[\s*])(?P<name>[A-Za-z_]\w*(?:\[\w+\]\w*)*)"
    rf"[ \t]*\((?P<parameters>[^;{{}}()=]{{0,{MAX_PARAMETERS}}})\)(?P<after>[^;{{}}=]{{0,200}});",
    re.M,
)
_MACRO = re.compile(
    r"^[ \t]*#[ \t]*define[ \t]+(?P<name>[A-Za-z_]\w*)(?:\([\w, .]*\)|[ \t]+\w)", re.M
)
_CONDITION = re.compile(r"^[ \t]*#[ \t]*(?P<word>if|ifn?def|el\w+|endif)\b(?P<rest>.*)$", re.M)
_VERSION = re.compile(r"\w+ *>=? *\w+")
_STATED = re.compile(
    r"(?P<type>[A-Za-z_][\w \t*]{0,80}?[\s*])(?P<name>[A-Za-z_]\w*)\((?P<parameters>[^()]{0,500})\)"
)
_COMMENT = re.compile(
    r"/\*(?P<block>(?:(?!\*/).){0,2000})\*/\s*\Z|(?P<lines>(?:[ \t]*//[^\n]*\n)+)\Z", re.S
)
_FIELD = re.compile(r"^[\s*]*(?P<label>[A-Z][A-Za-z ]{2,40}):[ \t]*(?P<value>\S[^\n]*)$", re.M)
_REMARK = re.compile(r"//[^\n]*|/\*.*?\*/|^[ \t]*#[^\n]*", re.S | re.M)
_RULE = re.compile(r"[=*/-]{4,}")
_STATEMENTS = frozenset(("return", "else", "goto", "typedef", "case", "new", "delete", "throw"))
BEFORE = 2_400  # characters before a declaration in which its comment ends


def prototype_definitions(element: Element, place: Surroundings) -> Iterator[Definition]:
    """The functions and macros that a code block declares."""
    code, language = element.text, (element.language or "").lower()
    if language not in LANGUAGES or len(code) > MAX_CODE:
        return
    declared = list(_DECLARED.finditer(code))
    called = any("(" in macro[0] for macro in _MACRO.finditer(code))
    alone = len(declared) == 1 and not called
    if alone and _REMARK.sub("", _DECLARED.sub("", code)).strip():
        declared = []  # of a kernel's own helper, not of an interface
    guards = _Guards(code)
    for match in declared:
        if match["before"].split()[0] in _STATEMENTS or not _typed(match["parameters"]):
            continue
        comment = _comment_before(code, match.start())
        signature = " ".join(match[0].split())
        limits = guards.at(match.start())
        for name in _names(match["name"]):
            yield _function(name, signature, match["parameters"], comment, limits, element, place)
    for match in _MACRO.finditer(code):
        comment = _comment_before(code, match.start())
        stated = next((s for s in _STATED.finditer(comment) if s["name"] == match["name"]), None)
        if stated is not None and _typed(stated["parameters"]):
            signature = " ".join(stated[0].split())
            limits = guards.at(match.start())
            name, parameters = match["name"], stated["parameters"]
            yield _function(name, signature, parameters, comment, limits, element, place)


class _Guards:
    """The versions that conditions of the preprocessor require, by place in the code."""

    def __init__(self, code: str) -> None:
        self._starts, self._stated = [0], [""]
        stack: list[str] = []
        for match in _CONDITION.finditer(code):
            if not match["word"].startswith("if"):
                del stack[-1:]
            if match["word"] != "endif":
                condition = match["rest"].partition("/*")[0].strip()
                known = match["word"] in ("if", "elif") and _VERSION.fullmatch(condition)
                stack.append(condition if known else "")
            self._starts.append(match.end())
            self._stated.append(next((c for c in reversed(stack) if c), ""))
        macros = Counter(self._of(m.start()) for m in _MACRO.finditer(code))
        self._usual = max(macros, key=lambda stated: macros[stated], default="")

    def at(self, place: int) -> list[str]:
        """What an entry at this place requires, if most entries do not."""
        stated = self._of(place)
        return [f"only if {stated}"] if stated and stated != self._usual else []

    def _of(self, place: int) -> str:
        return self._stated[bisect_right(self._starts, place) - 1]


def _function(
    name: str,
    signature: str,
    parameters: str,
    comment: str,
    limits: Sequence[str],
    element: Element,
    place: Surroundings,
) -> Definition:
    fields = [(f["label"].strip(), f["value"].strip()) for f in _FIELD.finditer(comment)]
    fields = [(label, value) for label, value in fields if name not in value]
    prose = " ".join(re.sub(r"^[ \t]*(?://+|\*)", "", line) for line in comment.splitlines())
    meaning = "" if fields else " ".join(_RULE.sub("", prose).split())
    return definition(
        name,
        place.section,
        "function",
        signature=signature,
        operands=_operands(parameters),
        meaning=meaning or (fields[0][1] if fields else ""),
        limits=limits,
        language=element.language or "",
        further=[f"{label}: {value}" for label, value in fields],
    )


def _names(written: str) -> list[str]:
    """The full name, and the one without its optional parts."""
    full = re.sub(r"[\[\]]", "", written)
    return list(dict.fromkeys((full, re.sub(r"\[\w+\]", "", written))))


def _typed(parameters: str) -> bool:
    """Whether each parameter has a type: arguments of a call have none."""
    parts = [part.strip() for part in parameters.split(",")]
    if parts in ([""], ["void"]):
        return True
    return all(
        re.fullmatch(r"[A-Za-z_][\w \t\n*&]*[\s*&]\w+(?:\[\w*\])?|\w+_t|\.\.\.", p) for p in parts
    )


def _operands(parameters: str) -> Iterator[tuple[str, str]]:
    for part in parameters.split(","):
        words = re.findall(r"\w+|[*&]", part)
        if len(words) > 1:
            yield words[-1], " ".join(words[:-1])


def _comment_before(code: str, end: int) -> str:
    """The comment that ends just before a place, or ""."""
    before = code[max(0, end - BEFORE) : end].rstrip(" \t\n")
    start = max(before.rfind("/*"), 0)
    match = _COMMENT.search(before[start:] if before.endswith("*/") else before + "\n")
    return (match["block"] or match["lines"] or "") if match is not None else ""
