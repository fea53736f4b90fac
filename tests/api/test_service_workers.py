"""A service of several processes (`--workers`): every process answers with the same knowledge."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from api.workers import NAME, Forward
from benchmarks.processes import descendants
from kb.settings import Settings
from tests.api.cli_process import free_port, kernlore_process, serving
from tests.api.conftest import assert_error
from tests.shared import copy_knowledge, place_models

pytestmark = [pytest.mark.embedded, pytest.mark.slow(seconds=25)]

REQUEST = {"query": "coalesce the accesses of a memory bound kernel", "hardware": "h100"}
NOTES = "# Notes\n\n## Loads\n\nThe {word} unit moves data between the memories of this chip.\n"
WORDS = ("tarquelin", "osveril")
CALLS = 12  # on separate connections, so that each process accepts some


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, model_cache: Path) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("workers")
    knowledge = copy_knowledge(folder / "knowledge", ("guidance/memory-bound.md",))
    data = place_models(folder / "data", model_cache)
    with serving(data, knowledge, options=("--workers", "3")) as url:
        wait_for_workers(url, 2)
        yield url
        workers = workers_of(url)
    # Workers end with their service.
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert workers and not [pid for pid in workers if Path(f"/proc/{pid}").exists()]


def call(service: str, method: str, path: str, **carried: Any) -> httpx.Response:
    """A request on a new connection, which any process may accept."""
    with httpx.Client(base_url=service, timeout=30) as client:
        return client.request(method, path, **carried)


def retrieve(url: str, **body: Any) -> dict[str, Any]:
    answer = call(url, "POST", "/retrieve", json={"k": 20, **REQUEST, **body})
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    return result


def pid_of(url: str) -> int:
    [pid] = [
        int(folder.name)
        for folder in Path("/proc").glob("[0-9]*")
        if f"\0{url.rpartition(':')[2]}\0" in command_of(folder)
        and "serve" in command_of(folder)
        and not is_worker(folder)
    ]
    return pid


def command_of(folder: Path) -> str:
    try:
        return (folder / "cmdline").read_text()
    except OSError:
        return ""


def is_worker(folder: Path) -> bool:
    """Whether a process is a worker, forked or started anew."""
    try:
        forked = (folder / "comm").read_text().strip() == NAME
    except OSError:
        return False
    return forked or "api.workers" in command_of(folder)


def workers_of(url: str) -> list[int]:
    return [pid for pid in descendants(pid_of(url)) if is_worker(Path(f"/proc/{pid}"))]


def processor_ticks(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it has ended
        return 0
    return int(fields[11]) + int(fields[12])


def wait_for_workers(url: str, count: int) -> list[int]:
    """The workers, once each has started, which takes some CPU time, and is idle."""
    deadline = time.monotonic() + 150
    before: dict[int, int] = {}
    while time.monotonic() < deadline:
        ticks = {pid: processor_ticks(pid) for pid in workers_of(url)}
        idle = all(used > 10 and used - before.get(pid, 0) <= 2 for pid, used in ticks.items())
        if len(ticks) == count and idle:
            return list(ticks)
        before = ticks
        time.sleep(0.5)
    raise AssertionError(f"processor time of workers: {ticks}")


def test_every_process_gives_equal_answers(url: str) -> None:
    workers = workers_of(url)
    before = {pid: processor_ticks(pid) for pid in workers}
    contexts, deadline = set[str](), time.monotonic() + 60
    # A tick is 10 ms, and the kernel chooses the process that takes a connection.
    while any(processor_ticks(pid) <= before[pid] for pid in workers):
        assert time.monotonic() < deadline, "a worker answers no request"
        contexts |= {retrieve(url, k=5)["context"] for _ in range(20)}
    assert len(contexts) == 1


def test_busy_process_closes_kept_connections(url: str) -> None:
    def closed_of(clients: int) -> list[bool]:
        def send(number: int) -> list[bool]:
            with httpx.Client(base_url=url, timeout=60) as client:
                body = {**REQUEST, "query": f"{REQUEST['query']} {number}"}
                answers = [client.post("/retrieve", json=body) for _ in range(6)]
            assert {answer.status_code for answer in answers} == {200}
            return [answer.headers.get("connection") == "close" for answer in answers]

        with ThreadPoolExecutor(clients) as pool:
            return [closed for of_client in pool.map(send, range(clients)) for closed in of_client]

    assert not any(closed_of(1))
    assert any(closed_of(9))  # three clients for each process


def test_acknowledged_document_is_in_every_answer_until_deletion(url: str) -> None:
    for word in WORDS:
        files = {"file": (f"{word}.md", NOTES.format(word=word).encode())}
        uploaded = call(url, "POST", "/documents", files=files, data={"hardware": "h100"})
        document = uploaded.json()
        while call(url, "GET", f"/jobs/{document['job_id']}").json()["state"] != "ready":
            time.sleep(0.05)
        for _ in range(CALLS):
            assert word in retrieve(url, query=f"the {word} unit")["excerpts"][0]["text"]
        deleted = call(url, "DELETE", f"/documents/{document['document_id']}")
        assert deleted.status_code in (200, 204)
        for _ in range(CALLS):
            excerpts = retrieve(url, query=f"the {word} unit")["excerpts"]
            assert not [e for e in excerpts if word in e["text"]]


def test_outcome_is_accepted_for_answer_of_any_process(url: str) -> None:
    for _ in range(CALLS):
        retrieval = retrieve(url)["retrieval_id"]
        outcome = {"correct": True, "speedup": 1.2}
        reported = call(url, "POST", f"/retrievals/{retrieval}/outcome", json=outcome)
        assert reported.status_code < 300, reported.text


def test_errors_and_pages_equal_those_of_one_process(url: str) -> None:
    for _ in range(CALLS):
        unknown = call(url, "POST", "/retrieve", json={"hardware": "nochip", "query": "x"})
        assert (unknown.status_code, unknown.json()["code"]) == (404, "unknown_hardware")
        assert call(url, "GET", "/no/such/page").status_code == 404
        assert call(url, "GET", "/hardware").status_code == 200


def test_killed_worker_is_replaced(url: str) -> None:
    killed, *_ = workers_of(url)
    os.kill(killed, signal.SIGKILL)
    assert killed not in wait_for_workers(url, 2)
    for _ in range(CALLS):
        retrieve(url)


def test_path_too_long_for_socket_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 110)
    ran = kernlore_process("serve", "--port", str(free_port()), "--workers", "2", data=folder)
    assert ran.code != 0 and "use a shorter --data-dir" in ran.err, ran.err


def test_request_without_a_service_is_answered_with_503(tmp_path: Path) -> None:
    """The socket of a service that was killed; its workers end within a second."""
    client = TestClient(Forward(Settings(data_dir=tmp_path)), "http://127.0.0.1:8321")
    for answer in (client.get("/documents"), client.post("/documents", content=b"x")):
        assert_error(answer, 503, "unavailable")
        assert answer.headers["retry-after"] == "1"
