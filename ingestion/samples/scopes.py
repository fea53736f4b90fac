"""Which chips the samples of a section are for, and in which languages.

A sample is tried where it was written for: on the chips that its section is about, each with the
languages that command templates of exactly this chip compile (there, a whole sample is a whole
candidate). Knows nothing about the catalog.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ingestion.findings.scopes import SectionScopes
from kb.hardware.lineage import lineage
from kb.hardware.spec import HardwareSpec


class SampleScopes:
    """Built once per document: its sections' scopes, its hardware and what is registered now."""

    def __init__(
        self, scopes: SectionScopes, hardware: Sequence[str], registry: Mapping[str, HardwareSpec]
    ) -> None:
        self._scopes = scopes
        self._hardware = tuple(hardware)
        self._registry = registry
        lines = [lineage(chip, registry) for chip in hardware if chip in registry]
        # Without a scope of its own, any chip that a heading names is meant.
        self._own = SectionScopes((), {chip: registry[chip] for line in lines for chip in line})

    def of(self, path: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """By language, the chips that a sample under these headings is for."""
        chips = self._scopes.of(path) or self._named(path) or self._hardware
        found: dict[str, tuple[str, ...]] = {}
        for chip in chips:
            toolchains = self._registry[chip].toolchains if chip in self._registry else {}
            for language, chain in toolchains.items():
                if not chain.builtin:
                    found[language] = (*found.get(language, ()), chip)
        return found

    def _named(self, path: Sequence[str]) -> tuple[str, ...]:
        """Those of the document's own chips that the innermost heading about some of them names: a
        manual of two chips has sections about one."""
        for end in range(len(path), 0, -1):
            named = self._own.of(path[:end])
            if named and set(named) <= set(self._hardware):
                return named
        return ()
