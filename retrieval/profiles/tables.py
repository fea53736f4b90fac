"""Tables of names with times or shares of the time, as any profiler prints them.

A table has a header with a column of names and a column of times or shares; cells are separated by
bars, by commas, by tabs or by two blanks. Times have the unit of their cell ("3.4ms") or of their
column ("Time (ns)", "DurationNs"). Rows that only continue a name belong to the row above.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence

from retrieval.profiles.profile import (
    Kernel,
    Profile,
    choice_note,
    elementwise_pct,
    number,
    program_metrics,
    total_times,
)

KIND = "table"
UNITS = {"ns": 1e-3, "us": 1.0, "µs": 1.0, "μs": 1.0, "ms": 1e3, "s": 1e6, "sec": 1e6, "m": 6e7}
UNITS |= {"nsec": 1e-3, "usec": 1.0, "msec": 1e3, "seconds": 1e6, "secs": 1e6, "min": 6e7}
MAX_LINE = 4_000
MAX_HEADER = 300  # characters; a longer line is no header

_NAME = re.compile(
    r"(?:[a-z]+[ _]){0,2}(?:names?|functions?|kernels?|operators?|operations?|ops?|op type|symbols?"
    r"|regions?|routines?|events?|methods?|shaders?|layers?|apis?|scopes?|tasks?|op code|nodes?"
    r"|activity|stage|pass|primitive|description|dispatch|command|filename:lineno\(function\))",
    re.IGNORECASE,
)
_COUNT = re.compile(
    r"(?:num(?:ber)?[ _.]?(?:of[ _])?|#[ _]?(?:of[ _])?|n[ _]?)?"
    r"(?:calls?|counts?|instances?|invocations?|launches|occurrences|hits|runs|times called)",
    re.IGNORECASE,
)
_TIME = re.compile(r"time|duration|total|sum|self|elapsed|latency|device|cuda|gpu|xpu", re.I)
_SHARE = re.compile(r"%|\bpct\b|percent|share|fraction", re.IGNORECASE)
_OF_ONE = re.compile(
    r"avg|average|mean|min|max|med|std|dev\b|per[ _]call|/call|first|last|distribution|start|end\b",
    re.I,
)
_UNIT = re.compile(
    r"[(\[/, _]\s?(?P<unit>ns|us|[µμ]s|ms|s|nsec|usec|msec|sec|secs|seconds)\s?[)\]]?$"
    r"|(?P<suffix>(?<=[a-z])(?:Ns|Us|Ms))$"
)
_CELL = re.compile(r"(?P<number>[\d.,]+)\s?(?P<unit>ns|us|[µμ]s|ms|s|sec|m)?(?P<share>\s?%)?")
_RULE = re.compile(r"[\s|+:=╒╤╕╞╪╡├┼┤└┴┘┌┬┐╘╧╛─═-]*")
_BARS = re.compile("[│┃|]")
_ALL = re.compile(r"(?:grand )?totals?\b|sum$|all$", re.IGNORECASE)
# The preferred column of times: of the device, of a row alone, of all calls.
_RANKS = (
    re.compile(r"self (?:cuda|xpu|hip|device|gpu)", re.IGNORECASE),
    re.compile(r"(?:cuda|xpu|hip|device|gpu)\b.{0,10}(?:total|time)", re.IGNORECASE),
    re.compile(r"\bself\b|exclusive", re.IGNORECASE),
    re.compile(r"total|sum", re.IGNORECASE),
)


def read(text: str) -> Profile | None:
    """The rows of all tables of names with times; None if the text has none."""
    rows = total_times(list(_rows(text)))
    if not rows:
        return None
    metrics = program_metrics(rows)
    if share := elementwise_pct(rows):
        metrics["elementwise_pct"] = share
    return Profile(KIND, rows[0].name, metrics, rows, choice_note(rows))


def _rows(text: str) -> Iterator[Kernel]:
    columns: _TableColumns | None = None
    last: Kernel | None = None
    for line in text.splitlines():
        if not line.strip() or len(line) > MAX_LINE or _RULE.fullmatch(line):
            continue
        cells = _cells(line)
        if (found := _columns(cells, line)) is not None:
            columns = found
        elif columns is not None and last is not None and columns.continues(cells):
            last = Kernel(last.name + cells[columns.name], last.calls, last.us, last.pct)
        elif columns is not None and (row := columns.read(cells)) is not None:
            if last is not None:
                yield last
            last = row
    if last is not None:
        yield last


class _TableColumns:
    """The places of a table's columns in the cells of its rows, which may lack the last ones."""

    def __init__(self, heads: Sequence[str], name: int, time: int | None) -> None:
        self._heads = heads
        self.name = name
        self._time = time
        share = [i for i, head in enumerate(heads) if _SHARE.search(head) and i != name]
        # The share of the chosen times has a name like theirs: "CUDA total %" of "CUDA total".
        base = _plain(heads[time]) if time is not None else ""
        like = [i for i in share if base and _plain(heads[i]) == base]
        self._share = next(iter(like or share), None)
        self._calls = next(
            (i for i, h in enumerate(heads) if _COUNT.fullmatch(h) and i != name), None
        )

    def continues(self, cells: Sequence[str]) -> bool:
        """Whether a row holds only the further text of a name."""
        if len(cells) != len(self._heads) or not cells[self.name]:
            return False
        return not any(cell for i, cell in enumerate(cells) if i != self.name)

    def read(self, cells: Sequence[str]) -> Kernel | None:
        """The name, calls, time and share of a row; None for a row of another form."""
        surplus = len(cells) - len(self._heads)
        if surplus > 0 and self.name in (0, len(self._heads) - 1):
            end = self.name + surplus + 1  # a name with the separator in it
            cells = [*cells[: self.name], " ".join(cells[self.name : end]), *cells[end:]]
        elif surplus > 0 or self.name >= len(cells):
            return None
        name = cells[self.name].strip()
        us, pct = self._us(cells), self._pct(cells)
        if not name or _ALL.match(name) or number(name.rstrip("%")) is not None:
            return None
        if not us and not pct:
            return None
        calls = number(_cell(cells, self._calls)) or 1.0
        return Kernel(name, calls, us or 0.0, pct or 0.0)

    def _us(self, cells: Sequence[str]) -> float | None:
        match = _CELL.fullmatch(_cell(cells, self._time))
        if match is None or match["share"]:
            return None
        value, unit = number(match["number"]), match["unit"] or self._unit
        return value * UNITS[unit] if value is not None and unit else None

    @property
    def _unit(self) -> str:
        found = _UNIT.search(self._heads[self._time]) if self._time is not None else None
        return (found["unit"] or found["suffix"].lower()) if found else ""

    def _pct(self, cells: Sequence[str]) -> float | None:
        match = _CELL.fullmatch(_cell(cells, self._share))
        value = number(match["number"]) if match else None
        return value if value is not None and value <= 100 else None


def _cell(cells: Sequence[str], place: int | None) -> str:
    return cells[place].strip() if place is not None and place < len(cells) else ""


def _plain(head: str) -> str:
    return re.sub(r"[^a-z]+", "", _UNIT.sub("", head).lower().replace("pct", ""))


def _columns(cells: Sequence[str], line: str) -> _TableColumns | None:
    """The columns of a header with names and with times or shares; None for another line."""
    if len(line) > MAX_HEADER or len(cells) < 2 or any(c[:1].isdigit() for c in cells):
        return None
    heads = [cell.strip(' *`"') for cell in cells]
    name = next((i for i, head in enumerate(heads) if _NAME.fullmatch(head)), None)
    if name is None:
        return None
    times = [
        i
        for i, head in enumerate(heads)
        if i != name and _is_time(head) and not _COUNT.fullmatch(head)
    ]
    shares = any(_SHARE.search(head) for i, head in enumerate(heads) if i != name)
    if not times and not shares:
        return None
    ranked = sorted(times, key=lambda i: _rank(heads[i]))
    return _TableColumns(heads, name, ranked[0] if ranked else None)


def _is_time(head: str) -> bool:
    return bool(_TIME.search(head)) and not _SHARE.search(head) and not _OF_ONE.search(head)


def _rank(head: str) -> int:
    return next((i for i, pattern in enumerate(_RANKS) if pattern.search(head)), len(_RANKS))


def _cells(line: str) -> list[str]:
    """The cells of a line by its separator."""
    if _BARS.search(line):
        text = line.strip()
        edges = (text[:1] in "│┃|", text[-1:] in "│┃|")
        cells = [cell.strip() for cell in _BARS.split(text)]
        return cells[edges[0] : len(cells) - edges[1]]
    if "\t" in line.strip():
        return [cell.strip() for cell in line.strip().split("\t")]
    if line.count(",") >= 2 and not re.search(r"\S\s{2,}\S+\s{2,}", line.replace(", ", ",")):
        return [cell.strip() for cell in next(csv.reader([line.strip()], skipinitialspace=True))]
    if line.count(",") >= 2 and re.match(r"\s*[^,]+,\s+\S", line):
        return [cell.strip() for cell in next(csv.reader([line.strip()], skipinitialspace=True))]
    return [cell.strip() for cell in re.split(r"\s{2,}", line.strip())]


def pairs(text: str) -> Mapping[str, str]:
    """Lines of a counter's name and its value, with the value's unit; the first of a name."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        match = _PAIR.fullmatch(line[:MAX_LINE])
        if match is not None:
            unit = f" {match['unit']}" if match["unit"] else ""
            found.setdefault(match["name"].strip(" |│*-"), match["value"] + unit)
    return found


_PAIR = re.compile(
    r"[\s|│*-]{0,40}(?P<name>[A-Za-z_][\w.:/%()-]{1,80}(?: [\w.:/%()-]{1,40}){0,6}?)"
    r"(?:\s{0,80}[=:|│]\s{0,80}|\s{2,80}|\t)(?P<value>-?[\d.,]{1,30})\s?"
    r"(?P<unit>%|[A-Za-z]{1,12}(?:/[A-Za-z]{1,12})?)?[\s|│]{0,40}"
)
