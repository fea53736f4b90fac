"""Printed text of answers where a line could be empty or incomplete."""

from __future__ import annotations

from io import StringIO
from typing import Any

from rich.console import Console

from api.cli.commands.knowledge import _recipe_lines
from api.cli.commands.optimize import _result_text
from api.cli.commands.problem import knowledge_lines
from api.cli.search import _Live
from optimizer.search.goal import Goal
from optimizer.search.records import Node
from optimizer.search.tree import Tree
from tests.optimizer.search.landscape import evaluation, proposal


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
