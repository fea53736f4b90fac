"""Searches on a host with several GPUs through a Ray cluster of that host: what is gained over
one GPU, with as much work for each GPU.

    python -m benchmarks.cluster.several_gpus --hardware h100 --gpus 4 1

Every GPU gets a copy of each problem, so that the mix of work is the same for any number of them.
Of Kernlore's dependencies it needs sqlalchemy, alembic, pydantic, pydantic-settings, structlog,
typer, rich, httpx, fsspec, tomli_w, snowballstemmer and google-re2, beside torch and Ray: so it
runs on a GPU machine with nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.evaluation.gpu_machine import device_line
from benchmarks.report import ended, say, table, write_result
from kb.errors import Unavailable
from kb.settings import Settings
from optimizer.evaluation.problem.load import load_problem
from optimizer.search.runs.run_store import run_store
from retrieval.knowledge_base import KnowledgeBase

TITLE = "Searches on several GPUs of one host"
ROOT = Path(__file__).resolve().parents[2]
PROBLEMS = ("softmax", "layernorm")
PORT = 26379
STARTED = "Ray runtime started"  # what `ray start` prints then
START_SECONDS = 60.0
END_SECONDS = 20.0
MODULE = "import sys; from api.cli.main import run; sys.exit(run())"


@dataclass(frozen=True)
class Phase:
    """What came of one command. `work` are the evaluations that nodes made, with those of the
    reference and those that confirm; `judged` the candidates with an evaluation, `ended` the
    searches that came to their end."""

    gpus: int
    ray: bool
    seconds: float
    searches: int
    ended: int
    judged: int
    work: int
    lost: int


def copies(problems: Sequence[str], count: int, folder: Path) -> list[Path]:
    """So many copies of each problem, which differ in their names and in nothing that is measured.
    A search of one is no search of another."""
    paths = []
    for number in range(count):
        for name in problems:
            source = load_problem(Path(name)).path.parent
            place = folder / f"{name}_{number}"
            shutil.copytree(source, place, ignore=shutil.ignore_patterns("__pycache__"))
            text = (place / "problem.toml").read_text(encoding="utf-8")
            named = text.replace(f'name = "{name}"', f'name = "{place.name}"', 1)
            (place / "problem.toml").write_text(named, encoding="utf-8")
            paths.append(place)
    return paths


@contextmanager
def cluster_of(gpus: int, hardware: str, folder: Path) -> Iterator[str]:
    """A cluster of this host alone with so many of its GPUs; the address of its head."""
    visible = ",".join(str(number) for number in range(gpus))
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": visible, "RAY_TMPDIR": str(folder)}
    environment |= {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    address = f"127.0.0.1:{PORT}"
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"]
    command += [f"--port={PORT}", "--node-ip-address=127.0.0.1", f"--num-gpus={gpus}"]
    command += [f"--labels=gpu_model={hardware}", "--include-dashboard=false"]
    log = folder / "head.txt"
    with log.open("wb") as output:
        head = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, cwd=folder, env=environment
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        while STARTED not in log.read_text(encoding="utf-8", errors="replace"):
            if head.poll() is not None or time.monotonic() > deadline:
                raise Unavailable("Ray did not start", hint=log.read_text(errors="replace")[-800:])
            time.sleep(0.1)
        yield address
    finally:
        head.send_signal(signal.SIGTERM)
        try:
            head.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            head.kill()
            head.wait()


def search(
    problems: Sequence[Path],
    options: argparse.Namespace,
    folder: Path,
    address: str | None,
    gpus: int,
) -> Phase:
    """`kernlore optimize` over these problems, ended when its time is over."""
    data = folder / "data"
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    environment["CUDA_VISIBLE_DEVICES"] = "0"
    shared = ["--hardware", options.hardware, "--candidates", str(options.candidates)]
    shared += ["--knowledge", "off", "--synthesizers", options.synthesizers]
    shared += ["--data-dir", str(data), "--json"]
    groups: list[list[Path]] = [list(problems)] if address else [[path] for path in problems]
    shared += ["--ray", address] if address else []
    began = time.monotonic()
    for number, group in enumerate(groups):
        left = options.seconds - (time.monotonic() - began)
        command = [sys.executable, "-c", MODULE, "optimize", *map(str, group), *shared]
        command += ["-o", str(folder / f"out{number}")]
        with (folder / f"search{number}.txt").open("wb") as output:
            child = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, cwd=folder, env=environment
            )
        try:
            child.wait(max(1.0, left))
        except subprocess.TimeoutExpired:
            say(f"ended after {options.seconds:.0f} s")
            child.terminate()
            child.wait()
        say((folder / f"search{number}.txt").read_text(errors="replace")[-options.tail :])
    seconds = time.monotonic() - began
    for log in sorted((data / "runs").glob("*/log")):
        say(f"{log.parent.name}: {log.read_text(errors='replace')[-options.tail :]}")
    return _counted(data, gpus, address is not None, seconds, len(problems))


def _counted(data: Path, gpus: int, ray: bool, seconds: float, searches: int) -> Phase:
    base = KnowledgeBase(Settings(data_dir=data))
    store = run_store(base)
    finished = judged = work = lost = 0
    for run in store.latest(1000):
        finished += run.state == "finished"
        nodes = store.nodes(run.id)
        judged += sum(node.evaluation is not None for node in nodes if node.number)
        rows: Mapping[str, Mapping[str, int]] = run.cluster.get("nodes", {})
        work += sum(row["evaluated"] for row in rows.values())
        lost += int(run.cluster.get("lost", 0))
    base.close()
    return Phase(gpus, ray, seconds, searches, finished, judged, work, lost)


def _shown(phases: Sequence[Phase]) -> str:
    header = ["", *(f"{p.gpus} GPU, {'Ray' if p.ray else 'no cluster'}" for p in phases)]
    rows = [
        ["seconds", *(f"{p.seconds:.0f}" for p in phases)],
        ["searches that ended", *(f"{p.ended} of {p.searches}" for p in phases)],
        ["candidates judged", *(str(p.judged) for p in phases)],
        ["evaluations on nodes, of any kind", *(str(p.work) if p.ray else "-" for p in phases)],
        ["evaluations lost", *(str(p.lost) if p.ray else "-" for p in phases)],
        ["searches a minute", *(f"{60 * p.ended / p.seconds:.2f}" for p in phases)],
        ["candidates a minute", *(f"{60 * p.judged / p.seconds:.1f}" for p in phases)],
        [
            "evaluations a minute",
            *(f"{60 * p.work / p.seconds:.1f}" if p.ray else "-" for p in phases),
        ],
    ]
    return table(header, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--hardware", required=True, help="id of the GPUs, as h100")
    parser.add_argument("--gpus", type=int, nargs="+", default=[4, 1])
    parser.add_argument("--alone", action="store_true", help="also one GPU without a cluster")
    parser.add_argument("--problems", nargs="+", default=list(PROBLEMS))
    parser.add_argument("--candidates", type=int, default=4)
    parser.add_argument("--synthesizers", default="traced")
    parser.add_argument("--seconds", type=float, default=180.0, help="most of one command")
    parser.add_argument("--tail", type=int, default=2000, help="characters of its output shown")
    parser.add_argument("--output", type=Path, help="Markdown file for the result")
    options = parser.parse_args()
    phases = []
    for gpus, ray in [*((count, True) for count in options.gpus), *([(1, False)] * options.alone)]:
        # Sockets of a node lie below it; their paths may not be long.
        folder = Path(tempfile.mkdtemp(prefix="kg", dir="/tmp"))
        problems = copies(options.problems, gpus, folder / "problems")
        if ray:
            with cluster_of(gpus, options.hardware, folder) as address:
                phases.append(search(problems, options, folder, address, gpus))
        else:
            phases.append(search(problems, options, folder, None, gpus))
        say(json.dumps(phases[-1].__dict__))
        shutil.rmtree(folder, ignore_errors=True)
    command = " ".join(["python -m benchmarks.cluster.several_gpus", *sys.argv[1:]])
    write_result(options.output, TITLE, [f"`{command}`, on {device_line()}.", _shown(phases)])


if __name__ == "__main__":
    ended(main)
