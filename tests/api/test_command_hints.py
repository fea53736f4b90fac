"""Hints of commands name commands, and unknown settings are named."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from api.cli.commands.doctor import check_directory
from api.cli.output import in_commands
from api.cli.target import read_settings
from kb.errors import InvalidRequest, UnknownHardware, UnknownSignal
from kb.settings import Settings, unknown_settings
from tests.api.cli_process import kernlore

ROOT = Path(__file__).parents[2]
ROUTE = re.compile(r"\b(?:GET|POST|PATCH|DELETE) /\S*")
# Only a service has these.
OF_SERVICES = ("POST /runs", "POST /evaluations", "GET /readyz")


def hints() -> Iterator[str]:
    """The text of every `hint=` of the product that names a route, with names for its values."""
    for folder in ("kb", "ingestion", "retrieval", "optimizer", "skills"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            text = file.read_text(encoding="utf-8")
            if not ROUTE.search(text):
                continue
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.keyword) and node.arg == "hint":
                    yield _text(node.value)


def _text(value: ast.expr) -> str:
    parts = value.values if isinstance(value, ast.JoinedStr) else [value]
    return "".join(str(part.value) if isinstance(part, ast.Constant) else "ID" for part in parts)


def test_every_route_in_hint_becomes_a_command() -> None:
    named = [hint for hint in hints() if ROUTE.search(hint)]
    assert len(named) > 8
    left = [
        hint
        for hint in map(in_commands, named)
        if (found := ROUTE.search(hint)) and not found.group().startswith(OF_SERVICES)
    ]
    assert left == []


def test_hints_with_commands_are_sentences() -> None:
    chip = in_commands(UnknownHardware("h10", ["h100"]).hint)
    assert "`kernlore hardware list` lists every id; register a new chip with `kernlore" in chip
    assert "`kernlore signals` lists every signal" in in_commands(UnknownSignal("x", []).hint)
    assert in_commands("GET /hardware/{id}/facts lists them.") == (
        "`kernlore hardware facts ID` lists them."
    )


@pytest.mark.slow(seconds=3)
def test_command_error_names_command(tmp_path: Path) -> None:
    done = kernlore("skills", "show", "absent", "--json", data=tmp_path / "data")
    assert "kernlore skills list" in done.err and "GET /" not in done.err
    assert "kernlore skills list" in done.json["hint"]


def test_mistyped_setting_has_suggestion(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (message,) = unknown_settings({"KERNLORE_PROT": "9000", "KERNLORE_PORT": "1", "HOME": "/"})
    assert message == "KERNLORE_PROT is set but is not a setting; did you mean KERNLORE_PORT?"
    of_a_cluster = {"KERNLORE_SERVICE_HOST": "x", "KERNLORE_PORT_8321_TCP": "x"}
    assert unknown_settings({**of_a_cluster, "KERNLORE_KEY": "k"}) == ()
    monkeypatch.setenv("KERNLORE_PROT", "9000")
    checks = check_directory(Settings(data_dir=tmp_path))
    settings = next(check for check in checks if check.name == "settings")
    assert not settings.ok and "KERNLORE_PORT?" in settings.detail


def test_hints_about_settings_name_existing_options(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(InvalidRequest) as error:
        read_settings(None, port=99999)
    assert "Correct --port;" in error.value.hint
    monkeypatch.setenv("KERNLORE_MAX_K", "-3")
    with pytest.raises(InvalidRequest) as error:
        read_settings(None)
    assert "Correct KERNLORE_MAX_K;" in error.value.hint and "--max-k" not in error.value.hint
