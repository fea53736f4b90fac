"""The shape of the source: sizes, repeated class names, and the files of four journeys.

    python -m benchmarks.source_shape [--journeys] [--rooms] [--output FILE]

The journeys are commands, carried out in this process over an empty data directory, with every
function call of the product recorded: code that imports execute and child processes (parsers,
runners) are not. A call is *across files* if its caller is in another file; a *climb* is a pair of
files where the first calls the second in a room above its own (kb < ingestion, retrieval <
optimizer < skills < api), as a callback does.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any, cast

ROOT = Path(__file__).resolve().parent.parent
RANKS = {"kb": 0, "ingestion": 1, "retrieval": 1, "optimizer": 2, "skills": 3, "api": 4}
# Data in the form of Python: templates of recipes, problems, and the candidates that try to cheat.
DATA = (
    "skills/library/",
    "optimizer/problems/",
    "optimizer/evaluation/exploits/candidates/",
    "optimizer/evaluation/exploits/problems/",
)
SCHEMA = "/migrations/versions/"  # table definitions, whose functions are lists
CLIENT = "retrieval/client.py"
ROOMS_FILE = ROOT / "benchmarks" / "rooms.toml"
LARGEST = 3  # files and functions that are named

MANUAL = """# Manual of the chip

## Memory

Shared memory has 64 KiB per block. Loads of 16 bytes per lane reach the full bandwidth.

| level | size |
|---|---|
| L1 | 256 KiB |
| L2 | 50 MiB |
"""


def sources(folder: str = "") -> dict[str, str]:
    """The text of every module of a room or of all rooms, by its path; empty ones left out."""
    result: dict[str, str] = {}
    for room in RANKS if not folder else [folder]:
        for path in sorted((ROOT / room).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if "__pycache__" not in path.parts and not name.startswith(DATA):
                result[name] = path.read_text(encoding="utf-8")
    return {name: text for name, text in result.items() if text.strip()}


@dataclass(frozen=True)
class Room:
    """Number of files and of lines."""

    files: int
    lines: int


def measured_rooms() -> dict[str, Room]:
    """The size of each room as it is now."""
    texts = {room: sources(room) for room in RANKS}
    return {
        room: Room(len(files), sum(len(text.splitlines()) for text in files.values()))
        for room, files in texts.items()
    }


def room_limits() -> dict[str, Room]:
    """The sizes that rooms.toml records, with every rise that has a reason.

    Raises ValueError where a rise has none.
    """
    limits = {}
    for name, room in tomllib.loads(ROOMS_FILE.read_text(encoding="utf-8")).items():
        raised = room.get("raised", [])
        if any(not entry.get("why", "").strip() for entry in raised):
            raise ValueError(f"{ROOMS_FILE.name}: a rise of {name} has no `why`")
        limits[name] = Room(
            room["files"] + sum(entry.get("files", 0) for entry in raised),
            room["lines"] + sum(entry.get("lines", 0) for entry in raised),
        )
    return limits


def shape_rows() -> Iterator[tuple[str, str]]:
    """(name, value) of each line of the table."""
    texts = sources()
    sizes = {name: len(text.splitlines()) for name, text in texts.items()}
    trees = {name: ast.parse(text) for name, text in texts.items()}
    functions: dict[str, int] = {}
    classes: Counter[str] = Counter()
    for name, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                classes[node.name] += name != CLIENT  # its records are generated from ours
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and SCHEMA not in name:
                functions[f"{name}:{node.lineno}"] = (node.end_lineno or 0) - node.lineno + 1
    lengths = sorted(functions.values())
    repeated = {name: count for name, count in classes.items() if count > 1}
    folders = {name.rpartition("/")[0] for name in texts if not name.endswith("__init__.py")}
    yield "lines / files", f"{sum(sizes.values()):,} / {len(texts)}"
    yield "folders / depth", f"{len(folders)} / {max(folder.count('/') + 1 for folder in folders)}"
    yield "median / largest file", f"{statistics.median(sizes.values()):g} / {_largest(sizes)}"
    yield "files under 60 lines", str(sum(size < 60 for size in sizes.values()))
    yield (
        "function median / p95 / largest",
        f"{statistics.median(lengths):g} / {lengths[int(0.95 * len(lengths))]}"
        f" / {_largest(functions)}",
    )
    yield "class names with several definitions", f"{len(repeated)} ({sum(repeated.values())})"
    yield "functions per operation of the client", f"{_definitions_per_operation(trees):.1f}"


def _largest(sizes: dict[str, int]) -> str:
    ranked = sorted(sizes.items(), key=lambda item: -item[1])[:LARGEST]
    return ", ".join(f"{size} ({name})" for name, size in ranked)


def _definitions_per_operation(trees: dict[str, ast.Module]) -> float:
    """How many functions in the product bear the name of a method of the client, on average."""
    methods = {
        node.name
        for owner in ast.walk(trees[CLIENT])
        if isinstance(owner, ast.ClassDef)
        for node in owner.body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    }
    names = Counter(
        node.name
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return statistics.mean(names[method] for method in methods)


@dataclass
class Journey:
    """The calls of product functions while `recording` a piece of work, in all its threads."""

    files: set[str] = field(default_factory=set)
    climbs: set[tuple[str, str]] = field(default_factory=set)
    calls: int = 0
    across: int = 0
    _local: threading.local = field(default_factory=threading.local)

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        """A profile function of `sys.setprofile`."""
        if event not in ("call", "return"):
            return
        importing: int = getattr(self._local, "importing", 0)
        if frame.f_code.co_name == "<module>":  # an import, of any module
            self._local.importing = max(0, importing + (1 if event == "call" else -1))
            return
        if event == "return" or importing:
            return
        if (here := _file_of(frame)) is None:
            return
        caller = frame.f_back
        while caller is not None and _file_of(caller) is None:
            caller = caller.f_back
        origin = _file_of(caller) if caller is not None else None
        self.files.add(here)
        self.calls += 1
        if origin is not None and origin != here:
            self.across += 1
            if RANKS[_room(here)] > RANKS[_room(origin)]:
                self.climbs.add((origin, here))


def _file_of(frame: FrameType) -> str | None:
    """The path of the frame's module in the product, or None."""
    name = frame.f_code.co_filename
    relative = name.removeprefix(f"{ROOT}/")
    return relative if relative != name and _room(relative) in RANKS else None


def _room(path: str) -> str:
    return path.partition("/")[0]


def journeys() -> dict[str, Journey]:
    """Upload, question, signal, candidate and distillation, each the first of its kind here."""
    result: dict[str, Journey] = {}
    with tempfile.TemporaryDirectory(prefix="kernlore-shape-") as folder:
        manual = Path(folder) / "manual.md"
        manual.write_text(MANUAL, encoding="utf-8")
        store = ("--data-dir", f"{folder}/data", "--json")

        def travel(name: str, *command: str) -> Any:
            result[name] = Journey()
            return _carried_out([*command, *store], result[name])

        # In another process, so that the first journey finds nothing in memory.
        kernlore = [
            sys.executable,
            "-c",
            f"import {_entry().__module__} as m; m.{_entry().__name__}()",
        ]
        first = ["ingest", "--builtin", *store]
        subprocess.run([*kernlore, *first], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        about = ("--hardware", "h100")
        travel("an upload", "ingest", str(manual), *about, "--category", "hardware")
        travel("a question", "retrieve", "--query", "how large is shared memory", *about)
        travel("a signal", "retrieve", "--signal", "memory_bound", *about)
        search = ("--language", "cpp", "--candidates", "1", "-o", f"{folder}/output")
        run = travel("a candidate", "optimize", "map_id", *search)
        travel("a run becomes a skill", "skills", "distill", run["run"])
    return result


def _carried_out(command: Sequence[str], journey: Journey) -> Any:
    """The JSON that the command prints as its last line."""
    main_of_product = _entry()
    printed, given = io.StringIO(), sys.argv
    sys.argv = ["kernlore", *command]
    try:
        with contextlib.redirect_stdout(printed), journey.recording():
            main_of_product()
    except SystemExit as ended:
        if ended.code:
            raise
    finally:
        sys.argv = given
    return json.loads(printed.getvalue().splitlines()[-1])


def _entry() -> Callable[[], None]:
    """The function behind the command `kernlore`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, _, function = project["scripts"]["kernlore"].partition(":")
    return cast("Callable[[], None]", getattr(import_module(module), function))


def _table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--journeys", action="store_true", help="Trace the journeys too.")
    parser.add_argument(
        "--rooms", action="store_true", help="Print the rooms as rooms.toml records them."
    )
    parser.add_argument("--output", type=Path, help="Write the tables to this file as well.")
    given = parser.parse_args()
    if given.rooms:
        for name, room in measured_rooms().items():
            print(f"[{name}]\nfiles = {room.files}\nlines = {room.lines}\n")
        return
    parts = [_table(("", ""), list(shape_rows()))]
    if given.journeys:
        rows = [
            (name, len(travelled.files), f"{travelled.calls:,} / {travelled.across:,}",
             len(travelled.climbs))
            for name, travelled in journeys().items()
        ]  # fmt: skip
        parts.append(_table(("journey", "files", "calls / across files", "climbs"), rows))
    text = "\n".join(parts)
    print(text)
    if given.output is not None:
        given.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
