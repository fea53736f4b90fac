"""The chips that models write for, each with its documents, its toolchain, and kernels to compare
with: chips that are drawn from seeds, in two families that share no code, and the built-in chips
that an emulator runs, whose compiled plain C is the measure.
"""

from __future__ import annotations

import json
import random
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
from api.services import Services
from ingestion.builtin import builtin_hardware
from ingestion.uploads import FileUpload
from kb.errors import InvalidRequest
from kb.hardware.lineage import lineage
from optimizer.evaluation.targets import command_toolchains
from optimizer.search.runs.acceptance import PROBLEMS, input_dtype, problem_source

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES, BUILTIN = ROOT / "examples", ROOT / "hw_manuals"
FILLED = "filled.json"  # in a data directory that has all of its documents
READABLE = (".md", ".rst", ".html", ".txt")
EMULATED = "emulated"  # family
PLAIN = Path(__file__).with_name("plain.c")
UNREAD = (".pdf",)  # formats that have no text without a reader


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
        """The problem that was solved on the chip before this one in the arm `second`."""
        return self.problems[self.problems.index(problem) - 1]


FAMILIES = {
    "block": Family("block", EXAMPLES / "new_chip", "novac", ("elementwise", "softmax", "matmul")),
    "assembly": Family(
        "assembly", EXAMPLES / "assembly_chip", "", ("elementwise", "rmsnorm", "matmul")
    ),
    EMULATED: Family(EMULATED, EXAMPLES / "emulated_chips", "", tuple(PROBLEMS)),
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

    def register(self, services: Services) -> None:
        """Make the chip known to a data directory."""
        description = (self.folder / "hardware.toml").read_text(encoding="utf-8")
        services.register_hardware(tomllib.loads(description), "hardware.toml")


@dataclass(frozen=True)
class EmulatedChip(Chip):
    """A built-in chip; the seed draws the sizes of its problems. `folder` has its documents, as
    their authors publish them, and may be empty; problems are written below `work`.
    """

    work: Path
    dtype: str
    modelled: bool

    @property
    def documents(self) -> list[Path]:
        """All files of the folder."""
        return sorted(path for path in self.folder.rglob("*") if path.is_file())

    @property
    def manual(self) -> str:
        """The documents that are text."""
        texts = (path for path in self.documents if path.suffix not in UNREAD)
        return "\n\n".join(path.read_text(encoding="utf-8") for path in texts)

    def problem(self, name: str) -> Path:
        """A file with the problem in sizes of the seed. Columns are whole vectors; they are few
        where a simulator models cycles, which is a thousand times slower than emulation."""
        dice = random.Random(f"{self.seed} {name}")
        columns = 16 if self.modelled else 64
        sizes = {"M": dice.randint(9, 24)}
        sizes |= {axis: columns * dice.randint(1, 2) for axis in "NK"}
        source = problem_source(name, self.dtype, sizes)
        return self._written(f"{_word(name)}.py", source)

    def good_kernel(self, problem: str) -> Path:
        """Plain C, which the chip's own compiler optimises."""
        head = ['#include "chip.h"', f"#define {_word(problem).upper()}"]
        if not self.dtype.startswith("float"):
            head += ["#define WHOLE", f"typedef {self.dtype}_t element;"]
        text = "\n".join([*head, PLAIN.read_text(encoding="utf-8")])
        return self._written(f"{_word(problem)}.c", text)

    def register(self, services: Services) -> None:
        """Load the built-in knowledge."""
        services.load_builtin()

    def _written(self, name: str, text: str) -> Path:
        path = self.work / f"{self.id}-{self.seed}" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path


def _word(problem: str) -> str:
    return problem.replace(" ", "_")


def emulated(identity: str, seed: int, documents: Path, work: Path) -> EmulatedChip:
    """The built-in chip of an id. Raises InvalidRequest for one without an emulator."""
    specs = {spec.id: spec for spec in builtin_hardware(BUILTIN)}
    chains = command_toolchains(specs, lineage(identity, specs)) if identity in specs else {}
    if not chains:
        emulators = ", ".join(id for id, spec in specs.items() if spec.toolchains)
        raise InvalidRequest(
            f"no built-in toolchain for {identity!r}", hint=f"There are {emulators}."
        )
    language, chain = next(iter(chains.items()))
    folder = documents / identity
    family = FAMILIES[EMULATED]
    dtype, modelled = input_dtype(chain), chain.cost == "cycles"
    return EmulatedChip(family, seed, folder, identity, language, work, dtype, modelled)


def draw(family: Family, seed: int, parent: Path) -> Chip:
    """Draw a chip below `parent`, or read the one that is there."""
    folder = parent / f"{family.name}-{seed}"
    if not (folder / "hardware.toml").exists():
        for program, arguments in (("chip.py", [str(seed), folder]), ("kernels.py", [folder])):
            command = [sys.executable, family.folder / program, *arguments]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    spec = tomllib.loads((folder / "hardware.toml").read_text(encoding="utf-8"))
    return Chip(family, seed, folder, spec["id"], next(iter(spec["toolchains"])))


def filled(chip: Chip, data_dir: Path, others: Sequence[Path] = ()) -> None:
    """Fill a data directory that is not yet: it knows the chip, its documents, and `others` as
    further documents of the same chip.
    """
    mark = data_dir / FILLED
    if not mark.exists():
        with opened(data_dir) as local:
            chip.register(local.services)
            words = _upload(local, chip, [*chip.documents, *others])
            mark.write_text(json.dumps({"words": words}), encoding="utf-8")


@contextmanager
def opened(data_dir: Path) -> Iterator[CommandTarget]:
    """A data directory, open."""
    local = CommandTarget(read_settings(data_dir))
    try:
        yield local
    finally:
        local.close()


def copied(template: Path, data_dir: Path) -> None:
    """Make `data_dir` anew as a copy of a filled one."""
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
