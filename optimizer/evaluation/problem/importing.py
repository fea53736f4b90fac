"""A problem file as a module of its own, with a case's constants in place.

Constants are put into the source, not set afterwards, so that what the file derives from them
(`size = batch * width`) follows. Problem files are their user's own code and run in this process;
candidates never do.
"""

from __future__ import annotations

import ast
import hashlib
import sys
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from kb.errors import InvalidRequest, nearest
from optimizer.evaluation.problem.load import assigned
from optimizer.evaluation.problem.spec import Problem

NO_MEMORY = "can't allocate memory"  # torch's words for the CPU
_NO_GPU = ("NVIDIA driver", "CUDA", "cuda", "HIP", "hip")


@contextmanager
def running(problem: Problem, step: str) -> Iterator[None]:
    """Run a step of the problem file; whatever it raises becomes an InvalidRequest."""
    try:
        yield
    except (InvalidRequest, torch.OutOfMemoryError):
        raise  # what does not fit into the device may fit into the host
    except MemoryError as error:
        raise _without_memory(problem, step) from error
    # The file is foreign code: it may raise anything, and all of it is the file's fault.
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        if NO_MEMORY in text:
            raise _without_memory(problem, step) from error
        raise InvalidRequest(
            f"{problem.path.name}: {step} failed: {text[:500]}", hint=_advice(problem, text)
        ) from error


def _without_memory(problem: Problem, step: str) -> InvalidRequest:
    return InvalidRequest(
        f"{problem.path.name}: {step} needs more memory than there is here",
        hint="Make its sizes smaller, or run it where there is more memory.",
    )


def _advice(problem: Problem, text: str) -> str:
    if any(word in text for word in _NO_GPU):
        return (
            "Make tensors on the CPU: the harness moves inputs and weights to the device. Remove "
            "`.cuda()` and `device=`, or set the file's device constant to 'cpu' in the case."
        )
    return f"Run `python {problem.path.name}` after adding a call of Model(...)(*get_inputs())."


def substituted(problem: Problem, constants: Mapping[str, Any]) -> str:
    """The source with other values for its module-level constants. Raises InvalidRequest for a name
    that the file does not assign."""
    if not constants:
        return problem.source
    tree = ast.parse(problem.source)
    known = assigned(tree)
    for name in constants:
        if name not in known:
            near = nearest(name, known, 1)
            guess = f"Did you mean {near[0]}? " if near else ""
            raise InvalidRequest(
                f"{problem.path.name} has no constant {name!r}",
                hint=f"{guess}It has {', '.join(sorted(known)) or 'none'}.",
            )
    edits = [edit for node in tree.body for edit in _edits(node, constants)]
    lines = problem.source.splitlines(keepends=True)
    for place, text in sorted(edits, key=lambda e: (e[0].lineno, e[0].col_offset), reverse=True):
        _replace(lines, place, text)
    return "".join(lines)


def _edits(node: ast.stmt, constants: Mapping[str, Any]) -> Iterator[tuple[ast.expr, str]]:
    """(expression, replacement) for what this statement assigns."""
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        pairs: list[tuple[ast.expr, ast.expr]] = [(node.target, node.value)]
    elif isinstance(node, ast.Assign):
        pairs = [(target, node.value) for target in node.targets]
    else:
        return
    for target, value in pairs:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            pairs_of = list(zip(target.elts, value.elts, strict=False))
        else:
            pairs_of = [(target, value)]
        for name, old in pairs_of:
            if isinstance(name, ast.Name) and name.id in constants:
                yield old, _literal(constants[name.id], old)


def _literal(value: Any, old: ast.expr) -> str:
    """TOML has no tuples: a list takes the place of a tuple as one."""
    return repr(tuple(value) if isinstance(value, list) and isinstance(old, ast.Tuple) else value)


def _replace(lines: list[str], place: ast.expr, text: str) -> None:
    """Put `text` where the expression stands; the number of lines stays the same."""
    first, last = place.lineno - 1, (place.end_lineno or place.lineno) - 1
    # offsets of ast count bytes
    head = lines[first].encode()[: place.col_offset].decode()
    tail = lines[last].encode()[place.end_col_offset :].decode()
    lines[first : last + 1] = [f"{head}{text}{tail}"] + [""] * (last - first)


def import_problem(problem: Problem, constants: Mapping[str, Any]) -> types.ModuleType:
    """Import the file as a module with these constants. Its folder is importable while it runs, as
    when started by hand. Raises InvalidRequest for whatever the file raises."""
    source = substituted(problem, constants)
    digest = hashlib.sha256(f"{problem.path}\0{source}".encode()).hexdigest()[:16]
    module = types.ModuleType(f"kernlore_problem_{digest}")
    module.__file__ = str(problem.path)
    sys.modules[module.__name__] = module  # dataclasses and pickle look a class's module up
    with running(problem, "importing it"), _folder_on_path(problem.path.parent):
        exec(compile(source, str(problem.path), "exec"), module.__dict__)
    return module


@contextmanager
def _folder_on_path(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
