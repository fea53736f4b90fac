"""Named quantities in a text of any layout: tables with bars, commas, tabs or aligned columns,
lines of keys and values, lists in brackets, sentences.

Each number has the names that it may have, the most likely first, its unit and its row. The names
are of the text: `lexicon` has the words of the field for what the rules know, and the registry of
metrics the names of counters.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from retrieval.profiles.lexicon import MARKS, pattern_of
from retrieval.profiles.profile import without_deviations, without_prefix

MAX_LINE = 2_000
MAX_NAME = 90
MOST_RATE = 1e18  # of any device; a larger number is no less wrong
_NUMBER = (
    r"-?(?:\d{1,3}(?:\.\d{3}){2,}|\d{1,3}(?:[,'\u2019\u202f\xa0 ]\d{3})+(?:\.\d+)?|\d+(?:[.,]\d+)?)"
    r"(?:[eE][+-]?\d+)?"
)
_BYTES = r"[kKMGTP]?i?[Bb](?:ytes?)?"
_FLOPS = r"[kKMGTP]?(?:FLOP[Ss]?|[Ff]lops?)(?:/s(?:ec)?)?"
_UNIT = rf"%|{_BYTES}(?:/s(?:ec(?:ond)?)?)?|{_FLOPS}|[num\u00b5\u03bc]?s(?:ec(?:ond)?s?)?|US|MS"
_VALUE = re.compile(
    rf"(?P<number>{_NUMBER})\s?(?P<unit>{_UNIT})?(?![\w.])"
    r"(?:\s?(?:/|out of)\s?(?P<whole>\d+)(?![\w.%]))?"
)
_TIMES = {"ns": 1e-3, "us": 1.0, "\u00b5s": 1.0, "\u03bcs": 1.0, "ms": 1e3, "s": 1e6}
PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15}
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
# "01m02s239ms231.349us": parts of one time.
_PARTS = re.compile(
    r"(?<![\w.])(?:(?P<h>\d+)h)?(?:(?P<m>\d+)m(?!s))?(?:(?P<s>\d+)s)?(?:(?P<ms>\d+)ms)?(?P<us>[\d.]+)us"
)
# In the text of perf: its locale has a decimal comma, also where three digits follow it.
_DECIMAL_COMMA = re.compile(r"\d,\d\d\s?%|\d,\d{4,} .{0,40}seconds time elapsed")
_LEVEL = re.compile(r"(?:Idle|Low|Mid|High|Max) \((\d{1,2})\)")
_RULE = re.compile(r"[\s|:+=\u2500\u2550-]*-[\s|:+=\u2500\u2550-]*")
_NUMBERED = re.compile(r"\d+(?:\.\d+)+")
_WORDS = re.compile(r"[A-Za-z_][\w.:/%\[\]() +&\u00b5-]{0,120}")
_HEAD = re.compile(r"[A-Za-z%#][\w .:%#()/\[\],-]*")
# A word or mark between a name and its number in a sentence, and words around a name.
_JOINT = re.compile(
    r"(?:\b(?:is|are|was|were|at|of|to|about|only|around|reaches|reports|says|said|shows|with|has|just"
    r"|roughly|nearly|than|and|but|against|versus|vs\.?|from)\b|[=:~\u2248\"'`*|,;(\s])$",
    re.IGNORECASE,
)
LONGEST_JOINT = 8  # characters
LONGEST_KEY = 240  # characters; the search for a key takes their square
_LEADING = re.compile(r"^(?:\s|\b(?:of|the|its|kernel's|a|an|all|for|in)\b)+", re.IGNORECASE)
_ENDED = re.compile(r"[,;()|]|\.\s|\s{2,}|\b(?:and|but|against|while|with|at|were|was|is|are|on)\b")


@dataclass(frozen=True)
class Quantity:
    """A number with the names that it may have, its unit as written, the row of its table, the
    line (from 0), and the place in the line where its name begins. `column` counts the values of
    one name, `head` is above it; `words` marks a number in a sentence."""

    names: tuple[str, ...]
    number: float
    unit: str
    row: str = ""
    line: int = 0
    start: int = 0
    column: int = 0
    head: str = ""
    whole: float = 0.0
    words: bool = False

    @property
    def text(self) -> str:
        """The number and its unit."""
        return f"{self.number:.15g} {self.unit}".strip()

    def kind(self, name: str) -> str:
        """What the number is, under this name: "%", "B", "us", "rate", or "1" without a unit."""
        if self.unit == "%" or re.search(r"%|\bpct\b|_pct|percent", name, re.IGNORECASE):
            return "%"
        if not self.unit:
            return "1"
        return "us" if self.unit.lower() in _TIMES else "rate" if self.rate else "B"

    @property
    def rate(self) -> tuple[str, float] | None:
        """The metric and the amount in a second, for a rate of bytes or of operations."""
        found = re.fullmatch(
            r"(?P<p>[kmgtp]?)(?P<i>i?)(?:(?P<b>b\w*)/s\w*|flops?(?:/\w+)?)", self.unit.lower()
        )
        if found is None:
            return None
        factor = (
            1024.0 ** _POWERS[found["p"]] if found["i"] and found["p"] else PREFIXES[found["p"]]
        )
        name = "achieved_bytes_per_s" if found["b"] else "achieved_flops"
        return name, min(self.number * factor, MOST_RATE)


def quantities(text: str) -> list[Quantity]:
    """All named numbers of a text, in its order; those of tables first."""
    text = in_one_unit(without_deviations(text))
    text = re.sub(r"\b(\d+):(\d+) ([a-z]+):([a-z]+)\b", r"\1 \3, \2 \4", text)
    if _DECIMAL_COMMA.search(text):
        text = re.sub(r"(#\s*-?\d+),(\d)", r"\1.\2", text)
    lines = [without_prefix(line) if len(line) <= MAX_LINE else "" for line in text.splitlines()]
    found, used = _of_tables(lines)
    for place, line in enumerate(lines):
        if place not in used and line.strip():
            found += _of_line(line, place)
    return found


def in_one_unit(text: str) -> str:
    """A text with times of several parts ("1m02s239ms231.349us") in microseconds."""
    return _PARTS.sub(_in_microseconds, text)


def _in_microseconds(match: re.Match[str]) -> str:
    if not any(match[part] for part in ("h", "m", "s", "ms")):
        return match[0]
    factors = {"h": 3.6e9, "m": 6e7, "s": 1e6, "ms": 1e3, "us": 1.0}
    return f"{sum(float(match[p] or 0) * factor for p, factor in factors.items()):.3f} us"


# -- tables


def cells_of(line: str) -> list[str]:
    """The cells of a line between bars, commas or tabs; a line without these is one cell."""
    if line.count("|") + line.count("\u2502") >= 1:
        cells = re.split("[|\u2502]", line.strip().strip("|\u2502"))
    elif "\t" in line.strip():
        cells = line.strip().split("\t")
    elif line.count(",") >= 2:
        cells = next(csv.reader([line.strip()], skipinitialspace=True), [])
    else:
        cells = [line]
    return [cell.strip(MARKS).removeprefix("- ") for cell in cells]


_VALUES = pattern_of("value_heads")
_METRIC = re.compile(r"(?:metric|counter|event)s?(?: name)?|quantity|property", re.IGNORECASE)


def _of_tables(lines: Sequence[str]) -> tuple[list[Quantity], set[int]]:
    """The quantities of tables, and the numbers of their lines."""
    found: list[Quantity] = []
    used: set[int] = set()
    heads: list[str] = []
    for place, line in enumerate(lines):
        cells = cells_of(line)
        aligned = len(cells) < 2
        if aligned:
            cells = re.split(r"\s{2,}", line.strip())
        if len(cells) < 2 + aligned or _RULE.fullmatch(line):
            heads = [] if len(line.split()) > MOST_WORDS else heads
        elif all(_HEAD.fullmatch(cell) or not cell for cell in cells):
            heads = cells
        else:
            barred = bool(re.search("[|\u2502\t]", line.strip()))
            rows = [*_of_row(heads, cells, place, aligned, barred)]
            found += rows
            used |= {row.line for row in rows}
    return found, used


MOST_WORDS = 6  # of a line that may stand between the head and the rows of a table


def _of_row(
    heads: Sequence[str], cells: Sequence[str], place: int, aligned: bool, barred: bool
) -> Iterator[Quantity]:
    """The quantities of a row: one for each head, or those of the name in its first cell."""
    surplus = len(cells) - len(heads)
    if aligned and len(heads) > 3 and 0 < surplus < 3:  # blanks in the name of the row
        cells = [" ".join(cells[: surplus + 1]), *cells[surplus + 1 :]]
    above = heads if len(heads) == len(cells) else []
    if _NUMBERED.fullmatch(cells[0]) and len(cells) > 2:
        cells, above = cells[1:], above[1:]
    values = [_value(cell) for cell in cells]
    named = any(_METRIC.fullmatch(head) for head in above[:2])
    if above and not named and not all(map(_VALUES.fullmatch, above[1:])):
        yield from _of_case(above, cells, values, place)
    elif barred and cells[0] and values[0] is None:
        yield from _of_metric(above, cells, values, place)


def _of_case(
    heads: Sequence[str], cells: Sequence[str], values: Sequence[re.Match[str] | None], place: int
) -> Iterator[Quantity]:
    """A row with a value for each head."""
    row = next((c for c, v in zip(cells, values, strict=True) if v is None and c), "")
    for head, value in zip(heads, values, strict=True):
        if value is not None:
            yield _quantity(value, (head,), row=row, line=place, head=head)


def _of_metric(
    heads: Sequence[str], cells: Sequence[str], values: Sequence[re.Match[str] | None], place: int
) -> Iterator[Quantity]:
    """A row of one name: of its values, the average first."""
    folded = [head.lower() for head in heads]
    average = folded.index("avg") if "avg" in folded and len(heads) == len(cells) else 0
    units = folded.index("unit") if "unit" in folded and len(heads) == len(cells) else 0
    order = [average, *range(1, len(cells))] if average else range(1, len(cells))
    first = next((i for i, value in enumerate(values) if value), 1)
    names = [cell for cell in cells[:first] if cell]
    for column, index in enumerate(dict.fromkeys(order)):
        if (value := values[index]) is not None:
            unit = cells[units] if units and re.fullmatch(_UNIT, cells[units]) else ""
            head = heads[index] if index < len(heads) else ""
            yield _quantity(value, names, unit, line=place, column=column, head=head)


def _value(cell: str) -> re.Match[str] | None:
    return _VALUE.fullmatch(cell.replace(" %", "%").strip())


_OF_NAME = re.compile(
    rf"[\[(]\s*(?P<unit>{_UNIT}|[KMGT]?Bytes(?:/s)?)\s*[\])]|[_ ]\(?(?P<suffix>ns|us|ms)\)?$"
    rf"|(?<=[a-z])(?P<end>[NUM]s)$|(?:^|\s)(?P<rate>{_BYTES}/s|{_FLOPS})$"
)


def unit_of(name: str) -> str:
    """The unit that a name carries ("Time (ms)", "Memory bandwidth [MBytes/s]"); empty without."""
    found = _OF_NAME.search(name.strip())
    written = next(filter(None, found.groups()), "") if found else ""
    return written.lower() if found and found["end"] else written


def _quantity(
    match: re.Match[str], names: Sequence[str], unit: str = "", **place: object
) -> Quantity:
    written = match["unit"] or unit or next(filter(None, map(unit_of, names)), "")
    written = written.lower() if written in ("US", "MS") else written
    whole = float(match["whole"]) if match["whole"] else 0.0
    kept = tuple(dict.fromkeys(name.strip(" :=|,-*`\"'")[:MAX_NAME] for name in names))
    kept = tuple(name for name in kept if re.search("[A-Za-z]", name))
    return Quantity(kept, float(plain(match["number"])), written, whole=whole, **place)  # type: ignore[arg-type]


def plain(number: str) -> str:
    """A number with a point for the decimals and no marks of thousands."""
    if re.fullmatch(r"-?(?:\d+,\d{1,2}|\d+,\d{4,}|0,\d+)", number):
        return number.replace(",", ".")  # a decimal comma
    if number.count(".") > 1:
        return number.replace(".", "")
    return re.sub(r"[,'\u2019\u202f\xa0 ](?=\d{3})", "", number)


# -- lines


def _of_line(line: str, place: int) -> Iterator[Quantity]:
    """Names before their values or behind them; of a minimum, a maximum and an average the last."""
    whole, _, remark = _LEVEL.sub(lambda level: f"{10 * int(level[1])} %", line).partition("#")
    whole = whole.replace("**", "")
    matches = [
        m
        for m in _VALUE.finditer(whole)
        if not re.match(r"[\w./-]", whole[m.start() - 1 :][: m.start()])
    ]
    bare = [float(plain(m["number"])) for m in matches]
    ordered = len(matches) == 3 and bare[0] <= bare[2] <= bare[1]
    first = 0
    last: tuple[str, ...] = ()
    for n, match in enumerate(matches):
        before = whole[first : match.start()]
        end = matches[n + 1].start() if n + 1 < len(matches) else len(whole)
        names, words = _names(before, whole[match.end() : end], n)
        if n == 0 and ordered and not whole[match.end() : end].strip(" ,/|"):
            first = 0
            matches[n], match = matches[2], matches[2]
        start = first + len(before) - len(before.lstrip(" ,;(|"))
        first = match.end()
        count = not re.search("[A-Za-z]", before) and n + 1 < len(matches) and not match["unit"]
        if count and whole[match.end() :].startswith("  "):
            continue  # a column of counts before the name of the others
        if re.fullmatch(r"\s?[\[(]\s{0,4}", before):  # "761.5 ms (26.4%)"
            names = [*last] or names
        quantity = _quantity(match, names, line=place, start=start, words=words)
        last = quantity.names
        if quantity.names or quantity.rate:
            yield quantity
    rate = re.match(
        rf"\s*(?P<number>{_NUMBER})\s?(?P<unit>%)?(?P<whole>)\s+(?:of )?([A-Za-z][\w ./-]+)", remark
    )
    if rate:  # "# 57.98% of all cache refs"
        yield _quantity(rate, (rate[4],), line=place, start=len(whole))


_KEYED = re.compile(
    r"(?P<key>(?:[^,;|()=]|\([^()]*\))*?[\w%\])])\s*(?:[:=]+|\s{2,}|\t|\.{3,})\s*[\"'`*|(\[~]*$"
)


_CASE = re.compile(r"^(?:\S*[\d=]\S*\s+)+")  # values of a case before a name


def _without_joints(text: str) -> str:
    """The text without the joints at its end, in time that grows with their number."""
    end = len(text)
    while joint := _JOINT.search(text, max(0, end - LONGEST_JOINT), end):
        end = joint.start()
    return text[:end]


def _names(before: str, after: str, place: int) -> tuple[list[str], bool]:
    """The names of a number between two texts, and whether it is part of a sentence."""
    following = _LEADING.sub("", after)
    clause = re.split(r"[,;()|]|\.\s", following, maxsplit=1)[0].strip()
    keyed = _KEYED.search(before, max(0, len(before) - LONGEST_KEY))
    if keyed and re.search("[A-Za-z]", keyed["key"]):
        front = before.strip(" \t=:(*")
        parts = [part for part in re.split(r"\s{2,}|\t|:{1,2}\s", front) if part]
        key = keyed["key"].strip(MARKS)
        of = [clause] if after.startswith(" of ") else []
        return [key, *reversed(parts), front, _CASE.sub("", key), *of], False
    behind = _ENDED.split(following, maxsplit=1)[0].strip(" .:=-")
    # "768 threads", "36 bytes spill stores"
    ahead = _without_joints(before).strip()
    if not re.search("[A-Za-z]", before):
        words = re.match(rf"\s*(?:msec\s+)?({_WORDS.pattern})", after)
        named = [name for name in re.split(r"\s{2,}|\(", words[1]) if name] if words else []
        return [*named, behind], False
    if place and behind and before.rstrip()[-1:] in ",;|":  # "36 bytes stores, 52 bytes loads"
        return [behind, clause], True
    last = _ENDED.split(ahead)[-1].strip()
    named = [last, behind] if last else [behind]
    whole = re.sub(r"^.*[.;:] ", "", ahead)
    if place == 0:
        named += [part for part in re.split(r"\s{2,}|\t|:{1,2}\s", ahead)[::-1] if part]
    return [*named, whole, clause], True
