"""Counts the tokens of a text in a prompt, in the encoding cl100k_base.

Its table ships with llama-index-core, so counting needs no network. Newer encodings have larger
vocabularies and give fewer tokens.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from kb.errors import Unavailable

if TYPE_CHECKING:
    import tiktoken

ENCODING = "cl100k_base"
# Entries of the caches, of about 2 KB and 60 bytes: answers share texts and lines.
CACHED_TEXTS, CACHED_LINES = 5_000, 100_000
# The encoding splits a text into words before it merges bytes. A newline ends a word, so no token
# reaches from one line into the next one that is not blank.
_BEGIN = re.compile(r"[ \t]*[!-~]")  # of a line that can be counted alone
_LINES = re.compile(rf"(?<=\n)(?={_BEGIN.pattern})")


@lru_cache(maxsize=CACHED_TEXTS)
def count_tokens(text: str) -> int:
    """Number of tokens of a text; control tokens count as plain text. Raises Unavailable if the
    tokenizer is not installed.

    The sum over its lines is exact; for a text of cached lines it takes a sixth of encoding it.
    """
    return sum(map(_tokens_of_line, _LINES.split(text)))


def count_once(text: str) -> int:
    """`count_tokens` without the caches, for a text that is counted once: half the time."""
    return len(_encoding().encode_ordinary(text))


def joined_tokens(parts: Sequence[tuple[str, int]], joint: str, end: str) -> int:
    """Number of tokens of texts joined by line breaks, with `end` behind the last. Each is given
    with its own number, so that only its last line, which the break extends, is counted again."""
    if not all(_BEGIN.match(text) for text, _ in parts):
        return count_once(joint.join(text for text, _ in parts) + end)
    total = 0
    for n, (text, tokens) in enumerate(parts, 1):
        last = _last_line(text)
        longer = last + (joint if n < len(parts) else end)
        total += tokens + _tokens_of_line(longer) - _tokens_of_line(last)
    return total


def _last_line(text: str) -> str:
    start = text.rfind("\n") + 1
    while start and not _BEGIN.match(text, start):
        start = text.rfind("\n", 0, start - 1) + 1
    return text[start:]


def fits(text: str, most: int) -> bool:
    """Whether a text has at most `most` tokens. Raises Unavailable like `count_tokens`."""
    return least_tokens(text) <= most and count_tokens(text) <= most


def least_tokens(text: str) -> int:
    """A lower bound of the number of tokens, in a hundredth of the time: tokens of this encoding do
    not span words."""
    return len(text.split())


@lru_cache(maxsize=CACHED_LINES)
def _tokens_of_line(line: str) -> int:
    return count_once(line)


@lru_cache(maxsize=1)
def _encoding() -> tiktoken.Encoding:
    """The encoding; reading its table takes 0.4 s."""
    try:
        import tiktoken

        core = importlib.util.find_spec("llama_index.core")
    except ImportError:
        core = None
    if core is None or not core.submodule_search_locations:
        raise Unavailable(
            "tokens cannot be counted: llama-index-core is not installed",
            hint="Install kernlore with its dependencies: pip install kernlore.",
        )
    tables = Path(core.submodule_search_locations[0]) / "_static" / "tiktoken_cache"
    # Unless the user has configured another directory of tables.
    os.environ.setdefault("TIKTOKEN_CACHE_DIR", str(tables))
    encoding = tiktoken.get_encoding(ENCODING)
    encoding._mergeable_ranks.clear()  # 16 MiB; only pickling reads them
    return encoding
