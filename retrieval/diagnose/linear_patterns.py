"""Regular expressions over the lines of a log, matched by RE2 in time linear in the line.

Patterns come from hardware teams as well as from `data/signatures.toml`, so a faulty one must not
stall the service. RE2 never backtracks, and the size of its program is bounded here: a line of
2,000 characters takes microseconds, and 160 ms with the worst pattern tested. Does not interpret
matches.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

MAX_PATTERN = 300
MIN_LITERAL = 4
MAX_PROGRAM = 3_000  # RE2 instructions; the largest built-in pattern has 2,280

# Python syntax that RE2 lacks, as patterns, with the replacement to suggest.
_INSTEAD = (
    (r"\(\?<?[=!]", "a look-around is not allowed; match the words of the line themselves"),
    (r"\\[1-9]", "a back reference is not allowed; repeat the words, or accept any with .{0,60}"),
    (r"\(\?\(", "a conditional group is not allowed; write both forms as (?:first|second)"),
    (r"\(\?>|[*+?}]\+", "an atomic or possessive repeat is not allowed; write it without > or +"),
    (r"\\Z", r"\Z is not allowed; write $ for the end of the line"),
)
_FLAGS = re.compile(r"\(\?(?!-i:)[a-zA-Z-]+[:)]")


class UnsafePattern(ValueError):
    """A pattern was refused. The message tells its author the replacement."""


@dataclass(frozen=True)
class LinePattern:
    """A compiled pattern. `groups` are the names of its groups. Every match contains at least one
    of `literals` (lower case), which are tested before the expression."""

    text: str
    groups: frozenset[str]
    literals: tuple[str, ...]
    _compiled: Any = field(repr=False, compare=False)

    def search(self, line: str) -> re.Match[str] | None:
        """The first match in a line, or None. Ignores case, except in (?-i:text)."""
        found: re.Match[str] | None = self._compiled.search(line)
        return found


_standard_library = False


def trust_patterns() -> None:
    """Compile with Python's `re` from now on, which may backtrack. For portable sessions on
    machines that have torch and no RE2: their patterns are part of the product, and RE2 compiled
    each of them in its tests."""
    global _standard_library
    _standard_library = True
    compile_linear.cache_clear()


def compile_pattern(pattern: str) -> Any:
    """Compile a pattern that ignores case. Raises UnsafePattern if RE2 refuses it."""
    if _standard_library:
        return re.compile(pattern, re.IGNORECASE)
    import re2

    options = re2.Options()
    options.case_sensitive = False
    options.log_errors = False
    try:
        compiled = re2.compile(pattern, options)
    except (re2.error, UnicodeEncodeError) as error:
        raise UnsafePattern(_explain(pattern, error)) from error
    if compiled.programsize > MAX_PROGRAM:
        raise UnsafePattern(
            f"the repeats expand to {compiled.programsize:,} steps, at most {MAX_PROGRAM:,};"
            " use smaller counts, like {0,80}, or * without a count"
        )
    return compiled


@lru_cache(maxsize=4096)
def compile_linear(pattern: str) -> LinePattern:
    """Compile a pattern for one line of a log. Raises UnsafePattern if RE2 does not know the
    syntax, the program is too large, or no literal text is certain to be in a match."""
    if not 1 <= len(pattern) <= MAX_PATTERN:
        raise UnsafePattern(f"a pattern has 1 to {MAX_PATTERN} characters")
    if "\n" in pattern:
        raise UnsafePattern("a pattern matches within one line")
    if _FLAGS.search(pattern):
        raise UnsafePattern(
            "inline flags are not allowed; matching ignores case already, (?-i:text) minds it"
        )
    compiled = compile_pattern(pattern)
    groups = frozenset(compiled.groupindex)
    return LinePattern(pattern, groups, required_literals(pattern), compiled)


def _explain(pattern: str, error: Exception) -> str:
    for construct, advice in _INSTEAD:
        if re.search(construct, pattern):
            return advice
    reason = error.args[0] if error.args else str(error)
    text = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(error)
    return (
        f"not a regular expression of RE2: {text}; https://github.com/google/re2/wiki/Syntax"
        " lists the supported syntax"
    )


# -- literal text in every match

_TOKEN = re.compile(
    r"""
      \\Q(?P<quoted>.*?)(?:\\E|\Z)
    | \\(?:x\{[0-9A-Fa-f]+\}|x[0-9A-Fa-f]{2}|[0-7]{1,3}|[pP](?:\{[^}]*\}|.))
    | \\(?P<escaped>[^0-9A-Za-z])
    | \\.
    | \[\^?\]?(?:\[:\^?\w+:\]|\\.|[^\]\\])*\]
    | (?P<open>\((?:\?(?:P?<\w+>|(?:-i)?:))?)
    | (?P<close>\))
    | (?P<bar>\|)
    | (?:(?P<optional>[*?]|\{0(?:,\d*)?\})|(?P<repeat>\+|\{\d+(?:,\d*)?\}))\??
    | [.^$]
    | (?P<plain>.)
    """,
    re.VERBOSE | re.DOTALL,
)


@lru_cache(maxsize=4096)
def required_literals(pattern: str) -> tuple[str, ...]:
    """Lower-case ASCII texts, at least one of which is in every match of a pattern that RE2
    accepts. Raises UnsafePattern if one of them is shorter than MIN_LITERAL."""
    groups = [_Group()]
    for token in _TOKEN.finditer(pattern):
        if token["open"]:
            groups.append(_Group())
        elif token["close"]:
            literals = groups.pop().literals()
            groups[-1].add_group(literals)
        else:
            groups[-1].add(token)
    literals = groups[0].literals()
    if not literals or min(len(text) for text in literals) < MIN_LITERAL:
        raise UnsafePattern(
            f"a pattern needs {MIN_LITERAL} ordinary characters in a row that every match contains"
        )
    return tuple(dict.fromkeys(literals))


class _Group:
    """Required literals of a group, collected from its tokens: a list of texts means "one of
    these"."""

    def __init__(self) -> None:
        self._branches: list[list[str]] = []
        self._required: list[list[str]] = []  # of the current branch
        self._run = ""  # consecutive literal characters
        self._last = ""  # operand of a repeat: "text", "group" or neither

    def add(self, token: re.Match[str]) -> None:
        text = token["quoted"] or token["escaped"] or token["plain"]
        # Only ASCII: the test compares lower-cased bytes, which is wrong for other letters.
        if text and text.isascii():
            self._run += text.lower()
            self._last = "text"
            return
        if token["optional"] and self._last == "text":
            self._run = self._run[:-1]
        elif token["optional"] and self._last == "group":
            self._required.pop()
        self._end_run()
        if token["bar"]:
            self._end_branch()

    def add_group(self, literals: list[str]) -> None:
        self._end_run()
        self._required.append(literals)
        self._last = "group"

    def literals(self) -> list[str]:
        """The texts of all branches; empty if one branch requires nothing."""
        self._end_run()
        self._end_branch()
        return [text for branch in self._branches for text in branch] if all(self._branches) else []

    def _end_run(self) -> None:
        if self._run:
            self._required.append([self._run])
        self._run = self._last = ""

    def _end_branch(self) -> None:
        self._branches.append(max(self._required, key=_worth, default=[]))
        self._required = []


def _worth(texts: list[str]) -> tuple[bool, int]:
    """One text is cheaper to search for than many; the longest text is the rarest."""
    shortest = min(map(len, texts), default=0)
    return len(texts) == 1 and shortest >= MIN_LITERAL, shortest
