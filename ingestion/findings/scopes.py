"""Which hardware a section is about, when its heading says so.

"On A100 ..." in a vendor-wide manual, or in the H100's own, is about the A100 alone. Only relatives
count: hardware of the same vendor that does not stand above the document's own scope. A heading
that compares ("H100 compared with A100") stays in the document's scope too. Knows nothing about the
catalog."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kb.hardware import lineage
from kb.hardware.lineage import Registry
from kb.hardware.names import NameIndex

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
            narrow = lineage.narrowest(named, self._registry)
            if narrow == set(self._scope):
                return None
            if _COMPARES.search(heading):
                inherits = not self._scope or narrow <= set(self._scope)
                return None if inherits else tuple(sorted(narrow | set(self._scope)))
            return tuple(sorted(narrow))
        return None
