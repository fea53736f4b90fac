"""Functions of Python files that launch Triton kernels, cut out with what they need of their file,
and with the whole text of the modules of their repository that they import.

Works on the syntax tree and runs nothing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from skills.curator.comparison import code
from skills.lineage.functions import MAX_HEADERS, CFunction, CParameter

_KERNEL = re.compile(r"\.(?:jit|autotune|heuristics)\b|^(?:jit|autotune|heuristics)\b")
_STANDARD = re.compile(r"\btorch\b|\btriton\b")
Reader = Callable[[str], str | None]


@dataclass(frozen=True)
class _Statement:
    """A statement at the top level of a file. `names` are those that it defines, `words` those that
    it uses; `kernel`: it is a Triton kernel."""

    node: ast.stmt
    text: str
    names: frozenset[str]
    words: frozenset[str]
    kernel: bool = False


def python_functions_of(text: str, path: str, module: Reader) -> dict[str, CFunction]:
    """The functions and autograd functions of a file that launch Triton kernels, by name. `module`
    returns the text of a file of the same tree, or None."""
    if not _STANDARD.search(text):
        return {}
    try:
        items = list(_items(text, ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError):
        return {}
    functions: dict[str, CFunction] = {}
    for item in items:
        node = item.node
        if item.kernel or not isinstance(node, ast.FunctionDef | ast.ClassDef):
            continue
        needed = _needed(items, node.name)
        if any(other.kernel for other in needed):
            functions[node.name] = _function(node, item, needed, path, module)
    return functions


def _function(
    node: ast.FunctionDef | ast.ClassDef,
    item: _Statement,
    needed: Sequence[_Statement],
    path: str,
    module: Reader,
) -> CFunction:
    modules = _TreeModules(module)
    texts = [modules.with_absolute_import(other, path) for other in needed]
    whole = "\n\n".join(texts) + "\n"
    arguments = node.args if isinstance(node, ast.FunctionDef) else None
    parameters = () if arguments is None else _parameters(arguments)
    many = len(modules.files) > MAX_HEADERS
    return CFunction(
        name=node.name,
        text=whole,
        own=code(item.text, python=True),
        needed=code(whole, python=True),
        suffix=".py",
        parameters=parameters,
        refusal=f"it needs more than {MAX_HEADERS} files of its repository" if many else "",
        files=modules.files,
    )


def _parameters(arguments: ast.arguments) -> tuple[CParameter, ...]:
    """The parameters that a call must give, by position."""
    named = [*arguments.posonlyargs, *arguments.args]
    required = named[: len(named) - len(arguments.defaults)]
    return tuple(CParameter(a.arg, "", pointer=True, const=False) for a in required)


def _items(text: str, tree: ast.Module) -> Iterator[_Statement]:
    for node in tree.body:
        if isinstance(node, ast.Expr) or _is_main(node):
            continue
        decorators = getattr(node, "decorator_list", [])
        first = min([node.lineno, *(d.lineno for d in decorators)])
        lines = text.splitlines()[first - 1 : node.end_lineno]
        yield _Statement(
            node,
            "\n".join(lines),
            frozenset(_defined(node)),
            frozenset(n.id for n in ast.walk(node) if isinstance(n, ast.Name)),
            any(_KERNEL.search(ast.unparse(d)) for d in decorators),
        )


def _is_main(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)


def _defined(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
        yield node.name
    elif isinstance(node, ast.Import | ast.ImportFrom):
        for alias in node.names:
            yield alias.asname or alias.name.partition(".")[0]
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    else:
        for child in ast.iter_child_nodes(node):
            yield from _defined(child)


def _needed(items: Sequence[_Statement], name: str) -> list[_Statement]:
    """The statements that a definition needs, in the order of the file."""
    wanted, taken = {name}, set[int]()
    grown = True
    while grown:
        grown = False
        for number, item in enumerate(items):
            future = isinstance(item.node, ast.ImportFrom) and item.node.module == "__future__"
            if number not in taken and (item.names & (wanted | {"*"}) or future):
                taken.add(number)
                wanted |= item.words
                grown = True
    return [items[number] for number in sorted(taken)]


@dataclass
class _TreeModules:
    """The modules of a repository that a file imports, as files of a candidate."""

    read: Reader
    files: dict[str, str] = field(default_factory=dict)

    def with_absolute_import(self, item: _Statement, path: str) -> str:
        """The text of a statement of the file; a relative import is made absolute. Takes the
        modules that it imports."""
        for node in ast.walk(item.node):
            self._take(node, path)
        node = item.node
        if isinstance(node, ast.ImportFrom) and node.level:
            names = ", ".join(ast.unparse(alias) for alias in node.names)
            return f"from {'.'.join(self._parts(node, path))} import {names}"
        return item.text

    def _take(self, node: ast.AST, path: str) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                self._module(alias.name.split("."), path)
        elif isinstance(node, ast.ImportFrom):
            parts = self._parts(node, path)
            own = self._text(parts, path)  # what a package defines hides a module of that name
            for name in (alias.name for alias in node.names):
                defined = name == "*" or (own and re.search(rf"\b{re.escape(name)}\b", own))
                if defined or not self._module([*parts, name], path):
                    self._module(parts, path)

    def _parts(self, node: ast.ImportFrom, path: str) -> list[str]:
        """The module that a statement of a file imports from, by its full name."""
        named = node.module.split(".") if node.module else []
        if not node.level:
            return named
        folders = list(PurePosixPath(path).parts)[: -node.level]
        return [*folders[len(_root(path, self.read)) :], *named]

    def _module(self, parts: Sequence[str], path: str) -> bool:
        """Take a module of the tree, and those that it imports; whether there is one."""
        for name, place in self._places(parts, path):
            text = self.read(place)
            if text is None:
                continue
            if name not in self.files and len(self.files) <= MAX_HEADERS:
                self.files[name] = text
                try:
                    tree = ast.parse(text)
                except (SyntaxError, ValueError, RecursionError):
                    return True
                for node in ast.walk(tree):
                    self._take(node, place)
            return True
        return False

    def _text(self, parts: Sequence[str], path: str) -> str | None:
        texts = (self.read(place) for _, place in self._places(parts, path))
        return next((text for text in texts if text is not None), None)

    def _places(self, parts: Sequence[str], path: str) -> Iterator[tuple[str, str]]:
        """The files that a module may be, by its name among the candidate's files."""
        if not parts or parts[0] in ("torch", "triton"):  # a package may have such a folder
            return
        for root in ([], ["src"], ["python"], _root(path, self.read)):
            for end in (".py", "/__init__.py"):
                name = "/".join(parts) + end
                yield name, "/".join([*root, name])


def _root(path: str, read: Reader) -> list[str]:
    """The folder that holds the outermost package of a file."""
    parts = path.split("/")[:-1]
    while parts and read("/".join([*parts, "__init__.py"])) is not None:
        parts = parts[:-1]
    return parts
