"""External trajectories: limits on reading, and claims separate from measurements."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kb.errors import InvalidRequest, PayloadTooLarge
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.records import Evaluation, Interval
from optimizer.search.goal import Goal
from optimizer.search.output.report import write_trajectory
from optimizer.search.records import Node, Proposal
from optimizer.search.store import RunRow
from optimizer.search.tree import Tree
from skills.trajectories.external import (
    MAX_PLAN,
    MAX_STEP_BYTES,
    MAX_STEPS,
    ExternalProblem,
    ExternalStep,
    ExternalTrajectory,
    external_trajectory_from_json,
    file_name,
    read_lines,
    tree_of,
)

MAP_ID = ExternalProblem(name="map_id")


def bundle(text: str = "int a;", **changes: Any) -> Bundle:
    given = {"files": {"k.cpp": text}, "main": "k.cpp", "language": "cpp", "entry": "kernlore_run"}
    return Bundle(**{**given, **changes})


def step(number: int = 1, parent: int = 0, text: str = "int a;", **more: Any) -> ExternalStep:
    return ExternalStep(number, parent, bundle(text), **more)


def test_external_trajectory_round_trips() -> None:
    external = ExternalTrajectory(
        MAP_ID,
        "x86-64",
        (step(plan="p", claimed=("mv_1",), texts=("t",), claimed_speedup=10.0), step(2, 1)),
        "somebody",
        "MIT",
    )
    again = external_trajectory_from_json(json.loads(json.dumps(external.as_json())))
    assert again == external and again.id == external.id


def test_id_depends_only_on_content() -> None:
    first, other = (ExternalTrajectory(MAP_ID, "x86-64", (step(),), actor) for actor in ("a", "b"))
    assert first.id == other.id
    assert first.id != ExternalTrajectory(MAP_ID, "h100", (step(),)).id
    assert first.id != ExternalTrajectory(MAP_ID, "x86-64", (step(text="int b;"),)).id


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ((), "0 steps"),
        (tuple(step(n) for n in range(1, MAX_STEPS + 2)), f"{MAX_STEPS + 1} steps"),
        ((step(2),), "is at position 1"),
        ((step(1, 1),), "changes step 1"),
        ((step(1, -1),), "changes step -1"),
        ((step(claimed_speedup=float("nan")),), "claims"),
        ((step(claimed_speedup=-2.0),), "claims"),
        ((step(plan="x" * (MAX_PLAN + 1)),), "too long texts"),
        ((step(texts=("x",) * 21),), "too long texts"),
        ((ExternalStep(1, 0, bundle(files={"k.cpp": "", "bundle.json": ""})),), "bundle.json"),
        ((ExternalStep(1, 0, bundle(files={"k.cpp": "", "k.cpp/a.h": ""})),), "k.cpp"),
    ],
)
def test_invalid_trajectories_are_refused(steps: tuple[ExternalStep, ...], message: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        ExternalTrajectory(MAP_ID, "x86-64", steps)
    assert message in refused.value.message and refused.value.hint


def test_sizes_have_limits() -> None:
    with pytest.raises(PayloadTooLarge):
        ExternalTrajectory(MAP_ID, "x86-64", (step(text="x" * (MAX_STEP_BYTES + 1)),))
    many = tuple(step(n, text=f"{n}" + "x" * (MAX_STEP_BYTES - 10)) for n in range(1, 10))
    with pytest.raises(PayloadTooLarge):
        ExternalTrajectory(MAP_ID, "x86-64", many)


def test_language_without_file_name_needs_files() -> None:
    assert file_name("cuda") == "kernel.cu"
    with pytest.raises(InvalidRequest, match="fortran"):
        file_name("fortran")


def evaluation(of: Bundle) -> Evaluation:
    ratio = Interval(0.5, 0.4, 0.6, 10)
    return Evaluation(
        f"key-{of.sha256}",
        "map_id",
        of.sha256,
        "cpp",
        "x86-64",
        "cpu",
        "g++",
        "3",
        "correct",
        "measured",
        "diagnose",
        speedup=ratio,
    )


def test_tree_has_only_measured_values() -> None:
    """The claim of 10 is in no node; an equal bundle is a duplicate; one bundle may be missing."""
    steps = (step(1, 0, "int a;", claimed_speedup=10.0), step(2, 1, "int b;"), step(3, 2, "int a;"))
    first, second = steps[0].bundle, steps[1].bundle
    tree = tree_of(steps, None, {first.sha256: evaluation(first)}, {second.sha256: "it exited"})
    assert [node.state for node in tree] == ["evaluated", "evaluated", "failed", "duplicate"]
    assert (tree[3].same_as, tree[2].problem) == (1, "it exited")
    assert tree[1].speedup == Interval(0.5, 0.4, 0.6, 10)
    assert "10.0" not in json.dumps([node.as_json()["proposal"] for node in tree])


# -- exports of Kernlore


@pytest.fixture
def rows(tmp_path: Path) -> list[dict[str, Any]]:
    """Lines as `runs export` writes them."""
    first, second = bundle("int a;"), bundle("int b;", parameters={"tile": 8})
    tree = Tree(
        [
            Node(0, None, "evaluated", None, None),
            Node(1, 0, "evaluated", Proposal(first, "llm", 0, "one"), evaluation(first)),
            Node(
                2,
                1,
                "evaluated",
                Proposal(second, "recipe", 1, "two", "tiled", {"tile": 8}, ("mv_1",), ("sk_1",)),
                None,
            ),
        ]
    )
    run = RunRow("run_7", "map_id", "abc", "x86-64", Goal())
    write_trajectory(run, tree, tmp_path / "t.jsonl")
    return [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]


def test_lines_of_an_export_are_claims(rows: list[dict[str, Any]]) -> None:
    run = read_lines(rows)
    assert (run.run, run.problem_sha256, run.hardware) == ("run_7", "abc", "x86-64")
    first, second = run.steps
    assert (first.number, first.parent, first.plan, first.claimed_speedup) == (1, 0, "one", 0.5)
    assert (second.parent, second.claimed, second.claimed_speedup) == (1, ("mv_1", "sk_1"), None)
    assert second.bundle.parameters == {"tile": 8}  # matched by the hash of the bundle
    assert first.bundle.origin == second.bundle.origin == "external"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows.clear(), "no lines"),
        (lambda rows: rows.pop(1), "line 2"),
        (lambda rows: rows[1].update(format=2), "line 2"),
        (lambda rows: rows[2].update(run="run_8"), "another run"),
        (lambda rows: rows[1].update(action=None), "without an action"),
        (
            lambda rows: rows[1]["action"].update(source={"k.cpp": "int c;"}),
            "does not have the hash",
        ),
        (lambda rows: rows[1]["action"].update(source=["int a;"]), "action.source"),
        (lambda rows: rows[1]["action"].update(main=3), "action.main"),
        (lambda rows: rows[1]["action"].update(claimed="mv_1"), "action.claimed"),
        (lambda rows: rows[1].update(parent="0"), "parent"),
    ],
)
def test_invalid_lines_are_refused(rows: list[dict[str, Any]], change: Any, message: str) -> None:
    change(rows)
    with pytest.raises(InvalidRequest) as refused:
        read_lines(rows)
    assert message in refused.value.message
