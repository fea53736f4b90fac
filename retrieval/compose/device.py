"""The start of the context of a kernel: statements unexpected for a writer who knows the documents
(`data/surprises.toml`), and the facts of the device. Does not know the budget's layout.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from kb.catalog.facts import Fact
from kb.errors import InvalidKnowledge
from kb.scope import ScopeFilter
from retrieval.compose.sections import Block, one_line, plain
from retrieval.diagnose.signals import DATA
from retrieval.operators import load_operators
from retrieval.snapshot.snapshot import Snapshot

CHECKED = {"ran": "measured", "compiled": "compiled, not run", "read": "read, not run"}
_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"))


@dataclass(frozen=True)
class Surprise:
    """A statement about `hardware` (ids of chips or families) for some `languages` and `kinds` of
    operators, empty for any, with the section that says more.
    """

    hardware: tuple[str, ...]
    languages: tuple[str, ...]
    kinds: tuple[str, ...]
    text: str
    document: str
    section: str
    checked: str

    def applies(
        self, lineage: Collection[str], languages: Collection[str], kinds: Sequence[str]
    ) -> bool:
        """Whether it is about one of these chips, languages and kinds."""
        return (
            not set(self.hardware).isdisjoint(lineage)
            and (not self.languages or not set(self.languages).isdisjoint(languages))
            and (not self.kinds or not set(self.kinds).isdisjoint(kinds))
        )


@lru_cache(maxsize=1)
def load_surprises() -> tuple[Surprise, ...]:
    """The statements that ship. Raises InvalidKnowledge for an unknown kind or check."""
    raw = tomllib.loads((DATA / "surprises.toml").read_text(encoding="utf-8"))
    rows = tuple(
        Surprise(
            hardware=tuple(row["hardware"]),
            languages=tuple(row["languages"]),
            kinds=tuple(row["kinds"]),
            text=row["text"],
            document=row["document"],
            section=row["section"],
            checked=row["checked"],
        )
        for row in raw["surprises"]
    )
    known = load_operators().kinds
    for row in rows:
        unknown = [kind for kind in row.kinds if kind not in known]
        if unknown or row.checked not in CHECKED:
            wrong = unknown[0] if unknown else row.checked
            raise InvalidKnowledge(
                f"surprises.toml: unknown {wrong!r} in {row.section!r}",
                hint=f"Use kinds of operators.toml and one of {', '.join(CHECKED)}.",
            )
    return rows


def surprise_blocks(
    snapshot: Snapshot,
    scope: ScopeFilter,
    lineage: tuple[str, ...],
    languages: Collection[str],
    kinds: Sequence[str],
) -> Iterator[Block]:
    """The statements that apply, one block each, those about the chip's closest family first. A
    statement is left out if the caller cannot see its document.
    """
    fitting = [row for row in load_surprises() if row.applies(lineage, languages, kinds)]
    if not fitting:
        return
    titles = _titles(snapshot, scope, lineage)
    fitting.sort(key=lambda row: min(lineage.index(h) for h in row.hardware if h in lineage))
    for row in fitting:
        if row.document in titles:
            source = f"{row.document}, {row.section}"
            line = one_line(f"- {row.text} ({CHECKED[row.checked]}; {source})")
            number = load_surprises().index(row)
            yield replace(plain("surprises", f"surprise-{number}", line), citation=source)


def _titles(snapshot: Snapshot, scope: ScopeFilter, lineage: tuple[str, ...]) -> frozenset[str]:
    """Titles of the documents about a lineage that the caller sees."""

    def read() -> frozenset[str]:
        own = ScopeFilter(lineage, ("hardware",), access_scope=scope.access_scope)
        return frozenset(d.title for d in snapshot.documents_about(lineage, own))

    return snapshot.keep("titles", (lineage, scope.access_scope), read)


def fact_block(facts: Mapping[str, Fact], keys: Sequence[str]) -> Block | None:
    """The facts of a chip with these keys, in this order, one line each; None if it has none."""
    lines = [_fact_line(facts[key]) for key in keys if key in facts]
    return plain("facts", "facts", "\n".join(lines)) if lines else None


def _fact_line(fact: Fact) -> str:
    name = fact.key.replace("_", " ")
    value = fact.text if fact.number is None else _number(fact.number, fact.unit)
    origin = " (measured)" if fact.kind == "measured" else ""
    return one_line(f"- {name}: {value}{origin}")


def _number(value: float, unit: str) -> str:
    """A value as people write it: rates with a prefix, sizes and counts in full."""
    if "/s" in unit or unit == "Hz":
        for size, prefix in _PREFIXES:
            if value >= size:
                return f"{value / size:,.4g} {prefix}{unit}"
    shown = f"{value:,.0f}" if value == int(value) else f"{value:g}"
    return shown if unit in ("", "count") else f"{shown} {unit}"
