"""robust-kbench: a folder with `func_forward.py` (`Model`, `forward_fn`, `get_inputs`) and
`config_forward.json`, and a submission in CUDA or C++ whose extension exports `forward`. Gradients:
`func_backward.py` (also `AutogradFunction`), `config_backward.json` and an export `backward`.

Each combination of settings becomes a case: `single_*` are timed, `multi_*` only checked. Both
sides run the task's `Model`, with the extension's function in place of `forward_fn`.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kb.errors import InvalidRequest, Unavailable
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.formats.task import (
    ForeignTask,
    TaskFormat,
    converted,
    filled,
    on_the_device_of_its_inputs,
    parsed_with,
    read_json,
    read_text,
    timings_of,
)
from optimizer.evaluation.problem.spec import Case, Problem
from optimizer.evaluation.records import Evaluation

TASK = "a folder with func_forward.py and config_forward.json, or its func_backward.py"
SUBMISSION = "a .cu or .cpp file with PYBIND11_MODULE that exports forward (or backward)"
FLAGS = ["-O3", "--use_fast_math"]  # of nvcc, as the format compiles
_EXPORT = re.compile(r'\.def\s*\(\s*"(forward|backward)"')
_DEFAULT = "_default"  # a setting that a case leaves to the task

# What both sides contain. `wanted` says which inputs get gradients.
_CALL = {
    "forward": """
def _call(model, arrays, wanted, fn):
    return model(*arrays, fn=fn)
""",
    "backward": """
def _call(model, arrays, wanted, fn):
    *arrays, gradient = arrays
    arrays = [x.detach().requires_grad_() if w else x for x, w in zip(arrays, wanted)]
    with torch.enable_grad():
        output = model(*arrays, fn=fn)
        leaves = [*model.parameters(), *(x for x, w in zip(arrays, wanted) if w)]
        parts = torch.autograd.grad(output, leaves, gradient, allow_unused=True)
    return [part for part in parts if part is not None]
""",
}
_PROBLEM = """\
{constants}


def _given(**settings):
    return {name: value for name, value in settings.items() if value != "_default"}

{call}

class Model(torch.nn.Module):
    def __init__(self, settings, wanted):
        super().__init__()
        self.task = _reference.Model(**settings)
        self.wanted = wanted

    def forward(self, *arrays):
        _on(str(arrays[0].device))
        try:
            return _call(self.task, arrays, self.wanted, _reference.forward_fn)
        finally:
            _on("cpu")


def get_init_inputs():
    with torch.device("meta"):
        arrays = _reference.get_inputs(**_given({inputs}))
    wanted = [isinstance(x, torch.Tensor) and x.requires_grad for x in arrays]
    return [_given({init}), wanted]


def get_inputs():
    arrays = _reference.get_inputs(**_given({inputs}))
    arrays = [x.detach() if isinstance(x, torch.Tensor) else x for x in arrays]
    if {forward}:
        return arrays
    moved = [x.to("meta") if isinstance(x, torch.Tensor) else x for x in arrays]
    with torch.device("meta"), torch.no_grad():
        output = _reference.Model(**_given({init}))(*moved)
    return [*arrays, torch.randn(output.shape)]
"""
_CANDIDATE = """\
import torch
from torch.utils.cpp_extension import load_inline

import {module}

_extension = load_inline(
    "submission",
    {cpp},
    {cuda},
    extra_cuda_cflags={flags},
    no_implicit_headers=True,
)
_function = _extension.{direction}

{call}

class ModelNew(torch.nn.Module):
    def __init__(self, settings, wanted):
        super().__init__()
        self.task = {module}.Model(**settings)
        self.wanted = wanted

    def forward(self, *arrays):
        return _call(self.task, arrays, self.wanted, _function)
"""
# As the format does: the extension is called inside the task's own autograd function.
_BACKWARD = """\
{module}.AutogradFunction.backward_fn = _extension.backward
_function = {module}.AutogradFunction.apply
"""


def _recognises(path: Path) -> bool:
    folder = path if path.is_dir() else path.parent
    named = path.is_dir() or re.fullmatch(r"func_(forward|backward)\.py", path.name)
    return bool(named) and any(
        (folder / f"func_{way}.py").is_file() and (folder / f"config_{way}.json").is_file()
        for way in _CALL
    )


def _read(task: Path, submission: Path) -> ForeignTask:
    source = read_text(submission, f"Give {SUBMISSION}.")
    direction = _direction(task, submission, source)
    folder = task if task.is_dir() else task.parent
    module = f"func_{direction}"
    text = read_text(folder / f"{module}.py", f"Give {TASK}.")
    problem = _problem(folder, direction, text)
    bundle = _bundle(submission, source, direction, text)
    return ForeignTask(problem, bundle, lambda evaluation: write_back(problem, evaluation))


def _direction(task: Path, submission: Path, source: str) -> str:
    """`forward` or `backward`: that of the named file, else what the submission exports."""
    exported: set[str] = set(_EXPORT.findall(source))
    if not task.is_dir():
        exported &= {task.stem.removeprefix("func_")}
    elif len(exported) > 1:
        exported = {"forward"}
    if not exported:
        raise InvalidRequest(
            f"{submission.name} does not export what {task.name} asks for",
            hint=f'Give {SUBMISSION}: m.def("forward", &function).',
        )
    return exported.pop()


# -- the task


def _problem(folder: Path, direction: str, text: str) -> Problem:
    needed = {"Model", "forward_fn", "get_inputs"}
    needed |= {"AutogradFunction"} if direction == "backward" else set()
    tree = parsed_with(needed, f"func_{direction}.py", text, f"Give {TASK}.")
    rows = _settings(folder / f"config_{direction}.json")
    inputs = dict.fromkeys(name for _, given, _ in rows for name in given)
    inits = {}  # settings of `Model` by the name of their constant
    for name in dict.fromkeys(name for init, _, _ in rows for name in init):
        same = all(init.get(name, _DEFAULT) == given.get(name, _DEFAULT) for init, given, _ in rows)
        inits[name if same or name not in inputs else f"init_{name}"] = name
    for name in (*inits, *inputs):
        if not name.isidentifier() or name in ("torch", "sys", "types", *needed):
            raise InvalidRequest(f"{name!r} cannot be a setting", hint="Rename it.")
    cases: dict[str, Case] = {}
    for init, given, timed in rows:
        constants = {constant: init.get(name, _DEFAULT) for constant, name in inits.items()}
        constants |= {name: given.get(name, _DEFAULT) for name in inputs}
        label = _label(init, given)
        cases.setdefault(label, Case(label, constants=constants, timed=timed))
    fields = {
        "call": _CALL[direction],
        "init": ", ".join(f"{name}={constant}" for constant, name in inits.items()),
        "inputs": ", ".join(f"{name}={name}" for name in inputs),
        "forward": repr(direction == "forward"),
    }
    return converted(
        folder.resolve().name,
        folder / f"func_{direction}.py",
        {"reference": on_the_device_of_its_inputs(tree)},
        _PROBLEM,
        fields,
        tuple(cases.values()),
        reference=text,
    )


def _settings(path: Path) -> list[tuple[dict[str, Any], dict[str, Any], bool]]:
    """Settings of `Model` and of `get_inputs`, and whether they are timed, by combination."""
    config = read_json(path, f"Give {TASK}.")
    rows = []
    for kind in ("single", "multi"):
        lists: list[Any] = [
            config.get(f"{kind}_{part}_configs") for part in ("init", "input", "shared")
        ]
        if kind == "multi" and not any(lists):
            continue
        if not all(
            isinstance(x, list) and x and all(isinstance(y, dict) for y in x) for x in lists
        ):
            raise InvalidRequest(
                f"{path.name} does not list {kind}_init_configs, {kind}_input_configs and"
                f" {kind}_shared_configs",
                hint="Each is a list of objects: [{}] without settings.",
            )
        for init, given, shared in itertools.product(*lists):
            rows.append(({**init, **shared}, {**given, **shared}, kind == "single"))
    return rows


def _label(init: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    """The name that the format gives a combination."""
    parts = [f"{name}_{value}" for settings in (init, given) for name, value in settings.items()]
    return re.sub(r"[ .=-]", "_", "_".join(parts)) or "default"


# -- the submission


def _bundle(submission: Path, source: str, direction: str, text: str) -> Bundle:
    cuda = submission.suffix == ".cu"
    if not cuda and submission.suffix not in (".cpp", ".cc"):
        raise InvalidRequest(f"{submission.name} is no extension", hint=f"Give {SUBMISSION}.")
    if cuda and not (shutil.which("nvcc") or os.environ.get("CUDA_HOME")):
        raise Unavailable(
            f"{submission.name} needs nvcc, which is not installed",
            hint="Judge it on a machine with CUDA's compiler in PATH.",
        )
    module = f"func_{direction}"
    entry = _CANDIDATE
    if direction == "backward":
        entry = entry.replace("_function = _extension.{direction}\n", _BACKWARD)
    fields = {
        "module": module,
        "direction": direction,
        "call": _CALL[direction],
        "flags": repr(FLAGS),
        "cpp": '""' if cuda else repr(source),
        "cuda": f"[{source!r}]" if cuda else "None",
    }
    files = {f"{module}.py": text, "submission.py": filled(entry, fields)}
    return Bundle(files, "submission.py", "torch", "ModelNew")


# -- the result


def write_back(problem: Problem, evaluation: Evaluation) -> str:
    """The objects of the format's test_results.json and time_results.json, times in milliseconds.
    Tolerances and spreads that the judge does not have are null."""
    times = timings_of(evaluation)
    tests: dict[str, dict[str, Any]] = {}
    speeds: dict[str, dict[str, Any]] = {}
    for case in problem.cases:
        checks = [check.ok for check in evaluation.checks if check.case == case.name]
        if checks:
            tests[case.name] = {
                "correct": all(checks),
                "num_correct": sum(checks),
                "max_diff": None,
                "atol": None,
                "rtol": None,
                "total_correct_trials": len(checks),
            }
        if (timing := times.get(case.name)) and timing.candidate_us:
            time = timing.candidate_us / 1e3
            speeds[case.name] = {"mean_time": time, "median_time": time, "iqr_time": None}
    trials = sum(row["num_correct"] for row in tests.values())
    mean = sum(row["mean_time"] for row in speeds.values()) / len(speeds) if speeds else None
    device = {"name": evaluation.hardware}
    result = {
        "test_results": {
            "summary": {
                "correct": evaluation.correct,
                "max_diff": None,
                "total_trials": trials,
                "all_configs_str": list(tests),
            },
            "eval_settings": tests,
            "device_info": device,
        },
        "time_results": {
            "summary": {
                "avg_mean_time": mean,
                "avg_median_time": mean,
                "avg_iqr_time": None,
                "all_configs_str": list(speeds),
            },
            "eval_settings": speeds,
            "device_info": device,
        }
        if speeds
        else {"error": evaluation.message},
    }
    return json.dumps(result, indent=2) + "\n"


FORMAT = TaskFormat("robust-kbench", TASK, SUBMISSION, _recognises, _read)
