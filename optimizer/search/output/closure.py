"""What of a problem's file its Model depends on: constants that change the Model from case to case,
and modules beside the file.

Reads source only; runs nothing.
"""

from __future__ import annotations

import ast
import symtable
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path


def model_part(source: str) -> str:
    """The definitions that Model depends on, in their order, in a form that can be compared: two
    sources with the same part have the same Model."""
    tree = ast.parse(source)
    scopes = symtable.symtable(source, "<problem>", "exec").get_children()
    needed, waiting = {"Model"}, ["Model"]
    while waiting:
        name = waiting.pop()
        for node in tree.body:
            if name in _defines(node):
                for used in _uses(node, scopes) - needed:
                    needed.add(used)
                    waiting.append(used)
    return "\n".join(ast.dump(node) for node in tree.body if _defines(node) & needed)


def _defines(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name.partition(".")[0] for alias in node.names}
    # A name that is set in a loop or a condition counts as well.
    return {
        part.id
        for part in ast.walk(node)
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
    }


def _uses(node: ast.stmt, scopes: Sequence[symtable.SymbolTable]) -> set[str]:
    """Module-level names; an argument of the same name is none."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return _loaded(node)
    found = {name for scope in scopes if scope.get_name() == node.name for name in _free(scope)}
    outside: list[ast.AST] = list(node.decorator_list)
    if isinstance(node, ast.ClassDef):
        outside += [*node.bases, *node.keywords]
    else:
        outside.append(node.args)
    return found.union(*map(_loaded, outside))


def _free(scope: symtable.SymbolTable) -> set[str]:
    """Of a function or class and all inside it."""
    own = {s.get_name() for s in scope.get_symbols() if s.is_global() and s.is_referenced()}
    return own.union(*map(_free, scope.get_children()))


def _loaded(node: ast.AST) -> set[str]:
    return {
        part.id
        for part in ast.walk(node)
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)
    }


def files_beside(source: str, folder: Path) -> Mapping[str, str]:
    """Text of the modules in `folder` that the source imports, and of those that they import."""
    found: dict[str, str] = {}
    waiting = [source]
    while waiting:
        for name in _imported(waiting.pop()):
            for path in _files(folder, name):
                relative = path.relative_to(folder).as_posix()
                if relative not in found:
                    found[relative] = path.read_text(encoding="utf-8")
                    waiting.append(found[relative])
    return found


def _imported(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def _files(folder: Path, name: str) -> list[Path]:
    if (folder / f"{name}.py").is_file():
        return [folder / f"{name}.py"]
    if (folder / name / "__init__.py").is_file():
        return sorted((folder / name).rglob("*.py"))
    return []
