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
)
from optimizer.evaluation.formats.task import TaskFormat

AUTO = "auto"
# In the order in which they are tried: the last reads the widest range of files.
FORMATS: tuple[TaskFormat, ...] = (
    gpu_mode.FORMAT,
    flashinfer_bench.SOL_EXECBENCH,
    flashinfer_bench.FLASHINFER_BENCH,
    jax_reference.FORMAT,
    kernel_bench.FORMAT,
)


def format_of(task: Path, name: str = AUTO) -> TaskFormat:
    """The format of this name, or the one that recognises the task. Raises InvalidRequest, or
    NotFound for a task that does not exist."""
    known = {form.name: form for form in FORMATS}
    if name != AUTO:
        if name not in known:
            near = nearest(name, known, 1)
            raise InvalidRequest(
                f"there is no format {name!r}",
                hint=(f"Did you mean {near[0]}? " if near else "")
                + f"Formats: {AUTO}, {', '.join(known)}.",
            )
        return known[name]
    found = next((form for form in FORMATS if form.recognises(task)), None)
    if found is not None:
        return found
    expected = "; ".join(f"{form.name}: {form.task}" for form in FORMATS)
    if not task.exists():
        raise NotFound(f"there is no task {str(task)!r}", hint=f"Give {expected}.")
    raise InvalidRequest(f"the format of the task {task} is unknown", hint=f"Give {expected}.")
