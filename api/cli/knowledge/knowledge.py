"""`kernlore knowledge tree` and `kernlore signals`: what there is to ask for; `knowledge lint`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli.backends import Target, open_target, read_settings
from api.cli.options import AsJson, DataDir, Url
from api.cli.output import Json, shortened, show, table
from kb.errors import NotFound

if TYPE_CHECKING:
    from api.cli.backends.local import LocalTarget
    from ingestion.linter import Vocabulary
    from kb.catalog.knowledge.proposed_recipes import RecipeStatus

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


@app.command("recipes")
def recipes(
    hardware: Annotated[str, typer.Option(help="Of this chip and those above it.")] = "",
    accept: Annotated[str | None, typer.Option(metavar="ID", help="Accept one.")] = None,
    reject: Annotated[str | None, typer.Option(metavar="ID", help="Never use it.")] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Recipes proposed from the code samples of uploaded manuals."""
    from api.cli.backends.local import LocalTarget

    local = LocalTarget(read_settings(data_dir))
    try:
        found = _decided(local, hardware, {"accepted": accept, "rejected": reject})
    finally:
        local.close()
    show(found, as_json, _recipe_lines)


def _decided(
    local: LocalTarget, hardware: str, decisions: Mapping[RecipeStatus, str | None]
) -> list[Json]:
    from api.http.routes import knowledge
    from kb.catalog.knowledge import proposed_recipes
    from kb.scope import ALL_ACCESS

    services = local.services
    for status, recipe_id in decisions.items():
        if recipe_id is not None:
            with services.catalog.write() as connection:
                proposed_recipes.decide(connection, recipe_id, status)
    return list(knowledge.recipes(services, ALL_ACCESS, hardware)["recipes"])


def _recipe_lines(found: list[Json]) -> str:
    """Each with where it stands, its domains and what binds them."""
    lines = []
    for recipe in found:
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
        typer.Argument(help="A folder in the form of hw_manuals/FORMAT.md; default the built-in."),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """What is wrong with a folder of knowledge; exit code 1 when anything is."""
    from ingestion.linter import lint_folder

    folder = folder or read_settings().knowledge_dir
    if not folder.is_dir():
        raise NotFound(f"{folder} is no folder", hint="Give the folder that holds hardware/.")
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
