"""C headers: whether a block is one, what its comments say, and the names that it defines beside
functions: macros with a value, enums with their members, structs with their fields, types and
constants. Names of libraries (`_X`), include guards and switches of a compiler are left out.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice, zip_longest

from ingestion.elements import Element
from ingestion.symbols.definitions import (
    MAX_OPERANDS,
    Definition,
    Surroundings,
    definition,
    word_set,
)
from ingestion.symbols.names import is_name
from kb.catalog.knowledge.symbols import CardKind

MAX_NAMES = 500  # of one block
MAX_CODE = 2_000_000  # characters of one block
MAX_BODY = 20_000  # of a struct or a function
MAX_STATEMENT = 500
MAX_PLAIN = 200_000  # of a block without an include guard
NEAR = 500  # characters between a comment and its name
MAX_MACRO = 160  # characters of a macro that a signature shows
LANGUAGES = frozenset(("", "c", "cpp", "c++", "h", "hpp", "cuda", "hip"))

_REMARK = re.compile(
    r"(?P<remark>//[^\n]*|/\*.*?(?:\*/|\Z))|\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'", re.S
)
_PREPROCESSOR = re.compile(r"^[ \t]*#(?:[^\n\\]|\\\n|\\.)*", re.M)
_GUARD = re.compile(r"\s*#[ \t]*ifndef[ \t]+(\w+)\s+#[ \t]*define[ \t]+\1[ \t]*(?:1[ \t]*)?\n")
_ONCE = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+once\b", re.M)
_DECLARES = re.compile(
    r"(?:typedef|struct|union|enum|class|extern|namespace|using|template|constexpr|static|const"
    r"|inline)\b|[{}]|(?:[A-Za-z_][\w:]*+[\s*&]++){1,6}[A-Za-z_]\w*+\s*"
    r"(?:\(|(?:\[[^\[\]\n]{0,80}\]\s*){0,4}(?:=|;|__attribute__))|[-+.\d]"
)
_BODY = re.compile(
    r"(?<![\w.])(?P<name>[A-Za-z_]\w*+)\s*\([^;{}]{0,1500}\)[^;(){}=\n]{0,200}\{", re.M
)
_CONTROL = word_set("if for while switch catch sizeof defined")
_BRACE = re.compile(r"[{}]")
_LOOP = re.compile(r"\b(?:for|while)\s*\(")
_ELEMENT = re.compile(r"\w\[[^\]\n]{1,120}\]\s*[-+*/|&]?=(?!=)")
_CALLED = re.compile(r"([A-Za-z_]\w*+)\s*\(")
_CALLS = 3  # different names of a manual that a function with a loop calls


def is_header(code: str, language: str) -> bool:
    """Whether a block is a C header: it has an include guard, or declares and computes nothing."""
    if language.lower() not in LANGUAGES or len(code) > MAX_CODE:
        return False
    return is_guarded(code) or (len(code) <= MAX_PLAIN and _only_declares(code))


def is_guarded(code: str) -> bool:
    """Whether a block has an include guard."""
    plain = _source(code).plain
    return bool(_ONCE.search(plain) or _GUARD.match(plain))


def _only_declares(code: str) -> bool:
    plain = _source(code).declared
    if any(match["name"] not in _CONTROL for match in _BODY.finditer(plain)):
        return False
    lines = [line for line in plain.split("\n") if line[:1].strip()]
    macros = _DEFINE.search(_source(code).plain) is not None
    return bool(lines or macros) and all(_DECLARES.match(line) for line in lines)


def computes(code: str, names: Collection[str]) -> bool:
    """Whether a function of a C block has a loop, and assigns elements or calls several of these
    names."""
    plain = _source(code).declared
    for match in _BODY.finditer(plain):
        if match["name"] in _CONTROL:
            continue
        body = plain[match.end() : _closing(plain, match.end())]
        if _LOOP.search(body):
            used = {*_CALLED.findall(body)} & {*names}
            if _ELEMENT.search(body) or len(used) >= _CALLS:
                return True
    return False


def _closing(plain: str, start: int) -> int:
    """The place of the brace that closes the one before `start`."""
    depth, end = 1, min(len(plain), start + MAX_BODY)
    for match in _BRACE.finditer(plain, start, end):
        depth += 1 if match[0] == "{" else -1
        if depth == 0:
            return match.start()
    return end


# -- comments

_LINE_MARK = re.compile(
    r"^[ \t]*(?:(?:/\*+|//+|\*+(?!/))[!<]*)?[ \t]*(?:!<?(?=[\s\\@]|$))?[ \t]*|[ \t]*\*+/[ \t]*$"
)
_COMMAND = re.compile(
    r"(?<![\w\\@`])[\\@](?P<word>brief|short|details?|note|remarks?|warning|attention|par|pre|post"
    r"|since|deprecated|todo|t?param(?:\[[\w, ]*\])?|returns?|result|retval|see|sa|file|author"
    r"|date|version|copyright|ingroup|defgroup|addtogroup|name)\b:?"
)
_INLINE = re.compile(r"(?<![\w\\@`])[\\@](?:a|p|c|e|b|em|ref)[ \t]+(?=[\w:~])")
_TOLD = word_set("brief short detail details note remark remarks warning attention par pre post")
_SAMPLE = re.compile(
    r"[\\@](code|verbatim|f\[)(?:.*?)(?:[\\@](?:endcode|endverbatim|f\])|\Z)", re.S
)
_LEGAL = re.compile(r"copyright|licen[cs]e|SPDX|[\\@]file\b", re.I)
_RULE = re.compile(r"[=*/-]{4,}")


@dataclass(frozen=True)
class Remark:
    """A comment: its prose, and what it says of parameters and results (`name: text`)."""

    meaning: str
    fields: tuple[str, ...] = ()


def remark_of(comment: str) -> Remark:
    """A comment without the marks of comments and of Doxygen."""
    lines = [_LINE_MARK.sub("", line) for line in comment.strip().split("\n")]
    prose = _INLINE.sub("", _SAMPLE.sub("", _RULE.sub("", "\n".join(lines))))
    marks = [*_COMMAND.finditer(prose)]
    meaning = [prose[: marks[0].start() if marks else len(prose)]]
    fields = []
    for mark, following in zip_longest(marks, marks[1:]):
        end = following.start() if following else len(prose)
        word, text = mark["word"].partition("[")[0], " ".join(prose[mark.end() : end].split())
        if word in _TOLD:
            meaning.append(text)
        elif word in ("param", "tparam", "retval") and " " in text:
            fields.append(": ".join(text.split(" ", 1)))
        elif word in ("return", "returns", "result") and text:
            fields.append(f"returns: {text}")
    return Remark(" ".join(" ".join(meaning).split()), tuple(fields))


@dataclass(frozen=True)
class _Source:
    """A block, `plain` without comments and `declared` also without the preprocessor's lines, at
    the same places; `starts` and `ends` are those of its comments."""

    code: str
    plain: str
    declared: str
    starts: tuple[int, ...]
    ends: tuple[int, ...]

    def about(self, start: int, end: int) -> str:
        """The comment behind what ends at `end` in the same line, or that above `start`."""
        number = bisect_right(self.starts, end - 1)
        if number < len(self.starts):
            between = self.plain[end : min(self.starts[number], end + NEAR)]
            if (
                self.starts[number] <= end + NEAR
                and "\n" not in between
                and not between.strip(" \t,;")
            ):
                return remark_of(self._text(number)).meaning
        return remark_of(self.above(start)).meaning

    def inside(self, start: int, end: int) -> str:
        """The comment between two places of one line; else that behind or above."""
        number = bisect_right(self.starts, start)
        if number < len(self.starts) and self.starts[number] < end:
            return remark_of(self._text(number)).meaning
        return self.about(start, end)

    def above(self, start: int) -> str:
        """The comment in the lines above a place, without an empty line between them."""
        number = bisect_right(self.ends, start) - 1
        lines: list[str] = []
        place = self.code.rfind("\n", 0, start) + 1
        if self.code[place:start].strip(" \t"):
            return ""
        while number >= 0 and place - self.ends[number] <= NEAR and self._is_alone(number):
            between = self.plain[self.ends[number] : place]
            between = re.sub(r"^[ \t]*#[ \t]*if[^\n]*\n", "", between, flags=re.M)
            text = self._text(number)
            if between.strip() or between.count("\n") > 1 or (lines and text[:2] == "/*"):
                break
            lines.insert(0, text)
            place = self.starts[number]
            number -= 1
            if text[:2] == "/*":
                break
        comment = "\n".join(lines)
        headed = not lines or not re.search(r"\w", lines[-1])
        return "" if headed or _LEGAL.search(comment) else comment

    def _text(self, number: int) -> str:
        return self.code[self.starts[number] : self.ends[number]]

    def _is_alone(self, number: int) -> bool:
        start = self.starts[number]
        line = self.code[self.code.rfind("\n", 0, start) + 1 : start]
        return not line.strip() and self.code[start + 2 : start + 4] not in ("/<", "!<", "*<")


@lru_cache(maxsize=4)
def _source(code: str) -> _Source:
    spans: list[tuple[int, int]] = []

    def blank(match: re.Match[str]) -> str:
        if match["remark"] is None:
            return match[0]
        spans.append(match.span())
        return _blank(match)

    plain = _REMARK.sub(blank, code)
    declared = _PREPROCESSOR.sub(_blank, plain)
    starts, ends = (tuple(span[n] for span in spans) for n in (0, 1))
    return _Source(code, plain, declared, starts, ends)


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match[0])


# -- names

_DEFINE = re.compile(
    r"^[ \t]*#[ \t]*define[ \t]+(?P<name>[A-Za-z_]\w*+)(?P<arguments>\([\w, .]*\))?"
    r"(?P<value>[ \t](?:[^\n\\]|\\\n|\\.)*+)?$",
    re.M,
)
_QUALIFIERS = re.compile(
    r"(?:\s|\b(?:inline|static|extern|const|volatile|restrict|register)\b|__\w++(?:\s*\(\([^()]{0,200}(?:\([^()]{0,200}\))?\)\))?"
    r"|\[\[[^\[\]]{0,200}\]\]|extern \"C\")*"
)
_SWITCH = re.compile(r"(?:HAVE|USE|ENABLE|DISABLE|NO|WITH|CONFIG)_\w+")
_ALIAS = re.compile(r"[a-z_]\w*")
_ENUM = re.compile(
    r"(?P<typedef>\btypedef\s+)?\benum(?P<scoped>\s+(?:class|struct))?(?:\s+(?P<name>[A-Za-z_]\w*))?"
    r"(?:\s*:\s*[A-Za-z_][\w: ]*)?\s*\{(?P<body>[^{}]*)\}"
    r"(?:\s*__attribute__\s*\(\([^;{}]{0,200}?\)\))?\s*(?P<alias>[A-Za-z_]\w*)?"
)
_MEMBER = re.compile(r"[^,()]+(?:\([^()]*(?:\([^()]*\)[^()]*)*\)[^,()]*)*")
_COUNTED = re.compile(r"(?:0[xX][0-9A-Fa-f]+|\d+)")
_STRUCT = re.compile(
    r"(?P<typedef>\btypedef\s+)?(?<!enum )\b(?P<word>struct|union|class)"
    r"(?:\s+(?:alignas\s*\([^()]*\)|__attribute__\s*\(\([^;{}]{0,200}?\)\)))*"
    r"(?:\s+(?P<name>[A-Za-z_]\w*))?(?:\s+final)?(?:\s*:(?!:)[^{};()]{0,300})?\s*\{"
)
_STRUCT_END = re.compile(
    r"\}\s*(?:__attribute__\s*\(\([^;{}]{0,200}?\)\)\s*)?(?P<alias>[A-Za-z_]\w*)?"
)
_FIELD = re.compile(
    r"\s*(?P<type>[A-Za-z_][\w:<>, \t*&]*?[\s*&>])(?P<name>[A-Za-z_]\w*)\s*"
    r"(?P<sizes>(?:\[[^\]]*\])*)(?:\s*:\s*(?P<bits>[^=:{}]+))?(?:=.*)?",
    re.S,
)
_ATTRIBUTE = re.compile(r"__attribute__\s*\(\([^;{}]{0,200}?\)\)|alignas\s*\([^()]*\)")
_TYPEDEF = re.compile(
    r"^(?:typedef\s+(?:[^;{}()]{1,200}?[\s*&](?P<name>[A-Za-z_]\w*)\s*(?:\[[^\]\n]*\])*"
    r"|[^;{}()]{1,200}\(\s*\*\s*(?P<pointer>[A-Za-z_]\w*)\s*\)\s*\([^;{}]{0,500}\))"
    r"|using\s+(?P<using>[A-Za-z_]\w*)\s*=[^;{}]{1,300});",
    re.M,
)
_CONSTANT = re.compile(
    r"^(?:(?:static|inline|extern)\s+)*(?:constexpr|const)\s+(?:static\s+)?"
    r"[A-Za-z_][\w:<> \t*]{0,80}?[\s*](?P<name>[A-Za-z_]\w*)\s*=\s*[^;{}\[\]]{1,200};",
    re.M,
)


def header_definitions(element: Element, place: Surroundings) -> Iterator[Definition]:
    """The macros, types and constants that a C header defines; of a block without an include guard
    those with a comment."""
    code, language = element.text, element.language or ""
    if not language or not is_header(code, language):
        return
    guarded, functions = is_guarded(code), _declared_functions(code)
    found = (
        replace(name, language=language)
        for name in _names_in(_source(code), place.section)
        if is_name(name.name) and not name.name.startswith("_") and name.name not in functions
    )
    yield from islice((name for name in found if guarded or name.meaning), MAX_NAMES)


def _declared_functions(code: str) -> set[str]:
    return set(re.findall(r"^[A-Za-z_][\w \t*]*?[ \t*](\w+)[ \t]*\(", _source(code).declared, re.M))


def _names_in(source: _Source, section: int) -> Iterator[Definition]:
    yield from _macros(source, section)
    yield from _enums(source, section)
    yield from _structs(source, section)
    for match in _TYPEDEF.finditer(source.declared):
        name = match["name"] or match["pointer"] or match["using"]
        meaning = source.about(match.start(), match.end())
        yield definition(name, section, "type", signature=_line(match[0]), meaning=meaning)
    for match in _CONSTANT.finditer(source.declared):
        meaning = source.about(match.start(), match.end())
        signature = _line(match[0])
        yield definition(match["name"], section, "constant", signature=signature, meaning=meaning)


def _line(code: str) -> str:
    return " ".join(code.replace("\\\n", " ").split()).rstrip(";")


def _macros(source: _Source, section: int) -> Iterator[Definition]:
    for match in _DEFINE.finditer(source.plain):
        name, value = match["name"], _line(match["value"] or "")
        if _QUALIFIERS.fullmatch(value):
            continue
        start = match.start() + len(match[0]) - len(match[0].lstrip())
        meaning = source.inside(start, match.end())
        if not meaning and (
            (_SWITCH.fullmatch(name) and value in ("0", "1"))
            or (not match["arguments"] and _ALIAS.fullmatch(value))
        ):
            continue
        head = f"{name}{match['arguments'] or ''}"
        shown = f"#define {head} {value}"
        kind: CardKind = "function" if match["arguments"] else "constant"
        signature = shown if len(shown) <= MAX_MACRO or kind == "constant" else head
        yield definition(
            name,
            section,
            kind,
            signature=signature,
            meaning=meaning,
        )


def _enums(source: _Source, section: int) -> Iterator[Definition]:
    for match in _ENUM.finditer(source.declared):
        alias = match["alias"] if match["typedef"] else None
        name = alias or match["name"] or ""
        meaning = remark_of(source.above(match.start())).meaning
        head = f"enum {name}".strip()
        for known in dict.fromkeys(filter(None, (alias, match["name"]))):
            yield definition(known, section, "type", signature=head, meaning=meaning)
        group = f"of {head}: {meaning}" if meaning else f"of {head}" if name else ""
        # Members behind a condition of the preprocessor have no certain number.
        lines = source.plain[match.start("body") : match.end("body")]
        following: int | None = None if "#" in lines else 0
        for member in _MEMBER.finditer(match["body"]):
            entry, _, value = (part.strip() for part in member[0].partition("="))
            if not entry:
                continue
            if value:
                following = int(value, 0) if _is_number(value) else None
            elif following is not None:
                value = str(following)
            following = following + 1 if following is not None else None
            start = match.start("body") + member.start()
            start += len(member[0]) - len(member[0].lstrip())
            end = match.start("body") + member.end()
            scope = f"{name}::" if match["scoped"] and name else ""
            yield definition(
                f"{scope}{entry}",
                section,
                "constant",
                signature=f"{scope}{entry} = {_line(value)}" if value else f"{scope}{entry}",
                meaning=source.inside(start, end),
                further=[group],
            )


def _is_number(value: str) -> bool:
    return bool(_COUNTED.fullmatch(value)) and not re.fullmatch(r"0\d+", value)


def _structs(source: _Source, section: int) -> Iterator[Definition]:
    declared = source.declared
    for match in islice(_STRUCT.finditer(declared), MAX_NAMES):
        close = _closing(declared, match.end())
        end = _STRUCT_END.match(declared, close)
        alias = end["alias"] if end is not None and match["typedef"] else None
        fields = (
            []
            if match["word"] == "class"
            else [*islice(_fields(source, match.end(), close), MAX_OPERANDS)]
        )
        meaning = remark_of(source.above(match.start())).meaning
        for name in dict.fromkeys(filter(None, (alias, match["name"]))):
            signature = f"typedef {match['word']} {name}" if name == alias else ""
            yield definition(
                name,
                section,
                "type",
                signature=signature or f"{match['word']} {name}",
                operands=fields,
                meaning=meaning,
            )


def _fields(source: _Source, start: int, end: int) -> Iterator[tuple[str, str]]:
    """The fields of a struct with their types and comments, without methods."""
    body = source.declared[start:end]
    body = re.sub(r"\{[^{}]*\}", _blank, body)
    body = _ATTRIBUTE.sub(_blank, body)
    end = start
    for part in body.split(";")[:-1]:
        begin, end = end, end + len(part) + 1
        if len(part) > MAX_STATEMENT:
            continue
        text = re.sub(r"^\s*(?:public|private|protected)\s*:(?!:)", _blank, part)
        match = _FIELD.fullmatch(text.rstrip())
        if match is None or "(" in text or match["type"].split()[0] in ("using", "typedef"):
            continue
        first = begin + len(text) - len(text.lstrip())
        meaning = source.inside(first, end - 1)
        written = _line(f"{match['type']}{match['sizes']}")
        if match["bits"]:
            written = f"{written} : {_line(match['bits'])}"
        yield match["name"], f"{written}; {meaning}" if meaning else written
