"""How a command prints: text for people, or one JSON document on the last line of standard output.

With `--json`, progress, logs and errors go to standard error. Knows no command and no service.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import typer

from kb.errors import KernloreError
from kb.plain import plain

Json = Mapping[str, Any]


def show(value: Any, as_json: bool, text: Callable[[Any], str]) -> None:
    """Print the answer of a command."""
    if as_json:
        write_json(value)
        return
    rendered = text(plain(value))
    if rendered:
        print(rendered)


def write_json(value: Any) -> None:
    """Print a value as one line of JSON."""
    print(json.dumps(plain(value), ensure_ascii=False), flush=True)


def note(message: str) -> None:
    """Print a remark on standard error."""
    print(message, file=sys.stderr, flush=True)


def confirm(question: str, undone: str) -> None:
    """Ask the user. Unless the answer is yes, print `undone` and end with exit code 1; the end of
    the input and Ctrl-C count as no."""
    try:
        agreed = typer.confirm(question, err=True)
    except typer.Abort:
        note("")  # the cursor is still behind the question
        agreed = False
    if not agreed:
        note(f"{undone}; use --yes to do it without a question")
        raise typer.Exit(1)


def report_error(error: KernloreError, as_json: bool) -> None:
    """Print an error and its hint; as JSON too, in the shape of all errors."""
    hint = in_commands(error.hint)
    print(f"error: {error.message}", file=sys.stderr)
    if hint:
        print(f"hint: {hint}", file=sys.stderr)
    if as_json:
        write_json({**error.as_json(), "hint": hint})


# -- text


def columns(*names: str) -> Callable[[Iterable[Json]], str]:
    """A text of rows as a table with these fields; `header=field` where their names differ."""
    headers = [name.partition("=")[0] for name in names]
    fields = [name.rpartition("=")[2] for name in names]
    return lambda rows: table(headers, ([row.get(field) for field in fields] for row in rows))


def table(headers: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Aligned columns. Cells are never cut, so that a pipe gets all of them."""
    cells = [[_cell(value) for value in row] for row in rows]
    lines = [list(headers), *cells]
    widths = [max(len(line[n]) for line in lines) for n in range(len(headers))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, list | tuple):
        return ",".join(str(part) for part in value) or "any"
    if isinstance(value, float):
        return f"{value:.6g}"
    return " ".join(str(value).split())


def pairs(values: Mapping[str, Any]) -> str:
    """Names and values, one a line. Empty values are left out."""
    shown = {key: value for key, value in values.items() if value not in (None, "", [], {})}
    width = max((len(key) for key in shown), default=0)
    return "\n".join(f"{key.ljust(width)}  {_value(value)}" for key, value in shown.items())


def _value(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else _cell(value)


def interval(figure: Mapping[str, float] | None, digits: int = 3) -> str:
    """A figure with its interval, "-" without one."""
    if figure is None:
        return "-"
    value, low, high = (f"{figure[name]:.{digits}f}" for name in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"


def shortened(text: str, length: int) -> str:
    """One line of at most `length` characters."""
    line = " ".join(text.split())
    return line if len(line) <= length else f"{line[: length - 3]}..."


# -- hints of errors name routes; a command prints the commands that do the same

_PART = r"[^\s/;,.]+"
# The first match is taken, so longer paths come first.
_ROUTES = tuple(
    (re.compile(pattern), command)
    for pattern, command in (
        (rf"GET /skills/{_PART}/export gives", "`kernlore skills export` gives"),
        (r"GET /skills\b", "`kernlore skills list`"),
        (r"GET /signals\b", "`kernlore signals`"),
        (r"POST /hardware\b", "`kernlore hardware add`"),
        (rf"GET /hardware/({_PART})/facts(?:\?status=all)?", r"`kernlore hardware facts \1`"),
        (rf"GET /hardware/({_PART})/samples", r"`kernlore knowledge samples --hardware \1`"),
        (rf"GET /hardware/({_PART})/symbols", r"`kernlore knowledge symbols --hardware \1`"),
        (r"GET /hardware\b", "`kernlore hardware list`"),
        (rf"GET /documents/({_PART})/passages", r"`kernlore documents passages \1`"),
        (rf"GET /documents/({_PART})/sections", r"`kernlore documents show \1`"),
        (rf"GET /documents/({_PART})(?= )", r"`kernlore documents show \1`"),
        (r"GET /documents\b", "`kernlore documents list`"),
        (r"GET /trajectories and (`kernlore trajectories list`) show", r"\1 shows"),
        (rf"POST /runs/({_PART})/cancel", r"`kernlore runs cancel \1`"),
        (rf"GET /runs/({_PART})/flagged", r"`kernlore runs flagged \1`"),
        (r"GET /docs describes every request", "--help describes the command"),
        (r"\(`force`\)", "(`--force`)"),
    )
)
_IDS = {"{id}": "ID", "{document_id}": "ID", "{hardware}": "ID", "{run_id}": "ID"}


def in_commands(text: str) -> str:
    """The text with commands in place of routes."""
    for name, word in _IDS.items():
        text = text.replace(name, word)
    for route, command in _ROUTES:
        text = route.sub(command, text)
    return text
