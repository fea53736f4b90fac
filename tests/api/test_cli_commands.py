"""The command line as people and programs use it: real processes on a real data directory.

One directory with a few small documents is made once, in process; one service is started on it for
the comparison of both ways to carry a command out.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMMAND = (sys.executable, "-m", "api.cli.main")
ERROR_KEYS = {"code", "message", "hint", "details"}
HEAVY = (
    "chromadb",
    "torch",
    "llama_index",
    "fastapi",
    "uvicorn",
    "sqlalchemy",
    "numpy",
    "onnxruntime",
    "tokenizers",
    "sentence_transformers",
    "pydantic",
    "httpx",
    "structlog",
    "pypdfium2",
    "pdfplumber",
)

MEMORY = """# Memory of the H100

## Memory bandwidth

A memory bound kernel should coalesce its accesses and load 16 bytes at a time. Move whole tiles
with cp.async.bulk so that no thread waits for an address.

## Occupancy

Register spills reduce occupancy; bound the registers with __launch_bounds__.
"""
BARRIERS = """Barriers
========

Every thread of a block must reach a barrier. A divergent barrier hangs the kernel.
"""
TITLE = "Another memory"
DIFFERENCES = f"# {TITLE}\n\nIts HBM3e moves 4.8 TB/s, a memory bound kernel gains most.\n"
WOMBAT = "# Wombat\n\nThe wombat stall has no remedy.\n"


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The document on the last line of standard output, which holds nothing else."""
        lines = self.out.splitlines()
        assert len(lines) == 1, self.out
        return json.loads(lines[0])


def kernlore(*arguments: str | Path, data: Path | None = None, stdin: str = "") -> Ran:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("KERNLORE_")}
    where = ["--data-dir", str(data)] if data is not None else []
    done = subprocess.run(
        [*COMMAND, *map(str, arguments), *where],
        cwd=ROOT,
        env=environment,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return Ran(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("manuals")
    (folder / "memory.md").write_text(MEMORY)
    (folder / "differences.md").write_text(DIFFERENCES)
    (folder / "wombat.md").write_text(WOMBAT)
    (folder / "sub").mkdir()
    (folder / "sub" / "barriers.rst").write_text(BARRIERS)
    return folder


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory, files: Path, model_cache: Path) -> Path:
    """A data directory that the command line itself filled, without a service."""
    folder = tmp_path_factory.mktemp("cli") / "data"
    if model_cache.exists():
        shutil.copytree(model_cache, folder / "models")
    sent = kernlore("ingest", files, "--hardware", "h100", "--json", data=folder)
    assert sent.code == 0, sent.err
    assert sent.json["summary"] | {"created": 4, "ready": 4} == sent.json["summary"]
    assert sent.json["coverage"]["h100"]["documents"] == 4
    passage = kernlore("documents", "passages", document_of(folder, TITLE), "--json", data=folder)
    moved = ("documents", "correct", passage.json[0]["id"], "--hardware", "h200")
    assert kernlore(*moved, data=folder).code == 0
    return folder


def document_of(data: Path, title: str) -> str:
    documents = kernlore("documents", "list", "--json", data=data).json
    return str(next(document["id"] for document in documents if document["title"] == title))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# -- what it costs and how it refuses


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\nfrom api.cli.main import main\ncode = main(sys.argv[1:])\n"
        f"print(sorted({{m.partition('.')[0] for m in sys.modules}} & set({HEAVY!r})))\n"
        "sys.exit(code)"
    )
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code, "--help"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "retrieve" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"
    assert time.monotonic() - started < 5


def test_skills_list_loads_no_model_and_no_server(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom api.cli.main import main\ncode = main(sys.argv[1:])\n"
        "heavy = {'chromadb', 'torch', 'llama_index', 'fastapi', 'onnxruntime', 'tokenizers'}\n"
        "print(sorted(heavy & {m.partition('.')[0] for m in sys.modules}))\nsys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "skills", "list", "--data-dir", str(tmp_path / "data")],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["retrieve", "--signal", "memory_boun"], "unknown_signal"),
        (["retrieve", "--signal", "memory_bound", "--hardware", "h1000"], "unknown_hardware"),
        (["retrieve"], "invalid_request"),
        (["retrieve", "--metrics", "nonsense"], "invalid_request"),
        (["documents", "show", "doc_0"], "not_found"),
        (["ingest"], "invalid_request"),
        (["ingest", "pyproject.toml", "--hardware", "h1000"], "unknown_hardware"),
        (["ingest", "no-such-file"], "invalid_request"),
    ],
)
def test_a_wrong_request_is_one_error_shape_and_exit_code_2(
    data: Path, arguments: list[str], code: str
) -> None:
    ran = kernlore(*arguments, "--json", data=data)
    assert ran.code == 2
    assert ran.json.keys() == ERROR_KEYS
    assert ran.json["code"] == code
    assert ran.json["hint"]
    assert ran.json["message"] in ran.err


def test_a_setting_that_cannot_be_is_named(tmp_path: Path) -> None:
    ran = kernlore("serve", "--port", "70000", data=tmp_path)
    assert ran.code == 2
    assert "port" in ran.err


def test_asking_an_empty_directory_says_how_to_fill_it(tmp_path: Path) -> None:
    ran = kernlore("retrieve", "--signal", "memory_bound", "--json", data=tmp_path / "new")
    assert ran.code == 1
    assert "--builtin" in ran.json["hint"]


def test_a_taken_port_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        ran = kernlore("serve", "--port", port, data=tmp_path / "data")
    assert ran.code == 2
    assert port in ran.err
    assert not (tmp_path / "data" / "catalog.sqlite").exists()


def test_an_unreachable_service_is_said(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    ran = kernlore("documents", "list", "--url", url, "--json")
    assert ran.code == 1
    assert ran.json["code"] == "unreachable"


# -- in process


def test_every_file_is_accounted_for(data: Path, files: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty.txt"
    empty.write_text("")
    again = files / "memory.md"
    ran = kernlore("ingest", again, empty, "--hardware", "h100", "--json", data=data)
    outcomes = {entry["name"]: entry["outcome"] for entry in ran.json["files"]}
    assert outcomes == {"memory.md": "unchanged", "empty.txt": "refused"}
    refused = next(entry for entry in ran.json["files"] if entry["outcome"] == "refused")
    assert refused["error"].keys() == ERROR_KEYS
    assert ran.code == 1
    text = kernlore("ingest", again, "--hardware", "h100", data=data)
    assert text.code == 0
    assert "1 unchanged" in text.out
    assert "most useful to add:" in text.out


def test_a_signal_a_log_and_metrics_find_the_manual(data: Path, tmp_path: Path) -> None:
    about = ("--hardware", "h100", "--json")
    by_signal = kernlore("retrieve", "--signal", "memory_bound", *about, data=data).json
    assert "coalesce" in by_signal["excerpts"][0]["text"]
    assert all("h200" not in excerpt["hardware"] for excerpt in by_signal["excerpts"])
    log = (
        "ptxas error   : Entry function 'k' uses too much shared data (0x41000 bytes, 0x38c00 max)"
    )
    by_log = kernlore("retrieve", "--log", "-", *about, data=data, stdin=log).json
    assert by_log["diagnosis"]["signals"]
    metrics = tmp_path / "metrics.json"
    metrics.write_text('{"made.up.metric": 3}')
    given = ("--metrics", metrics, "--metrics", "other.made.up=4.5")
    by_metrics = kernlore("retrieve", *given, *about, data=data).json
    assert set(by_metrics["diagnosis"]["unrecognised"]) == {"made.up.metric", "other.made.up"}


def test_an_answer_reads_well_and_its_context_stands_alone(data: Path) -> None:
    text = kernlore("retrieve", "--signal", "memory_bound", "--hardware", "h100", data=data)
    assert "h100 > hopper > nvidia" in text.out
    assert "psg_" in text.out
    packed = kernlore("retrieve", "--q", "barrier", "--context", data=data)
    assert "divergent barrier" in packed.out
    assert "--context" not in packed.out


def test_an_outcome_is_recorded_against_an_answer(data: Path) -> None:
    answer = kernlore("retrieve", "--q", "barrier", "--json", data=data).json
    used = answer["excerpts"][0]["id"]
    said = ("--used", used, "--correct", "--speedup", "1.5", "--json")
    ran = kernlore("outcome", answer["retrieval_id"], *said, data=data)
    assert ran.code == 0, ran.err
    assert ran.json["retrieval_id"] == answer["retrieval_id"]


def test_a_passage_is_given_to_another_chip(data: Path, tmp_path: Path) -> None:
    copied = tmp_path / "data"
    shutil.copytree(data, copied)
    document_id = document_of(copied, "Wombat")
    passage = kernlore("documents", "passages", document_id, "--json", data=copied).json[0]
    change = ("--hardware", "h100", "--tag", "signal=memory_bound", "--json")
    ran = kernlore("documents", "correct", passage["id"], *change, data=copied)
    assert ran.json["hardware"] == ["h100"]
    about = ("--q", "wombat stall", "--hardware", "h100", "--json")
    found = kernlore("retrieve", *about, data=copied).json
    assert passage["id"] in found["excerpts"][0]["passages"]


def test_a_deleted_document_is_gone(data: Path, tmp_path: Path) -> None:
    copied = tmp_path / "data"
    shutil.copytree(data, copied)
    document_id = document_of(copied, "Wombat")
    assert kernlore("documents", "delete", document_id, "--yes", data=copied).code == 0
    assert kernlore("documents", "show", document_id, data=copied).code == 2
    found = kernlore("retrieve", "--q", "wombat stall", "--json", data=copied).json
    assert all("wombat" not in excerpt["text"].lower() for excerpt in found["excerpts"])


def test_a_new_chip_from_template_to_facts(data: Path, tmp_path: Path) -> None:
    file = tmp_path / "chip.toml"
    assert kernlore("hardware", "new", "acme-x1", "-o", file).code == 0
    assert kernlore("hardware", "new", "acme-x1", "-o", file).code == 2  # never overwritten
    text = file.read_text()
    stated = 'key = "compute_units"\nvalue = 8\nunit = "count"\nkind = "measured"\n'
    source = 'title = "Counted"\ndate = "2026-01-31"\n'
    file.write_text(f"{text}\n[[facts]]\n{stated}{source}")
    assert kernlore("hardware", "add", file, "--json", data=data).json["outcome"] == "created"
    facts = kernlore("hardware", "facts", "acme-x1", "--json", data=data).json["facts"]
    assert [(fact["key"], fact["value"]) for fact in facts] == [("compute_units", 8.0)]
    change = ("--set", facts[0]["id"], "12", "--json")
    kernlore("hardware", "facts", "acme-x1", *change, data=data)
    facts = kernlore("hardware", "facts", "acme-x1", "--json", data=data).json["facts"]
    assert facts[0]["value"] == 12.0


def test_detection_names_devices(data: Path) -> None:
    assert any(d["kind"] == "cpu" for d in kernlore("hardware", "detect", "--json", data=data).json)


def test_settings_name_their_source(tmp_path: Path) -> None:
    shown = kernlore("config", "show", "--json", data=tmp_path).json
    assert shown["data_dir"] == shown["data_dir"] | {"value": str(tmp_path), "source": "--data-dir"}
    assert shown["port"]["source"] == "default"


def test_the_knowledge_tree_counts_documents(data: Path) -> None:
    tree = kernlore("knowledge", "tree", "hardware", "--json", data=data).json
    assert {child["path"] for child in tree["children"]} >= {"hardware/h100", "hardware/h200"}


def test_the_index_is_rebuilt_and_the_doctor_agrees(data: Path) -> None:
    report = kernlore("reindex", "--json", data=data).json
    assert report["added"] > 0
    ran = kernlore("doctor", "--json", data=data)
    assert ran.code == 0, ran.json
    index = next(check for check in ran.json["checks"] if check["name"] == "vector index")
    assert "probes" in index["detail"]


def test_the_doctor_finds_a_lost_word_row_and_a_lost_original(data: Path, tmp_path: Path) -> None:
    import sqlite3

    broken = tmp_path / "data"
    shutil.copytree(data, broken)
    with sqlite3.connect(broken / "catalog.sqlite") as connection:
        connection.execute("DELETE FROM lexical_passages WHERE rowid = 1")
    shutil.rmtree(broken / "blobs")
    ran = kernlore("doctor", "--json", data=broken)
    assert ran.code == 1
    wrong = {check["name"] for check in ran.json["checks"] if not check["ok"]}
    assert wrong == {"lexical index", "originals"}
    assert all(check["hint"] for check in ran.json["checks"] if not check["ok"])


# -- beside a running service


@pytest.fixture(scope="module")
def service(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The same documents behind a real service, with no built-in ones beside them."""
    folder = tmp_path_factory.mktemp("served") / "data"
    shutil.copytree(data, folder)
    output = folder.parent / "out.txt"
    port = free_port()
    none = folder.parent / "none"
    none.mkdir()
    started = time.monotonic()
    with output.open("wb") as stream, (folder.parent / "err.txt").open("wb") as errors:
        process = subprocess.Popen(
            [*COMMAND, "serve", "--port", str(port), "--data-dir", str(folder)],
            cwd=ROOT,
            stdout=stream,
            stderr=errors,
            env=os.environ | {"KERNLORE_KNOWLEDGE_DIR": str(none)},
        )
    try:
        _wait_until_ready(port, process)
        print(f"ready after {time.monotonic() - started:.1f} s")
        yield folder
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0


def _wait_until_ready(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert process.poll() is None, "the service ended"
        try:
            url = f"http://127.0.0.1:{port}/readyz"
            with urllib.request.urlopen(url, timeout=5) as answer:
                if json.load(answer)["ready"]:
                    return
        except (urllib.error.URLError, OSError):
            pass
        time.sleep(0.1)
    raise AssertionError("the service did not become ready")


@pytest.mark.parametrize(
    "question",
    [
        ("--signal", "memory_bound", "--hardware", "h100"),
        ("--q", "how do I bound the registers of a kernel"),
        ("--log", "-", "--hardware", "h100"),
    ],
)
def test_both_ways_give_the_same_excerpts(
    service: Path, data: Path, question: tuple[str, ...]
) -> None:
    log = (
        "ptxas error   : Entry function 'k' uses too much shared data (0x41000 bytes, 0x38c00 max)"
    )
    alone = kernlore("retrieve", *question, "--json", data=data, stdin=log).json
    served = kernlore("retrieve", *question, "--json", data=service, stdin=log).json
    assert alone["excerpts"]
    assert [e["id"] for e in alone["excerpts"]] == [e["id"] for e in served["excerpts"]]
    assert alone["context"] == served["context"]
    assert alone.keys() == served.keys()


def shape(value: Any) -> Any:
    """The keys of an answer, without its values."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items() if key not in ("details",)}
    return [shape(value[0])] if isinstance(value, list) and value else None


@pytest.mark.parametrize(
    "command",
    [
        ("documents", "list"),
        ("hardware", "list"),
        ("hardware", "show", "h100"),
        ("hardware", "facts", "h100"),
        ("hardware", "coverage", "h100"),
        ("knowledge", "tree"),
        ("signals",),
        ("skills", "list"),
    ],
)
def test_both_ways_answer_in_one_shape(service: Path, data: Path, command: tuple[str, ...]) -> None:
    alone = kernlore(*command, "--json", data=data)
    served = kernlore(*command, "--json", data=service)
    assert (alone.code, served.code) == (0, 0), served.err
    assert shape(served.json) == shape(alone.json)


def test_a_running_service_is_used_for_ingestion(service: Path, tmp_path: Path) -> None:
    file = tmp_path / "quokka.md"
    file.write_text("# Quokka\n\nThe quokka pipeline drains before it fills.\n")
    ran = kernlore("ingest", file, "--hardware", "h100", "--json", data=service)
    assert ran.code == 0, ran.err
    assert ran.json["files"][0]["state"] == "ready"
    found = kernlore("retrieve", "--q", "quokka pipeline", "--json", data=service).json
    assert "quokka" in found["excerpts"][0]["text"]
    document_id = ran.json["files"][0]["document_id"]
    shown = kernlore("documents", "show", document_id, "--json", data=service).json
    assert (shown["passages"], len(shown["sections"])) == (1, 1)
    job = kernlore("jobs", "show", shown["job_id"], "--json", data=service).json
    assert (job["state"], job["document_id"]) == ("ready", document_id)


def test_a_corrected_text_is_found_by_its_words(service: Path) -> None:
    document_id = document_of(service, "Wombat")
    passage = kernlore("documents", "passages", document_id, "--json", data=service).json[0]
    right = passage["text"] + " The zebrafish counter says so."
    ran = kernlore("documents", "correct", passage["id"], "--text", right, "--json", data=service)
    assert ran.json["corrected"] is True
    found = kernlore("retrieve", "--q", "zebrafish counter", "--json", data=service).json
    assert found["excerpts"][0]["passages"] == [passage["id"]]


def test_what_the_service_owns_is_not_touched(service: Path) -> None:
    ran = kernlore("reindex", "--json", data=service)
    assert (ran.code, ran.json["code"]) == (2, "conflict")
    second = kernlore("serve", "--port", str(free_port()), data=service)
    assert second.code == 2
    assert "already runs" in second.err


def test_the_greeting_has_three_lines_to_try(service: Path) -> None:
    lines = (service.parent / "out.txt").read_text().splitlines()
    tries = [line for line in lines if line.startswith("curl ")]
    assert len(tries) == 3
    assert tries == lines[-3:]
    assert tries[0].endswith("/retrieve?signal=memory_bound'")
    answer = subprocess.run(
        tries[2].replace("curl ", "curl -s ", 1), shell=True, capture_output=True, text=True
    )
    if shutil.which("curl"):
        assert json.loads(answer.stdout)["diagnosis"]["signals"]


def test_an_interrupted_ingestion_goes_on_when_it_is_repeated(
    tmp_path: Path, model_cache: Path
) -> None:
    folder = tmp_path / "manuals"
    folder.mkdir()
    for n in range(12):
        (folder / f"{n}.md").write_text(f"# Part {n}\n\nPart number {n} stalls on its own.\n")
    data = tmp_path / "data"
    if model_cache.exists():
        shutil.copytree(model_cache, data / "models")
    arguments = ["ingest", str(folder), "--category", "guidance", "--data-dir", str(data)]
    short_lease = os.environ | {"KERNLORE_LEASE_SECONDS": "2"}
    first = subprocess.Popen(
        [*COMMAND, *arguments],
        cwd=ROOT,
        env=short_lease,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert first.stdout is not None
    for line in first.stdout:
        if line.startswith("created") and "9.md" in line:
            break
    time.sleep(0.7)  # some are being read now
    first.send_signal(signal.SIGINT)
    _, errors = first.communicate(timeout=60)
    assert first.returncode == 130
    assert "Traceback" not in errors
    second = subprocess.run(
        [*COMMAND, *arguments, "--json"],
        cwd=ROOT,
        env=short_lease,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert second.returncode == 0, second.stderr
    files = json.loads(second.stdout)["files"]
    assert len(files) == 12
    assert kernlore("doctor", data=data).code == 0
    listed = kernlore("documents", "list", "--json", data=data).json
    assert [document["job_state"] for document in listed] == ["ready"] * 12
