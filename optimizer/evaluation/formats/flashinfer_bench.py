"""FlashInfer-Bench and SOL-ExecBench: a definition (JSON) with workloads (JSON lines), and a
solution (JSON). SOL-ExecBench adds axes that are expressions, and functions that make the inputs.

Each workload becomes a timed case. Its variable axes become constants of the problem file, so that
other sizes can be derived from them. The result is written back as one trace for each workload.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kb.errors import InvalidRequest
from optimizer.evaluation.abi import ITEM_BYTES
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.formats.task import (
    ForeignTask,
    TaskFormat,
    converted,
    filled,
    on_the_device_of_its_inputs,
    parsed,
    parsed_with,
    read_json,
    read_text,
    timings_of,
)
from optimizer.evaluation.problem.spec import Case, Problem
from optimizer.evaluation.records import Evaluation

TASK = (
    "a definition JSON file (name, axes, inputs, outputs, reference) with NAME.jsonl or"
    " workloads.jsonl next to it, a folder with definition.json and workloads.jsonl, or a file"
    " definitions/TYPE/NAME.json of a data set with workloads/TYPE/NAME.jsonl"
)
SUBMISSION = "a solution JSON file (name, definition, spec, sources) in Python or Triton"
ENTRY = "ModelNew"
# Languages of solutions that are Python files, in both formats.
PYTHON = {"python", "pytorch", "triton", "tilelang", "cute_dsl", "cutile", "cudnn_frontend"}
_FIELDS = ("name", "axes", "inputs", "outputs", "reference")
_STATUS = {
    "correct": "PASSED",
    "incorrect": "INCORRECT_NUMERICAL",
    "not_compiled": "COMPILE_ERROR",
    "timed_out": "TIMEOUT",
}

_PROBLEM = '''\
def _drawn(source, shape, dtype):
    """An array of a workload: random, or read from a file."""
    if source["type"] == "safetensors":
        from safetensors.torch import load_file

        return load_file(source["path"])[source["tensor_key"]]
    if dtype == torch.bool:
        return torch.randint(0, 2, shape).bool()
    return torch.randn(shape).to(dtype)


{constants}


class Model(torch.nn.Module):
    def forward(self, {names}):
        device = next((str(v.device) for v in ({names},) if isinstance(v, torch.Tensor)), "cpu")
        _on(device)
        try:
            return _reference.run({names})
        finally:
            _on("cpu")


def get_inputs():
    _on(str(torch.get_default_device()))
{fixed}
    return [
{values}
    ]
'''

_CANDIDATE = """


import torch as _kernlore_torch


class ModelNew(_kernlore_torch.nn.Module):
    def forward(self, {names}):
{body}
"""


def _recognises(path: Path) -> bool:
    file = path / "definition.json" if path.is_dir() else path
    if file.suffix != ".json" or not file.is_file():
        return False
    try:
        fields = json.loads(file.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError):
        return False
    return isinstance(fields, dict) and all(name in fields for name in _FIELDS)


def _read(task: Path, submission: Path) -> ForeignTask:
    file = task / "definition.json" if task.is_dir() else task
    definition = read_json(file, f"Give {TASK}.")
    missing = [name for name in _FIELDS if name not in definition]
    if missing:
        raise InvalidRequest(f"{file.name} lacks {', '.join(missing)}", hint=f"Give {TASK}.")
    workloads = list(_workloads(file, definition))
    problem = _problem(file, definition, workloads)
    solution = read_json(submission, f"Give {SUBMISSION}.")
    bundle = _bundle(submission, solution, definition)
    return ForeignTask(
        problem, bundle, lambda evaluation: write_back(evaluation, definition, solution, workloads)
    )


# -- the task


def _workloads(file: Path, definition: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The workloads next to the definition, or in the folder `workloads` of the data set."""
    beside = [
        file.with_name(f"{definition['name']}.jsonl"),
        file.with_name("workloads.jsonl"),
        file.with_name("workload.jsonl"),
        file.parents[2] / "workloads" / file.parent.name / f"{definition['name']}.jsonl"
        if len(file.parents) > 2
        else file.with_name("workloads.jsonl"),
    ]
    found = next((path for path in beside if path.is_file()), None)
    if found is None:
        raise InvalidRequest(f"{file.name} has no workloads", hint=f"Give {TASK}.")
    for number, line in enumerate(read_text(found, f"Give {TASK}.").splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            workload = row.get("workload", row)
            if not isinstance(workload["axes"], dict) or not isinstance(workload["inputs"], dict):
                raise TypeError("axes and inputs are objects")
        except (json.JSONDecodeError, AttributeError, KeyError, TypeError) as error:
            raise InvalidRequest(
                f"{found.name}, line {number}: no workload ({error!r})",
                hint='Each line is {"definition": ..., "workload": {"uuid", "axes", "inputs"}}.',
            ) from error
        yield {"uuid": str(number), **workload, "folder": str(found.resolve().parent)}


def _problem(file: Path, definition: Mapping[str, Any], workloads: list[dict[str, Any]]) -> Problem:
    if not workloads:
        raise InvalidRequest(f"{file.name} has no workloads", hint=f"Give {TASK}.")
    reference = str(definition["reference"])
    custom = definition.get("custom_inputs_entrypoint")
    needed = {"run"} if custom is None else {"run", str(custom)}
    expected = "Its field `reference` is Python text with run and custom_inputs_entrypoint."
    tree = parsed_with(needed, "the reference", reference, expected)
    inputs, axes = definition["inputs"], definition["axes"]
    variable = [name for name, axis in axes.items() if axis.get("type", "var") == "var"]
    constant = _fixed_axes(axes)
    for name in (*axes, *inputs, *definition["outputs"]):
        if not name.isidentifier():
            raise InvalidRequest(f"{name!r} is no Python name", hint="Rename the axis or tensor.")
    for name, spec in inputs.items():
        if spec["shape"] is not None and spec["dtype"] not in ITEM_BYTES:
            raise InvalidRequest(
                f"the input {name} is {spec['dtype']}", hint=f"Read are {', '.join(ITEM_BYTES)}."
            )
    cases = tuple(_case(definition, workload, variable) for workload in workloads)
    local = [f"    {name} = {value}" for name, value in constant.items()]
    local += [f"    assert {text}" for text in definition.get("constraints") or ()]
    if custom is not None:
        sizes = ", ".join(f"{name!r}: {name}" for name in axes)
        scalars = "".join(
            f", {n!r}: {_value(n, s)}" for n, s in inputs.items() if s["shape"] is None
        )
        local.append(
            f"    _made = _reference.{custom}({{{sizes}{scalars}}}, torch.get_default_device())"
        )
    fields = {
        "names": ", ".join(inputs),
        "fixed": "\n".join(local) or "    pass",
        "values": "\n".join(
            f"        {_value(name, spec) if not custom else _made(name, spec)},"
            for name, spec in inputs.items()
        ),
    }
    return converted(
        str(definition["name"]),
        file,
        {"reference": on_the_device_of_its_inputs(tree)},
        _PROBLEM,
        fields,
        cases,
        reference=reference,
        summary=str(definition.get("description") or ""),
    )


def _case(definition: Mapping[str, Any], workload: Mapping[str, Any], variable: list[str]) -> Case:
    missing = [name for name in variable if not isinstance(workload["axes"].get(name), int)]
    missing += [name for name in definition["inputs"] if name not in workload["inputs"]]
    if missing:
        raise InvalidRequest(
            f"workload {workload['uuid']} has no {', '.join(missing)}",
            hint="It gives a number for each variable axis and a source for each input.",
        )
    constants = {name: workload["axes"][name] for name in variable}
    for name in definition["inputs"]:
        constants[f"_source_of_{name}"] = _source(definition, name, workload)
    return Case(str(workload["uuid"]), constants=constants)


def _source(
    definition: Mapping[str, Any], name: str, workload: Mapping[str, Any]
) -> dict[str, Any]:
    spec = definition["inputs"][name]
    source = dict(workload["inputs"][name])
    kind, scalar = source.get("type"), spec["shape"] is None
    custom = definition.get("custom_inputs_entrypoint")
    known = ("scalar", "custom") if scalar else ("custom",) if custom else ("random", "safetensors")
    if kind not in known:
        raise InvalidRequest(
            f"workload {workload['uuid']}: the input {name} is of the type {kind!r}",
            hint=f"For this input, {' or '.join(known)} is read.",
        )
    if kind == "random" and "int" in spec["dtype"]:
        raise InvalidRequest(
            f"workload {workload['uuid']}: random values of the integer input {name} are not read",
            hint="Their range is not part of the format. Give them in a safetensors file.",
        )
    if kind == "safetensors":
        source["path"] = str(Path(workload["folder"]) / source["path"])
    return source


def _value(name: str, spec: Mapping[str, Any]) -> str:
    if spec["shape"] is None:
        return f'_source_of_{name}.get("value")'
    shape = ", ".join(map(str, spec["shape"]))
    return f"_drawn(_source_of_{name}, ({shape}{',' if shape else ''}), torch.{spec['dtype']})"


def _made(name: str, spec: Mapping[str, Any]) -> str:
    """The value of a function that makes inputs, where a workload gives no scalar."""
    made = f"_made[{name!r}]"
    if spec["shape"] is None:
        return f"{made} if {name!r} in _made else {_value(name, spec)}"
    return made


def _fixed_axes(axes: Mapping[str, Any]) -> dict[str, str]:
    """Text of the axes that are constants or expressions, in an order in which each is known."""
    texts = {name: str(axis["value"]) for name, axis in axes.items() if axis.get("type") == "const"}
    for name, axis in axes.items():
        if axis.get("type") == "expr":
            texts[name] = f"({axis['expression']})"
    return texts


# -- the submission


def _bundle(path: Path, solution: Mapping[str, Any], definition: Mapping[str, Any]) -> Bundle:
    try:
        spec = solution["spec"]
        files = {
            str(row["path"]): str(row.get("content") or "")
            or read_text(path.parent / str(row["path"]), f"Give {SUBMISSION}.")
            for row in solution["sources"]
        }
        main, _, function = str(spec["entry_point"]).partition("::")
        languages = {*map(str, spec.get("languages") or [spec["language"]])}
    except (KeyError, TypeError) as error:
        raise InvalidRequest(
            f"{path.name} is not a solution: {error!r}", hint=f"Give {SUBMISSION}."
        ) from error
    if solution.get("definition") != definition["name"]:
        raise InvalidRequest(
            f"{path.name} solves {solution.get('definition')!r}, not {definition['name']!r}",
            hint="Give a solution of this definition.",
        )
    if not languages <= PYTHON:
        raise InvalidRequest(
            f"solutions in {', '.join(sorted(languages - PYTHON))} are not read",
            hint="Give a Python or Triton solution. For C++ and CUDA, write a kernel with"
            " kernlore_run and judge it as --format kernelbench.",
        )
    if main not in files or not function.isidentifier():
        raise InvalidRequest(
            f"{path.name}: the entry point is {spec['entry_point']!r}",
            hint="Write FILE::FUNCTION, with a file of sources.",
        )
    names = ", ".join(definition["inputs"])
    returns = spec.get("destination_passing_style", True) is False
    body = [f"return {function}({names})"] if returns else _destinations(definition, function)
    text = "\n".join(f"        {line}" for line in body)
    entry = filled(_CANDIDATE, {"names": names, "body": text})
    return Bundle(
        {**files, main: files[main] + entry},
        main,
        "triton" if "triton" in languages else "torch",
        ENTRY,
    )


def _destinations(definition: Mapping[str, Any], function: str) -> list[str]:
    """Statements that allocate the outputs, pass them after the inputs, and return them. Sizes are
    read from the inputs."""
    axes = definition["axes"]
    sizes = {n: str(axis["value"]) for n, axis in axes.items() if axis.get("type") == "const"}
    tensors = {n: spec for n, spec in definition["inputs"].items() if spec["shape"]}
    for name, spec in tensors.items():
        for number, axis in enumerate(spec["shape"]):
            sizes.setdefault(axis, f"{name}.shape[{number}]")
    for name, axis in axes.items():
        if axis.get("type") == "expr" and name not in sizes:
            sizes[name] = _in_sizes(str(axis["expression"]), sizes)
    device = next(iter(tensors), None)
    where = f"{device}.device" if device else '"cpu"'
    lines, outputs = [], []
    for number, (name, spec) in enumerate(definition["outputs"].items()):
        shape = spec["shape"]
        unknown = [axis for axis in shape or () if axis not in sizes and not axis.isdigit()]
        if shape is None or unknown:
            raise InvalidRequest(
                f"the shape of the output {name} does not follow from the inputs",
                hint="Set destination_passing_style to false and return the outputs.",
            )
        size = ", ".join(sizes.get(axis, axis) for axis in shape)
        outputs.append(f"_output{number}")
        lines.append(
            f"_output{number} = _kernlore_torch.empty(({size}{',' if size else ''}),"
            f" dtype=_kernlore_torch.{spec['dtype']}, device={where})"
        )
    arguments = ", ".join([*definition["inputs"], *outputs])
    return [*lines, f"{function}({arguments})", f"return {', '.join(outputs)}"]


def _in_sizes(expression: str, sizes: Mapping[str, str]) -> str:
    """The expression over axes as one over the shapes of inputs."""
    tree = parsed("the expression of an axis", expression, "Write it in Python's operators.")
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in sizes:
            node.id = f"({sizes[node.id]})"
    return f"({ast.unparse(tree)})"


# -- the result


def write_back(
    evaluation: Evaluation,
    definition: Mapping[str, Any],
    solution: Mapping[str, Any],
    workloads: list[dict[str, Any]],
) -> str:
    """One trace for each workload, as JSON lines. A rejected solution is a RUNTIME_ERROR, whose log
    gives the reason: the format has no such status."""
    times = timings_of(evaluation)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    lines = []
    for workload in workloads:
        checks = [check for check in evaluation.checks if check.case == workload["uuid"]]
        errors = [error.worst for check in checks for error in check.errors]
        timing = times.get(workload["uuid"])
        result = {
            "status": _STATUS.get(evaluation.validity, "RUNTIME_ERROR"),
            "log": evaluation.message or "\n".join(evaluation.notes),
            # The judge bounds errors in units of each output's own size.
            "correctness": {"max_relative_error": max(errors), "max_absolute_error": None}
            if errors
            else None,
            "performance": {
                "latency_ms": timing.candidate_us / 1e3,
                "reference_latency_ms": timing.baseline_us / 1e3,
                "speedup_factor": timing.baseline_us / timing.candidate_us,
            }
            if timing is not None and timing.candidate_us and timing.baseline_us
            else None,
            "environment": {
                "hardware": evaluation.hardware,
                "libs": {"kernlore_harness": evaluation.harness, "toolchain": evaluation.toolchain},
            },
            "timestamp": now,
        }
        trace = {
            "definition": definition["name"],
            "workload": {name: workload[name] for name in ("uuid", "axes", "inputs")},
            "solution": solution.get("name"),
            "evaluation": result,
        }
        lines.append(json.dumps(trace))
    return "\n".join(lines) + "\n"


def _is_folder(path: Path) -> bool:
    return path.is_dir() and _recognises(path)


FLASHINFER_BENCH = TaskFormat("flashinfer-bench", TASK, SUBMISSION, _recognises, _read)
SOL_EXECBENCH = TaskFormat(
    "sol-execbench",
    "a folder with definition.json and workload.jsonl",
    SUBMISSION,
    _is_folder,
    _read,
)
