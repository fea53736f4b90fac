"""A small stored run with a candidate that waits for a review: listed and answered over HTTP and by
command, then distilled and exported with the answer.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api.app import create_app
from api.services import Services
from kb.catalog.evaluations import CandidateRow, CaseFigures, CaseRow, Evaluations, ProblemRow
from kb.settings import Settings
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.problem.load import load_problem
from optimizer.evaluation.problem.spec import Problem
from optimizer.evaluation.records import CaseCheck, CaseTiming, Evaluation, Flag, Interval
from optimizer.search.goal import Goal
from optimizer.search.records import Node, Proposal
from optimizer.search.runs.run_store import run_store
from optimizer.search.store import RunRow
from skills.curator.contrast import gate
from skills.training.export import ExportRequest, export_trajectories
from skills.trajectories.external import ExternalProblem, ExternalStep, ExternalTrajectory
from skills.trajectories.reading import trajectory, trajectory_store
from tests.api.cli_process import kernlore
from tests.api.conftest import URL, assert_error, validate_answers, wait_until_ready
from tests.evaluations import RIGHT
from tests.shared import copy_knowledge, place_models

pytestmark = pytest.mark.slow(seconds=10)

FLAG = "case main: 40.0 times as fast as the reference; look at what it leaves out"
REVIEW = Flag(29, "review", FLAG)
REJECT = Flag(14, "reject", "it falls back to the reference")
RECIPE = "cpp-address-by-value-map-id"
ANSWER = {"decision": "accepted", "actor": "ann", "reason": "a table look-up, every row is right"}
NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, model_cache: Path) -> Iterator[TestClient]:
    """A separate service, because these runs were not measured: chips and a single document, whose
    vectors ship.
    """
    base = tmp_path_factory.mktemp("reviews")
    knowledge = copy_knowledge(base / "knowledge", ("guidance/memory-bound.md",))
    data = place_models(base / "data", model_cache)
    settings = Settings(data_dir=data, knowledge_dir=knowledge)
    with TestClient(create_app(settings), URL, raise_server_exceptions=False) as running:
        validate_answers(running)
        # Recipes have the licences that exports need. The output of the start is complete by then,
        # so it does not mix with the output of commands in this process.
        wait_until_ready(running)
        yield running


@pytest.fixture
def services(client: TestClient) -> Services:
    found: Services = client.app.state.services  # type: ignore[attr-defined]
    return found


@pytest.fixture
def run(services: Services) -> Iterator[str]:
    """Reference, a plain step, one that waits, a copy of it, and one rejected by a check."""
    yield stored(services, f"run_{next(NUMBERS)}")


def bundle(run: str, number: int) -> Bundle:
    text = f"// {run}\nint kernlore_run() {{ return {number}; }}\n"
    return Bundle({"k.cpp": text}, "k.cpp", "cpp", "kernlore_run", {}, "recipe")


def found(
    problem: Problem, of: Bundle | None, value: float | None, *flags: Flag, key: str
) -> Evaluation:
    ratio = None if value is None else Interval(value, value * 0.98, value * 1.02, 20)
    rejected = any(flag.severity == "reject" for flag in flags)
    return replace(
        RIGHT,
        key=key,
        problem=problem.name,
        candidate=of.sha256 if of is not None else "reference",
        validity="rejected" if rejected else "correct",
        timing="measured" if ratio else "none",
        checks=(CaseCheck("main", 1, True),),
        timings=(CaseTiming("main", "measured", 40.0, 40.0 / (value or 1.0), ratio, 100),),
        speedup=ratio,
        flags=flags,
    )


def evaluated(
    services: Services, run: str, number: int, value: float | None, *flags: Flag
) -> Evaluation:
    problem, rows = load_problem(Path("map_id")), Evaluations(services.catalog)
    of = bundle(run, number) if number else None
    made = found(problem, of, value, *flags, key=f"{run}-{number}")
    sha256 = of.sha256 if of is not None else "0" * 64
    rows.begin(
        made.key,
        ProblemRow(problem.name, problem.sha256, "file", "map", "blob", {}),
        [CaseRow("main", "float32", [], "small", "normal", 1.0, False)],
        CandidateRow(sha256, "cpp", "kernlore_run", "recipe", {}, "blob"),
        "3",
        "cpu",
    )
    figures = [
        CaseFigures(t.case, True, 40.0, t.candidate_us, value, t.speedup.low)
        for t in made.timings
        if t.speedup is not None
    ]
    rows.finish(made.key, made.as_json(), figures, op_family="map", hardware_id="x86-64")
    return made


def proposed(run: str, number: int, parent: int = 0) -> Proposal:
    return Proposal(bundle(run, number), "recipe", parent, "a plan", RECIPE)


def stored(services: Services, run: str) -> str:
    problem, store = load_problem(Path("map_id")), run_store(services)
    evaluation = partial(evaluated, services, run)
    proposal = partial(proposed, run)
    nodes = [
        Node(0, None, "evaluated", None, evaluation(0, None)),
        Node(1, 0, "evaluated", proposal(1), evaluation(1, 1.5)),
        Node(2, 1, "evaluated", proposal(2, 1), evaluation(2, 40.0, REVIEW)),
        Node(3, 0, "duplicate", proposal(2), None, same_as=2),
        Node(4, 0, "evaluated", proposal(4), evaluation(4, None, REVIEW, REJECT)),
    ]
    goal = Goal(language="cpp", knowledge=False)
    store.begin(RunRow(run, str(problem.path), problem.sha256, "x86-64", goal))
    for node in nodes:
        store.add(run, node)
    return run


def door(services: Services, *arguments: str) -> Any:
    ran = kernlore("runs", *arguments, "--json", data=services.settings.data_dir)
    return ran.json if ran.code == 0 else (ran.code, ran.json["code"], ran.json["message"])


def listed(client: TestClient, run: str) -> list[dict[str, Any]]:
    answer = client.get(f"/runs/{run}/flagged")
    assert answer.status_code == 200, answer.text
    assert answer.json()["run"] == run
    rows: list[dict[str, Any]] = answer.json()["flagged"]
    return rows


def passed(services: Services, run: str, node: int) -> tuple[bool, str]:
    record = trajectory(services, run)
    (step,) = [step for step in record.steps if step.child.number == node]
    _, decision = gate(record, step, {})
    return decision.passed, decision.reason


def exported(services: Services, run: str, folder: Path) -> dict[str, Any]:
    requested = ExportRequest("sft", only=(run,), trainable=True)
    manifest = export_trajectories(services, requested, folder)
    lines = Path(manifest["file"]).read_text(encoding="utf-8").splitlines()
    return {**manifest, "ids": [json.loads(line)["id"].rpartition("/")[2] for line in lines]}


def test_answer_by_command_is_learned_and_visible_over_http(
    client: TestClient, services: Services, run: str, tmp_path: Path
) -> None:
    (row,) = listed(client, run)
    assert (row["node"], row["flags"], row["decision"]) == (2, [FLAG], None)
    assert row["speedup"] == {"value": 40.0, "low": 39.2, "high": 40.8, "n": 20}
    assert passed(services, run, 2) == (
        False,
        f"held for a person: it was flagged for review: {FLAG}",
    )
    before = exported(services, run, tmp_path / "before")
    assert before["ids"] == ["1"] and before["reviews"] == []
    assert before["left_out"]["held for a person by an integrity flag"] == 1
    given = ("--accept", "--actor", "ann", "--reason", ANSWER["reason"])
    answered = door(services, "review", run, "2", *given)
    assert answered["decision"] == "accepted" and answered["review"]["actor"] == "ann"
    assert listed(client, run) == [answered]
    free, reason = passed(services, run, 2)
    assert free and reason.startswith("faster than its parent")
    record = client.get(f"/trajectories/{run}").json()["trajectory"]
    measured = record["steps"][1]["child"]["measured"]
    assert ANSWER["reason"] in measured["reviewed"]
    assert measured["flags"] == [FLAG] and not measured["rejected"]
    assert measured["speedup"]["value"] == 40.0
    assert record["steps"][2]["child"] == {**record["steps"][1]["child"], "number": 3}
    after = exported(services, run, tmp_path / "after")
    assert after["ids"] == ["1", "2"]
    assert "held for a person by an integrity flag" not in after["left_out"]
    (remaining,) = after["reviews"]
    assert (remaining["candidate"], remaining["reason"]) == (f"{run}/2", ANSWER["reason"])


def test_newest_answer_over_http_counts(
    client: TestClient, services: Services, run: str, tmp_path: Path
) -> None:
    path = f"/runs/{run}/nodes/2/review"
    assert client.post(path, json=ANSWER).status_code == 201
    assert passed(services, run, 2)[0]
    refused = {**ANSWER, "decision": "refused", "reason": "it skips the last row"}
    answer = client.post(path, json=refused)
    assert answer.status_code == 201 and answer.json()["decision"] == "refused"
    assert listed(client, run) == [answer.json()] == door(services, "flagged", run)
    shown = client.get(f"/evaluations/{run}-2").json()
    assert shown["review"] == answer.json()["review"]
    assert [flag["severity"] for flag in shown["result"]["flags"]] == ["review"]
    free, reason = passed(services, run, 2)
    assert not free and "rejected" in reason and "it skips the last row" in reason
    manifest = exported(services, run, tmp_path / "out")
    assert manifest["ids"] == ["1"] and manifest["left_out"]["rejected for integrity"] == 2
    assert [remaining["decision"] for remaining in manifest["reviews"]] == ["refused"]
    measured = client.get(f"/trajectories/{run}").json()["trajectory"]["steps"][1]["child"]
    assert measured["measured"]["rejected"] and measured["measured"]["flags"][0] == FLAG
    assert measured["measured"]["speedup"]["value"] == 40.0
    plain = kernlore("runs", "flagged", run, data=services.settings.data_dir)
    assert plain.code == 0 and "40.00 [39.20, 40.80]" in plain.out
    assert "refused by ann" in plain.out and FLAG in plain.out


def test_page_and_record_show_flags_figure_and_decision(client: TestClient, run: str) -> None:
    place = f"/runs/{run}/candidates/2"
    for decision in (None, "accepted", "refused"):
        if decision is not None:
            form = {**ANSWER, "decision": decision}
            headers = {"origin": URL}
            sent = client.post(f"/ui{place}/review", data=form, headers=headers)
            assert sent.status_code == 200 and sent.url.path == f"/ui{place}"
        record = client.get(place).json()
        review = record["review"]
        assert (review and review["decision"]) == decision
        assert [flag["message"] for flag in record["evaluation"]["flags"]] == [FLAG]
        assert record["evaluation"]["speedup"]["value"] == 40.0
        page = client.get(f"/ui{place}").text
        assert FLAG in page and "40.000 [39.200, 40.800]" in page
        assert decision is None or f"{decision.capitalize()} by ann" in page
    listed_node = client.get(f"/runs/{run}/tree").json()["nodes"][2]
    assert listed_node["flags"][0]["message"] == FLAG and listed_node["speedup"]["value"] == 40.0
    assert "flagged" in client.get(f"/ui/runs/{run}").text


def test_later_run_inherits_nothing_refused(
    client: TestClient, services: Services, run: str
) -> None:
    def inherited() -> list[str]:
        problem = load_problem(Path("map_id")).sha256
        winners = list(run_store(services).winners("map", None, ("x86-64",), problem, 99))
        assert all(same for _, same in winners)
        return [w.bundle.sha256 for w, _ in winners if run in w.bundle.files["k.cpp"]]

    plain, waiting = (bundle(run, number).sha256 for number in (1, 2))
    assert inherited() == [waiting, plain]
    path = f"/runs/{run}/nodes/2/review"
    assert client.post(path, json={**ANSWER, "decision": "refused"}).status_code == 201
    assert inherited() == [plain]
    assert client.post(path, json=ANSWER).status_code == 201
    assert inherited() == [waiting, plain]


def test_correct_candidates_without_figure_are_offered_to_later_run(
    client: TestClient, services: Services, run: str
) -> None:
    store, problem = run_store(services), load_problem(Path("map_id")).sha256
    number = len(store.nodes(run))
    untimed = Node(
        number, 0, "unmeasured", proposed(run, number), evaluated(services, run, number, None)
    )
    store.add(run, untimed)

    def offered(lineage: str = "x86-64", sha256: str = problem) -> list[int]:
        nodes = store.untimed((lineage,), sha256, 99)
        return [n.number for n in nodes if n.proposal and run in n.proposal.bundle.source]

    assert offered() == [number]
    assert offered(lineage="h100") == offered(sha256="0" * 64) == []


def test_external_trajectory_is_reviewed_like_a_run(
    client: TestClient, services: Services, run: str
) -> None:
    store, reported = trajectory_store(services), f"trj_{run}"
    steps = trajectory(services, run).steps
    report = ExternalTrajectory(
        ExternalProblem("map_id"),
        "x86-64",
        tuple(
            ExternalStep(step.child.number, step.parent.number, step.proposal.bundle)
            for step in steps
        ),
    )
    store.add(reported, "told", "queued", report.as_json(), {"steps": 4})
    assert_error(client.get(f"/runs/{reported}/flagged"), 409, "conflict")
    measured = trajectory(services, run).as_json()
    keys = {str(number): f"{run}-{number}" for number in (0, 1, 2, 4)}
    assert store.take(reported, "w", 60)
    assert store.end(reported, "w", "ready", {"trajectory": measured, "evaluations": keys})
    assert [row["node"] for row in listed(client, reported)] == [2]
    assert not passed(services, reported, 2)[0]
    assert client.post(f"/runs/{reported}/nodes/2/review", json=ANSWER).status_code == 201
    assert passed(services, reported, 2)[0]
    # The run has the same candidate: one evaluation, one answer.
    assert listed(client, run) == listed(client, reported) and passed(services, run, 2)[0]


@pytest.mark.parametrize(
    ("node", "changes", "status", "code"),
    [
        ("1", {}, 409, "conflict"),  # nothing waits
        ("4", {}, 409, "conflict"),  # rejected by a check
        ("3", {}, 404, "not_found"),  # the original of a copy is answered
        ("9", {}, 404, "not_found"),
        ("-2", {}, 404, "not_found"),
        ("2" * 400, {}, 404, "not_found"),
        ("2", {"decision": "maybe"}, 400, "invalid_request"),
        ("2", {"actor": " "}, 400, "invalid_request"),
        ("2", {"reason": ""}, 400, "invalid_request"),
        ("2", {"other": 1}, 400, "invalid_request"),
    ],
)
def test_invalid_answers_are_refused(
    client: TestClient, services: Services, node: str, changes: Any, status: int, code: str
) -> None:
    run = "run_refused"
    if run not in {row.id for row in run_store(services).latest()}:
        stored(services, run)
    answer = client.post(f"/runs/{run}/nodes/{node}/review", json={**ANSWER, **changes})
    assert_error(answer, status, code)
    assert [row["decision"] for row in listed(client, run)] == [None]


def test_command_names_missing_arguments(services: Services, run: str) -> None:
    reason = ("--reason", "looked")
    for given, code in (
        ((run, "2", *reason), "invalid_request"),
        ((run, "2", "--accept", "--refuse", *reason), "invalid_request"),
        (("run_0", "2", "--accept", *reason), "not_found"),
    ):
        assert door(services, "review", *given)[:2] == (2, code)
    assert not passed(services, run, 2)[0]
