"""Selects PyYAML's loader for a text: the one in C if PyYAML was built with libyaml, which takes a
fifth of the time.

The loader in C crashes the process on deep nesting, where the one in Python raises RecursionError,
so the latter reads texts that could be deeply nested. Aliases let a kilobyte of text stand for a
thousand million values, so these are counted before anything expands them.
"""

from __future__ import annotations

from typing import Any

import yaml

DEPTH = 2000  # levels of nesting; ten times as many fit the stack of a thread
MOST_VALUES = 100_000  # that aliases may make of a text


def load_plain(text: str) -> Any:
    """The plain values of a text. Raises yaml.YAMLError, also where aliases make more than
    MOST_VALUES of it, or a value within itself, for impossible dates and numbers, and for deep
    nesting."""
    try:
        loaded = yaml.load(text, Loader=safe_loader(text))
        values = _values(loaded, {})
    except (ValueError, OverflowError, RecursionError) as error:
        raise yaml.YAMLError(str(error)) from error
    if values > MOST_VALUES:
        raise yaml.YAMLError(f"its aliases make more than {MOST_VALUES:,} values")
    return loaded


def _values(value: Any, counts: dict[int, float]) -> float:
    """The number of values in a value with every alias expanded; infinite for one within itself.
    Each 1,000 characters of a text count as another value. `counts` has the numbers of the lists
    and mappings before, by their identity."""
    if not isinstance(value, dict | list | tuple):  # tuples: `!!pairs`
        return 1 + len(str(value)) // 1000  # ValueError for a number with too many digits
    if id(value) not in counts:
        counts[id(value)] = float("inf")
        parts = value.values() if isinstance(value, dict) else value
        counts[id(value)] = 1 + sum(_values(part, counts) for part in parts)
    return counts[id(value)]


def safe_loader(text: str) -> Any:
    """The loader of plain values for a text."""
    return getattr(yaml, "CSafeLoader", yaml.SafeLoader) if _is_flat(text) else yaml.SafeLoader


def text_loader(text: str) -> Any:
    """The loader that leaves every scalar a string, for a text."""
    return getattr(yaml, "CBaseLoader", yaml.BaseLoader) if _is_flat(text) else yaml.BaseLoader


def _is_flat(text: str) -> bool:
    """Whether brackets (flow style) and columns (block style) allow no deep nesting."""
    columns = max(map(len, text.splitlines()), default=0)
    return text.count("[") + text.count("{") + columns <= DEPTH
