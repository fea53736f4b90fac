"""Knowledge on and off for a model that writes in languages that it knows, on problems that no
recipe was written for (`unlisted/`): Triton and CUDA on a GPU, C++ on a CPU.

    kernlore runs propose benchmarks/search/unlisted/*.py --hardware h200 --language triton \\
        --knowledge on --drafts 2 --models NAME -o gpu-on.zip    # and `off`; x86-64 with cpp
    python gpu-on.zip --out gpu-on --finalists 1                 # where the device is
    python -m benchmarks.search.known_languages --results FILE

Reads the rows of the arms as they are kept beside the results: whole, or for CUDA as the session
printed them.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from benchmarks.report import ended, table, write_result
from optimizer.search.records import Node
from optimizer.search.store import FileStore

STORED = Path(__file__).resolve().parents[1] / "results" / "models_on_known_languages"
PLACES = {
    "gpu": "Triton on an H200",
    "cpu": "C++ on a Xeon, 7 cores for each arm",
    "cuda": "CUDA on an H100, one draft",
    "drawn-1": "Triton on an H100, problems drawn by a seed: one round of two drafts",
    "drawn-2": "The same after a second round of two drafts",
}
DRAWN = (
    "The last two tables are of problems of `benchmarks/search/foreign`, one of each of "
    "twelve families, that nobody had seen before (`--size gpu --seeds 201-201`). The first "
    "round was written to prompts v3. What its readers missed and found superfluous, in both "
    "arms alike, made the next ones: which names the language has, how many bytes its arrays "
    "have, how a call is timed; sections about the operator in place of those about products "
    "of matrices, in every prompt. The second round had the v4 of its time, and its readers "
    "missed the source of the best kernel where a slower one was to be changed, which is "
    "shown since. So no round here has seen the contexts of today. Both arms ran side by side "
    "on one GPU, by its lock. order_201 is left out of the first round: without knowledge one "
    "draft was right, and none could be timed. Figures of order_201 and of loss_201 with "
    "knowledge are those of the search. Of the 40 drafts with knowledge 39 are right and one "
    "crashed, of 40 without it one did not compile. The first round with knowledge was asked "
    "three times, because the asking process was killed: answers to equal requests were used "
    "again, and readers met some problems a second time and repeated themselves. Drafts of "
    "that arm are not independent samples."
)
RIGHT = ("correct", "unmeasured")  # the latter is right, and could not be timed
RESAMPLES = 10_000
NOTE = (
    "Eight problems of `benchmarks/search/unlisted`, one round of two drafts each, of one draft in"
    " CUDA; the winner is measured again. Answers came from a strong model that saw a request and"
    " nothing else, several instances side by side, none of which served both arms. `Gain` is over"
    " eager PyTorch, in one session for each arm. The problems are few and the drafts two, so this"
    " is an indication."
    " In all arms the model knew how to write a right kernel: knowledge did not decide that. With"
    " knowledge its kernels were faster, by the interval below; readers named the sections on the"
    " operator, on masking and on the sizes of the chip as what they used, and sections of the"
    " chip's manual that nothing had asked for as noise. Those are left out of first prompts since"
    " (`[known.write]` of `retrieval/data/layout.toml`); the CPU's arm with knowledge was made"
    " after that change, and its second drafts saw the plan of the first, which those without"
    " knowledge did not. In CUDA both arms shared the GPU by its lock, which a figure holds for"
    " itself; with knowledge every first draft was right, and without it one was wrong: its float32"
    " product was off by 4.9e-05 where 4.6e-05 is allowed. Where both were right the kernels are"
    " about as fast. The gain of scaled_product_relu with knowledge is that of the search: its"
    " second measurement gave no figure."
)
TITLE = "Models that write in languages that they know, with knowledge and without"


@dataclass(frozen=True)
class Row:
    """One problem in one arm: what became of each draft, the tokens of the first prompt, and the
    gain of the winner measured again, 1.0 where nothing wins for certain.
    """

    problem: str
    drafts: tuple[str, ...]
    tokens: int
    gain: float


def rows_of(packed: Path) -> dict[str, Row]:
    """The rows of an arm by problem."""
    with tempfile.TemporaryDirectory(prefix="kernlore-rows-") as folder:
        with zipfile.ZipFile(packed) as archive:
            archive.extractall(folder)
        store = FileStore(Path(folder))
        names = sorted(path.parent.name for path in Path(folder).glob("*/run.json"))
        rows = [_row(store, name) for name in names]
    return {row.problem: row for row in rows}


def _arm(folder: Path, place: str, arm: str) -> dict[str, Row]:
    printed = folder / f"{place}.json"
    if not printed.exists():
        return rows_of(folder / f"{place}-{arm}.zip")
    rows = json.loads(printed.read_text(encoding="utf-8"))[arm]
    return {p: Row(p, tuple(r["drafts"]), r["tokens"], r["gain"]) for p, r in rows.items()}


def _row(store: FileStore, name: str) -> Row:
    run, nodes = store.run(name), store.nodes(name)
    gain = run.result.get("gain")
    return Row(
        Path(run.problem).stem,
        tuple(node.verdict for node in nodes[1:]),
        _tokens(nodes),
        gain["value"] if gain else 1.0,
    )


def _tokens(nodes: Sequence[Node]) -> int:
    first = nodes[1].proposal if len(nodes) > 1 else None
    return first.cost.tokens_in if first is not None else 0


def ratio(pairs: Sequence[tuple[float, float]], seed: int = 0) -> str:
    """The geometric mean of on over off, with a bootstrap interval over problems."""
    logs = [math.log(on / off) for on, off in pairs]
    dice = random.Random(seed)
    means = sorted(mean(dice.choices(logs, k=len(logs))) for _ in range(RESAMPLES))
    low, high = means[int(0.025 * RESAMPLES)], means[int(0.975 * RESAMPLES) - 1]
    return f"{math.exp(mean(logs)):.2f} [{math.exp(low):.2f}, {math.exp(high):.2f}]"


def report(folder: Path) -> list[str]:
    """A table for each place."""
    parts = []
    for place, about in PLACES.items():
        on, off = (_arm(folder, place, arm) for arm in ("on", "off"))
        rows = [
            [p, *(f"{a[p].gain:.2f}" for a in (off, on)), *(_drafts(a[p]) for a in (off, on))]
            for p in sorted(on)
        ]
        header = ["problem", "gain, off", "gain, on", "drafts, off", "drafts, on"]
        parts.append(f"## {about}\n\n{table(header, rows)}\n\n{_summary(on, off)}")
    return parts


def _summary(on: dict[str, Row], off: dict[str, Row]) -> str:
    both = sorted(on.keys() & off.keys())
    first = [sum(any(v in RIGHT for v in a[p].drafts[:1]) for p in both) for a in (on, off)]
    tokens = [mean(a[p].tokens for p in both) for a in (on, off)]
    return (
        f"Gain with knowledge over gain without: {ratio([(on[p].gain, off[p].gain) for p in both])}"
        f" (n={len(both)}). Right at the first draft: {first[0]} with, {first[1]} without, of"
        f" {len(both)}. Words of the first prompt, times 4/3: {tokens[0]:,.0f} with,"
        f" {tokens[1]:,.0f} without."
    )


def _drafts(row: Row) -> str:
    return ", ".join(row.drafts)


def main() -> None:
    """Print the tables, and keep them with --results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--folder", type=Path, default=STORED, help="where the arms are kept")
    parser.add_argument("--results", type=Path, help="also write the tables to this file")
    given = parser.parse_args()
    write_result(given.results, TITLE, [NOTE, *report(given.folder), DRAWN])


if __name__ == "__main__":
    ended(main)
