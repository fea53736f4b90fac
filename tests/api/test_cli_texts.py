"""What commands print of an answer, where a line could be empty or say too little."""

from __future__ import annotations

from typing import Any

from api.cli.commands.knowledge import _recipe_lines
from api.cli.commands.optimize import _result_text
from api.cli.commands.problem import knowledge_lines


def excerpt(title: str, section: str) -> dict[str, Any]:
    return {"document": {"title": title}, "section": section}


def test_what_to_read_has_the_title_of_its_document() -> None:
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


def test_a_module_without_a_kernel_says_so() -> None:
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


def test_no_recipes_say_where_they_come_from() -> None:
    assert "code samples of uploaded manuals" in _recipe_lines([])
