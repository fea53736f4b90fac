"""The environment that measurements run in, wherever they run."""

from __future__ import annotations

# glibc hands freed arrays back to the system when they lie at the end of its heap or were mapped by
# themselves; whether they do is chance. A process in which they do pays for every page again in
# every call: the same code was seen to take 3.5 times as long. So nothing is handed back.
# https://man7.org/linux/man-pages/man3/mallopt.3.html
STEADY_MEMORY = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_TOP_PAD_": str(1 << 26),
}


def threads_and_memory(threads: int) -> dict[str, str]:
    """threads: of OpenMP and of MKL."""
    return {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), **STEADY_MEMORY}
