"""What a written C++ kernel needs of `cpp_header.h`: whoever reads it sees no function that it does
not call.

The file is pieces between empty lines. The first is always needed; another where a name that it
defines is spoken of: its types where it has some (an overload for a type is needed with the type
alone), else its functions.
"""

from __future__ import annotations

import re
from importlib.resources import files

_TEXT = files(__package__).joinpath("cpp_header.h").read_text(encoding="utf-8")
_FIRST, *_PIECES = _TEXT.strip().split("\n\n")
_TYPE = re.compile(r"^struct (kl_\w+)", re.M)
_FUNCTION = re.compile(r"^(?:template |KL |static ).*?\b(kl_\w+)\(", re.M)
_NAME = re.compile(r"\bkl_\w+")


def header_for(body: str) -> str:
    """The pieces that the text of a kernel needs, and those that these need, in their order."""
    needed: set[int] = set()
    spoken = set(_NAME.findall(body))
    while True:
        more = {n for n, piece in enumerate(_PIECES) if _defines(piece) & spoken} - needed
        if not more:
            break
        needed |= more
        spoken |= {name for n in more for name in _NAME.findall(_PIECES[n])}
    return "\n\n".join([_FIRST, *(_PIECES[n] for n in sorted(needed))]) + "\n"


def _defines(piece: str) -> set[str]:
    return set(_TYPE.findall(piece) or _FUNCTION.findall(piece))
