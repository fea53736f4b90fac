"""Work of the service in processes of its own: what they are told, and how they end."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from kb.settings import Settings

ROOT = Path(__file__).resolve().parent.parent  # where `python -m api...` is found
POLL_SECONDS = 0.05


def environment(settings: Settings) -> dict[str, str]:
    """These settings, wherever they came from."""
    told = settings.model_dump(exclude_none=True)
    own = {f"KERNLORE_{name.upper()}": str(value) for name, value in told.items()}
    own["KERNLORE_DATA_DIR"] = str(settings.data_dir.absolute())
    return {**os.environ, **own}


def end_group(child: subprocess.Popen[Any], grace_seconds: float = 0.0) -> None:
    """End the child and its process group; it must have been started in a session of its own.

    grace_seconds: how long it may take to leave by itself after SIGTERM. A candidate's own
    processes end when they lose it.
    """
    if child.poll() is not None:
        return
    with suppress(ProcessLookupError):
        if grace_seconds:
            os.killpg(child.pid, signal.SIGTERM)
            deadline = time.monotonic() + grace_seconds
            while child.poll() is None and time.monotonic() < deadline:
                time.sleep(POLL_SECONDS)
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
