"""GPU MODE: a folder with `task.yml` and `reference.py` (`generate_input`, `ref_kernel`), and a
submission with `custom_kernel`.

`tests` of the task become cases that are checked, `benchmarks` cases that are timed. The data of
`generate_input` may be nested: its tensors become the inputs of the problem, everything else is
part of a layout that `get_init_inputs` passes to both sides. An array for the result, whose content
`ref_kernel` does not use, is no input; both sides get a new one in each call.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kb.errors import InvalidRequest
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.formats.task import (
    ForeignTask,
    TaskFormat,
    converted,
    defined_names,
    on_the_device_of_its_inputs,
    parsed_with,
    read_text,
    read_yaml,
    timings_of,
)
from optimizer.evaluation.problem.spec import Case, Problem
from optimizer.evaluation.records import Evaluation

TASK = "a folder with task.yml and reference.py, which defines generate_input and ref_kernel"
SUBMISSION = "a Python file with custom_kernel(data)"
DECLARATION, REFERENCE = "task.yml", "reference.py"
_NOT_NEEDED = ("eval.py", "submission.py", REFERENCE)

# Text that both sides contain: how arrays are put back into the data of `generate_input`.
_REBUILD = '''\
def _rebuild(layout, arrays):
    """The data of generate_input with these arrays."""
    kind, value = layout
    if kind == "array":
        return arrays[value]
    if kind == "copy":
        return arrays[value].clone()
    if kind == "empty":
        shape, dtype = value
        dtype = getattr(torch, dtype)
        if dtype.is_floating_point and torch.get_default_dtype() == torch.float64:
            dtype = torch.float64
        return torch.empty(shape, dtype=dtype, device=arrays[0].device)
    if kind == "dict":
        return {key: _rebuild(part, arrays) for key, part in value}
    if kind == "tuple":
        return tuple(_rebuild(part, arrays) for part in value)
    if kind == "list":
        return [_rebuild(part, arrays) for part in value]
    return value
'''

_PROBLEM = (
    _REBUILD
    + '''

{constants}
_WRITTEN = {written}  # arrays that a submission may write to, by number: empty or copy


def _take_apart(data, arrays, seen):
    """The layout of the data; its arrays are appended to `arrays`."""
    if isinstance(data, torch.Tensor):
        number = len(seen)
        seen.append(data)
        kind = _WRITTEN.get(number, "array")
        if kind == "empty":
            return [kind, [list(data.shape), str(data.dtype).removeprefix("torch.")]]
        arrays.append(data)
        return [kind, len(arrays) - 1]
    if isinstance(data, dict):
        return ["dict", [[key, _take_apart(part, arrays, seen)] for key, part in data.items()]]
    if isinstance(data, (tuple, list)):
        kind = "tuple" if isinstance(data, tuple) else "list"
        return [kind, [_take_apart(part, arrays, seen) for part in data]]
    return ["value", data]


class Model(torch.nn.Module):
    def __init__(self, layout):
        super().__init__()
        self.layout = layout

    def forward(self, *arrays):
        _on(str(arrays[0].device))
        try:
            return _reference.ref_kernel(_rebuild(self.layout, arrays))
        finally:
            _on("cpu")


def get_inputs():
    arrays = []
    _on(str(torch.get_default_device()))
    _take_apart(_reference.generate_input({arguments}), arrays, [])
    return arrays


def get_init_inputs():
    _on(str(torch.get_default_device()))
    return [_take_apart(_reference.generate_input({arguments}), [], [])]
'''
)

_CANDIDATE = (
    "\n\nimport torch\n\n\n"
    + _REBUILD
    + """

class ModelNew(torch.nn.Module):
    def __init__(self, layout):
        super().__init__()
        self.layout = layout

    def forward(self, *arrays):
        return custom_kernel(_rebuild(self.layout, arrays))
"""
)


def _recognises(path: Path) -> bool:
    return path.is_dir() and (path / DECLARATION).is_file()


def _read(task: Path, submission: Path) -> ForeignTask:
    declared = _declaration(task)
    modules = _modules(task, declared)
    problem = _problem(task, declared, modules)
    bundle = _bundle(submission, modules)
    return ForeignTask(problem, bundle, lambda evaluation: write_back(problem, evaluation))


# -- the task


def _declaration(task: Path) -> Mapping[str, Any]:
    declared = read_yaml(task / DECLARATION, f"Give {TASK}.")
    if declared.get("lang", "py") != "py":
        raise InvalidRequest(
            f"{DECLARATION} is for the language {declared['lang']!r}",
            hint="Only tasks whose submissions are Python files are read (lang: py).",
        )
    return declared


def _modules(task: Path, declared: Mapping[str, Any]) -> dict[str, str]:
    """Texts of the modules that reference and submission may import, by module name."""
    places = {path.name: path for path in sorted(task.glob("*.py"))}
    for row in declared.get("files") or ():
        name, source = str(row.get("name", "")), str(row.get("source", ""))
        if name.endswith(".py") and not source.startswith("@"):
            places[name] = task / source
    kept = {name: path for name, path in places.items() if name not in _NOT_NEEDED}
    hint = f"{DECLARATION} names it under files."
    return {Path(name).stem: read_text(path, hint) for name, path in sorted(kept.items())}


def _problem(task: Path, declared: Mapping[str, Any], modules: Mapping[str, str]) -> Problem:
    reference = read_text(task / REFERENCE, f"Give {TASK}.")
    tree = parsed_with({"generate_input", "ref_kernel"}, REFERENCE, reference, f"Give {TASK}.")
    cases = _cases(declared)
    ordered = {name: text for name, text in sorted(modules.items(), key=lambda m: m[0] == "task")}
    ordered["reference"] = on_the_device_of_its_inputs(tree)
    seeds = {row["seed"] for row in _rows(declared) if "seed" in row}
    arguments = [f"{name}={name}" for name in cases[0].constants]
    if seeds:
        arguments.append(f"seed={min(seeds)}")  # the harness moves the seed in each draw
    name = task.resolve().name
    summary = str(declared.get("description") or "").strip().partition("\n")[0]

    def with_written(written: Mapping[int, str]) -> Problem:
        return converted(
            name,
            task / REFERENCE,
            ordered,
            _PROBLEM,
            {"arguments": ", ".join(arguments), "written": repr(dict(written))},
            cases,
            reference=reference,
            summary=summary,
        )

    return with_written(_written(with_written({}), cases))


def _rows(declared: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [
        row
        for kind in ("tests", "benchmarks")
        for row in declared.get(kind) or ()
        if isinstance(row, dict)
    ]


def _cases(declared: Mapping[str, Any]) -> tuple[Case, ...]:
    """Tests are checked, benchmarks are timed as well. The seed is no part of a case."""
    timed: dict[tuple[tuple[str, Any], ...], bool] = {}
    benchmarks = [row for row in declared.get("benchmarks") or () if isinstance(row, dict)]
    for row in _rows(declared):
        key = tuple((str(name), value) for name, value in row.items() if name != "seed")
        timed[key] = timed.get(key, False) or row in benchmarks
    if not timed:
        raise InvalidRequest(
            f"{DECLARATION} has neither tests nor benchmarks",
            hint="List at least one set of arguments of generate_input under benchmarks.",
        )
    names = {frozenset(name for name, _ in key) for key in timed}
    if len(names) > 1:
        raise InvalidRequest(
            f"the tests and benchmarks of {DECLARATION} have different arguments",
            hint="Give each of them every argument of generate_input.",
        )
    bad = [name for key in timed for name, _ in key if not name.isidentifier() or name == "torch"]
    if bad:
        raise InvalidRequest(
            f"{bad[0]!r} cannot be an argument", hint=f"Rename it in {DECLARATION}."
        )
    return tuple(
        Case(
            ",".join(f"{name}={value}" for name, value in key) or "only",
            constants=dict(key),
            timed=is_timed,
        )
        for key, is_timed in timed.items()
    )


def _written(problem: Problem, cases: tuple[Case, ...]) -> dict[int, str]:
    """The arrays that a submission may write to, by number, of those that ref_kernel writes to and
    those with shape and type of a result: `empty` if their content does not reach the result; else
    `copy` if it writes to them. Runs it on the first case, at most twice for each of these."""
    import torch

    from optimizer.evaluation.problem.user_code import import_problem, running, seeded

    module = import_problem(problem, cases[0].constants)
    names = vars(module)
    with running(problem, "generate_input"), seeded(0):
        arrays: list[torch.Tensor] = names["get_inputs"]()
        [layout] = names["get_init_inputs"]()
    before = [(array._version, array.clone()) for array in arrays]

    def result() -> Any:
        with running(problem, "ref_kernel"), seeded(0), torch.no_grad():
            return names["_reference"].ref_kernel(names["_rebuild"](layout, arrays))

    first = _flat(result())
    changed = [n for n, a in enumerate(arrays) if a._version != before[n][0]]
    first = [value.clone() for value in first]
    kinds = {(value.shape, value.dtype) for value in first}
    alike = [n for n, array in enumerate(arrays) if (array.shape, array.dtype) in kinds]

    def unread(number: int, value: int) -> bool:
        for n in {*changed, *alike}:
            arrays[n].copy_(before[n][1])
        arrays[number].fill_(value)
        try:
            again = _flat(result())
        except InvalidRequest:  # the reference fails with this value, so it reads it
            return False
        return len(first) == len(again) and all(map(torch.equal, first, again))

    free = {n for n in {*changed, *alike} if unread(n, 7) and unread(n, 0)}
    return {n: "empty" if n in free else "copy" for n in sorted({*changed, *free})}


def _flat(result: Any) -> list[Any]:
    import torch

    parts = result.values() if isinstance(result, dict) else result
    parts = parts if isinstance(result, dict | tuple | list) else [result]
    return [part for part in parts if isinstance(part, torch.Tensor)]


# -- the submission


def _bundle(submission: Path, modules: Mapping[str, str]) -> Bundle:
    path = submission / "submission.py" if submission.is_dir() else submission
    text = read_text(path, f"Give {SUBMISSION}.")
    if "custom_kernel" not in defined_names(_parsed_or_empty(text)):
        raise InvalidRequest(
            f"{path.name} does not define custom_kernel", hint=f"Give {SUBMISSION}."
        )
    files = {f"{name}.py": modules[name] for name in _imported(text, modules)}
    language = "triton" if "triton" in text else "torch"
    return Bundle(
        {**files, "submission.py": text + _CANDIDATE}, "submission.py", language, "ModelNew"
    )


def _imported(text: str, modules: Mapping[str, str]) -> list[str]:
    """The modules of the task that the text imports, also through each other."""
    found: list[str] = []
    waiting = [text]
    while waiting:
        for node in ast.walk(_parsed_or_empty(waiting.pop())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            new = [name for name in names if name in modules and name not in found]
            found += new
            waiting += [modules[name] for name in new]
    return found


def _parsed_or_empty(text: str) -> ast.Module:
    """A file with a syntax error is judged (not_compiled), not refused."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):
        return ast.parse("custom_kernel = None")


# -- the result


def write_back(problem: Problem, evaluation: Evaluation) -> str:
    """The lines `key: value` of the result of a leaderboard run; times are in nanoseconds."""
    lines = [f"check: {'pass' if evaluation.correct else 'fail'}"]
    times = timings_of(evaluation)
    timed = [case for case in problem.cases if case.timed]
    if evaluation.correct:
        lines.append(f"benchmark-count: {len(timed)}")
    else:
        lines.append(f"error: {evaluation.message}")
    for number, case in enumerate(timed if evaluation.correct else ()):
        spec = "; ".join(f"{name}: {value}" for name, value in case.constants.items())
        lines.append(f"benchmark.{number}.spec: {spec}")
        if timing := times.get(case.name):
            lines.append(f"benchmark.{number}.runs: {timing.calls}")
            lines.append(f"benchmark.{number}.mean: {1e3 * (timing.candidate_us or 0):.1f}")
    return "\n".join(lines) + "\n"


FORMAT = TaskFormat("gpu-mode", TASK, SUBMISSION, _recognises, _read)
