"""Whether a winner's module gives the reference's results in a process that has only torch.

Needs torch and nothing else of Kernlore's dependencies.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from optimizer.evaluation.correctness.prepared import PreparedCase
from optimizer.evaluation.problem.open_case import OpenCase, open_case
from optimizer.evaluation.problem.spec import Problem
from optimizer.evaluation.toolchains.processes import clean_env
from optimizer.search.bench.local import VISIBLE
from optimizer.search.confirm import Outcome
from optimizer.search.output.module import write_module
from optimizer.search.tree import Tree

SEED = 7
CALL_SECONDS = 300.0
IN_MEMORY = Path("/dev/shm")
# Calls the winner on the measured shape in a process that sees only the module's folder. Products
# inside convolutions are as precise as the harness has them, whoever takes the call.
CHECK = """
import json, sys
folder, name, given, result, device, dtype = sys.argv[1:]
sys.path.insert(0, folder)
import importlib, torch
torch.backends.cudnn.allow_tf32 = False
module = importlib.import_module(name)
inputs, state, args = torch.load(given, map_location=device)
model = module.ModelNew(*args)
if dtype:
    model = model.to(getattr(torch, dtype))
model = model.to(device)
model.load_state_dict(state)
model.eval().requires_grad_(False)
with torch.no_grad():
    told = model.dispatch(*inputs)
    made = model(*inputs)
if isinstance(made, dict):
    made = list(made.values())
torch.save(list(made) if isinstance(made, (tuple, list)) else [made], result)
print(json.dumps({"dispatch": str(told)}))
"""


def checked(
    tree: Tree, outcome: Outcome, problem: Problem, folder: Path, device: str = "cpu"
) -> str:
    """Writes the module into `folder` and calls it on the first measured case of the device:
    `right, by the kernel` or `by the reference`, `WRONG: ...` or `failed: ...`.

    Raises KernloreError where the module cannot be written.
    """
    module = write_module(tree, outcome, problem, folder)
    case = next(c for c in problem.searched if c.timed and c.fits(device))
    opened = open_case(problem, case)
    inputs, state = opened.inputs(SEED), opened.state(SEED)
    # The arrays are gigabytes on a GPU: they are gone as soon as they were read.
    place = tempfile.mkdtemp(prefix="kernlore-module-", dir=_roomy(opened.compulsory_bytes))
    try:
        dispatch, values = _called(module, opened, (inputs, state), Path(place), device)
    finally:
        shutil.rmtree(place)
    return (
        dispatch if values is None else _judged(opened, (inputs, state), values, device, dispatch)
    )


Given = tuple[list[torch.Tensor], dict[str, torch.Tensor]]


def _roomy(size: int) -> Path | None:
    """Memory where it holds twice the bytes, else None: the folder for temporary files."""
    if not (IN_MEMORY.is_dir() and os.access(IN_MEMORY, os.W_OK)):
        return None
    return IN_MEMORY if shutil.disk_usage(IN_MEMORY).free > 2 * size else None


def _called(
    module: Path, opened: OpenCase, tensors: Given, place: Path, device: str
) -> tuple[str, list[torch.Tensor] | None]:
    """Who took the call and its results; without results, how it failed."""
    inputs, state = tensors
    scalars = [v.item() if s else v for v, s in zip(inputs, opened.scalars, strict=True)]
    arguments, result = place / "given.pt", place / "result.pt"
    torch.save((scalars, state, opened.init_args), arguments)
    command = [sys.executable, "-I", "-c", CHECK, str(module.parent), module.name]
    visible = {VISIBLE: os.environ[VISIBLE]} if VISIBLE in os.environ else {}
    try:
        done = subprocess.run(
            [*command, str(arguments), str(result), device, opened.case.dtype or ""],
            capture_output=True,
            text=True,
            env=clean_env(module.parent, **visible),
            timeout=CALL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"failed: not back after {CALL_SECONDS:g} s", None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return f"failed: {lines[-1][:120]}", None
    dispatch = json.loads(done.stdout.splitlines()[-1])["dispatch"]
    which = re.search(r"which='(\w+)'", dispatch)
    return which[1] if which else dispatch[:60], torch.load(result, map_location="cpu")


def _judged(
    opened: OpenCase, tensors: Given, values: Sequence[torch.Tensor], device: str, which: str
) -> str:
    if len(values) != len(opened.outputs):
        return f"WRONG: {len(values)} outputs where the reference has {len(opened.outputs)}"
    inputs, state = tensors
    errors = PreparedCase(opened, device).errors(values, SEED, (*inputs, *state.values()))
    wrong = [error.in_words() for error in errors if not error.ok]
    return f"WRONG: {wrong[0]}" if wrong else f"right, by the {which}"
