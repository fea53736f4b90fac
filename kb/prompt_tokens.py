"""How many tokens a text takes in a prompt, by a real tokenizer.

The encoding is cl100k_base; its table ships with llama-index-core, so counting needs no network.
Newer vocabularies are larger and split the same text into fewer tokens, so the count is on the
high side for them.
"""

from __future__ import annotations

import importlib.util
import os
import re
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from kb.errors import Unavailable

if TYPE_CHECKING:
    import tiktoken

ENCODING = "cl100k_base"
TEXTS, LINES = 5_000, 100_000  # that are kept, of 2 KB and of 60 bytes: many answers share them
# The encoding cuts a text into words before it merges bytes. Newlines are a word's end, so no word
# reaches from one line into the next line that is not blank.
_LINES = re.compile(r"(?<=\n)(?=[ \t]*[!-~])")


@lru_cache(maxsize=TEXTS)
def count_tokens(text: str) -> int:
    """Tokens of a text. Text that looks like a control token counts as plain text. Raises
    Unavailable where the tokenizer is not installed.

    Counted line by line, which comes to the same: a text that is put together from lines that were
    counted before costs a sixth of encoding it.
    """
    return count_once(text)


def count_once(text: str) -> int:
    """As `count_tokens`, of a text that nobody will count again, such as a whole context: it is not
    kept, its lines are.
    """
    return sum(map(_tokens_of_line, _LINES.split(text)))


def fits(text: str, most: int) -> bool:
    """Whether a text takes at most so many tokens. Each of its words is at least one, so nothing is
    encoded of a text with too many. Raises Unavailable, as `count_tokens` does.
    """
    return least_tokens(text) <= most and count_tokens(text) <= most


def least_tokens(text: str) -> int:
    """A number of tokens that a text takes in any case, in a hundredth of the time of counting: no
    token of this encoding reaches over white space from one word into the next.
    """
    return len(text.split())


@lru_cache(maxsize=LINES)
def _tokens_of_line(line: str) -> int:
    return len(_encoding().encode_ordinary(line))


@lru_cache(maxsize=1)
def _encoding() -> tiktoken.Encoding:
    """The tokenizer; reading its table takes 0.4 s once."""
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
    # A directory that somebody configured has the tables that they want.
    os.environ.setdefault("TIKTOKEN_CACHE_DIR", str(tables))
    return tiktoken.get_encoding(ENCODING)
