"""How a command prints: text for people, or one JSON document on the last line of standard output.

Everything else (progress, logs, errors) goes to standard error when the answer is JSON. Knows no
command and no service.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import typer

from api.cli.command_hints import in_commands
from kb.errors import KernloreError
from kb.plain import plain

Json = Mapping[str, Any]


def show(value: Any, as_json: bool, text: Callable[[Any], str]) -> None:
    """Print a command's answer."""
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
    """Print a remark on standard error, beside the answer."""
    print(message, file=sys.stderr, flush=True)


def confirm(question: str, undone: str) -> None:
    """Ask a person. Unless the answer is yes, say what did not happen and end with exit code 1:
    also where nobody answers (end of input, Ctrl-C).
    """
    try:
        agreed = typer.confirm(question, err=True)
    except typer.Abort:
        note("")  # the cursor is still behind the question
        agreed = False
    if not agreed:
        note(f"{undone}; use --yes to do it without a question")
        raise typer.Exit(1)


def report_error(error: KernloreError, as_json: bool) -> None:
    """Print what went wrong and what to do next; as JSON too, in the shape of all errors."""
    hint = in_commands(error.hint)
    print(f"error: {error.message}", file=sys.stderr)
    if hint:
        print(f"hint: {hint}", file=sys.stderr)
    if as_json:
        write_json({**error.as_json(), "hint": hint})


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
    kept = {key: value for key, value in values.items() if value not in (None, "", [], {})}
    width = max((len(key) for key in kept), default=0)
    return "\n".join(f"{key.ljust(width)}  {_value(value)}" for key, value in kept.items())


def _value(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else _cell(value)


def shortened(text: str, length: int) -> str:
    """One line of at most `length` characters."""
    line = " ".join(text.split())
    return line if len(line) <= length else f"{line[: length - 3]}..."
