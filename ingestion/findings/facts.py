"""Facts proposed from the tables and sentences of a manual: known numbers, in their one unit, with
the cell or the sentence that they stand in.

Proposals are for a person to accept or correct, so a doubtful cell is left out rather than guessed:
ranges, lists, cells with two numbers, values marked with a footnote where sparsity hides behind it,
units that do not fit. How sentences are read is in `fact_sentences.py`. It knows the labels and
units of `kb/hardware/fact_keys.toml` and no particular chip; which hardware a `subject` means is
decided in `subjects.py`.

Prefixes without an `i` follow the convention of `kb/hardware/facts.py` (sizes binary, rates
decimal); `text_value` keeps what the manual wrote.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ingestion.elements import Element, Table
from ingestion.findings.fact_cells import Label, Names, Reading, read_cell, read_label, tidy
from ingestion.findings.keyed_tables import keyed_rows
from kb.hardware.facts import FactKey, fact_keys

if TYPE_CHECKING:
    from ingestion.findings.fact_sentences import Statement

_SUBJECT = re.compile(
    r"(?:\w+ ){0,2}(?:model|gpus?|products?|name|devices?|chips?|accelerators?|sku|part|card"
    r"|processor|architecture|generation|variant|instance(?: type)?|target)"
    r"(?: name| model| family)?",
    re.IGNORECASE,
)
_GENERIC = re.compile(
    r"(?:values?|spec(?:ification)?s?|details?|description|parameters?|propert(?:y|ies)|features?"
    r"|metrics?|items?|units?|capacity|size|amount|count|maximum|max|typical|peak|total|limits?"
    r"|performance)?",
    re.IGNORECASE,
)
_NOT_A_VALUE = re.compile(
    r"\b(?:notes?|comments?|remarks?|examples?|default|sources?|references?|improvement|factor"
    r"|ratio|speed ?up|measured|achieved|actual|observed|utili[sz]ation|efficiency|scaling"
    r"|min(?:imum)?|sparse|sparsity)\b|%|/ ?(?:clock|clk|cycle)|per (?:clock|clk|cycle)",
    re.IGNORECASE,
)
_UNIT_HEAD = re.compile(r"units?", re.IGNORECASE)
MIN_CONFIDENCE = 0.4
FREE_CONFIDENCE = 0.6  # of a fact whose key its author chose
_NUMBERED = re.compile(r"[~<>≤≥≈]? ?\d")
MAX_ROW = 100  # characters of a row that is quoted
MAX_QUOTED = 200  # characters of a sentence in a locator


@dataclass(frozen=True)
class ProposedFact:
    """One number (or short text) that a table or a sentence seems to state.

    `subject` is the chip or variant that the table's row or column names, empty when the table is
    about a single one and for sentences. `cell` is (row, column) in the table's body, `sentence`
    what was read where it is no table, `element` the index of either among the elements that were
    read. `confidence` is between 0 and 1.
    """

    key: str
    value: float | int | str
    unit: str
    text_value: str
    subject: str
    caption: str | None
    row_label: str
    column_label: str
    cell: tuple[int, int] | None
    element: int
    page_index: int | None
    page_label: str | None
    confidence: float
    sentence: str = ""

    @property
    def locator(self) -> str:
        """Where a reader finds it, as far as known: page, table, row, column, or sentence."""
        page = self.page_label or (str(self.page_index + 1) if self.page_index is not None else "")
        if self.sentence:
            quoted = textwrap.shorten(self.sentence, MAX_QUOTED, placeholder=" ...")
            return f"p. {page}, {quoted!r}" if page else repr(quoted)
        parts = [f"p. {page}" if page else "", self.caption or "table"]
        parts += [f"row {self.row_label!r}" if self.row_label else ""]
        parts += [f"column {self.column_label!r}" if self.column_label else ""]
        return ", ".join(part for part in parts if part)


@dataclass(frozen=True)
class LocatedFact:
    """A proposed fact and the heading path of the section that it stands in."""

    fact: ProposedFact
    section: tuple[str, ...]


def propose_facts(elements: Sequence[Element], names: Names = ()) -> list[ProposedFact]:
    """Facts from every table and sentence among the elements (of a document or of a section), in
    reading order. `names` are what the document calls its parts.
    """
    proposed: list[ProposedFact] = []
    lead = ""
    for index, element in enumerate(elements):
        box = element.boxes[0] if element.boxes else None
        for fact in _of_element(element, lead, names):
            page = (box.page_index, box.page_label) if box else (None, None)
            proposed.append(replace(fact, element=index, page_index=page[0], page_label=page[1]))
        lead = element.text if element.kind == "text" else ""
    return proposed


def _of_element(element: Element, lead: str, names: Names) -> list[ProposedFact]:
    if element.kind == "table":
        return _of_table(element.table, names) if element.table is not None else []
    if element.kind not in ("text", "list"):
        return []
    # Its patterns take 0.12 s to compile, which a service that reads no manual does without.
    from ingestion.findings.fact_sentences import statements

    return [_stated(statement) for statement in statements(element.text, lead)]


def _stated(statement: Statement) -> ProposedFact:
    return ProposedFact(
        key=statement.key,
        value=statement.value,
        unit=statement.unit,
        text_value=statement.quantity,
        subject="",
        caption=None,
        row_label="",
        column_label="",
        cell=None,
        element=0,
        page_index=None,
        page_label=None,
        confidence=statement.confidence,
        sentence=statement.sentence,
    )


def _of_table(table: Table, names: Names) -> list[ProposedFact]:
    """Read the table the way that more of its labels are known facts; not at all where that is
    undecided.
    """
    if not table.rows:
        return []
    heads = _headers(table)
    columns = _without_doubles([read_label(head, names) for head in heads])
    rows = _without_doubles([read_label(row[0] if row else "", names) for row in table.rows])
    by_column = sum(bool(label.keys) for label in columns[1:])
    by_row = sum(bool(label.keys) for label in rows)
    if by_row > by_column:
        facts = _rows_are_facts(table, rows, heads)
    elif by_column > by_row:
        facts = _columns_are_facts(table, columns, heads)
    else:
        facts = iter(())
    known = _without_contradictions([fact for fact in facts if fact.confidence >= MIN_CONFIDENCE])
    return [*known, *_free_facts(table, heads, {fact.key for fact in known})]


def _free_facts(
    table: Table, heads: Sequence[str], known: Collection[str]
) -> Iterator[ProposedFact]:
    """Of a table of keys, values and units: the rows whose keys are its author's own."""
    for r, columns, read in keyed_rows(table.rows, heads):
        if read.key in known or any(read_label(table.rows[r][columns.key]).keys):
            continue
        yield ProposedFact(
            key=read.key,
            value=read.value,
            unit=read.unit,
            text_value=f"{table.rows[r][columns.value]} {table.rows[r][columns.unit]}".strip(),
            subject="",
            caption=table.caption,
            row_label=tidy(table.rows[r][columns.key]),
            column_label=tidy(heads[columns.value]),
            cell=(r, columns.value),
            element=0,
            page_index=None,
            page_label=None,
            confidence=FREE_CONFIDENCE,
        )


def _without_doubles(labels: Sequence[Label]) -> list[Label]:
    """Where a label says it outright, one that may mean the same fact, or was turned to mean it, is
    something else: "Memory bandwidth (LPDDR5)" beside "Memory bandwidth", "Clock frequency" beside
    "Boost clock".
    """
    outright = {k for label in labels if not (label.turned or label.weak) for k in label.keys}
    weak = {key for label in labels if not label.turned for key in label.keys}

    def is_double(label: Label) -> bool:
        clearer = weak if label.turned else outright if label.weak else frozenset()
        return bool(clearer & set(label.keys))

    return [replace(label, keys=()) if is_double(label) else label for label in labels]


def _headers(table: Table) -> list[str]:
    """One text per column: its header rows from top to bottom, repeated cells once."""
    width = len(table.rows[0])
    stacked = [[row[i] for row in table.header if i < len(row)] for i in range(width)]
    return [" ".join(dict.fromkeys(cell for cell in cells if cell)) for cells in stacked]


def _rows_are_facts(
    table: Table, labels: Sequence[Label], heads: Sequence[str]
) -> Iterator[ProposedFact]:
    """Property per row; every further column is a chip, or the one value column."""
    unit_column = next((i for i, head in enumerate(heads) if _UNIT_HEAD.fullmatch(head)), 0)
    columns = [i for i in range(1, len(heads)) if i != unit_column]
    for r, (row, label) in enumerate(zip(table.rows, labels, strict=True)):
        if not label.keys:
            continue
        stated = row[unit_column] if unit_column else ""
        for c in columns:
            if _NOT_A_VALUE.search(heads[c]):
                continue
            head = read_label(heads[c])
            units = (stated, label.unit, head.unit)
            subject = "" if head.unit or _GENERIC.fullmatch(head.text) else tidy(heads[c])
            for known, reading in _readings(row[c], label, units):
                yield _proposed(table, known, reading, subject, (r, c), (row[0], heads[c]))


def _columns_are_facts(
    table: Table, labels: Sequence[Label], heads: Sequence[str]
) -> Iterator[ProposedFact]:
    """Chip per row, property per column; without a column that names the chip nothing is read."""
    named = [i for i, head in enumerate(heads) if _SUBJECT.fullmatch(tidy(head))]
    if not named and heads[0]:
        return
    subject_column = named[0] if named else 0
    for r, row in enumerate(table.rows):
        subject = tidy(row[subject_column])
        if not subject:
            continue
        for c, label in enumerate(labels):
            if c == subject_column or _NOT_A_VALUE.search(heads[c]):
                continue
            for known, reading in _readings(row[c], label, (label.unit,)):
                where = (row[subject_column], heads[c])
                yield _proposed(table, known, reading, subject, (r, c), where)


def _readings(cell: str, label: Label, units: Sequence[str]) -> Iterator[tuple[FactKey, Reading]]:
    for key in label.keys:
        known = fact_keys()[key]
        reading = read_cell(cell, known, [unit for unit in units if unit])
        if reading is not None:
            doubt = 0.3 if label.weak else 0.0
            yield known, replace(reading, confidence=round(reading.confidence - doubt, 2))


def _proposed(
    table: Table,
    known: FactKey,
    reading: Reading,
    subject: str,
    cell: tuple[int, int],
    labels: tuple[str, str],
) -> ProposedFact:
    return ProposedFact(
        key=known.key,
        value=reading.value,
        unit=known.unit,
        text_value=table.rows[cell[0]][cell[1]],
        subject=subject,
        caption=table.caption,
        row_label=tidy(labels[0]),
        column_label=tidy(labels[1]),
        cell=cell,
        element=0,
        page_index=None,
        page_label=None,
        confidence=reading.confidence,
    )


def _without_contradictions(facts: Sequence[ProposedFact]) -> list[ProposedFact]:
    """One table that gives a subject two values for a key was misread: none of them is proposed."""
    groups: dict[tuple[str, str], list[ProposedFact]] = {}
    for fact in facts:
        groups.setdefault((fact.key, fact.subject.lower()), []).append(fact)
    agreed = [group[0] for group in groups.values() if len({fact.value for fact in group}) == 1]
    return sorted(agreed, key=lambda fact: fact.cell or (0, 0))


def unread_rows(elements: Sequence[Element], facts: Sequence[ProposedFact]) -> list[str]:
    """The rows with a number of tables with a property a row, of which no fact was proposed: label
    and cells. `facts` are those of the same elements. A table without a column of units and without
    any fact may list anything, and is left out.
    """
    unread = []
    for index, element in enumerate(elements):
        table = element.table
        if table is None or not table.rows:
            continue
        read = {fact.cell[0] for fact in facts if fact.element == index and fact.cell}
        columns = {fact.cell[1] for fact in facts if fact.element == index and fact.cell}
        heads = _headers(table)
        if not any(_UNIT_HEAD.fullmatch(head) for head in heads) and not (
            read and len(columns) == 1 and len(heads) <= 3
        ):
            continue
        for r, row in enumerate(table.rows):
            if r not in read and row[0] and any(_NUMBERED.match(tidy(cell)) for cell in row[1:]):
                shown = f"{tidy(row[0])}: {' '.join(filter(None, map(tidy, row[1:])))}"
                shown = textwrap.shorten(shown, MAX_ROW, placeholder=" ...")
                unread.append(f"{shown}{_why_unread(row[0])}")
    return unread


def _why_unread(label: str) -> str:
    """Empty for the usual reason: no known fact is called so."""
    keys = read_label(label).keys
    return f" (perhaps {' or '.join(keys)}, but not clearly)" if keys else ""


@dataclass(frozen=True)
class SourcedFact:
    """A value as one source states it; `source` tells a reader where (document, page, table)."""

    key: str
    subject: str
    value: float | int | str
    unit: str
    source: str


@dataclass(frozen=True)
class FactConflict:
    """Sources that disagree on one fact. `reason` is the probable cause, empty where none is
    known.
    """

    key: str
    subject: str
    values: tuple[SourcedFact, ...]
    reason: str = ""


# Peaks and rates are rounded in datasheets (3.35 against 3.352 TB/s); counts and sizes are not.
TOLERANCES = {"B/s": 0.02, "flop/s": 0.02, "op/s": 0.02, "Hz": 0.02, "W": 0.02}


def find_conflicts(facts: Iterable[SourcedFact]) -> list[FactConflict]:
    """Facts of the same key and subject whose values differ by more than rounding."""
    groups: dict[tuple[str, str], list[SourcedFact]] = {}
    for fact in facts:
        groups.setdefault((fact.key, re.sub(r"[\W_]+", "", fact.subject).lower()), []).append(fact)
    conflicts = []
    for _, group in sorted(groups.items()):
        distinct = _distinct(group)
        if len(distinct) > 1:
            first, reason = group[0], _reason(distinct)
            conflicts.append(FactConflict(first.key, first.subject, tuple(group), reason))
    return conflicts


def _distinct(group: Sequence[SourcedFact]) -> list[SourcedFact]:
    kept: list[SourcedFact] = []
    for fact in group:
        if not any(_agree(fact, other) for other in kept):
            kept.append(fact)
    return kept


def _agree(left: SourcedFact, right: SourcedFact) -> bool:
    if left.unit != right.unit:
        return False
    if isinstance(left.value, str) or isinstance(right.value, str):
        return str(left.value).strip().lower() == str(right.value).strip().lower()
    high = max(abs(left.value), abs(right.value))
    return abs(left.value - right.value) <= TOLERANCES.get(left.unit, 0.0) * high


def _reason(distinct: Sequence[SourcedFact]) -> str:
    units = sorted({fact.unit for fact in distinct})
    if len(units) > 1:
        return f"different units: {', '.join(units)}"
    numbers = sorted(float(f.value) for f in distinct if not isinstance(f.value, str))
    if units == ["B"] and len(numbers) == 2 and numbers[0] > 0:
        ratio = numbers[1] / numbers[0]
        if any(abs(ratio / 1.024**power - 1) < 0.004 for power in (1, 2, 3, 4)):
            return "one may count the prefix in powers of 1000, the other in powers of 1024"
    return ""
