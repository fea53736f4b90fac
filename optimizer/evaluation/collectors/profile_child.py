"""`python -I THIS_FILE JOB`: calls a candidate under a profiler; `profilers` writes the job.

Modes: `plain` only calls; `counted` enables perf over a pipe for the duration of the calls;
`torch_profiler` and `proton` write those profilers' events as JSON. On a GPU the calls are between
cudaProfilerStart and Stop, so that an external profiler can ignore everything else.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

WARM_CALLS = 2
Call = Callable[[], Any]


def kernel_call(job: dict[str, Any]) -> Call:
    """The candidate, loaded by the runner's code."""
    from optimizer.evaluation.runner.constructor import init_arguments
    from optimizer.evaluation.runner.kernels import library_kernel, module_kernel

    device = job["device"]
    tensors = [t.to(device) for t in torch.load(job["tensors"], weights_only=True)]
    count = len(job["scalars"])
    inputs = [
        t.item() if scalar else t for t, scalar in zip(tensors[:count], job["scalars"], strict=True)
    ]
    state = dict(zip(job["state"], tensors[count:], strict=True))
    path, entry = Path(job["path"]), job["entry"]
    if job["kind"] == "c_abi":
        outputs = [(dtype, shape) for dtype, shape in job["expected"]]
        kernel = library_kernel(
            path, entry, inputs=inputs, state=state, outputs=outputs, device=device
        )
    else:
        kernel = module_kernel(
            path,
            entry,
            init_args=init_arguments(job),
            inputs=inputs,
            state=state,
            dtype=job["dtype"],
            device=device,
            gradients=job["gradients"],
            overwritten=job["overwritten"],
        )
    return kernel.call


def synchronize(job: dict[str, Any]) -> None:
    """Wait until a GPU is idle."""
    if job["device"] == "cuda":
        torch.cuda.synchronize()


def repeat(job: dict[str, Any], call: Call) -> None:
    """Call as often as the job says."""
    for _ in range(job["calls"]):
        call()
    synchronize(job)


def plain(job: dict[str, Any], call: Call) -> None:
    """Calls for an external profiler."""
    if job["device"] != "cuda":
        repeat(job, call)
        return
    cuda: Any = torch.cuda
    runtime = cuda.cudart()
    runtime.cudaProfilerStart()
    repeat(job, call)
    runtime.cudaProfilerStop()


def counted(job: dict[str, Any], call: Call) -> None:
    """Calls for perf, which starts with disabled counters; see `perf stat --control`."""
    with (
        Path(job["control"]).open("w", encoding="ascii") as control,
        Path(job["control"] + ".ack").open(encoding="ascii") as answers,
    ):
        for command in ("enable", "disable"):
            control.write(f"{command}\n")
            control.flush()
            answers.readline()
            if command == "enable":
                repeat(job, call)


def torch_profiler(job: dict[str, Any], call: Call) -> dict[str, Any]:
    """Events of PyTorch's profiler by device and name, and the operators of one call."""
    import torch.profiler

    profiler: Any = torch.profiler
    kinds = [profiler.ProfilerActivity.CPU]
    if job["device"] == "cuda":
        kinds.append(profiler.ProfilerActivity.CUDA)
    with profiler.profile(activities=kinds) as profiled:
        repeat(job, call)
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for event in profiled.events():
        device = "cuda" if "CUDA" in str(event.device_type) else "cpu"
        if device == "cpu" and event.cpu_parent is not None:
            continue  # a part of another operator
        empty = {"name": event.name, "device": device, "calls": 0, "cpu_us": 0.0, "device_us": 0.0}
        row = rows.setdefault((device, event.name), empty)
        row["calls"] += 1
        row["cpu_us"] += event.cpu_time_total
        row["device_us"] += event.self_device_time_total
    return {"calls": job["calls"], "events": list(rows.values()), "operators": job["trace"](call)}


def proton(job: dict[str, Any], call: Call) -> dict[str, Any]:
    """The tree that Proton writes."""
    profiler: Any = importlib.import_module("triton.profiler")
    path = Path(job["scratch"], "proton")
    profiler.start(str(path), hook="triton")
    repeat(job, call)
    profiler.finalize()
    tree = json.loads(path.with_suffix(".hatchet").read_text(encoding="utf-8"))
    return {"calls": job["calls"], "tree": tree}


def main(arguments: list[str]) -> None:
    """Call the candidate in the job's mode, and write the result file."""
    job = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    root = str(Path(__file__).resolve().parents[3])
    sys.path.insert(0, root)
    call = kernel_call(job)
    job["trace"] = importlib.import_module("optimizer.evaluation.runner.kernels").traced
    sys.path.remove(root)
    torch.set_num_threads(job["threads"])
    for _ in range(WARM_CALLS):
        call()
    synchronize(job)
    modes: dict[str, Callable[[dict[str, Any], Call], Any]] = {
        "plain": plain,
        "counted": counted,
        "torch_profiler": torch_profiler,
        "proton": proton,
    }
    result = modes[job["mode"]](job, call)
    Path(job["result"]).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
