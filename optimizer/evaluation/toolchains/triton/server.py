"""`python -I THIS_FILE SOCKET NAMESPACES`: an interpreter with torch and triton imported; each
request is answered by a fork of it that compiles one candidate (see `child`).

Ends after IDLE_SECONDS without a request, because it holds some hundred megabytes.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = str(Path(__file__).resolve().parents[4])
IDLE_SECONDS = 600.0
CACHE = "TRITON_CACHE_DIR"
# Modules that a compilation imports lazily.
LAZY_MODULES = (
    "torch._dynamo",  # meta tensors need it
    "torch._meta_registrations",
    "torch._refs",
    "torch._decomp",
    "torch.utils._device",
    "triton",
    "triton.language",
    "triton.compiler.compiler",
    "triton.compiler.code_generator",
    "triton.runtime.autotuner",
    "triton.backends.nvidia.compiler",
    "triton.backends.amd.compiler",
    "triton.tools.disasm",
    "optimizer.evaluation.runner.confine",
)


def main(arguments: list[str]) -> None:
    """Import the modules of compilations, then serve forks."""
    sock, namespaces = arguments
    sys.path.insert(0, ROOT)
    gc.disable()  # imports create no garbage, and collecting takes an eighth of the time
    import torch  # noqa: F401  (imported for the forks)

    from optimizer.evaluation.runner.forks import ForkOptions, hash_triton, serve
    from optimizer.evaluation.toolchains.triton import child

    for name in LAZY_MODULES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()
    gc.enable()
    hash_triton()
    sys.path.remove(ROOT)
    # Triton's part of the host code of launches, which a C compiler builds: once for all
    # candidates.
    built = Path(tempfile.gettempdir()) / "host"
    os.environ[CACHE] = str(built)
    child.host_launcher()

    def become(message: dict[str, Any], fds: list[int]) -> None:
        run_child(message, fds, built)

    serve(int(sock), become, ForkOptions(namespaces == "1"), IDLE_SECONDS)


def run_child(message: dict[str, Any], fds: list[int], built: Path) -> None:
    """Compile one candidate in this fork. Its cache starts as a copy of the folder `built`."""
    from optimizer.evaluation.runner.forks import settle
    from optimizer.evaluation.toolchains.limited import set_limits
    from optimizer.evaluation.toolchains.triton import child

    out, err = fds
    settle(message["environment"], message["cwd"], out, err)
    if built.is_dir():
        shutil.copytree(built, os.environ[CACHE], dirs_exist_ok=True)
    set_limits(message["resources"])
    child.main(message["arguments"])


if __name__ == "__main__":
    main(sys.argv[1:])
