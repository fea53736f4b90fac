"""How the source looks to a reader: sizes of files, folders and functions, and how many modules the
four journeys of docs/architecture.md pass.

`python -m benchmarks.source_shape [--journeys] [--output FILE]`. Journeys are carried out for real,
in this process, over an empty data directory, and every call between two modules of the product is
recorded. A *stop* is a function that another module calls; a *climb* is a call from a room to one
that lies above it (kb < ingestion, retrieval < optimizer < skills < api), as a callback or a
protocol makes it. What runs in child processes (parsers, runners) is not seen.
"""

from __future__ import annotations

import argparse
import ast
import statistics
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("kb", "ingestion", "retrieval", "optimizer", "skills", "api")
RANK = {"kb": 0, "ingestion": 1, "retrieval": 1, "optimizer": 2, "skills": 3, "api": 4}
# No code of the product: templates of recipes, problems that ship, the schema as alembic has it.
LEFT_OUT = ("skills/library/", "optimizer/problems/")
SMALL = 60  # lines


def sources() -> list[Path]:
    return [
        path
        for room in ROOMS
        for path in sorted((ROOT / room).rglob("*.py"))
        if "__pycache__" not in path.parts
        and not path.relative_to(ROOT).as_posix().startswith(LEFT_OUT)
    ]


@dataclass(frozen=True)
class Shape:
    """Sizes in lines. `folders` counts those that hold modules, `lonely` those with up to three."""

    files: int
    lines: int
    median: float
    largest: int
    small: int
    folders: int
    lonely: int
    depth: int
    function_median: float
    function_p90: float

    def rows(self) -> Iterator[tuple[str, str]]:
        yield "files / lines", f"{self.files} / {self.lines:,}"
        yield "median / largest file", f"{self.median:g} / {self.largest}"
        yield f"files under {SMALL} lines", str(self.small)
        yield "function median / p90", f"{self.function_median:g} / {self.function_p90:g}"
        yield "folders / depth", f"{self.folders} / {self.depth}"
        yield "folders with three modules or fewer", str(self.lonely)


def shape() -> Shape:
    """Of the product's own modules; empty `__init__.py` files do not count."""
    texts = {path: path.read_text(encoding="utf-8") for path in sources()}
    texts = {path: text for path, text in texts.items() if text.strip()}
    sizes = [len(text.splitlines()) for text in texts.values()]
    functions = sorted(
        node.end_lineno - node.lineno + 1
        for text in texts.values()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno
    )
    modules: dict[Path, int] = {}
    for path in texts:
        if path.name != "__init__.py":
            modules[path.parent] = modules.get(path.parent, 0) + 1
    return Shape(
        files=len(texts),
        lines=sum(sizes),
        median=statistics.median(sizes),
        largest=max(sizes),
        small=sum(size < SMALL for size in sizes),
        folders=len(modules),
        lonely=sum(count <= 3 for count in modules.values()),
        depth=max(len(folder.relative_to(ROOT).parts) for folder in modules),
        function_median=statistics.median(functions),
        function_p90=functions[int(0.9 * len(functions))],
    )


@dataclass
class Journey:
    """The calls between modules that one journey made."""

    stops: set[tuple[str, str]] = field(default_factory=set)
    climbs: set[tuple[str, str]] = field(default_factory=set)

    @property
    def modules(self) -> int:
        return len({module for module, _ in self.stops})

    def profile(self, frame: FrameType, event: str, argument: Any) -> None:
        """A profile function of `sys.setprofile`."""
        if event != "call" or (here := _module(frame)) is None:
            return
        caller = frame.f_back
        while caller is not None and (above := _module(caller)) is None:
            caller = caller.f_back
        if caller is None or above == here or frame.f_code.co_name.startswith("<"):
            return
        self.stops.add(
            (
                here,
                frame.f_code.co_qualname
                if hasattr(frame.f_code, "co_qualname")
                else frame.f_code.co_name,
            )
        )
        if above is not None and RANK[here.split("/")[0]] > RANK[above.split("/")[0]]:
            self.climbs.add((above, here))


def _module(frame: FrameType) -> str | None:
    name = frame.f_code.co_filename
    if not name.startswith(str(ROOT)):
        return None
    relative = name[len(str(ROOT)) + 1 :]
    return relative if relative.split("/")[0] in RANK else None


def travelled(carry_out: Callable[[], Any]) -> tuple[Journey, Any]:
    journey = Journey()
    threading.setprofile(journey.profile)
    sys.setprofile(journey.profile)
    try:
        result = carry_out()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return journey, result


def journeys() -> dict[str, Journey]:
    """Each of the four, over a new data directory with the built-in hardware and skills."""
    from api.cli.backends import read_settings
    from api.cli.backends.contract import About
    from api.cli.backends.local import LocalTarget
    from api.cli.progress import plain_lines
    from optimizer.search.goal import Goal
    from optimizer.search.runs.optimize import optimize
    from skills.curator.distil import distil_source

    result: dict[str, Journey] = {}
    with tempfile.TemporaryDirectory(prefix="kernlore-shape-") as folder:
        local = LocalTarget(read_settings(Path(folder) / "data"))
        manual = Path(folder) / "manual.md"
        manual.write_text("# Manual\n\n## Memory\n\nShared memory has 64 KiB a block.\n")

        def upload() -> None:
            local.upload(manual, manual.name, About(category="hardware", hardware=("h100",)))
            with local.services.parser_pool() as parsers:
                local.services.worker(parsers).read_all(threading.Event())

        result["upload to passages"], _ = travelled(upload)
        question = {"signal": "memory_bound", "hardware": "h100"}
        result["/retrieve"], _ = travelled(lambda: local.retrieve(question))
        goal = Goal(language="cpp", candidates=3)
        listener = plain_lines(goal)
        result["candidate to tree row"], finished = travelled(
            lambda: optimize(local.services, Path("map_id"), goal, "auto", listener)
        )
        result["run to skill"], _ = travelled(
            lambda: distil_source(local.services, finished.run.id)
        )
        local.close()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--journeys", action="store_true", help="Carry the four journeys out too.")
    parser.add_argument("--output", type=Path, help="Write the table to this file as well.")
    given = parser.parse_args()
    lines = ["| | |", "|---|---|", *(f"| {name} | {text} |" for name, text in shape().rows())]
    if given.journeys:
        lines += ["", "| journey | stops | modules | climbs |", "|---|---|---|---|"]
        lines += [
            f"| {name} | {len(journey.stops)} | {journey.modules} | {len(journey.climbs)} |"
            for name, journey in journeys().items()
        ]
    text = "\n".join(lines) + "\n"
    print(text)
    if given.output is not None:
        given.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
