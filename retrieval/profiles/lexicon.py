"""The words of the field: names by kind, heads of columns by role, names of quantities.

Reads `data/lexicon.toml`.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

MARKS = '*_`~\u250a\u2502" \t\u2937\u21b3\u2514\u251c\u2500'


@lru_cache(maxsize=1)
def _data() -> dict[str, Any]:
    path = Path(__file__).parents[1] / "data" / "lexicon.toml"
    return tomllib.loads(path.read_text(encoding="utf-8"))


def words_of(key: str) -> tuple[str, ...]:
    return tuple(_data()["patterns"][key]["words"])


def pattern_of(key: str) -> re.Pattern[str]:
    """The expression of a group of names or heads."""
    exact = _data()["patterns"][key].get("exact")
    return re.compile("|".join(words_of(key)), 0 if exact else re.IGNORECASE)


def rows_of(key: str) -> list[dict[str, Any]]:
    """The rows of a list of phrases, sentences or tools."""
    return _data()[key]  # type: ignore[no-any-return]


@dataclass(frozen=True)
class QuantityLabel:
    """Words for a metric. `unit` restricts it to numbers in percent, or of one of the classes of
    units; `complement` marks the share of the rest."""

    metric: str
    words: re.Pattern[str]
    unit: str
    complement: bool


@lru_cache(maxsize=1)
def labels() -> tuple[QuantityLabel, ...]:
    """The words of the field, in the order of the file."""
    return tuple(
        QuantityLabel(
            row["metric"],
            re.compile("|".join(f"(?:{words})" for words in row["words"]), re.IGNORECASE),
            row.get("unit", ""),
            row.get("complement", False),
        )
        for row in _data()["labels"]
    )


def label_of(name: str, kind: str = "") -> QuantityLabel | None:
    """The label whose words begin a name; of those with a unit only one of this kind."""
    bare = (re.sub(r"\s*[\[(][^\])]*[\])]", "", name) or name).strip(MARKS + ".;\u2022:-")
    return next((x for x in labels() if x.words.match(bare) and x.unit in ("", kind)), None)


def metric_of(name: str) -> str:
    """The metric of a column or a row in per cent, by its name in words; empty for another."""
    found = label_of(name, "%")
    return found.metric if found and not found.complement else ""
