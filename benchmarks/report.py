"""Results as Markdown tables with a line about the machine; progress on stderr."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from kb.errors import KernloreError
from optimizer.evaluation.isolation.machine import processor


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [list(header), ["---"] * len(header), *([str(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def machine() -> str:
    """One line that describes this machine."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        text = info.read_text(encoding="utf-8")
        model = next((x for x in text.splitlines() if x.startswith("model name")), "")
        fast = " with AMX bf16" if "amx_bf16" in text else ""
        cpu = f"{model.partition(':')[2].strip() or cpu} ({processor()}){fast}"
    when = datetime.now(UTC).strftime("%Y-%m-%d")
    return (
        f"{when}, {cpu}, {os.cpu_count()} cores, {platform.system()},"
        f" Python {platform.python_version()}, load {_load()} at the end"
    )


def _load() -> str:
    return f"{os.getloadavg()[0]:.1f}"


def write_result(path: Path | None, title: str, parts: Sequence[str]) -> None:
    """Print a result, and write it as Markdown if a path is given."""
    body = "\n\n".join([*parts, f"Measured {machine()}."])
    print(body)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {title}\n\n{body}\n", encoding="utf-8")


def say(text: str) -> None:
    """Progress: standard output belongs to the result."""
    print(text, file=sys.stderr, flush=True)


def ended(run: Callable[[], None]) -> None:
    """Run a command; a KernloreError becomes its message, its hint and exit code 1."""
    try:
        run()
    except KernloreError as error:
        sys.exit(f"{error.message}\n{error.hint}")
