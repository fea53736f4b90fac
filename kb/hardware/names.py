"""Hardware names in running text.

A name counts only as a whole word: `H100` is not in `GH100X`. Names without a digit are also words
of English, so they must be written as a name (capitalised, three letters in capitals) and must not
be on the list of common ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

MIN_LENGTH = 3

_COMMON = frozenset(
    re.findall(
        r"\w+",
        """
        accelerator air all any apple array auto base basic block board cache card chip cloud
        core cores cpu custom default device dpu edge engine family fast generic gpu grace graph
        grid host instinct kernel lite local max memory metal mini model native none npu part
        pro processor sense series shared simd small spark standard tensor test thor tile titan
        tpu ultra unit vector vision warp wave
        """,
    )
)


class NameIndex:
    """Finds which ids a text names. Built once per set of hardware."""

    def __init__(self, names: Mapping[str, Iterable[str]]) -> None:
        self._owner: dict[str, set[str]] = {}
        spellings: dict[str, str] = {}
        for hardware_id, known in names.items():
            for name in known:
                parts = _parts(name)
                if _usable(parts):
                    self._owner.setdefault("".join(parts), set()).add(hardware_id)
                    # `sm_90` also matches where `sm90` is written, not the other way round.
                    spellings["".join(parts)] = max(
                        spellings.get("".join(parts), ""), _spelling(parts), key=len
                    )
        longest = sorted(spellings.values(), key=lambda s: (-len(s), s))
        # a plural s belongs to the name: "On H100s and A100s"
        self._pattern = (
            re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(longest)})(?=s?(?![A-Za-z0-9]))", re.I)
            if longest
            else None
        )

    def find(self, text: str) -> frozenset[str]:
        """The ids named in a text; where names overlap, the longest counts."""
        if self._pattern is None:
            return frozenset()
        ids: set[str] = set()
        for match in self._pattern.finditer(text):
            written = match[0]
            if _written_as_name(written):
                ids |= self._owner["".join(_parts(written))]
        return frozenset(ids)


def _parts(name: str) -> list[str]:
    return [part for part in re.split(r"[^a-z0-9]+", name.lower()) if part]


def _spelling(parts: list[str]) -> str:
    """A pattern for the name with other separators. `sm_90` does not match in "SM 90 % busy"."""
    spelling = re.escape(parts[0])
    for part in parts[1:]:
        tight = part.isdigit() and len(parts[0]) <= 2
        spelling += ("[_-]?" if tight else r"[\s_./-]*") + re.escape(part)
    return spelling


def _usable(parts: list[str]) -> bool:
    joined = "".join(parts)
    if len(joined) < MIN_LENGTH or joined.isdigit():
        return False
    return len(parts) > 1 or parts[0] not in _COMMON


def _written_as_name(written: str) -> bool:
    if any(char.isdigit() for char in written):
        return True
    if len(written) == MIN_LENGTH:
        return written.isupper()
    return written[0].isupper()
