"""Names that stand in front of their description: headings, terms of definition lists, signatures
of API pages, list items, and keywords that a sentence introduces.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ingestion.elements import Element
from ingestion.passages import ParsedSection
from ingestion.symbols.context import (
    KIND_WORDS,
    is_foreign,
    kind_in,
    lists_arguments,
    speaks_of_language,
    words_of,
)
from ingestion.symbols.drafts import (
    MAX_MEANING,
    MAX_OPERAND,
    MAX_OPERANDS,
    MAX_SIGNATURE,
    Draft,
    cut,
    word_set,
)
from ingestion.symbols.labelled import is_labelled, labelled_syntax
from ingestion.symbols.names import (
    CODE,
    EMPTY_WORDS,
    Mention,
    are_types,
    has_prefix,
    is_error_code,
    is_hyphened,
    is_name,
    is_word,
    looks_coded,
    mention_of,
    mentions_in,
    without_links,
    without_ticks,
)
from ingestion.symbols.sentences import items_of, opening, sentences_of
from ingestion.symbols.tables import Place
from kb.catalog.knowledge.symbols import CardKind

MAX_HEADING = 200

_NUMBERED = re.compile(
    r"^(?:(?:chapter|section|appendix)\s)?(?:[A-Z]?\d{1,3}\.)*[A-Z]?\d{0,3}[.:)]?\s++", re.I
)
_DASH = re.compile(r"\s+[-\u2013\u2014]{1,3}\s+|:\s+")
_SIGNATURE = re.compile(
    r"(?:[A-Za-z_][\w:]*+(?:\s?<[^<>]{0,80}>)?[\s*&]++){0,7}"
    r"[.%@!]?[A-Za-z_][\w.:]*+(?:<[^<>()]{0,80}>)?\s?\("
)
_TYPE = re.compile(r"[*&_<>:]|^(?:void|int|float|double|bool|auto|unsigned|long|char|short|half)$")
_AFTER = re.compile(
    r"\s*(?:const|noexcept|override)?(?:(?:->|\u2192|:)\s*[\w.\[\], |*:]{1,80})?:?;?\s*"
    r"(?:\[source\])?\s*[¶#]?\s*"
)
_FIELD = re.compile(r"^:(?:param|parameter|arg)\s+(?:[\w.\[\], ]{1,40}\s)?\*{0,2}(\w+):\s*(.*)$")
_PARAMETER = re.compile(
    r"^\*{0,2}`{0,2}(\w{1,40})`{0,2}\*{0,2}(?:\s?\([^()]{0,80}\))?\s*(?:[-\u2013\u2014:]+)\s+(\S.*)$"
)
_ITEM_HEAD = re.compile(
    r"^(.{1,200}?)(?:\s*\*\*)?\s*(?:[-\u2013\u2014]{1,3}\s+|:\s*(?:\*\*)?\s+|:\*\*\s+|\n|$)"
)
_INTRODUCED = re.compile(
    r"^(?:and |the |a )?(`{1,2}[^`]{1,80}`{1,2})"
    r"(?: (?:keyword|statement|directive|loop))? (\w{2,20}s)\b"
)
_CLAUSE = re.compile(r"[,;]\s+(?:and\s+)?(?=`)|\s+and\s+(?=`)")
_NO_VERBS = word_set("is was has as this its does operands arguments values types")

_PARTS = word_set(
    "syntax signature prototype usage format encoding description parameters parameter arguments "
    "argument operands operand returns return example examples constraints constraint restrictions "
    "restriction limits limitations notes note semantics details definition operation behavior "
    "behaviour attributes inputs outputs operand results result requirements availability"
)
_SYNTAX_PARTS = word_set("syntax signature prototype usage format definition assembly")
_ARTICLES = dict.fromkeys(word_set("the a an of and"))


def heading_drafts(sections: Sequence[ParsedSection], number: int, place: Place) -> Iterator[Draft]:
    """A draft for a section whose heading is a name, with what its parts say."""
    section = sections[number]
    if section.heading is None or len(section.title) > MAX_HEADING:
        return
    headed = _heading_mentions(section.title, place)
    if not headed:
        return
    mentions, rest, sure = headed
    if any(m.name.lower() in EMPTY_WORDS or is_hyphened(m.name) for m in mentions):
        return
    if all(m.name.isupper() for m in mentions) and is_foreign(place.around[1:]):
        return  # a variable of the environment, an option of a tool
    parts = _with_parts(sections, number)
    elements = [element for part in parts for element in part.elements]
    prose = [e.text for e in section.elements if e.kind in ("text", "list")]
    meaning = next((text for text in map(_description, prose) if text), "")
    operands = tuple(
        operand
        for part in parts
        for operand in _parameters(part.elements, announced=lists_arguments(part.title))
    )[:MAX_OPERANDS]
    kind = _kind(mentions[0].name, (section.title, *place.around[1:]))
    for mention in mentions[:12]:
        signature = mention.signature or _stated_signature(parts, mention.name)
        yield Draft(
            mention.name,
            number,
            kind=kind,
            signature=signature,
            operands=operands,
            meaning=cut(opening(meaning, MAX_MEANING) or rest, MAX_MEANING),
            language=next((e.language for e in elements if e.kind == "code" and e.language), ""),
            further=(f"Title: {rest}",) if rest and meaning else (),
            sure=sure,
        )


def _heading_mentions(title: str, place: Place) -> tuple[list[Mention], str, bool] | None:
    """The names of a heading, the words after them, and whether it is certain."""
    text = _NUMBERED.sub("", without_links(title), count=1).strip()
    name_part, rest = _split_heading(text)
    if "`" in name_part:
        bare = CODE.sub(" ", name_part)
        aside = text.startswith("`") and bare.strip().startswith("(")
        foreign = any(word not in KIND_WORDS | _ARTICLES for word in words_of(bare))
        if foreign and not aside:
            return None
        spans = [mention_of(span, marked=True) for span in CODE.findall(name_part)]
        names = [mention for mention in spans if mention]
        if bare.strip().startswith("("):
            names = names[:1]
        return (names, rest, True) if names else None
    words = [w for w in name_part.split() if w.lower().rstrip(":") not in KIND_WORDS]
    bare = " ".join(words)
    mention = mention_of(bare, marked=False)
    if mention is None or (mention.signature and "(" not in bare):
        names = mentions_in(bare, trusted=False) if "," in bare or "/" in bare else []
        names = [m for m in names if m.name in place.in_code and not is_word(m.name)]
        return (names, rest, False) if names else None
    called = "(" in bare and bare.partition("(")[0].strip() == mention.name
    if mention.signature and not called:
        return None
    if bare != name_part and not mention.signature and not looks_coded(mention.name):
        return None  # "Register pressure", "Type system"
    if is_error_code(mention.name):
        error = kind_in([*place.around, rest]) == "error" or "_" in mention.name
        return ([mention], rest, True) if error and not place.in_code else ([mention], rest, error)
    sure = looks_coded(mention.name) and not mention.name[0].isupper()
    return [mention], rest, sure or bool(mention.signature and "." in mention.name)


def _split_heading(text: str) -> tuple[str, str]:
    """`vadd - vector add` and `E1042: scratchpad overflow`, but nothing inside a call."""
    bracket = text.find("(")
    dash = _DASH.search(text)
    if dash and (bracket < 0 or dash.start() < bracket or text.rfind(")") < dash.start()):
        return text[: dash.start()].strip(), text[dash.end() :].strip()
    return text, ""


def _with_parts(sections: Sequence[ParsedSection], number: int) -> list[ParsedSection]:
    """A section with the sections under it that are parts of its description."""
    parts = [sections[number]]
    for section in sections[number + 1 : number + 13]:
        if section.level <= sections[number].level:
            break
        words = re.findall(r"[a-z]+", section.title.lower())
        if section.parent == number and any(word in _PARTS for word in words):
            parts.append(section)
    return parts


def _stated_signature(parts: Sequence[ParsedSection], name: str) -> str:
    """The code under a heading such as Syntax, or a first block that is a call of the name."""
    for part in parts[1:]:
        if _SYNTAX_PARTS.intersection(re.findall(r"[a-z]+", part.title.lower())):
            code = next((e.text for e in part.elements if e.kind in ("code", "text")), "")
            if name.rpartition(".")[2] in code:
                return cut(without_ticks(code), MAX_SIGNATURE)
    if labelled := labelled_syntax(parts[0].elements, name):
        return cut(labelled, MAX_SIGNATURE)
    first = next((e.text for e in parts[0].elements if e.kind == "code"), "")
    line = first.strip()
    if line and line.count("\n") < 12 and signature_name(line) in (name, name.rpartition(".")[2]):
        return cut(line, MAX_SIGNATURE)
    return ""


def _description(text: str) -> str:
    """A paragraph that describes; not a signature, a field list or a lead-in."""
    plain = text.strip()
    if signature_name(plain) or plain.startswith((":", ".. ")) or plain.endswith(":"):
        return ""
    if is_labelled(plain):
        return ""
    words = len(plain.split())
    return plain if words > 1 and words > plain.count("\n") + 1 else ""


def _kind(name: str, around: Sequence[str]) -> CardKind | None:
    stated = kind_in(around)
    if stated == "error":
        return "error" if is_error_code(name) or "_" in name or name.isupper() else None
    return stated


def _parameters(
    elements: Sequence[Element], *, announced: bool = False
) -> Iterator[tuple[str, str]]:
    """Operands that a section lists: fields of a docstring, rows of a parameter table, items.
    `announced` says that its heading does."""
    for element in elements:
        if element.table is not None and element.table.header:
            if lists_arguments(element.table.header[0][0]):
                for row in element.table.rows[:MAX_OPERANDS]:
                    yield cut(without_ticks(row[0]), MAX_OPERAND), cut(row[-1], MAX_OPERAND)
        elif element.kind == "list" and announced:
            yield from _listed_parameters(items_of(element.text))
        elif element.kind == "text":
            lines = element.text.split("\n")[:MAX_OPERANDS]
            fields = [match for line in lines if (match := _FIELD.match(line.strip()[:400]))]
            yield from ((field[1], cut(field[2], MAX_OPERAND)) for field in fields)
            if lines[0].strip(" :*").lower() in ("parameters", "arguments", "args", "operands"):
                yield from _listed_parameters(lines[1:])
        announced = element.kind == "text" and lists_arguments(element.text)


def _listed_parameters(items: Sequence[str]) -> Iterator[tuple[str, str]]:
    for item in items[:MAX_OPERANDS]:
        match = _PARAMETER.match(" ".join(item.split())[:400])
        if match:
            yield match[1], cut(match[2], MAX_OPERAND)


def signature_name(text: str) -> str:
    """The name of a text that is one signature and nothing else, or empty."""
    line = " ".join(text[:1_500].split())
    match = _SIGNATURE.match(line)
    if not match:
        return ""
    depth = 0
    for place in range(match.end() - 1, len(line)):
        depth += (line[place] in "([{") - (line[place] in ")]}")
        if depth == 0:
            *types, name = re.split(r"[\s]+|(?<=[*&])", match[0][:-1].strip())
            name = name.partition("<")[0]
            spaced = match[0][-2:-1] == " "
            if not are_types(types) or (spaced and not any(map(_TYPE.search, types))):
                return ""
            return name if _AFTER.fullmatch(line, place + 1) and is_name(name) else ""
    return ""


def described_drafts(section: ParsedSection, place: Place) -> Iterator[Draft]:
    """Signatures as API pages set them, and terms of definition lists: a line that is a name or a
    call, and its description under it."""
    elements = section.elements
    for number, element in enumerate(elements):
        if element.kind != "text":
            continue
        head, rest = _head_and_rest(element.text)
        name = signature_name(head)
        following = elements[number + 1] if number + 1 < len(elements) else None
        if not name and not (rest and _is_term(head, place)):
            continue
        mentions = [Mention(name, head, True)] if name else mentions_in(head, trusted=True)
        if not rest and following is not None and following.kind == "text":
            rest = following.text
        for mention in mentions[:12]:
            signature = without_ticks(mention.signature).removesuffix("[source]").rstrip("¶ ")
            yield Draft(
                mention.name.removeprefix("."),
                place.section,
                kind=_kind(mention.name, place.around),
                signature=cut(signature, MAX_SIGNATURE),
                operands=tuple(_parameters(_entry(elements, number)))[:MAX_OPERANDS],
                meaning=cut(opening(_description(rest), MAX_MEANING), MAX_MEANING),
                language=element.language or "",
                sure=(bool(name) and ("." in name or "_" in name)) or "`" in head,
            )


def _entry(elements: Sequence[Element], number: int) -> list[Element]:
    """An element that holds a signature and those after it, up to the next signature."""
    kept = [elements[number]]
    for element in elements[number + 1 : number + 8]:
        if element.kind == "text" and signature_name(_head_and_rest(element.text)[0]):
            break
        kept.append(element)
    return kept


def _head_and_rest(text: str) -> tuple[str, str]:
    """The first line, or the lines of a signature that was broken, and what follows."""
    lines = text.split("\n")
    depth = 0
    for number, line in enumerate(lines[:12]):
        depth += line.count("(") - line.count(")")
        if depth <= 0:
            return "\n".join(lines[: number + 1]), "\n".join(lines[number + 1 :])
    return lines[0], "\n".join(lines[1:])


def _is_term(head: str, place: Place) -> bool:
    """Whether a line over a description is a name rather than the start of a sentence."""
    if (
        len(head) > MAX_HEADING
        or head.rstrip().endswith((":", "."))
        or is_foreign(place.around[:2])
    ):
        return False
    mentions = mentions_in(head, trusted=True)
    if not mentions or lists_arguments(place.around[0] if place.around else ""):
        return False
    if kind_in(place.around[:2]) is None and not all(has_prefix(m.name) for m in mentions):
        return False
    return "`" in head or all(looks_coded(m.name) or m.name in place.in_code for m in mentions)


def item_drafts(section: ParsedSection, place: Place) -> Iterator[Draft]:
    """List items `name` - meaning, where the heading or the words before say what is listed."""
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
    """Names alone, one a line, as a summary of an API lists them."""
    lines = text.split("\n")
    return len(lines) > 1 and all(is_name(line.strip()) for line in lines[:400])


def _bare_names(text: str, place: Place) -> Iterator[Draft]:
    if is_foreign(place.around[:2]):
        return
    for line in text.split("\n")[:400]:
        name = line.strip()
        yield Draft(name, place.section, kind=_kind(name, place.around[:2]) or "function")


def _items(text: str, around: Sequence[str], place: Place) -> Iterator[Draft]:
    stated = kind_in(around[:3])
    foreign = is_foreign(around[:3])
    for item in items_of(text)[:400]:
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
            yield Draft(
                mention.name,
                place.section,
                kind=_kind(mention.name, around[:3]),
                signature=mention.signature,
                meaning=cut(opening(meaning, MAX_MEANING), MAX_MEANING),
                sure=stated is not None and (mention.marked or looks_coded(mention.name)),
            )


def introduced_drafts(section: ParsedSection, place: Place) -> Iterator[Draft]:
    """Keywords that a sentence introduces, in a section about the language: `tile` reserves ..."""
    if not speaks_of_language(place.around[:2]):
        return
    for element in section.elements:
        if element.kind not in ("text", "list") or "`" not in element.text:
            continue
        for sentence in sentences_of(element.text):
            for clause in _CLAUSE.split(sentence):
                match = _INTRODUCED.match(clause)
                mention = mention_of(match[1].strip("`"), marked=True) if match else None
                if match is None or mention is None or match[2] in _NO_VERBS:
                    continue
                yield Draft(
                    mention.name,
                    place.section,
                    kind=None if looks_coded(mention.name) else "keyword",
                    signature=mention.signature,
                    meaning=cut(clause, MAX_MEANING),
                    sure=mention.name in place.in_code,
                )
