"""Tables as cells: building them rectangular and writing them out as Markdown.

Every format reader ends here with its tables; nothing here knows a file format.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ingestion.elements import Element, Table

_SPACE = re.compile(r"\s+")

Row = tuple[str, ...]


def clean_cell(text: str) -> str:
    """One line of text, whatever the cell looked like in its source."""
    return _SPACE.sub(" ", text).strip()


def make_table(
    header: Iterable[Sequence[str]], rows: Iterable[Sequence[str]], caption: str | None = None
) -> Table:
    """Clean cells, drop empty rows and pad every row to the widest one."""
    heads = [tuple(clean_cell(cell) for cell in row) for row in header]
    body = [tuple(clean_cell(cell) for cell in row) for row in rows]
    heads = [row for row in heads if any(row)]
    body = [row for row in body if any(row)]
    width = max((len(row) for row in heads + body), default=0)
    caption = clean_cell(caption) if caption else None
    return Table(
        header=tuple(row + ("",) * (width - len(row)) for row in heads),
        rows=tuple(row + ("",) * (width - len(row)) for row in body),
        caption=caption or None,
    )


def table_element(table: Table, source: str | None = None) -> Element | None:
    """The element of a table, or None for one without cells.

    `source` is the table as its document wrote it; it is left out where that form is markup
    rather than something to read.
    """
    if not table.header and not table.rows:
        return None
    if source is None:
        text = render_table(table)
    else:
        text = f"{table.caption}\n\n{source}" if table.caption else source
    return Element("table", text, table=table)


def render_table(table: Table) -> str:
    """The table in Markdown: caption, all header rows, a rule, the rows.

    Several header rows stay several lines above the rule, which strict Markdown does not know, but
    merging them would make text that the document does not contain.
    """
    lines = [table.caption, ""] if table.caption else []
    lines += [_line(row) for row in table.header]
    if table.header:
        lines.append("|" + " --- |" * len(table.header[0]))
    lines += [_line(row) for row in table.rows]
    return "\n".join(lines)


def _line(row: Row) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"
