"""Definitions in lists: list items, keywords that a sentence introduces, lists of error codes, and
code blocks that list names rather than use them.

A list of error codes in plain text has a line with the code and its message, then its meaning:

    K2E-0331  tag out of range
        The tag lies outside the ring. Use a smaller one.

A few codes of one form must follow each other: a single line with a number can be a part number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from ingestion.elements import Element
from ingestion.passages import ParsedSection
from ingestion.symbols.definitions import (
    MAX_MEANING,
    Definition,
    Surroundings,
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
from ingestion.symbols.headings import kind_of
from ingestion.symbols.names import (
    has_prefix,
    is_hyphened,
    is_name,
    looks_coded,
    mention_of,
    mentions_in,
    without_ticks,
)

MAX_ITEMS = 400  # of a list
MAX_ERROR_LINES = 4_000  # of a section
MAX_CODE = 20_000  # characters of a block
MAX_CODE_LINES = 400

_ITEM_HEAD = re.compile(
    r"^(.{1,200}?)(?:\s*\*\*)?\s*(?:[-\u2013\u2014]{1,3}\s+|:\s*(?:\*\*)?\s+|:\*\*\s+|\n|$)"
)
_INTRODUCED = re.compile(
    r"^(?:and |the |a )?(`{1,2}[^`]{1,80}`{1,2})"
    r"(?: (?:keyword|statement|directive|loop))? (\w{2,20}s)\b"
)
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
                yield definition(
                    mention.name,
                    place.section,
                    None if looks_coded(mention.name) else "keyword",
                    signature=mention.signature,
                    meaning=clause,
                    sure=mention.name in place.in_code,
                )


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
_COMMENT = re.compile(r"\s*(?://+|#+|;+)\s*(\S.*)$")
_DECLARED = re.compile(
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
    code = element.text[:MAX_CODE]
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
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        head, last = _balanced(lines, start)
        name = head.partition("def ")[2].partition("(")[0]
        doc, empty = _docstring([line.strip() for line in lines[last + 1 : end]])
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
    return doc, not rest or rest[0] in ("...", "pass") or rest[0].startswith("@")


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
        match = _DECLARED.match(lines[number].strip()[:300]) if depth == 0 else None
        head, end = _balanced(lines, number) if match else ("", number)
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
        comment = line.strip("/* ") if line.startswith(("//", "/*", "*")) else ""
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
