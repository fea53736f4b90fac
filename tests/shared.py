"""What takes long to make and is only read: made once for all workers of a test session."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from api.cli.backends import read_settings
from api.cli.backends.local import LocalTarget
from tests.known_device import store_ceilings

BUILTIN = Path(__file__).resolve().parent.parent / "hw_manuals"


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """The folder of this name, which the first worker that wants it fills. Nobody changes it."""
    base = factory.getbasetemp()
    root = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, finished = root / name, root / f"{name}.finished"
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not finished.exists():
            shutil.rmtree(folder, ignore_errors=True)  # what a worker that failed has left
            folder.mkdir()
            make(folder)
            finished.touch()
    return folder


def read_builtin_knowledge(data_dir: Path) -> None:
    """All that ships, found by words, as a first search leaves a data directory."""
    local = LocalTarget(read_settings(store_ceilings(data_dir)))
    try:
        local.load_knowledge(lambda _: None)
    finally:
        local.close()


def copy_knowledge(folder: Path, documents: tuple[str, ...]) -> Path:
    """All chips, few documents: embedding is what takes time."""
    chips = [path.relative_to(BUILTIN) for path in (BUILTIN / "hardware").glob("*/hardware.toml")]
    for name in (*chips, *map(Path, documents)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(BUILTIN / name, folder / name)
    return folder
