"""`kernlore skills` as a person uses it, over a data directory and over a service."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.api.cli_process import kernlore

pytestmark = pytest.mark.slow(seconds=15)

SHIPPED = "cpp-fused-row-softmax"
PAGE = """---
name: gnu-rows
description: "Use when rows of gnus are summed. Do not use elsewhere."
metadata:
  kb.ops: "reduction"
  kb.signals: "memory_bound"
---

## When to use

Rows of gnus are summed.
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("skills")
    (folder / "gnu-rows").mkdir()
    (folder / "gnu-rows" / "SKILL.md").write_text(PAGE, encoding="utf-8")
    done = kernlore("skills", "import", folder / "gnu-rows", "--json", data=folder / "data")
    assert done.code == 0, done.err
    assert [(row["name"], row["state"]) for row in done.json] == [("gnu-rows", "candidate")]
    return folder


def test_imported_skill_is_found(place: Path) -> None:
    data = place / "data"
    listed = kernlore("skills", "list", "--state", "candidate", "--json", data=data)
    assert [row["name"] for row in listed.json] == ["gnu-rows"]
    found = kernlore("skills", "search", "gnu rows", "--hardware", "h100", "--json", data=data)
    assert [row["name"] for row in found.json][:1] == ["gnu-rows"]
    curated = kernlore("skills", "list", "--tier", "curated", "--json", data=data)
    assert SHIPPED in [row["name"] for row in curated.json]
    for wrong in (("--state", "actve"), ("--tier", "best"), ("--hardware", "h10")):
        assert kernlore("skills", "list", *wrong, "--json", data=data).code == 2
    listed = kernlore("skills", "list", "--language", "nki", "--hardware", "h100", data=data)
    assert listed.code == 0 and "nki-" not in listed.out


def test_skill_without_scope_gives_warning(place: Path) -> None:
    (place / "talon-wait").mkdir()
    page = "---\nname: talon-wait\ndescription: Use when a talon waits.\n---\nWait.\n"
    (place / "talon-wait" / "SKILL.md").write_text(page, encoding="utf-8")
    taken = kernlore("skills", "import", place / "talon-wait", data=place / "data")
    approved = kernlore(
        *("skills", "approve", "talon-wait", "--reason", "I know it", "--force"),
        data=place / "data",
    )
    for done in (taken, approved):
        assert done.code == 0 and "Warning: talon-wait: It names neither hardware" in done.err


def test_active_skill_has_separate_revision(place: Path) -> None:
    data = place / "data"
    text = place / "text.md"
    text.write_text("Wait twice.\n", encoding="utf-8")
    change = ("revise", "talon-wait", "--text-file", text, "--reason", "better")
    revised = kernlore("skills", *change, data=data)
    assert revised.out.splitlines() == ["talon-wait-r2 is candidate"]
    assert "stays in use as it is until" in revised.err
    shown = kernlore("skills", "show", "talon-wait-r2", data=data)
    assert "+Wait twice." in shown.out and "revises         talon-wait" in shown.out
    step = ("approve", "talon-wait-r2", "--reason", "better", "--force")
    placed = kernlore("skills", *step, data=data)
    assert placed.out.splitlines() == ["talon-wait-r2 is in use now, as version 2 of talon-wait"]
    nothing = kernlore("skills", "revise", "talon-wait", "--reason", "x", data=data)
    assert nothing.code == 2


def test_every_decision_is_in_history(place: Path) -> None:
    data = place / "data"
    unmeasured = kernlore("skills", "approve", "gnu-rows", "--reason", "I like it", data=data)
    assert unmeasured.code == 2 and "no measurement" in unmeasured.err
    for word in ("quarantine", "restore", "retire", "restore"):
        arguments = ("skills", word, "gnu-rows", "--reason", f"to {word}", "--actor", "ann")
        assert kernlore(*arguments, data=data).code == 0
    without = kernlore("skills", "retire", "gnu-rows", data=data)
    assert without.code == 2 and "--reason" in without.err
    own = kernlore("skills", "retire", SHIPPED, "--reason", "a test", "--json", data=data)
    assert own.json["event"]["actor"] and own.json["state"] == "retired"
    reported = kernlore("skills", "history", "gnu-rows", "--json", data=data).json
    assert [(e["to_state"], e["actor"], e["reason"]) for e in reported][1:] == [
        ("quarantined", "ann", "to quarantine"),
        ("candidate", "ann", "to restore"),
        ("retired", "ann", "to retire"),
        ("candidate", "ann", "to restore"),
    ]


def test_exported_library_is_valid_and_imports(place: Path) -> None:
    out = place / "out"
    done = kernlore(
        "skills", "export", "gnu-rows", "cpp-in-register-scan", "-o", out, data=place / "data"
    )
    assert done.code == 0, done.err
    command = Path(sys.executable).with_name("agentskills")
    for folder in sorted(out.iterdir()):
        checked = subprocess.run(
            [command, "validate", folder], capture_output=True, text=True, check=False
        )
        assert checked.returncode == 0, checked.stderr
    back = kernlore("skills", "import", out, "--json", data=place / "data")
    assert {row["outcome"] for row in back.json} == {"unchanged"}
    nothing = kernlore("skills", "import", place / "data", data=place / "data")
    assert nothing.code == 2 and "SKILL.md" in nothing.err


def test_commands_work_over_service(place: Path, service_url: str) -> None:
    def remote(*arguments: str | Path) -> Any:
        done = kernlore("skills", *arguments, "--url", service_url, "--json")
        assert done.code == 0, done.err
        return done.json

    (taken,) = remote("import", place / "gnu-rows")
    assert (taken["name"], taken["state"]) == ("gnu-rows", "candidate")
    (found,) = remote("list", "--state", "candidate", "--tier", "learned")
    assert found["name"] == "gnu-rows"
    assert remote("retire", "gnu-rows", "--reason", "a test")["state"] == "retired"
    events = remote("history", "gnu-rows")
    assert [e["to_state"] for e in events] == ["candidate", "retired"]
    out = place / "from-service"
    remote("export", "gnu-rows", SHIPPED, "-o", out)
    assert (out / "gnu-rows" / "SKILL.md").is_file()
    narrowed = remote("export", "-o", place / "nki", "--hardware", "trainium2", "--language", "nki")
    kinds = {Path(path).name.partition("-")[0] for path in narrowed}
    assert "nki" in kinds and not kinds & {"triton", "cpp", "cuda"}
    shutil.rmtree(out / "gnu-rows")
    again = kernlore("skills", "export", "absent", "-o", out, "--url", service_url)
    assert again.code == 2 and not (out / "absent").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("distill",), "needs a run or a trajectory"),
        (("distill", "run_0"), "no run run_0"),
        (("distill", "--trajectory", "trj_0"), "trj_0"),
        (("verify",), "one of NAME"),
        (("verify", "gnu-rows", "--queued"), "one of NAME"),
        (("ablate", "absent"), "absent"),
        (("lift", "absent"), "absent"),
        (("replay", "0" * 64), "no stored file"),
    ],
)
def test_invalid_requests_have_hints(place: Path, arguments: tuple[str, ...], message: str) -> None:
    done = kernlore("skills", *arguments, "--json", data=place / "data")
    assert done.code == 2 and message in done.err, done.err


def test_lift_of_an_unshown_skill_is_unknown(place: Path) -> None:
    done = kernlore("skills", "lift", "gnu-rows", "--json", data=place / "data")
    assert done.json["lift"] is None and "no lift" in done.json["reason"]
