"""Does `kernlore judge` agree with each format's own harness?

Three tasks of each format, chosen by their place in the list of names, with a right submission (the
reference, or what the format ships) and a wrong one (the same with its results 3 % off, or with one
operator or store changed). Harness and judge get the same files. `run` has not been run in this
form: the figures in benchmarks/results/foreign_problems.md are from scripts with the same adapters.

CHECKOUTS is a folder of clones: KernelBench, robust-kbench, reference-kernels, SOL-ExecBench,
flashinfer-bench, AgentKernelArena. Their packages have to be importable where the harness runs.

    python -m benchmarks.evaluation.agreement lay-out CHECKOUTS FOLDER
    python -m benchmarks.evaluation.agreement run FOLDER --out agreement.jsonl [--only FORMAT]
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

from optimizer.evaluation.isolation.machine import DeviceLock

MUTATION = """

def _mutated(value):
    import torch
    if isinstance(value, torch.Tensor):
        return value * 1.03 if value.is_floating_point() else value + 1
    return type(value)(_mutated(part) for part in value)
"""
Job = dict[str, str]
Verdict = dict[str, Any]  # right, ms by case


def chosen(items: Sequence[Any]) -> list[Any]:
    """Three items by their places alone: 0, 6 and 12 of long lists, closer ones of short lists."""
    step = 6 if len(items) > 12 else max(1, min(3, (len(items) - 1) // 2))
    return list(items[: 3 * step : step])


# -- tasks and submissions


def lay_out(checkouts: Path, folder: Path) -> None:
    """Copy three tasks of each format with two submissions each, and write jobs.json."""
    jobs = [job for layer in LAYERS for job in layer(checkouts, folder)]
    (folder / "jobs.json").write_text(json.dumps(jobs, indent=1), encoding="utf-8")


def _pair(form: str, task: Path, right: str, wrong: str, place: Path) -> Iterator[Job]:
    for kind, text in (("right", right), ("wrong", wrong)):
        submission = place / kind / (place.name if place.suffix else "submission.py")
        submission.parent.mkdir(parents=True, exist_ok=True)
        submission.write_text(text, encoding="utf-8")
        yield {"format": form, "kind": kind, "task": str(task), "submission": str(submission)}


def _kernel_bench(checkouts: Path, folder: Path) -> Iterator[Job]:
    level = checkouts / "KernelBench" / "KernelBench" / "level1"
    for task in chosen(sorted(level.glob("*.py"), key=lambda path: path.name)):
        text = task.read_text(encoding="utf-8")
        calls = "    def forward(self, *a):\n        return _mutated(super().forward(*a))\n"
        wrong = f"{text}{MUTATION}\n\nclass ModelNew(Model):\n{calls}"
        right = re.sub(r"\bModel\b", "ModelNew", text)
        yield from _pair("kernelbench", task, right, wrong, folder / "kernelbench" / task.stem)


def _robust_kbench(checkouts: Path, folder: Path) -> Iterator[Job]:
    root = checkouts / "robust-kbench"
    for kernel in chosen(sorted(root.glob("highlighted/*/forward/kernel.cu"))):
        name, text = kernel.parts[-3], kernel.read_text(encoding="utf-8")
        place = folder / "robust-kbench" / name / "kernel.cu"
        # A step of a loop with another sign would read outside of arrays.
        wrong = re.sub(r"^(\s*[\w.\[\]]+ )\+=", r"\1-=", text, count=1, flags=re.M)
        wrong = text.replace(" + ", " - ", 1) if wrong == text else wrong
        yield from _pair("robust-kbench", root / "tasks" / name, text, wrong, place)


def _gpu_mode(checkouts: Path, folder: Path) -> Iterator[Job]:
    problems = checkouts / "reference-kernels" / "problems" / "pmpp_v2"
    for task in chosen(sorted(path.parent for path in problems.glob("*/task.yml"))):
        shipped = [*sorted(task.glob("solutions/correct/*.py")), task / "submission.py"]
        text = shipped[0].read_text(encoding="utf-8")
        calls = "def custom_kernel(data):\n    return _mutated(_right(data))\n"
        wrong = f"{text}{MUTATION}\n\n_right = custom_kernel\n\n\n{calls}"
        yield from _pair("gpu-mode", task, text, wrong, folder / "gpu-mode" / task.name)


def _mutated_solution(text: str) -> str:
    solution = json.loads(text)
    spec = solution["spec"]
    main, _, function = spec["entry_point"].partition("::")
    source = next(row for row in solution["sources"] if row["path"] == main)
    body = f"    {function}(*a)\n    a[-1].mul_(1.03)\n"
    if not spec.get("destination_passing_style", True):
        body = f"    return _mutated({function}(*a))\n"
    source["content"] += f"{MUTATION}\n\ndef mutated_entry(*a):\n{body}"
    spec["entry_point"] = f"{main}::mutated_entry"
    return json.dumps(solution)


def _sol_execbench(checkouts: Path, folder: Path) -> Iterator[Job]:
    found = checkouts.glob("SOL-ExecBench/examples/*/*/solution_*.json")
    python = [path for path in sorted(found) if path.stem in ("solution_python", "solution_triton")]
    for path in chosen(python):
        text, place = path.read_text(encoding="utf-8"), folder / "sol-execbench" / path.parent.name
        place /= "solution.json"
        yield from _pair("sol-execbench", path.parent, text, _mutated_solution(text), place)


def _flashinfer_bench(checkouts: Path, folder: Path) -> Iterator[Job]:
    for path in chosen(
        sorted(checkouts.glob("flashinfer-bench/examples/*/*/definitions/**/*.json"))
    ):
        definition = json.loads(path.read_text(encoding="utf-8"))
        solution = {
            "name": f"{definition['name']}-reference",
            "definition": definition["name"],
            "author": "reference",
            "spec": {
                "language": "python",
                "target_hardware": ["cuda"],
                "entry_point": "main.py::run",
                "destination_passing_style": False,
            },
            "sources": [{"path": "main.py", "content": definition["reference"]}],
        }
        text = json.dumps(solution)
        place = folder / "flashinfer-bench" / definition["name"] / "solution.json"
        yield from _pair("flashinfer-bench", path, text, _mutated_solution(text), place)


def _agent_kernel_arena(checkouts: Path, folder: Path) -> Iterator[Job]:
    tasks = checkouts / "AgentKernelArena" / "tasks" / "triton2triton" / "vllm"
    for config in chosen(sorted(tasks.glob("*/config.yaml"))):
        source = next((config.parent / "source").glob("*.py"))
        text = source.read_text(encoding="utf-8")
        place = folder / "agent-kernel-arena" / config.parent.name / source.name
        wrong = _without_last_store(text)
        yield from _pair("agent-kernel-arena", config.parent, text, wrong, place)


def _without_last_store(text: str) -> str:
    stores = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and ast.unparse(node.value.func) == "tl.store"
    ]
    last, lines = max(stores, key=lambda node: node.lineno), text.split("\n")
    lines[last.lineno - 1 : last.end_lineno] = [" " * last.col_offset + "pass"]
    return "\n".join(lines)


LAYERS = (
    _kernel_bench,
    _robust_kbench,
    _gpu_mode,
    _sol_execbench,
    _flashinfer_bench,
    _agent_kernel_arena,
)


# -- harnesses: each runs in a separate process and holds the lock of the device


def _by_kernel_bench(task: Path, submission: Path) -> Verdict:
    import torch

    harness = import_module("kernelbench.eval")
    texts = task.read_text(encoding="utf-8"), submission.read_text(encoding="utf-8")
    options = {"num_correct_trials": 5, "num_perf_trials": 100, "measure_performance": True}
    with DeviceLock("cuda"):
        found = harness.eval_kernel_against_ref(
            *texts, **options, device=torch.device("cuda:0"), backend="triton"
        )
    right = bool(found and found.correctness)
    return {"right": right, "ms": {"declared": found.runtime} if right else {}}


def _by_robust_kbench(task: Path, submission: Path) -> Verdict:
    os.environ["TORCH_EXTENSIONS_DIR"] = tempfile.mkdtemp()
    settings_of = import_module("robust_kbench.kernel_task").KernelTask
    correct = import_module("robust_kbench.primitives.forward.cuda_correct").cuda_correct
    timed = import_module("robust_kbench.primitives.forward.cuda_eval").cuda_eval
    every = settings_of(str(task), multi_input_settings=True, multi_init_settings=True)
    single = settings_of(str(task))
    with DeviceLock("cuda"):
        found = [
            correct(settings, str(submission), rtol=1e-3, atol=1e-3) for settings in (single, every)
        ]
        right = all(row["summary"]["correct"] for row in found)
        times = timed(single, str(submission), repetition_time=1000) if right else {}
    rows = times.get("eval_settings", {})
    return {"right": right, "ms": {name: row["median_time"] for name, row in rows.items()}}


def _by_gpu_mode(task: Path, submission: Path) -> Verdict:
    import yaml

    declared = yaml.safe_load((task / "task.yml").read_text(encoding="utf-8"))
    folder = Path(tempfile.mkdtemp())
    for path in (*task.parent.glob("*.py"), *task.glob("*.py")):
        shutil.copy(path, folder)
    shutil.copy(submission, folder / "submission.py")
    with DeviceLock("cuda"):
        right = _popcorn(folder, "test", declared["tests"]).get("check") == "pass"
        found = _popcorn(folder, "benchmark", declared["benchmarks"]) if right else {}
    means = {
        ",".join(f"{name}={value}" for name, value in row.items() if name != "seed"): found.get(
            f"benchmark.{number}.mean"
        )
        for number, row in enumerate(declared["benchmarks"])
    }
    ms = {name: float(mean) / 1e6 for name, mean in means.items() if mean}
    return {"right": right and found.get("check") == "pass", "ms": ms}


def _popcorn(folder: Path, mode: str, rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    """The lines `key: value` of a run of eval.py."""
    lines = ("; ".join(f"{name}: {value}" for name, value in row.items()) for row in rows)
    (folder / "cases.txt").write_text("\n".join(lines), encoding="utf-8")
    reader, writer = os.pipe()
    command = [sys.executable, "eval.py", mode, "cases.txt"]
    env = {**os.environ, "POPCORN_FD": str(writer)}
    with subprocess.Popen(command, cwd=folder, pass_fds=[writer], env=env):
        os.close(writer)
        with os.fdopen(reader, encoding="utf-8") as file:
            text = file.read()
    pairs = (line.partition(": ") for line in text.splitlines())
    return {name: value for name, _, value in pairs}


def _by_sol_execbench(task: Path, submission: Path) -> Verdict:
    output = Path(tempfile.mkdtemp()) / "traces.jsonl"
    program = "from sol_execbench.cli.main import cli; cli()"
    command = [sys.executable, "-c", program, str(task), "--solution", str(submission)]
    with DeviceLock("cuda"):
        subprocess.run([*command, "-o", str(output)], check=False)
    lines = output.read_text(encoding="utf-8").splitlines() if output.is_file() else []
    return _by_traces(list(map(json.loads, lines)))


def _by_flashinfer_bench(task: Path, submission: Path) -> Verdict:
    bench = import_module("flashinfer_bench.bench")
    sets = import_module("flashinfer_bench.data").TraceSet
    data = Path(tempfile.mkdtemp()) / "set"
    shutil.copytree(task.parents[2] if task.parent.name != "definitions" else task.parents[1], data)
    shutil.rmtree(data / "solutions", ignore_errors=True)
    (data / "solutions").mkdir()
    shutil.copy(submission, data / "solutions")
    config = bench.BenchmarkConfig(
        definitions=[json.loads(task.read_text(encoding="utf-8"))["name"]]
    )
    with DeviceLock("cuda"):
        benchmark = bench.Benchmark(sets.from_path(str(data)), config)
        found = benchmark.run_all(dump_traces=False).traces
        benchmark.close()
    return _by_traces([t.model_dump(mode="json") for traces in found.values() for t in traces])


def _by_traces(traces: Sequence[dict[str, Any]]) -> Verdict:
    found = {trace["workload"]["uuid"]: trace["evaluation"] for trace in traces}
    times = {name: row["performance"] for name, row in found.items() if row.get("performance")}
    return {
        "right": bool(found) and all(row["status"] == "PASSED" for row in found.values()),
        "ms": {name: row["latency_ms"] for name, row in times.items()},
    }


def _by_agent_kernel_arena(task: Path, submission: Path) -> Verdict:
    import yaml

    materialized = import_module("src.perf_helper_materialization")
    place = Path(tempfile.mkdtemp()) / "task"
    shutil.copytree(task, place)
    materialized.materialize_perf_helpers_in_workspace(place)
    config = yaml.safe_load((place / "config.yaml").read_text(encoding="utf-8"))
    with DeviceLock("cuda"):
        baseline = import_module("src.performance").measure_baseline(place, config)
        shutil.copy(submission, place / config["source_file_path"][0])
        found = import_module("src.evaluator").evaluate_kernel(place, config, baseline)
    mean = found["best_optimized_execution_time"]
    right = bool(found["pass_compilation"] and found["pass_correctness"])
    return {"right": right, "ms": {"mean": mean} if mean else {}}


HARNESSES: dict[str, Callable[[Path, Path], Verdict]] = {
    "kernelbench": _by_kernel_bench,
    "robust-kbench": _by_robust_kbench,
    "gpu-mode": _by_gpu_mode,
    "sol-execbench": _by_sol_execbench,
    "flashinfer-bench": _by_flashinfer_bench,
    "agent-kernel-arena": _by_agent_kernel_arena,
}


# -- runs


def judged(job: Job) -> Verdict:
    """The verdict of `kernlore judge` on a job, with the candidate's times in ms."""
    output = Path(tempfile.mkdtemp()) / "judgement.json"
    command = [sys.executable, "-m", "api.cli.main", "judge", job["submission"]]
    command += ["--task", job["task"], "--output", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not output.is_file():
        return {"right": None, "ms": {}, "message": done.stderr[-2000:]}
    record = json.loads(output.read_text(encoding="utf-8"))
    rows = record.get("evaluation", {}).get("timings", ())
    ms = {row["case"]: row["candidate_us"] / 1e3 for row in rows if row.get("candidate_us")}
    mean = record.get("report", {}).get("metrics", {}).get("best_optimized_execution_time")
    return {
        "right": record["verdict"] == "correct",
        "ms": ms or ({"mean": mean} if mean else {}),
        "message": record["message"],
    }


def run(folder: Path, out: Path, only: str | None, workers: int) -> None:
    """Give each job to harness and judge, and write a line of JSON for both."""
    jobs = json.loads((folder / "jobs.json").read_text(encoding="utf-8"))

    def compare(job: Job) -> None:
        began = time.monotonic()
        command = [sys.executable, "-m", __spec__.name, "harness", json.dumps(job)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = [x for x in done.stdout.splitlines() if x.startswith('{"right"')]
        own = json.loads(lines[-1]) if lines else {"right": None, "log": done.stderr[-2000:]}
        ours = judged(job)
        row = {**job, "harness": own, "judge": ours, "seconds": time.monotonic() - began}
        with out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(job["format"], Path(job["task"]).stem, job["kind"], own, ours, flush=True)

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(compare, [job for job in jobs if only in (None, job["format"])]))


def main() -> None:
    """Lay out tasks, run the jobs, or run one harness."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    laying = commands.add_parser("lay-out")
    laying.add_argument("checkouts", type=Path)
    laying.add_argument("folder", type=Path)
    running = commands.add_parser("run")
    running.add_argument("folder", type=Path)
    running.add_argument("--out", type=Path, required=True)
    running.add_argument("--only", choices=list(HARNESSES))
    running.add_argument("--workers", type=int, default=1)
    commands.add_parser("harness").add_argument("job", type=json.loads)
    given = parser.parse_args()
    if given.command == "lay-out":
        lay_out(given.checkouts.resolve(), given.folder.resolve())
    elif given.command == "run":
        run(given.folder, given.out, given.only, given.workers)
    else:
        job = given.job
        print(json.dumps(HARNESSES[job["format"]](Path(job["task"]), Path(job["submission"]))))


if __name__ == "__main__":
    main()
