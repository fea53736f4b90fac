"""Regular expressions that are safe to run over logs: bounded, literal-anchored, nearly linear.

Patterns come from hardware teams, so that an accident must not stop the service. A pattern is
parsed with Python's own parser and refused when it could backtrack out of proportion. Knows nothing
about what a match means.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

MAX_PATTERN = 300
MIN_LITERAL = 4
# An unbounded repeat may take a whole line: one such and one short bounded one is the most allowed.
LINE = 2_000
MAX_WAYS = 30 * LINE

_parse: Any = re._parser.parse  # type: ignore[attr-defined]
_FORBIDDEN = {
    "GROUPREF": "a back reference",
    "GROUPREF_EXISTS": "a conditional group",
    "ASSERT": "a look-around",
    "ASSERT_NOT": "a look-around",
}
_REPEATS = ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT")


class UnsafePattern(ValueError):
    """Why a pattern was refused, in words for its author."""


@lru_cache(maxsize=4096)
def compile_linear(pattern: str) -> re.Pattern[str]:
    """Compile a pattern for one line of log, case-insensitive; UnsafePattern if it is not safe."""
    if not 1 <= len(pattern) <= MAX_PATTERN:
        raise UnsafePattern(f"a pattern has 1 to {MAX_PATTERN} characters")
    if "\n" in pattern:
        raise UnsafePattern("a pattern matches within one line")
    try:
        tree = _parse(pattern)
        compiled = re.compile(pattern, re.IGNORECASE)
    except (re.error, OverflowError, RecursionError) as problem:
        raise UnsafePattern(f"not a regular expression: {problem}") from problem
    if tree.state.flags & ~re.UNICODE:
        raise UnsafePattern("inline flags are not allowed; matching ignores case already")
    if _ways(list(tree)) > MAX_WAYS:
        raise UnsafePattern("several wildcards in a row backtrack too long; use literals or {0,20}")
    required_literals(pattern)
    return compiled


@lru_cache(maxsize=4096)
def required_literals(pattern: str) -> tuple[str, ...]:
    """Lower-case texts of which at least one is in every match; the cheap test before the regex."""
    found = _literals(list(_parse(pattern)))
    if not found or min(len(text) for text in found) < MIN_LITERAL:
        raise UnsafePattern(
            f"a pattern needs {MIN_LITERAL} ordinary characters in a row that every match contains"
        )
    return tuple(dict.fromkeys(found))


def _ways(items: Sequence[Any], inside_repeat: bool = False) -> int:
    """How many ways there are, at most, to place the ambiguous repeats of a sequence on a line."""
    ways = 1
    for position, (op, argument) in enumerate(items):
        name = str(op)
        if name in _FORBIDDEN:
            raise UnsafePattern(f"{_FORBIDDEN[name]} is not allowed")
        if name in _REPEATS:
            low, high, body = argument
            if high > 1 and inside_repeat:
                raise UnsafePattern("a repeat inside a repeat is not allowed")
            ways *= _ways(list(body), inside_repeat or high > 1)
            if high > low and _ambiguous(list(body), items[position + 1 :]):
                ways *= min(int(high), LINE) - low + 1
        elif name == "SUBPATTERN":
            ways *= _ways(list(argument[3]), inside_repeat)
        elif name == "ATOMIC_GROUP":
            ways *= _ways(list(argument), inside_repeat)
        elif name == "BRANCH":
            ways *= sum(_ways(list(branch), inside_repeat) for branch in argument[1])
    return ways


def _ambiguous(body: list[Any], following: Sequence[Any]) -> bool:
    """Can the repeat also take what follows it? If not, where it stops is determined."""
    if len(body) != 1 or not following:
        return bool(following)
    op, argument = following[0]
    if str(op) != "LITERAL":
        return True
    single, options = body[0]
    character = chr(argument)
    if str(single) == "LITERAL":
        return chr(options).lower() == character.lower()
    if str(single) == "IN":
        return _in_set(options, character)
    return True


def _in_set(options: Sequence[Any], character: str) -> bool:
    negated = any(str(op) == "NEGATE" for op, _ in options)
    categories = {
        "CATEGORY_DIGIT": character.isdigit(),
        "CATEGORY_SPACE": character.isspace(),
        "CATEGORY_WORD": character.isalnum() or character == "_",
        "CATEGORY_NOT_DIGIT": not character.isdigit(),
        "CATEGORY_NOT_SPACE": not character.isspace(),
        "CATEGORY_NOT_WORD": not (character.isalnum() or character == "_"),
    }
    code, found = {ord(character.lower()), ord(character.upper()[0])}, False
    for op, argument in options:
        name = str(op)
        if name == "LITERAL":
            found |= argument in code
        elif name == "RANGE":
            found |= any(argument[0] <= c <= argument[1] for c in code)
        elif name == "CATEGORY":
            found |= categories.get(str(argument), True)
    return found != negated


def _literals(items: Sequence[Any]) -> list[str]:
    """The best required text of a sequence: the longest run of literals, or one a branch."""
    candidates: list[list[str]] = []
    run = ""
    for op, argument in items:
        name = str(op)
        # Only ASCII: the cheap test compares bytes, in which other letters have no simple case.
        if name == "LITERAL" and argument < 128:
            run += chr(argument).lower()
            continue
        if run:
            candidates.append([run])
        run = ""
        inner = _inner_literals(name, argument)
        if inner:
            candidates.append(inner)
    if run:
        candidates.append([run])
    return max(candidates, key=_worth, default=[])


def _worth(texts: list[str]) -> tuple[bool, int]:
    """One text to look for costs less than many; then the longest is the rarest."""
    shortest = min(map(len, texts))
    return len(texts) == 1 and shortest >= MIN_LITERAL, shortest


def _inner_literals(name: str, argument: Any) -> list[str]:
    if name == "SUBPATTERN":
        return _literals(list(argument[3]))
    if name == "ATOMIC_GROUP":
        return _literals(list(argument))
    if name in _REPEATS and argument[0] >= 1:
        return _literals(list(argument[2]))
    if name == "BRANCH":
        branches = [_literals(list(branch)) for branch in argument[1]]
        return [text for branch in branches for text in branch] if all(branches) else []
    return []
