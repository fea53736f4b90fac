"""Running the command line in tests: in this process, or in a separate one where that is tested
(start-up, locks, signals, imports); its answer; a directory of documents.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest
import structlog

from api.cli.main import main
from tests.catalogs import environment_of
from tests.shared import place_models

ROOT = Path(__file__).resolve().parents[2]
COMMAND = (sys.executable, "-m", "api.cli.main")
ERROR_KEYS = {"code", "message", "hint", "details"}

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
class CommandResult:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The JSON document on the last line of standard output."""
        lines = self.out.splitlines()
        assert len(lines) == 1, self.out
        return json.loads(lines[0])


def kernlore(
    *arguments: str | Path,
    data: Path | None = None,
    stdin: str = "",
    environment: Mapping[str, str] | None = None,
) -> CommandResult:
    """Run one command line in this process, which saves the second of interpreter start and
    imports.

    `environment` is added to the present one, without settings of Kernlore except those that name
    the servers of all tests. Standard output and standard error are captured at their file
    descriptors, so the output of child processes and libraries counts as well.
    """
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        for name in filter(_is_setting, list(os.environ)):
            patch.delenv(name)
        servers = environment_of(data) if data is not None else {}
        for name, value in (servers | dict(environment or {})).items():
            patch.setenv(name, value)
        patch.chdir(ROOT)
        given = Path(folder, "in")
        given.write_text(stdin, encoding="utf-8")
        out, err = Path(folder, "out"), Path(folder, "err")
        logging_settings = structlog.get_config()
        try:
            with (
                given.open(encoding="utf-8") as reader,
                _redirected(1, "stdout", out),
                _redirected(2, "stderr", err),
            ):
                patch.setattr(sys, "stdin", reader)
                code = _exit_code([*map(str, arguments), *_data_option(data)])
        finally:
            structlog.configure(**logging_settings)
        ran = CommandResult(code, out.read_text(encoding="utf-8"), err.read_text(encoding="utf-8"))
    assert "Traceback" not in ran.err, ran.err
    return ran


def kernlore_process(
    *arguments: str | Path, data: Path | None = None, stdin: str = ""
) -> CommandResult:
    """Run one command line in a new interpreter, as a shell does."""
    environment = {k: v for k, v in os.environ.items() if not _is_setting(k)}
    if data is not None:
        environment |= environment_of(data)
    done = subprocess.run(
        [*COMMAND, *map(str, arguments), *_data_option(data)],
        cwd=ROOT,
        env=environment,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return CommandResult(done.returncode, done.stdout, done.stderr)


def _is_setting(name: str) -> bool:
    """Timing of evaluations keeps the setting of the whole suite."""
    return name.startswith("KERNLORE_") and name != "KERNLORE_TIMING"


def _data_option(data: Path | None) -> list[str]:
    return ["--data-dir", str(data)] if data is not None else []


def _exit_code(arguments: list[str]) -> int:
    """The exit code with which `run` would end the process."""
    try:
        return main(arguments)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except Exception:  # as the interpreter does: a traceback and exit code 1
        traceback.print_exc()
        return 1


@contextmanager
def _redirected(descriptor: int, name: str, file: Path) -> Iterator[None]:
    """Redirect a descriptor and the stream of this name in `sys` to a file."""
    stream: IO[str] = getattr(sys, name)
    stream.flush()
    stored = os.dup(descriptor)
    with file.open("w", encoding="utf-8") as target:
        os.dup2(target.fileno(), descriptor)
        setattr(sys, name, os.fdopen(os.dup(descriptor), "w", encoding="utf-8"))
        try:
            yield
        finally:
            getattr(sys, name).close()
            setattr(sys, name, stream)
            os.dup2(stored, descriptor)
            os.close(stored)


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
    """A data directory filled by the command line, without a service."""
    folder = tmp_path_factory.mktemp("cli") / "data"
    place_models(folder, model_cache)
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


@contextmanager
def serving(
    data: Path,
    knowledge: Path,
    *,
    ready: bool = True,
    command: Sequence[str] = COMMAND,
    options: Sequence[str] = (),
) -> Iterator[str]:
    """The URL of a real service on a data directory, with the built-in knowledge of a folder. It is
    stopped at the end; its output is in a file next to the directory. With `ready`, all start-up
    work is done; otherwise it only accepts requests. `command` is `kernlore` as this test starts
    it.
    """
    port = free_port()
    with (
        (data.parent / "out.txt").open("wb") as out,
        (data.parent / "err.txt").open("wb") as errors,
    ):
        process = subprocess.Popen(
            [*command, "serve", "--port", str(port), "--data-dir", str(data), *options],
            cwd=ROOT,
            stdout=out,
            stderr=errors,
            env=os.environ | {"KERNLORE_KNOWLEDGE_DIR": str(knowledge)} | environment_of(data),
        )
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_until_ready(url, process, ready)
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0


def _wait_until_ready(url: str, process: subprocess.Popen[bytes], ready: bool) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert process.poll() is None, "the service ended"
        try:
            route = "readyz" if ready else "healthz"
            with urllib.request.urlopen(f"{url}/{route}", timeout=5) as answer:
                if json.load(answer).get("ready", not ready):
                    return
        except (urllib.error.URLError, OSError):
            pass
        time.sleep(0.1)
    raise AssertionError("the service did not become ready")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
