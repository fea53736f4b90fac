"""A problem from a file in the KernelBench convention, with or without a toml beside it.

Nothing of the file is executed here: it is parsed for what it defines. How a case becomes tensors
is known to `tensors`.
"""

from __future__ import annotations

import ast
import hashlib
from pathlib import Path

from kb.errors import InvalidRequest, NotFound, nearest
from optimizer.evaluation.problem.declared import Declaration, read_declaration
from optimizer.evaluation.problem.guess import guess_op
from optimizer.evaluation.problem.spec import Case, Policy, Problem

SHIPPED = Path(__file__).parents[2] / "problems"
SOURCE_NAME = "problem.py"
TOML_NAME = "problem.toml"
_CONVENTION = (
    "A problem file defines `class Model(nn.Module)`, `get_inputs()` and, where Model takes "
    "arguments, `get_init_inputs()`; `kernlore problem new NAME` writes one."
)


def shipped_problems() -> list[str]:
    """Names of the built-in problems."""
    return sorted(path.parent.name for path in SHIPPED.glob(f"*/{SOURCE_NAME}"))


def load_problem(path: Path) -> Problem:
    """The problem at a `.py` file, in a folder with a `problem.py`, or built in under this name."""
    file = _file_of(path)
    try:
        source = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as problem:
        raise InvalidRequest(f"{file} is not UTF-8 text", hint=_CONVENTION) from problem
    constants = _checked(file, source)
    toml = _toml_beside(file)
    text = toml.read_text(encoding="utf-8") if toml else ""
    told = read_declaration(toml, text, constants) if toml else Declaration()
    default = file.parent.name if file.name == SOURCE_NAME else file.stem
    return Problem(
        name=told.name or default,
        path=file,
        source=source,
        sha256=hashlib.sha256(f"{source}\0{text}".encode()).hexdigest(),
        op=told.op or guess_op(source),
        cases=told.cases or (Case("declared"),),
        policy=told.policy or Policy(),
        declared=toml is not None,
        summary=told.summary or _summary(source),
    )


def _file_of(path: Path) -> Path:
    if path.is_dir():
        if (path / SOURCE_NAME).is_file():
            return (path / SOURCE_NAME).resolve()
        raise NotFound(f"{path} has no {SOURCE_NAME}", hint="Give the problem file itself.")
    if path.is_file():
        return path.resolve()
    built_in = SHIPPED / path.name / SOURCE_NAME
    if len(path.parts) == 1 and built_in.is_file():
        return built_in
    near = nearest(path.name, shipped_problems())
    hint = f"Did you mean {', '.join(near)}? " if near else ""
    raise NotFound(
        f"there is no problem {str(path)!r}",
        hint=f"{hint}Give a file, a folder, or a name of `kernlore problem list`.",
    )


def _toml_beside(file: Path) -> Path | None:
    """`<stem>.toml`, else the folder's `problem.toml` where it cannot be about another file."""
    own = file.with_suffix(".toml")
    if own.is_file():
        return own
    shared = file.parent / TOML_NAME
    return shared if shared.is_file() and not (file.parent / SOURCE_NAME).is_file() else None


def _checked(file: Path, source: str) -> frozenset[str]:
    """The module-level names that a case may set; InvalidRequest for what is no problem file."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as problem:
        line = getattr(problem, "lineno", None) or 1
        raise InvalidRequest(
            f"{file.name}, line {line}: {problem}", hint="Correct the syntax; it must import."
        ) from problem
    defined = _defined(tree)
    missing = [name for name in ("Model", "get_inputs") if name not in defined]
    if missing:
        found = ", ".join(sorted(defined)) or "nothing"
        raise InvalidRequest(
            f"{file.name} does not define {' and '.join(missing)} (it defines {found})",
            hint=_CONVENTION,
        )
    return assigned(tree)


def _defined(tree: ast.Module) -> set[str]:
    kinds = (ast.ClassDef, ast.FunctionDef)
    names = {node.name for node in tree.body if isinstance(node, kinds)}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
    return names | assigned(tree)


def assigned(tree: ast.Module) -> frozenset[str]:
    """Names that the module assigns at its top level."""
    names: set[str] = set()
    for node in tree.body:
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            targets = [node.target]
        for target in targets:
            parts = target.elts if isinstance(target, ast.Tuple) else [target]
            names |= {part.id for part in parts if isinstance(part, ast.Name)}
    return frozenset(names)


def _summary(source: str) -> str:
    """First line of the docstring of the module, else of Model."""
    tree = ast.parse(source)
    model = next((n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Model"), None)
    for node in (tree, model):
        text = ast.get_docstring(node) if node is not None else None
        if text:
            return text.splitlines()[0].strip()
    return ""
