"""How long traced Triton kernels take with each of their choices, on a GPU, beside torch and
torch.compile as it comes: what the choices that a search begins with were read off.

    python -m benchmarks.search.traced_choices PROBLEM... [-o REPORT]

Every problem is a file with `Model`, `get_inputs` and `get_init_inputs`. Times are medians of
triton.testing.do_bench in one process, with the second-level cache emptied between calls; results
are held against the reference in its own precision. For choosing, not for claims: what a kernel
gains is measured by the harness. Needs torch, triton and a GPU, nothing else.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from benchmarks.report import table
from optimizer.evaluation.abi import Signature, TensorSpec
from optimizer.search.records import Value
from optimizer.search.synthesizers.base import CaseView
from optimizer.search.synthesizers.traced import triton
from optimizer.search.synthesizers.traced.synthesizer import LIBRARY, lowered

WARM_MS, MEASURED_MS = 10, 60


def opened(path: Path) -> ModuleType:
    """The file as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def choices() -> Iterator[tuple[str, Mapping[str, Value]]]:
    """The first choices, then each of the others alone."""
    start = triton.START_WITH_TF32
    yield "as first written", start
    for name, values in triton.OTHERS.items():
        for value in values:
            if start[name] != value:
                yield f"{name} = {value}", {**start, name: value}


def milliseconds(call: Callable[[], object]) -> float:
    """Of one call."""
    do_bench = importlib.import_module("triton.testing").do_bench
    call()
    return float(do_bench(call, warmup=WARM_MS, rep=MEASURED_MS, return_mode="median"))


def case_of(source: str, tensors: Sequence[tuple[str, torch.Tensor]]) -> CaseView:
    """The case of these tensors, with their roles."""
    specs = tuple(
        TensorSpec(f"t{n}", role, str(t.dtype).removeprefix("torch."), tuple(t.shape))  # type: ignore[arg-type]
        for n, (role, t) in enumerate(tensors)
    )
    return CaseView("main", Signature(specs), {}, True, None, {}, source)


def rows_of(path: Path, folder: Path) -> list[list[str]]:
    """The rows of one problem: what ran, how long it took, and the largest difference."""
    module, source = opened(path), path.read_text(encoding="utf-8")
    with torch.device("cuda"):
        inputs = [x.cuda() if isinstance(x, torch.Tensor) else x for x in module.get_inputs()]
        model = module.Model(*module.get_init_inputs()).eval().requires_grad_(False)
    expected = _listed(model(*inputs))
    given = [x for x in inputs if isinstance(x, torch.Tensor)]
    weights = list(model.state_dict(keep_vars=True).values())
    case = case_of(
        source,
        [
            *(("input", x) for x in given),
            *(("parameter", x) for x in weights),
            *(("output", x) for x in expected),
        ],
    )
    program = lowered(case, LIBRARY)
    if isinstance(program, str):
        return [[path.stem, program, "", ""]]
    rows = [[path.stem, "torch", f"{milliseconds(lambda: model(*inputs)):.4f}", ""]]
    texts: set[str] = set()
    for name, values in choices():
        text = triton.written([(case.signature, program)], source, values).text
        if text not in texts:
            texts.add(text)
            written = folder / f"{path.stem}_{len(texts)}.py"
            written.write_text(text, encoding="utf-8")
            rows.append(
                [path.stem, name, *_timed(opened(written).run, [*given, *weights], expected)]
            )
    compiled: Callable[..., object] = torch.compile(model)
    rows.append([path.stem, "torch.compile", f"{milliseconds(lambda: compiled(*inputs)):.4f}", ""])
    torch.compiler.reset()
    return rows


def _timed(run: Any, tensors: list[torch.Tensor], expected: list[torch.Tensor]) -> list[str]:
    results = _listed(run(*tensors))
    pairs = zip(results, expected, strict=True)
    apart = max((a.double() - b.double()).abs().max().item() for a, b in pairs)
    return [f"{milliseconds(lambda: run(*tensors)):.4f}", f"{apart:.2g}"]


def _listed(of: Any) -> list[torch.Tensor]:
    return list(of) if isinstance(of, tuple | list) else [of]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.search.traced_choices")
    parser.add_argument("problems", nargs="+", type=Path)
    parser.add_argument("--output", "-o", type=Path)
    arguments = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("no GPU is here; run this on a machine with one", file=sys.stderr)
        return 2
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        for path in arguments.problems:
            rows += rows_of(path, Path(folder))
            torch.cuda.empty_cache()
    text = table(["problem", "choice", "ms", "largest difference"], rows)
    print(text)
    if arguments.output:
        arguments.output.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
