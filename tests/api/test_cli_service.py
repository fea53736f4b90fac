"""The command line next to a running service: equal answers both ways, and ownership of the
directory.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kb.data_dir import running_service
from tests.api.cli_process import (
    COMMAND,
    ROOT,
    document_of,
    free_port,
    kernlore,
    kernlore_process,
    serving,
)
from tests.catalogs import copy_data_dir, environment_of
from tests.shared import place_models

pytestmark = pytest.mark.slow(seconds=30)

OTHER = "---\ntitle: Other\nlanguages: []\nsources: []\n---\n# Other\n\nIt counts its cycles.\n"

# -- with a running service


@pytest.fixture(scope="module")
def service(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The same documents in a real service, next to a built-in one about another chip."""
    folder = tmp_path_factory.mktemp("served") / "data"
    copy_data_dir(data, folder)
    knowledge = folder.parent / "knowledge"
    (knowledge / "hardware" / "mtia-v2i").mkdir(parents=True)
    (knowledge / "hardware" / "mtia-v2i" / "other.md").write_text(OTHER, encoding="utf-8")
    with serving(folder, knowledge):
        yield folder


@pytest.mark.parametrize(
    "question",
    [
        ("--signal", "memory_bound", "--hardware", "h100"),
        ("--q", "how do I bound the registers of a kernel", "--hardware", "h100"),
        ("--log", "-", "--hardware", "h100"),
    ],
)
def test_excerpts_with_and_without_service_are_equal(
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


def test_running_service_is_used_for_ingestion(service: Path, tmp_path: Path) -> None:
    file = tmp_path / "quokka.md"
    file.write_text("# Quokka\n\nThe quokka pipeline drains before it fills.\n")
    ran = kernlore("ingest", file, "--hardware", "h100", "--json", data=service)
    assert ran.code == 0, ran.err
    assert ran.json["files"][0]["state"] == "ready"
    found = kernlore("retrieve", "--q", "quokka pipeline", "-k", "3", "--json", data=service).json
    assert "quokka" in found["excerpts"][0]["text"]
    document_id = ran.json["files"][0]["document_id"]
    shown = kernlore("documents", "show", document_id, "--json", data=service).json
    assert (shown["passages"], len(shown["sections"])) == (1, 1)
    job = kernlore("jobs", "show", shown["job_id"], "--json", data=service).json
    assert (job["state"], job["document_id"]) == ("ready", document_id)


def test_corrected_text_is_found_by_its_words(service: Path) -> None:
    document_id = document_of(service, "Wombat")
    passage = kernlore("documents", "passages", document_id, "--json", data=service).json[0]
    right = passage["text"] + " The zebrafish counter says so."
    ran = kernlore("documents", "correct", passage["id"], "--text", right, "--json", data=service)
    assert ran.json["corrected"] is True
    found = kernlore("retrieve", "--q", "zebrafish counter", "--json", data=service).json
    assert found["excerpts"][0]["passages"] == [passage["id"]]


def test_directory_of_a_service_is_not_written(service: Path) -> None:
    ran = kernlore("reindex", "--json", data=service)
    assert (ran.code, ran.json["code"]) == (2, "conflict")
    second = kernlore_process("serve", "--port", str(free_port()), data=service)
    assert second.code == 2
    assert "already runs" in second.err


def test_command_in_another_folder_uses_the_service_of_the_environment(
    service: Path, tmp_path: Path
) -> None:
    def ran(**given: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, "documents", "list", "--json"],
            cwd=tmp_path,
            env={k: v for k, v in os.environ.items() if not k.startswith("KERNLORE_")}
            | {"PYTHONPATH": str(ROOT)}
            | given,
            capture_output=True,
            text=True,
        )

    known = ran(KERNLORE_URL=str(running_service(service)))
    assert known.returncode == 0 and "Memory of the H100" in known.stdout
    assert not (tmp_path / "data").exists()
    alone = ran()
    assert alone.returncode == 0 and "Memory of the H100" not in alone.stdout
    assert "makes a new data directory" in alone.stderr and (tmp_path / "data").exists()


@pytest.mark.parametrize("state", ("gone", "empty"))
def test_service_without_built_in_knowledge_does_not_start(
    data: Path, tmp_path: Path, state: str
) -> None:
    store, wrong = tmp_path / "data", tmp_path / "unmounted"
    copy_data_dir(data, store)
    if state == "empty":
        wrong.mkdir()
    before = kernlore("documents", "list", "--json", data=store).json
    environment = {"KERNLORE_KNOWLEDGE_DIR": str(wrong)}
    for command in (("serve", "--port", str(free_port())), ("ingest", "--builtin")):
        ran = kernlore(*command, data=store, environment=environment)
        assert ran.code == 2 and ran.out == "", ran.err
        assert "unmounted" in ran.err and "Correct KERNLORE_KNOWLEDGE_DIR" in ran.err
    assert kernlore("documents", "list", "--json", data=store).json == before
    fresh = kernlore("hardware", "list", data=tmp_path / "fresh", environment=environment)
    assert fresh.code == 2 and "unmounted" in fresh.err


def test_greeting_has_three_example_commands(service: Path) -> None:
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


def test_interrupted_ingestion_resumes_when_repeated(tmp_path: Path, model_cache: Path) -> None:
    folder = tmp_path / "manuals"
    folder.mkdir()
    count = 60
    for n in range(count):
        (folder / f"{n}.md").write_text(f"# Part {n}\n\nPart number {n} stalls on its own.\n")
    data = place_models(tmp_path / "data", model_cache)
    arguments = ["ingest", str(folder), "--category", "guidance", "--data-dir", str(data)]
    short_lease = os.environ | {"KERNLORE_LEASE_SECONDS": "2"} | environment_of(data)
    first = subprocess.Popen(
        [*COMMAND, *arguments],
        cwd=ROOT,
        env=short_lease,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell makes background processes ignore the signal, and they pass that on.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert first.stdout is not None
    for line in first.stdout:
        if line.startswith("ready"):  # the first; the others wait or are being read
            break
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
        timeout=400,
    )
    assert second.returncode == 0, second.stderr
    files = json.loads(second.stdout)["files"]
    assert len(files) == count
    assert kernlore("doctor", data=data).code == 0
    listed = kernlore("documents", "list", "--json", data=data).json
    assert [document["job_state"] for document in listed] == ["ready"] * count


def test_interrupt_during_embedding_ends_cleanly(model_cache: Path) -> None:
    """Not with SIGABRT, though the embedding thread runs longer than the timeout."""
    script = (
        "import sys, threading\n"
        "from pathlib import Path\n"
        "from api.cli import main\n"
        "from kb.embedding import DEFAULT_MODEL, open_embedder\n"
        "embedder = open_embedder(DEFAULT_MODEL, Path(sys.argv[1]))\n"
        "begun = threading.Event()\n"
        "def embed():\n"
        "    while True:\n"
        "        embedder.encode_query('register ' * 200)\n"
        "        begun.set()\n"
        "for _ in range(4):\n"
        "    threading.Thread(target=embed, name='reading', daemon=True).start()\n"
        "begun.wait()\n"
        "main.main = lambda arguments: 130\n"
        "print('stopped')\n"
        "main.run()\n"
    )
    command = [sys.executable, "-c", script, str(model_cache)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400)
    assert (done.returncode, done.stdout) == (130, "stopped\n"), done.stderr
