"""Reports of a run; every figure in them has an interval."""

from __future__ import annotations

import json
import re
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kb.answers import SignalFinding
from optimizer.evaluation.records import CaseCheck, CaseTiming, EvaluationVerdict
from optimizer.search.confirm import RunOutcome
from optimizer.search.output.plots import STYLES, write_plots
from optimizer.search.output.report import write_report
from optimizer.search.records import Node, Proposal
from optimizer.search.tree import Tree
from tests.optimizer.search.output.output_runs import (
    cpp_bundle,
    evaluation,
    figure,
    interval,
    no_gain_run,
    problem_in,
    torch_bundle,
    winner_run,
)

pytestmark = pytest.mark.slow(seconds=5)

WITH_INTERVAL = re.compile(r"\d+\.\d+x \[\d+\.\d+, \d+\.\d+\] n=\d+")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of the run with a winner."""
    place = tmp_path_factory.mktemp("report")
    run, tree, outcome = winner_run(cpp_bundle())
    path = write_report(run, tree, outcome, problem_in(place / "problem"), place)
    assert path == place / "report.md"
    return place


@pytest.fixture(scope="module")
def report_content(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return content


@pytest.fixture(scope="module")
def text(folder: Path) -> str:
    return (folder / "report.md").read_text()


def test_result_has_three_figures_with_intervals(report_content: dict[str, Any]) -> None:
    result = report_content["result"]
    assert result["winner"] == 2
    assert result["gain"] == vars(interval(1.9, 48))
    assert result["inherited"] == vars(interval(1.4))
    new = result["new"]
    assert new["value"] == pytest.approx(1.9 / 1.4) and new["n"] == 24
    # Errors of two independent measurements of 5 % each add up to about 7 %.
    assert new["high"] / new["value"] == pytest.approx(1.073, abs=0.002)


def test_inherited_winner_is_not_new(tmp_path: Path) -> None:
    run, tree, outcome = winner_run(cpp_bundle())
    write_report(run, tree, replace(outcome, node=1), problem_in(tmp_path / "p"), tmp_path)
    result = json.loads((tmp_path / "report.json").read_text())["result"]
    assert result["new"] is None and result["inherited"] is not None


def test_gain_without_inheritance_is_new(tmp_path: Path) -> None:
    run, tree, outcome = winner_run(cpp_bundle())
    alone = replace(outcome, inherited=None)
    write_report(run, tree, alone, problem_in(tmp_path / "p"), tmp_path)
    result = json.loads((tmp_path / "report.json").read_text())["result"]
    assert result["new"] == result["gain"] and result["inherited"] is None


def test_cases_candidates_verdicts_and_costs(report_content: dict[str, Any]) -> None:
    assert [(c["case"], c["held_out"], c["wins"]) for c in report_content["cases"]] == [
        ("main", False, True),
        ("slow", False, False),
        ("shifted", False, True),
        ("held", True, True),
    ]
    assert report_content["verdicts"]["outcomes"] == {
        "correct": 2,
        "not_compiled": 1,
        "duplicate": 1,
        "failed": 1,
    }
    groups = {(g["origin"], g["synthesizer"], g["recipe"]): g for g in report_content["candidates"]}
    assert sum(g["n"] for g in groups.values()) == 5
    lost = groups["llm", "llm", None]
    assert (lost["n"], lost["correct"], lost["best"]) == (3, 0, None)
    assert lost["failures"] == {"not_compiled": 1, "duplicate": 1, "failed": 1}
    assert groups["recipe", "recipe", "rows-once"]["best"] == vars(interval(1.4))
    [model] = report_content["models"]
    assert (model["n"], model["tokens_in"], model["usd"]) == (4, 1230, 0.0125)
    assert model["usd_unknown"] == 3


def test_group_without_figure_has_its_rough_ratio(tmp_path: Path) -> None:
    run, tree, outcome = no_gain_run()
    measured = evaluation(cpp_bundle(), None)
    times = CaseTiming("main", "repeat", reason="busy", rough_us=10.0, rough_baseline_us=30.0)
    checks = (CaseCheck("main", 3, True),)
    untimed = replace(measured, timing="repeat", timings=(times,), checks=checks)
    proposal = Proposal(cpp_bundle(), "llm", 0, "a plan")
    tree = Tree([*tree.nodes, Node(1, 0, "unmeasured", proposal, untimed)])
    path = write_report(run, tree, outcome, problem_in(tmp_path / "p"), tmp_path)
    rough = "roughly 3x (not confirmed: the processors were busy)"
    content = json.loads((tmp_path / "report.json").read_text())
    (group,) = content["candidates"]
    assert group["best"] is None and group["rough"] == f"{rough}, node 1"
    text = path.read_text()
    assert f"| {rough}, node 1 |" in text
    assert f"* node 1: correct, not measured, {rough}: busy" in text


def test_path_describes_each_step(report_content: dict[str, Any]) -> None:
    first, last = report_content["path"]
    assert (first["from"], first["to"], last["from"], last["to"]) == (0, 1, 1, 2)
    assert first["inherited"] and first["attributed"] == ["sk_1"]
    assert last["changes"] == {"vector": [4, 8], "unroll": [None, 2]}
    assert last["signals_before"] == ["latency_bound"]
    assert last["signals_after"] == ["memory_bound"]
    assert last["shown"]["moves"] == ["mv_1", "mv_2"] and last["claimed"] == ["mv_1"]


def test_unmeasured_values_are_reported(report_content: dict[str, Any]) -> None:
    text = "\n".join(report_content["not_measured"])
    assert "node 1: too busy" in text
    assert "node 4: the same kernel as node 3" in text
    assert "node 5" in text and "the device is gone" in text
    assert "roofline" in text and "copy_bandwidth_pct" in text


def test_every_figure_of_markdown_has_interval(text: str, report_content: dict[str, Any]) -> None:
    assert len(WITH_INTERVAL.findall(text)) >= 12
    rest = WITH_INTERVAL.sub("", text)
    assert not re.search(r"\d\s*x\b", rest), "a speed-up without interval"
    # The remaining numbers with a decimal point are money and versions.
    decimals = set(re.findall(r"\d+\.\d+", rest))
    assert decimals == {"0.0125", "2.13"}
    for case in report_content["cases"]:
        row = next(line for line in text.splitlines() if line.startswith(f"| {case['case']} |"))
        assert WITH_INTERVAL.search(row)


def test_plans_cannot_break_table(text: str) -> None:
    assert "one pass \\| two rows" in text
    for table in re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}) == 1


def test_markdown_names_only_existing_files(text: str, folder: Path) -> None:
    pictures = re.findall(r"!\[.*?\]\((.*?)\)", text)
    assert pictures == ["plots/progress.svg", "plots/tree.svg"]
    assert all((folder / name).is_file() for name in pictures)
    assert "`trajectory.jsonl`" in text and (folder / "trajectory.jsonl").is_file()


def test_report_states_no_gain(tmp_path: Path) -> None:
    run, tree, outcome = no_gain_run()
    text = write_report(run, tree, outcome, problem_in(tmp_path / "p"), tmp_path).read_text()
    assert "**No gain.**" in text and "The written module is the reference" in text
    assert not WITH_INTERVAL.search(text)


def test_remeasured_loser_keeps_its_figures(tmp_path: Path) -> None:
    run, tree, _ = winner_run(cpp_bundle())
    outcome = RunOutcome(None, None, "no gain: not certain", None, (figure("main", 1.02),))
    text = write_report(run, tree, outcome, problem_in(tmp_path / "p"), tmp_path).read_text()
    assert "| main | searched | 1.020x [0.969, 1.071] n=24 | no |" in text
    assert "no held-out case was measured" in text


# -- plots


def marks(path: Path) -> list[str]:
    """Ids of the candidates in an SVG, parsed as XML."""
    ids = [element.get("id", "") for element in ET.parse(path).iter()]
    return sorted(name for name in ids if name.startswith("candidate-"))


@pytest.mark.parametrize("name", ["progress", "tree"])
def test_every_candidate_is_one_mark(folder: Path, name: str) -> None:
    assert marks(folder / "plots" / f"{name}.svg") == [f"candidate-{n}" for n in range(1, 6)]


def test_axes_are_labelled(folder: Path) -> None:
    words = "".join(ET.parse(folder / "plots" / "progress.svg").getroot().itertext())
    assert "speed-up over the reference" in words and "candidate" in words


def test_path_to_winner_is_thicker(folder: Path) -> None:
    source = (folder / "plots" / "tree.svg").read_text()
    widths = {
        n: re.search(rf'<g id="edge-{n}">.*?stroke-width: ([\d.]+)', source, re.DOTALL)
        for n in (1, 2, 4)
    }
    thick = {n: float(match[1]) if match else 1.0 for n, match in widths.items()}
    assert thick[1] == thick[2] > thick[4]


def test_plots_are_deterministic(tmp_path: Path) -> None:
    _, tree, _ = winner_run(cpp_bundle())
    first, second = (write_plots(tree, 2, tmp_path / name) for name in ("a", "b"))
    assert first.drawn["tree"].read_text() == second.drawn["tree"].read_text()


def test_roofline_position_is_drawn_if_known(tmp_path: Path) -> None:
    bundle = torch_bundle()
    known = {"matmul_peak_pct": 4.0, "copy_bandwidth_pct": 81.0}
    evidence = [{"name": name, "value": value / 2} for name, value in known.items()]
    reference = replace(evaluation(None, None), metrics=known)
    verdict = EvaluationVerdict((SignalFinding("memory_bound", "B", tuple(evidence)),))
    _, tree, _ = winner_run(bundle)
    step = replace(tree[1], evaluation=replace(evaluation(bundle, 1.4), verdict=verdict))
    nodes: list[Node] = [replace(tree[0], evaluation=reference), step]
    plots = write_plots(Tree(nodes), 1, tmp_path)
    ids = {element.get("id") for element in ET.parse(plots.drawn["roofline"]).iter()}
    assert {"position-reference", "position-winner"} <= ids and not plots.left_out


def test_run_without_candidates_has_plots(tmp_path: Path) -> None:
    _, tree, _ = no_gain_run()
    assert set(write_plots(tree, None, tmp_path).drawn) == {"progress", "tree"}


def test_every_verdict_has_distinct_style() -> None:
    from typing import get_args

    from optimizer.evaluation.records import Validity
    from optimizer.search.records import NodeState

    states = {*get_args(Validity), *get_args(NodeState)} - {"evaluated"}
    assert states <= set(STYLES)
    assert len({(colour, marker) for colour, marker, _ in STYLES.values()}) == len(STYLES)


def test_report_without_matplotlib_has_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in {"matplotlib", *sys.modules}:
        if name.partition(".")[0] == "matplotlib":
            monkeypatch.setitem(sys.modules, name, None)
    run, tree, outcome = winner_run(cpp_bundle())
    write_report(run, tree, outcome, problem_in(tmp_path / "p"), tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert "plot progress: matplotlib is not installed" in text and "![" not in text


# -- trajectory


def test_trajectory_has_state_action_and_reward_of_every_node(folder: Path) -> None:
    lines = [json.loads(line) for line in (folder / "trajectory.jsonl").read_text().splitlines()]
    assert [line["node"] for line in lines] == list(range(6))
    reference, _, winner, broken, duplicate, failed = lines
    assert reference["action"] is None
    assert winner["state"]["shown"]["excerpts"] == ["ps_1"]
    assert winner["state"]["parent_speedup"] == vars(interval(1.4))
    assert winner["action"]["source"] == dict(cpp_bundle().files)
    assert winner["action"]["values"] == {"vector": 8, "unroll": 2}
    assert winner["reward"]["value"] == pytest.approx(2.1 * 0.95)
    provenance = winner["reward"]["provenance"]
    assert (provenance["checks"], provenance["checks_passed"]) == (1, 1)
    assert provenance["flags"][0]["defence"] == 29
    assert broken["reward"]["value"] == 0.0  # a failing kernel has the reward 0
    assert duplicate["reward"]["value"] is None and duplicate["reward"]["same_as"] == 3
    assert failed["reward"]["value"] is None  # not evaluated
