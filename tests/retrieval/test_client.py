"""The client against a scripted service on loopback, for faults that a healthy service never has,
and against a running one.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import pickle
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from kb import answers as contract
from kb.errors import UnknownHardware
from retrieval import client as client_module
from retrieval.client import Answer, Kernlore, KernloreClientError, Part
from retrieval.request import request_fields
from tests.problem_files import model_text

SERVED = contract.Answer(
    retrieval_id="ret_1",
    diagnosis=contract.Verdict(
        signals=(contract.SignalFinding("bank_conflict", "A", ({"metric": "conflicts"},)),),
        unrecognised=("my_counter",),
        measure_next=("shared_load_transactions",),
        hint="Profile once more.",
    ),
    hardware={"id": "h100", "lineage": ["h100", "hopper", "nvidia"]},
    excerpts=(
        contract.Excerpt(
            id="psg_1",
            category="hardware",
            hardware=("h100",),
            text="Pad the row by one element.",
            document=contract.DocumentRef("doc_1", "Tuning notes", 2),
            section="Shared memory > Banks",
            page={"index": 11, "label": "xii"},
            score=0.75,
            channels={"lexical": 0.5, "dense": 0.25},
            passages=("psg_1", "psg_2"),
            citation="Tuning notes, p. xii",
        ),
    ),
    skills=(contract.SkillAnswer("pad-rows", "Pad.", "curated", "active", {"fit": 1.0}, None),),
    moves=(
        contract.Move(
            id="mv_1",
            name="pad",
            when="signals.bank_conflict",
            applies=None,
            change={"role": "pad", "direction": "add"},
            limit=None,
            why="Rows start in different banks.",
            missing=("metrics.stride",),
            source={"document": "doc_1"},
        ),
    ),
    context="Pad the row [1]",
    context_tokens=5,
    hints=("A hint.",),
    profile=contract.ProfileRead("ncu", "add", {"gpu__time_duration.sum": "182432 ns"}, 3),
)


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    body: bytes
    headers: Mapping[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Script:
    """Answers every request with the result of `reply`: a status and a body, JSON unless bytes."""

    reply: Callable[[Request], tuple[int, Any]]
    url: str = ""
    seen: list[Request] = field(default_factory=list)


@pytest.fixture
def script() -> Iterator[Script]:
    scripted = Script(lambda request: (200, {}))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            length = int(self.headers.get("content-length", 0))
            request = Request(
                self.command, self.path, self.rfile.read(length), dict(self.headers.items())
            )
            scripted.seen.append(request)
            status, body = scripted.reply(request)
            sent = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        do_POST = do_GET

        def log_message(self, *args: object) -> None:
            """The default writes every request to standard error."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    scripted.url = f"http://127.0.0.1:{server.server_address[1]}"
    yield scripted
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def kernlore(script: Script) -> Iterator[Kernlore]:
    with Kernlore(script.url, timeout=5) as client:
        yield client


def always(status: int, body: Any) -> Callable[[Request], tuple[int, Any]]:
    return lambda request: (status, body)


def as_served(value: Any) -> Any:
    return json.loads(json.dumps(dataclasses.asdict(value)))


def mirrored(answer: Answer) -> Any:
    body = as_served(answer)
    del body["raw"]
    return body


def test_answer_is_parsed_completely(script: Script, kernlore: Kernlore) -> None:
    script.reply = always(200, asdict(SERVED))
    answer = kernlore.retrieve(signal="bank_conflict", hardware="h100")
    assert mirrored(answer) == as_served(SERVED)
    assert answer.excerpts[0].document.title == "Tuning notes"
    assert answer.diagnosis.signals[0].id == "bank_conflict"
    assert answer.profile is not None and answer.profile.kernel == "add"


def test_only_given_fields_are_sent(script: Script, kernlore: Kernlore) -> None:
    script.reply = always(200, asdict(SERVED))
    kernlore.retrieve(log="error: x", hardware="h100", categories=("constraint",))
    sent = script.seen[0]
    assert (sent.method, sent.path) == ("POST", "/retrieve")
    assert sent.json == {"log": "error: x", "hardware": "h100", "categories": ["constraint"]}
    kernlore.retrieve(query="q", categories="guidance")
    assert script.seen[1].json["categories"] == ["guidance"]


SAMPLES: Mapping[str, Any] = {
    "text": "text",
    "names": ["name"],
    "count": 3,
    "metrics": {"dram__throughput": 91.5},
    "quantities": {"flops": 1e9},
    "versions": {"triton": "3.6"},
    "output": {"total_time": 0.5},
}


def test_every_request_field_can_be_given_and_is_sent(script: Script, kernlore: Kernlore) -> None:
    script.reply = always(200, asdict(SERVED))
    body = {spec.name: SAMPLES[spec.kind] for spec in request_fields()}
    kernlore.retrieve(**body)
    assert script.seen[0].json == body
    accepted = set(inspect.signature(Kernlore.retrieve).parameters) - {"self"}
    assert accepted == set(body)


def test_unknown_fields_are_ignored_and_missing_ones_have_defaults(
    script: Script, kernlore: Kernlore
) -> None:
    excerpt = {
        "id": "psg_1",
        "category": "guidance",
        "text": "T",
        "document": {"id": "doc_1", "licence": "new"},
        "page": None,
        "colour": "new",
    }
    body = {"retrieval_id": "ret_2", "context": "", "excerpts": [excerpt], "future": {"a": 1}}
    script.reply = always(200, body)
    answer = kernlore.retrieve(query="q")
    assert answer.excerpts[0].document.title == "" and answer.excerpts[0].hardware == ()
    assert answer.skills == () and answer.diagnosis.signals == ()
    assert answer.raw["future"] == {"a": 1}


def test_real_profiler_and_compiler_output_can_be_sent(script: Script, kernlore: Kernlore) -> None:
    numpy = pytest.importorskip("numpy")
    script.reply = always(200, asdict(SERVED))
    log = b"error: \xff in kernel".decode("utf-8", "surrogateescape")
    metrics = {"a": float("nan"), "b": "12,345.6", "c": numpy.float32(0.5), "d": 3}
    kernlore.retrieve(log=log, metrics=metrics)
    assert script.seen[0].json == {
        "log": "error: ? in kernel",
        "metrics": {"a": "nan", "b": "12,345.6", "c": 0.5, "d": 3},
    }


def test_service_error_has_code_hint_details_and_status(script: Script, kernlore: Kernlore) -> None:
    error = UnknownHardware("h10", ["h100", "h200"])
    script.reply = always(error.status, error.as_json())
    with pytest.raises(KernloreClientError) as caught:
        kernlore.facts("h10")
    raised = caught.value
    assert (raised.code, raised.message, raised.status) == ("unknown_hardware", error.message, 404)
    assert raised.hint == error.hint and raised.details["nearest"] == ["h100", "h200"]
    assert "h100" in str(raised)
    again = pickle.loads(pickle.dumps(raised))
    assert (again.code, again.hint, again.details) == (raised.code, raised.hint, raised.details)


def test_refused_connection_has_hint_to_start_service() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with (
        Kernlore(f"http://127.0.0.1:{port}") as client,
        pytest.raises(KernloreClientError) as caught,
    ):
        client.signals()
    assert caught.value.code == "unreachable" and caught.value.status is None
    assert "kernlore serve" in caught.value.hint and str(port) in caught.value.message


def test_proxy_of_environment_is_not_used_for_loopback(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    script.reply = always(200, [])
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with Kernlore(script.url) as client:
        assert client.signals() == []


@pytest.mark.parametrize("url", ["127.0.0.1:8321", "localhost:8321", "ftp://h", "http://", "::"])
def test_invalid_url_is_refused_at_once(url: str) -> None:
    with pytest.raises(KernloreClientError, match="invalid_url"):
        Kernlore(url)


def test_slow_service_is_a_timeout(script: Script) -> None:
    def late(request: Request) -> tuple[int, Any]:
        time.sleep(0.5)
        return 200, []

    script.reply = late
    with Kernlore(script.url, timeout=0.1) as client, pytest.raises(KernloreClientError) as caught:
        client.signals()
    assert caught.value.code == "timeout"


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b"<html>It works!</html>"),
        (502, b"<html>Bad gateway</html>"),
        (500, {"detail": "foreign shape"}),
        (307, b""),
        (200, []),
        (200, {"context": "no id"}),
        (200, {"retrieval_id": "r", "context": "", "excerpts": "none"}),
        (200, {"retrieval_id": "r", "context": "", "excerpts": [7]}),
    ],
)
def test_answer_of_another_server_is_an_error(
    script: Script, kernlore: Kernlore, status: int, body: Any
) -> None:
    script.reply = always(status, body)
    with pytest.raises(KernloreClientError) as caught:
        kernlore.retrieve(query="q")
    assert caught.value.code == "unexpected_answer"
    assert "URL" in caught.value.hint
    assert caught.value.status in (status, None)


def test_outcome_is_reported_with_empty_answer(script: Script, kernlore: Kernlore) -> None:
    script.reply = always(204, b"")
    kernlore.report("ret_1", used=["psg_1"], correct=True, speedup=1.25)
    kernlore.report("ret/1", speedup=float("nan"))
    first, second = script.seen
    assert (first.method, first.path) == ("POST", "/retrievals/ret_1/outcome")
    assert first.json == {"used": ["psg_1"], "correct": True, "speedup": 1.25}
    assert second.path == "/retrievals/ret%2F1/outcome" and second.json == {}


def test_lists_with_and_without_envelope(script: Script, kernlore: Kernlore) -> None:
    script.reply = always(200, [{"id": "h100"}])
    assert kernlore.hardware() == [{"id": "h100"}]
    script.reply = always(200, {"hardware": [{"id": "h100"}], "count": 1})
    assert kernlore.hardware() == [{"id": "h100"}]
    script.reply = always(200, {"documents": []})
    assert kernlore.documents(hardware="h100", category="guidance") == []
    assert script.seen[-1].path == "/documents?hardware=h100&category=guidance"


def test_tree_and_coverage_are_returned_unchanged(script: Script, kernlore: Kernlore) -> None:
    script.reply = always(200, {"passages": 3})
    assert kernlore.knowledge("hardware/h100") == {"passages": 3}
    assert kernlore.coverage("h100") == {"passages": 3}
    assert script.seen[0].path == "/knowledge?path=hardware%2Fh100"
    assert script.seen[1].path == "/hardware/h100/coverage"


def test_files_are_sent_with_their_hardware(
    script: Script, kernlore: Kernlore, tmp_path: Path
) -> None:
    manual = tmp_path / "manual.pdf"
    manual.write_bytes(b"%PDF-1.7 " + bytes(range(256)))
    script.reply = always(202, {"document_id": "doc_1", "job_id": "job_1", "outcome": "created"})
    (upload,) = kernlore.upload(manual, hardware=["h100", "h200"], category="hardware", title="M")
    assert (upload.document_id, upload.job_id, upload.outcome) == ("doc_1", "job_1", "created")
    body = script.seen[0].body
    assert body.count(b'name="hardware"\r\n\r\nh') == 2
    assert b'name="category"\r\n\r\nhardware' in body and b'name="title"\r\n\r\nM' in body
    assert b'name="file"; filename="manual.pdf"' in body and manual.read_bytes() in body


def test_several_uploads_name_refused_file(
    script: Script, kernlore: Kernlore, tmp_path: Path
) -> None:
    good, bad = tmp_path / "good.md", tmp_path / "bad.bin"
    good.write_text("# Good\n")
    bad.write_bytes(b"\0")
    refusal = {"code": "unsupported_format", "message": "no reader", "hint": "", "details": {}}

    def reply(request: Request) -> tuple[int, Any]:
        if b"bad.bin" in request.body:
            return 415, refusal
        return 202, [{"document_id": "doc_1", "job_id": None, "outcome": "unchanged"}]

    script.reply = reply
    assert [u.job_id for u in kernlore.upload([good, str(good)])] == [None, None]
    with pytest.raises(KernloreClientError) as caught:
        kernlore.upload([good, bad])
    assert caught.value.details == {"path": str(bad), "accepted": ["doc_1"]}
    with pytest.raises(KernloreClientError, match="invalid_request: cannot read"):
        kernlore.upload(tmp_path / "absent.md")
    with pytest.raises(KernloreClientError, match="one name for several"):
        kernlore.upload([good, bad], title="Both")


def test_folder_is_sent_with_relative_paths(
    script: Script, kernlore: Kernlore, tmp_path: Path
) -> None:
    for name in ("a/README.md", "b/README.md", ".git/HEAD"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    sent = {"document_id": "doc_1", "job_id": None, "outcome": "created"}
    script.reply = lambda request: (202, sent)
    assert len(kernlore.upload(tmp_path, replace=True)) == 2
    bodies = [request.body for request in script.seen[-2:]]
    assert b'filename="a/README.md"' in bodies[0] and b'filename="b/README.md"' in bodies[1]
    assert b'name="replace"' in bodies[0]
    with pytest.raises(KernloreClientError, match="would both be sent"):
        kernlore.upload([tmp_path / "a/README.md", tmp_path / "b/README.md"])
    script.reply = lambda request: (202, {"documents": [sent, dict(sent, document_id="doc_2")]})
    (tmp_path / "all.zip").write_bytes(b"PK")
    assert [u.document_id for u in kernlore.upload(tmp_path / "all.zip")] == ["doc_1", "doc_2"]


def test_several_files_share_group_that_lists_their_jobs(
    script: Script, kernlore: Kernlore, tmp_path: Path
) -> None:
    for name in ("a.md", "b.md"):
        (tmp_path / name).write_text(f"# {name}\n")
    script.reply = always(202, {"document_id": "doc_1", "job_id": "job_1", "outcome": "created"})
    kernlore.upload([tmp_path / "a.md", tmp_path / "b.md"])
    kernlore.upload(tmp_path / "a.md")
    kernlore.upload(tmp_path / "a.md", group="mine")
    named = [b'name="group"' in request.body for request in script.seen]
    assert named == [True, True, False, True]
    error = {"code": "parse_failed", "message": "no text", "hint": "Use OCR.", "details": {}}
    failed = {"id": "job_1", "state": "failed", "error": error, "document": {"id": "doc_1"}}
    running = {"id": "job_2", "state": "running", "stage": "embedding", "passages": 7}
    counts = {"failed": 1, "running": 1, "passages": 7}
    script.reply = always(200, {"jobs": [failed, running], "counts": counts, "cursor": "next"})
    page = kernlore.jobs(group="mine", state=["failed", "running"], limit=2)
    assert script.seen[-1].path == "/jobs?state=failed&state=running&group=mine&limit=2"
    assert page.jobs[0].error is not None and page.jobs[0].error.hint == "Use OCR."
    assert (page.jobs[1].stage, page.jobs[1].passages) == ("embedding", 7)
    assert (page.counts.failed, page.counts.passages, page.cursor) == (1, 7, "next")


def test_wait_ends_with_job_or_timeout(script: Script, kernlore: Kernlore) -> None:
    states = iter(["queued", "running", "partial"])
    script.reply = lambda request: (200, {"id": "job_1", "state": next(states)})
    assert kernlore.wait("job_1", timeout=10).state == "partial"
    assert [request.path for request in script.seen] == ["/jobs/job_1"] * 3
    script.reply = always(200, {"id": "job_1", "state": "running"})
    with pytest.raises(KernloreClientError, match="still running after"):
        kernlore.wait("job_1", timeout=0.15)


PROBLEM = model_text("2 * x", "torch.randn(8, 16)")


def test_problem_file_is_optimised_to_its_best_kernel(
    script: Script, kernlore: Kernlore, tmp_path: Path
) -> None:
    (tmp_path / "twice.py").write_text(PROBLEM, encoding="utf-8")
    (tmp_path / "twice.toml").write_text('op = "elementwise"\n', encoding="utf-8")
    states = iter(["starting", "running", "finished"])

    def reply(request: Request) -> tuple[int, Any]:
        if request.path.endswith("/candidates/3"):
            return 200, {"proposal": {"bundle": {"files": {"k.cpp": "int a;"}}}}
        return 200, {"id": "run_1", "state": next(states), "result": {"node": 3}}

    script.reply = reply
    run = kernlore.optimize(tmp_path / "twice.py", candidates=2, language="cpp", timeout=10)
    assert (run["state"], run["files"]) == ("finished", {"k.cpp": "int a;"})
    assert json.loads(script.seen[0].body) == {
        "problem": {"source": PROBLEM, "name": "twice", "toml": 'op = "elementwise"\n'},
        "hardware": "auto",
        "goal": {"candidates": 2, "language": "cpp"},
    }
    script.reply = always(200, {"id": "run_1", "state": "running"})
    with pytest.raises(KernloreClientError, match="/runs/run_1 is still running after"):
        kernlore.optimize("softmax", timeout=0.1)
    with pytest.raises(KernloreClientError, match="cannot read"):
        kernlore.optimize(tmp_path / "absent.py")


class InProcess:
    """A service in this process as a `Backend`."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, Any]] = []

    def send(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        json: Any | None = None,
        files: Sequence[Part] | None = None,
    ) -> tuple[int, Any]:
        self.asked.append((method, path, json))
        return (200, asdict(SERVED)) if path == "/retrieve" else (404, error_body())


def error_body() -> dict[str, Any]:
    return UnknownHardware("h10", ["h100"]).as_json()


def test_in_process_answers_equal_those_over_http(script: Script, kernlore: Kernlore) -> None:
    backend = InProcess()
    script.reply = always(200, asdict(SERVED))
    with Kernlore(backend=backend) as inside:
        assert mirrored(inside.retrieve(query="q", k=3)) == mirrored(
            kernlore.retrieve(query="q", k=3)
        )
        assert inside.search("q")[0].id == "psg_1"
        with pytest.raises(KernloreClientError, match="unknown_hardware"):
            inside.coverage("h10")
    assert backend.asked[0] == ("POST", "/retrieve", {"query": "q", "k": 3})


def test_module_imports_only_standard_library_and_httpx() -> None:
    source = Path(client_module.__file__).read_text(encoding="utf-8")
    tree = ast.parse(source, feature_version=(3, 10))
    modules = [n.module or "." for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
    modules += [a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names]
    assert {m.split(".")[0] for m in modules} - set(sys.stdlib_module_names) == {"httpx"}


def test_running_service_answers_every_call(service_url: str, tmp_path: Path) -> None:
    with Kernlore(service_url, timeout=60) as client:
        answer = client.retrieve(signal="bank_conflict", hardware="h100", k=5)
        assert answer.context and answer.excerpts and answer.retrieval_id.startswith("ret_")
        assert answer.hardware is not None and answer.hardware["id"] == "h100"
        client.report(answer.retrieval_id, used=[answer.excerpts[0].id], correct=True)
        assert {signal["id"] for signal in client.signals()} > {"bank_conflict"}
        assert {chip["id"] for chip in client.hardware()} > {"h100"}
        assert "memory_bandwidth" in {fact["key"] for fact in client.facts("h100")}
        assert client.coverage("h100") and client.knowledge("hardware/h100")
        note = tmp_path / "note.md"
        note.write_text(
            "# Padding\n\n## Why rows of 33 words help\n\nBanks repeat after 32 words.\n"
        )
        (upload,) = client.upload(note, hardware="h100", category="hardware")
        assert upload.outcome == "created" and upload.job_id is not None
        assert client.wait(upload.job_id, timeout=400).state == "ready"
        (single,) = client.jobs(hardware="h100", state="ready", limit=1).jobs
        assert single == client.job(upload.job_id) and single.passages == single.passages_done == 1
        assert single.document is not None and single.document.title == "Padding"
        assert upload.document_id in {d["id"] for d in client.documents(hardware="h100")}
        (tmp_path / "twice.py").write_text(PROBLEM, encoding="utf-8")
        kernel = tmp_path / "kernel.py"
        kernel.write_text(PROBLEM.replace("Model(", "ModelNew(").replace("2 * x", "x + x"))
        verdict = client.evaluate(tmp_path / "twice.py", kernel, timeout=200)
        assert verdict["validity"] == "correct", verdict
        with pytest.raises(KernloreClientError, match="not known by its suffix"):
            client.evaluate("softmax", note)
        with pytest.raises(KernloreClientError) as caught:
            client.retrieve(query="q", hardware="h10")
        assert caught.value.code == "unknown_hardware" and "h100" in caught.value.hint
