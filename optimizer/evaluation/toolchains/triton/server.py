"""`python -I THIS_FILE SOCKET NAMESPACES`: an interpreter that has torch and triton imported. Every
request is a fork that compiles one candidate, as `child` describes.

It ends by itself when there was no request for IDLE_SECONDS: it holds some hundred megabytes.
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
# What a compilation imports when it comes to it.
LATER = (
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
    """Import what compilations need, then serve forks."""
    sock, namespaces = arguments
    sys.path.insert(0, ROOT)
    gc.disable()  # nothing of it is garbage; looking for some takes an eighth of the time
    import torch  # noqa: F401  (imported for the forks)

    from optimizer.evaluation.runner.forks import Separate, serve, work_out
    from optimizer.evaluation.toolchains.triton import child

    for name in LATER:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()
    gc.enable()
    work_out()
    sys.path.remove(ROOT)
    # Triton's own part of the host's side, built by a C compiler, once for all candidates.
    built = Path(tempfile.gettempdir()) / "host"
    os.environ[CACHE] = str(built)
    child.host_launcher()

    def become(message: dict[str, Any], fds: list[int]) -> None:
        run_child(message, fds, built)

    serve(int(sock), become, Separate(namespaces == "1"), IDLE_SECONDS)


def run_child(message: dict[str, Any], fds: list[int], built: Path) -> None:
    """Compile one candidate in this fork. Every candidate's cache begins with the folder `built`,
    if it exists."""
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
