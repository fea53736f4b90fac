"""What a caller may see and what a request asks for, as values that every store query takes.

Fails closed: a filter always lists the hardware scopes it admits, there is no "everything" by
omission; and a filter never admits more than its caller may see."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal

from kb.errors import Forbidden

ANY = "any"  # the scope of what is about no hardware in particular

Category = Literal["constraint", "guidance", "hardware"]
CATEGORIES: tuple[Category, ...] = ("constraint", "guidance", "hardware")


@dataclass(frozen=True)
class AccessScope:
    """Which rows a caller may see and change.

    `owner` is the value of their column `access_scope`. `hardware` are the ids that the caller may
    see things about, families and `any` among them; None: all. `own` are those that it may change
    things about. A table's condition is in `kb.catalog.visible`.
    """

    owner: str = "all"
    hardware: frozenset[str] | None = None
    own: frozenset[str] = frozenset()

    @property
    def restricted(self) -> bool:
        """Whether there is anything that the caller may not see."""
        return self.hardware is not None

    @property
    def key(self) -> tuple[str, ...]:
        """A value that is equal for equal scopes, for caches and logs."""
        return (self.owner, *sorted(self.own))

    def sees(self, hardware: Collection[str]) -> bool:
        """Whether something about this hardware, or about none, may be seen."""
        return self.hardware is None or not hardware or not self.hardware.isdisjoint(hardware)

    def named(self, hardware: tuple[str, ...]) -> tuple[str, ...]:
        """Those of these ids that the caller may know of."""
        visible = self.hardware
        return hardware if visible is None else tuple(h for h in hardware if h in visible)

    def check_change(self, hardware: Iterable[str], what: str) -> None:
        """Raise Forbidden unless something about exactly this hardware may be changed; `what` names
        it. What is about none in particular is everybody's.
        """
        about = set(hardware)
        if self.hardware is None or (about and about <= self.own):
            return
        own = ", ".join(sorted(self.own))
        raise Forbidden(
            f"{what} is not about {own} alone, which is all that this key may change",
            hint=f"Name the hardware {own}, or use a key that is not restricted.",
        )


ALL_ACCESS = AccessScope()


@dataclass(frozen=True)
class ScopeFilter:
    """What a query admits.

    `hardware` lists the admitted scopes: the chip, then up its lineage, then `any`; None admits
    every chip that the caller may see. `languages` admits what is about one of them or about none;
    None admits every language.
    """

    hardware: tuple[str, ...] | None
    categories: tuple[str, ...] = CATEGORIES
    languages: tuple[str, ...] | None = None
    access_scope: AccessScope = ALL_ACCESS

    def __post_init__(self) -> None:
        visible = self.access_scope.hardware
        if visible is not None:
            asked = sorted(visible) if self.hardware is None else self.hardware
            admitted = tuple(place for place in asked if place in visible)
            object.__setattr__(self, "hardware", admitted)

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
