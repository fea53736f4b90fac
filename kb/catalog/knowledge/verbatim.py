"""Search for a text in its source, word for word.

A run of white space counts as one blank, because documents break lines anywhere. A match neither
begins nor ends inside a word or a number: "at most 1" is not found in "at most 128".
"""

from __future__ import annotations

import re


class Source:
    """A source that is searched for other texts."""

    def __init__(self, text: str) -> None:
        self._text = text

    def quoted(self, words: str) -> str | None:
        """The source's own characters for these words, with its line breaks; None if they are not
        in it, or if `words` is empty."""
        parts = words.split()
        if not parts:
            return None
        pattern = r"\s+".join(map(re.escape, parts))
        match = re.search(_opening(parts[0]) + pattern + _closing(parts[-1]), self._text)
        return match[0] if match else None

    def names(self, name: str) -> bool:
        """Whether the source has this name as a whole word: `add` does not match `vadd`, `tl.add`
        or `add.f32`."""
        pattern = rf"(?<!\w)(?<!\w\.)(?<!::)(?<!->){re.escape(name)}(?!\w)(?!\.\w)(?!::\w)"
        return bool(name) and re.search(pattern, self._text) is not None


def _opening(first: str) -> str:
    if first[0].isdigit():
        return r"(?<!\w)(?<!\d[.,])"
    return r"(?<!\w)" if _is_word(first[0]) else ""


def _closing(last: str) -> str:
    if last[-1].isdigit():
        return r"(?!\w)(?![.,]\d)"
    return r"(?!\w)" if _is_word(last[-1]) else ""


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"
