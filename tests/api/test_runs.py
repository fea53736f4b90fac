"""Runs over HTTP: proposals from outside, real compilers, and a cancel that leaves no process."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api.cli.commands.optimize import _answer, _Search
from kb import clock
from kb.catalog.tables import problems
from kb.ids import derived_id
from kb.settings import Settings
from optimizer.evaluation.problem.load import load_problem
from optimizer.search.goal import Goal
from optimizer.search.runs.run_store import run_store
from optimizer.search.store import RunRow
from retrieval.knowledge_base import KnowledgeBase
from tests.api.conftest import assert_error
from tests.api.test_evaluations import HERE, KERNEL, TIMED, candidate
from tests.catalogs import builtin_data_dir
from tests.waiting import until

GOAL = {"candidates": 2, "language": "cpp", "knowledge": False}


def started(client: TestClient, **changes: Any) -> str:
    given = {"problem": TIMED, "goal": GOAL, "proposers": ["external"], **changes}
    answer = client.post("/runs", json=given, headers=HERE)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def waiting(client: TestClient, run_id: str) -> dict[str, Any] | None:
    reported = client.get(f"/runs/{run_id}/context").json()
    assert reported["state"] != "failed", client.get(f"/runs/{run_id}").json()
    return reported["context"] if reported["waiting"] else None


def ended(client: TestClient, run_id: str) -> dict[str, Any] | None:
    run: dict[str, Any] = client.get(f"/runs/{run_id}").json()
    return run if run["state"] not in ("starting", "running") else None


def test_another_program_proposes_and_run_measures(client: TestClient) -> None:
    run_id = started(client)
    context = until(lambda: waiting(client, run_id))
    assert context["step"] == 1 and context["problem"]["name"] == "doubled"
    assert context["parent"]["plan"] == "the reference"
    wrong = {"step": 1, "candidate": candidate(KERNEL.replace("2 * x", "3 * x")), "plan": "thrice"}
    path = f"/runs/{run_id}/candidates"
    assert client.post(path, json=wrong, headers=HERE).status_code == 202
    assert_error(client.post(path, json=wrong, headers=HERE), 409, "conflict")
    context = until(lambda: waiting(client, run_id))
    assert context["step"] == 2
    right = {"step": 2, "candidate": candidate(), "plan": "twice", "used": ["nothing"]}
    assert client.post(path, json=right, headers=HERE).status_code == 202
    run = until(lambda: ended(client, run_id))
    assert run["state"] == "finished" and run["ended"] == "2 candidates were tried"
    nodes = client.get(f"/runs/{run_id}/tree").json()["nodes"]
    assert [node["validity"] for node in nodes] == ["correct", "incorrect", "correct"]
    one = client.get(f"/runs/{run_id}/candidates/2").json()
    assert one["proposal"]["claimed"] == [] and one["evaluation"]["validity"] == "correct"
    assert_error(client.get(f"/runs/{run_id}/candidates/9"), 404, "not_found")
    assert run_id in [row["id"] for row in client.get("/runs").json()["runs"]]


def alive(marker: str) -> list[int]:
    """Processes whose command line or environment has this text."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            reported = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            state = (entry / "stat").read_bytes().rpartition(b")")[2].split()[0]
        except OSError:
            continue
        if marker.encode() in reported and state != b"Z":
            found.append(int(entry.name))
    return found


def test_cancel_leaves_no_process(client: TestClient) -> None:
    """While it waits, and while it measures: long before the deadline of a call, 30 s."""
    run_id = started(client)
    until(lambda: waiting(client, run_id))
    assert alive(run_id)
    began = time.monotonic()
    reported = client.post(f"/runs/{run_id}/cancel", headers=HERE).json()
    assert time.monotonic() - began < 20
    assert reported["state"] == "cancelled" and alive(run_id) == []

    endless = KERNEL.replace("y[i] = 2", "for (volatile int w = 1; w;) {} y[i] = 2")
    run_id = started(client)
    until(lambda: waiting(client, run_id))
    hung = {"step": 1, "candidate": candidate(endless)}
    client.post(f"/runs/{run_id}/candidates", json=hung, headers=HERE)
    time.sleep(2)
    began = time.monotonic()
    client.post(f"/runs/{run_id}/cancel", headers=HERE)
    assert time.monotonic() - began < 20 and alive(run_id) == []


@pytest.mark.parametrize(
    ("changes", "status", "code"),
    [
        ({"problem": "softmaxx"}, 404, "not_found"),
        ({"hardware": "h1000"}, 404, "unknown_hardware"),
        ({"goal": {"candidates": 0}}, 400, "invalid_request"),
        ({"proposers": ["someone"]}, 400, "invalid_request"),
        ({"problem": {"source": "x = 1"}}, 400, "invalid_request"),
    ],
)
def test_invalid_requests_are_refused(
    client: TestClient, changes: Any, status: int, code: str
) -> None:
    given = {"problem": "softmax", **changes}
    assert_error(client.post("/runs", json=given, headers=HERE), status, code)


CHIP = {
    "id": "kestrel-9",
    "languages": ["kasm"],
    "toolchains": {
        "kasm": {
            "compile": "no-such-kas {source} -o {output}",
            "run": "no-such-ksim {output} {input}",
        }
    },
}
ABSENT = "command: no-such-kas is not installed"


@pytest.mark.parametrize("goal", [{}, {"language": "kasm"}])
def test_chip_without_toolchain_is_refused_at_once(client: TestClient, goal: Any) -> None:
    assert client.post("/hardware", json=CHIP, headers=HERE).status_code in (200, 201)
    given = {"problem": "softmax", "hardware": CHIP["id"], "proposers": ["external"], "goal": goal}
    error = assert_error(client.post("/runs", json=given, headers=HERE), 503, "unavailable")
    assert error["message"] == ABSENT and error["hint"].startswith("Install it")


def test_run_that_fails_at_start_is_listed(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the toolchain disappears after the check."""
    assert client.post("/hardware", json=CHIP, headers=HERE).status_code in (200, 201)
    monkeypatch.setattr("optimizer.search.runs.places.refuse_absent", lambda *given: None)
    run_id = started(client, hardware=CHIP["id"], goal={})
    run = until(lambda: ended(client, run_id))
    assert run["state"] == "failed" and run["ended"].startswith(ABSENT)
    assert run_id in [row["id"] for row in client.get("/runs").json()["runs"]]


def test_unknown_runs_are_not_found(client: TestClient) -> None:
    for path in ("/runs/run_0", "/runs/run_0/tree", "/runs/run_0/context"):
        assert_error(client.get(path), 404, "not_found")


# -- several searches of one command, some of which end before any measurement

REASON = "work on a node failed: the process ended"


def test_search_that_fails_before_its_reference_has_reason(tmp_path: Path) -> None:
    """It used to end the whole command, with the answers of all others, in an IndexError."""
    base = KnowledgeBase(Settings(data_dir=builtin_data_dir(tmp_path / "data")))
    problem = load_problem(Path("softmax"))
    sha, path = problem.sha256, problem.path
    with base.catalog.write() as connection:
        row = {"id": derived_id("prb", sha), "name": "softmax", "sha256": sha, "provider": "file"}
        rest = {"op_family": "softmax", "blob_key": "", "policy": {}, "created_at": clock.now()}
        connection.execute(problems.insert().values(**row, **rest, access_scope="all"))
    run = RunRow("run_1", str(path), sha, "x86-64", Goal(), state="failed", ended=REASON)
    run_store(base).begin(run)
    answer = _answer(base, _Search(path, "softmax", "run_1"), tmp_path / "out")
    assert answer == {"problem": "softmax", "run": "run_1", "error": f"failed: {REASON}"}
    assert not (tmp_path / "out").exists()
    base.close()
