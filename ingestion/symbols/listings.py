"""Code blocks that list names rather than use them: prototypes, stubs, instruction syntax."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from ingestion.elements import Element
from ingestion.symbols.context import kind_in
from ingestion.symbols.drafts import (
    MAX_MEANING,
    MAX_OPERAND,
    MAX_OPERANDS,
    MAX_SIGNATURE,
    Draft,
    cut,
    word_set,
)
from ingestion.symbols.names import is_name
from ingestion.symbols.tables import Place

MAX_CODE = 20_000  # characters of a block that are read
MAX_LINES = 400

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


def listing_drafts(element: Element, place: Place) -> Iterator[Draft]:
    """What a code block declares; nothing for a block that computes."""
    code = element.text[:MAX_CODE]
    language = element.language or ""
    yield from _stubs(code, language, place)
    yield from _prototypes(code, language, place)
    yield from _instructions(code, language, place)


def _stubs(code: str, language: str, place: Place) -> Iterator[Draft]:
    """Python functions without a body, in a block that holds nothing else."""
    lines = code.split("\n")[:MAX_LINES]
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
            yield Draft(
                name,
                place.section,
                kind="function",
                signature=cut(head, MAX_SIGNATURE),
                meaning=cut(doc, MAX_MEANING),
                language=language or "python",
            )


def _docstring(body: list[str]) -> tuple[str, bool]:
    """The first line of a docstring, and whether nothing but it follows."""
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
    """The lines from `start` until its brackets are closed, as written."""
    depth = 0
    for number in range(start, min(start + 16, len(lines))):
        depth += lines[number].count("(") - lines[number].count(")")
        if depth <= 0:
            return "\n".join(lines[start : number + 1]).rstrip(), number
    return "", start


def _prototypes(code: str, language: str, place: Place) -> Iterator[Draft]:
    """Declarations without a body, in a block that holds little else."""
    lines = code.split("\n")[:MAX_LINES]
    drafts: list[Draft] = []
    others = depth = number = 0
    comment = ""
    while number < len(lines):
        line = lines[number].strip()
        match = _DECLARED.match(lines[number].strip()[:300]) if depth == 0 else None
        head, end = _balanced(lines, number) if match else ("", number)
        if match and head.endswith((";", ")")) and _declares(head, match[1]):
            drafts.append(
                Draft(
                    match[1],
                    place.section,
                    kind="function",
                    signature=cut(head, MAX_SIGNATURE),
                    meaning=cut(comment, MAX_MEANING),
                    language=language,
                )
            )
            number = end
        elif line and not line.startswith(("//", "/*", "*", "#", "template", "extern", "}")):
            others += 1
        comment = line.strip("/* ") if line.startswith(("//", "/*", "*")) else ""
        depth += line.count("{") - line.count("}")
        number += 1
    # Without semicolons only a block of nothing else is a list of prototypes.
    ended = all(draft.signature.endswith(";") for draft in drafts)
    drafts = [replace(draft, signature=draft.signature.rstrip("; ")) for draft in drafts]
    if drafts and others <= (len(drafts) if ended else 0):
        yield from drafts


def _declares(head: str, name: str) -> bool:
    """A type, a name and arguments that are types with names; not a call, not a constructor."""
    if head.split()[0] in _NO_TYPES or "=" in head.partition("(")[0] or not is_name(name):
        return False
    arguments = head.partition("(")[2].rpartition(")")[0].strip()
    if arguments in ("", "void", "..."):
        return True
    return all(
        len(part.replace("*", " * ").split()) > 1 or part.strip() == "..."
        for part in re.sub(r"<[^<>]*>|\([^()]*\)", " ", arguments).split(",")
    )


def _instructions(code: str, language: str, place: Place) -> Iterator[Draft]:
    """`MNEM operands  # meaning` on most lines, each for another mnemonic: a listing, where a
    program would repeat them."""
    lines = [line.strip() for line in code.split("\n")[:MAX_LINES]]
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
            yield Draft(
                match[1],
                place.section,
                kind="instruction",
                signature=cut(match[0][: match.start(3)].rstrip("#/; \t"), MAX_SIGNATURE),
                operands=tuple((cut(part, MAX_OPERAND), "") for part in operands[:MAX_OPERANDS]),
                meaning=cut(match[3], MAX_MEANING),
                language=language,
            )


def _shape(operands: str) -> str:
    return " ".join(operands.split())
