"""A packed session on a machine with torch alone, the winner's module called there, and the table
of what it gained read here."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.evaluation.gpu_machine import kept
from benchmarks.search.gains.module_check import checked
from benchmarks.search.gains.rows import Row, compiled_default, means
from benchmarks.search.gains.sessions import (
    MODULES,
    is_finished,
    opened,
    runs_in,
    searched,
    shares_of,
)
from benchmarks.search.search_gains_gpu import TITLE, latest, main, read_lane
from kb.errors import InvalidRequest, NotFound
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.collectors.ceilings import BandwidthPoint, Ceilings, MeasuredRate
from optimizer.evaluation.problem.load import load_problem
from optimizer.evaluation.records import Interval
from optimizer.search import confirm
from optimizer.search.confirm import Outcome, outcome_from_json
from optimizer.search.portable.launch import RESULTS
from optimizer.search.records import Node, Proposal
from optimizer.search.store import FileStore
from optimizer.search.tree import Tree
from tests.optimizer.search.portable.bare_machine import bare_python
from tests.packed_session import on_bare_machine, packed_session

pytestmark = pytest.mark.slow(seconds=30)

ROOT = Path(__file__).resolve().parents[2]
PROBLEM = "map_id"
KERNEL = """
import torch

class ModelNew(torch.nn.Module):
    def forward(self, ids, table):
        places = torch.searchsorted(table, ids).clamp(max=table.numel() - 1)
        return torch.where(table[places] == ids, places + {first}, 0)
"""


@pytest.fixture
def reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """What the command prints."""

    def run(*arguments: str | Path) -> str:
        monkeypatch.setattr(sys, "argv", ["search_gains_gpu", *map(str, arguments)])
        main()
        return capsys.readouterr().out

    return run


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bare_python(tmp_path_factory.mktemp("bare"))


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, bare: Path) -> Path:
    """The folder that a session leaves, with the modules called on the machine that ran it."""
    session = packed_session(tmp_path_factory, tmp_path_factory.mktemp("session"))
    called = on_bare_machine(bare, *checking(session.results), cwd=ROOT)
    assert called.returncode == 0, called.stderr
    return session.results


def checking(folder: Path) -> tuple[str | Path, ...]:
    return "-m", "benchmarks.search.portable_modules", folder, "--device", "cpu"


def test_the_module_is_called_where_there_is_only_torch(ran: Path, bare: Path) -> None:
    (row,) = kept(ran, MODULES)
    assert (row["problem"], row["run"]) == (PROBLEM, runs_in(ran)[0].id)
    assert row["checked"] in ("right, by the kernel", "right, by the reference")
    again = on_bare_machine(bare, *checking(ran), cwd=ROOT)
    assert again.returncode == 0 and PROBLEM not in again.stderr
    assert kept(ran, MODULES) == [row]


def test_nothing_is_begun_when_the_time_is_over(ran: Path, bare: Path, tmp_path: Path) -> None:
    out = shutil.copytree(ran, tmp_path / "out")
    (out / MODULES).unlink()
    done = on_bare_machine(bare, *checking(out), "--seconds", "0", cwd=ROOT)
    assert done.returncode == 0 and f"{PROBLEM}/problem.py: not begun" in done.stderr
    assert not (out / MODULES).exists()


def test_the_table(ran: Path, tmp_path: Path, reported: Callable[..., str]) -> None:
    path = tmp_path / "table.md"
    done = reported(
        "--folder", ran, "--problem", PROBLEM, "--problem", "softmax", "--results", path
    )
    text = path.read_text(encoding="utf-8")
    assert text.startswith(f"# {TITLE}\n") and "x86-64 (cpu, device " in text
    line = next(line for line in text.splitlines() if line.startswith(f"| {PROBLEM} |"))
    (checked_row,) = kept(ran, MODULES)
    assert line.endswith(f" {checked_row['checked']} |")
    (run,) = runs_in(ran)
    found = searched(ran, run)
    gain = found.outcome.gain
    assert (str(gain) if gain else "no gain") in line
    assert f"Candidates in all: {len(found.tree) - 1} in" in text
    assert "in none of the means: 1: softmax (no run)." in text
    assert "no unseen problems" in text
    as_zip = reported("--folder", ran / RESULTS, "--problem", PROBLEM, "--problem", "softmax")
    assert as_zip == done


def test_an_unfinished_run_is_named_and_not_counted(
    ran: Path, tmp_path: Path, reported: Callable[..., str]
) -> None:
    out = shutil.copytree(ran, tmp_path / "out")
    store = FileStore(out)
    (run,) = runs_in(out)
    store.update(replace(run, state="running", result={}))
    assert not is_finished(runs_in(out)[0])
    printed = reported("--folder", out, "--problem", PROBLEM)
    assert f"{PROBLEM} (running" in printed
    assert "Candidates in all: 0" in printed
    _, told, after = printed.partition("ended before the best candidate was measured again")
    assert told and after.count(f"\n| {PROBLEM} | 1 |") == 1


def test_of_two_runs_of_a_problem_the_later_one_counts(ran: Path, tmp_path: Path) -> None:
    """Also where the earlier one gained more."""
    out = shutil.copytree(ran, tmp_path / "out")
    (run,) = runs_in(ran)
    shutil.copytree(out / run.id, out / "session_2")
    gainless = Outcome(None, None, "no gain").as_json()
    later = replace(run, id="session_2", started_at=run.started_at + 1, result=gainless)
    FileStore(out).update(later)
    lines, replaced = latest([read_lane(out)])
    assert [line.run.id for line in lines] == ["session_2"] and replaced == [
        f"{run.id} ({PROBLEM})"
    ]
    assert lines[0].row.checked == "not checked"


def test_results_that_are_none(tmp_path: Path) -> None:
    for path, error in ((tmp_path / "nowhere", NotFound), (tmp_path, InvalidRequest)):
        with pytest.raises(error), opened(path):
            pass
    (tmp_path / "text.zip").write_text("no zip")
    with pytest.raises(InvalidRequest), opened(tmp_path / "text.zip"):
        pass


@pytest.mark.parametrize(
    ("first", "said"), [(1, "right, by the kernel"), (2, "WRONG: output0 is wrong in a share")]
)
def test_a_kernel_that_takes_the_call(ran: Path, tmp_path: Path, first: int, said: str) -> None:
    (run,) = runs_in(ran)
    found = searched(ran, run)
    bundle = Bundle({"kernel.py": KERNEL.format(first=first)}, "kernel.py", "torch", "ModelNew")
    root = found.tree.root
    node = replace(root, number=1, parent=0, proposal=Proposal(bundle, "external"))
    case = next(c for c in found.problem.searched if c.timed and c.fits("cpu"))
    figure = confirm.Figure(case.name, False, Interval(2.0, 1.9, 2.1, 9), 1.0, 2.0)
    outcome = Outcome(1, figure.speedup, "", figures=(figure,))
    assert checked(Tree([root, node]), outcome, found.problem, tmp_path).startswith(said)


# -- figures whose answers are known


def line(**told: Any) -> Row:
    given: dict[str, Any] = {
        "problem": "p", "op": "softmax", "candidates": 1, "verdicts": {}, "held_out": "",
        "gain": (4.0, 3.9, 4.1, 9), "compiled": (2.0, 1.9, 2.1, 9), "origin": "recipe",
        "recipe": "r", "seconds": 1.0, "ended": "", "checked": "",
    }  # fmt: skip
    return Row(**{**given, **told})


def mean_of(rows: Sequence[Row], name: str) -> list[str]:
    cells = next(row for row in means(rows).splitlines() if row.startswith(f"| {name}"))
    return [cell.split()[0] for cell in cells.split("|")[2:4]]


def test_means_count_what_they_say() -> None:
    rows = [
        line(),
        line(origin="config", gain=(16.0, 15.0, 17.0, 9)),
        line(op="elementwise", gain=None, compiled=None, origin=""),
    ]
    assert mean_of(rows, "all") == ["4.000", "4.000"]  # (4 16 1)^(1/3), (2 8)^(1/2)
    assert mean_of(rows, "winners") == ["1.587", "1.000"]  # (4 1 1)^(1/3), (2 0.5)^(1/2)
    assert mean_of(rows, "without") == ["8.000", "4.000"]


def ceilings(bandwidth: float, flops: float, waited: float = 0.0) -> Ceilings:
    copy = (BandwidthPoint(1 << 30, bandwidth, 0.0, 9),)
    peak = {"float32": MeasuredRate(flops, 0.0, 9)}
    return Ceilings("d", "cuda", 8, 0, copy, matmul=peak, waited=waited)


def test_shares_are_of_compulsory_bytes() -> None:
    """The GPU's sizes, which this machine need not hold: softmax reads and writes 512 MiB."""
    problem = load_problem(Path("softmax"))
    speedup = Interval(2.0, 1.9, 2.1, 9)
    figures = (
        confirm.Figure("gpu", False, speedup, 1000.0, 2000.0),
        confirm.Figure("gpu_held_out", True, speedup, 1000.0, 2000.0),
    )
    outcome = Outcome(1, speedup, "", figures=figures)
    (share,) = shares_of(problem, outcome, ceilings(2e12, 1e15))
    assert (share.case, share.bound) == ("gpu", True)
    assert share.copy == pytest.approx(100 * 2 * (1 << 29) / 1e-3 / 2e12)
    assert share.mix == pytest.approx(share.copy)
    assert shares_of(problem, outcome, ceilings(2e12, 1e15, waited=0.5)) == ()
    assert shares_of(problem, replace(outcome, node=None), ceilings(2e12, 1e15)) == ()
    assert shares_of(load_problem(Path(PROBLEM)), outcome, ceilings(2e12, 1e15)) == ()


def test_a_product_is_not_bound_by_memory() -> None:
    figure = confirm.Figure("gpu", False, Interval(2.0, 1.9, 2.1, 9), 1e6, 2e6)
    outcome = Outcome(1, figure.speedup, "", figures=(figure,))
    problem = load_problem(Path("matmul_bias_gelu"))
    assert [s.bound for s in shares_of(problem, outcome, ceilings(4e12, 5e13))] == [False]
    assert [s.bound for s in shares_of(problem, outcome, ceilings(4e12, 1e16))] == [True]


def test_only_torch_compile_as_it_comes_is_the_default() -> None:
    def node(number: int, values: dict[str, str]) -> Node:
        bundle = Bundle({"m.py": str(values)}, "m.py", "torch", "ModelNew", values, "config")
        proposal = Proposal(bundle, "compiler", values=values)
        return Node(number, 0, "evaluated", proposal, None)

    root = Node(0, None, "evaluated", None, None)
    tuned = node(1, {"mode": "max-autotune"})
    assert compiled_default(Tree([root, tuned])) is None
    found = compiled_default(Tree([root, tuned, node(2, {"mode": "default"})]))
    assert found is not None and found.number == 2


def test_an_outcome_is_read_as_it_was_stored() -> None:
    figure = confirm.Figure("gpu", False, Interval(2.0, 1.9, 2.1, 9), 1.0, 2.0)
    for inherited in (None, figure.speedup):
        outcome = Outcome(3, figure.speedup, "", inherited, (figure,), ("a note",))
        assert outcome_from_json(json.loads(json.dumps(outcome.as_json()))) == outcome
