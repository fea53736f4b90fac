"""The files of this program that go to another machine: what runs there is what runs here."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SUFFIXES = (".py", ".toml", ".md", ".json", ".h")
LEFT_OUT = ("optimizer/problems", "kb/catalog/migrations")


def source_files(packages: Sequence[str]) -> Iterator[Path]:
    """Code and data of these packages. Modules that need what is not installed there are among
    them; nothing imports those there.
    """
    for package in packages:
        for path in sorted((ROOT / package).rglob("*")):
            name = path.relative_to(ROOT).as_posix()
            travels = path.suffix in SUFFIXES and "__pycache__" not in path.parts
            if travels and not name.startswith(LEFT_OUT):
                yield path


def copy_sources(packages: Sequence[str], folder: Path) -> None:
    """Copy these packages into a folder from which they can be imported."""
    for path in source_files(packages):
        copied = folder / path.relative_to(ROOT)
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copied)
