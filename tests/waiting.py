"""Waiting for other threads and processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def until(
    ask: Callable[[], Any],
    done: Callable[[Any], bool] = bool,
    *,
    seconds: float = 400.0,
    pause: float = 0.1,
) -> Any:
    """The first answer that is `done`; fails with the last one after `seconds`."""
    deadline = time.monotonic() + seconds
    while not done(answer := ask()):
        assert time.monotonic() < deadline, f"still {answer}"
        time.sleep(pause)
    return answer
