"""What a request may see and what it asks for, as one value that every store query takes.

Fails closed: a filter always lists the hardware scopes it admits; there is no "everything" by
omission."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

ANY = "any"  # the scope of what is about no hardware in particular
ALL_ACCESS = "all"

Category = Literal["constraint", "guidance", "hardware"]
CATEGORIES: tuple[Category, ...] = ("constraint", "guidance", "hardware")


@dataclass(frozen=True)
class ScopeFilter:
    """What a query admits.

    `hardware` lists the admitted scopes: the chip, then up its lineage, then `any`; None admits
    every chip. `languages` admits what is about one of them or about none; None admits every
    language.
    """

    hardware: tuple[str, ...] | None
    categories: tuple[str, ...] = CATEGORIES
    languages: tuple[str, ...] | None = None
    access_scope: str = ALL_ACCESS

    def speaks(self, languages: Collection[str]) -> bool:
        """Whether what is about these languages, or about none, is admitted."""
        return (
            self.languages is None or not languages or not set(languages).isdisjoint(self.languages)
        )

    @property
    def key(self) -> tuple[object, ...]:
        """A value that is equal for equal filters, for caches."""
        return (self.hardware, self.categories, self.languages, self.access_scope)


def scope_token(kind: str, value: str) -> str:
    """A scope value as one token of the lexical index, whatever characters the value has."""
    return f"{kind}_{value.lower().encode().hex()}"
