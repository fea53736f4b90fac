"""Python text of other conventions as text of the product's own: references that run on the device
of their inputs, modules inside one problem file, and submissions with an entry class.

Runs none of it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kb.errors import InvalidRequest

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


def parsed(name: str, text: str, expected: str) -> ast.Module:
    """The syntax tree of a file. Raises InvalidRequest."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError) as error:
        raise InvalidRequest(f"{name} does not parse: {error}", hint=expected) from error


def defined_names(tree: ast.Module) -> set[str]:
    """Names that a module defines or assigns."""
    names = {n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    for node in tree.body:
        if isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
    return names


def loader(files: Mapping[str, str]) -> str:
    """The head of a problem file that contains these modules (name to text, the reference last)."""
    return LOADER.replace("{files}", repr(dict(files)))


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
