"""Record the answers to 400 requests of every kind, and compare two such records.

    python -m benchmarks.retrieval.same_answers capture --data-dir DIR [--gold GOLD] --output FILE
    python -m benchmarks.retrieval.same_answers compare BEFORE AFTER

`capture` sends the requests to POST /retrieve of an application in this process, over a store that
is loaded already, and writes one JSON line for each: kind, body, status, answer without its
`retrieval_id`. The requests depend only on the chips and signals of the store and on the gold rows.
Only three imports belong to the product, so that the file also runs in older checkouts.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import random
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog
from fastapi.testclient import TestClient

from api.app import create_app
from api.services import open_services
from kb.settings import Settings

Body = dict[str, Any]

# Requests of each kind; the last ones repeat earlier requests, which caches may answer.
COUNTS = {"signal": 100, "gold": 110, "log": 60, "metrics": 40, "draft": 30, "task": 40}
REPEATED = 20
DEPTHS = (5, 10, 20, 40)
BUDGETS = (1500, 3000, 6000, 12000)
TASKS = ("write", "repair", "speed_up", "ask")
OPERATORS = ("matmul", "softmax", "rmsnorm", "attention", "elementwise", "reduction", "conv2d")
BUILTIN_GOLD = Path(__file__).with_name("builtin_questions.jsonl")

LOGS = (
    "ptxas error : Entry function 'k' uses too much shared data (0x10400 bytes, 0xc000 max)",
    'kernel.cu(14): error: identifier "__builtin_mma" is undefined\n1 error detected',
    "triton.compiler.errors.CompilationError: at 12:8: a = tl.dot(x, y)\nAssertionError: K >= 16",
    "RuntimeError: CUDA error: an illegal memory access was encountered",
    "CUDA error: misaligned address at kernel.cu:41",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    "RuntimeError: Triton Error [CUDA]: device kernel image is invalid",
    "LLVM ERROR: Cannot select: intrinsic %llvm.nvvm.tcgen05.wait.st",
    "hipErrorNoBinaryForGpu: Unable to find code object for all current devices!",
    "g++: internal compiler error: Killed (program cc1plus)\nmake: *** [kernel.o] Error 1",
    "undefined symbol: _Z6kernelPfS_i",
    "Error: expected NCC_EVRF031 partition dimension at most 128, got 256",
    "AssertionError: Tensor-likes are not close! Mismatched elements: 512 / 4096 (12.5%)",
    "nan in output at index 17; expected 0.25",
    "subprocess timed out after 60.0 seconds",
)
METRICS: tuple[Body, ...] = (
    {
        "dram__throughput.avg.pct_of_peak_sustained_elapsed": 93.1,
        "sm__throughput.avg.pct_of_peak_sustained_elapsed": 22.4,
    },
    {"DRAM Throughput": 11.0, "Compute (SM) Throughput": 8.5, "Achieved Occupancy": 12.0},
    {
        "sm__warps_active.avg.pct_of_peak_sustained_active": 18.0,
        "launch__waves_per_multiprocessor": 0.4,
    },
    {"l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum": 4194304, "Memory Throughput": 71.0},
    {"VALUBusy": 91.0, "VALUUtilization": 34.0, "L2CacheHit": 12.0},
    {"hbm_util": 0.92, "MfmaUtil": 4.0},
    {"LLC-load-misses": 8000000, "instructions": 90000000, "cycles": 140000000},
    {"device_ratio": 0.38, "a_counter_that_is_unknown": 7},
)
DRAFTS = {
    "triton": (
        "import triton\nimport triton.language as tl\n\n@triton.jit\n"
        "def add(x, y, o, n, B: tl.constexpr):\n"
        "    i = tl.program_id(0) * B + tl.arange(0, B)\n    m = i < n\n"
        "    tl.store(o + i, tl.load(x + i, mask=m) + tl.load(y + i, mask=m), mask=m)\n"
    ),
    "cuda": (
        "#include <cuda_fp16.h>\n__global__ void k(const float* x, float* o, int n) {\n"
        "  __shared__ float s[256];\n  int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
        "  s[threadIdx.x] = i < n ? __ldg(x + i) : 0.f;\n  __syncthreads();\n"
        "  if (i < n) o[i] = __expf(s[threadIdx.x]);\n}\n"
    ),
    "hip": (
        "#include <hip/hip_runtime.h>\n__global__ void k(float* o) {\n"
        "  float v = __shfl_down(o[threadIdx.x], 32);\n  __builtin_amdgcn_s_barrier();\n"
        "  o[threadIdx.x] = v;\n}\n"
    ),
    "cpp": (
        "#include <immintrin.h>\nvoid k(const float* x, float* o, long n) {\n"
        "  for (long i = 0; i < n; i += 16)\n"
        "    _mm512_storeu_ps(o + i, _mm512_rsqrt14_ps(_mm512_loadu_ps(x + i)));\n}\n"
    ),
    "nki": (
        "import nki.language as nl\n\ndef k(x):\n    o = nl.ndarray(x.shape, dtype=x.dtype)\n"
        "    t = nl.load(x)\n    nl.store(o, nl.exp(t))\n    return o\n"
    ),
    "pallas": (
        "from jax.experimental import pallas as pl\n"
        "from jax.experimental.pallas import tpu as pltpu\n\n"
        "def k(x_ref, o_ref):\n    o_ref[...] = pltpu.roll(x_ref[...], 1, 0)\n"
    ),
}


def requests_for(
    chips: Sequence[Mapping[str, Any]], signals: Sequence[str], gold: Path
) -> list[tuple[str, Body]]:
    """(kind, body of POST /retrieve); the same for the same chips, signals and gold rows."""
    rng = random.Random(0)
    known = {chip["id"] for chip in chips}
    rows = [json.loads(line) for line in gold.read_text(encoding="utf-8").splitlines() if line]
    rows = [row for row in rows if row.get("hardware") in {None, *known}]
    kinds = {
        "signal": _signals(chips, signals, rng),
        "gold": _gold(rows, rng),
        "log": _logs(chips, rng),
        "metrics": _metrics(chips, rng),
        "draft": _drafts(chips, rng),
        "task": _tasks(chips, signals, rng),
    }
    made = [
        (kind, body)
        for kind, count in COUNTS.items()
        for body in itertools.islice(_distinct(kinds[kind]), count)
    ]
    return made + [("repeated", body) for _, body in rng.sample(made, min(REPEATED, len(made)))]


def _distinct(bodies: Iterator[Body]) -> Iterator[Body]:
    seen = set()
    for body in itertools.islice(bodies, 4000):
        key = json.dumps(body, sort_keys=True)
        if key not in seen:
            seen.add(key)
            yield body


def _signals(
    chips: Sequence[Mapping[str, Any]], signals: Sequence[str], rng: random.Random
) -> Iterator[Body]:
    """Bare signals on chips, some without a chip, with an operator or with a second signal."""
    while True:
        body: Body = {"signal": rng.choice(signals), "hardware": rng.choice(chips)["id"]}
        draw = rng.random()
        if draw < 0.1:
            del body["hardware"]
        elif draw < 0.25:
            body["op"] = rng.choice(OPERATORS)
        elif draw < 0.35:
            body["signals"] = [rng.choice(signals)]
        elif draw < 0.5:
            body |= {"k": rng.choice(DEPTHS), "max_tokens": rng.choice(BUDGETS)}
        yield body


def _gold(rows: Sequence[Mapping[str, Any]], rng: random.Random) -> Iterator[Body]:
    """Every row as it is, then rows with a word left out, of other depths and categories."""
    for row in rng.sample(rows, len(rows)):
        yield _body_of(row)
    while rows:
        body = _body_of(rng.choice(rows)) | {"k": rng.choice(DEPTHS)}
        for name in ("query", "log"):
            words = str(body.get(name, "")).split(" ")
            if len(words) > 3:
                del words[rng.randrange(len(words))]
                body[name] = " ".join(words)
        if rng.random() < 0.3:
            body["categories"] = ["hardware"]
        if rng.random() < 0.1:
            body.pop("hardware", None)
        yield body


def _body_of(row: Mapping[str, Any]) -> Body:
    body: Body = {"hardware": row["hardware"]} if row.get("hardware") else {}
    if row["kind"] == "question":
        return body | {"query": row["query"]}
    if row["kind"] == "error":
        return body | {"log": row["query"]}
    given = json.loads(row["query"])
    body["signal"] = given["signal"]
    if "detail" in given:
        body["query"] = given["detail"]
    if isinstance(given.get("metrics"), dict):
        body["metrics"] = given["metrics"]
    return body


def _logs(chips: Sequence[Mapping[str, Any]], rng: random.Random) -> Iterator[Body]:
    """Lines of tools, alone or between lines that mean nothing."""
    while True:
        lines = rng.sample(LOGS, rng.choice((1, 1, 2)))
        if rng.random() < 0.3:
            lines = [f"[{n}/64] Building CXX object kernel_{n}.o" for n in range(40)] + lines
        body: Body = {"log": "\n".join(lines), "hardware": rng.choice(chips)["id"]}
        if rng.random() < 0.15:
            del body["hardware"]
        yield body


def _metrics(chips: Sequence[Mapping[str, Any]], rng: random.Random) -> Iterator[Body]:
    while True:
        body: Body = {"metrics": rng.choice(METRICS), "hardware": rng.choice(chips)["id"]}
        if rng.random() < 0.4:
            body["op"] = rng.choice(OPERATORS)
        if rng.random() < 0.3:
            body["problem"] = {"flops": 2.0**33, "product_rows": 4096}
        yield body


def _drafts(chips: Sequence[Mapping[str, Any]], rng: random.Random) -> Iterator[Body]:
    """A kernel in a language of the chip, that failed or is slow."""
    while True:
        chip = rng.choice(chips)
        languages = [name for name in chip["languages"] if name in DRAFTS] or ["cpp"]
        language = rng.choice(languages)
        body = {"draft": DRAFTS[language], "language": language, "hardware": chip["id"]}
        if rng.random() < 0.5:
            yield body | {"task": "repair", "log": rng.choice(LOGS)}
        else:
            yield body | {"task": "speed_up", "metrics": rng.choice(METRICS)}


def _tasks(
    chips: Sequence[Mapping[str, Any]], signals: Sequence[str], rng: random.Random
) -> Iterator[Body]:
    for task in itertools.cycle(TASKS):
        chip = rng.choice(chips)
        body: Body = {"task": task, "hardware": chip["id"], "max_tokens": rng.choice(BUDGETS)}
        if chip["languages"]:
            body["language"] = rng.choice(chip["languages"])
        if rng.random() < 0.7:
            body |= {"op": rng.choice(OPERATORS), "dtype": rng.choice(("float32", "bf16"))}
        if task == "ask":
            body["query"] = f"How large may a tile of {rng.choice(OPERATORS)} be?"
        elif task != "write":
            body["signal"] = rng.choice(signals)
        yield body


def capture(data_dir: Path, gold: Path, output: Path) -> None:
    """Write the answers of this code over a copy of a store that no service works on.

    The original stays as it is: opening it would migrate it, and older code could not read it.
    """
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    with tempfile.TemporaryDirectory(prefix="same-answers-") as folder:
        running = shutil.ignore_patterns("service.*")
        copied = shutil.copytree(data_dir, Path(folder) / "data", ignore=running)
        settings = Settings(data_dir=Path(copied))
        app = create_app(settings, open_services(settings))
        # The address that the service listens on: it refuses requests by other names.
        address = f"http://{settings.host}:{settings.port}"
        with TestClient(app, address) as client, output.open("w", encoding="utf-8") as file:
            chips = sorted(client.get("/hardware").json()["hardware"], key=lambda chip: chip["id"])
            signals = sorted(signal["id"] for signal in client.get("/signals").json()["signals"])
            for kind, body in requests_for(chips, signals, gold):
                response = client.post("/retrieve", json=body)
                answer = response.json()
                answer.pop("retrieval_id", None)
                row = {"kind": kind, "body": body, "status": response.status_code, "answer": answer}
                file.write(json.dumps(row, sort_keys=True) + "\n")


def compare(before: Path, after: Path, shown: int) -> int:
    """Print which answers differ and where; how many do."""
    one, other = (
        [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        for path in (before, after)
    )
    if [row["body"] for row in one] != [row["body"] for row in other]:
        sys.exit("The records hold different requests: use the same store and the same gold rows.")
    differing: Counter[str] = Counter()
    places: Counter[str] = Counter()
    for number, (left, right) in enumerate(zip(one, other, strict=True), 1):
        found = list(differences(left, right))
        if not found:
            continue
        differing[left["kind"]] += 1
        places.update({re.sub(r"\d+(?=\])", "", place) for place, _, _ in found})
        if differing.total() <= shown:
            print(f"line {number}, {left['kind']}: {json.dumps(left['body'])[:300]}")
            for place, was, now in found[:8]:
                print(f"  {place}\n    before: {was[:200]}\n    after:  {now[:200]}")
    kinds = Counter(row["kind"] for row in one)
    print(f"{len(one) - differing.total()} of {len(one)} answers are the same.")
    for kind, count in kinds.items():
        print(f"  {kind:9} {count - differing[kind]} of {count}")
    for place, count in places.most_common(20):
        print(f"  differs in {count}: {place}")
    return differing.total()


def differences(left: Any, right: Any, place: str = "") -> Iterator[tuple[str, str, str]]:
    """(place, before, after) of each leaf that differs; texts from where they begin to differ."""
    if isinstance(left, dict) and isinstance(right, dict):
        for name in sorted({*left, *right}):
            yield from differences(
                left.get(name, "(absent)"),
                right.get(name, "(absent)"),
                f"{place}.{name}".strip("."),
            )
    elif isinstance(left, list) and isinstance(right, list):
        if len(left) != len(right):
            yield f"{place}.length", str(len(left)), str(len(right))
        for n, (a, b) in enumerate(zip(left, right, strict=False)):
            yield from differences(a, b, f"{place}[{n}]")
    elif left != right:
        was, now = (x if isinstance(x, str) else json.dumps(x) for x in (left, right))
        pairs = enumerate(zip(was, now, strict=False))
        start = next((n for n, (a, b) in pairs if a != b), min(len(was), len(now)))
        start = max(0, start - 40)
        yield place, was[start:], now[start:]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.retrieval.same_answers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    record = commands.add_parser("capture", help="Write the answers of this code to a file.")
    record.add_argument("--data-dir", type=Path, required=True, help="A loaded store.")
    record.add_argument("--gold", type=Path, default=BUILTIN_GOLD, help="Gold rows, JSON lines.")
    record.add_argument("--output", type=Path, required=True, help="JSON lines.")
    both = commands.add_parser("compare", help="Which answers differ; exit status 1 if any does.")
    both.add_argument("before", type=Path)
    both.add_argument("after", type=Path)
    both.add_argument("--shown", type=int, default=5, help="Answers to show in full (default 5).")
    given = parser.parse_args(arguments)
    if given.command == "capture":
        capture(given.data_dir, given.gold, given.output)
    elif compare(given.before, given.after, given.shown):
        sys.exit(1)


if __name__ == "__main__":
    main()
