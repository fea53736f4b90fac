"""The check of a hardware for a service: carried out by `kernlore hardware check` in a process of
its own, because it runs the chip's tools and loads torch.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from typing import Any

from kb.errors import Conflict, InternalError, Unavailable
from kb.settings import Settings
from kb.workers import ChildProcess

SECONDS = 180.0

_one = threading.Lock()  # a check measures on the device: one at a time


def check_apart(settings: Settings, command: Sequence[str], hardware: str) -> dict[str, Any]:
    """What `kernlore hardware check HARDWARE --json` answers; `command` starts `kernlore hardware
    check`. Raises Conflict while another check is going on, and Unavailable where it takes too
    long.
    """
    if not _one.acquire(blocking=False):
        raise Conflict("another chip is being checked", hint="Try it again in a minute.")
    try:
        child = ChildProcess([*command, "--json", "--", hardware], settings)
        try:
            printed, complaint = child.answer(SECONDS)
        except TimeoutError as error:
            raise Unavailable(
                f"the check of {hardware} took longer than {SECONDS:.0f} seconds",
                hint="See whether its tools end: run `kernlore hardware check` in a terminal.",
            ) from error
        finally:
            child.end()
    finally:
        _one.release()
    lines = printed.strip().splitlines()
    try:
        answer: dict[str, Any] = json.loads(lines[-1])
        answer["languages"], answer["parts"]
    except (IndexError, ValueError, KeyError, TypeError) as error:
        raise InternalError(
            f"the check of {hardware} ended without an answer: {complaint.strip()[-500:]}",
            hint="Run `kernlore hardware check` in a terminal; it prints more.",
        ) from error
    return answer
