"""The run-time signals: the vocabulary of conditions of a kernel.

Reads `data/signals.toml`. Does not know how signals are detected (`diagnosis`, `signatures`) or
remedied.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kb.errors import InvalidKnowledge, UnknownSignal

DATA = Path(__file__).parent.parent / "data"
PHRASES = 3  # at least
# Groups of signals.toml that require a fix before the kernel can be made faster.
BROKEN = ("does not build", "does not run", "wrong result")
_KEYS = frozenset({"id", "group", "title", "description", "phrases", "related", "topics"})
_MORE = frozenset({"headings", "elsewhere", "symptoms"})


@dataclass(frozen=True)
class Signal:
    """A named condition. `phrases` are search queries in the words of manuals. `related` are ids of
    other signals, `topics` the subjects of relevant documentation. `headings` are typical titles of
    sections about it, the most specific first; `elsewhere` are words in titles of sections about
    related subjects, `afterwards` words in titles of sections on how to confirm it or check the
    remedy."""

    id: str
    group: str
    title: str
    description: str
    phrases: tuple[str, ...]
    related: tuple[str, ...]
    topics: tuple[str, ...]
    headings: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()
    afterwards: tuple[str, ...] = ()


@dataclass(frozen=True)
class SignalRegistry:
    """All signals in the order of the file. `symptoms` are expressions over prose by signal, each
    with the others that must occur in the text too."""

    _by_id: Mapping[str, Signal]
    symptoms: Mapping[str, tuple[tuple[re.Pattern[str], ...], ...]]

    def __iter__(self) -> Iterator[Signal]:
        return iter(self._by_id.values())

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, signal: object) -> bool:
        return signal in self._by_id

    @property
    def ids(self) -> tuple[str, ...]:
        """All ids, in the order of the file."""
        return tuple(self._by_id)

    def get(self, signal: str) -> Signal:
        """The signal of this id; `Memory-Bound` is memory_bound. Raises UnknownSignal, which names
        the nearest ids."""
        folded = signal.strip().lower().replace("-", "_").replace(" ", "_")
        try:
            return self._by_id[signal if signal in self._by_id else folded]
        except KeyError:
            raise UnknownSignal(signal, self._by_id, {s.id: s.title for s in self}) from None


def signals_from(data: Mapping[str, Any], origin: str) -> SignalRegistry:
    """Parse a registry. Raises InvalidKnowledge, which names the `origin`."""
    by_id: dict[str, Signal] = {}
    symptoms: dict[str, tuple[tuple[re.Pattern[str], ...], ...]] = {}
    for row in data.get("signals", []):
        signal = _signal(row, tuple(data.get("afterwards", ())), origin)
        if signal.id in by_id:
            raise _broken(origin, f"signal {signal.id!r} is defined twice")
        by_id[signal.id] = signal
        symptoms[signal.id] = tuple(
            _symptom(signal.id, texts, origin) for texts in row.get("symptoms", ())
        )
    for signal in by_id.values():
        for other in signal.related:
            if other not in by_id:
                raise _broken(origin, f"{signal.id!r} is related to unknown signal {other!r}")
    return SignalRegistry(MappingProxyType(by_id), MappingProxyType(symptoms))


def _signal(row: Mapping[str, Any], afterwards: tuple[str, ...], origin: str) -> Signal:
    if row.keys() - _MORE != _KEYS:
        odd = ", ".join(sorted((row.keys() - _MORE) ^ _KEYS))
        raise _broken(origin, f"signal {row.get('id')!r} has missing or unknown keys: {odd}")
    if len(row["phrases"]) < PHRASES:
        raise _broken(origin, f"signal {row['id']!r} needs {PHRASES} phrases")
    return Signal(
        id=row["id"],
        group=row["group"],
        title=row["title"],
        description=row["description"],
        phrases=tuple(row["phrases"]),
        related=tuple(row["related"]),
        topics=tuple(row["topics"]),
        headings=tuple(row.get("headings", ())),
        elsewhere=tuple(row.get("elsewhere", ())),
        afterwards=tuple(words for words in afterwards if words not in row.get("headings", ())),
    )


# A blank of an expression; a list of characters; an escaped character.
_BLANK = re.compile(r"\\.|\[[^\]]*\]| ")
_SPACE = r"(?:[\s*`~>]{1,8})"  # with marks of Markdown


def _symptom(signal: str, texts: str | list[str], origin: str) -> tuple[re.Pattern[str], ...]:
    """The compiled expressions of one symptom. Raises InvalidKnowledge for a broken one."""

    def spaced(match: re.Match[str]) -> str:
        found = match.group()
        return _SPACE if found == " " else found.replace(" ", r"\s")

    try:
        return tuple(
            re.compile(_BLANK.sub(spaced, text), re.IGNORECASE)
            for text in ([texts] if isinstance(texts, str) else texts)
        )
    except re.error as error:
        raise _broken(origin, f"a symptom of {signal!r} is no expression: {error}") from error


def _broken(origin: str, message: str) -> InvalidKnowledge:
    return InvalidKnowledge(f"{origin}: {message}", hint=f"Correct {origin} and load it again.")


@lru_cache(maxsize=1)
def load_signals() -> SignalRegistry:
    """The built-in signals."""
    path = DATA / "signals.toml"
    return signals_from(tomllib.loads(path.read_text(encoding="utf-8")), path.name)
