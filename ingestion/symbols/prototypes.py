"""Functions of a C interface that a header or a code block declares: a prototype for each, or a
macro with arguments below a comment that states its prototype.

A name with optional parts in brackets, as `svld1[_f32]`, gives the full name and the short one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ingestion.elements import Element
from ingestion.symbols.definitions import Definition, Surroundings, definition

MAX_CODE = 2_000_000  # characters of one block
MAX_PARAMETERS = 1_500
LANGUAGES = frozenset(("", "c", "cpp", "c++", "h", "hpp", "cuda", "hip"))
_DECLARED = re.compile(
    r"^[ \t]*(?P<before>[A-Za-z_][\w \t*]{0,160}?[\s*])(?P<name>[A-Za-z_]\w*(?:\[\w+\]\w*)*)"
    rf"[ \t]*\((?P<parameters>[^;{{}}()=]{{0,{MAX_PARAMETERS}}})\)(?P<after>[^;{{}}=]{{0,200}});",
    re.M,
)
_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(?P<name>[A-Za-z_]\w*)\([\w, .]*\)", re.M)
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
    alone = len(declared) == 1 and _MACRO.search(code) is None
    if alone and _REMARK.sub("", _DECLARED.sub("", code)).strip():
        declared = []  # of a kernel's own helper, not of an interface
    for match in declared:
        if match["before"].split()[0] in _STATEMENTS or not _typed(match["parameters"]):
            continue
        comment = _comment_before(code, match.start())
        signature = " ".join(match[0].split())
        for name in _names(match["name"]):
            yield _function(name, signature, match["parameters"], comment, element, place)
    for match in _MACRO.finditer(code):
        comment = _comment_before(code, match.start())
        stated = next((s for s in _STATED.finditer(comment) if s["name"] == match["name"]), None)
        if stated is not None and _typed(stated["parameters"]):
            signature = " ".join(stated[0].split())
            yield _function(match["name"], signature, stated["parameters"], comment, element, place)


def _function(
    name: str,
    signature: str,
    parameters: str,
    comment: str,
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
