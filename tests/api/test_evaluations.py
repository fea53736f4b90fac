"""Evaluations over HTTP: real compilers, real processes, and who may start them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from httpx2 import Response

from api.app import create_app
from api.services import open_services
from kb.settings import Settings
from tests.api.cli_process import kernlore
from tests.api.conftest import assert_error
from tests.problem_files import kernel_text, model_text
from tests.waiting import until

pytestmark = pytest.mark.slow(seconds=5)

HERE = {"host": "127.0.0.1:8321"}
PROBLEM = model_text("2 * x", "torch.randn(rows, 64)", head="rows = 32")
TOML = 'name = "doubled"\n[[cases]]\nname = "small"\nconstants = {rows = 8}\ntimed = false\n'
# Timed cases must be long enough: calls of microseconds need most pairs of blocks for a figure.
TIMED = {"source": PROBLEM, "toml": TOML.replace("timed = false\n", "").replace("8", "8192")}
KERNEL = kernel_text("2 * x[i]")


def candidate(source: str = KERNEL, **changes: Any) -> dict[str, Any]:
    given = {"files": {"kernel.cpp": source}, "main": "kernel.cpp", "language": "cpp"}
    return {**given, **changes}


def body(source: str = KERNEL, **changes: Any) -> dict[str, Any]:
    sent = {"source": PROBLEM, "toml": TOML}
    given = {"problem": sent, "candidate": candidate(source), "hardware": "auto"}
    return {**given, **changes}


def sent(client: TestClient, sent_body: Any) -> Response:
    return client.post("/evaluations", json=sent_body, headers=HERE)


def evaluated(client: TestClient, sent_body: Any, seconds: float = 400) -> dict[str, Any]:
    """The request once it has ended."""
    answer = sent(client, sent_body)
    assert answer.status_code == 202, answer.text
    assert answer.json()["state"] == "queued" and answer.json()["result"] is None
    place = f"/evaluations/{answer.json()['id']}"
    run: dict[str, Any] = until(
        lambda: client.get(place).json(),
        lambda run: run["state"] in ("ready", "failed"),
        seconds=seconds,
    )
    return run


@pytest.mark.parametrize(
    ("old", "new", "validity"),
    [("2 * x", "2 * x", "correct"), ("return 0;", "*(volatile int *)0 = 1; return 0;", "crashed")],
)
def test_candidate_gets_its_verdict(client: TestClient, old: str, new: str, validity: str) -> None:
    run = evaluated(client, body(KERNEL.replace(old, new)))
    assert run["state"] == "ready" and run["error"] is None, run
    result = run["result"]
    assert (result["validity"], result["problem"]) == (validity, "doubled")
    assert result["correct"] == (validity == "correct")
    assert result["timing"] == "none" and result["speedup"] is None
    failed = [check["case"] for check in result["checks"] if not check["ok"]]
    assert failed == ([] if result["correct"] else ["small"])
    assert result["verdict"]["case"] == "".join(failed)
    assert run["created_at"] <= run["started_at"] <= run["finished_at"]


def test_answer_equals_that_of_command(
    client: TestClient, settings: Settings, tmp_path: Path
) -> None:
    """The second request uses the same data directory and key: nothing is evaluated again."""
    broken = KERNEL.replace("2 * x", "twice * x")
    sent_body = body(broken, problem="elementwise_chain", cases=["odd"])
    over_http = evaluated(client, sent_body)["result"]
    assert over_http["validity"] == "not_compiled"
    file = tmp_path / "kernel.cpp"
    file.write_text(broken)
    arguments = ("evaluate", "elementwise_chain", file, "--case", "odd", "--json")
    ran = kernlore(*arguments, data=settings.data_dir)
    assert ran.code == 1, ran.err
    known, also = over_http.pop("knowledge"), ran.json.pop("knowledge")
    command = {name: value for name, value in ran.json.items() if name != "knowledge"}
    assert over_http == command
    assert known["signals"] == also["signals"] != []
    assert sorted(known) == sorted(also)
    assert [e["id"] for e in known["excerpts"]] == [e["id"] for e in also["excerpts"]]


def test_problems_show_their_cases(client: TestClient) -> None:
    assert "softmax" in [row["name"] for row in client.get("/problems").json()["problems"]]
    shown = client.get("/problems/softmax").json()
    dtypes = {case["name"]: case["dtype"] for case in shown["cases"]}
    assert dtypes["bf16"] == "bfloat16" and not any(case["held_out"] for case in shown["cases"])
    assert_error(client.get("/problems/..%2Fsoftmax"), 404, "not_found")


def test_result_is_stored_under_its_key(client: TestClient) -> None:
    found = evaluated(client, body(KERNEL.replace("2 * x", "4 * x")))["result"]
    assert (found["validity"], found["correct"]) == ("incorrect", False)
    again = client.get(f"/evaluations/{found['key']}").json()
    assert again["state"] == "ready"
    assert {**again["result"], "knowledge": {}} == {**found, "knowledge": {}}


def test_failing_problem_has_reason(client: TestClient) -> None:
    problem = {"source": PROBLEM.replace("torch.randn(rows", "torch.nonsense(rows")}
    run = evaluated(client, body(problem=problem))
    assert run["state"] == "failed" and run["result"] is None
    assert "nonsense" in run["error"]["message"]
    assert sorted(run["error"]) == ["code", "details", "hint", "message"]


def test_problem_that_kills_its_process_leaves_service(client: TestClient) -> None:
    problem = {"source": "import os\n" + PROBLEM.replace("return [", "os._exit(3)\n    return [")}
    run = evaluated(client, body(problem=problem))
    assert run["state"] == "failed" and "without an answer" in run["error"]["message"]
    assert client.get("/healthz").status_code == 200


@pytest.mark.parametrize(
    ("changes", "status", "code", "expected"),
    [
        ({"problem": "elementwise_chan"}, 404, "not_found", "elementwise_chain"),
        ({"problem": "/etc/passwd"}, 404, "not_found", "problem list"),
        ({"problem": "../problems/softmax"}, 404, "not_found", "problem list"),
        ({"problem": {"source": "def Model("}}, 400, "invalid_request", "syntax"),
        ({"problem": {"source": "x = 1"}}, 400, "invalid_request", "get_inputs"),
        ({"problem": {"toml": TOML}}, 400, "invalid_request", "problem"),
        ({"hardware": "h10"}, 404, "unknown_hardware", "h100"),
        ({"cases": ["smal"]}, 400, "invalid_request", "small"),
        ({"candidate": candidate(main="other.cpp")}, 400, "invalid_request", "main"),
        ({"candidate": candidate(language="fortran")}, 400, "invalid_request", "fortran"),
        ({"candidate": candidate(files={})}, 400, "invalid_request", "files"),
        ({"candidate": {"main": "kernel.cpp"}}, 400, "invalid_request", "candidate.files"),
        (
            {"candidate": candidate(files={"kernel.cpp": KERNEL, "../up.h": ""})},
            400,
            "invalid_request",
            "..",
        ),
        (
            {"candidate": candidate(files={"kernel.cpp": KERNEL, "kernel.cpp/up.h": ""})},
            400,
            "invalid_request",
            "kernel.cpp",
        ),
        (
            {"candidate": candidate(files={"kernel.cpp": KERNEL, "bundle.json": "{}"})},
            400,
            "invalid_request",
            "bundle.json",
        ),
        ({"candidat": {}}, 400, "invalid_request", "candidat"),
    ],
)
def test_invalid_requests_are_refused(
    client: TestClient, changes: dict[str, Any], status: int, code: str, expected: str
) -> None:
    error = assert_error(sent(client, {**body(), **changes}), status, code)
    assert expected in error["message"] + error["hint"], error


def test_unknown_id(client: TestClient) -> None:
    assert_error(client.get("/evaluations/evj_0123456789abcdef"), 404, "not_found")


@pytest.fixture
def bound_to(client: TestClient, settings: Settings) -> Iterator[Any]:
    """Make the running service believe that it listens on another address."""
    app = client.app
    assert isinstance(app, FastAPI)

    def change(**changes: Any) -> None:
        app.state.settings = settings.model_copy(update=changes)

    yield change
    app.state.settings = settings


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "", "gpu-box"])
def test_service_on_public_address_runs_no_code(
    client: TestClient, bound_to: Any, host: str
) -> None:
    bound_to(host=host)
    error = assert_error(sent(client, body()), 403, "evaluation_forbidden")
    assert "KERNLORE_EVALUATE_OVER_HTTP" in error["hint"]
    bound_to(host=host, evaluate_over_http=True)
    assert_error(sent(client, body(problem="nothing")), 404, "not_found")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.8.8.8"])
def test_service_on_loopback_evaluates(client: TestClient, bound_to: Any, host: str) -> None:
    bound_to(host=host)
    assert_error(sent(client, body(problem="nothing")), 404, "not_found")


@pytest.mark.parametrize("path", ["/evaluations", "/runs", "/trajectories"])
def test_proxied_calls_run_no_code(settings: Settings, path: str) -> None:
    """The service is called by the proxy's name, but callers behind the proxy are not on this
    machine. Nothing is opened, because the refusal does not need it.
    """
    behind = settings.model_copy(update={"allowed_hosts": "kernels.example"})
    client = TestClient(create_app(behind, open_services(behind)), "http://kernels.example")
    assert client.get("/healthz").status_code == 200
    assert_error(client.post(path, json=body()), 403, "evaluation_forbidden")
