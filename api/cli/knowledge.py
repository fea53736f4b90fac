"""`kernlore knowledge tree` and `kernlore signals`: what there is to ask for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from api.cli.options import AsJson, DataDir, Url
from api.cli.output import Json, shortened, show, table
from api.cli.target import Target, open_target

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
        node = _grown(target, path, depth)
    show(node, as_json, lambda found: "\n".join(_lines(found, 0)))


def _grown(target: Target, path: str, depth: int) -> Json:
    """The place with its children, and theirs, down to `depth` levels."""
    node = dict(target.knowledge(path))
    if depth > 1:
        node["children"] = [
            {**child, **_grown(target, child["path"], depth - 1)} for child in node["children"]
        ]
    return node


def _lines(node: Json, level: int) -> Iterator[str]:
    indent = "  " * level
    counts = f"{node['documents']} documents, {node['passages']} passages"
    yield f"{indent}{node['title']}  ({counts})  {node['path']}".rstrip()
    for child in node.get("children") or ():
        yield from _lines(child, level + 1)
    for text in node.get("texts") or ():
        yield f"{indent}  {text['id']}  {shortened(text['text'], 160)}"
    if node.get("hint"):
        yield f"{indent}hint: {node['hint']}"


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
