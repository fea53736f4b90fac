"""Starts runners: `python -I THIS_FILE run SOCKET TOKENS NONCE DEVICE THREADS` is one runner in a
fresh interpreter; SOCKET and TOKENS are inherited descriptors, or the path of the supervisor's
socket. `python -I THIS_FILE serve SOCKET NAMESPACES THREADS DEVICE CACHE` imports torch, never uses
it, and forks a runner for every request in milliseconds. On a CPU torch's compiler is imported with
the first request that needs it; the files that g++ built for it stay in the folder CACHE.
"""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import sys
from pathlib import Path
from typing import Any

ROOT = str(Path(__file__).resolve().parents[3])


def run(meeting: list[str], nonce: str, device: str, threads: str) -> None:
    sock, tokens = map(_descriptor, meeting)
    from optimizer.evaluation.runner.serve import settle_torch

    _leave_harness()
    settle_torch(int(threads), device)
    _serve(sock, nonce, tokens, device)


def _descriptor(place: str) -> int:
    if place.isdecimal():
        return int(place)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(place)
    return connection.detach()


def serve_forks(sock: str, namespaces: str, threads: str, device: str, cache: str) -> None:
    """Import what runners need, then serve forks until the supervisor closes the socket."""
    import torch  # noqa: F401  (imported for the forks)

    from optimizer.evaluation.runner.forks import ForkOptions, hash_triton, serve, settle
    from optimizer.evaluation.runner.inductor import import_often_needed, prepare_compiler
    from optimizer.evaluation.runner.serve import settle_torch

    if device == "cuda":
        # Asking the driver for its devices would make it unusable in forks.
        os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
        import_often_needed()
        with contextlib.suppress(ImportError):
            hash_triton()
    _leave_harness()

    def become(message: dict[str, Any], fds: list[int]) -> None:
        talk, tokens, log = fds
        settle(message["environment"], message["scratch"], log, log)
        settle_torch(int(threads), device)
        _serve(talk, message["secret"], tokens, device)

    def prepare(message: dict[str, Any]) -> None:
        if message["compiler"]:
            prepare_compiler(cache)

    # CUDA finds its process in /proc by its number.
    options = ForkOptions(namespaces == "1", own_proc=device == "cuda")
    serve(int(sock), become, options, prepare=prepare)


def _leave_harness() -> None:
    """Take the harness off the import path, where a candidate would find it."""
    gc.enable()
    sys.path.remove(ROOT)
    sys.argv = ["runner"]


def _serve(sock: int, nonce: str, tokens: int, device: str) -> None:
    """Serve until the supervisor leaves, then end without exit handlers, which a candidate may have
    registered."""
    from optimizer.evaluation.runner.serve import Runner
    from optimizer.evaluation.runner.wire import Wire, WireClosed

    runner = Runner(Wire(socket.socket(fileno=sock), nonce), tokens, device)
    try:
        runner.serve()
    except WireClosed:
        pass
    finally:
        try:
            sys.stdout.flush()
        finally:
            os._exit(0)


def main(arguments: list[str]) -> None:
    """Run the mode that the first argument names."""
    sys.path.insert(0, ROOT)
    gc.disable()  # imported objects stay; collecting them again and again takes half a second
    mode, *rest = arguments
    if mode == "serve":
        serve_forks(*rest)
    else:
        run(rest[:2], *rest[2:])


if __name__ == "__main__":
    main(sys.argv[1:])
