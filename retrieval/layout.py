"""The layout of contexts as data: what goes in for which task, in which order, with which share.

Reads `data/layout.toml`. Knows nothing about documents.
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

BLOCKS = frozenset({"errors", "symbols", "hardware", "constraint", "guidance", "moves", "skills"})
UNBOUNDED = ("moves", "skills")  # few lines, placed first
RESERVED = 3  # what is left of a small budget is a third of it at most


@dataclass(frozen=True)
class TargetLayout:
    """The part of a context that stays equal in a run. Shares are of the whole budget, `reserve`
    and `least` are in tokens; `questions` are (id, query) pairs.
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
        """The budget whose shares this part takes: that of the whole context, or less where the
        reserve would not be left.
        """
        left = min(self.reserve, tokens // RESERVED)
        return min(tokens, int((tokens - left) / self.share))

    def has_room(self, task: str, tokens: int) -> bool:
        """Whether this part has a place in the context of a task: not beside an answer, and only
        for a kernel to be written where what happened would leave it less than its least.
        """
        return task == "write" or (task != "ask" and tokens >= self.reserve + self.least)


@dataclass(frozen=True)
class TaskLayout:
    """The part about what just happened: blocks in their order, and shares of what is left. `most`
    bounds blocks in tokens, in place of the bounds of all tasks.
    """

    blocks: tuple[str, ...]
    shares: Mapping[str, float]
    most: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Layout:
    """The shipped layout. `known_languages` are those that models have seen, `largest_section` is
    in tokens, and so are `most` and `least`, which bound a block whatever the budget. `known` are
    the tasks that are laid out otherwise in a known language.
    """

    known_languages: frozenset[str]
    largest_section: int
    most: Mapping[str, int]
    least: Mapping[str, int]
    target: TargetLayout
    tasks: Mapping[str, TaskLayout]
    known: Mapping[str, TaskLayout] = field(default_factory=dict)

    def for_known(self) -> Layout:
        """The layout where the language is one that models have seen."""
        return replace(self, tasks={**self.tasks, **self.known})

    def bound(self, task: str, block: str, share: int, room: int) -> int:
        """The most tokens of a block whose share of the `room` for all blocks is `share`."""
        share = max(share, min(self.least.get(block, 0), room // RESERVED))
        return min(share, self.tasks[task].most.get(block, self.most.get(block, share)))

    def is_known(self, language: str) -> bool:
        """Whether models have seen the language."""
        return language in self.known_languages

    def may_be(self, stated: str, wanted: str | None) -> bool:
        """Whether code or a name that a document states to be in one language may be in the wanted
        one. Manuals give their own chip's language many names in code fences, so only a language
        that models know is told apart.
        """
        return stated in ("", wanted) or wanted is None or stated not in self.known_languages


@lru_cache(maxsize=1)
def load_layout() -> Layout:
    """The built-in layout. Raises InvalidKnowledge where the file does not fit together."""
    text = (DATA / "layout.toml").read_text(encoding="utf-8")
    return layout_from(tomllib.loads(text))


def layout_from(raw: Mapping[str, Any]) -> Layout:
    """The layout that parsed TOML states. Raises InvalidKnowledge."""
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
    languages = frozenset(raw["languages"]["known"])
    known = {name: _task(name, row) for name, row in raw.get("known", {}).items()}
    if known.keys() - tasks.keys():
        raise _broken("[known] names an unknown task")
    return Layout(
        languages, raw["largest_section"], raw["most"], raw["least"], layout, tasks, known
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
