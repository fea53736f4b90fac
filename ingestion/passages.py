"""Elements into sections, one per heading path, and sections into passages, the indexed units.

A passage is a few sentences (at most `MAX_CHARS`), a code block or a piece of a table. Its text is
that of the document: the joined passages of a section are its text, but for fences around code in
prose. A piece of a table repeats the caption and header rows in `lead`, so that no row is read
without its columns.

Sizes are checked with the embedder's tokenizer: text over its window is cut here, because the model
would drop the rest silently. Knows nothing about the catalog or the scope of a passage."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import accumulate, zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ingestion.elements import Box, Element, Table, render_table
from ingestion.limits import LINE_CHARS, PASSAGE_CHARS, DocumentLimits
from kb.catalog.knowledge.versions import PassageDraft
from kb.embedding import Embedder, header_text

MAX_HEADING = 300  # characters; a longer title is a paragraph that a parser took for a heading
MAX_CHARS = 400
MAX_CODE_CHARS = PASSAGE_CHARS
MAX_CAPTION = 240  # characters of a paragraph that is the caption of the table below it
MAX_LABEL = 120  # characters of a caption without a colon

_FENCE = re.compile(r"^```[\w.+-]*$", re.MULTILINE)
_SENTENCE_END = re.compile(
    r"(?<=[.!?:;])[\"')\]]*\s+(?=[\"'(\[`*\w])|\n[ \t]*\n+|\n(?=[ \t]*(?:[-*+•]|\d+[.)])\s)"
)
_LAST_SENTENCE = re.compile(r"(?:.*[.!?][\"')\]]*\s+)?(?P<last>\S.*)", re.DOTALL)
_POINTS_BELOW = re.compile(r"\b(?:tables?|below|following)\b", re.IGNORECASE)
_NUMBERED = re.compile(r"\W*(?:Table|Tab\.) [A-Z]?\d", re.IGNORECASE)
_TERM = re.compile(r"\s*(?:\*\*|__)[^*\n]{1,80}(?:\*\*|__):?\s*")  # a paragraph in bold type
_LINE_END = re.compile(r"\n+")
_WORD_END = re.compile(r"\s+")
_HEADERS = ("c", "cpp", "cuda")
_GUARD = re.compile(
    r"^[ \t]*#[ \t]*(?:pragma[ \t]+once\b|ifndef[ \t]+(\w+)\s+#[ \t]*define[ \t]+\1\s)", re.M
)


CountTokens = Callable[[str], int]
Fits = Callable[[str], bool]  # whether the embedder reads the whole text


@dataclass(frozen=True)
class ParsedSection:
    """A heading with the elements directly under it.

    `path` are the headings from the outermost to this one, empty before the first heading. `parent`
    is the index of the enclosing section in the list, or None.
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


def split_sections(elements: Sequence[Element]) -> list[ParsedSection]:
    """Group elements under their headings. A heading without elements is a section too: it is a
    part of the tree."""
    sections: list[ParsedSection] = []
    enclosing: list[int] = []  # indices of the sections above, outermost first
    heading: Element | None = None
    body: list[Element] = []

    def close() -> None:
        if heading is None and not body:
            return
        level = (heading.level or 1) if heading else 0
        while enclosing and sections[enclosing[-1]].level >= level:
            enclosing.pop()
        parent = enclosing[-1] if enclosing else None
        path = sections[parent].path if parent is not None else ()
        if heading is not None:
            path = (*path, " ".join(heading.text.split()))
        sections.append(ParsedSection(path, level, parent, tuple(body), heading))
        if heading is not None:
            enclosing.append(len(sections) - 1)

    for element in elements:
        if element.kind != "title" or len(element.text) > MAX_HEADING:
            body.append(element)
        else:
            close()
            heading, body = element, []
    close()
    return sections


def with_captions(elements: Sequence[Element]) -> tuple[Element, ...]:
    """The elements, where a paragraph that introduces a table is its caption: otherwise it would be
    joined to the table before. Of a long paragraph only the last sentence is."""
    captioned: list[Element] = []
    below = _numbered_below(elements)
    for element in elements:
        last = captioned[-1] if captioned else None
        table = element.table
        if table is not None and table.caption is None and last is not None:
            before, caption = _caption_of(last, below)
            if caption:
                captioned[-1:] = [replace(last, text=before)] if before else []
                element = _captioned(element, table, caption, last)
        elif below and last is not None and last.table and _NUMBERED.match(element.text):
            element = _captioned(last, last.table, element.text, element)
            captioned.pop()
        captioned.append(element)
    return tuple(captioned)


def _numbered_below(elements: Sequence[Element]) -> bool:
    """Whether "Table 1: ..." follows its table, as it does where no table follows it."""
    tables = [element.table is not None for element in elements]
    above = under = 0
    for n, element in enumerate(elements):
        if element.kind in ("text", "caption") and _NUMBERED.match(element.text):
            before, after = n > 0 and tables[n - 1], n + 1 < len(tables) and tables[n + 1]
            above += after and not before
            under += before and not after
    return under > above


def _caption_of(element: Element, numbered_below: bool) -> tuple[str, str]:
    """A paragraph as the text before the caption of the table below it, and the caption."""
    text = element.text.strip()
    if element.kind not in ("text", "caption") or (numbered_below and _NUMBERED.match(text)):
        return text, ""
    match = _LAST_SENTENCE.fullmatch(text)
    last = match["last"] if match else text
    plain = text.rstrip("*_` ")
    label = len(text) <= MAX_LABEL and not plain.endswith((".", "!", "?"))
    if not (plain.endswith(":") or label or _POINTS_BELOW.search(last)):
        return text, ""
    if len(text) <= MAX_CAPTION:
        return "", text
    return (text[: -len(last)].rstrip(), last) if len(last) <= MAX_CAPTION else (text, "")


def _captioned(element: Element, table: Table, caption: str, source: Element) -> Element:
    caption = " ".join(caption.split())
    boxes = tuple(dict.fromkeys((*source.boxes, *element.boxes)))
    text = f"{caption}\n\n{element.text}"
    return replace(element, text=text, table=replace(table, caption=caption), boxes=boxes)


def cut_passages(
    sections: Sequence[ParsedSection],
    count_tokens: CountTokens,
    window: int,
    limits: DocumentLimits | None = None,
) -> list[PassageDraft]:
    """All passages of a document in reading order, without tags and prose. `count_tokens` counts
    tokens of the embedder, `window` is the most that it reads. Raises ParseFailed beyond `limits`.
    """
    limits = limits or DocumentLimits()
    clock = limits.clock()
    passages: list[PassageDraft] = []
    for index, section in enumerate(sections):
        budget = window - count_tokens(header_text(section.path) + ".")
        fits = partial(_fits, count_tokens, budget)
        pieces: list[PassageDraft] = []
        for element in section.elements:
            pieces += _cut_element(index, element, fits)
            clock.check()
        for piece in _merge(pieces, fits):
            passages.extend(_fit(piece, count_tokens, budget))
            limits.check_passages(len(passages))
            clock.check()
    return passages


def _fits(count_tokens: CountTokens, budget: int, text: str) -> bool:
    # A token has at least one byte, so short texts need no count. (Not one character: a Hangul
    # syllable is three tokens.)
    return len(text.encode()) <= budget or count_tokens(text) <= budget


def _cut_element(section: int, element: Element, fits: Fits) -> Iterator[PassageDraft]:
    boxes = tuple(map(_rounded, element.boxes))
    base = PassageDraft(section, element.kind, "", "", element.language, boxes)
    if element.table is not None:
        yield from _cut_table(base, element, element.table, fits)
        return
    is_code = element.kind == "code"
    limit = MAX_CODE_CHARS if is_code else MAX_CHARS
    if is_code and element.language in _HEADERS and _GUARD.search(element.text):
        yield from (replace(base, text=text) for text in _cut_header(element.text, fits))
        return
    for text in split_text(element.text, limit, by_line=is_code):
        yield replace(base, text=text)


def _cut_header(code: str, fits: Fits) -> Iterator[str]:
    """A C header cut before comments, which stay with the declaration below them."""
    units: list[str] = []
    unit, in_comment = "", False
    for line in code.split("\n"):
        bare = line.strip()
        unit += f"{line}\n"
        begins = bare.startswith(("//", "/*"))
        in_comment = (in_comment or bare.startswith("/*")) and "*/" not in bare
        remark = in_comment or begins or bare.endswith("*/")
        if not (remark or bare.endswith("\\")) or not bare:
            units.append(unit)
            unit = ""
    current = ""
    for part in [*units, unit]:
        whole = (current + part).strip("\n")
        if current and (len(whole) > MAX_CODE_CHARS or not fits(whole)):
            yield from split_text(current, MAX_CODE_CHARS, by_line=True)
            current = ""
        current += part
    yield from split_text(current, MAX_CODE_CHARS, by_line=True)


def _rounded(box: Box) -> dict[str, Any]:
    return {name: round(v, 2) if isinstance(v, float) else v for name, v in asdict(box).items()}


def _cut_table(
    base: PassageDraft, element: Element, table: Table, fits: Fits
) -> Iterator[PassageDraft]:
    """A small table as in its source; a large one cut between rows, each piece with the header."""
    small = len(element.text) <= MAX_CODE_CHARS and fits(element.text)
    if small or not table.rows:
        yield replace(base, text=element.text.strip("\n"))
        return
    base = replace(base, lead=render_table(replace(table, rows=())))
    rows: list[tuple[str, ...]] = []
    size = 0

    def fitting(*added: tuple[str, ...]) -> bool:
        return fits(f"{base.lead}\n{render_table(Table((), (*rows, *added)))}")

    for row in table.rows:
        width = sum(len(cell) + 3 for cell in row)
        if rows and (size + width > MAX_CHARS or not fitting(row)):
            yield replace(base, text=render_table(Table((), tuple(rows))))
            rows, size = [], 0
        if not rows and not fitting(row):
            yield from _cut_row(base, table, row, fits)
            continue
        rows.append(row)
        size += width
    if rows:
        yield replace(base, text=render_table(Table((), tuple(rows))))


def _cut_row(
    base: PassageDraft, table: Table, row: tuple[str, ...], fits: Fits
) -> Iterator[PassageDraft]:
    """A row over the window in pieces of whole cells, each with the headers of its columns and,
    but for the first, the first cell of the row."""

    def piece(start: int, end: int) -> PassageDraft:
        header = tuple(cells[start:end] for cells in table.header)
        names = [table.caption or "", row[0] if start else ""]
        lead = render_table(Table(header, (), ", ".join(filter(None, names)) or None))
        cells = render_table(Table((), (row[start:end],)))
        text = cells[: None if end == len(row) else -2]  # the last bar is that of the next piece
        return replace(base, lead=lead, text=text)

    start = 0
    while start < len(row):
        end = start + 1
        while end < len(row) and fits(piece(start, end + 1).shown):
            end += 1
        yield piece(start, end)
        start = end


def split_text(text: str, limit: int, *, by_line: bool = False) -> list[str]:
    """Cut at sentence ends (with `by_line`, at line ends), and at lines or words if a sentence is
    too long. The pieces contain every character of the text but the white space between them."""
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
    """The text in parts of at most `limit` characters, cut at the first separator possible."""
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


def _merge(pieces: Sequence[PassageDraft], fits: Fits) -> list[PassageDraft]:
    """Join short neighbours of a section; a code block joins the sentence that introduces it, and
    a term in bold type stays with its definition."""
    merged: list[PassageDraft] = []
    for piece, following in zip_longest(pieces, pieces[1:]):
        last = merged[-1] if merged else None
        if last is None or last.lead or piece.lead:
            merged.append(piece)
            continue
        kind = last.kind if last.kind == piece.kind else "text"
        text = f"{_within(kind, last)}\n{_within(kind, piece)}"
        term = _TERM.fullmatch(last.text) is not None
        is_term = following is not None and not following.lead and _TERM.fullmatch(piece.text)
        needed = len(text) + (len(following.text) if is_term and following else 0)
        if needed > MAX_CHARS + (len(last.text) if term else 0) or not fits(text):
            merged.append(piece)
            continue
        boxes = last.boxes + tuple(box for box in piece.boxes if box not in last.boxes)
        language = last.language or piece.language
        merged[-1] = replace(last, kind=kind, text=text, language=language, boxes=boxes)
    return merged


def _within(kind: str, piece: PassageDraft) -> str:
    """The text of a piece inside a passage of this kind: code in prose gets a fence."""
    if piece.kind != "code" or kind == "code" or piece.text.lstrip().startswith("```"):
        return piece.text
    return f"```{piece.language or ''}\n{piece.text}\n```"


def words_of(text: str) -> str:
    """The characters that come from the document: without white space and fences around code."""
    return "".join(_FENCE.sub("", text).split())


def _fit(passage: PassageDraft, count_tokens: CountTokens, budget: int) -> Iterator[PassageDraft]:
    """Cut a passage over the window of the embedder (dense code, foreign scripts, wide tables)."""
    # No cut helps if one character does not fit; the embedder raises an error for it.
    if _fits(count_tokens, budget, passage.shown) or len(passage.text) < 2:
        yield passage
        return
    if passage.lead and count_tokens(passage.lead) > budget // 2:
        passage = replace(passage, lead=_shorten(passage.lead, count_tokens, budget // 2))
    middle = len(passage.text) // 2
    halves = split_text(passage.text, max(middle, 16), by_line=passage.kind == "code")
    if len(halves) < 2:
        halves = [passage.text[:middle], passage.text[middle:]]
    for half in filter(str.strip, halves):
        yield from _fit(replace(passage, text=half), count_tokens, budget)


def _shorten(text: str, count_tokens: CountTokens, budget: int) -> str:
    """Cut a header over half of the window, with a mark, so that its rows have room."""
    while text and count_tokens(text) > budget:
        text = text[: len(text) * 3 // 4].rstrip()
    return text + " ..."


# -- texts as the embedder reads them


def cut_to_window(text: str, count_tokens: CountTokens, window: int) -> list[str]:
    """The text in parts within the window of the embedder: for corrections by a person, and for
    passages that were cut for a model with a larger window."""
    whole = PassageDraft(0, "text", text)
    return [part.text for part in _fit(whole, count_tokens, window)]


def encode_whole(embedder: Embedder, texts: Sequence[str]) -> list[NDArray[np.float32]]:
    """One vector for each text; a text over the window gets the mean direction of its parts."""
    parts = [cut_to_window(text, embedder.count_tokens, embedder.window) for text in texts]
    vectors = iter(embedder.encode([part for pieces in parts for part in pieces]))
    encoded = []
    for pieces in parts:
        total = sum((next(vectors) for _ in pieces), np.zeros(embedder.dimension, np.float32))
        encoded.append(total / np.linalg.norm(total) if len(pieces) > 1 else total)
    return encoded


# -- a bound for lines: one endless line or word would make tens of thousands of passages


@dataclass(frozen=True)
class CutLine:
    """A line that was cut: its beginning, its length, and how many characters remain."""

    begins: str
    characters: int
    kept: int

    def __str__(self) -> str:
        return (
            f"a line of {self.characters:,} characters ({self.begins!r}...) was cut after"
            f" {self.kept:,}; break it into lines so that the rest is read"
        )


def bounded(elements: Sequence[Element]) -> tuple[tuple[Element, ...], tuple[CutLine, ...]]:
    """The elements with lines and table rows of at most LINE_CHARS characters, and the lines that
    were cut, so that the document is `partial` and its report names them."""
    cutter = _LineCutter()
    return tuple(map(cutter.element, elements)), tuple(cutter.cut)


class _LineCutter:
    def __init__(self) -> None:
        self.cut: list[CutLine] = []

    def element(self, element: Element) -> Element:
        if len(element.text) <= LINE_CHARS:  # then its cells are too
            return element
        if element.table is None:
            return replace(element, text="\n".join(map(self._line, element.text.split("\n"))))
        table = self._table(element.table)
        same = table == element.table
        return element if same else replace(element, text=render_table(table), table=table)

    def _line(self, line: str) -> str:
        if len(line) <= LINE_CHARS:
            return line
        end = line.rfind(" ", LINE_CHARS // 2, LINE_CHARS)
        kept = line[: end if end > 0 else LINE_CHARS]
        self._note(line, len(line), len(kept))
        return kept

    def _table(self, table: Table) -> Table:
        """The table with as many columns as fit into a line in every row."""
        rows = [tuple(map(self._line, row)) for row in table.header + table.rows]
        widths = [list(accumulate(len(cell) + 3 for cell in row)) for row in rows]
        columns = min((bisect_right(width, LINE_CHARS + 3) for width in widths), default=0)
        for row, width in zip(rows, widths, strict=True):
            if any(row[columns:]):
                self._note(" | ".join(row[:8]), width[-1], width[columns - 1])
        header = len(table.header)
        kept = tuple(row[: max(columns, 1)] for row in rows)
        return Table(kept[:header], kept[header:], table.caption)

    def _note(self, line: str, characters: int, kept: int) -> None:
        self.cut.append(CutLine(" ".join(line[:60].split())[:40], characters, kept))
