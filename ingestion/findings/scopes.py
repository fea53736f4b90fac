"""The hardware of a section, if its heading names it, and the chips and languages of its code.

"On A100 ..." in a vendor-wide manual, or in that of the H100, is about the A100 alone. Only
relatives count: hardware of the same vendor that is not above the scope of the document. The scope
of a heading that compares ("H100 compared with A100") includes that of the document.

A code sample is for the chips of its section, in the languages that command templates of exactly
these chips compile. Knows nothing about the catalog."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ingestion.formats.detect import code_language
from kb.hardware import lineage
from kb.hardware.lineage import NameIndex, Registry
from kb.hardware.spec import HardwareSpec

_COMPARES = re.compile(
    r"\b(?:vs\.?|versus|compar\w*|differ\w*|than|from|migrat\w*|unlike|upgrad\w*)\b", re.IGNORECASE
)


class SectionScopes:
    """The scopes of the sections of one document with this scope."""

    def __init__(self, scope: Sequence[str], registry: Registry) -> None:
        self._scope = tuple(scope)
        self._registry = registry
        self._relatives = self._related(registry)
        names = {i: (i, registry[i].name, *registry[i].aliases) for i in self._relatives}
        self._names = NameIndex(names)

    def _related(self, registry: Registry) -> frozenset[str]:
        own = [hardware_id for hardware_id in self._scope if hardware_id in registry]
        if not own:  # without a scope, every chip is a relative
            return frozenset(registry)
        related: set[str] = set()
        for hardware_id in own:
            line = lineage.lineage(hardware_id, registry)
            related |= lineage.descendants(line[-1], registry) - set(line)
            related.add(hardware_id)
        return frozenset(related)

    def of(self, path: Sequence[str]) -> tuple[str, ...] | None:
        """The narrower scope by the innermost heading that names hardware, or None to inherit."""
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
        """Drop families if the heading names the document's own chip, which they only describe
        ("RTX 5090: GeForce Blackwell")."""
        families = {i for i in named if lineage.descendants(i, self._registry)}
        own = named & set(self._scope)
        return named - families if own and not own & families else named


class SampleScopes:
    """The chips and languages of the code samples of one document."""

    def __init__(
        self, scopes: SectionScopes, hardware: Sequence[str], registry: Mapping[str, HardwareSpec]
    ) -> None:
        self._scopes = scopes
        self._hardware = tuple(hardware)
        self._registry = registry
        lines = [lineage.lineage(chip, registry) for chip in hardware if chip in registry]
        # Without a scope, so that a heading may name any of these chips.
        self._own = SectionScopes((), {chip: registry[chip] for line in lines for chip in line})

    def of(self, path: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """The chips of a sample under these headings, by language."""
        chips = self._scopes.of(path) or self._named(path) or self._hardware
        chips_by_language: dict[str, tuple[str, ...]] = {}
        for chip in chips:
            toolchains = self._registry[chip].toolchains if chip in self._registry else {}
            for language, chain in toolchains.items():
                if not chain.builtin:
                    chips_by_language[language] = (*chips_by_language.get(language, ()), chip)
        return chips_by_language

    def _named(self, path: Sequence[str]) -> tuple[str, ...]:
        """The chips of the document that the innermost such heading names: a manual of two chips
        has sections about one."""
        for end in range(len(path), 0, -1):
            named = self._own.of(path[:end])
            if named and set(named) <= set(self._hardware):
                return named
        return ()


def template_languages(
    hardware: Sequence[str], registry: Mapping[str, HardwareSpec]
) -> tuple[str, ...]:
    """The languages that command templates of these chips, or of hardware above them, compile."""
    lines = [lineage.lineage(chip, registry) for chip in hardware if chip in registry]
    chains = (registry[place].toolchains.items() for line in lines for place in line)
    names = [name for rows in chains for name, chain in rows if not chain.builtin]
    return tuple(dict.fromkeys(names))


def host_labels(hardware: Sequence[str], registry: Mapping[str, HardwareSpec]) -> frozenset[str]:
    """The labels of code in files that command templates of these chips compile; empty if they do
    not state a suffix."""
    lines = [lineage.lineage(chip, registry) for chip in hardware if chip in registry]
    chains = [c for line in lines for place in line for c in registry[place].toolchains.values()]
    suffixes = {chain.suffix for chain in chains if chain.suffix and not chain.builtin}
    labels = {label for s in suffixes for label in (s[1:], code_language(f"kernel{s}"))}
    return frozenset(labels | {""}) if suffixes else frozenset()


def sole_languages(
    hardware: Sequence[str], registry: Mapping[str, HardwareSpec]
) -> tuple[str, ...]:
    """The languages of the chips whose description names only one."""
    specs = [registry[chip] for chip in hardware if chip in registry]
    return tuple(spec.languages[0] for spec in specs if len(spec.languages) == 1)
