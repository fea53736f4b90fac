"""`kernlore runs propose`: a scripted model here, the evaluation in another process that sees only
a zip, and the next round from its measurements.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from optimizer.evaluation.records import TIMING
from optimizer.search.portable.launch import CEILINGS, SESSION
from tests.api.cli_process import COMMAND, ERROR_KEYS, CommandResult, kernlore
from tests.catalogs import fresh_data_dir
from tests.known_device import known_ceilings
from tests.optimizer.search.synthesizers.llm.llm_servers import Answered, ModelServer, prompt_of
from tests.problem_files import kernel_text, model_text

pytestmark = [
    pytest.mark.slow(seconds=25),
    pytest.mark.skipif(find_spec("litellm") is None, reason="the extra `llm` is not installed"),
]

PROBLEM = model_text("2 * x + 1", "torch.randn(64, 32)")
KERNEL = kernel_text("%s")
RIGHT = {"correct", "unmeasured"}  # the latter on a machine that is never quiet
BODIES = ("2 * x[i] + 1", "twice(x[i])", "x[i] + x[i] + 1", "1 + 2 * x[i]")


def answer(body: str) -> Answered:
    head = {"plan": f"y = {body}", "used": [], "language": "cpp", "main": "kernel.cpp"}
    return Answered(f"{json.dumps(head)}\n\nFile: kernel.cpp\n```\n{KERNEL % body}```\n")


@pytest.fixture(scope="module")
def model() -> Iterator[ModelServer]:
    server = ModelServer(lambda body, number: answer(BODIES[number % len(BODIES)]))
    yield server
    server.close()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-local-test-0123456789abcdef")
    (tmp_path / "mine.py").write_text(PROBLEM, encoding="utf-8")
    return fresh_data_dir(tmp_path / "home")


def propose(
    home: Path, model: ModelServer, target: str | Path, batch: Path, *more: str
) -> CommandResult:
    options = ("--models", "openai/gpt-4o-mini", "--api-base", model.url, "--drafts", "2")
    return kernlore("runs", "propose", target, *options, "-o", batch, *more, "--json", data=home)


def evaluated(batch: Path, out: Path) -> Path:
    """The steps on the machine with the device."""
    out.mkdir()
    (out / CEILINGS).write_text(json.dumps(known_ceilings().as_json()), encoding="utf-8")
    stored = ("PATH", "HOME", "TMPDIR", TIMING)
    environment = {name: os.environ[name] for name in stored if name in os.environ}
    command = [sys.executable, str(batch), "--out", str(out), "--finalists", "1"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return out / "results.zip"


def test_second_round_starts_from_measured_results(
    home: Path, model: ModelServer, tmp_path: Path
) -> None:
    new = ("--hardware", "x86-64", "--language", "cpp", "--knowledge", "off")
    first = propose(home, model, tmp_path / "mine.py", tmp_path / "one.zip", *new)
    assert first.code == 0, first.err
    (row,) = first.json["runs"]
    run = row["run"]
    assert row["drafts"] == 2 and row["note"] == "" and len(model.requests) == 2
    prompts = [prompt_of(request) for request in model.requests]
    assert "BEGIN verdict" not in prompts[0]  # nothing was run yet
    assert "under-way" not in prompts[0] and f"y = {BODIES[0]}" in prompts[1]
    listed = kernlore("runs", "list", "--json", data=home).json
    assert [(r["run"], r["state"]) for r in listed] == [(run, "waiting")]

    results = evaluated(tmp_path / "one.zip", tmp_path / "first")
    (imported,) = kernlore("runs", "import", results, "--json", data=home).json
    assert (imported["run"], imported["state"]) == (run, "finished")
    tree = kernlore("runs", "tree", run, "--json", data=home).json
    assert tree[1]["verdict"] in RIGHT and tree[2]["verdict"] == "not_compiled"

    more = ("-o", tmp_path / "two.zip", "--drafts", "2", "--json")
    second = kernlore("runs", "propose", run, *more, data=home)  # the models of the first round
    assert second.code == 0, second.err
    shown = prompt_of(model.requests[2])
    assert "BEGIN verdict" in shown
    assert "measured on this device" not in prompts[0] and "measured on this device" in shown
    kernlore("runs", "import", evaluated(tmp_path / "two.zip", tmp_path / "second"), data=home)
    tree = kernlore("runs", "tree", run, "--json", data=home).json
    assert [node["number"] for node in tree] == [0, 1, 2, 3, 4]
    assert {node["verdict"] for node in tree[3:]} <= RIGHT

    again = kernlore("runs", "import", results, "--json", data=home)
    assert again.code == 2 and again.json["code"] == "conflict"
    assert len(kernlore("runs", "tree", run, "--json", data=home).json) == 5


def test_folder_means_its_problems(home: Path, tmp_path: Path) -> None:
    model = ModelServer(lambda body, number: answer(BODIES[number % len(BODIES)]))
    folder, batch = tmp_path / "set", tmp_path / "b.zip"
    inner = folder / "tripled"
    inner.mkdir(parents=True)
    (folder / "doubled.py").write_text(PROBLEM, encoding="utf-8")
    (inner / "problem.py").write_text(PROBLEM.replace("2 * x", "3 * x"), encoding="utf-8")
    (folder / "helper.py").write_text("WIDTH = 3\n", encoding="utf-8")
    new = ("--hardware", "x86-64", "--language", "cpp", "--knowledge", "off")
    done = propose(home, model, folder, batch, *new)
    model.close()
    assert done.code == 0, done.err
    assert [row["problem"] for row in done.json["runs"]] == ["doubled", "tripled"]
    assert [row["drafts"] for row in done.json["runs"]] == [2, 2]
    with zipfile.ZipFile(batch) as packed:
        problems = json.loads(packed.read(SESSION))["problems"]
    assert {problem["known_as"] for problem in problems} == {
        str(folder / "doubled.py"),
        str(inner / "problem.py"),
    }


def test_answers_survive_killed_process(home: Path, tmp_path: Path) -> None:
    never = threading.Event()

    def script(body: Mapping[str, Any], number: int) -> Answered:
        if "3 * x + 1" in prompt_of(body):
            never.wait(60)
        return answer(BODIES[0])

    server = ModelServer(script)
    (tmp_path / "other.py").write_text(PROBLEM.replace("2 * x", "3 * x"), encoding="utf-8")
    batch = tmp_path / "batch.zip"
    new = ("--hardware", "x86-64", "--language", "cpp", "--knowledge", "off", "--drafts", "1")
    command = [*COMMAND, "runs", "propose", str(tmp_path / "other.py"), str(tmp_path / "mine.py")]
    command += [*new, "--models", "openai/gpt-4o-mini", "--api-base", server.url]
    command += ["-o", str(batch), "--data-dir", str(home)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        deadline = time.monotonic() + 120
        while not batch.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        process.kill()
        output = process.communicate()[0].decode()
    never.set()
    server.close()
    assert batch.exists(), output
    with zipfile.ZipFile(batch) as packed:
        problems = json.loads(packed.read(SESSION))["problems"]
    assert [Path(problem["known_as"]).name for problem in problems] == ["mine.py"]


def test_batch_without_model_is_refused(home: Path, tmp_path: Path) -> None:
    options = ("--hardware", "x86-64", "--knowledge", "off", "-o", tmp_path / "b.zip", "--json")
    refused = kernlore("runs", "propose", tmp_path / "mine.py", *options, data=home)
    assert refused.code == 2 and refused.json["message"] == "no model is named"


@pytest.mark.parametrize(
    ("target", "options", "message"),
    [
        ("mine.py", (), "--hardware is not given"),
        ("run_none", (), "no run run_none"),
        ("nowhere.py", ("--hardware", "x86-64"), "nowhere.py"),
        ("mine.py", ("--hardware", "h1000"), "h1000"),
        ("mine.py", ("--hardware", "h200", "--language", "cpp"), "runs no cpp"),
    ],
)
def test_invalid_batch_has_hint(
    home: Path,
    model: ModelServer,
    tmp_path: Path,
    target: str,
    options: tuple[str, ...],
    message: str,
) -> None:
    place = tmp_path / target if target.endswith(".py") else target
    refused = propose(home, model, place, tmp_path / "b.zip", *options, "--knowledge", "off")
    assert refused.code == 2 and set(refused.json) == ERROR_KEYS
    assert message in refused.json["message"] and refused.json["hint"]
    assert not (tmp_path / "b.zip").exists()


def test_models_without_answer_leave_no_batch_and_no_run(home: Path, tmp_path: Path) -> None:
    silent = ModelServer(lambda body, number: Answered("I would rather not."))
    new = ("--hardware", "x86-64", "--language", "cpp", "--knowledge", "off")
    done = propose(home, silent, tmp_path / "mine.py", tmp_path / "b.zip", *new)
    silent.close()
    assert done.code != 0 and "no model proposed a candidate" in done.json["message"]
    assert not (tmp_path / "b.zip").exists()
    assert kernlore("runs", "list", "--json", data=home).json == []
