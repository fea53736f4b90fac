"""Functions of C, C++ and Python files, cut out with what they need of their file, its headers and
the modules of its repository.

Works on C text without comments, by braces and names, and on the syntax tree of Python; runs
nothing. A function that is cut wrong does not compile or is not right, so no figure depends on
this.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from kb.candidate_abi import C_TYPES
from skills.curator.code_items import INCLUDE, Item, items_of
from skills.curator.comparison import code, without_comments

C_SUFFIXES = frozenset({".c", ".h", ".cc", ".cpp", ".cxx", ".hpp", ".cu", ".cuh"})
MAX_HEADERS = 60

# The element type of a C type, by torch's names; integers without an exact width are sizes.
ELEMENTS = {ctype: element for element, ctype in C_TYPES.items()} | {"int": "int32"}
INTEGERS = frozenset(
    {"int", "long", "unsigned", "size_t", "ssize_t", "ptrdiff_t", "short", "uint32_t", "uint64_t"}
    | {"int32_t", "int64_t", "int16_t"}
)
_QUALIFIERS = re.compile(
    r"\b(?:const|restrict|__restrict__|__restrict|register|volatile|struct|extern|static|inline"
    r"|__inline__|__inline|signed|__host__)\b|(?:__attribute__|alignas|__declspec)\s*\((?:[^()]|\((?:[^()]"
    r"|\([^()]*\))*\))*\)"
)
_WORD = re.compile(r"[A-Za-z_]\w*")
_ALIAS = re.compile(r"\btypedef\s+(\w+)\s+(\w+)\s*;")
# Words at the top level of a declaration that it does not define.
_KEYWORDS = INTEGERS | frozenset(
    {"typedef", "struct", "static", "const", "extern", "template", "class", "typename", "inline"}
    | {"constexpr", "using", "void", "char", "bool", "float", "double", "alignas", "signed"}
    | {"volatile", "__device__", "__host__", "__constant__", "__shared__", "__align__", "half"}
)
_WORKS = re.compile(r"\b(?:for|while)\s*\(|<<<")
_ON_GPU = re.compile(r"\b__(?:global|device)__\b")


@dataclass(frozen=True)
class CParameter:
    """A parameter of a C function. `element` is the element type of an array, or that of a number;
    `size` is an integer that is no array."""

    name: str
    element: str
    pointer: bool
    const: bool
    size: bool = False


@dataclass(frozen=True)
class CFunction:
    """A function of C, CUDA or Python with its file's other definitions that it needs, in order, as
    one `text`.

    `own` is its own definition, and `needed` that with what it needs, without includes and
    conditions, as they are compared. `returns` is the element type of its result, empty for void.
    `suffix` is that of its file. `refusal` says why it cannot be called with arrays and numbers, or
    is empty. `files` are modules that a Python function imports from its repository.
    """

    name: str
    text: str
    own: str
    needed: str
    suffix: str
    returns: str = ""
    parameters: tuple[CParameter, ...] = ()
    refusal: str = ""
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def language(self) -> str:
        """The language of the function's candidates, without an emulated chip."""
        if self.suffix == ".py":
            return "triton"
        return "cuda" if "<<<" in self.text else "cpp"


def functions_of(
    text: str, path: str, header: Callable[[str], str | None] = lambda path: None
) -> dict[str, CFunction]:
    """The functions with a loop and an array in a file, by name. `header` returns the text of a
    file of the same tree, or None."""
    whole = _with_headers(text, path, header)
    items = list(items_of(without_comments(whole, python=False)))
    aliases = dict((new, old) for old, new in _ALIAS.findall(whole))
    suffix = PurePosixPath(path).suffix
    own = {item.name for item in items_of(without_comments(text, python=False))}
    words = [set(_WORD.findall(item.text)) for item in items]
    defined = [_defined(item) for item in items]
    functions: dict[str, CFunction] = {}
    for item in items:
        if item.kind != "function" or item.name not in own or not _WORKS.search(item.text):
            continue
        if _ON_GPU.search(item.head):  # measured through the host function that launches it
            continue
        returns, parameters, refusal = _signature(item, aliases)
        if refusal or any(parameter.pointer for parameter in parameters):
            kept, needed = _needed(items, words, defined, item.name, suffix)
            functions[item.name] = CFunction(
                name=item.name,
                text=kept,
                needed=needed,
                own=code(item.text, python=False),
                suffix=suffix,
                returns=returns,
                parameters=tuple(parameters),
                refusal=refusal,
            )
    return functions


def _with_headers(
    text: str, path: str, header: Callable[[str], str | None], seen: set[str] | None = None
) -> str:
    """The text with the tree's own headers in place of their includes, each once. Includes of files
    that the tree does not have are left out if they are in quotes."""
    seen = {path} if seen is None else seen
    folder = PurePosixPath(path).parent
    lines = []
    for line in text.splitlines():
        match = INCLUDE.match(line)
        if match is None or match[1] == "<":
            lines.append("" if line.strip() == "#pragma once" else line)
            continue
        for place in (folder / match[2], PurePosixPath("include") / match[2], match[2]):
            name = _normal(str(place))
            if name in seen:
                break
            inner = header(name) if name and len(seen) < MAX_HEADERS else None
            if inner is not None:
                seen.add(name)
                lines.append(_with_headers(inner, name, header, seen))
                lines += _definitions(name, header, seen)
                break
    return "\n".join(lines) + "\n"


def _definitions(name: str, header: Callable[[str], str | None], seen: set[str]) -> Iterator[str]:
    """The text of the source file that belongs to a header, beside it or in `src`."""
    place = PurePosixPath(name)
    parts = ["src" if part == "include" else part for part in place.parts[:-1]]
    for folder in dict.fromkeys((place.parent, PurePosixPath(*parts))):
        for suffix in (".c", ".cc", ".cpp", ".cu"):
            source = str(folder / (place.stem + suffix))
            text = header(source) if source not in seen else None
            if text is not None:
                seen.add(source)
                yield _with_headers(text, source, header, seen)


def _normal(path: str) -> str:
    """The path without `.` and `..`; empty if it leaves the tree."""
    parts: list[str] = []
    for part in PurePosixPath(path).parts:
        if part == "..":
            if not parts:
                return ""
            parts.pop()
        elif part != ".":
            parts.append(part)
    return "/".join(parts)


def _needed(
    items: list[Item], words: list[set[str]], defined: list[set[str]], name: str, suffix: str
) -> tuple[str, str]:
    """The named function and the items that it needs, in the order of the file, and the code of
    these items alone. `words` are those of each item, `defined` the names that it defines."""
    needed = {name}
    taken: set[int] = set()
    grown = True
    while grown:
        grown = False
        for number, item in enumerate(items):
            if number not in taken and item.kind in ("function", "other", "directive"):
                if item.kind == "directive" and not defined[number]:
                    continue
                if defined[number] & needed:
                    taken.add(number)
                    needed |= words[number]
                    grown = True
    kept: list[str] = []
    functions = [number for number in sorted(taken) if items[number].kind == "function"]
    functions = functions if suffix in (".c", ".h") else []
    for number, item in enumerate(items):
        if functions and number == functions[0]:
            # C once allowed calls of functions that are declared later.
            kept += [f"{items[later].head.strip()};" for later in functions[1:]]
        if (
            number in taken
            or item.kind in ("include", "bracket")
            or (item.kind == "directive" and not defined[number])
        ):
            kept.append(item.text)
    needs = "\n".join(items[number].text for number in sorted(taken))
    return _without_empty_conditions(kept), code(needs, python=False)


def _defined(item: Item) -> set[str]:
    if item.kind == "function":
        return {item.name}
    if item.kind == "directive":
        match = re.match(r"\s*#\s*define\s+(\w+)", item.text)
        return {match[1]} if match else set()
    if item.kind != "other":
        return set()
    if re.search(r"\benum\b", item.text):
        return set(_WORD.findall(item.text))
    bare = _QUALIFIERS.sub(" ", item.text)
    prototype = re.match(r"[^{}=;()]*?(\w+)\s*\([^{}]*\)[^{}()]*;\s*$", bare, re.DOTALL)
    if prototype and "typedef" not in bare:
        return {prototype[1]}
    outer, depth = [], 0
    for char in item.text.partition("=")[0]:
        depth += (char == "{") - (char == "}")
        outer.append(char if depth == 0 else " ")
    return set(_WORD.findall("".join(outer))) - _KEYWORDS


def _without_empty_conditions(texts: list[str]) -> str:
    """The texts without `#if ... #endif` that hold nothing."""
    opened, closed = re.compile(r"\s*#\s*if"), re.compile(r"\s*#\s*endif")
    branch = re.compile(r"\s*#\s*(?:else|elif)")
    kept: list[str] = []
    for text in texts:
        if closed.match(text):
            place = len(kept)
            while place and branch.match(kept[place - 1]):
                place -= 1
            if place and opened.match(kept[place - 1]):
                del kept[place - 1 :]
                continue
        kept.append(text)
    return "\n".join(kept) + "\n"


def _signature(item: Item, aliases: dict[str, str]) -> tuple[str, list[CParameter], str]:
    """Returned element type, parameters, and the reason for a refusal."""
    if "::" in item.name or "~" in item.name:
        return "", [], "it is a method"
    if "template" in item.head:
        return "", [], "it is a template"
    opening = item.head.rindex(item.name) + len(item.name)
    inside = item.head[opening:].strip()[1:-1]
    before = _QUALIFIERS.sub(" ", item.head[: item.head.rindex(item.name)])
    words = [aliases.get(word, word) for word in _WORD.findall(before)]
    returned = words[-1] if words else "int"
    returns = "" if returned == "void" else ELEMENTS.get(returned, "?")
    if "*" in before or returns == "?":
        return "", [], f"it returns {' '.join(before.split())[:40]}"
    parameters: list[CParameter] = []
    for part in _split(inside):
        bare = _QUALIFIERS.sub(" ", part)
        names = _WORD.findall(bare)
        pointers = bare.count("*") + bare.count("[") + bare.count("&")
        if part.strip() in ("", "void"):
            continue
        if len(names) < 2 or pointers > 1 or "(" in bare:
            return "", [], f"argument `{' '.join(part.split())[:60]}` is no array and no number"
        name = names[-1] if "[" not in bare else _WORD.findall(bare.partition("[")[0])[-1]
        kind = aliases.get(names[0], names[0])
        element = ELEMENTS.get(kind, "int64" if kind in INTEGERS else "")
        if not element:
            return "", [], f"argument `{' '.join(part.split())[:60]}` is of type {kind[:30]}"
        size = not pointers and kind in INTEGERS
        constant = bool(pointers) and "const" in part
        parameters.append(CParameter(name, element, bool(pointers), constant, size))
    return returns, parameters, ""


def _split(text: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for place, char in enumerate(text):
        depth += (char in "([<") - (char in ")]>")
        if char == "," and depth == 0:
            parts.append(text[start:place])
            start = place + 1
    return [*parts, text[start:]]


# -- functions of Python files that launch Triton kernels

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
        needed = _needed_statements(items, node.name)
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
            frozenset(_names_defined(node)),
            frozenset(n.id for n in ast.walk(node) if isinstance(n, ast.Name)),
            any(_KERNEL.search(ast.unparse(d)) for d in decorators),
        )


def _is_main(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)


def _names_defined(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
        yield node.name
    elif isinstance(node, ast.Import | ast.ImportFrom):
        for alias in node.names:
            yield alias.asname or alias.name.partition(".")[0]
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    else:
        for child in ast.iter_child_nodes(node):
            yield from _names_defined(child)


def _needed_statements(items: Sequence[_Statement], name: str) -> list[_Statement]:
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
