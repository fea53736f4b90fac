"""Kernels compared as code and skill texts compared as words: equality, the lines that differ, and
spans that were copied.

Code is compared without comments, spacing (in strings too) and the numbering of generated names;
renaming is one to one, so kernels with equal keys differ in nothing else. Skill texts are compared
without figures and sources.

Texts from the store must not be learned again from the steps that were shown them. They are
recognised by runs of eight tokens: eight words in the same order are rarely chance, and shorter
runs would match common phrases.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kb.ids import sha256
from optimizer.evaluation.bundle import Bundle

PYTHON = frozenset({"torch", "triton", "python"})
_PY_TOKEN = re.compile(
    r"(?P<long>(?P<q>\"\"\"|''')(?:\\.|(?!(?P=q))[\s\S])*(?P=q))"
    r"|(?P<text>\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*')"
    r"|(?P<note>\#[^\n]*)"
)
_C_TOKEN = re.compile(
    r"(?P<text>\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*')|(?P<note>//[^\n]*|/\*[\s\S]*?\*/)"
)
# Names that code generators number: `arg0_1`, `buf12`, `in_ptr0`, `tmp7`, but not `xindex`.
_GENERATED = re.compile(
    r"\b(?:arg|buf|tmp|in_ptr|out_ptr|in_out_ptr|primals|param|var|fn|r|x|y|p|v)_?\d+(?:_\d+)?\b"
)
_SPACED = re.compile(r"\s*([^\w\s])\s*")
_CONTINUES = frozenset("([{=,+%*|&")  # a long string after one of these is a value
_REFERENCE = re.compile(r"\{\{ev:[^}]*\}\}")
_FIGURE = re.compile(r"(?<![A-Za-z_])\d+(?:[.,]\d+)*")
_SOURCES = re.compile(r"^## Sources\n.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def is_python(language: str, name: str = "") -> bool:
    """Whether a file is Python, by its name, or without a suffix by the language of its kernel."""
    return name.endswith(".py") or (language in PYTHON and "." not in name)


def without_comments(text: str, *, python: bool) -> str:
    """The same code without comments and docstrings; strings that are values stay."""

    def replacement(token: re.Match[str]) -> str:
        if token.lastgroup == "note":
            return "" if python else " "
        if python and token.group("long") is not None:
            above, _, line = text[: token.start()].rpartition("\n")
            continued = above.rstrip()[-1:] in _CONTINUES
            return token.group() if line.strip() or continued else ""
        return token.group()

    return (_PY_TOKEN if python else _C_TOKEN).sub(replacement, text)


def shown_lines(text: str, *, python: bool) -> tuple[str, ...]:
    """The lines of a text that have content, without comments."""
    bare = without_comments(text, python=python).expandtabs(4)
    return tuple(line.rstrip() for line in bare.splitlines() if line.strip())


def canonical(line: str) -> str:
    """A line without meaningless spacing; its indentation stays."""
    depth = len(line) - len(line.lstrip())
    return " " * depth + _SPACED.sub(r"\1", " ".join(line.split()))


def code(text: str, *, python: bool) -> str:
    """Code in its compared form: canonical lines, generated names numbered as they appear."""
    lines = [canonical(line) for line in shown_lines(text, python=python)]
    joined = "\n".join(lines) if python else _SPACED.sub(r"\1", " ".join(" ".join(lines).split()))
    names: dict[str, str] = {}
    return _GENERATED.sub(lambda m: names.setdefault(m.group(), f"g{len(names)}_"), joined)


def kernel_key(kernel: Bundle) -> str:
    """A hash that is equal for kernels of the same code."""
    codes = [
        code(text, python=is_python(kernel.language, name))
        for name, text in sorted(kernel.files.items())
    ]
    return sha256("\x1f".join([kernel.language, kernel.entry, *codes]))


@dataclass(frozen=True)
class LineDifference:
    """Lines without comments that only the parent has (`removed`), and that only the child has
    (`added`), in the order of the files."""

    removed: tuple[str, ...]
    added: tuple[str, ...]


def code_lines(kernel: Bundle) -> list[str]:
    """The lines of a kernel without comments, file after file."""
    return [
        line
        for name, text in sorted(kernel.files.items())
        for line in shown_lines(text, python=is_python(kernel.language, name))
    ]


def difference(parent: Bundle, child: Bundle) -> LineDifference:
    """The lines in which two kernels differ, spacing and comments aside."""
    old, new = code_lines(parent), code_lines(child)
    removed: list[str] = []
    added: list[str] = []
    for tag, i, j, k, m in _matcher(old, new).get_opcodes():
        if tag != "equal":
            removed += old[i:j]
            added += new[k:m]
    return LineDifference(tuple(removed), tuple(added))


def likeness(kernel: Bundle, other: Bundle) -> float:
    """The share of lines that two kernels have in common, from 0 to 1."""
    return _matcher(code_lines(kernel), code_lines(other)).ratio()


def _matcher(old: Sequence[str], new: Sequence[str]) -> difflib.SequenceMatcher[str]:
    return difflib.SequenceMatcher(
        None, [canonical(line) for line in old], [canonical(line) for line in new], autojunk=False
    )


# -- skill texts


def prose(body: str) -> str:
    """A skill's text without code, figures and sources, in lower case on one line."""
    text = _FENCED.sub(" ", _SOURCES.sub("", body + "\n"))
    return " ".join(_FIGURE.sub("#", _REFERENCE.sub("#", text)).lower().split())


def body_key(body: str) -> str:
    """A hash that is equal for skill texts that differ only in figures, spacing, case and
    sources."""
    text = _FIGURE.sub("#", _REFERENCE.sub("#", _SOURCES.sub("", body + "\n")))
    return sha256(" ".join(text.lower().split()))


# -- copied spans

SHINGLE = 8  # tokens of a span
# A change is a use of a shown text that has at least this share of the lines that came.
APPLIED = 0.5
_TOKEN = re.compile(r"\w+|[^\w\s]")
_WORD = re.compile(r"\w+")


def copied_from(text: str, shown: Mapping[str, str]) -> tuple[str, float]:
    """The id of the shown text that has most of this one, and its share, or ("", 0.0). Punctuation
    counts, as in code."""
    wanted = set(_shingles(_TOKEN.findall(text)))
    shares = {
        id_: len(wanted & set(_shingles(_TOKEN.findall(other)))) / len(wanted)
        for id_, other in shown.items()
        if wanted
    }
    best = max(sorted(shares), key=lambda id_: shares[id_], default="")
    return (best, shares[best]) if best and shares[best] > 0 else ("", 0.0)


def without_copies(text: str, shown: Iterable[str]) -> tuple[str, float]:
    """The text without spans of at least eight words that a shown text has too, and the share of
    its words that was removed, from 0 to 1."""
    known = {shingle for other in shown for shingle in _shingles(_words(other))}
    places = [match.span() for match in _WORD.finditer(text)]
    words = _words(text)
    copied = [False] * len(words)
    for start in range(len(words) - SHINGLE + 1):
        if tuple(words[start : start + SHINGLE]) in known:
            copied[start : start + SHINGLE] = [True] * SHINGLE
    if not any(copied):
        return text, 0.0
    parts, last = [], 0
    for (start, end), gone in zip(places, copied, strict=True):
        if gone:
            parts.append(text[last:start])
            last = end
    parts.append(text[last:])
    return " ".join("".join(parts).split()), sum(copied) / len(words)


def _words(text: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(text)]


def _shingles(tokens: list[str]) -> Iterable[tuple[str, ...]]:
    return (tuple(tokens[n : n + SHINGLE]) for n in range(len(tokens) - SHINGLE + 1))
