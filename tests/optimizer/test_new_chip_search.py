"""A search on an unknown chip: its manual, its command templates, no model."""

from __future__ import annotations

import shutil
import threading
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from api.cli.target import CommandTarget, read_settings
from ingestion.uploads import FileUpload
from kb.catalog.knowledge.samples import decide_recipe
from optimizer.evaluation.problem.load import load_problem
from optimizer.evaluation.settings import EvaluationSettings
from optimizer.search.bench.local import problem_view
from optimizer.search.bench.simulated import SimulatedBench
from optimizer.search.goal import Goal
from optimizer.search.runs.optimize import FinishedRun, manual_samples, optimize
from optimizer.search.runs.places import places_for
from optimizer.search.runs.run_store import run_store
from optimizer.search.synthesizers.base import HardwareView
from optimizer.search.synthesizers.recipe.synthesizer import SampleSynthesizer, bind
from retrieval.request import RetrieveRequest
from tests.api.cli_process import kernlore
from tests.catalogs import builtin_data_dir, copy_data_dir
from tests.ingestion.samples.drawn_chips import CHIPS, EXAMPLE, SEEDS, legal
from tests.optimizer.search.landscape import RecordingListener
from tests.shared import copy_knowledge, place_models

pytestmark = pytest.mark.slow(seconds=45)

MATMUL = EXAMPLE / "problems" / "matmul.py"
CANDIDATES = 4
DOCUMENTS = ("guidance/memory-bound.md",)  # of the built-in documents, which a search reads first
RECTANGULAR = """
import torch

class Model(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a @ b

def get_inputs():
    return [torch.randn(96, 128), torch.randn(128, 32)]

def get_init_inputs():
    return []
"""


class Chip:
    """A drawn chip registered in a data directory, with or without its manual."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.id, self.numbers = f"nova-{seed}", CHIPS.draw(seed)
        self.description = folder / "chip" / "hardware.toml"
        self.local = CommandTarget(read_settings(folder / "data"))
        self.services = self.local.services

    def searched(self, candidates: int, problem: Path = MATMUL, **given: Any) -> FinishedRun:
        goal = Goal(language="novac", candidates=candidates, **given.pop("goal", {}))
        return optimize(self.services, problem, goal, self.id, RecordingListener(), **given)

    @property
    def samples(self) -> list[Any]:
        return manual_samples(self.services, places_for(self.services, self.id, "novac"))


class Chips:
    """Drawn chips. The data directory of a chip is made once and copied for each use."""

    def __init__(self, folders: Callable[[str], Path], models: Path) -> None:
        self._folders, self._models = folders, models
        self._filled: dict[tuple[int, str | None], Path] = {}
        self._searched: dict[int, tuple[Chip, FinishedRun]] = {}
        self._chips: list[Chip] = []

    def make(self, seed: int, manual: str | None) -> Chip:
        """A chip before any search."""
        if (seed, manual) not in self._filled:
            self._filled[seed, manual] = self._fill(seed, manual)
        folder = self._folders(f"nova-{seed}") / "chip"
        filled = self._filled[seed, manual]
        shutil.copytree(filled, folder, symlinks=True, ignore=shutil.ignore_patterns("data"))
        copy_data_dir(filled / "data", folder / "data")
        self._chips.append(Chip(folder, seed))
        return self._chips[-1]

    def with_manual(self, seed: int) -> Chip:
        """A chip with its manual, before any search."""
        return self.make(seed, CHIPS.manual(CHIPS.draw(seed)))

    def searched(self, seed: int) -> tuple[Chip, FinishedRun]:
        """A chip with its manual, and the search on it."""
        if seed not in self._searched:
            chip = self.with_manual(seed)
            self._searched[seed] = chip, chip.searched(CANDIDATES)
        return self._searched[seed]

    def _fill(self, seed: int, manual: str | None) -> Path:
        folder = self._folders(f"filled-{seed}")
        place_models(folder / "data", self._models)
        CHIPS.write(seed, folder / "chip")
        local = CommandTarget(read_settings(builtin_data_dir(folder / "data")))
        described = (folder / "chip" / "hardware.toml").read_text(encoding="utf-8")
        local.services.register_hardware(tomllib.loads(described), "hardware.toml")
        if manual is not None:
            upload = FileUpload("manual.md", manual.encode(), hardware=(f"nova-{seed}",))
            local.services.uploads.submit(upload)
            with local.services.local_reader() as reader:
                local.services.worker(reader).read_all(threading.Event())
        local.close()
        return folder

    def close(self) -> None:
        for chip in self._chips:
            chip.local.close()


@pytest.fixture(scope="module")
def chips(tmp_path_factory: pytest.TempPathFactory, model_cache: Path) -> Iterator[Chips]:
    chips = Chips(tmp_path_factory.mktemp, model_cache)
    yield chips
    chips.close()


@pytest.fixture(scope="module", params=SEEDS)
def searched(request: pytest.FixtureRequest, chips: Chips) -> tuple[Chip, FinishedRun]:
    return chips.searched(request.param)


@pytest.fixture(scope="module")
def known(chips: Chips) -> Chip:
    """nova-7 with its manual, after a search."""
    return chips.searched(7)[0]


def proposed_values(finished: FinishedRun) -> list[dict[str, Any]]:
    return [dict(n.proposal.values) for n in finished.tree if n.proposal is not None]


def cycles(node: Any) -> int:
    return int(node.evaluation.timings[0].cycles)


def test_every_candidate_is_within_limits_and_correct(searched: tuple[Chip, FinishedRun]) -> None:
    chip, finished = searched
    assert len(proposed_values(finished)) == CANDIDATES
    assert [values for values in proposed_values(finished) if not legal(values, chip.numbers)] == []
    assert {node.verdict for node in finished.tree} == {"correct"}
    assert len({n.proposal.bundle.sha256 for n in finished.tree if n.proposal}) == CANDIDATES


def test_best_candidate_beats_sample_and_names_baseline(searched: tuple[Chip, FinishedRun]) -> None:
    _, finished = searched
    tree, outcome = finished.tree, finished.outcome
    best = tree.best
    assert best is not None and outcome.node == best.number and outcome.gain is not None
    assert cycles(best) < cycles(tree.root) == cycles(tree[1])
    assert outcome.gain.value == pytest.approx(cycles(tree.root) / cycles(best))
    assert (outcome.over, outcome.clock) == ("the manual's sample as it stands", "simulator")
    assert {n.evaluation.timing for n in tree if n.evaluation is not None} == {"simulator"}


def test_each_plan_names_section_of_manual(searched: tuple[Chip, FinishedRun]) -> None:
    chip, finished = searched
    [sample] = chip.samples
    plans = [n.proposal.plan for n in finished.tree if n.proposal is not None]
    section = 'section "2.3 Worked sample: a tiled matrix product"'
    assert all(p.startswith(f"From the manual's sample, {section} of Nova") for p in plans)
    assert plans[0].endswith(": as it stands.") and "Change TILE_" in " ".join(plans)
    assert all(sample.id in n.proposal.attributed for n in finished.tree if n.proposal)


def test_stored_rows_have_figures(searched: tuple[Chip, FinishedRun]) -> None:
    chip, finished = searched
    rows = run_store(chip.services).nodes(finished.run.id)
    assert [row.speedup for row in rows] == [node.speedup for node in finished.tree]
    assert run_store(chip.services).run(finished.run.id).result["over"] == finished.outcome.over


def test_nothing_is_proposed_without_manual(chips: Chips) -> None:
    finished = chips.make(7, None).searched(CANDIDATES)
    assert (len(finished.tree), finished.run.ended) == (1, "nothing is left to try")
    assert finished.outcome.gain is None and not finished.tree.root.correct


def test_half_scratchpad_in_manual_changes_proposals(chips: Chips) -> None:
    known, whole = chips.searched(7)
    half = {**known.numbers, "scratchpad_bytes": known.numbers["scratchpad_bytes"] // 2}
    finished = chips.make(7, CHIPS.manual(half)).searched(CANDIDATES)
    assert [values for values in proposed_values(finished) if not legal(values, half)] == []
    assert any(not legal(values, half) for values in proposed_values(whole))


def test_failed_values_are_not_proposed_again(known: Chip) -> None:
    """Without the limits of the manual, some do not compile."""
    free = [replace(s, body={**s.body, "constraints": []}) for s in known.samples]
    finished = known.searched(CANDIDATES, proposers=[SampleSynthesizer(free)])
    verdicts = [node.verdict for node in finished.tree.nodes[1:]]
    assert "not_compiled" in verdicts
    values = [tuple(sorted(v.items())) for v in proposed_values(finished)]
    assert len(values) == len(set(values)) >= CANDIDATES


def test_product_of_other_sizes_is_correct(known: Chip, tmp_path: Path) -> None:
    file = tmp_path / "rectangular.py"
    file.write_text(RECTANGULAR, encoding="utf-8")
    problem = load_problem(file)
    places = places_for(known.services, known.id, None)
    assert list(places) == ["novac"]
    with SimulatedBench(problem, places, EvaluationSettings()) as bench:
        view = problem_view(problem, bench.device)
        facts = known.services.registry.values(known.id)
        hardware = HardwareView(known.id, (known.id,), None, ("novac",), facts)
        first = SampleSynthesizer(known.samples).first(view, hardware)
        assert first is not None and "in A[96][128], in B[128][32], out C[96][32]" in (
            first.bundle.source
        )
        assert "ModelNew" not in first.bundle.source
        found = bench.evaluate(first)
    assert found.correct and found.speedup is not None and found.speedup.value == 1.0


@pytest.mark.parametrize("name", ["softmax", "elementwise"])
def test_problems_without_sample_get_no_recipe(known: Chip, name: str) -> None:
    view = problem_view(load_problem(EXAMPLE / "problems" / f"{name}.py"), "cpu")
    [sample] = known.samples
    assert bind(sample, view) is None


def test_rejected_sample_and_run_without_knowledge_propose_nothing(chips: Chips) -> None:
    chip = chips.with_manual(3)
    assert len(chip.searched(2, goal={"knowledge": False}).tree) == 1
    with chip.services.catalog.write() as connection:
        decide_recipe(connection, chip.samples[0].id, "rejected")
    assert chip.samples == [] and len(chip.searched(2).tree) == 1


def test_self_timing_program_on_real_hardware_is_searched(chips: Chips) -> None:
    chip = chips.with_manual(SEEDS[0])
    text = chip.description.read_text().replace('timing = "simulator"', 'timing = "wall"')
    chip.local.services.register_hardware(tomllib.loads(text), "hardware.toml")
    finished = chip.searched(3)
    outcome, best = finished.outcome, finished.tree.best
    assert best is not None and {n.verdict for n in finished.tree} == {"correct"}
    assert {n.evaluation.timing for n in finished.tree if n.evaluation is not None} == {"measured"}
    assert outcome.clock == "program" and outcome.over == "the manual's sample as it stands"
    assert outcome.gain is not None and outcome.gain.value > 1.0
    timing = best.evaluation.timings[0] if best.evaluation is not None else None
    assert timing is not None and timing.calls >= 5 and timing.speedup is not None
    assert timing.speedup.n == timing.calls and timing.baseline_us is not None


def test_own_counters_give_signals_in_search(chips: Chips) -> None:
    chip = chips.with_manual(3)
    strict = chip.description.read_text().replace("/ cycles > 0.4", "/ cycles > 0.001")
    chip.local.services.register_hardware(tomllib.loads(strict), "hardware.toml")
    root = chip.searched(1).tree.root.evaluation
    assert root is not None
    rules = {row["rule"] for signal in root.verdict.signals for row in signal.evidence}
    assert "nova-waits-on-memory" in rules


def test_own_counters_give_signals_in_answer(known: Chip) -> None:
    waits = {"nova_stall_dram_cycles": 700, "nova_stall_drain_cycles": 10, "cycles": 1000}
    proposed_values = RetrieveRequest(metrics=waits, hardware=known.id)
    verdict = known.services.retriever.retrieve(proposed_values).diagnosis
    [finding] = [signal for signal in verdict.signals if signal.id == "memory_latency"]
    assert {row["rule"] for row in finding.evidence} == {"nova-waits-on-memory"}
    elsewhere = known.services.retriever.retrieve(
        replace(proposed_values, hardware="h100")
    ).diagnosis
    assert "memory_latency" not in elsewhere.signal_ids


def test_command(known: Chip, model_cache: Path, tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    place_models(data, model_cache)
    few = {"KERNLORE_KNOWLEDGE_DIR": str(copy_knowledge(tmp_path / "knowledge", DOCUMENTS))}
    manual = known.description.with_name("manual.md")
    assert kernlore("hardware", "add", known.description, data=data).code == 0
    about = ("--hardware", "nova-7", "--category", "hardware", "--language", "novac")
    assert kernlore("ingest", manual, *about, data=data).code == 0
    listed = kernlore("knowledge", "recipes", "--hardware", "nova-7", data=data)
    assert "proposed  novac on nova-7" in listed.out and "<= 40960" in listed.out
    search = ("--hardware", "nova-7", "--language", "novac", "--candidates", "4", "-o", out)
    ran = kernlore("optimize", MATMUL, *search, data=data, environment=few)
    first, module, kernel = ran.out.splitlines()
    assert "x over the manual's sample as it stands, by simulated time (`simulator`" in first
    assert module == str(out / "matmul_kernel") and kernel.startswith(f"{module}/kernel.novac runs")
    report = (out / "report.md").read_text(encoding="utf-8")
    assert "No wall time is in them." in report and "over the manual's sample" in report
