"""Facts proposed from the tables and sentences of a manual: known numbers in their unit, with the
cell or the sentence that states them.

A person accepts or corrects proposals, so a doubtful cell is skipped, not guessed: ranges, lists,
cells with two numbers, values with a footnote that may say "with sparsity", units that do not fit.
`fact_sentences.py` reads sentences. Knows the labels and units of `kb/hardware/fact_keys.toml` and
no chip; `subjects.py` decides which hardware a `subject` is.

Prefixes without an `i` follow the convention of `kb/hardware/facts.py` (sizes binary, rates
decimal); `text_value` is the text of the manual.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ingestion.elements import Element, Table
from ingestion.findings.fact_cells import Label, Names, read_cell, read_label, tidy
from kb.hardware.facts import fact_keys, find_unit, mistyped_key

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
KEYED_CONFIDENCE = 0.6  # of a fact whose key its author chose
_NUMBERED = re.compile(r"[~<>≤≥≈]? ?\d")
MAX_ROW = 100  # characters of a quoted row
MAX_QUOTED = 200  # characters of a quoted sentence


@dataclass(frozen=True)
class ProposedFact:
    """One number (or short text) that a table or a sentence seems to state.

    `confidence` is between 0 and 1. `subject` is the chip or variant that the row or column of a
    table names, empty for a table about one chip and for sentences. `cell` is (row, column) in the
    body of the table; `sentence` is the source of a fact outside of tables. `element` is the index
    of either among the elements that were read, `section` the heading path of these elements.
    """

    key: str
    value: float | int | str
    unit: str
    text_value: str
    confidence: float
    subject: str = ""
    caption: str | None = None
    row_label: str = ""
    column_label: str = ""
    cell: tuple[int, int] | None = None
    sentence: str = ""
    element: int = 0
    section: tuple[str, ...] = ()
    page_index: int | None = None
    page_label: str | None = None

    @property
    def locator(self) -> str:
        """The place of the fact for a reader: page, table, row, column, or sentence."""
        page = self.page_label or (str(self.page_index + 1) if self.page_index is not None else "")
        if self.sentence:
            quoted = textwrap.shorten(self.sentence, MAX_QUOTED, placeholder=" ...")
            return f"p. {page}, {quoted!r}" if page else repr(quoted)
        parts = [f"p. {page}" if page else "", self.caption or "table"]
        parts += [f"row {self.row_label!r}" if self.row_label else ""]
        parts += [f"column {self.column_label!r}" if self.column_label else ""]
        return ", ".join(part for part in parts if part)


def propose_facts(
    elements: Sequence[Element], names: Names = (), section: tuple[str, ...] = ()
) -> list[ProposedFact]:
    """Facts from every table and sentence among the elements of a document or section, in reading
    order. `names` are the document's names of its parts.
    """
    proposed: list[ProposedFact] = []
    lead = ""
    for index, element in enumerate(elements):
        box = element.boxes[0] if element.boxes else None
        page = (box.page_index, box.page_label) if box else (None, None)
        proposed += (
            replace(fact, element=index, section=section, page_index=page[0], page_label=page[1])
            for fact in _facts_of(element, lead, names)
        )
        lead = element.text if element.kind == "text" else ""
    return proposed


def _facts_of(element: Element, lead: str, names: Names) -> Iterable[ProposedFact]:
    if element.table is not None:
        return _table_facts(element.table, names)
    if element.kind not in ("text", "list"):
        return ()
    # Compiling its patterns takes 0.12 s, which only readers of manuals should pay.
    from ingestion.findings.fact_sentences import statements

    return (
        ProposedFact(s.key, s.value, s.unit, s.quantity, s.confidence, sentence=s.sentence)
        for s in statements(element.text, lead)
    )


def _table_facts(table: Table, names: Names) -> list[ProposedFact]:
    """Read a table by rows or by columns, depending on which has more labels of known facts; a
    table with equally many has only keyed facts.
    """
    if not table.rows:
        return []
    heads = _headers(table)
    columns = _without_doubles([read_label(head, names) for head in heads])
    rows = _without_doubles([read_label(row[0] if row else "", names) for row in table.rows])
    by_column = sum(bool(label.keys) for label in columns[1:])
    by_row = sum(bool(label.keys) for label in rows)
    facts: Iterable[ProposedFact] = ()
    if by_row > by_column:
        facts = _rows_are_facts(table, rows, heads)
    elif by_column > by_row:
        facts = _columns_are_facts(table, columns, heads)
    known = _without_contradictions([fact for fact in facts if fact.confidence >= MIN_CONFIDENCE])
    return [*known, *_keyed_facts(table, heads, {fact.key for fact in known})]


def _without_doubles(labels: Sequence[Label]) -> list[Label]:
    """Drop the keys of a label that only may mean a fact ("Memory bandwidth (LPDDR5)", "Clock
    frequency") if another label of the table names that fact ("Memory bandwidth", "Boost clock").
    """
    outright = {k for label in labels if not (label.turned or label.weak) for k in label.keys}
    weak = {key for label in labels if not label.turned for key in label.keys}

    def is_double(label: Label) -> bool:
        clearer = weak if label.turned else outright if label.weak else frozenset()
        return bool(clearer & set(label.keys))

    return [replace(label, keys=()) if is_double(label) else label for label in labels]


def _headers(table: Table) -> list[str]:
    """One text per column: the header rows from top to bottom, repeated cells once."""
    width = len(table.rows[0])
    stacked = [[row[i] for row in table.header if i < len(row)] for i in range(width)]
    return [" ".join(dict.fromkeys(cell for cell in cells if cell)) for cells in stacked]


def _rows_are_facts(
    table: Table, labels: Sequence[Label], heads: Sequence[str]
) -> Iterator[ProposedFact]:
    """A property per row; each other column is a chip, or the only column of values."""
    unit_column = next((i for i, head in enumerate(heads) if _UNIT_HEAD.fullmatch(head)), 0)
    for r, (row, label) in enumerate(zip(table.rows, labels, strict=True)):
        stated = row[unit_column] if unit_column else ""
        for c in range(1, len(heads)):
            if c == unit_column or _NOT_A_VALUE.search(heads[c]):
                continue
            head = read_label(heads[c])
            subject = "" if head.unit or _GENERIC.fullmatch(head.text) else tidy(heads[c])
            units = (stated, label.unit, head.unit)
            for fact in _cell_facts(row[c], label, units):
                yield _located(fact, table, (r, c), subject, (row[0], heads[c]))


def _columns_are_facts(
    table: Table, labels: Sequence[Label], heads: Sequence[str]
) -> Iterator[ProposedFact]:
    """A chip per row, a property per column; none without a column that names the chip."""
    named = [i for i, head in enumerate(heads) if _SUBJECT.fullmatch(tidy(head))]
    if not named and heads[0]:
        return
    subject_column = named[0] if named else 0
    for r, row in enumerate(table.rows):
        subject = tidy(row[subject_column])
        for c, label in enumerate(labels) if subject else ():
            if c == subject_column or _NOT_A_VALUE.search(heads[c]):
                continue
            for fact in _cell_facts(row[c], label, (label.unit,)):
                yield _located(fact, table, (r, c), subject, (row[subject_column], heads[c]))


def _cell_facts(cell: str, label: Label, units: Sequence[str]) -> Iterator[ProposedFact]:
    """The facts of a cell: one for each key of its label that the cell has a value of."""
    for key in label.keys:
        known = fact_keys()[key]
        read = read_cell(cell, known, [unit for unit in units if unit])
        if read is not None:
            confidence = round(read.confidence - (0.3 if label.weak else 0.0), 2)
            yield ProposedFact(key, read.value, known.unit, cell, confidence)


def _located(
    fact: ProposedFact,
    table: Table,
    cell: tuple[int, int],
    subject: str,
    labels: tuple[str, str],
) -> ProposedFact:
    """The fact with its place; `labels` are those of its row and column."""
    row, column = map(tidy, labels)
    return replace(
        fact,
        subject=subject,
        caption=table.caption,
        row_label=row,
        column_label=column,
        cell=cell,
    )


def _without_contradictions(facts: Sequence[ProposedFact]) -> list[ProposedFact]:
    """Drop the facts of a subject and key with two values in one table, which was misread."""
    groups: dict[tuple[str, str], list[ProposedFact]] = {}
    for fact in facts:
        groups.setdefault((fact.key, fact.subject.lower()), []).append(fact)
    agreed = [group[0] for group in groups.values() if len({fact.value for fact in group}) == 1]
    return sorted(agreed, key=lambda fact: fact.cell or (0, 0))


def unread_rows(elements: Sequence[Element], facts: Sequence[ProposedFact]) -> list[str]:
    """Label and cells of rows with a number from which no fact was proposed, in tables with a
    property per row. `facts` are those of the same elements. A table without a column of units and
    without any fact may list anything, and is skipped.
    """
    unread = []
    for index, element in enumerate(elements):
        table = element.table
        if table is None or not table.rows:
            continue
        read = {fact.cell[0] for fact in facts if fact.element == index and fact.cell}
        columns = {fact.cell[1] for fact in facts if fact.element == index and fact.cell}
        heads = _headers(table)
        of_values = len(columns) == 1 and len(heads) <= 3
        if not of_values and not any(_UNIT_HEAD.fullmatch(head) for head in heads):
            continue
        for r, row in enumerate(table.rows):
            if r not in read and row[0] and any(_NUMBERED.match(tidy(cell)) for cell in row[1:]):
                shown = f"{tidy(row[0])}: {' '.join(filter(None, map(tidy, row[1:])))}"
                shown = textwrap.shorten(shown, MAX_ROW, placeholder=" ...")
                unread.append(f"{shown}{_why_unread(row[0])}")
    return unread


def _why_unread(label: str) -> str:
    """The reason in brackets; empty for a label of no known fact."""
    keys = read_label(label).keys
    return f" (perhaps {' or '.join(keys)}, but not clearly)" if keys else ""


# -- tables of keys, values and units, such as limits in CSV or JSON

# Under "Property" a guide lists anything: such rows are reported as not read.
_KEY = re.compile(r"keys?|names?", re.I)
_VALUE = re.compile(r"values?", re.I)
_NUMBER = re.compile(r"[+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_MAX_KEY, _MAX_UNIT = 64, 20


def _keyed_facts(
    table: Table, heads: Sequence[str], known: Collection[str]
) -> Iterator[ProposedFact]:
    """Facts under keys that their author chose, in a table with one column of keys, one of values
    and one of units. A key with two values gives none.
    """
    places = [
        [n for n, head in enumerate(heads) if pattern.fullmatch(head.strip())]
        for pattern in (_KEY, _VALUE, _UNIT_HEAD)
    ]
    if any(len(columns) != 1 for columns in places):
        return
    (key,), (value,), (unit,) = places
    read: list[tuple[int, ProposedFact]] = []
    for number, row in enumerate(table.rows):
        fact = _keyed_fact(row[key], row[value].strip(), row[unit].strip())
        if fact is not None:
            read.append((number, fact))
    values: dict[str, set[float | int | str]] = {}
    for _, fact in read:
        values.setdefault(fact.key, set()).add(fact.value)
    for number, fact in read:
        label = table.rows[number][key]
        if len(values[fact.key]) == 1 and fact.key not in known and not read_label(label).keys:
            yield _located(fact, table, (number, value), "", (label, heads[value]))


def _keyed_fact(label: str, number: str, unit: str) -> ProposedFact | None:
    """The fact of a row, in the canonical unit if its unit is known; None if the value is not a
    plain number, or the label cannot be a key, or the unit does not fit.
    """
    key = re.sub(r"[^a-z0-9]+", "_", label.strip().strip("`*").lower()).strip("_")
    if not key[:1].isalpha() or len(key) > _MAX_KEY:
        return None
    if not _NUMBER.fullmatch(number) or len(unit) > _MAX_UNIT:
        return None
    value, known = float(number.replace(",", "")), fact_keys().get(key)
    stated = find_unit(unit or "count")
    if known is not None:
        if stated is None or stated.canonical != known.unit:
            return None
        if not known.plausible(value * stated.factor):
            return None
    elif mistyped_key(key) is not None:
        key = f"x_{key}"[:_MAX_KEY]
    text = f"{number} {unit}".strip()
    if stated is None:
        return ProposedFact(key, value, unit, text, KEYED_CONFIDENCE)
    return ProposedFact(key, value * stated.factor, stated.canonical, text, KEYED_CONFIDENCE)


# -- names of a chip's scratchpad: "768 KiB of scratchpad called the slab"

_USUAL = "shared memory"  # the word under which `fact_keys.toml` knows it
_SCRATCHPAD = (
    r"(?:scratch-?pad(?: memory| ram| sram)?|shared memory|local data (?:share|store)"
    r"|(?:on-chip|tile|core)[- ]local (?:memory|sram|store))"
)
_QUOTE = r"[*_`\"'\u201c\u201d\u2018\u2019]{0,3}"
_CALLED = re.compile(
    rf"\b{_SCRATCHPAD},? (?:(?:that|which) is )?(?:called|named|known as|termed)(?: the| its)? "
    rf"{_QUOTE}([A-Za-z][A-Za-z0-9-]{{2,20}}){_QUOTE}(?=[\s.,;:)]|$)",
    re.IGNORECASE,
)
_BESIDE = r"(?:of|in|to|for|from|by|on|with|per|and|or|size|part|user|limit)"
_IS = re.compile(
    rf"\b[Tt]he {_QUOTE}([A-Za-z][A-Za-z0-9-]{{2,20}}){_QUOTE}(?:,? which)?(?: is|,) (?:an?|the)"
    rf"(?: (?!{_BESIDE} )[a-z0-9-]+){{0,4}} {_SCRATCHPAD}\b"
    r"(?! (?:size|capacity|limit|banks?|space|usage|budget|allocation|address|controller|user))",
)
_NO_NAME = frozenset({"the", "this", "that", "memory", "cache", "chip", "core", "tile", "unit"})


def scratchpad_names(texts: Iterable[str]) -> Names:
    """The names that the texts define for the scratchpad in so many words, each with the usual word
    for it, for tables with rows such as "Slab banks". None if there are more than two: then they
    hardly all mean it.
    """
    names: dict[str, str] = {}
    for text in texts:
        for pattern in (_CALLED, _IS):
            for match in pattern.finditer(text):
                name = re.sub(r"[^a-z0-9]+", " ", match[1].lower()).strip()
                if name not in _NO_NAME:
                    names[name] = _USUAL
    return tuple(sorted(names.items())) if len(names) <= 2 else ()
