"""What a Python candidate's source may not do, read from its syntax tree before anything runs.

Only what has no honest use in a kernel is refused; what only looks odd is left to the run-time
checks, which see what really happened.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.records import Flag

_FRAMES = {"_getframe", "currentframe", "get_objects", "get_referrers", "settrace", "setprofile"}
_PROCESS = {"ptrace", "process_vm_readv", "process_vm_writev"}
_MODEL = "Model"


class SourceUnreadable(Exception):
    """The file does not parse; the message has line and column."""


def source_flags(bundle: Bundle) -> list[Flag]:
    """Findings in every Python file of the bundle. Raises SourceUnreadable for a file that does not
    parse."""
    flags: list[Flag] = []
    for name, text in bundle.files.items():
        if name.endswith(".py"):
            flags += _file_flags(name, text, bundle.entry)
    return flags


def _file_flags(name: str, text: str, entry: str) -> Iterator[Flag]:
    try:
        tree = ast.parse(text, filename=name)
    except (SyntaxError, ValueError) as problem:
        raise SourceUnreadable(f"{name}: {problem}") from problem
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in _FRAMES:
            yield Flag(11, "reject", f"{name}:{node.lineno} looks into other frames or objects")
        if isinstance(node, ast.Name | ast.Attribute) and _named(node) in _PROCESS:
            yield Flag(13, "reject", f"{name}:{node.lineno} reaches into other processes")
        if isinstance(node, ast.Try) and any(_falls_back(handler) for handler in node.handlers):
            yield Flag(14, "reject", f"{name}:{node.lineno} falls back when its own kernel fails")
        if isinstance(node, ast.ClassDef) and node.name == entry and _only_inherits(node):
            yield Flag(14, "reject", f"{name}:{node.lineno} {entry} only inherits the reference")


def _named(node: ast.Name | ast.Attribute) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr


def _falls_back(handler: ast.ExceptHandler) -> bool:
    """A handler that computes something with torch in place of what failed."""
    if any(isinstance(node, ast.Raise) for node in ast.walk(handler)):
        return False
    for node in ast.walk(handler):
        if isinstance(node, ast.Call):
            base: ast.expr = node.func
            while isinstance(base, ast.Attribute):
                base = base.value
            if isinstance(base, ast.Name) and base.id in {"torch", "F", "nn", "super", _MODEL}:
                return True
    return False


def _only_inherits(node: ast.ClassDef) -> bool:
    bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
    methods = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
    return _MODEL in bases and "forward" not in methods
