"""The versioned prompt templates, the fence around foreign texts, and the allowed files and entries
of each language.

Templates are files whose `{{name}}` placeholders are filled in one pass, so that nothing in a
filled-in text is interpreted. Standard library only.
"""

from __future__ import annotations

import json
import re
import secrets
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from optimizer.evaluation.bundle import SUFFIXES, default_entry
from optimizer.search.synthesizers.base import ProposalContext

VERSION = "v7"
_FOLDER = Path(__file__).with_name("prompts") / VERSION
_PLACE = re.compile(r"\{\{([a-z_]+)\}\}")
WORD = "KERNLORE-DATA"
_MARKER = re.compile(r"kernlore[\W_]*data", re.IGNORECASE)
_KEPT = "\n\t"
_UNSEEN = ("Cc", "Cf", "Cs")  # control, format (zero width, direction), lone surrogates
C_LIKE = ("cpp", "cuda")
PYTHON_LIKE = ("torch", "triton")
_PLAIN = re.compile(r"\w[\w-]{0,40}\.\w{1,8}", re.ASCII)
HEADER_SUFFIXES = (".h", ".hpp", ".cuh")


@cache
def template(name: str) -> str:
    """The unfilled text of a template file."""
    return (_FOLDER / name).read_text(encoding="utf-8").strip()


@cache
def data(name: str) -> Any:
    """The content of a JSON file of the templates. It is cached: do not change it."""
    return json.loads((_FOLDER / name).read_text(encoding="utf-8"))


def rendered(name: str, values: Mapping[str, str]) -> str:
    """The template with its placeholders filled. Raises KeyError for one without a value."""
    text = template(name)
    for place in _PLACE.findall(text):
        if not values[place]:  # an empty part leaves no empty lines behind
            text = re.sub(rf"^\{{\{{{place}\}}\}}\n\n?", "", text, flags=re.M)
    return _PLACE.sub(lambda place: values[place[1]], text).strip() + "\n"


@dataclass(frozen=True)
class Fence:
    """Marks foreign text as data, so that a model can distinguish it from its instructions.

    A block opens and closes with a line that contains the random `boundary`, which the authors of
    documents do not know. Similar lines inside are broken up and invisible characters removed.
    """

    boundary: str = field(default_factory=lambda: secrets.token_hex(8))

    def around(self, kind: str, text: str) -> str:
        """The text as a marked block; `kind` is a word of this program, never of a document."""
        begin, end = f"--- {WORD} {self.boundary} BEGIN {kind} ---", self.end
        return f"{begin}\n{self._harmless(text).strip()}\n{end}"

    @property
    def end(self) -> str:
        """The line that closes a block."""
        return f"--- {WORD} {self.boundary} END ---"

    def _harmless(self, text: str) -> str:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        text = "".join(c for c in text if c in _KEPT or unicodedata.category(c) not in _UNSEEN)
        return _MARKER.sub("kernlore (marker removed)", text).replace(self.boundary, "(removed)")


def wanted(context: ProposalContext) -> str:
    """The parent's language if the target offers it, else the preferred one."""
    offered = context.hardware.languages
    proposal = context.parent.proposal
    if proposal is not None and proposal.bundle.language in offered:
        return proposal.bundle.language
    return offered[0]


def main_suffixes(language: str, context: ProposalContext) -> tuple[str, ...]:
    """File name endings of the main file; empty for a chip's own language without one."""
    if language in PYTHON_LIKE:
        return (".py",)
    own = context.hardware.toolchains.get(language)
    if own is not None and own.suffix:
        return (own.suffix,)
    known = tuple(suffix for suffix, name in SUFFIXES.items() if name == language)
    proposal = context.parent.proposal
    if not known and proposal is not None and proposal.bundle.language == language:
        return (PurePosixPath(proposal.bundle.main).suffix,)
    return known


def default_main(language: str, context: ProposalContext) -> str:
    """The name of a file that came without one: the parent's if that is a plain name, since it is
    shown outside of the fence and foreign bundles may use any name."""
    proposal = context.parent.proposal
    suffixes = main_suffixes(language, context)
    if proposal is not None and proposal.bundle.language == language:
        main = proposal.bundle.main
        own = language in context.hardware.toolchains
        if _PLAIN.fullmatch(main) and (not own or main.endswith(suffixes)):
            return main
    return "kernel" + (suffixes or (".txt",))[0]


def own_entry(language: str, main: str, context: ProposalContext) -> str:
    """The entry of a candidate that names none: that of the chip's toolchain, else of its kind of
    file."""
    own = context.hardware.toolchains.get(language)
    return own.called if own is not None and own.called else default_entry(main)


def rule(context: ProposalContext) -> str:
    """The allowed files in words, for the repair of an answer."""
    rules = []
    for language in context.hardware.languages:
        ends = " or ".join(main_suffixes(language, context)) or "its own ending"
        headers = f", and header files ({', '.join(HEADER_SUFFIXES)})"
        rules.append(f"{language}: one {ends} file{'' if language in PYTHON_LIKE else headers}")
    return "; ".join(rules) + ". No folders."
