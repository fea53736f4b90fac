"""Provoke the messages by which ptxas says that it serialises wgmma: one small kernel for each.

    python -m benchmarks.knowledge.wgmma_messages

Prints the message of each kernel, and of the kernel that avoids it. Needs nvcc 12 or later.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.report import say, table

HEAD = r"""
#include <cstdint>
#define FENCE asm volatile("wgmma.fence.sync.aligned;" ::: "memory")
#define COMMIT asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory")
#define WAIT(n) asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(n) : "memory")
#define SUMS(d) "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
#define MMA "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3},"
typedef float Sums[4];
__device__ __forceinline__ void mma(Sums& d, uint64_t a, uint64_t b) {
  asm volatile(MMA "%4,%5,1,1,1,0,0;" : SUMS(d) : "l"(a), "l"(b));
}
__device__ __forceinline__ void mma(Sums& d, uint32_t (&a)[4], uint64_t b) {
  asm volatile(MMA "{%4,%5,%6,%7},%8,1,1,1,0;"
               : SUMS(d) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
#define EACH for (int j = 0; j < 4; j++)
__global__ void k(float* o, uint64_t a, uint64_t b, int n);
"""
HELPER = "__device__ void add(Sums& d, uint64_t a, uint64_t b) { FENCE; mma(d, a, b); COMMIT; }\n"
OUT = " EACH { o[threadIdx.x * 8 + j] = d[j]; o[threadIdx.x * 8 + 4 + j] = e[j] + s; } }"
LOOP = (
    "__global__ void k(float* o, uint64_t a, uint64_t b, int n) {"
    " Sums d = {}, e = {}; float s = 0; uint32_t x[4] = {1, 2, 3, 4}; "
)

# name, declarations, body, declarations and body without the message
KERNELS = (
    ("call of a function with the product", "__noinline__ " + HELPER, "add(d, a + i, b); WAIT(0);",
     "__forceinline__ " + HELPER, "add(d, a + i, b); WAIT(0);"),
    ("call of a function elsewhere", "extern __device__ float g(float);",
     "FENCE; mma(d, a + i, b); COMMIT; s = g(s); WAIT(0);",
     "__device__ float g(float x) { return x * x + 1; }",
     "FENCE; mma(d, a + i, b); COMMIT; s = g(s); WAIT(0);"),
    ("sums read before the wait", "", "FENCE; mma(d, a + i, b); COMMIT; s += d[0]; WAIT(0);",
     "", "FENCE; mma(d, a + i, b); COMMIT; WAIT(0); s += d[0];"),
    ("two sets of sums over the loop", "",
     "FENCE; EACH e[j] = 0; mma(e, a + i, b); COMMIT; WAIT(1); EACH { s += d[j] * i; d[j] = 0; }"
     " FENCE; mma(d, a, b + i); COMMIT; WAIT(1); EACH s += e[j] * i;",
     "", "EACH d[j] = e[j] = 0; FENCE; mma(d, a + i, b); COMMIT; mma(e, a, b + i); COMMIT; WAIT(1);"
     " EACH s += d[j] * i; WAIT(0); EACH s += e[j] * i;"),
    ("an operand in registers loaded between", "",
     "FENCE; mma(d, x, b + i); x[0] = ((uint32_t*)o)[i]; mma(d, x, b + i + 2); COMMIT; WAIT(0);",
     "", "uint32_t y[4] = {((uint32_t*)o)[i], 2, 3, 4}; FENCE; mma(d, x, b); mma(d, y, b + 2);"
     " COMMIT; WAIT(0); x[0] = y[0];"),
    ("one of the sums scaled in the loop", "",
     "FENCE; mma(d, a + i, b); COMMIT; WAIT(0); d[0] *= 2;",
     "", "FENCE; mma(d, a + i, b); COMMIT; WAIT(0); EACH d[j] *= 2;"),
    ("a wait in a branch of some threads", "",
     "FENCE; mma(d, a + i, b); COMMIT; if (o[i + threadIdx.x] > 0) WAIT(0); o[i] = d[0];",
     "", "FENCE; mma(d, a + i, b); COMMIT; WAIT(0); if (o[i + threadIdx.x] > 0) o[i] = d[0];"),
    ("a commit in a branch of some threads", "",
     "FENCE; mma(d, a + i, b); if (o[i + threadIdx.x] > 0) COMMIT; WAIT(0);",
     "", "FENCE; mma(d, a + i, b); COMMIT; WAIT(0);"),
)  # fmt: skip


def message(folder: Path, declarations: str, body: str) -> str:
    """The code and reason of the warning about a kernel, or "none"."""
    source = folder / "kernel.cu"
    kernel = LOOP + "for (int i = 0; i < n; i++) { " + body + " } WAIT(0);" + OUT
    source.write_text(f"{HEAD}{declarations}\n{kernel}\n", encoding="utf-8")
    flags = ["-gencode", "arch=compute_90a,code=sm_90a", "-c"]
    flags += ["-rdc=true"] if "extern" in declarations else []
    command = ["nvcc", *flags, str(source), "-o", str(folder / "kernel.o")]
    compiled = subprocess.run(command, capture_output=True, text=True, check=True)
    found = re.search(r"\((C\d+)\).*?due to (.*?) in the function", compiled.stderr)
    return f"{found[1]}: {' '.join(found[2].split())}" if found else "none"


def main() -> int:
    version = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=True)
    say(version.stdout.strip().splitlines()[-2])
    with tempfile.TemporaryDirectory() as folder:
        rows = [
            (name, message(Path(folder), *bad), message(Path(folder), *good))
            for name, *texts in KERNELS
            for bad, good in [(texts[:2], texts[2:])]
        ]
    say(table(("kernel", "message", "after the change"), rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
