"""Time drafts on the GPU here without the judge: one process, the timed case, no isolation.

    python -m benchmarks.search.hard.quick_times drafts.zip [PROBLEM...]

The zip holds `PROBLEM__ARM__NUMBER.py` with `ModelNew`. A draft is right if its largest error, in
units of the output's root mean square, is at most four times that of the reference in the case's
dtype, or 1e-3 for float32 and 2e-2 for 16-bit types where that is larger. Times are medians of 25
calls between CUDA events, each after 256 MB were written. Use it to compare arms in little device
time; claims about a kernel need `kernlore judge`.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from optimizer.evaluation.problem.load import load_problem
from optimizer.evaluation.problem.user_code import import_problem

PROBLEMS = Path(__file__).parent / "problems"
CALLS = 25
FLOOR = {torch.float32: 1e-3}  # of the allowed error; 2e-2 for other types


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("drafts", type=Path)
    parser.add_argument("problems", nargs="*")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, zipfile.ZipFile(options.drafts) as packed:
        packed.extractall(scratch)
        drafts = sorted(Path(scratch).glob("*__*.py"))
        for name in sorted({draft.name.partition("__")[0] for draft in drafts}):
            if not options.problems or name in options.problems:
                show(name, [draft for draft in drafts if draft.name.startswith(f"{name}__")])


@torch.no_grad()
def show(name: str, drafts: Sequence[Path]) -> None:
    """Print the times of the reference and of each draft of a problem."""
    problem = load_problem(PROBLEMS / name)
    case = next(case for case in problem.cases if case.timed)
    module = import_problem(problem, case.constants)
    dtype = getattr(torch, case.dtype or "float32")
    torch.manual_seed(1)
    inputs = [
        (value.to(dtype) if value.is_floating_point() else value).cuda()
        for value in module.get_inputs()
    ]
    reference = module.Model(*module.get_init_inputs()).cuda().eval()
    exact = outputs(reference, [x.float() if x.is_floating_point() else x for x in inputs])
    own = error(outputs(reference, inputs), exact)
    bound = max(4 * own, FLOOR.get(dtype, 2e-2))
    print(f"{name}: reference {median_us(partial(reference, *inputs)):.1f} us, error {own:.2e}")
    for draft in drafts:
        try:
            model = imported(draft).ModelNew(*module.get_init_inputs()).cuda().eval()
            far = error(outputs(model, inputs), exact)
            time = median_us(partial(model, *inputs))
            verdict = "right" if far <= bound else "wrong"
            print(f"  {draft.stem}: {verdict}, error {far:.2e} of {bound:.1e}, {time:.1f} us")
        except Exception as failure:  # a draft may raise anything
            print(f"  {draft.stem}: {type(failure).__name__}: {str(failure)[:200]}")


def imported(path: Path) -> Any:
    """A draft as a module; Triton reads the source of its kernels from the file."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def outputs(model: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    result = model(*inputs)
    return result if isinstance(result, tuple) else (result,)


def error(found: Sequence[torch.Tensor], exact: Sequence[torch.Tensor]) -> float:
    """The largest difference in units of the exact output's root mean square."""
    return max(
        float((a.float() - b).abs().max() / b.square().mean().sqrt())
        for a, b in zip(found, exact, strict=True)
    )


def median_us(call: Callable[[], object]) -> float:
    """Median time of a call in microseconds, with a cold last-level cache."""
    other = torch.empty(1 << 26, device="cuda")
    times = []
    for number in range(CALLS + 3):
        other.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        if number >= 3:
            times.append(begin.elapsed_time(end) * 1e3)
    return float(statistics.median(times))


if __name__ == "__main__":
    main()
