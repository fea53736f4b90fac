"""`kernlore knowledge tree` and `kernlore signals`: what there is to ask for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from api.cli.options import AsJson, DataDir, Url
from api.cli.output import Json, show, table
from api.cli.target import open_target

app = typer.Typer(help="Walk through what is known.")


@app.callback()
def group() -> None:
    """Walk through what is known."""


@app.command("tree")
def tree(
    path: Annotated[str, typer.Argument(help="A place, like hardware/h100/memory.")] = "",
    depth: Annotated[int, typer.Option(min=1, max=8, help="Levels below it.")] = 2,
    data_dir: DataDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """The knowledge as a tree, with counts."""
    with open_target(data_dir, url) as target:
        node = target.knowledge(path, depth)
    show(node, as_json, lambda found: "\n".join(_lines(found, 0)))


def _lines(node: Json, level: int) -> Iterator[str]:
    name = node.get("title") or node.get("name") or node.get("path") or "knowledge"
    counts = [
        f"{node[key]} {key}" for key in ("documents", "passages") if isinstance(node.get(key), int)
    ]
    yield f"{'  ' * level}{name}" + (f"  ({', '.join(counts)})" if counts else "")
    children: Any = node.get("children") or ()
    for child in children:
        yield from _lines(child, level + 1)


def signals(data_dir: DataDir = None, url: Url = None, as_json: AsJson = False) -> None:
    """Every run-time signal that can be asked for."""
    with open_target(data_dir, url) as target:
        found = target.signals()
    show(
        found,
        as_json,
        lambda rows: table(("signal", "group", "title"), [_row(row) for row in rows]),
    )


def _row(signal: Json) -> tuple[Any, ...]:
    return (signal["id"], signal.get("group"), signal.get("title"))
