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
from dataclasses import dataclass, field, replace
from itertools import takewhile

from ingestion.elements import Element
from ingestion.passages import ParsedSection
from ingestion.symbols.definitions import (
    HOSTS,
    MAX_FURTHER,
    MAX_LIMIT,
    MAX_LIMITS,
    MAX_MEANING,
    Definition,
    Surroundings,
    bounded,
    cut,
    definition,
    is_foreign,
    items_of,
    kind_in,
    lists_arguments,
    message_and,
    opening,
    sentences_of,
    speaks_of_language,
    word_set,
)
from ingestion.symbols.headers import LANGUAGES, header_definitions, is_guarded, remark_of
from ingestion.symbols.headings import (
    described_definitions,
    heading_definitions,
    kind_of,
    labelled_definitions,
    signed_definitions,
)
from ingestion.symbols.names import (
    CODE,
    has_prefix,
    is_error_code,
    is_hyphened,
    is_name,
    is_type_name,
    looks_coded,
    mention_of,
    mentions_in,
    without_ticks,
)
from ingestion.symbols.tables import table_definitions
from ingestion.symbols.usage import CodeLines, bounding, limits_for
from kb.catalog.knowledge.symbols import Card, CardKind

# -- lists
#
# List items, keywords that a sentence introduces, lists of error codes, and code blocks that list
# names rather than use them. A list of error codes in plain text has a line with the code and its
# message, then its meaning. A few codes of one form must follow each other: a single line with a
# number can be a part number.

MAX_ITEMS = 400  # of a list
MAX_ERROR_LINES = 4_000  # of a section
MAX_LIST_CODE = 20_000  # characters of a block
MAX_CODE_LINES = 400

_ITEM_HEAD = re.compile(
    r"^(.{1,200}?)(?:\s*\*\*)?\s*(?:[-\u2013\u2014]{1,3}\s+|:\s*(?:\*\*)?\s+|:\*\*\s+|\n|$)"
)
_INTRODUCED = re.compile(
    r"^(?:and |the |a )?(`{1,2}[^`]{1,80}`{1,2})"
    r"(?: (?:keyword|statement|directive|loop))? (\w{2,20}s)\b"
)
# "annotated by `lib.compute` or `lib.move` decorators"
_DECORATORS = re.compile(r"(?:`@?[\w.]{1,80}`(?:,|,? (?:and|or))? ){1,4}decorators?\b")
_CLAUSE = re.compile(r"[,;]\s+(?:and\s+)?(?=`)|\s+and\s+(?=`)")
_NO_VERBS = word_set("is was has as this its does operands arguments values types")


def item_definitions(section: ParsedSection, place: Surroundings) -> Iterator[Definition]:
    """List items `name` - meaning, if the heading or the words before name the kind."""
    before = ""
    for element in section.elements:
        if element.kind == "list":
            around = (before.rpartition("\n")[2], *place.around)
            if _is_bare_list(element.text):
                yield from _bare_names(element.text, place)
            elif not lists_arguments(before or place.around[0] if place.around else before):
                yield from _items(element.text, around, place)
        before = element.text if element.kind == "text" else ""


def _is_bare_list(text: str) -> bool:
    """Whether a list is only names, one per line, such as the summary of an API."""
    lines = text.split("\n")
    return len(lines) > 1 and all(is_name(line.strip()) for line in lines[:MAX_ITEMS])


def _bare_names(text: str, place: Surroundings) -> Iterator[Definition]:
    if is_foreign(place.around[:2]):
        return
    for line in text.split("\n")[:MAX_ITEMS]:
        name = line.strip()
        yield definition(name, place.section, kind_of(name, place.around[:2]) or "function")


def _items(text: str, around: Sequence[str], place: Surroundings) -> Iterator[Definition]:
    stated = kind_in(around[:3])
    foreign = is_foreign(around[:3])
    for item in items_of(text)[:MAX_ITEMS]:
        match = _ITEM_HEAD.match(item)
        if not match:
            continue
        head = match[1].strip().strip("*").strip()
        meaning = item[match.end() :].strip()
        mentions = mentions_in(head, trusted=False)
        coded = all(has_prefix(m.name) or "(" in m.signature for m in mentions)
        if not mentions or not meaning or foreign or (stated is None and not coded):
            continue
        if any(is_hyphened(mention.name) for mention in mentions):
            continue
        for mention in mentions[:12]:
            yield definition(
                mention.name,
                place.section,
                kind_of(mention.name, around[:3]),
                signature=mention.signature,
                meaning=opening(meaning, MAX_MEANING),
                sure=stated is not None and (mention.marked or looks_coded(mention.name)),
            )


def introduced_definitions(section: ParsedSection, place: Surroundings) -> Iterator[Definition]:
    """Keywords that a sentence introduces, in a section about the language: `tile` reserves ..."""
    is_about = speaks_of_language(place.around[:2])
    for element in section.elements:
        if element.kind not in ("text", "list") or "`" not in element.text:
            continue
        for sentence in sentences_of(element.text):
            yield from _decorators(sentence, place)
            if not is_about:
                continue
            for clause in _CLAUSE.split(sentence):
                match = _INTRODUCED.match(clause)
                mention = mention_of(match[1].strip("`"), marked=True) if match else None
                if match is None or mention is None or match[2] in _NO_VERBS:
                    continue
                yield definition(
                    mention.name,
                    place.section,
                    None if looks_coded(mention.name) else "keyword",
                    signature=mention.signature,
                    meaning=clause,
                    sure=mention.name in place.in_code,
                )


def _decorators(sentence: str, place: Surroundings) -> Iterator[Definition]:
    for names in _DECORATORS.finditer(sentence):
        for name in CODE.findall(names[0]):
            if has_prefix(name) and is_name(name):
                yield definition(name.lstrip("@"), place.section, "directive", meaning=sentence)


# -- error codes

_FEWEST = 3  # codes of one form; two under a heading about errors
_ERROR_ENTRY = re.compile(
    r"^(?:[-*+\u2022]\s+)?[`*]{0,3}"
    r"(?P<code>[A-Z][A-Z0-9]{0,9}(?:[-_][A-Z]{1,8}){0,2}[-_]?\d{2,6})"
    r"[`*]{0,3}(?:[:.)]\s+|\s+[-\u2013\u2014]{1,2}\s+|\t+|[ ]{2,})[`*]{0,3}(?P<message>\S.{0,300})$"
)
_REMEDY = re.compile(
    r"^(?:remedy|fix|action|solution|resolution|cause|reason|workaround|recovery|what to do)\s*:",
    re.I,
)


@dataclass
class _ErrorEntry:
    code: str
    message: str
    lines: list[str] = field(default_factory=list)

    @property
    def form(self) -> str:
        """The part before the number: `K2E-0331` and `K2E-0407` are of one form."""
        return re.sub(r"\d+$", "", self.code)


def error_definitions(section: ParsedSection, place: Surroundings) -> Iterator[Definition]:
    """The codes of a list of errors, each with its message and the text under it."""
    entries = _error_entries(section)
    forms = [entry.form for entry in entries]
    fewest = 2 if kind_in(place.around) == "error" else _FEWEST
    for entry in entries:
        if forms.count(entry.form) < fewest:
            continue
        fields = [line for line in entry.lines if _REMEDY.match(line)]
        description = " ".join(line for line in entry.lines if line not in fields)
        meaning = message_and(entry.message, description)
        yield definition(entry.code, place.section, "error", meaning=meaning, further=fields)


def _error_entries(section: ParsedSection) -> list[_ErrorEntry]:
    """The lines that begin with a code, each with the rest of its paragraph, or the next one."""
    entries: list[_ErrorEntry] = []
    budget = MAX_ERROR_LINES
    open_entry: _ErrorEntry | None = None
    for element in section.elements:
        lines = element.text.split("\n")[:budget]
        budget -= len(lines)
        if element.table is not None or element.kind not in ("text", "list", "code"):
            open_entry = None
            continue
        began = False
        for line in lines:
            match = _ERROR_ENTRY.match(line)
            if match and is_name(match["code"]):
                message = without_ticks(match["message"].strip()).strip("*` ")
                open_entry, began = _ErrorEntry(match["code"], message), True
                entries.append(open_entry)
            elif open_entry is not None and line.strip():
                open_entry.lines.append(line.strip())
        if not began or (open_entry is not None and open_entry.lines):
            open_entry = None
    return entries


# -- code blocks: stubs, prototypes, instructions

_BESIDE_STUBS = ("@", "#", "import ", "from ", ")", "]", "class ")
_STUB = re.compile(r"^(?:async )?def ([A-Za-z_]\w*+)\(")
_OF_A_KERNEL = re.compile(r"@[\w.]*\b(?:jit|autotune|kernel)\b")  # an example, not a name
_PROTOTYPE_LINE = re.compile(
    r"^(?:(?:[A-Za-z_][\w:]*+|<[^<>]{0,80}>|\[\[[^\]]{0,40}\]\])[\s*&]++){1,8}([A-Za-z_][\w:]*+)\s?\("
)
_NO_TYPES = word_set(
    "return else new delete throw goto case if while for switch using typedef co_await"
)
_LISTED = re.compile(
    r"^([.@%]?[A-Za-z_][\w.]*+(?:<[^<>\s]{1,20}>[\w.]*+){0,4})"
    r"(?:[ \t]++([^#;]{1,160}?))?\s*(?:#|//|;)+\s*(\S.*)$"
)


def listing_definitions(element: Element, place: Surroundings) -> Iterator[Definition]:
    """The declarations of a code block; none for a block with other code."""
    code = element.text[:MAX_LIST_CODE]
    language = element.language or ""
    yield from _stubs(code, language, place)
    yield from _prototypes(code, language, place)
    yield from _instructions(code, language, place)


def _stubs(code: str, language: str, place: Surroundings) -> Iterator[Definition]:
    """Python functions without a body, in a block of nothing else."""
    lines = code.split("\n")[:MAX_CODE_LINES]
    outside = [line for line in lines if line[:1].strip() and not line.startswith(_BESIDE_STUBS)]
    starts = [n for n, line in enumerate(lines) if _STUB.match(line)]
    if not starts or len(outside) > len(starts):
        return
    before = 0
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        head, last = _balanced(lines, start)
        name = head.partition("def ")[2].partition("(")[0]
        body = takewhile(lambda line: not line.startswith("@"), lines[last + 1 : end])
        doc, empty = _docstring([line.strip() for line in body])
        empty = empty and not any(map(_OF_A_KERNEL.match, lines[before:start]))
        before = start
        typed = "->" in head or ": " in head.partition("(")[2]
        titled = any(name in title for title in place.around[:2])
        if is_name(name) and empty and (typed or titled):
            stub = language or "python"
            yield definition(
                name, place.section, "function", signature=head, meaning=doc, language=stub
            )


def _docstring(body: list[str]) -> tuple[str, bool]:
    """The first line of a docstring, and whether there is no code after it."""
    doc = ""
    rest = [line for line in body if line]
    if rest and rest[0][:3] in ('"""', "'''"):
        quote = rest[0][:3]
        doc = rest[0].strip("\"'").strip()
        closed = rest[0].count(quote) > 1
        end = 0 if closed else next((n for n, t in enumerate(rest[1:], 1) if quote in t), 0)
        doc = doc or (rest[1] if len(rest) > 1 else "")
        rest = rest[end + 1 :]
    return doc, not rest or rest[0] in ("...", "pass")


def _balanced(lines: list[str], start: int) -> tuple[str, int]:
    """The lines from `start` until its brackets are closed, and the number of the last."""
    depth = 0
    for number in range(start, min(start + 16, len(lines))):
        depth += lines[number].count("(") - lines[number].count(")")
        if depth <= 0:
            return "\n".join(lines[start : number + 1]).rstrip(), number
    return "", start


def _prototypes(code: str, language: str, place: Surroundings) -> Iterator[Definition]:
    """Declarations without a body, in a block of little else."""
    lines = code.split("\n")[:MAX_CODE_LINES]
    found: list[Definition] = []
    others = depth = number = 0
    comment = ""
    while number < len(lines):
        line = lines[number].strip()
        match = _PROTOTYPE_LINE.match(lines[number].strip()[:300]) if depth == 0 else None
        head, end = _balanced(lines, number) if match else ("", number)
        before = lines[number - 1] if number and not lines[number - 1].endswith(";") else ""
        if match and _IS_KERNEL.search(f"{before} {head}"):
            return  # the kernels of an example
        if match and head.endswith((";", ")")) and _declares(head, match[1]):
            prototype = definition(
                match[1],
                place.section,
                "function",
                signature=head,
                meaning=comment,
                language=language,
            )
            found.append(prototype)
            number = end
        elif line and not line.startswith(("//", "/*", "*", "#", "template", "extern", "}")):
            others += 1
        comment = remark_of(line).meaning if line.startswith(("//", "/*", "*")) else ""
        depth += line.count("{") - line.count("}")
        number += 1
    # A list of prototypes without semicolons has no other lines.
    ended = all(p.signature.endswith(";") for p in found)
    if others <= (len(found) if ended else 0):
        yield from (replace(p, signature=p.signature.rstrip("; ")) for p in found)


def _declares(head: str, name: str) -> bool:
    """Whether it is a type, a name and arguments with types, not a call or a constructor."""
    if head.split()[0] in _NO_TYPES or "=" in head.partition("(")[0] or not is_name(name):
        return False
    arguments = head.partition("(")[2].rpartition(")")[0].strip()
    if arguments in ("", "void", "..."):
        return True
    return all(
        len(part.replace("*", " * ").split()) > 1 or part.strip() == "..."
        for part in re.sub(r"<[^<>]*>|\([^()]*\)", " ", arguments).split(",")
    )


def _instructions(code: str, language: str, place: Surroundings) -> Iterator[Definition]:
    """`MNEM operands  # meaning` on most lines, each with another mnemonic; a program would repeat
    them."""
    lines = [line.strip() for line in code.split("\n")[:MAX_CODE_LINES]]
    lines = [line for line in lines if line and not line.startswith(("#", "//", ";"))]
    listed = [match for line in lines if (match := _LISTED.match(line[:300]))]
    names = {match[1] for match in listed}
    stated = kind_in(place.around[:3]) == "instruction"
    if len(listed) < (2 if stated else 3) or len(listed) * 5 < len(lines) * 4:
        return
    shapes = {_shape(match[2] or "") for match in listed}
    if len(names) * 5 < len(listed) * 4 or len(shapes) * 3 > len(listed) * 2:
        return
    for match in listed:
        if (
            is_name(match[1].replace("<", "_").replace(">", "_"))
            and (match[2] or "")[:1] not in "=({"
        ):
            operands = [part.strip() for part in (match[2] or "").split(",") if part.strip()]
            yield definition(
                match[1],
                place.section,
                "instruction",
                signature=match[0][: match.start(3)].rstrip("#/; \t"),
                operands=[(part, "") for part in operands],
                meaning=match[3],
                language=language,
            )


def _shape(operands: str) -> str:
    return " ".join(operands.split())


# -- cards

MAX_CARDS = 2_000  # of one document
MAX_DEFINITIONS = 10_000
TITLE_LENGTH = 50  # characters; a shorter meaning is a title


def cards_of(sections: Sequence[ParsedSection], languages: Collection[str] = ()) -> list[Card]:
    """The cards of one document, in the order of their definitions. `languages` are those of its
    hardware."""
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
    helpers = helpers_of(sections)
    for number, section in enumerate(sections):
        place = Surroundings(number, tuple(reversed(section.path[-3:])), code.names)
        yield from heading_definitions(sections, number, place)
        yield from labelled_definitions(section, number)
        yield from signed_definitions(section, number)
        yield from error_definitions(section, place)
        yield from _in_tables_and_code(section, place, helpers)
        yield from described_definitions(section, place)
        yield from item_definitions(section, place)
        yield from introduced_definitions(section, place)


def _in_tables_and_code(
    section: ParsedSection, place: Surroundings, helpers: Collection[str]
) -> Iterator[Definition]:
    before = ""
    for element in section.elements:
        if element.table is not None:
            around = (before, *place.around) if before else place.around
            here = Surroundings(place.section, around, place.in_code)
            yield from table_definitions(element.table, here)
        elif element.kind == "code":
            declared = (
                *listing_definitions(element, place),
                *prototype_definitions(element, place),
            )
            example = "{" in element.text
            for found in declared:
                own = found.kind == "function" and _PLACEHOLDER.fullmatch(found.name)
                if not own and not (example and found.name in helpers):
                    yield found
            yield from header_definitions(element, place)
        before = element.text[-300:] if element.kind in ("text", "caption") else ""


def _merged(
    places: Sequence[Definition], limits: Sequence[str], code: CodeLines, only: str
) -> Card:
    """One card: the richest definition, completed by the others. `only` is the one language of the
    document, if it has one: then it replaces that of an embedding host language."""
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
        language=only if only and language in HOSTS else language,
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
MOST_HELPERS = 8  # declarations of an example's own functions
_DECLARED = re.compile(
    r"^[ \t]*(?P<before>[A-Za-z_][\w \t*]{0,160}?[\s*])(?P<name>[A-Za-z_]\w*(?:\[\w+\]\w*)*)"
    rf"[ \t]*\((?P<parameters>[^;{{}}()=]{{0,{MAX_PARAMETERS}}})\)(?P<after>[^;{{}}=]{{0,200}});",
    re.M,
)
_MACRO = re.compile(
    r"^[ \t]*#[ \t]*define[ \t]+(?P<name>[A-Za-z_]\w*)(?:\([\w, .]*\)|[ \t]+\w)", re.M
)
_CONDITION = re.compile(r"^[ \t]*#[ \t]*(?P<word>if|ifn?def|el\w+|endif)\b(?P<rest>.*)$", re.M)
_VERSION = re.compile(r"\w+ *>=? *\w+(?: *&& *defined *\(?\w+\)?)*")
_STATED = re.compile(
    r"(?P<type>[A-Za-z_][\w \t*]{0,80}?[\s*])(?P<name>[A-Za-z_]\w*)\((?P<parameters>[^()]{0,500})\)"
)
_COMMENT = re.compile(
    r"/\*(?P<block>(?:(?!\*/).){0,2000})\*/\s*\Z|(?P<lines>(?:[ \t]*//[^\n]*\n)+)\Z", re.S
)
_FIELD = re.compile(r"^[\s*]*(?P<label>[A-Z][A-Za-z ]{2,40}):[ \t]*(?P<value>\S[^\n]*)$", re.M)
_REMARK = re.compile(r"//[^\n]*|/\*.*?\*/|^[ \t]*#[^\n]*", re.S | re.M)
_ONLY_IF = re.compile(r"\bonly if\b[^\n]*", re.I)
_PLACEHOLDER = re.compile(r"[a-z]\d*")  # the name of an example's function
_IS_KERNEL = re.compile(r"__global__|\b__kernel\b")  # of an example
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
    shared, end = "", 0  # a condition above declarations without an empty line between them
    for match in declared:
        if match["before"].split()[0] in _STATEMENTS or not _typed(match["parameters"]):
            continue
        lines = re.split(r"[;{}]", code[max(0, match.start() - BEFORE) : match.start("name")])
        if _IS_KERNEL.search(lines[-1]):
            continue
        comment = _comment_before(code, match.start())
        if comment or re.search(r"\n[ \t]*\n", code[end : match.start()]):
            stated = _ONLY_IF.search(comment)
            shared = " ".join(stated[0].split()) if stated else ""
        end = match.end()
        signature = " ".join(match[0].split())
        limits = [*guards.at(match.start()), *filter(None, ["" if comment else shared])]
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


def helpers_of(sections: Sequence[ParsedSection]) -> set[str]:
    """Names that an example of a document declares and uses."""
    found: set[str] = set()
    for element in (element for section in sections for element in section.elements):
        code, language = element.text, (element.language or "").lower()
        if element.kind == "code" and language in LANGUAGES and len(code) <= MAX_CODE:
            declared = [] if is_guarded(code) else list(_DECLARED.finditer(code))
            if declared and len(declared) <= MOST_HELPERS and "{" in code:
                used = set(re.findall(r"\w+", _REMARK.sub("", _DECLARED.sub("", code))))
                found |= {match["name"] for match in declared if match["name"] in used}
    return found


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
    remark = remark_of(comment)
    meaning = "" if fields else remark.meaning
    return definition(
        name,
        place.section,
        "function",
        signature=signature,
        operands=_operands(parameters),
        meaning=meaning or (fields[0][1] if fields else ""),
        limits=limits,
        language=element.language or "",
        further=[*(f"{label}: {value}" for label, value in fields), *remark.fields],
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
