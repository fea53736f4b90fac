"""A small problem with its kernels in C++, and a real bench for it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from kb.catalog import Catalog
from kb.catalog.skills.reading import SkillRow, get_skill
from optimizer.evaluation.isolation.runner_process import RunnerPool, RunnerSettings
from optimizer.evaluation.problem.load import load_problem
from optimizer.evaluation.problem.spec import Problem
from optimizer.evaluation.settings import EvaluationSettings, TimingPolicy
from optimizer.evaluation.toolchains.base import EvaluationTarget
from optimizer.evaluation.toolchains.cpp import CppToolchain
from optimizer.evaluation.toolchains.python import TorchPython
from optimizer.search.bench.local import LocalBench, LocalDevice, TargetToolchain
from skills.format.schema import SkillFile
from skills.format.skillfile import write_skill
from skills.skill_library import SkillLibrary
from tests.problem_files import model_text

PROBLEM = model_text("x.sum(dim=1)", "torch.randn(rows, cols)", head="rows = 96\ncols = 1024")
TOML = """
name = "row_total"
op = "reduction"
[policy]
reduction_length = "cols"
[[cases]]
name = "main"
constants = {rows = 96, cols = 1024}
[[cases]]
name = "odd"
constants = {rows = 7, cols = 640}
timed = false
[[cases]]
name = "held_out"
constants = {rows = 33, cols = 2048}
held_out = true
"""
# Sums `LANES` elements at a time; the remainder of a row is summed element by element.
KERNEL = """
#include "kernlore_abi.h"
#define LANES 8
constexpr int64_t CHUNK = 16;
KERNLORE_EXPORT int kernlore_run(const kernlore_tensor *t, const kernlore_counts *) {
  const float *x = (const float *)t[0].data;
  float *y = (float *)t[1].data;
  const int64_t rows = t[0].shape[0], cols = t[0].shape[1];
  for (int64_t first = 0; first < rows; first += CHUNK)
    for (int64_t i = first; i < rows && i < first + CHUNK; i++) {
      double part[LANES] = {};
      int64_t j = 0;
      for (; j + LANES <= cols; j += LANES)
        for (int l = 0; l < LANES; l++) part[l] += x[i * cols + j + l];
      double sum = 0;
      for (; j < cols; j++) sum += x[i * cols + j];
      for (int l = 0; l < LANES; l++) sum += part[l];
      y[i] = (float)sum;
    }
  return 0;
}
"""
# These tests are about verdicts; a busy machine has no quiet time for measurements.
QUICK = EvaluationSettings(
    seeds=1,
    threads=1,
    call_seconds=5.0,
    timing=TimingPolicy(block_ms=1.0, min_pairs=4, max_pairs=4, quiet=1e6, seconds=5.0),
)
TEMPLATE = KERNEL.replace("LANES 8", "LANES @{LANES}")
WRONG = TEMPLATE.replace("y[i] = (float)sum", "y[i] = (float)sum + 1")
CPU = EvaluationTarget("x86-64", ("x86-64",), None, "cpu")


def problem_in(folder: Path) -> Problem:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "problem.toml").write_text(TOML, encoding="utf-8")
    path = folder / "problem.py"
    path.write_text(PROBLEM, encoding="utf-8")
    return load_problem(path)


class ReusedPool(RunnerPool):
    """Serves several benches in turn, because the process that runners are forked from takes
    seconds to import torch. Every runner is still a fresh process.
    """

    def close(self) -> None:
        """Keeps the processes for the next bench; the last fixture ends them."""


class ReusedDevice(LocalDevice):
    pools: ClassVar[dict[RunnerSettings, ReusedPool]] = {}

    def pool(self, settings: RunnerSettings) -> RunnerPool:
        if settings not in self.pools:
            self.pools[settings] = ReusedPool(settings)
        return self.pools[settings]

    @classmethod
    def end(cls) -> None:
        """Ends every process."""
        while cls.pools:
            RunnerPool.close(cls.pools.popitem()[1])


@contextmanager
def bench_of(problem: Problem) -> Iterator[LocalBench]:
    places = {
        "cpp": TargetToolchain(CPU, CppToolchain()),
        "torch": TargetToolchain(CPU, TorchPython()),
    }
    with LocalBench(problem, places, QUICK, devices=(ReusedDevice("cpu"),)) as bench:
        yield bench


def skill_in(catalog: Catalog, folder: Path, template: str, **changed: Any) -> SkillRow:
    """A candidate whose recipe has this template, imported from a folder."""
    body: dict[str, Any] = {
        "format": 1,
        "language": "cpp",
        "template": "references/kernel.cpp",
        "ops": ["reduction"],
        "tensors": [
            {"name": "x", "role": "input", "dtypes": ["float32"], "dims": ["rows", "cols"]},
            {"name": "y", "role": "output", "dtypes": ["float32"], "dims": ["rows"]},
        ],
        "parameters": [{"name": "LANES", "role": "vector", "values": [4, 8, 16], "default": 8}],
    }
    name = changed.pop("name", "cpp-row-total")
    metadata = {"kb.ops": "reduction", **changed.pop("metadata", {})}
    files = {
        "references/recipe.json": json.dumps(body).encode(),
        "references/kernel.cpp": template.encode(),
    }
    written = SkillFile(
        name=name,
        description="Use when rows are summed.",
        body="## When to use\n\nRows are summed.\n\n## Sources\n\n- a test",
        metadata=metadata,
        files=changed.pop("files", files),
    )
    SkillLibrary(catalog).import_folder(write_skill(written, folder), actor="test")
    with catalog.read() as connection:
        return get_skill(connection, name)
