"""The layout of contexts as data: the blocks of each task, their order and their shares. Reads
`data/layout.toml`. Does not know documents.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from kb.errors import InvalidKnowledge
from retrieval.diagnose.signals import DATA
from retrieval.request import TASKS

BLOCKS = frozenset(
    {
        *("errors", "surprises", "facts", "kernels", "symbols", "hardware", "constraint"),
        *("guidance", "moves", "skills"),
    }
)
UNBOUNDED = ("moves", "skills")  # few lines, placed first
RESERVED = 3  # the reserve is at most a third of a small budget


@dataclass(frozen=True)
class TargetLayout:
    """The part of a context that stays equal throughout a run. Shares are of the whole budget,
    `reserve` and `least` are in tokens; `questions` are (id, query) pairs.
    """

    share: float
    reserve: int
    least: int
    whole: float
    samples: float
    symbols: float
    errors: float
    sections: float
    max_samples: int
    one_sample: float
    questions: tuple[tuple[str, str], ...]

    def budget(self, tokens: int) -> int:
        """The budget that the shares of this part refer to: the whole context's, or less if the
        reserve would not remain.
        """
        left = min(self.reserve, tokens // RESERVED)
        return min(tokens, int((tokens - left) / self.share))

    def has_room(self, task: str, tokens: int) -> bool:
        """Whether the context of a task has this part: never for the task ask, and for the task
        write only if at least `least` tokens remain.
        """
        return task == "write" or (task != "ask" and tokens >= self.reserve + self.least)


@dataclass(frozen=True)
class TaskLayout:
    """The part about what happened: blocks in order, and their shares of the remaining budget.
    `most` overrides the bounds of blocks, in tokens.
    """

    blocks: tuple[str, ...]
    shares: Mapping[str, float]
    most: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Layout:
    """The built-in layout. `known_languages` are those in the training data of models.
    `largest_section`, `most` and `least` are in tokens; the last two bound a block independent of
    the budget. `known` overrides the layout of tasks in a known language, `kernels` that of tasks
    for an operator with whole kernels, `strong` that for a strong reader, who gets `strong_tokens`
    at most. `facts` are keys of facts about a device, in their order.
    """

    known_languages: frozenset[str]
    largest_section: int
    most: Mapping[str, int]
    least: Mapping[str, int]
    target: TargetLayout
    tasks: Mapping[str, TaskLayout]
    known: Mapping[str, TaskLayout] = field(default_factory=dict)
    kernels: Mapping[str, TaskLayout] = field(default_factory=dict)
    strong: Mapping[str, TaskLayout] = field(default_factory=dict)
    strong_tokens: int = 2000
    facts: tuple[str, ...] = ()

    def with_tasks(self, *overrides: Mapping[str, TaskLayout]) -> Layout:
        """The layout with the tasks in `overrides`; the last one takes precedence."""
        tasks = dict(self.tasks)
        for override in overrides:
            tasks |= override
        return replace(self, tasks=tasks)

    def bound(self, task: str, block: str, share: int, room: int) -> int:
        """The largest size of a block, in tokens, whose share of the `room` for all blocks is
        `share`.
        """
        share = max(share, min(self.least.get(block, 0), room // RESERVED))
        return min(share, self.tasks[task].most.get(block, self.most.get(block, share)))

    def is_known(self, language: str) -> bool:
        """Whether models know the language."""
        return language in self.known_languages

    def may_be(self, stated: str, wanted: str | None) -> bool:
        """Whether code that a document labels with one language may be in the wanted one. Manuals
        label code in their chip's language in many ways, so only languages that models know are
        distinguished.
        """
        return stated in ("", wanted) or wanted is None or stated not in self.known_languages


@lru_cache(maxsize=1)
def load_layout() -> Layout:
    """The built-in layout. Raises InvalidKnowledge if the file is inconsistent."""
    text = (DATA / "layout.toml").read_text(encoding="utf-8")
    return layout_from(tomllib.loads(text))


def layout_from(raw: Mapping[str, Any]) -> Layout:
    """Parse a layout. Raises InvalidKnowledge."""
    target = dict(raw["target"])
    questions = tuple((row["id"], row["query"]) for row in target.pop("questions"))
    tasks = {name: _task(name, row) for name, row in raw["tasks"].items()}
    if set(tasks) != set(TASKS):
        raise _broken(f"it must lay out {', '.join(TASKS)}")
    layout = TargetLayout(**target, questions=questions)
    parts = (layout.samples, layout.symbols, layout.errors, layout.sections)
    if sum(parts) > layout.share + 1e-9:
        raise _broken("samples, symbols, errors and sections together exceed target.share")
    for table in ("most", "least"):
        unknown = sorted(raw[table].keys() - BLOCKS)
        if unknown:
            raise _broken(f"[{table}] names the unknown block {unknown[0]}")
    overrides = {}
    for table in ("known", "kernels", "strong"):
        overrides[table] = {name: _task(name, row) for name, row in raw.get(table, {}).items()}
        if overrides[table].keys() - tasks.keys():
            raise _broken(f"[{table}] names an unknown task")
    return Layout(
        known_languages=frozenset(raw["languages"]["known"]),
        largest_section=raw["largest_section"],
        most=raw["most"],
        least=raw["least"],
        target=layout,
        tasks=tasks,
        strong_tokens=raw["strong_tokens"],
        facts=tuple(raw["facts"]),
        **overrides,
    )


def _task(name: str, row: Mapping[str, Any]) -> TaskLayout:
    blocks, shares = tuple(row["blocks"]), dict(row["shares"])
    most = dict(row.get("most", {}))
    unknown = sorted({*blocks, *shares, *most} - BLOCKS)
    if unknown:
        raise _broken(f"task {name} names the unknown block {unknown[0]}")
    bounded = {block for block in blocks if block not in UNBOUNDED}
    if bounded != set(shares) or sum(shares.values()) > 1 + 1e-9:
        raise _broken(f"the shares of task {name} must cover its blocks and add up to at most 1")
    return TaskLayout(blocks, shares, most)


def _broken(message: str) -> InvalidKnowledge:
    return InvalidKnowledge(f"layout.toml: {message}", hint="Correct layout.toml.")
