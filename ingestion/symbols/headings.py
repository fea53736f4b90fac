"""Definitions under a heading or line that is a name: sections of one name, terms of definition
lists, signatures of API pages.

A section of one name may have its syntax under a sub-heading, in a code block, behind a label
("Syntax: vld VR, SRC, OFFSET", as word processors and plain HTML write it), or in the first line,
which begins with the name like the heading (as documentation generators write it).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise

from ingestion.elements import Element
from ingestion.passages import ParsedSection
from ingestion.symbols.definitions import (
    KIND_WORDS,
    MAX_MEANING,
    MAX_NAME,
    MAX_OPERANDS,
    MAX_SIGNATURE,
    Definition,
    Surroundings,
    definition,
    is_foreign,
    items_of,
    kind_in,
    lists_arguments,
    opening,
    word_set,
    words_of,
)
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
from ingestion.symbols.tables import operands_of
from ingestion.symbols.usage import bounding
from kb.catalog.knowledge.symbols import CardKind

MAX_HEADING = 200
MAX_ELEMENTS = 12  # of a section that are read
MAX_FORMS = 64  # lines of a syntax

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

_PARTS = word_set(
    "syntax signature prototype usage format encoding description parameters parameter arguments "
    "argument operands operand returns return example examples constraints constraint restrictions "
    "restriction limits limitations notes note semantics details definition operation behavior "
    "behaviour attributes inputs outputs operand results result requirements availability"
)
_SYNTAX_PARTS = word_set("syntax signature prototype usage format definition assembly")
_ARTICLES = dict.fromkeys(word_set("the a an of and"))


def heading_definitions(
    sections: Sequence[ParsedSection], number: int, place: Surroundings
) -> Iterator[Definition]:
    """The definitions of a section whose heading consists of names, with its sub-sections."""
    section = sections[number]
    if section.heading is None or len(section.title) > MAX_HEADING:
        return
    if len(_labelled_lines(section)) > 1:
        return  # `CL{O/Z}.{W/D}`: the lines have the names
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
    operands = [
        operand
        for part in parts
        for operand in _parameters(part.elements, announced=lists_arguments(part.title))
    ]
    kind = kind_of(mentions[0].name, (section.title, *place.around[1:]))
    for mention in mentions[:12]:
        yield definition(
            mention.name,
            number,
            kind,
            signature=mention.signature or _stated_signature(parts, mention.name),
            operands=operands,
            meaning=opening(meaning, MAX_MEANING) or rest,
            language=next((e.language for e in elements if e.kind == "code" and e.language), ""),
            further=(f"Title: {rest}",) if rest and meaning else (),
            sure=sure,
        )


def _heading_mentions(title: str, place: Surroundings) -> tuple[list[Mention], str, bool] | None:
    """The names of a heading, the words after them, and whether the names are certain."""
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
            rest = rest or without_ticks(name_part.partition("(")[2]).removesuffix(")")
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
        return [mention], rest, error
    sure = looks_coded(mention.name) and not mention.name[0].isupper()
    return [mention], rest, sure or bool(mention.signature and "." in mention.name)


def _split_heading(text: str) -> tuple[str, str]:
    """The parts of `vadd - vector add` and `E1042: scratchpad overflow`; calls are not split."""
    bracket = text.find("(")
    dash = _DASH.search(text)
    if dash and (bracket < 0 or dash.start() < bracket or text.rfind(")") < dash.start()):
        return text[: dash.start()].strip(), text[dash.end() :].strip()
    return text, ""


def _with_parts(sections: Sequence[ParsedSection], number: int) -> list[ParsedSection]:
    """A section with the sub-sections that are parts of its description."""
    parts = [sections[number]]
    for section in sections[number + 1 : number + 13]:
        if section.level <= sections[number].level:
            break
        words = re.findall(r"[a-z]+", section.title.lower())
        if section.parent == number and any(word in _PARTS for word in words):
            parts.append(section)
    return parts


def _stated_signature(parts: Sequence[ParsedSection], name: str) -> str:
    """The code under a heading such as Syntax, the labelled syntax, or a first block that is a call
    of the name."""
    for part in parts[1:]:
        if _SYNTAX_PARTS.intersection(re.findall(r"[a-z]+", part.title.lower())):
            code = next((e.text for e in part.elements if e.kind in ("code", "text")), "")
            if name.rpartition(".")[2] in code:
                return without_ticks(code)
    if labelled := _labelled_syntax(parts[0].elements, name):
        return labelled
    first = next((e.text for e in parts[0].elements if e.kind == "code"), "")
    line = first.strip()
    if line and line.count("\n") < 12 and signature_name(line) in (name, name.rpartition(".")[2]):
        return line
    return ""


def _description(text: str) -> str:
    """A paragraph that describes, without a label such as Summary; empty for a signature, another
    field or a lead-in."""
    plain = _SAID.sub("", text, count=1).strip()
    if signature_name(plain) or plain.startswith((":", ".. ")) or plain.endswith(":"):
        return ""
    if _is_labelled(plain) or _BOLD_FIELD.match(plain):
        return ""
    words = len(plain.split())
    return plain if words > 1 and words > plain.count("\n") + 1 else ""


def kind_of(name: str, around: Sequence[str]) -> CardKind | None:
    """The kind that the words around a name tell; only names of the form of a code are errors."""
    stated = kind_in(around)
    if stated == "error":
        return "error" if is_error_code(name) or "_" in name or name.isupper() else None
    return stated


def _parameters(
    elements: Sequence[Element], *, announced: bool = False
) -> Iterator[tuple[str, str]]:
    """Operands that a section lists: fields of a docstring, rows of a parameter table, items. With
    `announced` its heading announces parameters."""
    for element in elements:
        if element.table is not None and element.table.header:
            if lists_arguments(element.table.header[0][0]):
                for row in element.table.rows[:MAX_OPERANDS]:
                    yield without_ticks(row[0]), row[-1]
        elif element.kind == "list" and announced:
            yield from _listed_parameters(items_of(element.text))
        elif element.kind == "text":
            lines = element.text.split("\n")[:MAX_OPERANDS]
            fields = [match for line in lines if (match := _FIELD.match(line.strip()[:400]))]
            yield from ((field[1], field[2]) for field in fields)
            if lines[0].strip(" :*").lower() in ("parameters", "arguments", "args", "operands"):
                yield from _listed_parameters(lines[1:])
        announced = element.kind == "text" and lists_arguments(element.text)


def _listed_parameters(items: Sequence[str]) -> Iterator[tuple[str, str]]:
    for item in items[:MAX_OPERANDS]:
        match = _PARAMETER.match(" ".join(item.split())[:400])
        if match:
            yield match[1], match[2]


def signature_name(text: str) -> str:
    """The name of a text that is exactly one signature; empty for any other text."""
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


def described_definitions(section: ParsedSection, place: Surroundings) -> Iterator[Definition]:
    """Signatures on API pages and terms of definition lists: a line that is a name or a call, with
    its description under it."""
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
            yield definition(
                mention.name.removeprefix("."),
                place.section,
                kind_of(mention.name, place.around),
                signature=signature,
                operands=_parameters(_entry(elements, number)),
                meaning=opening(_description(rest), MAX_MEANING),
                language=element.language or "",
                sure=(bool(name) and ("." in name or "_" in name)) or "`" in head,
            )


def _entry(elements: Sequence[Element], number: int) -> list[Element]:
    """An element with a signature and those after it, up to the next signature."""
    collected = [elements[number]]
    for element in elements[number + 1 : number + 8]:
        if element.kind == "text" and signature_name(_head_and_rest(element.text)[0]):
            break
        collected.append(element)
    return collected


def _head_and_rest(text: str) -> tuple[str, str]:
    """The first line, or the lines of a signature with open brackets, and the rest."""
    lines = text.split("\n")
    depth = 0
    for number, line in enumerate(lines[:12]):
        depth += line.count("(") - line.count(")")
        if depth <= 0:
            return "\n".join(lines[: number + 1]), "\n".join(lines[number + 1 :])
    return lines[0], "\n".join(lines[1:])


def _is_term(head: str, place: Surroundings) -> bool:
    """Whether a line over a description is a name rather than the start of a sentence."""
    if len(head) > MAX_HEADING or head.rstrip().endswith((":", ".")):
        return False
    if is_foreign(place.around[:2]):
        return False
    mentions = mentions_in(head, trusted=True)
    if not mentions or lists_arguments(place.around[0] if place.around else ""):
        return False
    if kind_in(place.around[:2]) is None and not all(has_prefix(m.name) for m in mentions):
        return False
    return "`" in head or all(looks_coded(m.name) or m.name in place.in_code for m in mentions)


# -- labelled syntax

_MARK = r"(?:\*{1,3}|_{1,3}|`{1,2})?"
_LABEL = re.compile(
    rf"^\s*{_MARK}(?:assembl(?:y|er)\s|instruction\s)?"
    rf"(?:syntax|formats?|usage|assembly|assembler|synopsis|mnemonic){_MARK}\s*:{_MARK}[ \t]*",
    re.I,
)
# Labels of other fields than the syntax and the description.
_OTHER = re.compile(
    rf"^\s*{_MARK}(?:latency|throughput|cycles|encoding|opcode|operands?|arguments?|flags|examples?"
    rf"|see also|since|availability|unit|pipe(?:line)?){_MARK}\s*:",
    re.I,
)
_SAID = re.compile(
    rf"^\s*{_MARK}(?:description|meaning|operation|semantics|effect|summary){_MARK}\s*:{_MARK}\s*",
    re.I,
)
# A field in bold, such as the unit that executes an instruction.
_BOLD_FIELD = re.compile(r"^\s*\*\*[A-Z][\w /-]{2,40}(?::\*\*|\*\*:)")
_LABEL_NUMBER = re.compile(r"^(?:[A-Z]?\d{1,3}\.)*[A-Z]?\d{0,3}[.:)]?\s+")
_HEAD_NAME = re.compile(r"[.@%$#]?[A-Za-z_][\w.]*")
_SENTENCE = re.compile(r"(?:\b[a-z]{2,}\s+){3}[a-z]{2,}")


def labelled_definitions(section: ParsedSection, number: int) -> Iterator[Definition]:
    """The definition of a section with a labelled syntax that has the name in its heading, or that
    is code alone, below a heading in words: "**Format:** `matmul.preload rs1, rs2`"."""
    if len(lines := _labelled_lines(section)) > 1:
        yield from _forms(section, number, lines)
        return
    headed = _heading_name(section.title)
    signature = _labelled_syntax(section.elements, headed) if headed else ""
    if not signature:
        signature = _labelled_code(section)
        headed = signature.partition(" ")[0].partition("(")[0]
    if not signature:
        return
    written = _token(signature, headed)
    rest = signature[signature.index(written) + len(written) :].strip()
    stated = kind_in((section.title, *reversed(section.path[-3:-1])))
    yield definition(
        written,
        number,
        stated or (None if rest.startswith("(") else "instruction"),
        signature=signature,
        operands=operands_of(_inside(rest)) if rest else (),
        meaning=opening(_labelled_description(section.elements), MAX_MEANING),
    )


# A line of assembly: a mnemonic, and operands with commas if any.
_LINE = re.compile(
    r"(?P<name>[A-Za-z_][\w.]{1,60})(?:\s+(?P<operands>[\w$%#\[({][\w$%#.\[\](){}+-]*"
    r"(?:,\s*[\w$%#.\[\](){}+-]+){0,7}))?"
)


def _labelled_lines(section: ParsedSection) -> list[str]:
    """The lines of the code below a label of a syntax, if each is one instruction and no name comes
    twice; else none."""
    elements = section.elements[:MAX_ELEMENTS]
    for label, code in pairwise(elements):
        bare = label.kind == "text" and _LABEL.match(label.text)
        if not bare or label.text[bare.end() :].strip(" *_") or code.kind != "code":
            continue
        lines = [" ".join(line.split()) for line in code.text.split("\n") if line.strip()]
        matches = [_LINE.fullmatch(line) for line in lines[:MAX_FORMS]]
        names = [match["name"] for match in matches if match]  # `ld.h` is no file here
        written = sum(bool(match and match["operands"]) for match in matches)
        if len(set(names)) == len(lines) and 2 * written >= len(lines):
            return lines
    return []


def _forms(section: ParsedSection, number: int, lines: Sequence[str]) -> Iterator[Definition]:
    """A definition for each line of a syntax; its meaning is the first paragraph that names it, or
    that describes the section."""
    texts = [element.text for element in section.elements if element.kind == "text"]
    usual = _labelled_description(section.elements)
    for line in lines:
        name, _, operands = line.partition(" ")
        own = (t for t in texts if _token(t, name) and len(t.split()) > 3)
        yield definition(
            name,
            number,
            "instruction",
            signature=line,
            operands=operands_of(operands.strip()),
            meaning=opening(next(own, usual), MAX_MEANING),
        )


def headings_without_card(sections: Sequence[ParsedSection], named: Collection[str]) -> list[str]:
    """Headings that are one name, look like those of instructions and gave no card. `named` are the
    names of the document's cards, in lower case.

    They look like instructions if a heading above names instructions, or if half of the headings of
    the same parent gave cards. A heading over other headings is a chapter.
    """
    parents = {section.parent for section in sections}
    siblings: dict[int | None, list[tuple[str, ParsedSection]]] = defaultdict(list)
    for number, section in enumerate(sections):
        name = _heading_name(section.title)
        shown = _LABEL_NUMBER.sub("", without_ticks(section.title).strip(), count=1)
        if number not in parents and section.heading is not None and name and shown == name:
            siblings[section.parent].append((name, section))
    missing: list[str] = []
    for headed in siblings.values():
        lost = [(name, section) for name, section in headed if name.lower() not in named]
        few = 2 * len(lost) <= len(headed)
        missing += (
            name
            for name, section in lost
            if few or kind_in(reversed(section.path[-3:-1])) == "instruction"
            if not name.istitle()
        )
    return list(dict.fromkeys(missing))


def _is_labelled(text: str) -> bool:
    """Whether a paragraph begins with the label of a syntax or another field."""
    first = items_of(text)[0]
    return bool(_LABEL.match(first) or _OTHER.match(first))


def _labelled_syntax(elements: Sequence[Element], name: str) -> str:
    """The text after a label of a syntax, if it has `name` and is no sentence; else empty."""
    for line in _behind_labels(elements[:MAX_ELEMENTS]):
        plain = " ".join(without_ticks(line).split()).rstrip(".;").strip("*_ ")
        words = plain.replace(name, "", 1)
        if _token(plain, name) and len(plain) <= MAX_SIGNATURE and not _SENTENCE.search(words):
            return plain
    return ""


_STATED = re.compile(
    r"`{1,2}(?P<name>[.@%$]?[A-Za-z_][\w.]{1,60})"
    r"(?P<rest> [\w$%#.]+(?:, ?[\w$%#.\[\]:()]+){0,7})?`{1,2}"
)


def _labelled_code(section: ParsedSection) -> str:
    """The labelled line of a section that is one instruction in code: a coded name, or a name with
    several operands. A usage of a program has words or options and is none."""
    if is_foreign((section.title, *reversed(section.path[-3:-1]))):
        return ""
    stated = dict.fromkeys(
        match[0]
        for line in _behind_labels(section.elements[:MAX_ELEMENTS])
        if (match := _STATED.fullmatch(line.rstrip(".; ")))
        and is_name(match["name"])
        and match["name"].lower() not in EMPTY_WORDS
        and (looks_coded(match["name"]) or "," in (match["rest"] or ""))
    )
    return without_ticks(next(iter(stated))) if len(stated) == 1 else ""


def _labelled_description(elements: Sequence[Element]) -> str:
    """The text after a label such as Description, else the first paragraph that describes: no
    labelled field and no lead-in."""
    texts = [element.text for element in elements[:MAX_ELEMENTS] if element.kind == "text"]
    for text in texts:
        if (said := _SAID.match(text)) and len(text[said.end() :].split()) > 1:
            return text[said.end() :]
    for number, element in enumerate(elements[:MAX_ELEMENTS]):
        if element.kind not in ("text", "list"):
            continue
        before = elements[number - 1].text if number else ""
        if _LABEL.match(before) and not _LABEL.sub("", before, count=1).strip():
            continue  # the syntax, under a label in its own paragraph
        for item in items_of(element.text):
            text = _after_label(item) if _LABEL.match(item) else item
            text = _SAID.sub("", text, count=1).strip()
            words = len(text.split()) > 1 or text.endswith(".")
            if words and not _OTHER.match(text) and not text.endswith(":"):
                return text
    return ""


def _behind_labels(elements: Sequence[Element]) -> Iterator[str]:
    """The line after each label: in its paragraph or row, or in the element after a bare label."""
    for number, element in enumerate(elements):
        if element.table is not None:
            for row in (*element.table.header, *element.table.rows):
                if len(row) > 1 and _LABEL.match(f"{row[0].rstrip(': ')}:"):
                    yield row[1]
            continue
        if element.kind == "code":
            continue
        for item in [*items_of(element.text), *element.text.split("\n")]:
            match = _LABEL.match(item)
            if match and item[match.end() :].strip(" *_"):
                yield item[match.end() :].strip().partition("\n")[0]
            elif match and number + 1 < len(elements):
                yield elements[number + 1].text.strip().partition("\n")[0]


def _after_label(item: str) -> str:
    """The lines after the labelled one in a paragraph."""
    lines = item.strip().split("\n")
    bare = not _LABEL.sub("", lines[0], count=1).strip(" *_")
    return "\n".join(lines[1 + bare :]).strip()


def _heading_name(title: str) -> str:
    """The name at the beginning of a heading, or empty."""
    text = _LABEL_NUMBER.sub("", without_ticks(title).strip(), count=1)
    match = _HEAD_NAME.match(text)
    name = match[0].rstrip(".") if match else ""
    return name if is_name(name) and name.lower() not in EMPTY_WORDS else ""


def _token(line: str, name: str) -> str:
    """The name as written in a line, in any case; empty if it is not there."""
    if len(line) > 4 * MAX_SIGNATURE or len(name) > MAX_NAME:
        return ""
    tokens = (match[0].rstrip(".") for match in _HEAD_NAME.finditer(line))
    return next((token for token in tokens if token.lower() == name.lower()), "")


def _inside(rest: str) -> str:
    """The operands of a call, between its brackets, or of an instruction."""
    if rest.startswith("(") and ")" in rest:
        return rest[1 : rest.rindex(")")]
    return rest


# -- the syntax in the first line

_DOC_FIELD = re.compile(r"^:([A-Za-z][\w ]{0,40}):[ \t]*(.{0,1000})$", re.M)
_FIRST_NAME = re.compile(r"[.@%$#]?[A-Za-z_][\w.]{0,79}")
_OPERAND_FIELDS = frozenset({"operands", "parameters", "arguments", "params", "args"})


def signed_definitions(section: ParsedSection, number: int) -> Iterator[Definition]:
    """The definition of a section whose heading and first line begin with one name."""
    texts = [e.text.strip() for e in section.elements[:MAX_ELEMENTS] if e.kind in ("text", "list")]
    signature = _first_line_signature(section, texts)
    if not signature:
        return
    name = _first_name(signature)
    prose = [text for text in texts[1:] if not text.startswith(":")]
    fields = [field for text in texts if text.startswith(":") for field in _DOC_FIELD.findall(text)]
    sentences = [sentence for text in prose for sentence in bounding(text)]
    others = [f"{key.strip()}: {value.strip()}" for key, value in fields if not _is_operands(key)]
    yield definition(
        name,
        number,
        kind_in((section.title, *reversed(section.path[-3:-1]))),
        signature=without_ticks(signature),
        operands=_operands(fields),
        meaning=" ".join(prose),
        limits=sentences,
        further=others,
    )


def _first_line_signature(section: ParsedSection, texts: Sequence[str]) -> str:
    """The line under the heading, if both begin with one name and it is no sentence."""
    if not texts or not section.title or section.elements[0].kind != "text":
        return ""
    line = texts[0].partition("\n")[0].strip()
    title = without_ticks(section.title).strip()
    name = _first_name(line)
    headed = _first_name(title)
    alone = "\n" not in texts[0] and len(line) <= MAX_SIGNATURE
    if not name or name != headed or not alone or len(name) > MAX_NAME:
        return ""
    return "" if line.endswith((".", "!", "?")) or line == title else line


def _first_name(text: str) -> str:
    match = _FIRST_NAME.match(without_ticks(text).strip())
    return match[0].rstrip(".") if match else ""


def _is_operands(key: str) -> bool:
    return key.strip().lower() in _OPERAND_FIELDS


def _operands(fields: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Pairs of an operand and its meaning, from "`a` vector (written); `b` address (read)"."""
    for key, value in fields:
        if _is_operands(key):
            for part in value.split(";"):
                operand, _, meaning = without_ticks(part.strip()).partition(" ")
                if operand:
                    yield operand, meaning.strip()
