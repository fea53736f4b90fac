"""Tables whose rows are names of a language: instruction sets, functions, directives, error codes.

The header gives each column a role. A table is read if a header announces a column of names,
or if the names are marked and the words around the table tell their kind; and if most rows contain
names. A table of a chip's properties does neither.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from ingestion.elements import Table
from ingestion.symbols.definitions import (
    KIND_WORDS,
    MAX_OPERAND,
    MAX_OPERANDS,
    NEUTRAL_WORDS,
    SYNTAX_WORDS,
    Definition,
    Surroundings,
    bounded,
    definition,
    is_foreign,
    kind_in,
    message_and,
    word_set,
    words_of,
)
from ingestion.symbols.names import (
    CODE,
    Mention,
    is_error_code,
    is_hyphened,
    is_type_name,
    looks_coded,
    mentions_in,
    without_links,
    without_ticks,
)
from kb.catalog.knowledge.symbols import CardKind

MAX_ROWS = 1_000
MAX_COLUMNS = 24
_NAMING_SHARE = 0.6  # of the rows of a table of names

_OPERANDS = word_set("operand operands argument arguments args parameter parameters")
_MEANING = word_set(
    "description meaning effect effects semantics operation summary purpose action definition "
    "function explanation behavior behaviour remedy result shorthand"
)
_MESSAGE = word_set("message messages text diagnostic")
_LIMITS = word_set(
    "limit limits limitation limitations restriction restrictions constraint constraints alignment "
    "range ranges requirement requirements rule rules supported valid allowed legal bound "
    "bounds"
)
# Headers of chips, settings and measurements.
_SUBJECTS = word_set(
    "property parameter option variable environment field metric counter chip device gpu model "
    "specification version file directory flag setting key argument feature architecture platform "
    "package bit bits offset address stage step layer tensor dimension benchmark target"
)
_QUANTITY = word_set("number count of per size total max maximum min minimum unit units")
_PLAIN = re.compile(r"[^\w\s/-]+")
_BITS = re.compile(r"\W*(?:bits|bit (?:range|position|number)s?)\W*$", re.IGNORECASE)
_INDEXED = re.compile(r"(\w+)\[\w+\]")


@dataclass(frozen=True)
class _Columns:
    names: int
    kind: CardKind | None
    signature: int | None
    operands: int | None
    meaning: int | None
    limits: tuple[int, ...]
    further: tuple[int, ...]
    message: int | None = None  # of an error, if the meaning is in another column


def table_definitions(table: Table, place: Surroundings) -> Iterator[Definition]:
    """A definition for every name in every row; none for a table about something else."""
    header, rows = _header_and_rows(table)
    if not rows or len(header) > MAX_COLUMNS:
        return
    around = tuple(filter(None, (table.caption, *place.around)))
    columns = _columns(header, rows, around, place.in_code)
    if columns is None:
        return
    for row in rows[:MAX_ROWS]:
        yield from _row_definitions(header, row, columns, place.section, next(iter(around), ""))


def _header_and_rows(table: Table) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The header row that names most columns, and the rows without those that repeat one cell,
    which are headings between parts of the table."""
    header: tuple[str, ...] = ()
    for row in table.header:
        if len(set(filter(None, row))) > len(set(filter(None, header))):
            header = row
    rows = [row for row in table.rows if len(set(filter(None, row))) > 1 or len(row) == 1]
    return header, rows


def _columns(
    header: Sequence[str],
    rows: Sequence[tuple[str, ...]],
    around: Sequence[str],
    in_code: Collection[str],
) -> _Columns | None:
    if header and _BITS.match(header[0]):
        return None  # fields of a word, which no code writes
    heads = [_head_words(cell) for cell in header] or [[] for _ in rows[0]]
    named = [_naming(words, n, around) for n, words in enumerate(heads)]
    shares = [
        _share([row[n] for row in rows], naming, in_code) if naming is not None else 0.0
        for n, naming in enumerate(named)
    ]
    best = max(range(len(heads)), key=lambda n: (shares[n], -n))
    if shares[best] < _NAMING_SHARE or _are_elements([row[0] for row in rows]):
        return None
    rest = [n for n in range(len(heads)) if n != best]
    signature = next(
        (n for n in rest if SYNTAX_WORDS & {*heads[n]} and _repeats_names(rows, best, n)), None
    )
    operands = next((n for n in rest if _OPERANDS & {*heads[n]} and n != signature), None)
    rest = [n for n in rest if n not in (signature, operands)]
    meanings = [n for n in rest if _MEANING & {*heads[n]}]
    worded = meanings or [n for n in rest if _is_prose(rows, n) and not _LIMITS & {*heads[n]}]
    meaning = max(worded, key=lambda n: _width(rows, n), default=None)
    limits = tuple(n for n in rest if n != meaning and _LIMITS & {*heads[n]})
    message = next((n for n in rest if n != meaning and _MESSAGE & {*heads[n]}), None)
    naming = named[best]
    kind = naming.kind if naming else None
    if kind != "error":
        message = None
    further = tuple(n for n in rest if n not in (meaning, message, *limits))
    return _Columns(best, kind, signature, operands, meaning, limits, further, message)


def _are_elements(cells: Sequence[str]) -> bool:
    """Whether cells are `X[0]`, `X[1]`, ...: the other columns are what the elements hold."""
    matches = [_INDEXED.fullmatch(without_ticks(cell)) for cell in cells]
    return len(cells) > 1 and all(matches) and len({match[1] for match in matches if match}) == 1


def _repeats_names(rows: Sequence[tuple[str, ...]], names: int, column: int) -> bool:
    """Whether a column contains the names of most rows, with their operands."""
    return 2 * sum(_written(row[names]) in row[column] for row in rows) >= len(rows)


def _written(cell: str) -> str:
    return without_ticks(cell).split(" ")[0].rstrip(",")


@dataclass(frozen=True)
class _Naming:
    """Why a column may contain names. `trusted`: its header announces them."""

    kind: CardKind | None
    trusted: bool


def _head_words(cell: str) -> list[str]:
    return words_of(_PLAIN.sub(" ", without_ticks(cell)))


def _naming(words: Sequence[str], column: int, around: Sequence[str]) -> _Naming | None:
    """The kind that the header of a column names, or None if it cannot contain names."""
    context = kind_in(around)
    if not words:
        return _Naming(context, False) if context and column < 2 else None
    if _SUBJECTS & {*words[:1], words[-1]} and not {"operand"} & {*words}:
        return None
    if _QUANTITY & {*words} or len(words) > 4:
        return None
    head = words[-1]
    if head in SYNTAX_WORDS | {"name", "code", "mnemonic", "id"} and len(words) > 1:
        head = words[-2] if words[-2] in KIND_WORDS or words[-2] in NEUTRAL_WORDS else head
    if column > 0 and KIND_WORDS.get(head) in ("type", "constant", "register"):
        return None  # the type of the name in the first column
    if head == "code":
        return _Naming("error", context == "error")
    if head in KIND_WORDS:
        kind = KIND_WORDS[head]
        return _Naming(kind, kind not in ("type", "error", "function"))
    if head in NEUTRAL_WORDS or head in SYNTAX_WORDS - {"format", "form"}:
        foreign = context is None or is_foreign(around[:2])
        return _Naming(context, False) if not foreign or head != "name" else None
    return None


def _share(cells: Sequence[str], naming: _Naming, in_code: Collection[str]) -> float:
    """The share of the filled cells that contain only names."""
    filled = [cell for cell in cells if cell.strip()]
    if not filled or len(filled) * 2 < len(cells):
        return 0.0
    good = sum(_names_row(cell, naming, in_code) for cell in filled)
    return good / len(filled)


def _names_row(cell: str, naming: _Naming, in_code: Collection[str]) -> bool:
    # Under a header about errors, a cell that is only a code is one.
    coded = naming.kind == "error" and is_error_code(cell.strip())
    trusted, mnemonics = naming.trusted or coded, naming.kind == "instruction"
    mentions = mentions_in(cell, trusted=trusted, loose=True, mnemonics=mnemonics)
    return bool(mentions) and all(_is_symbol(m, naming, in_code) for m in mentions)


def _is_symbol(mention: Mention, naming: _Naming, in_code: Collection[str]) -> bool:
    name = mention.name
    if is_hyphened(name) and not naming.trusted:
        return False
    if naming.kind == "error":
        return is_error_code(name) or looks_coded(name) or (naming.trusted and name.isupper())
    if naming.trusted or mention.marked:
        return not name.istitle() or mention.marked
    if naming.kind == "type" and is_type_name(name):
        return True
    return looks_coded(name) or bool(mention.signature) or name in in_code


def _row_definitions(
    header: Sequence[str], row: Sequence[str], columns: _Columns, section: int, before: str
) -> Iterator[Definition]:
    naming = _Naming(columns.kind, True)
    mnemonics = columns.kind == "instruction"
    mentions = mentions_in(row[columns.names], trusted=True, loose=True, mnemonics=mnemonics)
    if not mentions or not all(_is_symbol(m, naming, ()) for m in mentions):
        return
    syntax = without_ticks(row[columns.signature]) if columns.signature is not None else ""
    operands = row[columns.operands] if columns.operands is not None else ""
    meaning = row[columns.meaning] if columns.meaning is not None else ""
    if not any(map(str.isalnum, meaning)):
        meaning = _after_names(row[columns.names])
    if columns.kind == "error" and columns.message is not None:
        meaning = message_and(row[columns.message], meaning)
    filled = [n for n in columns.further if row[n] and n < len(header)]
    further = [_headed(header, row, n) for n in filled]
    if filled and not any(map(str.isalnum, "".join(row[n] for n in filled))):
        further = _marked(header, row, filled, before)
    for mention in mentions:
        if _is_written_out(mention.name, without_ticks(meaning)) and not further:
            continue
        own = len(mentions) == 1 or mention.name in syntax
        yield definition(
            mention.name,
            section,
            columns.kind,
            signature=(syntax if own else "") or mention.signature,
            operands=operands_of(operands),
            meaning=without_links(meaning),
            limits=[row[n] for n in columns.limits],
            further=further,
        )


def _is_written_out(name: str, meaning: str) -> bool:
    """Whether a meaning is only the name with an index or arguments: a table of shorthands."""
    rest = meaning.removeprefix(name)
    return rest != meaning and (rest[:1], rest[-1:]) in (("[", "]"), ("(", ")"))


def _after_names(cell: str) -> str:
    """The words of a cell after the piece of code at its beginning."""
    first = CODE.match(cell)
    rest = cell[first.end() :] if first else ""
    return rest.strip(" |:-\u2013\u2014") if len(rest.split()) > 1 else ""


def _headed(header: Sequence[str], row: Sequence[str], column: int) -> str:
    title = without_ticks(header[column])
    return f"{title}: {row[column]}" if title else row[column]


def _marked(
    header: Sequence[str], row: Sequence[str], columns: Sequence[int], before: str
) -> list[str]:
    """The columns with each mark of a row that has nothing else, after the sentence before the
    table, without which the marks mean nothing."""
    by_mark: dict[str, list[str]] = {}
    for n in columns:
        by_mark.setdefault(row[n], []).append(without_ticks(header[n]))
    sentence = re.split(r"(?<=[.!?])\s+|\n", before.strip())[-1].rstrip(":")
    return [f"{sentence}: {mark} {', '.join(titles)}" for mark, titles in by_mark.items()]


def _is_prose(rows: Sequence[tuple[str, ...]], column: int) -> bool:
    """Whether the cells have several words that differ from row to row."""
    cells = [row[column] for row in rows if row[column]]
    words = sum(len(re.findall(r"[A-Za-z]{2,}", cell)) for cell in cells)
    return words >= 2 * len(cells) > 0 and len(set(cells)) * 2 >= min(len(cells), 8)


def _width(rows: Sequence[tuple[str, ...]], column: int) -> int:
    return sum(len(row[column]) for row in rows)


def operands_of(cell: str) -> tuple[tuple[str, str], ...]:
    """The operands of a cell, cut at commas outside brackets, without meanings."""
    text = without_ticks(without_links(cell))
    parts: list[str] = []
    depth = start = 0
    for place, mark in enumerate(text):
        depth += (mark in "([{<") - (mark in ")]}>")
        if mark in ",;" and depth <= 0:
            parts.append(text[start:place])
            start = place + 1
    parts.append(text[start:])
    return tuple((part, "") for part in bounded(parts, MAX_OPERANDS, MAX_OPERAND))
