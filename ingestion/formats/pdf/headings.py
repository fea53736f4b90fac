"""Which lines of a PDF are headings, and how deep.

The outline of the file decides where there is one: its titles are looked up on their pages.
Headings that it leaves out, and files without an outline, go by font size, weight and numbering.
Knows lines, not paragraphs.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pypdfium2

from ingestion.formats.pdf.furniture import normalised
from ingestion.formats.pdf.lines import Line

MAX_LEVEL = 6
_MAX_TITLE_LINES, _MAX_TITLE_LENGTH = 4, 160
_PREFIX = re.compile(
    r"(?:chapter|appendix|section|part|annex)?(?:\d{0,6}|[a-z]\d{0,5}|[ivxlc]{1,6})"
)
_NUMBERED = re.compile(r"^(?:(?:chapter|section)\s+)?(\d{1,2}(?:\.\d{1,3}){0,5})\.?\s+\S", re.I)
_CAPTION = re.compile(r"^(?:table|figure|fig\.|tab\.|listing|algorithm|example)\s+[A-Z]?\d", re.I)
_NOT_TITLE = re.compile(r"^[•◦▪‣●○■\-\u2013*➢]\s|[.;,]$|^\W*$|^[a-z(]\S*\)?$|(?:\s?\.){4,}")
_MIN_OUTLINE = 3


@dataclass(frozen=True)
class Bookmark:
    """An entry of the file's outline. `level` counts from 1, `page` from 0; `y` is in points."""

    title: str
    level: int
    page: int
    y: float | None


@dataclass(frozen=True)
class Heading:
    """A heading that takes `count` lines of its page, from line `start` on."""

    page: int
    start: int
    count: int
    level: int


@dataclass(frozen=True)
class Style:
    """How a heading looks; equal looks mean equal rank."""

    size: float
    bold: bool
    font: str

    @property
    def weight(self) -> tuple[float, bool]:
        """What headings are ranked by: size in points, then bold."""
        return self.size, self.bold


@dataclass(frozen=True)
class Body:
    """What running text looks like in this document."""

    size: float
    bold: bool


def outline_of(document: pypdfium2.PdfDocument) -> list[Bookmark]:
    """The outline entries that name a page, in order; level 1 is the outermost."""
    entries = []
    for item in document.get_toc(max_depth=MAX_LEVEL):
        title = " ".join((item.get_title() or "").split())
        dest = item.get_dest()
        page = dest.get_index() if dest else None
        if not title or page is None:
            continue
        y = None
        if dest is not None:
            view = dest.get_view()[1]
            y = float(view[1]) if len(view) >= 2 else None
        entries.append(Bookmark(title, item.level + 1, page, y))
    return entries


def body_of(pages: Sequence[Sequence[Line]]) -> Body:
    """The size of running text in points, that of most characters, and whether most is bold."""
    sizes: Counter[float] = Counter()
    bold = total = 0
    for page in pages:
        for line in page:
            if not line.mono and line.upright:
                sizes[line.size] += len(line.text)
                bold += len(line.text) * line.bold
                total += len(line.text)
    size = max(sizes, key=lambda s: (sizes[s], s)) if sizes else 10.0
    return Body(size, bold > 0.4 * total)


def headings_of(
    pages: Sequence[Sequence[Line]],
    outline: Sequence[Bookmark],
    heights: Sequence[float],
    body: Body,
    pitches: Mapping[float, float],
) -> dict[tuple[int, int], Heading]:
    """All headings by (page, first line)."""
    headings = _from_outline(pages, outline, heights)
    used = {(h.page, i) for h in headings for i in range(h.start, h.start + h.count)}
    groups = [
        group
        for group in _candidates(pages, body, pitches)
        if not any((group[0], i) in used for i in range(group[1], group[1] + group[2]))
    ]
    levels, numbered = _levels(pages, groups, headings if len(headings) >= _MIN_OUTLINE else [])
    for page, start, count in groups:
        style = _style(pages[page][start])
        depth = _depth(_joined(pages[page], start, count)) if style in numbered else None
        headings.append(Heading(page, start, count, depth or levels[style]))
    return {(h.page, h.start): h for h in _nested(headings)}


def _nested(headings: Sequence[Heading]) -> list[Heading]:
    """Levels without holes: a heading is one deeper than the one it stands under."""
    above: list[int] = []
    out = []
    for heading in sorted(headings, key=lambda h: (h.page, h.start)):
        while above and above[-1] >= heading.level:
            above.pop()
        above.append(heading.level)
        out.append(replace(heading, level=min(MAX_LEVEL, len(above))))
    return out


def _from_outline(
    pages: Sequence[Sequence[Line]], outline: Sequence[Bookmark], heights: Sequence[float]
) -> list[Heading]:
    headings: list[Heading] = []
    used: set[tuple[int, int]] = set()
    for mark in outline:
        for page in (mark.page, mark.page + 1, mark.page - 1):
            if not 0 <= page < len(pages):
                continue
            place = _find_title(pages[page], mark, page, heights, used)
            if place is not None:
                start, count = place
                used |= {(page, i) for i in range(start, start + count)}
                headings.append(Heading(page, start, count, min(MAX_LEVEL, mark.level)))
                break
    return headings


def _find_title(
    lines: Sequence[Line],
    mark: Bookmark,
    page: int,
    heights: Sequence[float],
    used: set[tuple[int, int]],
) -> tuple[int, int] | None:
    wanted = normalised(mark.title)
    if not wanted:
        return None
    places = []
    for start, line in enumerate(lines):
        text = ""
        for count in range(1, min(_MAX_TITLE_LINES, len(lines) - start) + 1):
            if (page, start + count - 1) in used:
                break
            text += normalised(lines[start + count - 1].text)
            if _same_title(text, wanted):
                places.append((start, count, line.y0))
                break
            if len(text) > len(wanted) + 20:
                break
    if not places:
        return None
    if mark.y is None or page != mark.page:
        return places[0][:2]
    y = heights[page] - mark.y
    best = min(places, key=lambda p: (round(abs(p[2] - y) / 40), p[0]))
    return best[0], best[1]


def _same_title(text: str, wanted: str) -> bool:
    if text == wanted:
        return True
    longer, shorter = (text, wanted) if len(text) > len(wanted) else (wanted, text)
    return (
        len(shorter) > 2
        and longer.endswith(shorter)
        and bool(_PREFIX.fullmatch(longer[: -len(shorter)]))
    )


def _style(line: Line) -> Style:
    return Style(round(line.size * 2) / 2, line.bold, line.font)


def _joined(lines: Sequence[Line], start: int, count: int) -> str:
    return " ".join(line.text for line in lines[start : start + count])


def _depth(text: str) -> int | None:
    match = _NUMBERED.match(text)
    return min(MAX_LEVEL, match.group(1).count(".") + 1) if match else None


def _candidates(
    pages: Sequence[Sequence[Line]], body: Body, pitches: Mapping[float, float]
) -> list[tuple[int, int, int]]:
    """(page, first line, lines) of what stands out like a heading."""
    groups = []
    for index, lines in enumerate(pages):
        start = 0
        while start < len(lines):
            count = _standing_out(lines, start, body)
            if count and _reads_like_title(lines, start, count, body, pitches):
                groups.append((index, start, count))
            start += max(1, count)
    return groups


def _standing_out(lines: Sequence[Line], start: int, body: Body) -> int:
    """How many lines from `start` on share one look that is larger or bolder than running text."""
    first = lines[start]
    larger = first.size >= 1.08 * body.size
    bolder = first.bold and not body.bold and first.size >= 0.93 * body.size
    if first.mono or not first.upright or not (larger or bolder):
        return 0
    count = 1
    while start + count < len(lines):
        line, last = lines[start + count], lines[start + count - 1]
        close = 0 < line.base - last.base < 1.7 * first.size and line.column == first.column
        if not close or _style(line) != _style(first) or _depth(line.text):
            break
        count += 1
    return count


def _reads_like_title(
    lines: Sequence[Line], start: int, count: int, body: Body, pitches: Mapping[float, float]
) -> bool:
    text = _joined(lines, start, count)
    if count > 3 or len(text) > _MAX_TITLE_LENGTH or not any(ch.isalpha() for ch in text):
        return False
    if any(line.inner_gap > 1.5 * line.size for line in lines[start : start + count]):
        return False  # cells of a table without rules
    if _CAPTION.match(text) or _NOT_TITLE.search(text):
        return False
    if lines[start].size >= 1.08 * body.size:
        return True
    return len(text) <= 90 and _stands_apart(lines, start, pitches)


def _stands_apart(lines: Sequence[Line], start: int, pitches: Mapping[float, float]) -> bool:
    """A bold line of body size is a heading when space, not running text, stands before it."""
    if start == 0:
        return True
    before, first = lines[start - 1], lines[start]
    gap = first.base - before.base
    return not 0 <= gap <= 1.2 * pitches.get(before.size, 1.25 * before.size)


def _levels(
    pages: Sequence[Sequence[Line]],
    groups: Sequence[tuple[int, int, int]],
    headings: Sequence[Heading],
) -> tuple[dict[Style, int], set[Style]]:
    """The level of each look by outline, numbering or rank; and the looks that are numbered."""
    votes: dict[Style, Counter[int]] = defaultdict(Counter)
    for heading in headings:
        votes[_style(pages[heading.page][heading.start])][heading.level] += 1
    members: Counter[Style] = Counter(_style(pages[page][start]) for page, start, _ in groups)
    numbered: set[Style] = set()
    if not headings:
        depths: dict[Style, Counter[int]] = defaultdict(Counter)
        for page, start, count in groups:
            depth = _depth(_joined(pages[page], start, count))
            if depth:
                depths[_style(pages[page][start])][depth] += 1
        numbered = {
            style for style, counts in depths.items() if counts.total() >= 0.5 * members[style]
        }
        votes.update((style, depths[style]) for style in numbered)
    known = {style: counts.most_common(1)[0][0] for style, counts in votes.items()}
    return _ranked(set(members), known), numbered


def _ranked(styles: set[Style], known: Mapping[Style, int]) -> dict[Style, int]:
    levels = dict(known)
    for style in sorted(styles - set(known), key=lambda s: s.weight, reverse=True):
        larger = [level for other, level in levels.items() if other.weight > style.weight]
        equal = [level for other, level in levels.items() if other.weight == style.weight]
        levels[style] = equal[0] if equal else min(MAX_LEVEL, max(larger, default=0) + 1)
    return levels
