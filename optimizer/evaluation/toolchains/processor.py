"""Which processor this is, as exactly as it says itself.

A name such as "AMD EPYC" and the name that a compiler gives to `-march=native` are shared by
generations of which one does 512 bits at a time and another twice 256: what one runs fastest, the
other does not.
"""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
# Keys of /proc/cpuinfo: CPUID leaf 1 on x86, MIDR_EL1 on Arm.
KEYS = ("vendor_id", "cpu family", "model", "CPU implementer", "CPU part", "CPU variant")


def signature(cpuinfo: str) -> str:
    """Of the first processor; empty where nothing of it is told."""
    first: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        first.setdefault(key.strip(), value.strip())
    return " ".join(first[key] for key in KEYS if first.get(key))


@cache
def processor() -> str:
    """Such as "AuthenticAMD 25 17" (family, model) or "0x41 0xd4f 0x0"; else the architecture."""
    text = CPUINFO.read_text(encoding="utf-8", errors="replace") if CPUINFO.is_file() else ""
    return signature(text) or platform.machine()
