"""Hints of commands name commands, and unknown settings are named."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from api.cli.commands.doctor import check_directory
from api.cli.commands.knowledge import _recipe_lines
from api.cli.commands.optimize import _result_text
from api.cli.commands.problem import knowledge_lines
from api.cli.output import in_commands
from api.cli.search import _Live
from api.cli.target import read_settings
from kb.errors import InvalidRequest, UnknownHardware, UnknownSignal
from kb.settings import Settings, unknown_settings
from optimizer.search.goal import Goal
from optimizer.search.records import Node
from optimizer.search.tree import Tree
from tests.api.cli_process import kernlore
from tests.optimizer.search.landscape import evaluation, proposal

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


def test_hints_about_settings_name_existing_options(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidRequest) as error:
        read_settings(None, port=99999)
    assert "Correct --port;" in error.value.hint
    monkeypatch.setenv("KERNLORE_MAX_K", "-3")
    with pytest.raises(InvalidRequest) as error:
        read_settings(None)
    assert "Correct KERNLORE_MAX_K;" in error.value.hint and "--max-k" not in error.value.hint


# -- printed text of answers where a line could be empty or incomplete


def excerpt(title: str, section: str) -> dict[str, Any]:
    return {"document": {"title": title}, "section": section}


def test_excerpt_line_has_document_title() -> None:
    excerpts = [
        excerpt("orbis3_errors", ""),
        excerpt("ISA", "ISA"),
        excerpt("Guide", "Guide > 2 Memory"),
        excerpt("Guide", "3 Errors"),
        excerpt("", ""),
    ]
    lines = knowledge_lines({"signals": ["compile_error"], "moves": [], "excerpts": excerpts})
    assert lines == [
        "",
        "known about compile_error:",
        "  read orbis3_errors",
        "  read ISA",
        "  read Guide > 2 Memory",
        "  read Guide > 3 Errors",
    ]
    assert knowledge_lines({"signals": [], "moves": [], "excerpts": []}) == []


def test_module_without_kernel_is_stated() -> None:
    outcome = {
        "gain": None,
        "over": "the reference",
        "best_so_far": None,
        "measured": False,
        "reason": "not measured: none of 3 candidates is right",
        "clock": "wall",
    }
    answer = {
        "outcome": outcome,
        "ended": "the budget is spent",
        "correct": True,
        "kernel": None,
        "module": "/out/best",
        "import": "PYTHONPATH=/out python -c 'from best import ModelNew'",
    }
    lines = _result_text(answer).splitlines()
    assert lines[-2:] == [
        answer["import"],
        "the module contains no kernel: its ModelNew is the reference",
    ]


def test_empty_recipe_list_names_their_sources() -> None:
    assert "code samples of uploaded manuals" in _recipe_lines([])


def test_search_screen_is_bounded() -> None:
    live, tree = _Live(Goal(candidates=50)), Tree([])
    tree.add(Node(0, None, "evaluated", None, evaluation(None, 1.0)))
    for number in range(1, 41):
        made = proposal(number, 0)
        tree.add(Node(number, 0, "evaluated", made, evaluation(made.bundle, 1.0 + number / 100)))
        live.node(tree.nodes[-1], tree)
        live.log(f"remark {number}")
    live.working(41, "compiling")
    console = Console(width=100, record=True, file=StringIO())
    console.print(live.frame())
    shown = console.export_text()
    assert "candidate 41: compiling (0 s)" in shown and "left 10 candidates" in shown
    assert "remark 40" in shown and "remark 1\n" not in shown
    assert len(shown.splitlines()) < 20
