"""Lists of error codes in plain text: a line with the code and its message, then what it means.

    K2E-0331  tag out of range
        The tag lies outside the ring. Use a smaller one.

Tables of codes are read in `tables`, headings in `entries`. A few codes of one form must follow
each other: a single line with a number in it is a part number as well as an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from ingestion.passages import ParsedSection
from ingestion.symbols.context import kind_in
from ingestion.symbols.drafts import (
    MAX_FURTHER,
    MAX_LIMIT,
    MAX_MEANING,
    Draft,
    bounded,
    cut,
    message_and,
)
from ingestion.symbols.names import is_name, without_ticks
from ingestion.symbols.tables import Place

MAX_LINES = 4_000  # of a section
_FEWEST = 3  # codes of one form; two where a heading speaks of errors
_ENTRY = re.compile(
    r"^(?:[-*+\u2022]\s+)?[`*]{0,3}"
    r"(?P<code>[A-Z][A-Z0-9]{0,9}(?:[-_][A-Z]{1,8}){0,2}[-_]?\d{2,6})"
    r"[`*]{0,3}(?:[:.)]\s+|\s+[-\u2013\u2014]{1,2}\s+|\t+|[ ]{2,})[`*]{0,3}(?P<message>\S.{0,300})$"
)
_FIELD = re.compile(
    r"^(?:remedy|fix|action|solution|resolution|cause|reason|workaround|recovery|what to do)\s*:",
    re.I,
)


@dataclass
class _Entry:
    code: str
    message: str
    lines: list[str] = field(default_factory=list)

    @property
    def form(self) -> str:
        """What codes of one list have in common: `K2E-0331` and `K2E-0407` are of one form."""
        return re.sub(r"\d+$", "", self.code)


def error_list_drafts(section: ParsedSection, place: Place) -> Iterator[Draft]:
    """A draft of each code of a list, with its message and what stands under it."""
    entries = _entries(section)
    forms = [entry.form for entry in entries]
    fewest = 2 if kind_in(place.around) == "error" else _FEWEST
    for entry in entries:
        if forms.count(entry.form) < fewest:
            continue
        fields = [line for line in entry.lines if _FIELD.match(line)]
        said = " ".join(line for line in entry.lines if line not in fields)
        yield Draft(
            entry.code,
            place.section,
            kind="error",
            meaning=cut(message_and(entry.message, said), MAX_MEANING),
            further=bounded(fields, MAX_FURTHER, MAX_LIMIT),
        )


def _entries(section: ParsedSection) -> list[_Entry]:
    """The lines that begin with a code, each with those that explain it: to the end of its
    paragraph, or the one after it."""
    entries: list[_Entry] = []
    budget = MAX_LINES
    open_entry: _Entry | None = None
    for element in section.elements:
        lines = element.text.split("\n")[:budget]
        budget -= len(lines)
        if element.table is not None or element.kind not in ("text", "list", "code"):
            open_entry = None
            continue
        began = False
        for line in lines:
            match = _ENTRY.match(line)
            if match and is_name(match["code"]):
                message = without_ticks(match["message"].strip()).strip("*` ")
                open_entry, began = _Entry(match["code"], message), True
                entries.append(open_entry)
            elif open_entry is not None and line.strip():
                open_entry.lines.append(line.strip())
        if not began or (open_entry is not None and open_entry.lines):
            open_entry = None
    return entries
