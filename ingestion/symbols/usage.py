"""Uses of names in a document: sentences that state limits of them, and code with examples."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

from ingestion.passages import ParsedSection
from ingestion.symbols.definitions import (
    FOREIGN_FENCES,
    MAX_LIMIT,
    MAX_LIMITS,
    Definition,
    sentences_of,
    word_set,
)
from ingestion.symbols.names import EMPTY_WORDS, NAME, is_word

MAX_EXAMPLES = 4  # candidates for each name
MAX_EXAMPLE = 300  # characters
MAX_EXAMPLE_LINES = 3
MAX_LINE = 200
MAX_CODE = 200_000  # characters of all code blocks
MAX_SENTENCES = 1_000_000  # characters of all sentences

_BOUND = re.compile(
    r"\b(?:must|multiples?|aligned|alignment|at most|at least|only|cannot|can't|may not"
    r"|no more than|no less than"
    r"|maximum|minimum|exceeds?|up to|limited|not supported|not allowed|unsupported"
    r"|shall|required|requires|restricted|power of two|divisible|greater than|less than|never)\b",
    re.I,
)
_NUMBER = re.compile(r"(?<![\w.])\d[\d,.]*+(?![\w.])|\b\d+ ?(?:bytes?|bits?|KiB|KB|MB|elements?)\b")
_LIMITING = re.compile(
    r"limit|restrict|constrain|align|requirement|rules?\b|caveat|not supported", re.I
)
_FIELD = re.compile(r"^[ \t]*:[A-Za-z][^:\n]{0,40}:(?=\s).*$", re.MULTILINE)
_TICKED = re.compile(r"`{1,2}([^`\n]{1,120})`{1,2}")
_DEFINING = re.compile(
    r"\s*(?:#\s*(?:if|el|undef|define\b[^\n]*\\$)|\}\s*\w+;|[A-Z]\w+(?:\s*=[^,()]*)?,\s*(?:/[/*].*)?$"
    r"|(?:typedef\s+)?(?:struct|union|enum)\b[^;(]*\{)",
    re.M,
)
_COMMENT = re.compile(r"^\s*(?://|#(?!\w)|/\*|\*|;|--|%%)")
_BLOCK = re.compile(r"/\*.*?\*/", re.S)
_MACRO = re.compile(r"^\s*#\s*define\s+(\w+)(?:\(|\s+[A-Za-z_])")
_VALUE = re.compile(r"^(\s*#\s*define\s+)\w+\s+(?=\()", re.M)  # a macro whose value is in brackets
_IMPORT = re.compile(
    r"^\s*(?:import ([\w.]{1,80}) as (\w{1,20})"
    r"|from ([\w.]{1,80}) import (\w{1,40}) as (\w{1,20}))",
    re.MULTILINE,
)
_CALLED = re.compile(r"(?<![\w.:])([A-Za-z_][\w.:]*+)(?=(?:<[^<>\n]{0,60}>)?\s?\()")
_OPENED = re.compile(r"(?<![\w.:])([A-Za-z_][\w.:]*+)(?=[<{])")
_LEADING = re.compile(
    r"^[ \t]*+([.@%]?[A-Za-z_][\w.]*+)(?=[ \t]++[\w%$@(\[\"'#.-]|[ \t]*+;?[ \t]*+$)", re.M
)
_SETTING = re.compile(r"\b([A-Z][A-Z0-9]*+_[A-Z0-9_]++)=[\w\"'/.$]")
_PLURALS = ("s", "es")


def limits_for(
    sections: Sequence[ParsedSection], names: Collection[str]
) -> Mapping[str, list[str]]:
    """The sentences that state a limit of a name, by name; those of sections about limits first."""
    limits: dict[str, list[tuple[bool, str]]] = defaultdict(list)
    budget = MAX_SENTENCES
    for sentence, in_limits in _prose(sections):
        budget -= len(sentence)
        if budget < 0:
            break
        if _bounds(sentence):
            for name in _named_in(sentence, names, in_limits):
                limits[name].append((not in_limits, sentence))
    by_rank = {name: sorted(rows, key=lambda row: row[0]) for name, rows in limits.items()}
    return {name: [text for _, text in rows[:MAX_LIMITS]] for name, rows in by_rank.items()}


def _prose(sections: Sequence[ParsedSection]) -> Iterator[tuple[str, bool]]:
    """The sentences, and whether their section is about limits. Fields (`:Cycles: 1 to issue`) are
    no sentences; cards have them in `further`."""
    for section in sections:
        in_limits = any(_LIMITING.search(title[:200]) for title in section.path[-2:])
        for element in section.elements:
            if element.kind in ("text", "list"):
                for sentence in sentences_of(_FIELD.sub("", element.text)):
                    yield sentence, in_limits


def _bounds(sentence: str) -> bool:
    if len(sentence) > 2 * MAX_LIMIT:
        return False
    return bool(_BOUND.search(sentence) or _NUMBER.search(sentence))


def bounding(text: str) -> list[str]:
    """The sentences of a text that state a limit in words."""
    sentences = sentences_of(_FIELD.sub("", text))
    return [s for s in sentences if len(s) <= MAX_LIMIT and _BOUND.search(s)]


def _named_in(sentence: str, names: Collection[str], in_limits: bool) -> set[str]:
    """The names in a sentence: marked as code, or of a shape that words do not have. In a section
    about limits, also names that are plain words, and their plurals."""
    named: set[str] = set()
    for span in _TICKED.findall(sentence):
        named.update(token for token in _tokens(span) if token in names)
    for token in _tokens(sentence):
        if token in names and not is_word(token):
            named.add(token)
        elif in_limits and len(token) > 2 and token not in EMPTY_WORDS and token not in _COMMON:
            stems = [token, *(token.removesuffix(e) for e in _PLURALS if token.endswith(e))]
            named.update(stem for stem in stems if stem in names and len(stem) > 2)
    return named


_COMMON = word_set("for in out over plus while times one use used block row column")


def _tokens(text: str) -> Iterator[str]:
    for match in NAME.finditer(text):
        yield match[0].rstrip(".*:")


class CodeLines:
    """The code of a document: the names that it uses, and the best line to show each."""

    def __init__(self, sections: Sequence[ParsedSection]) -> None:
        self.names: set[str] = set()
        self.called: set[str] = set()  # before a bracket
        self.leading: set[str] = set()  # at the start of a statement, before operands
        self.settings: set[str] = set()  # NAME=value, as for environment variables
        self._lines: dict[str, list[tuple[int, str, str]]] = defaultdict(list)
        self._aliases: dict[str, set[str]] = defaultdict(set)
        left = MAX_CODE
        for section in sections:
            for element in section.elements:
                self.settings.update(_SETTING.findall(element.text[: MAX_LINE * 100]))
                if element.kind == "code" and left > 0:
                    if (element.language or "").lower() not in FOREIGN_FENCES:
                        self._read(element.text[:left], element.language or "")
                    left -= len(element.text)

    def _read(self, code: str, language: str) -> None:
        for match in _IMPORT.finditer(code):
            whole = match[1] or f"{match[3]}.{match[4]}"
            self._aliases[whole].add(match[2] or match[5])
        self.called.update(_CALLED.findall(_VALUE.sub(r"\1", code)))
        self.leading.update(_OPENED.findall(code))
        self.leading.update(_LEADING.findall(code))
        lines = _BLOCK.sub(lambda block: "\n" * block[0].count("\n"), code).split("\n")
        for number, line in enumerate(lines):
            if len(line) > MAX_LINE or _COMMENT.match(line):
                continue
            macro = _MACRO.match(line)
            for token in _tokens(line):
                self.names.add(token)
                if macro is not None and token == macro[1]:
                    continue  # not an example: its own definition or another name of it
                # A line with more than the name shows more.
                cost = len(line.strip()) + (400 if line.strip().rstrip(";:") == token else 0)
                best = self._lines[token]
                if len(best) < MAX_EXAMPLES or cost < best[-1][0]:
                    best.append((cost, _statement(lines, number), language))
                    best.sort(key=lambda line: line[0])
                    del best[MAX_EXAMPLES:]

    def example(self, definition: Definition) -> tuple[str, str]:
        """A line or a few that use a name, and the language of the block."""
        for name in self._forms(definition.name):
            for _, line, language in self._lines.get(name, ()):
                if not _is_signature(line, definition.signature) and not _defines(line, name):
                    return line, language
        return "", ""

    def _forms(self, name: str) -> Iterator[str]:
        """The name, and its forms by the imports of the document."""
        yield name
        module, dot, last = name.rpartition(".")
        if dot:
            for alias in sorted(self._aliases.get(module, ())):
                yield f"{alias}.{last}"

    def uses(self, name: str) -> bool:
        """Whether code calls a name or begins a statement with it."""
        return name in self.called or name in self.leading


def _is_signature(line: str, signature: str) -> bool:
    """Whether a line is only the signature, perhaps with a comment."""
    words, stated = " ".join(line.split()), " ".join(signature.split())
    return bool(stated) and (words.startswith(stated) or stated.startswith(words))


def _defines(line: str, name: str) -> bool:
    """Whether a line of C only defines a macro, a type or a member of an enum."""
    return _DEFINING.match(line) is not None and name in line


def _statement(lines: Sequence[str], number: int) -> str:
    """A line, with the next ones if its brackets are open."""
    statement = [lines[number]]
    depth = _open(lines[number])
    while depth > 0 and len(statement) < MAX_EXAMPLE_LINES and number + len(statement) < len(lines):
        statement.append(lines[number + len(statement)])
        depth += _open(statement[-1])
    if depth > 0:
        statement = statement[:1]
    return "\n".join(line.rstrip() for line in statement).strip()[:MAX_EXAMPLE]


def _open(line: str) -> int:
    return line.count("(") + line.count("[") - line.count(")") - line.count("]")
