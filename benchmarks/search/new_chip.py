"""Searches on drawn chips from their manual alone, without a model.

The fictional chips of examples/new_chip: each is drawn from a seed, described by command templates,
and its manual uploaded. Arms: the manual; the same manual with half the scratchpad stated (the chip
stays as it is); the manual's sample without the limits that were read; no manual.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import threading
import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from api.cli.target import CommandTarget, read_settings
from benchmarks.report import ended, say, table, write_result
from ingestion.uploads import FileUpload
from optimizer.search.goal import Goal
from optimizer.search.records import Node
from optimizer.search.runs.optimize import AS_IT_STANDS, FinishedRun, manual_samples, optimize
from optimizer.search.runs.places import places_for
from optimizer.search.synthesizers.base import ModelCall, Synthesizer
from optimizer.search.synthesizers.recipe.synthesizer import SampleSynthesizer
from optimizer.search.tree import Tree

TITLE = "Searches on a drawn chip from its manual alone"
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "new_chip"
SEEDS = (2, 3, 5, 6, 7)
LANGUAGE = "novac"
ARMS = ("manual", "half the scratchpad", "without limits", "no manual")
NOTE = (
    "Cycles are the simulator's (`simulator`); no wall time is among them. There is no reference on"
    " such a chip, so gains are over the manual's unchanged sample (where that breaks the"
    " stated limits, over the nearest variant that does not). The problem is"
    " `examples/new_chip/problems/matmul.py`, the only one that the manual has a sample of; for the"
    " other two nothing is proposed. Only constants of the sample change, never its structure: what"
    " the manual says of two tiles for each stream takes another program, which needs a model or a"
    " person. A candidate breaks a limit if its tiles do not fit the drawn scratchpad, its"
    " accumulator the drawn registers, its columns whole vectors or its pitches whole banks,"
    " counted here from the chip's own numbers and not from the manual. Half the scratchpad means"
    " half the figure in every place of the manual, the chip staying as it is; where the sample"
    " itself takes more than that, the manual contradicts itself, the figure is not believed, and"
    " what is left bounds more than it should (seed 5)."
)


@dataclass(frozen=True)
class Row:
    """One run. breaking: candidates beyond the drawn limits. proposed: proposals in order."""

    seed: int
    arm: str
    candidates: int
    verdicts: dict[str, int]
    breaking: int
    sample_cycles: int | None
    best_cycles: int | None
    best: str
    at: int | None
    gain: float | None
    over: str
    ended: str
    proposed: list[str]


def chip_module() -> Any:
    """examples/new_chip/chip.py, which is a program and no part of a package."""
    spec = importlib.util.spec_from_file_location("new_chip", EXAMPLE / "chip.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def breaks_limits(values: Mapping[str, Any], chip: Mapping[str, Any]) -> bool:
    """Of the manual's matrix product: tiles a (padded), b and c, one accumulator."""
    m, n, k = (int(values[f"TILE_{axis}"]) for axis in "MNK")
    pitches = [(k + int(values["PAD"])) * 4, n * 4, n * 4]
    used = sum(rows * pitch for rows, pitch in zip((m, k, m), pitches, strict=True))
    registers = m * -(-n // int(chip["lanes"]))
    return (
        used > int(chip["scratchpad_bytes"])
        or registers > int(chip["vector_registers"])
        or any(columns % int(chip["lanes"]) for columns in (n, k))
        or any(pitch % int(chip["bank_width"]) for pitch in pitches)
    )


def opened(folder: Path, seed: int, manual: str | None) -> CommandTarget:
    """A data directory that knows the chip's description, and a manual if there is one."""
    local = CommandTarget(read_settings(folder))
    chip = folder.parent / f"nova-{seed}"
    if not chip.exists():
        subprocess.run([sys.executable, EXAMPLE / "chip.py", str(seed), chip], check=True)
    local.services.register_hardware(
        tomllib.loads((chip / "hardware.toml").read_text()), "hardware.toml"
    )
    if manual is not None:
        services = local.services
        upload = FileUpload(
            "manual.md",
            manual.encode(),
            category="hardware",
            hardware=(f"nova-{seed}",),
            languages=(LANGUAGE,),
        )
        services.uploads.submit(upload)
        with services.local_reader() as reader:
            services.worker(reader).read_all(threading.Event())
    return local


def manual_of(seed: int, arm: str) -> str | None:
    if arm == "no manual":
        return None
    module = chip_module()
    chip = module.draw(seed)
    if arm == "half the scratchpad":
        chip = {**chip, "scratchpad_bytes": chip["scratchpad_bytes"] // 2}
    return str(module.manual(chip))


def searched(folder: Path, seed: int, arm: str, candidates: int) -> Row:
    local = opened(folder / f"{seed}-{arm.replace(' ', '-')}", seed, manual_of(seed, arm))
    goal = Goal(language=LANGUAGE, candidates=candidates)
    proposers: list[Synthesizer] | None = None
    if arm == "without limits":
        places = places_for(local.services, f"nova-{seed}", LANGUAGE)
        samples = manual_samples(local.services, places)
        proposers = [
            SampleSynthesizer([replace(s, body={**s.body, "constraints": []}) for s in samples])
        ]
    problem = EXAMPLE / "problems" / "matmul.py"
    try:
        finished = optimize(
            local.services, problem, goal, f"nova-{seed}", _Quiet(), proposers=proposers
        )
    finally:
        local.close()
    return row_of(finished, seed, arm, chip_module().draw(seed))


def row_of(finished: FinishedRun, seed: int, arm: str, chip: Mapping[str, Any]) -> Row:
    tree, outcome = finished.tree, finished.outcome
    proposals = [node.proposal for node in tree if node.proposal is not None]
    best = tree.best
    return Row(
        seed=seed,
        arm=arm,
        candidates=len(tree) - 1,
        verdicts=dict(Counter(node.verdict for node in tree.nodes[1:])),
        breaking=sum(breaks_limits(proposal.values, chip) for proposal in proposals),
        sample_cycles=cycles(tree.root),
        best_cycles=cycles(best) if best is not None else None,
        best=_values_text(best.proposal.values) if best is not None and best.proposal else "",
        at=best.number if best is not None else None,
        gain=outcome.gain.value if outcome.gain is not None else None,
        over=outcome.over,
        ended=finished.run.ended,
        proposed=[_values_text(proposal.values) for proposal in proposals],
    )


def cycles(node: Node) -> int | None:
    evaluation = node.evaluation
    return evaluation.timings[0].cycles if evaluation is not None and evaluation.timings else None


def _values_text(values: Mapping[str, Any]) -> str:
    return " ".join(str(value) for value in values.values())


def report(rows: list[Row]) -> list[str]:
    head = ["seed", "arm", "n", "verdicts", "beyond a limit", "cycles of the baseline",
            "best cycles", "best (M N K pad)", "at node", "gain", "ended"]  # fmt: skip
    lines = [
        [r.seed, r.arm, r.candidates, json.dumps(r.verdicts), r.breaking, _base(r),
         r.best_cycles or "", r.best, r.at or "", f"{r.gain:.3f}" if r.gain else "none", r.ended]
        for r in rows
    ]  # fmt: skip
    return [table(head, lines), *_changed(rows)]


def _base(row: Row) -> str:
    """Marked if it is not the sample itself."""
    if row.sample_cycles is None:
        return ""
    return str(row.sample_cycles) + ("" if row.over == AS_IT_STANDS else " (nearest variant)")


def _changed(rows: list[Row]) -> list[str]:
    """What half the scratchpad in the manual keeps from being proposed."""
    by_arm = {(row.seed, row.arm): row for row in rows}
    lines = []
    for seed in dict.fromkeys(row.seed for row in rows):
        whole, half = (by_arm.get((seed, arm)) for arm in ARMS[:2])
        if whole is not None and half is not None:
            lines.append([seed, *(f"{_beyond_half(r)} of {r.candidates}" for r in (whole, half))])
    head = ["seed", "with the manual", "with half the scratchpad in it"]
    return ["Candidates whose tiles need more than half the drawn scratchpad:", table(head, lines)]


def _beyond_half(row: Row) -> int:
    chip = chip_module().draw(row.seed)
    half = {**chip, "scratchpad_bytes": chip["scratchpad_bytes"] // 2}
    names = ("TILE_M", "TILE_N", "TILE_K", "PAD")
    points = (dict(zip(names, map(int, text.split()), strict=True)) for text in row.proposed)
    return sum(breaks_limits(values, half) for values in points)


class _Quiet:
    def node(self, node: Node, tree: Tree) -> None:
        """The rows say it."""

    def asking(self, asking: ModelCall) -> None: ...

    def log(self, message: str) -> None:
        say(message)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seed", type=int, action="append", help=f"repeat; default {SEEDS}")
    parser.add_argument("--candidates", type=int, default=40)
    parser.add_argument("--folder", type=Path, required=True, help="data directories and rows")
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()

    def run() -> None:
        options.folder.mkdir(parents=True, exist_ok=True)
        stored = options.folder / "rows.jsonl"
        rows = [Row(**json.loads(line)) for line in stored.open()] if stored.exists() else []
        for seed in options.seed or SEEDS:
            for arm in ARMS:
                if any((row.seed, row.arm) == (seed, arm) for row in rows):
                    continue
                budget = options.candidates if arm == "manual" else options.candidates // 2
                rows.append(searched(options.folder, seed, arm, budget))
                with stored.open("a", encoding="utf-8") as stream:
                    stream.write(json.dumps(asdict(rows[-1])) + "\n")
                say(f"nova-{seed}, {arm}: {rows[-1].gain} over {rows[-1].over}")
        command = (
            f"`python -m benchmarks.search.new_chip --candidates {options.candidates} --folder F`"
        )
        write_result(options.results, TITLE, [command, NOTE, *report(sorted(rows, key=_place))])

    ended(run)


def _place(row: Row) -> tuple[int, int]:
    return row.seed, ARMS.index(row.arm)


if __name__ == "__main__":
    main()
