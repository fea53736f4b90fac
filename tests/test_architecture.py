"""The shape of the source: imports point one way, modules and functions stay small."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("kb", "ingestion", "retrieval", "skills", "optimizer", "api")
ALLOWED = {
    "kb": {"kb"},
    "ingestion": {"kb", "ingestion"},
    "retrieval": {"kb", "retrieval"},
    "optimizer": {"kb", "ingestion", "retrieval", "optimizer"},
    "skills": {"kb", "ingestion", "retrieval", "optimizer", "skills"},
    "api": set(PACKAGES),
}
MAX_MODULE = 500
MAX_FUNCTION = 60
CHROMA_OWNER = Path("kb/index/chroma.py")
# Templates of recipes, no Python until they are filled.
LIBRARY = Path("skills/library")
# Schema as code: alembic's generated table definitions are one list, not logic.
GENERATED = Path("kb/catalog/migrations/versions")


def modules() -> list[Path]:
    return sorted(
        path.relative_to(ROOT)
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if "__pycache__" not in path.parts and not path.is_relative_to(ROOT / LIBRARY)
    )


def tree(path: Path) -> ast.Module:
    return ast.parse((ROOT / path).read_text(encoding="utf-8"))


def imported(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_point_one_way(package: str) -> None:
    wrong = [
        f"{path} imports {name}"
        for path in modules()
        if path.parts[0] == package
        for name in imported(tree(path))
        if name.split(".")[0] in PACKAGES and name.split(".")[0] not in ALLOWED[package]
    ]
    assert wrong == []


def test_the_two_doors_know_nothing_of_each_other() -> None:
    """Both call the functions of the rooms. Only `serve` loads the HTTP application."""
    serve = ("api/cli/commands/serve.py", "api.http.app")
    wrong = [
        f"{path} imports {name}"
        for door, other in (("api/cli", "api.http"), ("api/http", "api.cli"))
        for path in modules()
        if path.is_relative_to(door)
        for name in imported(tree(path))
        if f"{name}.".startswith(f"{other}.") and (path.as_posix(), name) != serve
    ]
    assert wrong == []


def test_no_command_asks_which_backend_it_has() -> None:
    asking = [
        f"{path}:{node.lineno}"
        for path in modules()
        if path.is_relative_to("api/cli")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "isinstance"
        and "Target" in ast.dump(node.args[1])
    ]
    assert asking == []


def test_there_are_no_relative_imports() -> None:
    relative = [
        str(path)
        for path in modules()
        if any(isinstance(n, ast.ImportFrom) and n.level for n in ast.walk(tree(path)))
    ]
    assert relative == []


def test_only_one_module_opens_chroma() -> None:
    openers = [
        path
        for path in modules()
        if any(n.split(".")[0] == "chromadb" for n in imported(tree(path)))
    ]
    assert openers == [CHROMA_OWNER]


def test_no_module_is_too_long() -> None:
    long = {
        str(path): lines
        for path in modules()
        if (lines := len((ROOT / path).read_text(encoding="utf-8").splitlines())) > MAX_MODULE
        # One self-contained file by design: it is also a distribution of its own.
        and path != Path("retrieval/client.py")
    }
    assert long == {}


def test_no_function_is_too_long() -> None:
    long = [
        f"{path}:{node.lineno} {node.name} has {node.end_lineno - node.lineno + 1} lines"
        for path in modules()
        if GENERATED not in path.parents
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > MAX_FUNCTION
    ]
    assert long == []


def test_every_module_says_what_it_is_for() -> None:
    silent = [
        str(path)
        for path in modules()
        if (ROOT / path).read_text(encoding="utf-8").strip() and not ast.get_docstring(tree(path))
    ]
    assert silent == []


def test_names_of_test_modules_are_unique() -> None:
    """pytest imports them by their name alone: of two, one would not be collected."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))
