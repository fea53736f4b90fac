"""What a candidate of each language may consist of.

Standard library only.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from optimizer.evaluation.bundle import SUFFIXES
from optimizer.search.context import Context

C_LIKE = ("cpp", "cuda")
PYTHON_LIKE = ("torch", "triton")
_PLAIN = re.compile(r"\w[\w-]{0,40}\.\w{1,8}", re.ASCII)
HEADER_SUFFIXES = (".h", ".hpp", ".cuh")


def wanted(context: Context) -> str:
    """The parent's language where a toolchain here has it, else the preferred one."""
    offered = context.hardware.languages
    proposal = context.parent.proposal
    if proposal is not None and proposal.bundle.language in offered:
        return proposal.bundle.language
    return offered[0]


def main_suffixes(language: str, context: Context) -> tuple[str, ...]:
    """File name endings of the main file; empty for a chip's own language, whose are unknown."""
    if language in PYTHON_LIKE:
        return (".py",)
    known = tuple(suffix for suffix, name in SUFFIXES.items() if name == language)
    proposal = context.parent.proposal
    if not known and proposal is not None and proposal.bundle.language == language:
        return (PurePosixPath(proposal.bundle.main).suffix,)
    return known


def default_main(language: str, context: Context) -> str:
    """The name of a file that came without one. The parent's, where it is a plain name: it stands
    outside the fence, and a bundle from elsewhere may call its files anything."""
    proposal = context.parent.proposal
    if proposal is not None and proposal.bundle.language == language:
        main = proposal.bundle.main
        if _PLAIN.fullmatch(main):
            return main
    return "kernel" + (main_suffixes(language, context) or (".txt",))[0]


def rule(context: Context) -> str:
    """In words, for a model that got it wrong."""
    told = []
    for language in context.hardware.languages:
        ends = " or ".join(main_suffixes(language, context)) or "its own ending"
        headers = f", and header files ({', '.join(HEADER_SUFFIXES)})"
        told.append(f"{language}: one {ends} file{'' if language in PYTHON_LIKE else headers}")
    return "; ".join(told) + ". No folders."
