"""A format of tasks: how it is recognised and read, and how a result is written back in it."""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from kb.errors import InvalidRequest
from kb.yaml_loaders import load_plain
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.problem.load import guess_op
from optimizer.evaluation.problem.spec import Case, Problem
from optimizer.evaluation.records import CaseTiming, Evaluation


@dataclass(frozen=True)
class ForeignTask:
    """A task as a problem and its submission as a candidate. `write_back` gives the text of a
    result in the convention of the task."""

    problem: Problem
    bundle: Bundle
    write_back: Callable[[Evaluation], str]


@dataclass(frozen=True)
class TaskFormat:
    """One convention. `task` and `submission` describe both for error messages.

    `read` converts a task and a submission; it raises InvalidRequest for files that are not in this
    convention. It may run code of the task, never of the submission.
    """

    name: str
    task: str
    submission: str
    recognises: Callable[[Path], bool]
    read: Callable[[Path, Path], ForeignTask]


def converted(
    name: str,
    path: Path,
    modules: Mapping[str, str],
    template: str,
    fields: Mapping[str, str],
    cases: tuple[Case, ...],
    *,
    reference: str,
    summary: str = "",
) -> Problem:
    """A problem that loads the `modules` (name to text, the reference last), and whose further text
    is the template with the fields and the `constants` of the first case. The operator is guessed
    from the text of the `reference`."""
    constants = (f"{key} = {value!r}" for key, value in cases[0].constants.items())
    further = filled(template, {**fields, "constants": "\n".join(constants)})
    source = f"{LOADER.replace('{files}', repr(dict(modules)))}\n\n{further}"
    identity = repr((source, [(case.name, sorted(case.constants.items())) for case in cases]))
    return Problem(
        name=name,
        path=path.resolve(),
        source=source,
        sha256=hashlib.sha256(identity.encode()).hexdigest(),
        op=guess_op(reference),
        cases=cases,
        declared=True,
        summary=summary,
    )


def timings_of(evaluation: Evaluation) -> Mapping[str, CaseTiming]:
    return {t.case: t for t in evaluation.timings if t.candidate_us is not None}


# -- sources of other conventions

DEVICE = "_kernlore_device"
_CUDA = re.compile(r"cuda(:\d+)?")

# Loads the texts of `_FILES` as modules, which may import each other by name. `reference` is last.
LOADER = f'''\
import sys
import types

import torch


def _load(files):
    before = {{name: sys.modules.get(name) for name in files}}
    try:
        for name, text in files.items():
            module = types.ModuleType(name)
            module.{DEVICE} = "cpu"
            sys.modules[name] = module
            exec(compile(text, name + ".py", "exec"), module.__dict__)
        return module
    finally:
        for name, module in before.items():
            sys.modules.pop(name, None)
            if module is not None:
                sys.modules[name] = module


def _on(device):
    """Let the reference make its arrays on this device."""
    _reference.{DEVICE} = device


_reference = _load({{files}})
'''


def read_text(path: Path, expected: str) -> str:
    """The text of a file of a task or submission. Raises InvalidRequest."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise InvalidRequest(f"there is no file {path}", hint=expected) from error
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{path} is not UTF-8 text", hint=expected) from error


def read_json(path: Path, expected: str) -> dict[str, Any]:
    """The JSON object in a file of a task or submission. Raises InvalidRequest."""
    return _read_object(path, expected, "JSON", json.loads)


def read_yaml(path: Path, expected: str) -> dict[str, Any]:
    """The mapping in a YAML file of a task, empty for an empty file. Raises InvalidRequest."""
    return _read_object(path, expected, "YAML", lambda text: load_plain(text) or {})


def _read_object(
    path: Path, expected: str, kind: str, parse: Callable[[str], Any]
) -> dict[str, Any]:
    text = read_text(path, expected)
    try:
        fields = parse(text)
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise InvalidRequest(f"{path.name} is not {kind}: {error}", hint=expected) from error
    if not isinstance(fields, dict):
        raise InvalidRequest(f"{path.name} does not contain an object", hint=expected)
    return fields


def filled(template: str, fields: Mapping[str, str]) -> str:
    """The template with each {name} replaced by its text; other braces stay."""
    return re.sub(r"\{(\w+)\}", lambda m: fields.get(m[1], m[0]), template)


def parsed(name: str, text: str, expected: str) -> ast.Module:
    """The syntax tree of a file. Raises InvalidRequest."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError) as error:
        raise InvalidRequest(f"{name} does not parse: {error}", hint=expected) from error


def parsed_with(names: Collection[str], name: str, text: str, expected: str) -> ast.Module:
    """The syntax tree of a file that has to define the `names`. Raises InvalidRequest."""
    tree = parsed(name, text, expected)
    if missing := sorted(set(names) - defined_names(tree)):
        raise InvalidRequest(f"{name} does not define {', '.join(missing)}", hint=expected)
    return tree


def defined_names(tree: ast.Module) -> set[str]:
    names = {n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    for node in tree.body:
        if isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
    return names


def on_the_device_of_its_inputs(tree: ast.Module) -> str:
    """The text with every "cuda" replaced by the device of the inputs: the harness draws inputs on
    the CPU, computes goldens where memory suffices, and moves arrays itself."""
    return ast.unparse(ast.fix_missing_locations(_ReplaceCuda().visit(tree)))


class _ReplaceCuda(ast.NodeTransformer):
    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        if isinstance(node.value, str) and _CUDA.fullmatch(node.value):
            return ast.Name(DEVICE, ast.Load())
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.expr:
        return node

    def visit_Call(self, node: ast.Call) -> Any:
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "cuda":
            moved = ast.Attribute(node.func.value, "to", ast.Load())
            return ast.Call(moved, [ast.Name(DEVICE, ast.Load())], [])
        return node
