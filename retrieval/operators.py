"""What an operator is: the kinds of `data/operators.toml`, read from names, questions, sources and
sizes of a problem. Whole kernels are chosen by it. Does not know documents or requests.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from kb.errors import InvalidKnowledge
from kb.predicates import Value
from kb.problem_terms import canonical_op
from retrieval.diagnose.signals import DATA

FLOAT = "float"  # the class of operand types without a narrower one
INTEGER = ("int4", "int8")
# Comments, docstrings and C's integer types, which hold any bytes.
_NO_CODE = re.compile(r'"""[\s\S]*?"""|//[^\n]*|#[^\n]*|\bu?int8_t\b')
_WORD = re.compile(r"\d+:\d+|[a-z0-9]+")


@dataclass(frozen=True)
class OperatorKind:
    """A kind of operator. `refines` are kinds that it replaces where one of its `words` or
    `refining` words is met, for operand types of its `operands`, or where the sizes of the problem
    are at most its `quantities`. `code` are patterns that all match its source; `kin` are related
    kinds, the nearest first."""

    id: str
    title: str
    ops: frozenset[str]
    words: tuple[str, ...]
    refining: tuple[str, ...]
    refines: frozenset[str]
    operands: frozenset[str]
    code: tuple[re.Pattern[str], ...]
    kin: tuple[str, ...]
    quantities: Mapping[str, float]

    @property
    def general(self) -> tuple[str, ...]:
        """The kinds that this one refines, the nearest first."""
        return tuple(kind for kind in self.kin if kind in self.refines)

    def is_named(self, text: str) -> bool:
        """Whether a text, as `plain_words` writes it, has one of the words."""
        return any(phrase in text for phrase in self.words)

    def is_meant(self, text: str, operands: str, sizes: Mapping[str, Value | None]) -> bool:
        """Whether an operator of a kind that this one refines is of this kind."""
        return (
            self.is_named(text)
            or any(phrase in text for phrase in self.refining)
            or operands in self.operands
            or _are_small(self.quantities, sizes)
        )


@dataclass(frozen=True)
class OperatorTraits:
    """The kinds of an operator or kernel, the most specific first, and the class of its operand
    types."""

    kinds: tuple[str, ...] = ()
    operands: str = FLOAT


@dataclass(frozen=True)
class Portability:
    """Kernels of a hardware family in these languages also run on the hardware `also`, except those
    whose code matches `without`."""

    family: str
    languages: frozenset[str]
    also: frozenset[str]
    why: str
    without: re.Pattern[str] | None


@dataclass(frozen=True)
class OperatorKinds:
    """All kinds by id, and the words of each class of operand types. `needs` has the key of a fact
    that a chip needs to run kernels with some words in their titles."""

    kinds: Mapping[str, OperatorKind]
    operands: Mapping[str, tuple[str, ...]]
    needs: Sequence[tuple[tuple[str, ...], str]]
    portable: Sequence[Portability]

    def of(
        self,
        op: str | None,
        texts: Iterable[str] = (),
        *,
        code: str = "",
        dtypes: Iterable[str] = (),
        sizes: Mapping[str, Value | None] | None = None,
    ) -> OperatorTraits:
        """The traits of an operator: by its name, refined by words of the texts and sizes of the
        problem; without a name by the texts alone, then by its source. All parts are optional."""
        text = plain_words(" ; ".join((op or "", *texts)))
        operands = self._operands(text + plain_words(" ; ".join(dtypes)))
        base = self._of_name(op) or self._in_text(text)
        if not base and code:
            bare = _NO_CODE.sub("", code)
            base = self._in_code(bare)
            operands = self._operands(plain_words(bare)) if operands == FLOAT else operands
        return OperatorTraits(tuple(self._refined(base, text, operands, sizes or {})), operands)

    def of_title(self, op: str, title: str, dtypes: Iterable[str] = ()) -> OperatorTraits:
        """The traits of a kernel by its operator and title; a title may name a second operator
        after "and"."""
        traits = self.of(op, (title,), dtypes=dtypes)
        parts = [plain_words(part) for part in title.split(" and ")]
        if len(parts) < 2:
            return traits
        named = [k.id for k in self.kinds.values() if any(p.startswith(k.words) for p in parts)]
        refined = {general for kind in traits.kinds for general in self.kinds[kind].refines}
        further = [kind for kind in named if kind not in {*traits.kinds, *refined}]
        return OperatorTraits((*traits.kinds, *further), traits.operands)

    def relation(self, wanted: str, offered: Sequence[str]) -> float:
        """How useful a kernel of the kinds `offered` is for one kind, from 0 (unrelated) to 1 (the
        same kind)."""
        if wanted in offered:
            return 1.0
        kin = self.kinds[wanted].kin if wanted in self.kinds else ()
        places = [kin.index(kind) for kind in offered if kind in kin]
        return 0.6 - 0.08 * min(places) if places else 0.0

    def _of_name(self, op: str | None) -> list[str]:
        if not op:
            return []
        known = canonical_op(op)
        exact = [k.id for k in self.kinds.values() if known in k.ops or known == k.id]
        return exact or self._in_text(plain_words(op))

    def _refined(
        self, base: list[str], text: str, operands: str, sizes: Mapping[str, Value | None]
    ) -> list[str]:
        """The kinds, each replaced by a refining kind if an indication is found."""
        chosen = base
        for kind in self.kinds.values():
            applies = kind.id not in chosen and not kind.refines.isdisjoint(chosen)
            if applies and kind.is_meant(text, operands, sizes):
                chosen = [kind.id, *(c for c in chosen if c not in kind.refines)]
        return chosen

    def _in_text(self, text: str) -> list[str]:
        named = [kind for kind in self.kinds.values() if kind.is_named(text)]
        refined = {general for kind in named for general in kind.refines}
        return [kind.id for kind in named if kind.id not in refined]

    def _in_code(self, code: str) -> list[str]:
        """The kind whose patterns all match, that with the most patterns."""
        matching = [
            kind
            for kind in self.kinds.values()
            if kind.code and all(pattern.search(code) for pattern in kind.code)
        ]
        best = max(matching, key=lambda kind: len(kind.code), default=None)
        return [] if best is None else [best.id]

    def _operands(self, text: str) -> str:
        classes = (name for name, words in self.operands.items() if any(w in text for w in words))
        return next(classes, FLOAT)


def plain_words(text: str) -> str:
    """The words of a text in lower case, without plural s, between single spaces."""
    words = (w[:-1] if len(w) > 3 and w.endswith("s") else w for w in _WORD.findall(text.lower()))
    return f" {' '.join(words)} "


def _are_small(most: Mapping[str, float], sizes: Mapping[str, Value | None]) -> bool:
    given = [(sizes.get(name), bound) for name, bound in most.items()]
    return bool(given) and all(
        isinstance(value, int | float) and value <= bound for value, bound in given
    )


@lru_cache(maxsize=1)
def load_operators() -> OperatorKinds:
    """The kinds that ship. Raises InvalidKnowledge if the file is inconsistent."""
    raw = tomllib.loads((DATA / "operators.toml").read_text(encoding="utf-8"))
    kinds = {
        row["id"]: OperatorKind(
            id=row["id"],
            title=row["title"],
            ops=frozenset(row.get("ops", ())),
            words=tuple(map(plain_words, row["words"])),
            refining=tuple(map(plain_words, row.get("refining", ()))),
            refines=frozenset(row.get("refines", ())),
            operands=frozenset(row.get("operands", ())),
            code=tuple(map(re.compile, row.get("code", ()))),
            kin=tuple(row["kin"]),
            quantities=row.get("quantities", {}),
        )
        for row in raw["kinds"]
    }
    named = {name for kind in kinds.values() for name in (*kind.kin, *kind.refines)}
    if unknown := sorted(named - kinds.keys()):
        raise InvalidKnowledge(
            f"operators.toml names the unknown kind {unknown[0]}", hint="Correct operators.toml."
        )
    operands = {name: tuple(map(plain_words, words)) for name, words in raw["operands"].items()}
    needs = [(tuple(map(plain_words, row["words"])), row["fact"]) for row in raw["needs"]]
    portable = [
        Portability(
            row["family"],
            frozenset(row["languages"]),
            frozenset(row["also"]),
            row["why"],
            re.compile(row["without"]) if "without" in row else None,
        )
        for row in raw["runs_on"]
    ]
    return OperatorKinds(kinds, operands, needs, portable)
