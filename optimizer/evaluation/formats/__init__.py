"""Tasks and submissions in the conventions of benchmarks and leaderboards, converted into problems
and candidates. One module for each convention; everything behind this package knows only problems.
"""

from __future__ import annotations

from pathlib import Path

from kb.errors import InvalidRequest, NotFound, nearest
from optimizer.evaluation.formats import (
    flashinfer_bench,
    gpu_mode,
    jax_reference,
    kernel_bench,
    robust_kbench,
)
from optimizer.evaluation.formats.own_evaluators import (
    AGENT_KERNEL_ARENA,
    OPENEVOLVE,
    PYTEST,
    EvaluatorFormat,
)
from optimizer.evaluation.formats.task import TaskFormat

AUTO = "auto"
# In the order in which they are tried: the last reads the widest range of files.
FORMATS: tuple[TaskFormat, ...] = (
    gpu_mode.FORMAT,
    robust_kbench.FORMAT,
    flashinfer_bench.SOL_EXECBENCH,
    flashinfer_bench.FLASHINFER_BENCH,
    jax_reference.FORMAT,
    kernel_bench.FORMAT,
)
# Tasks whose own evaluator gives the verdict.
EVALUATOR_FORMATS: tuple[EvaluatorFormat, ...] = (OPENEVOLVE, AGENT_KERNEL_ARENA, PYTEST)


def format_of(task: Path, name: str = AUTO) -> TaskFormat:
    """The format of this name, or the one that recognises the task. Raises InvalidRequest, or
    NotFound for a task that does not exist."""
    known = {form.name: form for form in FORMATS}
    every = (*known, *(form.name for form in EVALUATOR_FORMATS))
    if name != AUTO:
        if name not in known:
            near = nearest(name, every, 1)
            raise InvalidRequest(
                f"there is no format {name!r}",
                hint=(f"Did you mean {near[0]}? " if near else "")
                + f"Formats: {AUTO}, {', '.join(every)}.",
            )
        return known[name]
    found = next((form for form in FORMATS if form.recognises(task)), None)
    if found is not None:
        return found
    tasks = {form.name: form.task for form in FORMATS}
    tasks |= {form.name: form.task for form in EVALUATOR_FORMATS}
    expected = "; ".join(f"{name}: {task}" for name, task in tasks.items())
    if not task.exists():
        raise NotFound(f"there is no task {str(task)!r}", hint=f"Give {expected}.")
    raise InvalidRequest(f"the format of the task {task} is unknown", hint=f"Give {expected}.")


def is_folder(task: Path, name: str = AUTO) -> bool:
    """Whether this is a folder of KernelBench tasks and, without a named format, no task itself."""
    recognisers = [f.recognises for f in EVALUATOR_FORMATS] + [f.recognises for f in FORMATS]
    if name == AUTO and any(recognises(task) for recognises in recognisers):
        return False
    return name in (AUTO, kernel_bench.FORMAT.name) and kernel_bench.is_folder(task)


def evaluator_format_of(task: Path, name: str = AUTO) -> EvaluatorFormat | None:
    """The format of a task with its own evaluator, of this name or that recognises the task; else
    None. Raises InvalidRequest for a named format that does not recognise the task."""
    found = next(
        (f for f in EVALUATOR_FORMATS if name in (AUTO, f.name) and f.recognises(task)), None
    )
    named = next((f for f in EVALUATOR_FORMATS if f.name == name), None)
    if named is not None and found is None:
        raise InvalidRequest(f"{task} is no task of {name}", hint=f"Give {named.task}.")
    return found
