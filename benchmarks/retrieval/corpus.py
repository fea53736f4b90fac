"""The documents of a benchmark and the hardware each is about.

Nothing is assumed about names: a MANIFEST.jsonl of {path, hardware} rows decides, and without one
the top folder of a file is its hardware id.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ingestion.uploads import files_under
from kb.errors import InvalidRequest
from kb.hardware.spec import HARDWARE_ID

MANIFEST = "MANIFEST.jsonl"


@dataclass(frozen=True)
class CorpusFile:
    """`name` is its path below the folder of its hardware, under which it is uploaded."""

    path: Path
    name: str
    hardware: tuple[str, ...]


@dataclass(frozen=True)
class Corpus:
    """missing: listed but not there; extra: there but not listed, so not used."""

    files: tuple[CorpusFile, ...]
    missing: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()

    @property
    def hardware(self) -> tuple[str, ...]:
        return tuple(sorted({hardware_id for file in self.files for hardware_id in file.hardware}))

    @property
    def size_bytes(self) -> int:
        return sum(file.path.stat().st_size for file in self.files)

    def only(self, hardware: Collection[str]) -> Corpus:
        """The part that is about these ids; everything when none is given."""
        if not hardware:
            return self
        unknown = sorted(set(hardware) - set(self.hardware))
        if unknown:
            raise InvalidRequest(
                f"the corpus has nothing about {', '.join(unknown)}",
                hint=f"It is about {', '.join(self.hardware)}.",
            )
        files = tuple(file for file in self.files if set(file.hardware) & set(hardware))
        return Corpus(files, self.missing, self.extra)

    def lines(self) -> list[str]:
        """A description for the reader of a result."""
        facts = [
            f"{len(self.files):,} documents, {self.size_bytes / 1e6:.1f} MB,"
            f" {len(self.hardware)} hardware ids"
        ]
        for what, names in (("listed but missing", self.missing), ("not listed", self.extra)):
            if names:
                more = ", ..." if len(names) > 5 else ""
                facts.append(f"{len(names)} files {what}: {', '.join(names[:5])}{more}")
        return facts


def load_corpus(folder: Path) -> Corpus:
    if not folder.is_dir():
        raise InvalidRequest(f"no folder {folder}", hint="Give the corpus with --corpus FOLDER.")
    present = {file.name: file.path for file in files_under([folder]) if file.name != MANIFEST}
    manifest = folder / MANIFEST
    listed = list(_listed(manifest) if manifest.is_file() else _by_folder(present))
    files = [
        CorpusFile(folder / path, _name(path, hardware), hardware)
        for path, hardware in listed
        if (folder / path).is_file()
    ]
    if not files:
        raise InvalidRequest(
            f"no documents in {folder}",
            hint="Files belong into one folder per hardware id, or are listed in MANIFEST.jsonl.",
        )
    known = {path for path, _ in listed}
    return Corpus(
        tuple(files),
        tuple(path for path, _ in listed if not (folder / path).is_file()),
        tuple(path for path in present if path not in known),
    )


def _listed(manifest: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    for number, line in enumerate(manifest.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            path, hardware = str(row["path"]), row["hardware"]
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidRequest(
                f"{manifest.name}, line {number}: {error!r}",
                hint='Each line is a JSON object with "path" and "hardware".',
            ) from error
        yield path, (hardware,) if isinstance(hardware, str) else tuple(hardware)


def _by_folder(paths: Collection[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    for path in paths:
        top, _, below = path.partition("/")
        if below and HARDWARE_ID.fullmatch(top):  # LICENSES and the like are not about a chip
            yield path, (top,)


def _name(path: str, hardware: Sequence[str]) -> str:
    parts = PurePosixPath(path).parts
    below = parts[1:] if len(parts) > 1 and parts[0] in hardware else parts
    return "/".join(below)
