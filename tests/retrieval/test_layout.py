"""The shipped layout of contexts, and inconsistent layouts."""

from __future__ import annotations

import copy
import tomllib
from typing import Any

import pytest

from kb.errors import InvalidKnowledge
from retrieval.diagnose.signals import DATA
from retrieval.layout import layout_from, load_layout
from retrieval.request import TASKS

RAW: dict[str, Any] = tomllib.loads((DATA / "layout.toml").read_text(encoding="utf-8"))


def changed(*path: str, value: Any) -> dict[str, Any]:
    """The shipped layout with another value at a path; None removes it."""
    raw: dict[str, Any] = copy.deepcopy(RAW)
    place = raw
    for name in path[:-1]:
        place = place[name]
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return raw


def test_shipped_layout_is_consistent() -> None:
    layout = load_layout()
    assert layout == layout_from(RAW) and set(layout.tasks) == set(TASKS)
    assert layout.target.whole <= layout.target.share < 1
    assert len({name for name, _ in layout.target.questions}) == len(layout.target.questions) == 7
    assert all(query for _, query in layout.target.questions)
    assert layout.largest_section > 0 and "triton" in layout.known_languages


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        (("tasks", "write"), None, "must lay out write, repair"),
        (("tasks", "dance"), RAW["tasks"]["ask"], "must lay out"),
        (("target", "samples"), 0.5, "exceed target.share"),
        (("most", "gossip"), 100, "unknown block gossip"),
        (("least", "gossip"), 100, "unknown block gossip"),
        (("tasks", "ask", "blocks"), ["gossip"], "task ask names the unknown block gossip"),
        (("tasks", "ask", "shares"), {"hardware": 1.0}, "must cover its blocks"),
        (("tasks", "write", "shares", "hardware"), 0.9, "add up to at most 1"),
        (("tasks", "repair", "shares", "moves"), 0.01, "must cover its blocks"),
    ],
)
def test_inconsistent_layout_is_refused(path: tuple[str, ...], value: Any, reason: str) -> None:
    with pytest.raises(InvalidKnowledge, match=reason):
        layout_from(changed(*path, value=value))


@pytest.mark.parametrize(
    ("stated", "wanted", "may"),
    [
        ("", "novac", True),
        ("novac", "novac", True),
        ("text", "novac", True),  # a custom fence name in a manual
        ("python", "novac", False),
        ("cuda", "cuda", True),
        ("cuda", "triton", False),
        ("cuda", None, True),
    ],
)
def test_only_known_languages_are_excluded(stated: str, wanted: str | None, may: bool) -> None:
    assert load_layout().may_be(stated, wanted) is may


def test_small_budget_leaves_room_for_situation() -> None:
    layout = load_layout()
    target = layout.target
    for budget in (1_000, 2_000, 3_000):
        first = target.share * target.budget(budget)
        assert budget - first >= min(target.reserve, budget // 3)
    assert target.budget(4_000) == 4_000 and target.budget(48_000) == 48_000
    small = layout.bound("repair", "errors", 100, 600)
    assert small == 200 and layout.bound("repair", "errors", 100, 3_000) == layout.least["errors"]
    assert layout.bound("repair", "errors", 900, 6_000) == 900


def test_first_kernel_in_known_language_gets_names_and_guides() -> None:
    layout = load_layout()
    known = layout.with_tasks(layout.known)
    assert layout.tasks["write"].blocks[:2] == ("facts", "hardware")
    assert known.tasks["write"].blocks[:2] == ("symbols", "guidance")
    assert known.tasks["repair"].blocks == layout.tasks["repair"].blocks
    assert known.bound("write", "hardware", 5_000, 10_000) == 400
    assert layout.bound("repair", "hardware", 5_000, 10_000) == 5_000
    assert known.bound("repair", "hardware", 5_000, 10_000) == 800
    assert layout.bound("write", "guidance", 5_000, 10_000) == layout.most["guidance"]
