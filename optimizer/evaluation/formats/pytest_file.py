"""pytest: a test file that imports the submission. Its exit code is the verdict; times are those of
the tests, and of pytest-benchmark if it is installed.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from kb.errors import InvalidRequest, Unavailable
from optimizer.evaluation.formats.own_evaluators import EvaluatorFormat, defines


def _is_tests(task: Path) -> bool:
    named = task.name.startswith("test_") or task.stem.endswith("_test")
    return (
        named
        and task.suffix == ".py"
        and defines(task, lambda name: name.startswith(("test", "Test")))
    )


def _imported_as(tests: Path, submission: Path) -> str:
    """The file name under which the tests import the submission: its own, or that of the only
    module that they import and that is missing. Raises InvalidRequest or Unavailable."""
    if not _installed("pytest"):
        raise Unavailable("pytest is not installed", hint="pip install pytest")
    names: set[str] = set()
    for node in ast.walk(ast.parse(tests.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    # A submission never replaces a library or the configuration of the tests.
    names = {n for n in names - sys.stdlib_module_names - {"conftest"} if not _installed(n)}
    if submission.stem in names:
        return f"{submission.stem}.py"
    here = {path.stem for path in tests.parent.iterdir()}
    missing = sorted(names - here) or sorted(names)
    if len(missing) == 1:
        return f"{missing[0]}.py"
    known = f"one of {', '.join(missing)}" if missing else "which they have to import"
    raise InvalidRequest(
        f"{tests.name} imports no module {submission.stem!r}, so it would not test the submission",
        hint=f"Name the submission as the module that the tests import, {known}.",
    )


def _installed(name: str) -> bool:
    here = Path.cwd()
    places = [place for place in sys.path if place and Path(place).resolve() != here]
    return name in sys.builtin_module_names or PathFinder.find_spec(name, places) is not None


def _by_tests(report: Mapping[str, Any]) -> tuple[str, str]:
    code = report.get("code")
    tests = report.get("tests", {}).values()
    outcomes = [str(test.get("outcome")) for test in tests if isinstance(test, dict)]
    counts = ", ".join(f"{outcomes.count(name)} {name}" for name in sorted(set(outcomes)))
    if code in (1, 2):
        return "incorrect", f"pytest: {counts or 'the tests could not be imported'}"
    if code == 0 and "passed" in outcomes:
        return "correct", ""
    return "none", f"pytest: {counts or 'no test ran'} (exit code {report['code']})"


FORMAT = EvaluatorFormat(
    "pytest",
    task="a file test_NAME.py of pytest that imports the submission",
    recognises=_is_tests,
    evaluator=lambda task: task,
    place=_imported_as,
    decide=_by_tests,
)
