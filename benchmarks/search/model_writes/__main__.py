"""A model writes kernels for chips that it has never seen, with our context and with others.

    python -m benchmarks.search.model_writes --models NAME --api-base URL --family block

Chips are drawn from seeds, so that a model cannot know them. `--family emulated --chips ID,ID`
takes built-in chips with an emulator instead; the seed then draws the sizes of the problems, and
`--documents` has a folder of manuals for each id. Each cell is a problem on a chip in an arm; it
ends with its first right kernel. Without --models stored cells are reported.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.report import ended, say, write_result
from benchmarks.search.model_writes.cells import ARMS, Arm, load_cells, run_cell
from benchmarks.search.model_writes.chips import (
    EMULATED,
    FAMILIES,
    Chip,
    copied,
    draw,
    emulated,
    filled,
    opened,
    other_documents,
)
from benchmarks.search.model_writes.report import about_arms, by_arm, by_cell, pairs
from kb.errors import InvalidRequest
from optimizer.search.synthesizers.llm.settings import ModelOptions

TITLE = "A model writes for a chip that it has never seen"
LEAST_USUAL = 10_000  # tokens of a context; cells with fewer are named after them
NOTE = (
    "A cell is one problem on one chip in one arm. The model writes until a kernel is right, at"
    " most as many candidates as given, and sees only the context of the arm. Costs are cycles of"
    " the simulator or counts of the emulator, over those of a kernel that was written by hand, on"
    " built-in chips of plain C that the chip's compiler optimised. `compiled` and `right` at n"
    " count cells in which that happened within the first n candidates."
)


def main() -> None:
    """Run cells, or report those that are stored."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--models", default="", help="litellm model names; none: only report")
    parser.add_argument("--api-base", help="address of an OpenAI-compatible server")
    parser.add_argument("--family", choices=tuple(FAMILIES), default="block")
    parser.add_argument("--chips", default="", help="of the family emulated: ids, by commas")
    parser.add_argument("--documents", type=Path, default=Path(), help="a folder for each such id")
    parser.add_argument("--seeds", default="11", help="of the chips or sizes, by commas")
    parser.add_argument("--problems", default="", help="by commas; default: the family's three")
    parser.add_argument("--arms", default=",".join(ARMS), help="by commas")
    parser.add_argument("--candidates", type=int, default=8, help="most of a cell")
    parser.add_argument("--context-tokens", type=int, default=48_000)
    parser.add_argument("--together", type=int, default=1, help="cells at a time")
    parser.add_argument("--among", type=int, default=0, help="words of other documents of the chip")
    parser.add_argument("--others", type=Path, help="folder of those documents")
    parser.add_argument("--model-seconds", type=float, default=900.0, help="of one call")
    parser.add_argument("--work", type=Path, help="folder of chips and stores")
    parser.add_argument("--cells", type=Path, required=True, help="folder of the cells")
    parser.add_argument("--out", type=Path, help="write the report here")
    given = parser.parse_args()
    if given.models:
        with tempfile.TemporaryDirectory(prefix="kernlore-model-writes-") as folder:
            run(given, given.work or Path(folder))
    cells = load_cells(given.cells)
    parts = [NOTE, about_arms(dict.fromkeys(cell.arm for cell in cells)), by_arm(cells)]
    write_result(given.out, TITLE, [*parts, pairs(cells), by_cell(cells)])


@dataclass(frozen=True)
class _Job:
    """One cell to run. `placebo` is another chip, whose manual is shown in the arm of that name."""

    chip: Chip
    placebo: Chip
    problem: str
    arm: Arm


def run(given: argparse.Namespace, work: Path) -> None:
    """Run the requested cells, `--together` at once, those of the arm `second` at the end."""
    others = other_documents(given.others, given.among) if given.among else []
    jobs = list(_jobs(given, work))
    for chip in {job.chip.id: job.chip for job in jobs}.values():
        filled(chip, _stores(given, work, chip) / "empty", others)
    for second in (False, True):
        with ThreadPoolExecutor(given.together) as pool:
            chosen = [job for job in jobs if job.arm.second == second]
            for line in pool.map(partial(_ran, given, work, others), chosen):
                say(line)


def _jobs(given: argparse.Namespace, work: Path) -> Iterator[_Job]:
    family = FAMILIES[given.family]
    for seed in map(int, given.seeds.split(",")):
        chips: list[Chip]
        if given.family == EMULATED:
            ids = given.chips.split(",")
            chips = [emulated(id, seed, given.documents, work / "problems") for id in ids]
            placebos = [*chips[1:], chips[0]]
        else:
            chips = [draw(family, seed, work / "chips")]
            placebos = [draw(family, seed + 1, work / "chips")]
        for chip, placebo in zip(chips, placebos, strict=True):
            for problem in given.problems.split(",") if given.problems else family.problems:
                for name in given.arms.split(","):
                    yield _Job(chip, placebo, problem, ARMS[name])


def _size(given: argparse.Namespace) -> str:
    size = f"among {given.among} words" if given.among else "manual alone"
    if given.context_tokens < LEAST_USUAL:
        size += f" in {given.context_tokens}"
    return size.replace(" ", "-")


def _stores(given: argparse.Namespace, work: Path, chip: Chip) -> Path:
    """The folder of a chip's data directories. A built-in chip has the same documents for all
    seeds."""
    return work / "stores" / f"{chip.id}-{_size(given)}"


def _ran(given: argparse.Namespace, work: Path, others: Sequence[Path], job: _Job) -> str:
    chip, arm = job.chip, job.arm
    options = ModelOptions(
        api_base=given.api_base,
        context_tokens=given.context_tokens,
        tools=arm.tools,
        timeout_s=given.model_seconds,
        check=arm.check,
    )
    stores = _stores(given, work, chip)
    data = stores / f"{chip.seed}-{job.problem}-{arm.name}"
    solved = stores / f"{chip.seed}-{chip.family.before(job.problem)}-ours"
    if arm.second and not solved.is_dir():
        raise InvalidRequest(
            f"{solved} is not there", hint="Run the arm `ours` with this --work first."
        )
    copied(solved if arm.second else stores / "empty", data)
    with opened(data) as local:
        cell = run_cell(
            local,
            chip,
            job.placebo,
            job.problem,
            arm,
            size=_size(given),
            model=given.models,
            candidates=given.candidates,
            options=options,
            out=given.cells,
        )
    return f"{cell.name}: {' '.join(a.validity for a in cell.attempts)}"


if __name__ == "__main__":
    ended(main)
