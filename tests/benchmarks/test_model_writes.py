"""The tables of the benchmark of models that write for drawn chips, and replay of stored cells."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.search.model_writes.cells import (
    Attempt,
    Cell,
    cost_of,
    good_cost,
    load_cells,
    load_transcripts,
    replayed,
    store,
)
from benchmarks.search.model_writes.chips import FAMILIES, Chip, draw, emulated, other_documents
from benchmarks.search.model_writes.report import (
    about_arms,
    bootstrap,
    by_arm,
    by_cell,
    cost_ratio,
    pairs,
    tokens_to_right,
)
from kb.errors import InvalidRequest, Unavailable
from optimizer.search.runs.places import places_for
from optimizer.search.synthesizers.llm.templates import Fence
from tests.retrieval.drawn_bases import DrawnBase

pytestmark = pytest.mark.slow(seconds=20)

CELLS = Path(__file__).with_name("cells")  # of models with a single answer


def stored_cell(arm: str, *validities: str, seed: int = 1, cycles: int = 200) -> Cell:
    attempts = tuple(
        Attempt(v, cycles if v == "correct" else None, 1_000 * n, 0.5, 0.25)
        for n, v in enumerate(validities, 1)
    )
    return Cell("block", seed, "softmax", arm, "manual-alone", "m", attempts, 100)


def test_cell_has_first_compiled_and_first_correct_attempt() -> None:
    cell = stored_cell("ours", "not_compiled", "incorrect", "correct")
    assert (cell.first_compiled, cell.first_right) == (2, 3)
    assert tokens_to_right(cell) == 6_000 and cost_ratio(cell) == 2.0
    none = stored_cell("ours", "not_compiled")
    assert (none.first_compiled, none.first_right, cost_ratio(none)) == (None, None, None)
    assert cell.name == "block-1-softmax-manual-alone-ours"


def test_tables_count_outcomes() -> None:
    cells = [
        stored_cell("ours", "correct"),
        replace(stored_cell("ours", "not_compiled", "correct"), problem="matmul"),
        stored_cell("nothing", "not_compiled"),
        replace(stored_cell("nothing", "incorrect"), problem="matmul"),
    ]
    nothing, ours = [line.split(" | ") for line in by_arm(cells).splitlines()[2:]]
    # cells; compiled at 1, 4, 8; correct at 1, 4, 8; attempts, tokens, cycles
    assert ours[3:11] == ["ours", "2", "1/2", "2/2", "2/2", "1/2", "2/2", "2/2"]
    assert ours[11:14] == ["1.5", "2,000", "2.00"]
    assert nothing[3:14] == ["nothing", "2", *["1/2"] * 3, *["0/2"] * 3, "-", "-", "-"]
    assert (
        by_arm([stored_cell("ours", "correct"), stored_cell("ours", "correct", seed=2)]).count(
            "ours"
        )
        == 2
    )
    compared = pairs(cells).splitlines()
    assert len(compared) == 3 and compared[2].startswith("| nothing | 2 | +0.50 [")
    assert compared[2].endswith("| +1.00 [+1.00, +1.00] |")
    assert "| not_compiled correct | 200 cycles | 2.00 |" in by_cell(cells)
    assert pairs(cells[:2]) == "No pair of arms has common cells."
    assert about_arms(["placebo"]).startswith("* `placebo`: another chip's manual")


def test_interval_of_mean_is_deterministic() -> None:
    values = [1.0] * 6 + [0.0] * 4
    low, high = bootstrap(values)
    assert (low, high) == bootstrap(values) and 0.2 <= low < 0.6 < high <= 0.9
    assert bootstrap([1.0] * 5) == (1.0, 1.0)


def test_too_few_other_documents_are_refused(tmp_path: Path) -> None:
    for n in range(3):
        (tmp_path / f"{n}.md").write_text("word " * 100)
    assert [p.name for p in other_documents(tmp_path, 150)] == ["0.md", "1.md"]
    with pytest.raises(InvalidRequest, match="have 300 words, not 301"):
        other_documents(tmp_path, 301)


def _skip_without_emulator(base: DrawnBase, chip: Chip) -> None:
    try:
        places_for(base.services, chip.id, chip.language)
    except Unavailable as missing:
        pytest.skip(f"{missing.message}. {missing.hint} (`make emulators`)")


@pytest.mark.parametrize(
    ("identity", "problem", "unit"),
    [("riscv-v", "softmax", "instructions"), ("hexagon-v66-hvx", "norm", "packets")],
)
def test_plain_c_is_right_on_emulated_chips(
    identity: str, problem: str, unit: str, tmp_path: Path, model_cache: Path
) -> None:
    base = DrawnBase(tmp_path, model_cache)
    try:
        chip = emulated(identity, 3, tmp_path, tmp_path)
        _skip_without_emulator(base, chip)
        cost, counted = good_cost(base.local, chip, problem)
    finally:
        base.local.close()
    assert counted == unit and cost is not None and cost > 500
    with pytest.raises(InvalidRequest, match="no built-in toolchain"):
        emulated("h200", 3, tmp_path, tmp_path)


@pytest.mark.parametrize(("arm", "role"), [("passages", "user"), ("tools", "tool")])
def test_stored_transcript_quotes_no_manual_of_a_built_in_chip(
    arm: str, role: str, tmp_path: Path
) -> None:
    manual, kind = "VADD adds lanes.", "knowledge" if role == "user" else "tool-result"
    row = {"messages": [{"role": role, "content": "Before\n" + Fence().around(kind, manual)}]}
    (tmp_path / "a.json").write_text(json.dumps(row), encoding="utf-8")
    for chip in ("riscv-v", ""):
        cell = replace(stored_cell(arm, "correct"), chip=chip)
        store(cell, tmp_path, tmp_path / "out")
        [stored] = load_transcripts(tmp_path / "out", cell)
        content = stored["messages"][0]["content"]
        assert content.startswith("Before") and (manual in content) == (not chip)


@pytest.fixture(scope="module")
def chips(
    tmp_path_factory: pytest.TempPathFactory, model_cache: Path
) -> Iterator[Callable[[Cell], tuple[DrawnBase, Chip]]]:
    """A store and the chip of a cell, the same for all cells of a chip."""
    made: dict[tuple[str, str, int], tuple[DrawnBase, Chip]] = {}

    def chip_of(cell: Cell) -> tuple[DrawnBase, Chip]:
        key = (cell.chip, cell.family, cell.seed)
        if key not in made:
            folder = tmp_path_factory.mktemp("chip")
            base = DrawnBase(folder, model_cache)
            if cell.chip:
                made[key] = base, emulated(cell.chip, cell.seed, folder, folder)
            else:
                made[key] = base, draw(FAMILIES[cell.family], cell.seed, folder / "chips")
                base.describe(made[key][1])
        return made[key]

    yield chip_of
    for base, _ in made.values():
        base.local.close()


@pytest.mark.parametrize("cell", load_cells(CELLS), ids=lambda cell: cell.name)
def test_stored_cell_is_replayed(
    cell: Cell, chips: Callable[[Cell], tuple[DrawnBase, Chip]]
) -> None:
    """Without a model; the chip is drawn again and its tools evaluate again."""
    base, chip = chips(cell)
    if cell.chip:
        _skip_without_emulator(base, chip)
    nodes = replayed(base.local, chip, cell, CELLS)
    results = [n.evaluation.validity if n.evaluation is not None else n.state for n in nodes]
    assert results == [attempt.validity for attempt in cell.attempts]
    for node, attempt in zip(nodes, cell.attempts, strict=True):
        timings = node.evaluation.timings if node.evaluation is not None else ()
        cost = cost_of(next(iter(timings), None))
        # The cycles of a Tensix core depend on the values, which each evaluation draws.
        assert cost == pytest.approx(attempt.cost, rel=0.01 if chip.id == "tensix-wormhole" else 0)
