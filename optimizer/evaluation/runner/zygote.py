"""`python -I THIS_FILE SOCKET NAMESPACES THREADS DEVICE KEPT`: an interpreter that has imported
torch and never uses it. Every request is a new runner, forked in milliseconds. On a CPU torch's
compiler is imported with the first request that asks for it; what g++ made for it stays in the
folder KEPT."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import sys
from pathlib import Path
from typing import Any


def main(arguments: list[str]) -> None:
    """Import what runners need, then serve forks until the supervisor closes the socket."""
    sock, namespaces, threads, device, kept = arguments
    root = str(Path(__file__).resolve().parents[3])
    sys.path.insert(0, root)
    gc.disable()  # what is imported stays: collecting it again and again takes half a second
    import torch  # noqa: F401  (imported for the children)

    from optimizer.evaluation.runner.forks import Separate, serve, work_out
    from optimizer.evaluation.runner.inductor import import_often_needed, prepare_compiler
    from optimizer.evaluation.runner.serve import Runner  # noqa: F401

    if device == "cuda":
        # Asking the driver which devices there are would make it unusable in forks.
        os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
        import_often_needed()
        with contextlib.suppress(ImportError):
            work_out()
    gc.enable()
    sys.path.remove(root)
    sys.argv = ["runner"]

    def become(message: dict[str, Any], fds: list[int]) -> None:
        _become_runner(message, fds, int(threads), device)

    def prepare(message: dict[str, Any]) -> None:
        if message["compiler"]:
            prepare_compiler(kept)

    # CUDA looks itself up in /proc by its process number.
    separate = Separate(namespaces == "1", own_proc=device == "cuda")
    serve(int(sock), become, separate, prepare=prepare)


def _become_runner(message: dict[str, Any], fds: list[int], threads: int, device: str) -> None:
    from optimizer.evaluation.runner.forks import settle
    from optimizer.evaluation.runner.serve import Runner, settle_torch
    from optimizer.evaluation.runner.wire import Wire, WireClosed

    talk, tokens, log = fds
    settle(message["environment"], message["scratch"], log, log)
    settle_torch(threads, device)
    runner = Runner(Wire(socket.socket(fileno=talk), message["secret"]), tokens, device)
    try:
        runner.serve()
    except WireClosed:
        pass
    finally:
        sys.stdout.flush()
        os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
