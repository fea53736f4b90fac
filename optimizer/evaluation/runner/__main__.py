"""`python -I THIS_FILE SOCKET TOKENS NONCE DEVICE THREADS`: a runner in a fresh interpreter. SOCKET
and TOKENS are descriptors that the supervisor passes on, or the path at which it waits."""

from __future__ import annotations

import gc
import os
import socket
import sys
from pathlib import Path


def main(arguments: list[str]) -> None:
    """Serve until the supervisor leaves, then end the process without exit handlers."""
    *meeting, nonce, device, threads = arguments
    sock, tokens = map(_descriptor, meeting)
    root = str(Path(__file__).resolve().parents[3])
    sys.path.insert(0, root)
    gc.disable()  # what is imported stays: collecting it again and again takes half a second
    from optimizer.evaluation.runner.serve import Runner, settle_torch
    from optimizer.evaluation.runner.wire import Wire, WireClosed

    gc.enable()
    sys.path.remove(root)  # a candidate has no business with the harness's neighbours
    sys.argv = ["runner"]
    settle_torch(int(threads), device)
    runner = Runner(Wire(socket.socket(fileno=sock), nonce), tokens, device)
    try:
        runner.serve()
    except WireClosed:
        pass
    finally:
        # No exit handlers: a candidate may have registered some.
        os._exit(0)


def _descriptor(place: str) -> int:
    if place.isdecimal():
        return int(place)
    called = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    called.connect(place)
    return called.detach()


main(sys.argv[1:])
