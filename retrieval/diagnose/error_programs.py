"""Small programs that make a tool print the text of an error signature, and with which versions of
the tool they did.

Reads `data/errors/*.toml`, one file a tool; `gcc.toml` explains the fields. Runs nothing:
`optimizer.knowledge_check` does.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from kb.validity import Validity, of_source
from retrieval.diagnose.signals import DATA

FOLDER = DATA / "errors"


@dataclass(frozen=True)
class ErrorTool:
    """How programs become logs: `command` with {file}, {folder} and {options}, `version` prints the
    tool's version, `suffix` is that of files, `before` is put before the code."""

    id: str
    command: str
    version: str
    suffix: str
    before: str = ""


@dataclass(frozen=True)
class ErrorProgram:
    """A program whose log must contain a line that each of the `signatures` matches."""

    name: str
    tool: ErrorTool
    code: str
    signatures: tuple[str, ...]
    options: str = ""


@dataclass(frozen=True)
class ErrorEvidence:
    """The programs, and by signature the versions of tools that print its text or do not."""

    programs: tuple[ErrorProgram, ...]
    validities: Mapping[str, tuple[Validity, ...]]


@lru_cache(maxsize=1)
def load_error_evidence() -> ErrorEvidence:
    """The built-in programs and what ships about signatures."""
    programs: list[ErrorProgram] = []
    validities: dict[str, dict[Validity, None]] = {}
    for path in sorted(FOLDER.glob("*.toml")):
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        seen: Mapping[str, str] = table.get("seen", {})
        for signature, versions in table.get("logs", {}).items():
            own = _validities({text: seen["logs"] for text in versions}, holds=True)
            validities.setdefault(signature, {}).update(own)
        fields = ("command", "version", "suffix", "before")
        tool = ErrorTool(path.stem, *(table.get(field, "") for field in fields))
        for name, row in table.get("programs", {}).items():
            signatures = (name.partition("+")[0], *row.get("also", ()))
            lacking: Mapping[str, str] = row.get("lacking", {})
            options = row.get("options", "")
            programs.append(ErrorProgram(name, tool, row["code"], signatures, options))
            held = {text: date for text, date in seen.items() if text not in lacking}
            own = _validities(held, holds=True) | _validities(lacking, holds=False)
            for signature in signatures:
                validities.setdefault(signature, {}).update(own)
    return ErrorEvidence(tuple(programs), {s: tuple(own) for s, own in validities.items()})


def _validities(seen: Mapping[str, object], *, holds: bool) -> dict[Validity, None]:
    """The statements of texts like "g++ 12.2.0" with their dates."""
    return {
        Validity(v.tool, v.min, v.max, "", "", "ran", str(date), holds): None
        for text, date in seen.items()
        for v in of_source(text, checked="ran")
    }
