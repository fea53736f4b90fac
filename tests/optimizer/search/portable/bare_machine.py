"""A Python with only torch, triton and their requirements: the machine of a portable session."""

from __future__ import annotations

import importlib.metadata
import venv
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement

GIVEN = ("torch", "triton")


def bare_python(folder: Path) -> Path:
    """Its interpreter; the packages are links into this environment."""
    venv.create(folder, with_pip=False, symlinks=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    for name in required():
        for place in _places(name):
            link = packages / place.name
            if not link.exists():
                link.symlink_to(place)
    return folder / "bin" / "python"


def required() -> set[str]:
    """Distributions of this environment that torch and triton need, including both."""
    names: set[str] = set()
    waiting = list(GIVEN)
    while waiting:
        name = waiting.pop()
        if name in names:
            continue
        try:
            needs = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # triton, with a CPU build of torch
        names.add(name)
        for text in needs:
            need = Requirement(text)
            if need.marker is None or need.marker.evaluate({"extra": ""}):
                waiting.append(need.name)
    return names


def top_level(names: set[str]) -> set[str]:
    """The importable names of these distributions."""
    return {place.name.removesuffix(".py") for name in names for place in _places(name)}


def _places(name: str) -> Iterator[Path]:
    distribution = importlib.metadata.distribution(name)
    first = {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}
    for part in sorted(first):
        yield Path(str(distribution.locate_file(part))).resolve()
