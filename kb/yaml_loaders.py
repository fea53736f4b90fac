"""Selects PyYAML's loader for a text: the one in C if PyYAML was built with libyaml, which takes a
fifth of the time.

The loader in C crashes the process on deep nesting, where the one in Python raises RecursionError,
so the latter reads texts that could be deeply nested.
"""

from __future__ import annotations

from typing import Any

import yaml

DEPTH = 2000  # levels of nesting; ten times as many fit the stack of a thread


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
