"""Readers of contexts: classes of language models, what each class knows without a context, and the
measured gains of contexts. All three are data: `readers.toml`, `common.json` and `uplift.toml`.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

from kb.answers import Uplift
from kb.errors import InvalidKnowledge
from retrieval.diagnose.signals import DATA
from retrieval.operators import load_operators
from retrieval.request import READERS

STRONG = "strong"
GAIN = 1.05  # lower bound of a gain from which on a context is worth its tokens
ENOUGH = 5  # problems or cells of a measurement that decides
ANY = "any"
UNKNOWN_LANGUAGE = "a language that models do not know"
COMMON_FILE = DATA / "common.json"


@lru_cache(maxsize=1)
def _models() -> Sequence[tuple[str, str]]:
    rows = tomllib.loads((DATA / "readers.toml").read_text(encoding="utf-8"))["models"]
    return [(pattern.lower(), row["reader"]) for row in rows for pattern in row["names"]]


def reader_of(model: str) -> str | None:
    """The class of a model by its name, without the provider's prefix; None if it is unknown."""
    name = model.lower().rpartition("/")[2]
    return next((reader for pattern, reader in _models() if fnmatchcase(name, pattern)), None)


# -- knowledge of a class of readers


@dataclass(frozen=True)
class CommonMark:
    """A statement of a section that a model made without being shown it. Without `statement`, the
    whole section. `date` is ISO 8601; `question` is the text sent to the model."""

    document: str
    section: str
    statement: str
    reader: str
    model: str
    date: str
    question: str = ""


class CommonKnowledge:
    """The marks for one class of readers."""

    def __init__(self, marks: Sequence[CommonMark]) -> None:
        self._sections = {(m.document, m.section) for m in marks if not m.statement}
        self._statements: dict[str, list[re.Pattern[str]]] = {}
        for mark in marks:
            if mark.statement:
                words = r"\s+".join(map(re.escape, mark.statement.split()))
                self._statements.setdefault(mark.document, []).append(re.compile(rf"{words}\s?"))

    def has(self, document: str, section: str) -> bool:
        """Whether the readers know a whole section, by the titles of both."""
        return (document, section) in self._sections

    def without(self, document: str, text: str) -> str:
        """A text of a document without the statements that the readers know."""
        for pattern in self._statements.get(document, ()):
            text = pattern.sub("", text, count=1)
        return text


NOTHING_COMMON = CommonKnowledge(())


@lru_cache(maxsize=len(READERS) + 1)
def common_for(reader: str | None) -> CommonKnowledge:
    """What a class of readers knows by itself, nothing for None. Raises InvalidKnowledge."""
    if reader is None:
        return NOTHING_COMMON
    return CommonKnowledge([mark for mark in load_marks() if mark.reader == reader])


def load_marks() -> list[CommonMark]:
    """The marks that ship: a JSON list. Raises InvalidKnowledge for other content."""
    try:
        return [CommonMark(**row) for row in json.loads(COMMON_FILE.read_text(encoding="utf-8"))]
    except (TypeError, ValueError) as error:
        raise InvalidKnowledge(
            f"{COMMON_FILE.name}: {error}",
            hint="Write marks with `python -m benchmarks.knowledge.common`.",
        ) from error


# -- what contexts gain


@lru_cache(maxsize=1)
def load_uplift() -> tuple[Uplift, ...]:
    """The measurements that ship. Raises InvalidKnowledge for an unknown kind of operator."""
    raw = tomllib.loads((DATA / "uplift.toml").read_text(encoding="utf-8"))["measurements"]
    loaded = tuple(_uplift(shared, row) for shared in raw for row in shared["rows"])
    known = {ANY, *load_operators().kinds}
    for row in loaded:
        if row.operator not in known or row.reader not in READERS:
            wrong = row.reader if row.operator in known else row.operator
            raise InvalidKnowledge(
                f"uplift.toml: unknown {wrong!r}",
                hint=f"operator is {ANY} or a kind of operators.toml, reader one of"
                f" {', '.join(READERS)}.",
            )
    return loaded


def _uplift(shared: Mapping[str, Any], row: Mapping[str, Any]) -> Uplift:
    common = {name: value for name, value in shared.items() if name != "rows"}
    low_high = tuple(row["interval"]) if "interval" in row else None
    return Uplift(**{**common, **row, "date": str(shared["date"]), "interval": low_high})


def uplift_of(
    lineage: Sequence[str],
    language: str | None,
    kinds: Sequence[str],
    reader: str | None,
    unknown_language: bool,
) -> tuple[Uplift, ...]:
    """The measurements about a chip, language, kinds of operators and class of readers (any class
    if None): those about this operator first, then the newest. With `unknown_language` those about
    any chip whose language models do not know."""

    def is_about(row: Uplift) -> bool:
        if unknown_language or row.chip == UNKNOWN_LANGUAGE:
            return unknown_language and row.chip == UNKNOWN_LANGUAGE
        fits = row.chip in lineage and (language is None or row.language == language)
        return fits and (row.operator == ANY or row.operator in kinds)

    rows = [r for r in load_uplift() if is_about(r) and reader in (None, r.reader)]
    newest = sorted(rows, key=lambda row: row.date, reverse=True)
    return tuple(sorted(newest, key=lambda row: row.operator == ANY))


def gains(rows: Sequence[Uplift]) -> bool:
    """Whether the first of these measurements that is large enough to decide shows that a context
    is worth its tokens."""
    deciding = next((row for row in rows if row.n >= ENOUGH), None)
    if deciding is None:
        return False
    low = deciding.interval[0] if deciding.interval is not None else 0.0
    return low >= GAIN or not deciding.without
