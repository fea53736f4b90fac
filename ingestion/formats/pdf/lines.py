"""Words of a page to lines in reading order, columns included.

Knows geometry only: not what a heading, a list or a table is. A line never runs across a column
gutter.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ingestion.formats.pdf.text import LINE_END_HYPHEN, Word

_MIN_COLUMN_RUNS = 6
_MIN_GUTTER = 9.0
_TRIED = 6  # places of a first gutter, those first that the fewest lines cross


@dataclass(frozen=True, slots=True)
class Line:
    """One printed line, without its words: a manual of thousands of pages stays small in memory.

    column: the column of the page in reading order. hang: where the second word begins. tail_gap:
    the white space before the last word, inner_gap the widest one after the second word. pieces:
    (x, text) of each word of a monospaced line, whose layout matters.
    """

    text: str
    page: int
    column: int
    x0: float
    y0: float
    x1: float
    y1: float
    base: float
    size: float
    font: str
    mono: bool
    bold: bool
    italic: bool
    upright: bool
    hang: float
    tail_gap: float
    inner_gap: float
    pieces: tuple[tuple[float, str], ...]
    pitch: float


def line_of(words: Sequence[Word], page: int, column: int = 0) -> Line:
    """The line that these words, sorted from left to right, make up."""
    sizes: dict[float, int] = {}
    fonts: dict[str, int] = {}
    total = mono = bold = italic = 0
    for word in words:
        length = len(word.text)
        sizes[word.size] = sizes.get(word.size, 0) + length
        fonts[word.font.name] = fonts.get(word.font.name, 0) + length
        total += length
        mono += length * word.font.mono
        bold += length * word.font.bold
        italic += length * word.font.italic
    size = max(sizes, key=lambda s: (sizes[s], s))
    is_mono = mono >= 0.8 * total
    longest = max(words, key=lambda w: len(w.text))
    return Line(
        text=join_words(words),
        page=page,
        column=column,
        x0=min(w.x0 for w in words),
        y0=min(w.y0 for w in words),
        x1=max(w.x1 for w in words),
        y1=max(w.y1 for w in words),
        base=statistics.median_low([w.base for w in words if w.size == size]),
        size=size,
        font=max(fonts, key=lambda f: (fonts[f], f)),
        mono=is_mono,
        bold=bold >= 0.9 * total,
        italic=italic >= 0.9 * total,
        upright=words[0].upright,
        hang=words[1].x0 if len(words) > 1 else words[0].x0,
        tail_gap=words[-1].x0 - words[-2].x1 if len(words) > 1 else 0.0,
        inner_gap=max((b.x0 - a.x1 for a, b in pairwise(words[1:])), default=0.0),
        pieces=tuple((w.x0, w.text) for w in words) if is_mono else (),
        pitch=(longest.x1 - longest.x0) / max(1, len(longest.text)),
    )


def join_words(words: Sequence[Word]) -> str:
    """The words with single spaces, except where a super- or subscript follows without any."""
    parts: list[str] = []
    for i, word in enumerate(words):
        if i and not (word.glued and word.x0 - words[i - 1].x1 < 0.12 * word.size):
            parts.append(" ")
        parts.append(word.text)
    return "".join(parts)


def join_lines(texts: Iterable[str], vocabulary: Collection[str] = ()) -> str:
    """Lines of one paragraph as one string; a word that was divided at a line end is whole again.

    Whether a hyphen belongs to the word is decided by how the rest of the document (`vocabulary`,
    lower case) writes it.
    """
    joined = ""
    for text in texts:
        if not joined:
            joined = text
        elif joined.endswith((LINE_END_HYPHEN, "-", "\u2010")) and joined[-2:-1].isalpha():
            joined = joined[:-1] + _hyphen(joined[:-1], text, vocabulary) + text
        else:
            joined = (
                joined.rstrip(LINE_END_HYPHEN)
                + ("-" if joined.endswith(LINE_END_HYPHEN) else " ")
                + text
            )
    return joined.replace(LINE_END_HYPHEN, "-")


def _hyphen(before: str, after: str, vocabulary: Collection[str]) -> str:
    first = before.rsplit(None, 1)[-1].lstrip("(\"'\u201c\u2018[").lower()
    second = (
        after.split(None, 1)[0].rstrip(".,;:)\"'\u201d\u2019]").lower() if after.strip() else ""
    )
    if f"{first}-{second}" in vocabulary:
        return "-"
    if first + second in vocabulary:
        return ""
    return "" if after[:1].islower() and "-" not in first else "-"


def in_one_column(words: Sequence[Word], page: int) -> list[Line]:
    """Lines of a region that is known to be one column, such as a table cell."""
    return [line_of(ws, page) for ws in _merge_runs(_runs([w for w in words if w.upright]))]


def lines_of_page(words: Iterable[Word], page: int) -> list[Line]:
    """All lines of a page in reading order; turned text (axis labels, margin stamps) comes last."""
    words = list(words)
    runs = _runs([w for w in words if w.upright])
    regions: list[list[list[Word]]] = []
    _split_columns(runs, regions, depth=0)
    lines: list[Line] = []
    for column, region in enumerate(regions):
        lines += [line_of(ws, page, column) for ws in _merge_runs(region)]
    turned = [w for w in words if not w.upright]
    if turned:
        lines.append(line_of(turned, page, len(regions)))
    return lines


def _top(word: Word) -> float:
    return word.base - 0.75 * word.size


def _bottom(word: Word) -> float:
    return word.base + 0.2 * word.size


def _runs(words: Sequence[Word]) -> list[list[Word]]:
    """Words that follow each other in the content stream on one line without a wide gap."""
    runs: list[list[Word]] = []
    for word in words:
        if runs:
            last = runs[-1][-1]
            gap = word.x0 - last.x1
            level = _top(last) <= (_top(word) + _bottom(word)) / 2 <= _bottom(last) or (
                _top(word) <= (_top(last) + _bottom(last)) / 2 <= _bottom(word)
            )
            if level and -0.3 * word.size <= gap <= max(1.3 * word.size, _MIN_GUTTER):
                runs[-1].append(word)
                continue
        runs.append([word])
    return runs


def _merge_runs(runs: Sequence[list[Word]]) -> list[list[Word]]:
    """Runs on one level become one line; lines from top to bottom."""
    lines: list[list[Word]] = []
    spans: list[tuple[float, float]] = []
    for run in sorted(runs, key=lambda r: (-max(w.size for w in r), min(w.base for w in r))):
        lead = max(run, key=lambda w: w.size)
        middle = (_top(lead) + _bottom(lead)) / 2
        home = next((i for i, span in enumerate(spans) if span[0] <= middle <= span[1]), None)
        if home is not None and spans[home][1] - spans[home][0] > 1.7 * (
            _bottom(lead) - _top(lead)
        ):
            home = None  # a drop cap or a brace stands beside several lines
        if home is None:
            lines.append(list(run))
            spans.append((_top(lead), _bottom(lead)))
        else:
            lines[home] += run
    order = sorted(range(len(lines)), key=lambda i: spans[i][1])
    return [sorted(lines[i], key=lambda w: (w.x0, w.order)) for i in order]


def _split_columns(runs: list[list[Word]], out: list[list[list[Word]]], depth: int) -> None:
    """Cut at a gutter and put the bands above, left, right and below it in reading order."""
    gutter = _gutter(runs) if depth < 3 and len(runs) >= 2 * _MIN_COLUMN_RUNS else None
    if gutter is None:
        if runs:
            out.append(runs)
        return
    band: list[list[Word]] = []
    for run in sorted(runs, key=lambda r: r[0].base):
        if run[0].x0 < gutter < run[-1].x1:
            _flush_band(band, gutter, out, depth)
            band = []
            if out and out[-1] and out[-1][0][0].x0 < gutter < out[-1][0][-1].x1:
                out[-1].append(run)
            else:
                out.append([run])
        else:
            band.append(run)
    _flush_band(band, gutter, out, depth)


def _flush_band(
    band: list[list[Word]], gutter: float, out: list[list[list[Word]]], depth: int
) -> None:
    left = [r for r in band if r[-1].x1 <= gutter]
    right = [r for r in band if r[0].x0 >= gutter]
    if left and right:
        _split_columns(left, out, depth + 1)
        _split_columns(right, out, depth + 1)
    elif left or right:
        out.append(left or right)


def _gutter(runs: Sequence[list[Word]]) -> float | None:
    """The x of a gutter with wide prose on both sides, or None.

    A table without rules has columns too; there the content stream goes across the gutter row by
    row, in prose it goes down one column first.
    """
    prose = [r for r in runs if len(r) >= 3 and not r[0].font.mono]
    if len(prose) < 2 * _MIN_COLUMN_RUNS:
        return None
    x0, x1 = min(r[0].x0 for r in runs), max(r[-1].x1 for r in runs)
    width = x1 - x0
    best: tuple[int, float] | None = None
    for step in range(25, 76):
        x = x0 + width * step / 100
        left = [r for r in prose if r[-1].x1 <= x]
        right = [r for r in prose if r[0].x0 >= x]
        crossing = len(prose) - len(left) - len(right)
        if min(len(left), len(right)) < _MIN_COLUMN_RUNS or crossing > 0.3 * len(prose):
            continue
        if (
            _is_prose_column(left, width)
            and _is_prose_column(right, width)
            and not _row_wise(left, right)
        ):
            score = len(left) + len(right) - crossing
            if best is None or score > best[0]:
                best = (score, x)
    return best[1] if best else _first_gutter(runs, prose)


def _first_gutter(runs: Sequence[list[Word]], prose: Sequence[list[Word]]) -> float | None:
    """The x right of the first of three or more columns of prose, or None: what is right of it has
    a gutter of its own.
    """
    if len(prose) < 3 * _MIN_COLUMN_RUNS:
        return None
    width = max(r[-1].x1 for r in runs) - min(r[0].x0 for r in runs)
    begins, ends = sorted(r[0].x0 for r in prose), sorted(r[-1].x1 for r in prose)
    crossing = {x: len(prose) - bisect_right(ends, x) - _from(begins, x) for x in set(ends)}
    for x in sorted(crossing, key=lambda x: (crossing[x], x))[:_TRIED]:
        left = [r for r in prose if r[-1].x1 <= x]
        right = [r for r in prose if r[0].x0 >= x]
        if len(left) < _MIN_COLUMN_RUNS or len(right) < 2 * _MIN_COLUMN_RUNS:
            continue
        if crossing[x] > 0.3 * len(prose) or not _is_prose_column(left, width):
            continue
        if not _row_wise(left, right) and _gutter([r for r in runs if r[0].x0 >= x]) is not None:
            return (x + min(r[0].x0 for r in right)) / 2
    return None


def _from(begins: Sequence[float], x: float) -> int:
    """How many of the sorted places are at x or right of it."""
    return len(begins) - bisect_left(begins, x)


def _is_prose_column(runs: Sequence[list[Word]], page_width: float) -> bool:
    widths = [r[-1].x1 - r[0].x0 for r in runs]
    left = min(r[0].x0 for r in runs)
    column = max(r[-1].x1 for r in runs) - left
    return column > 0.2 * page_width and statistics.median(widths) > 0.6 * column


def _row_wise(left: Sequence[list[Word]], right: Sequence[list[Word]]) -> bool:
    ends = {r[-1].order for r in left}
    neighbours = sum(r[0].order - 1 in ends for r in right)
    return neighbours > 0.5 * len(right)
