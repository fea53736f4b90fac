"""A service checks its knowledge by itself when a compiler of its machine has a new version."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bs4 import BeautifulSoup
from fastapi.testclient import TestClient

from api.app import create_app
from api.services import KNOWLEDGE_COMMAND
from kb.hardware.detection import detect_versions
from kb.settings import Settings
from optimizer.toolchain_watch import ToolchainWatch, new_versions
from tests.api.conftest import URL, wait_until_ready
from tests.places import ROOT
from tests.shared import copy_knowledge, place_models

pytestmark = [
    pytest.mark.slow(seconds=12),
    pytest.mark.skipif(shutil.which("g++") is None, reason="no g++"),
]

SAMPLES = "".join(
    f"""
[[samples]]
file = "{name}.cpp"
title = "Adding with {name}"
operator = "elementwise"
language = "cpp"
about = "Adds one to each element with {name}, in a loop that a compiler turns into vectors."
check = "g++"
flags = ["{flag}"]
status = "compiles"
checked = [{{what = "compiles", toolchain = "g++ 12.2", where = "any", date = 2026-11-20}}]
"""
    for name, flag in (("blocks", "-O1"), ("jumps", "-fno-plt"))
)
KERNEL = """extern "C" void add_{name}(const float* x, float* y, long n) {{
#pragma omp parallel for
  for (long i = 0; i < n; i++) {{
    y[i] = x[i] + 1.0f;
  }}
}}
"""
# The real compiler under another version, without an option and with another text for an error.
NEWER = """#!/bin/sh
case "$*" in
  *--version*) echo "g++ (Tests) 98.1.0"; exit 0;;
  *-fno-plt*) echo "g++: error: unrecognized command-line option '-fno-plt'" >&2; exit 1;;
esac
{real} "$@" 2>errors.txt
code=$?
sed 's/was not declared in this scope/is unknown/' errors.txt >&2
exit $code
"""
LOG = "add.cpp:3:7: error: 'acc' was not declared in this scope"
RECIPE = "cpp-fused-row-softmax"


@pytest.fixture
def client(tmp_path: Path, model_cache: Path) -> Iterator[TestClient]:
    manuals = copy_knowledge(tmp_path / "knowledge", ("guidance/memory-bound.md",))
    place = manuals / "samples" / "x86-64"
    shutil.rmtree(manuals / "samples", ignore_errors=True)
    place.mkdir(parents=True)
    (place / "samples.toml").write_text(SAMPLES)
    for name in ("blocks", "jumps"):
        (place / f"{name}.cpp").write_text(KERNEL.format(name=name))
    skills = tmp_path / "skills"
    shutil.copytree(ROOT / "skills" / "library" / RECIPE, skills / RECIPE)
    settings = Settings(
        data_dir=place_models(tmp_path / "data", model_cache),
        knowledge_dir=manuals,
        skills_dir=skills,
        toolchain_checks=False,  # the test looks itself
    )
    with TestClient(create_app(settings), URL) as running:
        wait_until_ready(running)
        yield running


@pytest.fixture
def newer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "newer"
    place.mkdir()
    (place / "g++").write_text(NEWER.format(real=shutil.which("g++")))
    (place / "g++").chmod(0o755)
    monkeypatch.setenv("PATH", f"{place}{os.pathsep}{os.environ['PATH']}")


def shows(client: TestClient, name: str, **asked: Any) -> bool:
    body = {"query": f"Adding with {name} in a loop", "hardware": "x86-64", **asked}
    return f"add_{name}" in client.post("/retrieve", json=body).text


def signatures(client: TestClient, **asked: Any) -> set[str]:
    body = {"log": LOG, "hardware": "x86-64", **asked}
    rows = client.post("/retrieve", json=body).json()["diagnosis"]["signatures"]
    return {row["id"] for row in rows}


def test_nothing_that_a_new_version_refuses_is_shown(client: TestClient, newer: None) -> None:
    services = client.app.state.services  # type: ignore[attr-defined]
    assert shows(client, "jumps") and "cc-undeclared" in signatures(client)
    assert detect_versions()["gcc"] == "98.1.0"
    assert new_versions(services.catalog) == {"gcc": "98"}
    watch = ToolchainWatch(services, KNOWLEDGE_COMMAND)
    job = watch.look()
    assert job is not None and job.state == "ready", job and job.error
    assert job.result["expired"] >= 2 and job.result["confirmed"] > 20
    assert watch.look() is None, "the version was checked"

    listed = client.get(f"/jobs/{job.id}").json()
    assert listed["title"] == "Check of the knowledge with GCC 98"
    assert "expired: samples/x86-64/jumps.cpp" in listed["result"]["remarks"]
    assert job.id in {row["id"] for row in client.get("/jobs").json()["jobs"]}

    # Without versions, for the new one, and for the old one.
    for versions in ({}, {"versions": {"gcc": "98.1"}}):
        assert not shows(client, "jumps", **versions)
        assert shows(client, "blocks", **versions)
        assert "cc-undeclared" not in signatures(client, **versions)
    old = {"versions": {"gcc": "12.2"}}
    assert shows(client, "jumps", **old) and "cc-undeclared" in signatures(client, **old)

    state = client.get("/knowledge/validity", params={"state": "expired"}).json()
    assert state["versions"]["gcc"] == "98"
    titles = {entry["title"] for entry in state["entries"]}
    assert "Adding with jumps" in titles and "Adding with blocks" not in titles
    confirmed = {"kind": "skill", "state": "holds"}
    skills = client.get("/knowledge/validity", params=confirmed).json()["entries"]
    assert any("GCC 98" in seen for entry in skills for seen in entry["seen"])
    page = client.get("/ui/knowledge/validity", params={"state": "expired"})
    assert "Adding with jumps" in BeautifulSoup(page.text, "lxml").get_text()
