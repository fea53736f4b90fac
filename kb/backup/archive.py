"""The form of a backup: a tar file of plain files.

    manifest.json             first: what it holds, by which version, of when
    catalog.sqlite            the SQL catalog, with every vector
    blobs/ab/abcd...          uploaded files and artifacts, by the SHA-256 of their bytes
    devices/ runs/ transcripts/
    SHA256SUMS                last: the checksum of every file before it, as `sha256sum -c` reads it

A file that was cut off has no checksums, so it cannot be taken for a whole one. Knows nothing about
what the files mean.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import tarfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path, PurePosixPath
from typing import Any

from kb.errors import NotFound, StoreError

FORMAT = 1
MANIFEST, CATALOG, SUMS, BLOBS = "manifest.json", "catalog.sqlite", "SHA256SUMS", "blobs"
# Folders of a data directory that are copied file by file: measured ceilings of devices, problems
# and mail of runs, what language models were asked and answered.
FOLDERS = ("devices", "runs", "transcripts")
MAX_TEXT = 1 << 28  # bytes of the manifest and of the checksums: those of two million files
_GZIP = b"\x1f\x8b"
# No backslash and no line break, which would need quoting among the checksums; nothing but UTF-8.
_PART = re.compile(r"[^\\/\x00-\x1f\x7f\ud800-\udfff]+")
_BLOB = re.compile(r"blobs/([0-9a-f]{2})/(\1[0-9a-f]{62})")
_SUM = re.compile(r"([0-9a-f]{64})  (.+)")


@dataclass(frozen=True)
class Manifest:
    """What a backup holds, and of when it is. `revision` counts the changes of the catalog,
    `schema` names the form of its tables; `vectors` are counted by embedding model. `settings` are
    those that were not at their default. `missing` are the keys of blobs that the catalog refers to
    and that were not there.
    """

    taken_at: str
    kernlore: str
    data_dir: str
    schema: str
    revision: int
    counts: Mapping[str, int]
    jobs: Mapping[str, int]
    vectors: Mapping[str, int]
    settings: Mapping[str, str]
    missing: Sequence[str] = ()
    format: int = FORMAT


@dataclass(frozen=True)
class Contents:
    """What was read of a backup: its manifest, the number of files beside it and their bytes.
    `damaged` are the keys of blobs that are not what they were when they were stored: they were
    missing or damaged in the data directory already.
    """

    manifest: Manifest
    files: int
    bytes: int
    damaged: tuple[str, ...]


@dataclass
class _Passed:
    """What one pass over the members has seen."""

    sums: dict[str, str] = field(default_factory=dict)
    bytes: int = 0
    manifest: Manifest | None = None
    listed: dict[str, str] | None = None


def allowed(name: str) -> bool:
    """Whether a file of this name has a place in a backup; a path that leads out has none."""
    if name in (MANIFEST, CATALOG, SUMS) or _BLOB.fullmatch(name):
        return True
    parts = name.split("/")
    plain = all(_PART.fullmatch(part) and part not in (".", "..") for part in parts)
    return plain and len(parts) > 1 and parts[0] in FOLDERS


def blob_key(name: str) -> str | None:
    """The key of the blob that a file of this name is, or None."""
    match = _BLOB.fullmatch(name)
    return match[2] if match else None


def blob_name(key: str) -> str:
    """The name of a blob in a backup."""
    return f"{BLOBS}/{key[:2]}/{key}"


@contextmanager
def opened(path: Path) -> Iterator[tarfile.TarFile]:
    """A backup, open for reading. Raises NotFound where there is no file, and StoreError where what
    is read of it inside the block is damaged.
    """
    if not path.is_file():
        raise NotFound(f"no file {path}", hint="Give a file that `kernlore backup` wrote.")
    try:
        with path.open("rb") as stream:
            compressed = stream.read(len(_GZIP)) == _GZIP
        with tarfile.open(path, "r:gz" if compressed else "r:") as tar:
            yield tar
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise broken(path, str(error)) from error


def broken(path: Path, reason: str) -> StoreError:
    """The refusal of a file that is not a whole backup."""
    return StoreError(
        f"{path} is not a whole backup: {reason}",
        hint="Use another backup; `kernlore backup --verify FILE` checks one.",
    )


def verify(path: Path) -> Contents:
    """Read all of a backup and compare it with its checksums. Raises what `opened` does, and
    StoreError for one of a newer version.
    """
    with opened(path) as tar:
        return read_all(path, tar)


def read_all(path: Path, tar: tarfile.TarFile) -> Contents:
    """The same for a backup that is open; `path` names it in errors."""
    passed = _Passed()
    for member in tar:
        reason = _misplaced(member, passed)
        if reason:
            raise broken(path, f"{member.name!r} {reason}")
        _read(path, tar, member, passed)
    # gzip's own checksum stands at the very end, behind the last member.
    while tar.fileobj is not None and tar.fileobj.read(1 << 20):
        pass
    if passed.manifest is None or passed.listed is None:
        raise broken(path, "it was cut off" if passed.sums else "it is empty")
    reason = _difference(passed.sums, passed.listed)
    if reason:
        raise broken(path, reason)
    wrong = {
        k for name, digest in passed.sums.items() if (k := blob_key(name)) not in (None, digest)
    }
    damaged = sorted(wrong | set(passed.manifest.missing))
    return Contents(passed.manifest, len(passed.sums) - 1, passed.bytes, tuple(damaged))


def _misplaced(member: tarfile.TarInfo, passed: _Passed) -> str:
    """Why a member may not stand where it does, or nothing."""
    if not member.isreg() or member.issparse():
        return "is no plain file"
    if not allowed(member.name) or str(PurePosixPath(member.name)) != member.name:
        return "has no place in a backup"
    if member.name in passed.sums:
        return "is in it twice"
    if passed.listed is not None:
        return f"comes after {SUMS}"
    if (passed.manifest is None) != (member.name == MANIFEST):
        return f"comes before {MANIFEST}"
    return ""


def _read(path: Path, tar: tarfile.TarFile, member: tarfile.TarInfo, passed: _Passed) -> None:
    content = tar.extractfile(member)
    assert isinstance(content, io.BufferedReader)  # it is a plain file
    with content:
        if member.name not in (MANIFEST, SUMS):
            passed.sums[member.name] = hashlib.file_digest(content, "sha256").hexdigest()
            passed.bytes += member.size
            return
        if member.size > MAX_TEXT:
            raise broken(path, f"its {member.name} has {member.size:,} bytes")
        data = content.read()
    if member.name == SUMS:
        passed.listed = _sums_in(data)
        return
    passed.sums[MANIFEST] = hashlib.sha256(data).hexdigest()
    passed.manifest = _manifest_in(path, data)


def _difference(read: Mapping[str, str], listed: Mapping[str, str]) -> str:
    """How the files differ from their checksums, or nothing."""
    for name in sorted(read.keys() | listed.keys()):
        if name not in read:
            return f"{name!r} is missing"
        if name not in listed:
            return f"{name!r} has no checksum"
        if read[name] != listed[name]:
            return f"{name!r} was changed or damaged"
    return "" if CATALOG in read else f"{CATALOG!r} is missing"


def sums_text(sums: Mapping[str, str]) -> bytes:
    """The file of checksums, by name."""
    return "".join(f"{digest}  {name}\n" for name, digest in sums.items()).encode()


def _sums_in(data: bytes) -> dict[str, str]:
    lines = data.decode("utf-8", "replace").split("\n")
    return {match[2]: match[1] for line in lines if (match := _SUM.fullmatch(line))}


def manifest_text(manifest: Manifest) -> bytes:
    """The manifest as it is stored."""
    values = {entry.name: getattr(manifest, entry.name) for entry in fields(Manifest)}
    return f"{json.dumps(values, indent=1, ensure_ascii=False)}\n".encode()


def _manifest_in(path: Path, data: bytes) -> Manifest:
    """Raises StoreError for what is no manifest, or one of a newer format."""
    try:
        values: Mapping[str, Any] = json.loads(data)
        version = int(values["format"])
        if version > FORMAT:
            raise StoreError(
                f"{path} is a backup of format {version}, made by Kernlore {values['kernlore']};"
                f" this one reads up to {FORMAT}",
                hint="Upgrade Kernlore and restore it then.",
            )
        return Manifest(**{entry.name: values[entry.name] for entry in fields(Manifest)})
    except (ValueError, KeyError, TypeError) as error:
        raise broken(path, f"its {MANIFEST} cannot be read") from error
