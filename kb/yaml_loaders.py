"""Which of PyYAML's loaders reads a text: the one in C where PyYAML was built with libyaml, which
needs a fifth of the time and gives the same values.

The one in C has no limit of nesting and ends the process where the stack ends; the one in Python
raises RecursionError. So a text that could be nested deeply is left to that.
"""

from __future__ import annotations

from typing import Any

import yaml

DEPTH = 2000  # levels of nesting; ten times as many fit the stack of a thread


def safe_loader(text: str) -> Any:
    """The loader of plain values for this text."""
    return getattr(yaml, "CSafeLoader", yaml.SafeLoader) if _is_flat(text) else yaml.SafeLoader


def text_loader(text: str) -> Any:
    """The loader that leaves every scalar as text, for this text."""
    return getattr(yaml, "CBaseLoader", yaml.BaseLoader) if _is_flat(text) else yaml.BaseLoader


def _is_flat(text: str) -> bool:
    """Flow style nests by brackets, block style by columns."""
    columns = max(map(len, text.splitlines()), default=0)
    return text.count("[") + text.count("{") + columns <= DEPTH
