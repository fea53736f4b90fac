"""`kernlore knowledge` and `kernlore signals`: what is known, and checks of a folder of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli.backends import Target, open_target, opened, read_settings
from api.cli.options import AsJson, DataDir, Url
from api.cli.output import Json, shortened, show, table
from kb.errors import NotFound

if TYPE_CHECKING:
    from ingestion.linter import Vocabulary

app = typer.Typer(help="Browse and check what is known.")


@app.callback()
def group() -> None:
    """Browse and check what is known."""


@app.command("tree")
def tree(
    path: Annotated[
        str, typer.Argument(help="A path like hardware/h100/memory. Default: the root.")
    ] = "",
    depth: Annotated[int, typer.Option(min=1, max=8, help="Levels to show.")] = 2,
    data_dir: DataDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show the tree of knowledge with counts."""
    with open_target(data_dir, url) as target:
        node = _subtree(target, path, depth)
    show(node, as_json, lambda root: "\n".join(_lines(root, 0)))


def _subtree(target: Target, path: str, depth: int) -> Json:
    """A node of the tree with its children, down to `depth` levels."""
    node = dict(target.knowledge(path))
    if depth > 1:
        node["children"] = [
            {**child, **_subtree(target, child["path"], depth - 1)} for child in node["children"]
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


@app.command("recipes")
def recipes(
    hardware: Annotated[
        str, typer.Option(help="Only recipes for this chip, its family or its vendor.")
    ] = "",
    accept: Annotated[str | None, typer.Option(metavar="ID", help="Accept this recipe.")] = None,
    reject: Annotated[
        str | None, typer.Option(metavar="ID", help="Reject this recipe: it is never used.")
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """List recipes proposed from uploaded manuals. They come from code samples; a person accepts or
    rejects them."""
    with opened(data_dir) as local:
        from retrieval.documents import decide_proposed_recipe, list_proposed_recipes

        if accept is not None:
            decide_proposed_recipe(local.services, accept, "accepted")
        if reject is not None:
            decide_proposed_recipe(local.services, reject, "rejected")
        rows = list_proposed_recipes(local.services, hardware)
    show(rows, as_json, _recipe_lines)


def _recipe_lines(recipes: list[Json]) -> str:
    """Each recipe with its source, the values of its parameters, and its constraints."""
    lines = []
    for recipe in recipes:
        lines.append(
            f"{recipe['id']}  {recipe['status']}  {recipe['language']} on"
            f" {', '.join(recipe['hardware'])}: {recipe['name']}"
        )
        lines.append(f"  {recipe['document_title']}: {' > '.join(recipe['section'][1:])}")
        for parameter in recipe["body"]["parameters"]:
            values = ", ".join(map(str, parameter["values"]))
            lines.append(
                f"  {parameter['name']} ({parameter['role']}, {parameter['about']}): {values}"
            )
        for constraint in recipe["body"]["constraints"]:
            lines.append(f"  {constraint['predicate']}  [{constraint['why']}]")
    return "\n".join(lines)


@app.command("lint")
def lint(
    folder: Annotated[
        Path | None,
        typer.Argument(
            help="A folder in the format of hw_manuals/FORMAT.md. Default: the built-in one."
        ),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Check a folder of knowledge for mistakes. Exits 1 if there are any."""
    from ingestion.linter import lint_folder

    folder = folder or read_settings().knowledge_dir
    if not folder.is_dir():
        raise NotFound(f"{folder} is no folder", hint="Give the folder that contains hardware/.")
    findings = lint_folder(folder, vocabulary())
    show(findings, as_json, lambda rows: "\n".join(f"{r['path']}: {r['message']}" for r in rows))
    return 1 if findings else 0


def vocabulary() -> Vocabulary:
    """The names that knowledge may refer to in this version of the service."""
    from ingestion.linter import Vocabulary
    from retrieval.diagnose.linear_patterns import UnsafePattern, compile_linear
    from retrieval.diagnose.metrics import load_metrics
    from retrieval.diagnose.signals import load_signals

    def signature_problem(pattern: str) -> str | None:
        try:
            compile_linear(pattern)
        except UnsafePattern as problem:
            return str(problem)
        return None

    names = frozenset(metric.name for metric in load_metrics())
    return Vocabulary(load_signals().ids, names, signature_problem)


def signals(data_dir: DataDir = None, url: Url = None, as_json: AsJson = False) -> None:
    """List the run-time signals. A signal names what went wrong, such as memory_bound."""
    with open_target(data_dir, url) as target:
        rows = target.signals()
    show(
        rows,
        as_json,
        lambda rows: table(("signal", "group", "title"), [_row(row) for row in rows]),
    )


def _row(signal: Json) -> tuple[Any, ...]:
    return (signal["id"], signal.get("group"), signal.get("title"))
