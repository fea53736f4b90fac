"""What Triton works out once in a process and keeps: done before forks, it is done for all of them.

Does not touch a device.
"""

from __future__ import annotations

from importlib import import_module


def work_out() -> None:
    """The hash over Triton's own files, half a gigabyte that every first compilation asks for.
    Nothing where another Triton keeps it elsewhere: forks then work it out themselves."""
    key = getattr(import_module("triton.runtime.cache"), "triton_key", None)
    if key is not None:
        key()
