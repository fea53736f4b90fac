"""A model writes kernels for chips that it has never seen, with our context and with others.

    python -m benchmarks.search.model_writes --models NAME --api-base URL --family block

Chips are drawn from seeds, so that a model cannot know them. Each cell is a problem on a chip in an
arm; it ends with its first right kernel. Without --models stored cells are reported.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from benchmarks.report import ended, say, write_result
from benchmarks.search.model_writes.cells import ARMS, Cell, load_cells, run_cell
from benchmarks.search.model_writes.chips import FAMILIES, copied, draw, opened, other_documents
from benchmarks.search.model_writes.report import about_arms, by_arm, by_cell, pairs
from kb.errors import InvalidRequest
from optimizer.search.synthesizers.llm.settings import ModelOptions

TITLE = "A model writes for a chip that it has never seen"
LEAST_USUAL = 10_000  # tokens of a context; cells with fewer are named after them
NOTE = (
    "A cell is one problem on one drawn chip in one arm. The model writes until a kernel is right,"
    " at most as many candidates as given, and sees only the context of the arm. Cycles are the"
    " simulator's. `compiled` and `right` at n count cells in which that happened within the first"
    " n candidates."
)


def main() -> None:
    """Run cells, or report those that are stored."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--models", default="", help="litellm model names; none: only report")
    parser.add_argument("--api-base", help="address of an OpenAI-compatible server")
    parser.add_argument("--family", choices=tuple(FAMILIES), default="block")
    parser.add_argument("--seeds", default="11", help="of the chips, by commas")
    parser.add_argument("--problems", default="", help="by commas; default: the family's three")
    parser.add_argument("--arms", default=",".join(ARMS), help="by commas")
    parser.add_argument("--candidates", type=int, default=8, help="most of a cell")
    parser.add_argument("--context-tokens", type=int, default=48_000)
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


def run(given: argparse.Namespace, work: Path) -> None:
    """Run the requested cells one after the other."""
    family = FAMILIES[given.family]
    others = other_documents(given.others, given.among) if given.among else []
    size = f"among {given.among} words" if given.among else "manual alone"
    if given.context_tokens < LEAST_USUAL:
        size += f" in {given.context_tokens}"
    size = size.replace(" ", "-")
    for seed in map(int, given.seeds.split(",")):
        chip, placebo = (draw(family, number, work / "chips") for number in (seed, seed + 1))
        for problem in given.problems.split(",") if given.problems else family.problems:
            for name in given.arms.split(","):
                arm = ARMS[name]
                options = ModelOptions(
                    api_base=given.api_base,
                    context_tokens=given.context_tokens,
                    tools=arm.tools,
                    timeout_s=given.model_seconds,
                    check=arm.check,
                )
                stores = work / "stores" / f"{chip.id}-{size}"
                data = stores / f"{problem}-{name}"
                before = stores / (f"{family.before(problem)}-ours" if arm.second else "empty")
                if arm.second and not before.is_dir():
                    raise InvalidRequest(
                        f"{before} is not there", hint="Run the arm `ours` with this --work first."
                    )
                copied(chip, before, data, others)
                say(f"{chip.id} {problem} {size} {name}")
                with opened(chip, data, others) as local:
                    cell = run_cell(
                        local,
                        chip,
                        placebo,
                        problem,
                        arm,
                        size=size,
                        model=given.models,
                        candidates=given.candidates,
                        options=options,
                        out=given.cells,
                    )
                say(summary(cell))


def summary(cell: Cell) -> str:
    """One line of progress."""
    return f"  {cell.name}: {' '.join(a.validity for a in cell.attempts)}"


if __name__ == "__main__":
    ended(main)
