"""Page furniture and headings, by the lines of the pages.

Running heads, footers, page numbers and tables of contents are removed; a printed page number
becomes the label of a page that has none in the file. Headings are the lines that the outline of
the file names, and others by font size, weight and numbering. Knows lines, not paragraphs.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import pypdfium2

from ingestion.formats.pdf.page import TextLine

_EDGE = 0.13
_ROMAN = r"[ivxlc]{1,7}"
_PAGE_NUMBER = re.compile(
    rf"^[\s\-\u2013\u2014|.\[(]*(?:page\s+)?(\d{{1,4}}|{_ROMAN})(?:\s*(?:/|of)\s*\d+)?[\s\-\u2013\u2014|.\])]*$",
    re.I,
)
_LAST_NUMBER = re.compile(rf"(?:^|[\s|])(\d{{1,4}}|{_ROMAN})\s*$", re.I)
_FIRST_NUMBER = re.compile(r"^\s*(\d{1,4})(?=\s)")
_LEADERS = re.compile(rf"(?:\s?[.…·]){{4,}}\s*(?:\d{{1,4}}(?:-\d+)?|{_ROMAN})?\s*$", re.I)
_ENDS_WITH_PAGE = re.compile(rf"\s(?:\d{{1,4}}|{_ROMAN})$", re.I)
_CONTENTS = re.compile(r"^(?:table of )?contents$|^list of (?:figures|tables)$|^inhalt", re.I)
_DIGITS = re.compile(r"\d+")
_MIN_CONTENTS_LINES = 5
_SHORT_TITLE = 3

# (head or foot, height, font size): a chapter title can have the height of a running head.
Slot = tuple[str, int, int]


@dataclass(frozen=True)
class Content:
    """Lines without furniture, printed page numbers by page, and the pages from which a table of
    contents was removed."""

    pages: tuple[tuple[TextLine, ...], ...]
    printed: Mapping[int, str]
    contents_pages: tuple[int, ...]


def without_furniture(
    pages: Sequence[Sequence[TextLine]],
    heights: Sequence[float],
    labels: Sequence[str | None],
    headings: Collection[str] = (),
) -> Content:
    """Remove furniture. `headings`: normalised outline titles, which running heads repeat."""
    slots = _recurring_slots(pages, heights, headings)
    numbers = _lone_numbers(pages, heights, labels)
    printed: dict[int, str] = {}
    contents: list[int] = []
    bodies: list[tuple[TextLine, ...]] = []
    for index, lines in enumerate(pages):
        rest = []
        for line in lines:
            zone = _zone(line, heights[index])
            if zone and (_slot(line, zone) in slots or line is numbers.get(index)):
                for number in _page_numbers(line.text)[:1]:
                    printed.setdefault(index, number)
            else:
                rest.append(line)
        body = _without_contents(rest)
        if len(body) < len(rest):
            contents.append(index)
        bodies.append(tuple(body))
    return Content(tuple(bodies), _plausible(printed), tuple(contents))


def normalised(text: str) -> str:
    """The letters and digits of a text in lower case, to compare titles."""
    return re.sub(r"[\W_]+", "", text.lower())


def _zone(line: TextLine, height: float) -> str:
    if line.y1 < _EDGE * height:
        return "head"
    return "foot" if line.y0 > (1 - _EDGE) * height else ""


def _slot(line: TextLine, zone: str) -> Slot:
    return zone, round(line.base / 2), round(line.size)


def _lone_numbers(
    pages: Sequence[Sequence[TextLine]], heights: Sequence[float], labels: Sequence[str | None]
) -> dict[int, TextLine]:
    """Lines that are only a page number: the label of the page, or counting up with the pages."""
    numbers: dict[int, tuple[TextLine, str]] = {}
    for index, lines in enumerate(pages):
        for line in lines:
            zone = _zone(line, heights[index])
            match = _PAGE_NUMBER.match(line.text) if zone else None
            if match and _outermost(line, lines, zone):
                numbers[index] = (line, match.group(1).lower())
    offsets = Counter(int(n) - i for i, (_, n) in numbers.items() if n.isdigit())
    offset, count = offsets.most_common(1)[0] if offsets else (1, 0)
    steady = count >= 2
    return {
        i: line
        for i, (line, n) in numbers.items()
        if n == (labels[i] or "").lower()
        or (n.isdigit() and int(n) - i == offset and (steady or offset == 1))
        or (not n.isdigit() and steady)
    }


def _outermost(line: TextLine, lines: Sequence[TextLine], zone: str) -> bool:
    others = [other for other in lines if other is not line and other.upright]
    if zone == "head":
        return all(other.base >= line.base - 1 for other in others)
    return all(other.base <= line.base + 1 for other in others)


def _page_numbers(text: str) -> list[str]:
    """Possible page numbers of a running head: at its end or, on left pages, its start."""
    whole = _PAGE_NUMBER.match(text)
    if whole:
        return [whole.group(1)]
    return [m.group(1) for m in (_LAST_NUMBER.search(text), _FIRST_NUMBER.match(text)) if m]


def _recurring_slots(
    pages: Sequence[Sequence[TextLine]], heights: Sequence[float], headings: Collection[str]
) -> set[Slot]:
    """Slots in which most lines repeat a text or a heading, or contain the page number."""
    lines: dict[Slot, list[TextLine]] = defaultdict(list)
    for index, page in enumerate(pages):
        for line in page:
            zone = _zone(line, heights[index])
            if zone and line.upright:
                lines[_slot(line, zone)].append(line)
    filled = sum(bool(page) for page in pages)
    needed = 2 if filled <= 4 else max(3, round(0.15 * filled))
    return {
        slot
        for slot, members in lines.items()
        # Pages are counted: the first lines of two columns are no running head.
        if len({line.page for line in members}) >= needed and _repeats(members, headings, filled)
    }


def _repeats(lines: Sequence[TextLine], headings: Collection[str], filled: int) -> bool:
    texts = Counter(text for _, text in {(x.page, _DIGITS.sub("#", x.text)) for x in lines})
    offsets = Counter(o for line in lines for o in _offsets(line))
    offset, count = offsets.most_common(1)[0] if offsets else (0, 0)
    often = 2 if filled <= 4 else 3
    marked = 0
    for line in lines:
        bears_number = count > 0.3 * len(lines) and (
            offset in _offsets(line) or any(not n.isdigit() for n in _page_numbers(line.text))
        )
        repeated = texts[_DIGITS.sub("#", line.text)] >= often
        marked += bears_number or repeated or _repeats_heading(line.text, headings)
    return marked >= 0.8 * len(lines)


def _offsets(line: TextLine) -> set[int]:
    return {int(n) - line.page for n in _page_numbers(line.text) if n.isdigit()}


def _repeats_heading(text: str, headings: Collection[str]) -> bool:
    title = normalised(_DIGITS.sub("", text))
    if len(title) <= _SHORT_TITLE:
        return False
    return any(title.endswith(h) or h.endswith(title) for h in headings if len(h) > _SHORT_TITLE)


def _without_contents(lines: Sequence[TextLine]) -> list[TextLine]:
    """The lines of a page without a table of contents (dotted leaders to a page number)."""
    leaders = [line for line in lines if _LEADERS.search(line.text)]
    if len(leaders) < _MIN_CONTENTS_LINES:
        return list(lines)
    right = max(line.x1 for line in leaders)
    left = min(line.x0 for line in leaders)
    top = min(line.y0 for line in leaders)
    most = len(leaders) > 0.6 * len(lines)

    def is_entry(line: TextLine) -> bool:
        if _LEADERS.search(line.text) or _CONTENTS.match(line.text.strip()):
            return True
        aligned = abs(line.x1 - right) < 3 and line.tail_gap > line.size
        if aligned and _ENDS_WITH_PAGE.search(line.text):
            return True
        return most and top < line.y0 and line.x0 >= left - 2 and line.x1 < right - 10  # wrapped

    return [line for line in lines if not is_entry(line)]


def _plausible(printed: Mapping[int, str]) -> dict[int, str]:
    """The printed numbers that count up with the pages."""
    arabic = Counter(int(n) - i for i, n in printed.items() if n.isdigit())
    if not arabic:
        return dict(printed) if len(printed) > 1 else {}
    offset, count = arabic.most_common(1)[0]
    if count < 2:
        return {}
    return {i: n for i, n in printed.items() if not n.isdigit() or int(n) - i == offset}


# -- headings

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
class PageHeading:
    """A heading that takes `count` lines of its page, from line `start` on."""

    page: int
    start: int
    count: int
    level: int


class HeadingStyle(NamedTuple):
    """The look of a heading; equal looks have equal rank. Larger sizes (in points) rank higher,
    then bold ones."""

    size: float
    bold: bool
    font: str


class BodyStyle(NamedTuple):
    """The look of running text."""

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
        view = dest.get_view()[1]
        y = float(view[1]) if len(view) >= 2 else None
        entries.append(Bookmark(title, item.level + 1, page, y))
    return entries


def body_of(pages: Sequence[Sequence[TextLine]]) -> BodyStyle:
    """The size in points of most characters, and whether much of the text is bold."""
    sizes: Counter[float] = Counter()
    bold = total = 0
    for page in pages:
        for line in page:
            if not line.mono and line.upright:
                sizes[line.size] += len(line.text)
                bold += len(line.text) * line.bold
                total += len(line.text)
    size = max(sizes, key=lambda s: (sizes[s], s)) if sizes else 10.0
    return BodyStyle(size, bold > 0.4 * total)


def headings_of(
    pages: Sequence[Sequence[TextLine]],
    outline: Sequence[Bookmark],
    heights: Sequence[float],
    body: BodyStyle,
    pitches: Mapping[float, float],
) -> dict[tuple[int, int], PageHeading]:
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
        headings.append(PageHeading(page, start, count, depth or levels[style]))
    return {(h.page, h.start): h for h in _nested(headings)}


def _nested(headings: Sequence[PageHeading]) -> list[PageHeading]:
    """The headings with levels without gaps: each is one deeper than the heading above it."""
    above: list[int] = []
    out = []
    for heading in sorted(headings, key=lambda h: (h.page, h.start)):
        while above and above[-1] >= heading.level:
            above.pop()
        above.append(heading.level)
        out.append(replace(heading, level=min(MAX_LEVEL, len(above))))
    return out


def _from_outline(
    pages: Sequence[Sequence[TextLine]], outline: Sequence[Bookmark], heights: Sequence[float]
) -> list[PageHeading]:
    headings: list[PageHeading] = []
    used: set[tuple[int, int]] = set()
    for mark in outline:
        for page in (mark.page, mark.page + 1, mark.page - 1):
            if not 0 <= page < len(pages):
                continue
            place = _find_title(pages[page], mark, page, heights, used)
            if place is not None:
                start, count = place
                used |= {(page, i) for i in range(start, start + count)}
                headings.append(PageHeading(page, start, count, min(MAX_LEVEL, mark.level)))
                break
    return headings


def _find_title(
    lines: Sequence[TextLine],
    mark: Bookmark,
    page: int,
    heights: Sequence[float],
    used: set[tuple[int, int]],
) -> tuple[int, int] | None:
    title = normalised(mark.title)
    if not title:
        return None
    places = []
    for start, line in enumerate(lines):
        text = ""
        for count in range(1, min(_MAX_TITLE_LINES, len(lines) - start) + 1):
            if (page, start + count - 1) in used:
                break
            text += normalised(lines[start + count - 1].text)
            if _same_title(text, title):
                places.append((start, count, line.y0))
                break
            if len(text) > len(title) + 20:
                break
    if not places:
        return None
    if mark.y is None or page != mark.page:
        return places[0][:2]
    y = heights[page] - mark.y
    best = min(places, key=lambda p: (round(abs(p[2] - y) / 40), p[0]))
    return best[0], best[1]


def _same_title(text: str, title: str) -> bool:
    if text == title:
        return True
    longer, shorter = (text, title) if len(text) > len(title) else (title, text)
    return (
        len(shorter) > 2
        and longer.endswith(shorter)
        and bool(_PREFIX.fullmatch(longer[: -len(shorter)]))
    )


def _style(line: TextLine) -> HeadingStyle:
    return HeadingStyle(round(line.size * 2) / 2, line.bold, line.font)


def _joined(lines: Sequence[TextLine], start: int, count: int) -> str:
    return " ".join(line.text for line in lines[start : start + count])


def _depth(text: str) -> int | None:
    match = _NUMBERED.match(text)
    return min(MAX_LEVEL, match.group(1).count(".") + 1) if match else None


def _candidates(
    pages: Sequence[Sequence[TextLine]], body: BodyStyle, pitches: Mapping[float, float]
) -> list[tuple[int, int, int]]:
    """(page, first line, number of lines) of text that looks like a heading."""
    groups = []
    for index, lines in enumerate(pages):
        start = 0
        while start < len(lines):
            count = _heading_lines(lines, start, body)
            if count and _reads_like_title(lines, start, count, body, pitches):
                groups.append((index, start, count))
            start += max(1, count)
    return groups


def _heading_lines(lines: Sequence[TextLine], start: int, body: BodyStyle) -> int:
    """The number of lines from `start` on with one look that is larger or bolder than the body."""
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
    lines: Sequence[TextLine],
    start: int,
    count: int,
    body: BodyStyle,
    pitches: Mapping[float, float],
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


def _stands_apart(lines: Sequence[TextLine], start: int, pitches: Mapping[float, float]) -> bool:
    """Whether there is space before a line, not running text: then one in bold is a heading."""
    if start == 0:
        return True
    before, first = lines[start - 1], lines[start]
    gap = first.base - before.base
    return not 0 <= gap <= 1.2 * pitches.get(before.size, 1.25 * before.size)


def _levels(
    pages: Sequence[Sequence[TextLine]],
    groups: Sequence[tuple[int, int, int]],
    headings: Sequence[PageHeading],
) -> tuple[dict[HeadingStyle, int], set[HeadingStyle]]:
    """The level of each look by outline, numbering or rank, and the looks with numbers."""
    votes: dict[HeadingStyle, Counter[int]] = defaultdict(Counter)
    for heading in headings:
        votes[_style(pages[heading.page][heading.start])][heading.level] += 1
    members: Counter[HeadingStyle] = Counter(
        _style(pages[page][start]) for page, start, _ in groups
    )
    numbered: set[HeadingStyle] = set()
    if not headings:
        depths: dict[HeadingStyle, Counter[int]] = defaultdict(Counter)
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


def _ranked(
    styles: set[HeadingStyle], known: Mapping[HeadingStyle, int]
) -> dict[HeadingStyle, int]:
    levels = dict(known)
    for style in sorted(styles - set(known), key=lambda s: s[:2], reverse=True):
        larger = [level for other, level in levels.items() if other[:2] > style[:2]]
        equal = [level for other, level in levels.items() if other[:2] == style[:2]]
        levels[style] = equal[0] if equal else min(MAX_LEVEL, max(larger, default=0) + 1)
    return levels
