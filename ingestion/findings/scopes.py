"""Which hardware a section is about, when its heading says so, and which chips its code samples are
for.

"On A100 ..." in a vendor-wide manual, or in the H100's own, is about the A100 alone. Only relatives
count: hardware of the same vendor that does not stand above the document's own scope. A heading
that compares ("H100 compared with A100") stays in the document's scope too.

A code sample is tried where it was written for: on the chips that its section is about, each with
the languages that command templates of exactly this chip compile (there, a whole sample is a whole
candidate). Knows nothing about the catalog."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from kb.hardware import lineage
from kb.hardware.lineage import NameIndex, Registry
from kb.hardware.spec import HardwareSpec

_COMPARES = re.compile(
    r"\b(?:vs\.?|versus|compar\w*|differ\w*|than|from|migrat\w*|unlike|upgrad\w*)\b", re.IGNORECASE
)


class SectionScopes:
    """Built once per document: its scope and the hardware registered now."""

    def __init__(self, scope: Sequence[str], registry: Registry) -> None:
        self._scope = tuple(scope)
        self._registry = registry
        self._relatives = self._related(registry)
        names = {i: (i, registry[i].name, *registry[i].aliases) for i in self._relatives}
        self._names = NameIndex(names)

    def _related(self, registry: Registry) -> frozenset[str]:
        own = [hardware_id for hardware_id in self._scope if hardware_id in registry]
        if not own:  # about no hardware in particular: any chip it names is meant
            return frozenset(registry)
        related: set[str] = set()
        for hardware_id in own:
            line = lineage.lineage(hardware_id, registry)
            related |= lineage.descendants(line[-1], registry) - set(line)
            related.add(hardware_id)
        return frozenset(related)

    def of(self, path: Sequence[str]) -> tuple[str, ...] | None:
        """The narrower scope that the innermost naming heading gives, or None to inherit."""
        for heading in reversed(path):
            named = self._names.find(heading)
            if not named:
                continue
            narrow = lineage.narrowest(self._without_families(named), self._registry)
            if narrow == set(self._scope):
                return None
            if _COMPARES.search(heading):
                inherits = not self._scope or narrow <= set(self._scope)
                return None if inherits else tuple(sorted(narrow | set(self._scope)))
            return tuple(sorted(narrow))
        return None

    def _without_families(self, named: frozenset[str]) -> frozenset[str]:
        """Where the document's own chip is named, a family beside it is a word of its description
        ("RTX 5090: GeForce Blackwell"): other chips of that family are not meant.
        """
        families = {i for i in named if lineage.descendants(i, self._registry)}
        own = named & set(self._scope)
        return named - families if own and not own & families else named


class SampleScopes:
    """Built once per document: its sections' scopes, its hardware and what is registered now."""

    def __init__(
        self, scopes: SectionScopes, hardware: Sequence[str], registry: Mapping[str, HardwareSpec]
    ) -> None:
        self._scopes = scopes
        self._hardware = tuple(hardware)
        self._registry = registry
        lines = [lineage.lineage(chip, registry) for chip in hardware if chip in registry]
        # Without a scope of its own, any chip that a heading names is meant.
        self._own = SectionScopes((), {chip: registry[chip] for line in lines for chip in line})

    def of(self, path: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """By language, the chips that a sample under these headings is for."""
        chips = self._scopes.of(path) or self._named(path) or self._hardware
        chips_by_language: dict[str, tuple[str, ...]] = {}
        for chip in chips:
            toolchains = self._registry[chip].toolchains if chip in self._registry else {}
            for language, chain in toolchains.items():
                if not chain.builtin:
                    chips_by_language[language] = (*chips_by_language.get(language, ()), chip)
        return chips_by_language

    def _named(self, path: Sequence[str]) -> tuple[str, ...]:
        """Those of the document's own chips that the innermost heading about some of them names: a
        manual of two chips has sections about one."""
        for end in range(len(path), 0, -1):
            named = self._own.of(path[:end])
            if named and set(named) <= set(self._hardware):
                return named
        return ()
