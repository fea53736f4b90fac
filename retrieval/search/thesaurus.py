"""One thing under the names that different chips give it, as data (`data/thesaurus.toml`)."""

from __future__ import annotations

import tomllib
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path

from kb.tokens import tokenize

MAX_TOKENS = 40  # added to a request, in the order of the concepts
DATA = Path(__file__).parent.parent / "data"


@dataclass(frozen=True)
class Concept:
    """The token sets of a concept's names."""

    names: tuple[frozenset[str], ...]

    def named_in(self, tokens: Collection[str]) -> bool:
        present = set(tokens)
        return any(name and name <= present for name in self.names)


@cache
def load_thesaurus() -> tuple[Concept, ...]:
    with (DATA / "thesaurus.toml").open("rb") as file:
        rows = tomllib.load(file)["concepts"]
    return tuple(Concept(tuple(frozenset(tokenize(n)) for n in row["names"])) for row in rows)


def other_names(tokens: Collection[str]) -> tuple[str, ...]:
    """Tokens of the other names of every concept that the tokens name."""
    present = set(tokens)
    found: dict[str, None] = {}
    for concept in load_thesaurus():
        if concept.named_in(present):
            for name in concept.names:
                found |= dict.fromkeys(sorted(name))
    fresh = (token for token in found if token not in present)
    return tuple(islice(fresh, MAX_TOKENS))
