"""What a page carries besides content: running heads, footers, page numbers, contents lists.

They are removed before lines become paragraphs. The printed page number is kept: it labels
the page where the file itself has no page labels. Knows lines only.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ingestion.formats.pdf.lines import Line

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

# Head or foot of the page, height on it, font size: a chapter title may stand where others have a
# running head.
Slot = tuple[str, int, int]


@dataclass(frozen=True)
class Content:
    """Lines without furniture, printed page numbers, and pages that lost a table of contents."""

    pages: tuple[tuple[Line, ...], ...]
    printed: Mapping[int, str]
    contents_pages: tuple[int, ...]


def without_furniture(
    pages: Sequence[Sequence[Line]],
    heights: Sequence[float],
    labels: Sequence[str | None],
    headings: Collection[str] = (),
) -> Content:
    """Take furniture out. `headings`: normalised outline titles, which running heads repeat."""
    slots = _recurring_slots(pages, heights, headings)
    numbers = _lone_numbers(pages, heights, labels)
    printed: dict[int, str] = {}
    contents: list[int] = []
    kept: list[tuple[Line, ...]] = []
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
        kept.append(tuple(body))
    return Content(tuple(kept), _plausible(printed), tuple(contents))


def normalised(text: str) -> str:
    """A text as it is compared with others: its letters and digits in lower case."""
    return re.sub(r"[\W_]+", "", text.lower())


def _zone(line: Line, height: float) -> str:
    if line.y1 < _EDGE * height:
        return "head"
    return "foot" if line.y0 > (1 - _EDGE) * height else ""


def _slot(line: Line, zone: str) -> Slot:
    return zone, round(line.base / 2), round(line.size)


def _lone_numbers(
    pages: Sequence[Sequence[Line]], heights: Sequence[float], labels: Sequence[str | None]
) -> dict[int, Line]:
    """Lines that are nothing but a page number: the page's label, or counting up with the pages."""
    numbers: dict[int, tuple[Line, str]] = {}
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


def _outermost(line: Line, lines: Sequence[Line], zone: str) -> bool:
    others = [other for other in lines if other is not line and other.upright]
    if zone == "head":
        return all(other.base >= line.base - 1 for other in others)
    return all(other.base <= line.base + 1 for other in others)


def _page_numbers(text: str) -> list[str]:
    """Candidates for the page number of a running head: at its end or, on left pages, its start."""
    whole = _PAGE_NUMBER.match(text)
    if whole:
        return [whole.group(1)]
    return [m.group(1) for m in (_LAST_NUMBER.search(text), _FIRST_NUMBER.match(text)) if m]


def _recurring_slots(
    pages: Sequence[Sequence[Line]], heights: Sequence[float], headings: Collection[str]
) -> set[Slot]:
    """Slots in which most lines repeat a text, carry the page number or repeat a heading."""
    lines: dict[Slot, list[Line]] = defaultdict(list)
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
        # On other pages: the first lines of two columns are no running head.
        if len({line.page for line in members}) >= needed and _repeats(members, headings, filled)
    }


def _repeats(lines: Sequence[Line], headings: Collection[str], filled: int) -> bool:
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


def _offsets(line: Line) -> set[int]:
    return {int(n) - line.page for n in _page_numbers(line.text) if n.isdigit()}


def _repeats_heading(text: str, headings: Collection[str]) -> bool:
    title = normalised(_DIGITS.sub("", text))
    if len(title) <= _SHORT_TITLE:
        return False
    return any(title.endswith(h) or h.endswith(title) for h in headings if len(h) > _SHORT_TITLE)


def _without_contents(lines: Sequence[Line]) -> list[Line]:
    """The lines of a page without its table of contents: dotted leaders to a page number."""
    leaders = [line for line in lines if _LEADERS.search(line.text)]
    if len(leaders) < _MIN_CONTENTS_LINES:
        return list(lines)
    right = max(line.x1 for line in leaders)
    left = min(line.x0 for line in leaders)
    top = min(line.y0 for line in leaders)
    rest = []
    for line in lines:
        entry = (
            _ENDS_WITH_PAGE.search(line.text)
            and abs(line.x1 - right) < 3
            and line.tail_gap > line.size
        )
        wrapped = (
            top < line.y0
            and line.x0 >= left - 2
            and line.x1 < right - 10
            and len(leaders) > 0.6 * len(lines)
        )
        if not (
            _LEADERS.search(line.text) or entry or wrapped or _CONTENTS.match(line.text.strip())
        ):
            rest.append(line)
    return rest


def _plausible(printed: Mapping[int, str]) -> dict[int, str]:
    """Printed numbers, if they count up with the pages; others are something else."""
    arabic = Counter(int(n) - i for i, n in printed.items() if n.isdigit())
    if not arabic:
        return dict(printed) if len(printed) > 1 else {}
    offset, count = arabic.most_common(1)[0]
    if count < 2:
        return {}
    return {i: n for i, n in printed.items() if not n.isdigit() or int(n) - i == offset}
