"""What a manual calls its scratchpad: "768 KiB of scratchpad called the slab".

A chip's makers have names of their own; a table then says "Slab banks". Only a definition in so
many words counts. Knows nothing about tables.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ingestion.findings.fact_cells import Names

_USUAL = "shared memory"  # the word under which `fact_keys.toml` knows it
_SCRATCHPAD = (
    r"(?:scratch-?pad(?: memory| ram| sram)?|shared memory|local data (?:share|store)"
    r"|(?:on-chip|tile|core)[- ]local (?:memory|sram|store))"
)
_QUOTE = r"[*_`\"'\u201c\u201d\u2018\u2019]{0,3}"
_CALLED = re.compile(
    rf"\b{_SCRATCHPAD},? (?:(?:that|which) is )?(?:called|named|known as|termed)(?: the| its)? "
    rf"{_QUOTE}([A-Za-z][A-Za-z0-9-]{{2,20}}){_QUOTE}(?=[\s.,;:)]|$)",
    re.IGNORECASE,
)
_BESIDE = r"(?:of|in|to|for|from|by|on|with|per|and|or|size|part|user|limit)"
_IS = re.compile(
    rf"\b[Tt]he {_QUOTE}([A-Za-z][A-Za-z0-9-]{{2,20}}){_QUOTE}(?:,? which)?(?: is|,) (?:an?|the)"
    rf"(?: (?!{_BESIDE} )[a-z0-9-]+){{0,4}} {_SCRATCHPAD}\b"
    r"(?! (?:size|capacity|limit|banks?|space|usage|budget|allocation|address|controller|user))",
)
_NO_NAME = frozenset({"the", "this", "that", "memory", "cache", "chip", "core", "tile", "unit"})


def own_names(texts: Iterable[str]) -> Names:
    """The names that texts define for the scratchpad, each with the usual word for it; none where
    they define more than two, which then hardly all mean it.
    """
    names: dict[str, str] = {}
    for text in texts:
        for pattern in (_CALLED, _IS):
            for match in pattern.finditer(text):
                name = re.sub(r"[^a-z0-9]+", " ", match[1].lower()).strip()
                if name not in _NO_NAME:
                    names[name] = _USUAL
    return tuple(sorted(names.items())) if len(names) <= 2 else ()
