"""Writes a backup of a data directory while a service serves and reads uploads on it.

The catalog is copied first, then what its rows refer to: a blob lies there before the row that
names it, and goes only after the row has gone. So a blob that is missing was deleted meanwhile with
its document, and the copy begins anew; or it had been lost before, which the backup says.

What can be made again is left out: Chroma's folder comes from the vectors in the catalog, the
exported models from their package.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import shutil
import sqlite3
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path, PurePosixPath
from typing import Any

from kb import audit, clock
from kb.addresses import without_password
from kb.blobs import KEY, Blobs, open_blobs
from kb.data_dir import RESERVE
from kb.errors import Conflict, InvalidRequest, NotFound, StoreError, Unavailable
from kb.ids import sha256
from kb.settings import MIB, Settings, product_version

# -- archive: The form of a backup: a tar file of plain files.

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
class BackupContents:
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


def is_backup_name(name: str) -> bool:
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
def open_archive(path: Path) -> Iterator[tarfile.TarFile]:
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
        raise broken_archive(path, str(error)) from error


def broken_archive(path: Path, reason: str) -> StoreError:
    """The refusal of a file that is not a whole backup."""
    return StoreError(
        f"{path} is not a whole backup: {reason}",
        hint="Use another backup; `kernlore backup --verify FILE` checks one.",
    )


def verify_backup(path: Path) -> BackupContents:
    """Read all of a backup and compare it with its checksums. Raises what `opened` does, and
    StoreError for one of a newer version.
    """
    with open_archive(path) as tar:
        return read_archive(path, tar)


def read_archive(path: Path, tar: tarfile.TarFile) -> BackupContents:
    """The same for a backup that is open; `path` names it in errors."""
    passed = _Passed()
    for member in tar:
        reason = _misplaced(member, passed)
        if reason:
            raise broken_archive(path, f"{member.name!r} {reason}")
        _read(path, tar, member, passed)
    # gzip's own checksum stands at the very end, behind the last member.
    while tar.fileobj is not None and tar.fileobj.read(1 << 20):
        pass
    if passed.manifest is None or passed.listed is None:
        raise broken_archive(path, "it was cut off" if passed.sums else "it is empty")
    reason = _difference(passed.sums, passed.listed)
    if reason:
        raise broken_archive(path, reason)
    wrong = {
        k for name, digest in passed.sums.items() if (k := blob_key(name)) not in (None, digest)
    }
    damaged = sorted(wrong | set(passed.manifest.missing))
    return BackupContents(passed.manifest, len(passed.sums) - 1, passed.bytes, tuple(damaged))


def _misplaced(member: tarfile.TarInfo, passed: _Passed) -> str:
    """Why a member may not stand where it does, or nothing."""
    if not member.isreg() or member.issparse():
        return "is no plain file"
    if not is_backup_name(member.name) or str(PurePosixPath(member.name)) != member.name:
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
            raise broken_archive(path, f"its {member.name} has {member.size:,} bytes")
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
        raise broken_archive(path, f"its {MANIFEST} cannot be read") from error


ATTEMPTS = 5
# Of a data directory, and in no backup: derived, or of the processes that run on it.
DERIVED = (
    "chroma",
    "models",
    "locks",
    audit.NAME,
    RESERVE,
    "service.json",
    f"{CATALOG}-wal",
    f"{CATALOG}-shm",
)
# Where things are and who may come in: of the machine, not of the store. URLs may hold passwords.
_OF_THE_MACHINE = ("data_dir", "catalog", "chroma_url", "blob_url", "host", "port", "allowed_hosts")
_COMPRESSED = (".gz", ".tgz")
_COMPRESSION = 1  # of gzip: higher levels take twice as long for 5 % less
# For whoever waits: what is being done.
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Backup:
    """A backup that was written. `bytes` is the size of the file, `contents` what lies in it;
    `left_out` are names in the data directory that are none of Kernlore's.
    """

    path: Path
    bytes: int
    contents: BackupContents
    left_out: tuple[str, ...]


class _Gone(Exception):
    """A blob of the copied catalog was deleted before it was copied."""


def write_backup(settings: Settings, output: Path, progress: Progress = lambda _: None) -> Backup:
    """Write a backup to the new file `output`, or to a file in the folder `output` that is named by
    the time. A name that ends in .gz or .tgz is compressed.

    The file is there when it is whole, or not at all. Raises NotFound where there is no store,
    Conflict where the file exists, StoreError for a damaged catalog, Unavailable where the disk is
    too small, InvalidRequest for a catalog that is not in the data directory.
    """
    check_embedded(settings)
    source = settings.data_dir.absolute() / CATALOG
    if not source.is_file():
        raise NotFound(
            f"there is no store in {settings.data_dir}",
            hint="Give the --data-dir of the service.",
        )
    target = _target(output)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as folder:
        part = Path(folder) / target.name
        contents = _written(settings, source, part, progress)
        size = part.stat().st_size
        _refuse_existing(target)
        part.rename(target)
    _flush(target.parent)
    return Backup(target, size, contents, tuple(_left_out(settings.data_dir)))


def check_embedded(settings: Settings) -> None:
    """Raise InvalidRequest where the catalog is not in the data directory: a backup is of that."""
    if settings.catalog is not None:
        raise InvalidRequest(
            f"the catalog is in {without_password(settings.catalog)}, not in the data directory",
            hint="Copy it with the server's own tools (pg_dump, pg_restore), and the files with"
            " `rsync`: DATA_DIR/blobs, after the database. `kernlore catalog copy` moves it into a"
            " data directory, of which backups can be made.",
        )


def _target(output: Path) -> Path:
    if output.is_dir():
        output = output / f"kernlore-{clock.now()[:19].replace(':', '')}Z.tar"
    elif not output.parent.is_dir():
        raise InvalidRequest(f"there is no folder {output.parent}", hint="Make it first.")
    _refuse_existing(output)
    return output


def _refuse_existing(path: Path) -> None:
    if path.exists():
        raise Conflict(
            f"{path} exists; a backup is not overwritten",
            hint="Give another name, or a folder: the file is then named by the time.",
        )


def _written(settings: Settings, source: Path, part: Path, progress: Progress) -> BackupContents:
    """Copy until nothing was deleted meanwhile that the copied catalog refers to."""
    blobs = open_blobs(settings.data_dir, settings.blob_url)
    copy = part.with_name(CATALOG)
    before: frozenset[str] = frozenset()
    _check_space(part.parent, 2 * source.stat().st_size + sum(blobs.sizes().values()))
    for _ in range(ATTEMPTS):
        copy.unlink(missing_ok=True)
        snapshot = take_snapshot(source, copy)
        progress(f"copied the catalog, {copy.stat().st_size / MIB:,.1f} MiB")
        sizes = blobs.sizes()
        missing = snapshot.blob_keys - sizes.keys()
        if missing and missing != before:  # deleted since, or lost: the next copy says which
            before = missing
            continue
        try:
            return _packed(settings, snapshot, missing, copy, part, blobs, sizes)
        except _Gone:
            continue
    raise Conflict(
        "documents were deleted again and again while they were copied",
        hint="Run it again when nobody deletes documents.",
    )


def _check_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise Unavailable(
            f"{folder.parent} has {free // MIB:,} MiB free, and up to {needed // MIB:,} are needed",
            hint="Write the backup to another disk.",
        )


def _packed(
    settings: Settings,
    snapshot: Snapshot,
    missing: frozenset[str],
    copy: Path,
    part: Path,
    blobs: Blobs,
    sizes: Mapping[str, int],
) -> BackupContents:
    manifest = _manifest(settings, snapshot, missing)
    damaged = set(missing)
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        with _tar(part.name, stream) as tar:
            writer = _Writer(tar)
            writer.add(MANIFEST, manifest_text(manifest))
            writer.add_file(CATALOG, copy)
            for key in sorted(sizes):
                try:
                    data = blobs.get_unchecked(key)
                except NotFound as error:
                    if key in snapshot.blob_keys:
                        raise _Gone from error
                    continue
                if writer.add(blob_name(key), data) != key:
                    damaged.add(key)
            for name, path in _files(settings.data_dir):
                writer.add_if_there(name, path)
            files, size = len(writer.sums) - 1, writer.size
            writer.add(SUMS, sums_text(writer.sums))
        stream.flush()
        os.fsync(stream.fileno())
    return BackupContents(manifest, files, size, tuple(sorted(damaged)))


def _tar(name: str, stream: io.BufferedWriter) -> tarfile.TarFile:
    if name.endswith(_COMPRESSED):
        return tarfile.open(fileobj=stream, mode="w:gz", compresslevel=_COMPRESSION)
    return tarfile.open(fileobj=stream, mode="w")


def _manifest(settings: Settings, snapshot: Snapshot, missing: frozenset[str]) -> Manifest:
    return Manifest(
        taken_at=clock.now(),
        kernlore=product_version(),
        data_dir=str(settings.data_dir.absolute()),
        schema=snapshot.schema,
        revision=snapshot.revision,
        counts=snapshot.counts,
        jobs=snapshot.jobs,
        vectors=snapshot.vectors,
        settings=changed_settings(settings),
        missing=sorted(missing),
    )


def changed_settings(settings: Settings) -> dict[str, str]:
    """The settings that answers may depend on and that are not at their default, as text."""
    return {
        name: str(value)
        for name, described in Settings.model_fields.items()
        if name not in _OF_THE_MACHINE and (value := getattr(settings, name)) != described.default
    }


@dataclass
class _Writer:
    """Adds files to a tar and keeps their checksums; `size` is in bytes, without the manifest."""

    tar: tarfile.TarFile
    sums: dict[str, str] = field(default_factory=dict)
    size: int = 0

    def add(self, name: str, data: bytes) -> str:
        """Add a file; its checksum."""
        self.tar.addfile(_entry(name, len(data)), io.BytesIO(data))
        digest = sha256(data)
        self._count(name, digest, len(data))
        return digest

    def add_file(self, name: str, path: Path) -> None:
        """A file that nobody changes: it is read twice."""
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
            size = stream.tell()
            stream.seek(0)
            self.tar.addfile(_entry(name, size), stream)
        self._count(name, digest, size)

    def add_if_there(self, name: str, path: Path) -> None:
        """A small file as it is now; one that has gone meanwhile is left out."""
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return
        self.add(name, data)

    def _count(self, name: str, digest: str, size: int) -> None:
        self.sums[name] = digest
        self.size += size if name != MANIFEST else 0


def _entry(name: str, size: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = size, 0o600
    return entry


def _files(data_dir: Path) -> Iterator[tuple[str, Path]]:
    """Name and path of every file in the folders that are copied file by file. Links are not
    followed; a file that is being written has another name until it is whole.
    """
    for folder in FOLDERS:
        for path in sorted((data_dir / folder).rglob("*")):
            name = path.relative_to(data_dir).as_posix()
            plain = path.is_file() and not path.is_symlink() and path.suffix != ".part"
            if plain and is_backup_name(name):
                yield name, path


def _left_out(data_dir: Path) -> Iterator[str]:
    known = (CATALOG, BLOBS, *FOLDERS, *DERIVED)
    for path in sorted(data_dir.iterdir()):
        # A vector index that could not be read is renamed before it is removed.
        if path.name not in known and not path.name.startswith("chroma."):
            yield path.name


def _flush(folder: Path) -> None:
    """Make the name of a new file as durable as its bytes."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# -- snapshot: A copy of the SQL catalog at one moment, while others write to it.

BUSY_SECONDS = 15.0
# What is counted, and the table that holds it.
_COUNTED = {
    "documents": "documents",
    "passages": "passages WHERE active",
    "facts": "facts",
    "moves": "moves",
    "symbols": "symbols",
    "samples": "samples",
    "skills": "skills",
    "evidence": "evidence",
    "evaluations": "evaluations",
    "runs": "runs",
    "nodes": "nodes",
    "trajectories": "trajectories",
}
# Keys of blobs inside JSON: table, column, place. Columns named blob_key are read of every table.
_KEYS_IN_JSON = (
    ("nodes", "record", "$.proposal.bundle.blob"),
    ("trajectories", "summary", "$.found_blob"),
)


@dataclass(frozen=True)
class Snapshot:
    """What a copied catalog holds. `schema` and `revision` are as in a backup's manifest;
    `blob_keys` are the blobs that its rows refer to.
    """

    schema: str
    revision: int
    counts: Mapping[str, int]
    jobs: Mapping[str, int]
    vectors: Mapping[str, int]
    blob_keys: frozenset[str]


def take_snapshot(source: Path, target: Path) -> Snapshot:
    """Copy the catalog `source` to the new file `target`, as it is at one moment. Raises StoreError
    where it is damaged.

    Whoever writes meanwhile is not held up, and nothing of theirs is in the copy. It is copied in
    one step: copied page by page, it would begin anew with every change.
    """
    with (
        _damage_of(source),
        closing(sqlite3.connect(f"{source.as_uri()}?mode=rw", uri=True)) as live,
        closing(sqlite3.connect(target)) as copy,
    ):
        live.execute(f"PRAGMA busy_timeout={int(BUSY_SECONDS * 1000)}")
        live.backup(copy)
        # The copy is one file that needs no log beside it.
        copy.execute("PRAGMA journal_mode=DELETE")
        verdict = copy.execute("PRAGMA quick_check").fetchone()[0]
        if verdict != "ok":
            raise sqlite3.DatabaseError(verdict)
        return _contents(copy)


@contextmanager
def _damage_of(source: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.DatabaseError as error:
        raise StoreError(
            f"the catalog {source} cannot be copied: {error}",
            hint="`kernlore doctor` says what is wrong with it; restore an earlier backup.",
        ) from error


def _contents(copy: sqlite3.Connection) -> Snapshot:
    tables = {name for (name,) in copy.execute("SELECT name FROM sqlite_master WHERE type='table'")}
    # Before revision 0016, jobs of documents had a table of their own.
    jobs = "work WHERE kind = 'ingest'" if "work" in tables else "jobs"
    if not {"alembic_version", "meta", jobs.split()[0], "embeddings"} <= tables:
        raise sqlite3.DatabaseError("it is not a catalog of Kernlore")
    counts = {
        name: copy.execute(f"SELECT count(*) FROM {rows}").fetchone()[0]
        for name, rows in _COUNTED.items()
        if rows.split()[0] in tables
    }
    revision = copy.execute("SELECT value FROM meta WHERE key = 'revision'").fetchone()
    models = "SELECT model_fingerprint, count(*) FROM embeddings GROUP BY 1"
    return Snapshot(
        copy.execute("SELECT version_num FROM alembic_version").fetchone()[0],
        int(revision[0]) if revision else 0,
        counts,
        dict(copy.execute(f"SELECT state, count(*) FROM {jobs} GROUP BY 1").fetchall()),
        dict(copy.execute(models).fetchall()),
        frozenset(_blob_keys(copy, tables)),
    )


def _blob_keys(copy: sqlite3.Connection, tables: set[str]) -> Iterator[str]:
    selects = [
        f"SELECT json_extract({column}, '{place}') FROM {table}"
        for table, column, place in _KEYS_IN_JSON
        if table in tables
    ]
    for table in tables:
        columns = {row[1] for row in copy.execute(f"PRAGMA table_info({table})")}
        if "blob_key" in columns:
            selects.append(f"SELECT blob_key FROM {table}")
    for select in selects:
        yield from (key for (key,) in copy.execute(select) if key and KEY.fullmatch(key))
