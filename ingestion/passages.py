"""Elements into sections, one heading path each, and sections into passages: the units that are
indexed, cut where a reader would pause.

A passage is a few sentences (at most `MAX_CHARS`), a code block or a piece of a table. Its text is
the document's own words: pieces of a section, put together again, are the section, but for the
fences around code that shares a passage with prose. A table piece repeats the caption
and all header rows in `lead`, so that no row is read without its columns; `lead` is returned with
the passage but is not part of the cut.

Sizes are checked with the embedder's own tokenizer: what would not fit its window is cut further
here, because the model would drop the rest in silence. Knows nothing about the catalog or what a
passage will be scoped to."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ingestion.elements import Box, Element, ElementKind, Table, render_table
from kb.embedding import Embedder, header_text

MAX_HEADING = 300  # characters; a longer "heading" is a paragraph that a parser mistook
MAX_CHARS = 400
MAX_CODE_CHARS = 800

_FENCE = re.compile(r"^```[\w.+-]*$", re.MULTILINE)
_SENTENCE_END = re.compile(
    r"(?<=[.!?:;])[\"')\]]*\s+(?=[\"'(\[`*\w])|\n[ \t]*\n+|\n(?=[ \t]*(?:[-*+•]|\d+[.)])\s)"
)
_LINE_END = re.compile(r"\n+")
_WORD_END = re.compile(r"\s+")

CountTokens = Callable[[str], int]
Fits = Callable[[str], bool]  # whether the embedder reads the text whole


@dataclass(frozen=True)
class Section:
    """A heading with what stands directly under it.

    `path` holds the headings from the outermost to this one; it is empty for what precedes the
    first heading. `parent` is the index of the enclosing section in the list, or None.
    """

    path: tuple[str, ...]
    level: int
    parent: int | None
    elements: tuple[Element, ...]
    heading: Element | None = None

    @property
    def title(self) -> str:
        """The innermost heading; empty before the first heading."""
        return self.path[-1] if self.path else ""


def split_sections(elements: Sequence[Element]) -> list[Section]:
    """Group elements under their headings. Sections without own content are kept: they carry the
    tree.
    """
    sections: list[Section] = []
    open_path: list[int] = []  # indices of the enclosing sections, outermost first
    path: tuple[str, ...] = ()
    heading: Element | None = None
    body: list[Element] = []

    def close() -> None:
        if heading is None and not body:
            return
        level = (heading.level or 1) if heading else 0
        while open_path and sections[open_path[-1]].level >= level:
            open_path.pop()
        parent = open_path[-1] if open_path else None
        sections.append(Section(path, level, parent, tuple(body), heading))
        if heading is not None:
            open_path.append(len(sections) - 1)

    levels: list[tuple[int, str]] = []
    for element in elements:
        if element.kind != "title" or len(element.text) > MAX_HEADING:
            body.append(element)
            continue
        close()
        level = element.level or 1
        while levels and levels[-1][0] >= level:
            levels.pop()
        levels.append((level, " ".join(element.text.split())))
        path = tuple(text for _, text in levels)
        heading, body = element, []
    close()
    return sections


@dataclass(frozen=True)
class Passage:
    """One indexed unit of a section. `section` is its index in the document's section list."""

    section: int
    kind: ElementKind
    text: str
    lead: str = ""
    language: str | None = None
    boxes: tuple[Box, ...] = ()

    @property
    def shown(self) -> str:
        """What a reader gets: the text, under its table header if it has one."""
        return f"{self.lead}\n{self.text}" if self.lead else self.text


def cut_passages(
    sections: Sequence[Section], count_tokens: CountTokens, window: int
) -> list[Passage]:
    """All passages of a document in reading order.

    `count_tokens` is the embedder's own count for a text, `window` the most that it reads, in the
    same tokens."""
    passages: list[Passage] = []
    for index, section in enumerate(sections):
        budget = window - count_tokens(header_text(section.path) + ".")
        fits = partial(_fits, count_tokens, budget)
        drafts = [d for element in section.elements for d in _cut_element(index, element, fits)]
        for draft in _merge(drafts, fits):
            passages.extend(_fit(draft, count_tokens, budget))
    return passages


def _fits(count_tokens: CountTokens, budget: int, text: str) -> bool:
    # A word piece is at least one byte: short texts need no count. (Not one character: a Hangul
    # syllable is three pieces.)
    return len(text.encode()) <= budget or count_tokens(text) <= budget


def cut_to_window(text: str, count_tokens: CountTokens, window: int) -> list[str]:
    """The text in parts that the embedder reads whole: for texts that were not cut here (a person's
    correction, a passage cut for a model with a larger window)."""
    whole = Passage(0, "text", text)
    return [part.text for part in _fit(whole, count_tokens, window)]


def encode_whole(embedder: Embedder, texts: Sequence[str]) -> list[NDArray[np.float32]]:
    """One vector for each text. A text over the window (a long correction, a model with a smaller
    window) is read in parts and gets their mean direction, so that nothing of it is dropped.
    """
    parts = [cut_to_window(text, embedder.count_tokens, embedder.window) for text in texts]
    vectors = iter(embedder.encode([part for pieces in parts for part in pieces]))
    encoded = []
    for pieces in parts:
        total = sum((next(vectors) for _ in pieces), np.zeros(embedder.dimension, np.float32))
        encoded.append(total / np.linalg.norm(total) if len(pieces) > 1 else total)
    return encoded


def _cut_element(section: int, element: Element, fits: Fits) -> Iterator[Passage]:
    base = Passage(section, element.kind, "", "", element.language, element.boxes)
    if element.table is not None:
        yield from _cut_table(base, element, fits)
        return
    limit = MAX_CODE_CHARS if element.kind == "code" else MAX_CHARS
    for text in split_text(element.text, limit, by_line=element.kind == "code"):
        yield replace(base, text=text)


def _cut_table(base: Passage, element: Element, fits: Fits) -> Iterator[Passage]:
    """A small table stays as its source has it; a large one is cut between rows, each piece under
    its header.
    """
    table = element.table
    if table is None or not table.rows or not is_cut(element, fits):
        yield replace(base, text=element.text.strip("\n"))
        return
    lead = render_table(replace(table, rows=()))
    rows: list[tuple[str, ...]] = []
    size = 0
    for row in table.rows:
        width = sum(len(cell) + 3 for cell in row)
        if rows and size + width > MAX_CHARS:
            yield replace(base, text=render_table(Table((), tuple(rows))), lead=lead)
            rows, size = [], 0
        rows.append(row)
        size += width
    if rows:
        yield replace(base, text=render_table(Table((), tuple(rows))), lead=lead)


def is_cut(element: Element, fits: Fits) -> bool:
    """Whether a table is too large to stay as its source has it."""
    return len(element.text) > MAX_CODE_CHARS or not fits(element.text)


def split_text(text: str, limit: int, *, by_line: bool = False) -> list[str]:
    """Cut at sentence ends (at line ends for code), at lines or words only where a sentence is too
    long.

    The pieces in order hold every character of the text but the white space between them.
    """
    separators = (_LINE_END, _WORD_END) if by_line else (_SENTENCE_END, _LINE_END, _WORD_END)
    atoms = list(_atoms(text, limit, separators))
    pieces: list[str] = []
    current = ""
    for atom in atoms:
        if current and len(current) + len(atom.rstrip()) > limit:
            pieces.append(current)
            current = ""
        current += atom
    pieces.append(current)
    trimmed = (piece.strip("\n").rstrip() if by_line else piece.strip() for piece in pieces)
    return [piece for piece in trimmed if piece]


def _atoms(text: str, limit: int, separators: Sequence[re.Pattern[str]]) -> Iterator[str]:
    """The text in order, in parts of at most `limit` characters, cut at the first separator that
    does.
    """
    if len(text) <= limit:
        yield text
        return
    if not separators:
        yield from (text[start : start + limit] for start in range(0, len(text), limit))
        return
    start = 0
    for match in separators[0].finditer(text):
        yield from _whole_or_finer(text[start : match.end()], limit, separators)
        start = match.end()
    yield from _whole_or_finer(text[start:], limit, separators)


def _whole_or_finer(part: str, limit: int, separators: Sequence[re.Pattern[str]]) -> Iterator[str]:
    if len(part.rstrip()) <= limit:
        yield part
    else:
        yield from _atoms(part, limit, separators[1:])


def _merge(drafts: Sequence[Passage], fits: Fits) -> list[Passage]:
    """Join short neighbours of a section; a code block joins the sentence that introduces it."""
    merged: list[Passage] = []
    for draft in drafts:
        last = merged[-1] if merged else None
        if last is None or last.lead or draft.lead:
            merged.append(draft)
            continue
        kind: ElementKind = last.kind if last.kind == draft.kind else "text"
        text = f"{_in_prose(last, kind)}\n{_in_prose(draft, kind)}"
        if len(text) > MAX_CHARS or not fits(text):
            merged.append(draft)
            continue
        boxes = last.boxes + tuple(box for box in draft.boxes if box not in last.boxes)
        language = last.language or draft.language
        merged[-1] = replace(last, kind=kind, text=text, language=language, boxes=boxes)
    return merged


def words_of(text: str) -> str:
    """The document's own characters of a text: without white space, and without the fences that
    passages have around code among prose.
    """
    return "".join(_FENCE.sub("", text).split())


def _in_prose(draft: Passage, kind: ElementKind) -> str:
    """The text of a draft within a passage of this kind: among prose, code stands in a fence, or a
    reader would not see where it begins and ends.
    """
    if draft.kind != "code" or kind == "code" or draft.text.lstrip().startswith("```"):
        return draft.text
    return f"```{draft.language or ''}\n{draft.text}\n```"


def _fit(passage: Passage, count_tokens: CountTokens, budget: int) -> Iterator[Passage]:
    """Cut a passage that the embedder could not read whole (dense code, foreign scripts, long
    tables).
    """
    # One character that does not fit: no cut helps, and the embedder will say so.
    if _fits(count_tokens, budget, passage.shown) or len(passage.text) < 2:
        yield passage
        return
    if passage.lead and count_tokens(passage.lead) > budget // 2:
        passage = replace(passage, lead=_shorten(passage.lead, count_tokens, budget // 2))
    halves = split_text(
        passage.text, max(len(passage.text) // 2, 16), by_line=passage.kind == "code"
    )
    if len(halves) < 2:
        middle = len(passage.text) // 2
        halves = [passage.text[:middle], passage.text[middle:]]
    for half in filter(str.strip, halves):
        yield from _fit(replace(passage, text=half), count_tokens, budget)


def _shorten(text: str, count_tokens: CountTokens, budget: int) -> str:
    """A header wider than half the window is shown cut, with a mark, rather than crowd out its
    rows.
    """
    while text and count_tokens(text) > budget:
        text = text[: len(text) * 3 // 4].rstrip()
    return text + " ..."
