"""The layout of contexts as data: the blocks of each task, their order and their shares. Reads
`data/layout.toml`. Does not know documents.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from kb.errors import InvalidKnowledge
from retrieval.diagnose.signals import DATA
from retrieval.operators import load_operators
from retrieval.request import TASKS

BLOCKS = frozenset(
    {
        *("errors", "surprises", "facts", "kernels", "symbols", "hardware", "constraint"),
        *("guidance", "moves", "skills"),
    }
)
_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"))
UNBOUNDED = ("moves", "skills")  # few lines, placed first
RESERVED = 3  # the reserve is at most a third of a small budget


@dataclass(frozen=True)
class TargetLayout:
    """The part of a context that stays equal throughout a run. Shares are of the whole budget,
    `reserve` and `least` are in tokens; `questions` are (id, query) pairs."""

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
        reserve would not remain."""
        left = min(self.reserve, tokens // RESERVED)
        return min(tokens, int((tokens - left) / self.share))

    def has_room(self, task: str, tokens: int) -> bool:
        """Whether the context of a task has this part: never for the task ask, and for the task
        write only if at least `least` tokens remain."""
        return task == "write" or (task != "ask" and tokens >= self.reserve + self.least)


@dataclass(frozen=True)
class TaskLayout:
    """The part about what happened: blocks in order, and their shares of the remaining budget.
    `most` overrides the bounds of blocks, in tokens."""

    blocks: tuple[str, ...]
    shares: Mapping[str, float]
    most: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class FactGroup:
    """Keys of facts for kernels in some `languages` and for some `kinds` of operators, empty for
    any."""

    keys: tuple[str, ...]
    languages: frozenset[str]
    kinds: frozenset[str]


@dataclass(frozen=True)
class Layout:
    """The built-in layout. `known_languages` are those in the training data of models.
    `largest_section`, `most` and `least` are in tokens; the last two bound a block independent of
    the budget. `known` overrides the layout of tasks in a known language, `kernels` that of tasks
    for an operator with whole kernels, `strong` that for a strong reader, who gets `strong_tokens`
    at most. `facts` are the facts about a device, in their order, `facts_left_out` those that no
    kernel needs, `fact_names` words for keys."""

    known_languages: frozenset[str]
    largest_section: int
    most: Mapping[str, int]
    least: Mapping[str, int]
    target: TargetLayout
    tasks: Mapping[str, TaskLayout]
    known: Mapping[str, TaskLayout] = field(default_factory=dict)
    kernels: Mapping[str, TaskLayout] = field(default_factory=dict)
    strong: Mapping[str, TaskLayout] = field(default_factory=dict)
    uploaded: Mapping[str, TaskLayout] = field(default_factory=dict)
    strong_tokens: int = 2000
    facts: tuple[FactGroup, ...] = ()
    facts_left_out: frozenset[str] = frozenset()
    fact_names: Mapping[str, str] = field(default_factory=dict)

    def facts_for(self, languages: Collection[str], kinds: Collection[str]) -> list[str]:
        """The keys of the facts that matter for a kernel. No kinds: for any operator."""
        fitting = (
            key
            for group in self.facts
            if not group.languages or not group.languages.isdisjoint(languages)
            if not group.kinds or not kinds or not group.kinds.isdisjoint(kinds)
            for key in group.keys
        )
        return list(dict.fromkeys(fitting))

    def with_tasks(self, *overrides: Mapping[str, TaskLayout]) -> Layout:
        """The layout with the tasks in `overrides`; the last one takes precedence."""
        tasks = dict(self.tasks)
        for override in overrides:
            tasks |= override
        return replace(self, tasks=tasks)

    def bound(self, task: str, block: str, share: int, room: int) -> int:
        """The largest size of a block, in tokens, whose share of the `room` for all blocks is
        `share`."""
        share = max(share, min(self.least.get(block, 0), room // RESERVED))
        return min(share, self.tasks[task].most.get(block, self.most.get(block, share)))

    def is_known(self, language: str) -> bool:
        """Whether models know the language."""
        return language in self.known_languages

    def may_be(self, stated: str, wanted: str | None) -> bool:
        """Whether code that a document labels with one language may be in the wanted one. Manuals
        label code in their chip's language in many ways, so only languages that models know are
        distinguished."""
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
    for table in ("known", "kernels", "strong", "uploaded"):
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
        facts=tuple(map(_facts, raw["facts"])),
        facts_left_out=frozenset(raw["facts_left_out"]),
        fact_names=raw["fact_names"],
        **overrides,
    )


def _facts(row: Mapping[str, Any]) -> FactGroup:
    unknown = sorted(set(row.get("kinds", ())) - load_operators().kinds.keys())
    if unknown:
        raise _broken(f"[[facts]] names the unknown kind {unknown[0]}")
    languages, kinds = frozenset(row.get("languages", ())), frozenset(row.get("kinds", ()))
    return FactGroup(tuple(row["keys"]), languages, kinds)


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


# -- facts in words


@dataclass(frozen=True)
class DeviceFact:
    """The value of a fact about a device, in `unit`; `measured` here, not read."""

    value: float | str
    unit: str
    measured: bool = False


def fact_lines(
    facts: Mapping[str, DeviceFact],
    layout: Layout,
    languages: Collection[str],
    kinds: Collection[str],
    *,
    whole: bool,
) -> list[str]:
    """The facts of a device that matter for a kernel in one of these languages, by key, a line
    each. `whole`: those too that the layout does not know, which the chip's own manuals name."""
    keys = layout.facts_for(languages, kinds)
    if whole:
        placed = {key for group in layout.facts for key in group.keys} | layout.facts_left_out
        keys += [key for key in facts if key not in placed]
    return [_fact_line(layout.fact_names.get(key), key, facts[key]) for key in keys if key in facts]


def _fact_line(name: str | None, key: str, fact: DeviceFact) -> str:
    # The rate of vector units says so, lest it be read as that of the chip.
    key = re.sub(r"^peak_(?!matrix)", "peak_vector_", key.removeprefix("x_"))
    value = fact.value if isinstance(fact.value, str) else _number(fact.value, fact.unit)
    return f"- {name or key.replace('_', ' ')}: {value}{' (measured)' if fact.measured else ''}"


def _number(value: float, unit: str) -> str:
    """A value as people write it: rates with a prefix, sizes and counts in full."""
    if "/s" in unit or unit == "Hz":
        for size, prefix in _PREFIXES:
            if value >= size:
                return f"{value / size:,.4g} {prefix}{unit}"
    shown = f"{value:,.0f}" if value == int(value) else f"{value:g}"
    return shown if unit in ("", "count", "text") else f"{shown} {unit}"
