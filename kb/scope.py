"""Access of a caller and filter of a request, as values that every query of the store takes.

Fails closed: a filter lists the hardware it admits, which is never more than its caller may see.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal

from kb.errors import Forbidden

ANY = "any"  # the scope of knowledge that is not about particular hardware

Category = Literal["constraint", "guidance", "hardware"]
CATEGORIES: tuple[Category, ...] = ("constraint", "guidance", "hardware")


@dataclass(frozen=True)
class AccessScope:
    """Which rows a caller may see and change.

    `owner` is the value of the column `access_scope` of its rows. The caller sees rows about
    `hardware` (chips, families and `any`; None: all) and may change rows about `own`. The SQL
    conditions are in `kb.catalog.visible`.
    """

    owner: str = "all"
    hardware: frozenset[str] | None = None
    own: frozenset[str] = frozenset()

    @property
    def restricted(self) -> bool:
        """Whether some rows are hidden from the caller."""
        return self.hardware is not None

    @property
    def key(self) -> tuple[str, ...]:
        return (self.owner, *sorted(self.own))

    def sees(self, hardware: Collection[str]) -> bool:
        """Whether a row about this hardware (none: about any) is visible."""
        return self.hardware is None or not hardware or not self.hardware.isdisjoint(hardware)

    def visible_hardware(self, hardware: tuple[str, ...]) -> tuple[str, ...]:
        """The visible ids among these."""
        visible = self.hardware
        return hardware if visible is None else tuple(h for h in hardware if h in visible)

    def check_change(self, hardware: Iterable[str], what: str) -> None:
        """Raise Forbidden unless the caller may change a row about exactly this hardware. `what`
        names the row. Restricted callers may not change rows about no hardware."""
        about = set(hardware)
        if self.hardware is None or (about and about <= self.own):
            return
        own = ", ".join(sorted(self.own))
        raise Forbidden(
            f"{what} is not about {own} only, and this key may change nothing else",
            hint=f"Name the hardware {own}, or use a key that is not restricted.",
        )


ALL_ACCESS = AccessScope()


@dataclass(frozen=True)
class ScopeFilter:
    """The rows that a query admits.

    `hardware` lists the admitted scopes: the chip, its ancestors, then `any`; None admits
    everything that the caller may see. `languages` admits rows about one of them or about no
    language; None admits every language.
    """

    hardware: tuple[str, ...] | None
    categories: tuple[str, ...] = CATEGORIES
    languages: tuple[str, ...] | None = None
    access_scope: AccessScope = ALL_ACCESS

    def __post_init__(self) -> None:
        visible = self.access_scope.hardware
        if visible is not None:
            requested = sorted(visible) if self.hardware is None else self.hardware
            admitted = tuple(scope for scope in requested if scope in visible)
            object.__setattr__(self, "hardware", admitted)

    def admits_languages(self, languages: Collection[str]) -> bool:
        """Whether a row about these languages (none: about any) is admitted."""
        return (
            self.languages is None or not languages or not set(languages).isdisjoint(self.languages)
        )

    @property
    def key(self) -> tuple[object, ...]:
        return (self.hardware, self.categories, self.languages, self.access_scope)
