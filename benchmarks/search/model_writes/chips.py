"""The chips that models write for: drawn from seeds, in two families that share no code, each with
its documents, its toolchain and good kernels that were written by hand.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from api.cli.target import CommandTarget, read_settings
from ingestion.uploads import FileUpload
from kb.errors import InvalidRequest

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
FILLED = "filled.json"  # in a data directory that has all of its documents
READABLE = (".md", ".rst", ".html", ".txt")


@dataclass(frozen=True)
class Family:
    """A family of drawn chips. `problems` are names of its problem files: an elementwise chain, a
    row reduction, a matrix product.
    """

    name: str
    folder: Path
    language_id: str
    problems: tuple[str, ...]

    def before(self, problem: str) -> str:
        """The problem that was solved on the chip before this one, where another one was."""
        return self.problems[self.problems.index(problem) - 1]


FAMILIES = {
    "block": Family("block", EXAMPLES / "new_chip", "novac", ("elementwise", "softmax", "matmul")),
    "assembly": Family(
        "assembly", EXAMPLES / "assembly_chip", "", ("elementwise", "rmsnorm", "matmul")
    ),
}


@dataclass(frozen=True)
class Chip:
    """A drawn chip in its own folder."""

    family: Family
    seed: int
    folder: Path
    id: str
    language: str

    @property
    def documents(self) -> list[Path]:
        """Its documentation, in order."""
        docs = self.folder / "docs"
        if not docs.is_dir():
            return [self.folder / "manual.md"]
        return sorted(path for path in docs.iterdir() if path.suffix in READABLE)

    @property
    def manual(self) -> str:
        """All of its documentation as text."""
        return "\n\n".join(path.read_text(encoding="utf-8") for path in self.documents)

    def problem(self, name: str) -> Path:
        """The file of a problem."""
        return self.family.folder / "problems" / f"{name}.py"

    def good_kernel(self, problem: str) -> Path:
        """The kernel that was written by hand."""
        return next((self.folder / "kernels").glob(f"{problem}_good.*"))


def draw(family: Family, seed: int, parent: Path) -> Chip:
    """Draw a chip below `parent`, or read the one that is there."""
    folder = parent / f"{family.name}-{seed}"
    if not (folder / "hardware.toml").exists():
        for program, arguments in (("chip.py", [str(seed), folder]), ("kernels.py", [folder])):
            command = [sys.executable, family.folder / program, *arguments]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    spec = tomllib.loads((folder / "hardware.toml").read_text(encoding="utf-8"))
    return Chip(family, seed, folder, spec["id"], next(iter(spec["toolchains"])))


@contextmanager
def opened(chip: Chip, data_dir: Path, others: Sequence[Path] = ()) -> Iterator[CommandTarget]:
    """A data directory that knows the chip and its documents, and `others` as further documents of
    the same chip; it is filled at the first use.
    """
    local = CommandTarget(read_settings(data_dir))
    try:
        filled = data_dir / FILLED
        if not filled.exists():
            description = (chip.folder / "hardware.toml").read_text(encoding="utf-8")
            local.services.register_hardware(tomllib.loads(description), "hardware.toml")
            words = _upload(local, chip, [*chip.documents, *others])
            filled.write_text(json.dumps({"words": words}), encoding="utf-8")
        yield local
    finally:
        local.close()


def copied(chip: Chip, template: Path, data_dir: Path, others: Sequence[Path] = ()) -> None:
    """Make `data_dir` as a copy of `template`, which is filled first where that was not done. A
    directory that is there is made anew.
    """
    if not (template / FILLED).exists():
        with opened(chip, template, others):
            pass
    shutil.rmtree(data_dir, ignore_errors=True)
    shutil.copytree(template, data_dir)


def _upload(local: CommandTarget, chip: Chip, paths: Sequence[Path]) -> int:
    """Read documents into the store; returns how many words they have."""
    services: Any = local.services
    words = 0
    for path in paths:
        data = path.read_bytes()
        words += len(data.decode("utf-8", "replace").split())
        own = path.is_relative_to(chip.folder)
        upload = FileUpload(
            path.name,
            data,
            category="hardware",
            hardware=(chip.id,),
            languages=(chip.language,) if own else (),
            source_key=str(path.relative_to(chip.folder)) if own else f"other/{path}",
        )
        services.uploads.submit(upload)
    with services.local_reader() as reader:
        services.worker(reader).read_all(threading.Event())
    return words


def other_documents(folder: Path, words: int) -> list[Path]:
    """Documents below a folder, in a fixed order, that have about this many words together. Raises
    InvalidRequest if there are too few.
    """
    chosen: list[Path] = []
    total = 0
    for path in sorted(p for p in folder.rglob("*") if p.suffix in READABLE and p.is_file()):
        if total >= words:
            break
        total += len(path.read_text(encoding="utf-8", errors="replace").split())
        chosen.append(path)
    if total < words:
        raise InvalidRequest(
            f"the documents below {folder} have {total} words, not {words}",
            hint="Give a folder with more documents, or a smaller --among.",
        )
    return chosen
