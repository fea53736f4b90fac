"""Backup of a data directory as a tar file, written while a service runs; its verification, and its
restoration.

The catalog is copied first, then the files that its rows refer to. A blob is stored before the row
that names it and deleted after that row, so a blob that the copied catalog names and that is
missing was deleted with its document during the backup: the copy is repeated. A blob that is
missing twice was lost before, and the manifest lists it. Derived data (Chroma's folder, exported
models) is left out.

A backup is restored into a new data directory, completely or not at all. The files are unpacked,
migrated and checked in a folder inside the data directory, then moved to their places, the catalog
last. A directory without a catalog is not a store, so an interrupted restore is never mistaken for
a complete one.
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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path, PurePosixPath
from typing import Any

import sqlalchemy as sa

from kb import audit, clock
from kb.addresses import without_password
from kb.blobs import KEY, Blobs, open_blobs
from kb.catalog import meta
from kb.catalog.engine import Catalog, open_catalog
from kb.catalog.jobs import Jobs
from kb.catalog.schema import check_revision, foreign_object
from kb.catalog.tables import runs, work
from kb.data_dir import RESERVE, ServiceLock, sync
from kb.errors import Conflict, InvalidRequest, NotFound, StoreError, Unavailable
from kb.ids import sha256
from kb.settings import MIB, Settings, product_version

FORMAT = 1
MANIFEST, CATALOG, SUMS, BLOBS = "manifest.json", "catalog.sqlite", "SHA256SUMS", "blobs"
# Folders of a data directory that are copied file by file: measured ceilings of devices, problems
# and mail of runs, transcripts of language models.
FOLDERS = ("devices", "runs", "transcripts")
# Names in a data directory that no backup contains: derived data, and files of running processes.
_EXCLUDED = (
    "chroma",
    "snapshot",
    "models",
    "locks",
    audit.NAME,
    RESERVE,
    "service.json",
    f"{CATALOG}-wal",
    f"{CATALOG}-shm",
)
# Settings of the machine rather than of the store. URLs may contain passwords.
_URLS = ("catalog", "chroma_url", "blob_url")
_MACHINE_SETTINGS = {"data_dir", "prepared_dir", *_URLS, "host", "port", "allowed_hosts"}
_ATTEMPTS = 5
_BUSY_SECONDS = 15.0
_MAX_TEXT_BYTES = 1 << 28  # of the manifest or the checksums, which is enough for two million files
_COMPRESSED_SUFFIXES = (".gz", ".tgz")
_GZIP_LEVEL = 1  # higher levels take twice as long for 5 % less
_GZIP_MAGIC = b"\x1f\x8b"
# Backslashes and line breaks would have to be escaped in the file of checksums; surrogates are not
# valid UTF-8.
_NAME_PART = re.compile(r"[^\\/\x00-\x1f\x7f\ud800-\udfff]+")
_BLOB_NAME = re.compile(r"blobs/([0-9a-f]{2})/(\1[0-9a-f]{62})")
_SUM_LINE = re.compile(r"([0-9a-f]{64})  (.+)")
# The counts of a manifest, and the rows that each of them counts.
_COUNTED_ROWS = {
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
# Blob keys inside JSON columns: table, column, path. Other blob keys are in columns `blob_key`.
_KEYS_IN_JSON = (
    ("nodes", "record", "$.proposal.bundle.blob"),
    ("trajectories", "summary", "$.found_blob"),
)

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Manifest:
    """Description of a backup.

    `revision` counts the changes of the catalog, `schema` is its migration, `vectors` are counted
    per embedding model, `settings` are those that differ from their default. `missing` are the keys
    of blobs that the catalog refers to and that were not found.
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
    """The manifest of a backup, and the number and bytes of its other files. `damaged` are the keys
    of blobs that were missing in the data directory or did not match their checksum there."""

    manifest: Manifest
    files: int
    bytes: int
    damaged: tuple[str, ...]


@dataclass(frozen=True)
class Backup:
    """A written backup. `bytes` is the size of the file; `left_out` are unknown names in the data
    directory, which it does not contain."""

    path: Path
    bytes: int
    contents: BackupContents
    left_out: tuple[str, ...]


class _BlobDeleted(Exception):
    """A blob of the copied catalog was deleted before it was copied."""


def write_backup(settings: Settings, output: Path, progress: Progress = lambda _: None) -> Backup:
    """Write a backup to the new file `output`, or into the folder `output` under a name made from
    the time. A name that ends in .gz or .tgz selects compression. The file appears once it is
    complete.

    Raises NotFound without a catalog, Conflict if the file exists, StoreError for a damaged
    catalog, Unavailable if the disk is too small, InvalidRequest for a catalog on a server.
    """
    check_embedded(settings)
    source = settings.data_dir.absolute() / CATALOG
    if not source.is_file():
        raise NotFound(
            f"there is no store in {settings.data_dir}", hint="Give the --data-dir of the service."
        )
    target = _new_file(output)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as folder:
        part = Path(folder) / target.name
        contents = _copy_consistently(settings, source, part, progress)
        size = part.stat().st_size
        _check_new(target)
        part.rename(target)
    sync(target.parent)
    return Backup(target, size, contents, tuple(_unknown_names(settings.data_dir)))


def check_embedded(settings: Settings) -> None:
    """Raise InvalidRequest unless the catalog is in the data directory."""
    if settings.catalog is not None:
        raise InvalidRequest(
            f"the catalog is in {without_password(settings.catalog)}, not in the data directory",
            hint="Copy it with the server's own tools (pg_dump, pg_restore), and the files with"
            " `rsync`: DATA_DIR/blobs, after the database. `kernlore catalog copy` moves it into a"
            " data directory, which can be backed up.",
        )


def _new_file(output: Path) -> Path:
    if output.is_dir():
        output = output / f"kernlore-{clock.now()[:19].replace(':', '')}Z.tar"
    elif not output.parent.is_dir():
        raise InvalidRequest(f"there is no folder {output.parent}", hint="Create it first.")
    _check_new(output)
    return output


def _check_new(path: Path) -> None:
    if path.exists():
        raise Conflict(
            f"{path} exists; a backup is not overwritten",
            hint="Give another name, or a folder: the file is then named by the time.",
        )


def _copy_consistently(
    settings: Settings, source: Path, part: Path, progress: Progress
) -> BackupContents:
    """Copy catalog and files until every blob of the copied catalog is copied or known to be lost.
    Raises Conflict after some attempts."""
    blobs = open_blobs(settings.data_dir, settings.blob_url)
    copy = part.with_name(CATALOG)
    missing_before: frozenset[str] = frozenset()
    _check_space(part.parent, 2 * source.stat().st_size + sum(blobs.sizes().values()))
    for _ in range(_ATTEMPTS):
        copy.unlink(missing_ok=True)
        catalog = copy_catalog(source, copy)
        progress(f"copied the catalog, {copy.stat().st_size / MIB:,.1f} MiB")
        sizes = blobs.sizes()
        missing = catalog.blob_keys - sizes.keys()
        if missing and missing != missing_before:  # deleted or lost: the next copy shows which
            missing_before = missing
            continue
        manifest = Manifest(
            taken_at=clock.now(),
            kernlore=product_version(),
            data_dir=str(settings.data_dir.absolute()),
            settings=changed_settings(settings),
            missing=sorted(missing),
            **catalog.figures,
        )
        try:
            return _write_archive(settings.data_dir, manifest, catalog, copy, part, blobs, sizes)
        except _BlobDeleted:
            continue
    raise Conflict(
        f"documents were deleted during each of {_ATTEMPTS} attempts to copy them",
        hint="Run it again when no documents are being deleted.",
    )


def _check_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise Unavailable(
            f"{folder.parent} has {free // MIB:,} MiB free, and up to {needed // MIB:,} are needed",
            hint="Write the backup to another disk.",
        )


def changed_settings(settings: Settings) -> dict[str, str]:
    """The settings that answers may depend on and that differ from their default, as text."""
    return {
        name: str(value)
        for name, described in Settings.model_fields.items()
        if name not in _MACHINE_SETTINGS and (value := getattr(settings, name)) != described.default
    }


@dataclass(frozen=True)
class CatalogCopy:
    """A copied catalog: `figures` are the fields of `Manifest` that are read from it, `blob_keys`
    the blobs that its rows refer to."""

    figures: Mapping[str, Any]
    blob_keys: frozenset[str]


def copy_catalog(source: Path, target: Path) -> CatalogCopy:
    """Copy the catalog `source` to the new file `target`, as of one moment and without blocking
    writers. Raises StoreError if the database is damaged.

    All pages are copied in one step: SQLite would begin again with every change otherwise.
    """
    try:
        with (
            closing(sqlite3.connect(f"{source.as_uri()}?mode=rw", uri=True)) as live,
            closing(sqlite3.connect(target)) as copy,
        ):
            live.execute(f"PRAGMA busy_timeout={int(_BUSY_SECONDS * 1000)}")
            live.backup(copy)
            copy.execute("PRAGMA journal_mode=DELETE")  # a single file, without a log
            verdict = copy.execute("PRAGMA quick_check").fetchone()[0]
            if verdict != "ok":
                raise sqlite3.DatabaseError(verdict)
            return _read_copy(copy)
    except sqlite3.DatabaseError as error:
        raise StoreError(
            f"the catalog {source} cannot be copied: {error}",
            hint="`kernlore doctor` reports the damage; restore an earlier backup.",
        ) from error


def _read_copy(copy: sqlite3.Connection) -> CatalogCopy:
    tables = {name for (name,) in copy.execute("SELECT name FROM sqlite_master WHERE type='table'")}
    # Before revision 0016, ingestion jobs had their own table.
    jobs = "work WHERE kind = 'ingest'" if "work" in tables else "jobs"
    if not {"alembic_version", "meta", jobs.split()[0], "embeddings"} <= tables:
        raise sqlite3.DatabaseError("it is not a catalog of Kernlore")
    revision = copy.execute("SELECT value FROM meta WHERE key = 'revision'").fetchone()
    models = "SELECT model_fingerprint, count(*) FROM embeddings GROUP BY 1"
    figures = {
        "schema": copy.execute("SELECT version_num FROM alembic_version").fetchone()[0],
        "revision": int(revision[0]) if revision else 0,
        "counts": {
            name: copy.execute(f"SELECT count(*) FROM {rows}").fetchone()[0]
            for name, rows in _COUNTED_ROWS.items()
            if rows.split()[0] in tables
        },
        "jobs": dict(copy.execute(f"SELECT state, count(*) FROM {jobs} GROUP BY 1").fetchall()),
        "vectors": dict(copy.execute(models).fetchall()),
    }
    return CatalogCopy(figures, frozenset(_blob_keys(copy, tables)))


def _blob_keys(copy: sqlite3.Connection, tables: set[str]) -> Iterator[str]:
    return (key for key in stated_keys(copy, tables) if KEY.fullmatch(key))


def stated_keys(copy: sqlite3.Connection, tables: Iterable[str]) -> Iterator[str]:
    """Every key of a blob in a catalog, as its rows state it."""
    selects = [
        f"SELECT json_extract({column}, '{path}') FROM {table}"
        for table, column, path in _KEYS_IN_JSON
        if table in tables
    ]
    for table in tables:
        columns = {row[1] for row in copy.execute(f"PRAGMA table_info({table})")}
        if "blob_key" in columns:
            selects.append(f"SELECT blob_key FROM {table}")
    for select in selects:
        yield from (str(key) for (key,) in copy.execute(select) if key)


def _write_archive(
    data_dir: Path,
    manifest: Manifest,
    catalog: CatalogCopy,
    copy: Path,
    part: Path,
    blobs: Blobs,
    sizes: Mapping[str, int],
) -> BackupContents:
    """Raises _BlobDeleted if a blob of the catalog disappears meanwhile."""
    damaged = set(manifest.missing)
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        with _new_tar(part.name, stream) as tar:
            writer = _BackupWriter(tar)
            writer.add(MANIFEST, manifest_text(manifest))
            writer.add_file(CATALOG, copy)
            for key in sorted(sizes):
                try:
                    data = blobs.get_unchecked(key)
                except NotFound as error:
                    if key in catalog.blob_keys:
                        raise _BlobDeleted from error
                    continue
                if writer.add(f"{BLOBS}/{key[:2]}/{key}", data) != key:
                    damaged.add(key)
            for name, path in _files_to_copy(data_dir):
                try:
                    data = path.read_bytes()
                except FileNotFoundError:  # deleted meanwhile
                    continue
                writer.add(name, data)
            files, size = len(writer.sums) - 1, writer.size
            writer.add(SUMS, sums_text(writer.sums))
        stream.flush()
        os.fsync(stream.fileno())
    return BackupContents(manifest, files, size, tuple(sorted(damaged)))


def _new_tar(name: str, stream: io.BufferedWriter) -> tarfile.TarFile:
    if name.endswith(_COMPRESSED_SUFFIXES):
        return tarfile.open(fileobj=stream, mode="w:gz", compresslevel=_GZIP_LEVEL)
    return tarfile.open(fileobj=stream, mode="w")


@dataclass
class _BackupWriter:
    """Adds files to a tar and records their checksums; `size` is in bytes, without the manifest."""

    tar: tarfile.TarFile
    sums: dict[str, str] = field(default_factory=dict)
    size: int = 0

    def add(self, name: str, data: bytes) -> str:
        """Add a file and return its checksum."""
        return self._add(name, len(data), sha256(data), io.BytesIO(data))

    def add_file(self, name: str, path: Path) -> None:
        """Add a large file that does not change: it is read twice."""
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
            size = stream.tell()
            stream.seek(0)
            self._add(name, size, digest, stream)

    def _add(self, name: str, size: int, digest: str, stream: io.BufferedIOBase) -> str:
        entry = tarfile.TarInfo(name)
        entry.size, entry.mode = size, 0o600
        self.tar.addfile(entry, stream)
        self.sums[name] = digest
        self.size += size if name != MANIFEST else 0
        return digest


def _files_to_copy(data_dir: Path) -> Iterator[tuple[str, Path]]:
    """Names and paths of the files in `FOLDERS`, without links and without incomplete files."""
    for folder in FOLDERS:
        for path in sorted((data_dir / folder).rglob("*")):
            name = path.relative_to(data_dir).as_posix()
            plain = path.is_file() and not path.is_symlink() and path.suffix != ".part"
            if plain and _is_backup_name(name):
                yield name, path


def _unknown_names(data_dir: Path) -> Iterator[str]:
    known = (CATALOG, BLOBS, *FOLDERS, *_EXCLUDED)
    for path in sorted(data_dir.iterdir()):
        # An unreadable vector index is renamed to chroma.* before it is removed.
        if path.name not in known and not path.name.startswith("chroma."):
            yield path.name


def manifest_text(manifest: Manifest) -> bytes:
    """A manifest as the JSON that a backup contains."""
    return f"{json.dumps(asdict(manifest), indent=1, ensure_ascii=False)}\n".encode()


def sums_text(sums: Mapping[str, str]) -> bytes:
    """The file of checksums, in the format of `sha256sum`."""
    return "".join(f"{digest}  {name}\n" for name, digest in sums.items()).encode()


def verify_backup(path: Path) -> BackupContents:
    """Read a whole backup, compare it with its checksums, and check the schema of its catalog.
    Raises NotFound without a file, and StoreError for a damaged one or one of a newer format."""
    with open_archive(path) as tar, tempfile.TemporaryDirectory() as scratch:
        contents = read_archive(path, tar)
        check_revision(f"the catalog in {path}", contents.manifest.schema)
        content = tar.extractfile(CATALOG)
        assert content is not None  # a regular file, as `read_archive` has checked
        catalog = Path(scratch) / CATALOG
        with catalog.open("wb") as copy:
            shutil.copyfileobj(content, copy)
        check_catalog(path, catalog, contents.manifest.schema)
        return contents


@contextmanager
def open_archive(path: Path) -> Iterator[tarfile.TarFile]:
    """Open a backup for reading. Raises NotFound without a file, and StoreError if data that the
    block reads is damaged."""
    if not path.is_file():
        raise NotFound(f"no file {path}", hint="Give a file that `kernlore backup` wrote.")
    try:
        with path.open("rb") as stream:
            compressed = stream.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
        with tarfile.open(path, "r:gz" if compressed else "r:") as tar:
            yield tar
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise broken_archive(path, str(error)) from error


def broken_archive(path: Path, reason: str) -> StoreError:
    """The error for a file that is not a whole backup."""
    return StoreError(
        f"{path} is not a whole backup: {reason}",
        hint="Use another backup; `kernlore backup --verify FILE` checks one.",
    )


@dataclass
class _ArchiveState:
    """The part of a backup read so far; `listed` are the checksums of its file `SUMS`."""

    sums: dict[str, str] = field(default_factory=dict)
    bytes: int = 0
    manifest: Manifest | None = None
    listed: dict[str, str] | None = None


def read_archive(path: Path, tar: tarfile.TarFile) -> BackupContents:
    """`verify_backup` of an open backup; `path` names it in errors."""
    state = _ArchiveState()
    for member in tar:
        reason = _member_problem(member, state)
        if reason:
            raise broken_archive(path, f"{member.name!r} {reason}")
        _read_member(path, tar, member, state)
    # Read to the end, where gzip checks its own checksum.
    while tar.fileobj is not None and tar.fileobj.read(1 << 20):
        pass
    if state.manifest is None or state.listed is None:
        raise broken_archive(path, "it is truncated" if state.sums else "it is empty")
    reason = _difference(state.sums, state.listed)
    if reason:
        raise broken_archive(path, reason)
    damaged = set(state.manifest.missing)
    for name, digest in state.sums.items():
        if blob_key(name) not in ("", digest):
            damaged.add(blob_key(name))
    return BackupContents(state.manifest, len(state.sums) - 1, state.bytes, tuple(sorted(damaged)))


def check_catalog(file: Path, catalog: Path, schema: str) -> None:
    """Raise StoreError unless the file is a catalog of exactly this schema, whose keys of stored
    files are hashes. SQLite would treat a damaged file of a few bytes as an empty database, and
    opening it would create the tables."""
    try:
        with closing(sqlite3.connect(catalog)) as connection:
            row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    except sqlite3.DatabaseError as error:
        raise broken_archive(file, f"its catalog cannot be opened: {error}") from error
    if row != (schema,):
        raise broken_archive(file, "the schema of its catalog differs from its manifest")
    # A trigger would act within the migrations, and then with every change.
    foreign = foreign_object(catalog, schema)
    if foreign:
        raise broken_archive(file, f"its catalog has {foreign}")
    with closing(sqlite3.connect(catalog)) as connection:
        rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        keys = stated_keys(connection, {name for (name,) in rows.fetchall()})
        wrong = next((key for key in keys if not KEY.fullmatch(key)), None)
    if wrong is not None:
        raise broken_archive(file, f"its catalog names a stored file {wrong[:40]!r}, no hash")


def _member_problem(member: tarfile.TarInfo, state: _ArchiveState) -> str:
    """Reason to reject a member of the tar file, or ""."""
    if not member.isreg() or member.issparse():
        return "is not a regular file"
    if not _is_backup_name(member.name) or str(PurePosixPath(member.name)) != member.name:
        return "is not a name of a file in a backup"
    if member.name in state.sums:
        return "occurs twice"
    if state.listed is not None:
        return f"comes after {SUMS}"
    if (state.manifest is None) != (member.name == MANIFEST):
        return f"comes before {MANIFEST}"
    return ""


def _is_backup_name(name: str) -> bool:
    """Whether a backup may contain a file of this name, which excludes paths that lead outside."""
    if name in (MANIFEST, CATALOG, SUMS) or _BLOB_NAME.fullmatch(name):
        return True
    parts = name.split("/")
    plain = all(_NAME_PART.fullmatch(part) and part not in (".", "..") for part in parts)
    return plain and len(parts) > 1 and parts[0] in FOLDERS


def blob_key(name: str) -> str:
    """The key of the blob that a file of this name in a backup contains, or ""."""
    match = _BLOB_NAME.fullmatch(name)
    return match[2] if match else ""


def _read_member(
    path: Path, tar: tarfile.TarFile, member: tarfile.TarInfo, state: _ArchiveState
) -> None:
    content = tar.extractfile(member)
    assert isinstance(content, io.BufferedReader)  # a regular file
    with content:
        if member.name not in (MANIFEST, SUMS):
            state.sums[member.name] = hashlib.file_digest(content, "sha256").hexdigest()
            state.bytes += member.size
            return
        if member.size > _MAX_TEXT_BYTES:
            raise broken_archive(path, f"its {member.name} has {member.size:,} bytes")
        data = content.read()
    if member.name == SUMS:
        lines = data.decode("utf-8", "replace").split("\n")
        state.listed = {
            match[2]: match[1] for line in lines if (match := _SUM_LINE.fullmatch(line))
        }
    else:
        state.sums[MANIFEST] = sha256(data)
        state.manifest = _parse_manifest(path, data)


def _parse_manifest(path: Path, data: bytes) -> Manifest:
    """Raises StoreError for an unreadable manifest or one of a newer format."""
    try:
        values: Mapping[str, Any] = json.loads(data)
        version = int(values["format"])
        if version > FORMAT:
            raise StoreError(
                f"{path} is a backup of format {version}, made by Kernlore {values['kernlore']};"
                f" this version reads formats up to {FORMAT}",
                hint="Upgrade Kernlore, then restore it.",
            )
        return Manifest(**{entry.name: values[entry.name] for entry in fields(Manifest)})
    except (ValueError, KeyError, TypeError) as error:
        raise broken_archive(path, f"its {MANIFEST} cannot be read") from error


def _difference(read: Mapping[str, str], listed: Mapping[str, str]) -> str:
    """The first difference between the files and the checksums, or ""."""
    for name in sorted(read.keys() | listed.keys()):
        if name not in read:
            return f"{name!r} is missing"
        if name not in listed:
            return f"{name!r} has no checksum"
        if read[name] != listed[name]:
            return f"{name!r} was changed or damaged"
    return "" if CATALOG in read else f"{CATALOG!r} is missing"


# -- restoring into a new data directory, completely or not at all

STAGING = ".restoring"
_SPARE = 64 * MIB  # for migrations, in addition to twice the size of the catalog


@dataclass(frozen=True)
class Restored:
    """A restored data directory. `schema` is the present migration of the catalog, `requeued` the
    number of jobs that were running and are queued again, `settings` the former values of settings
    that differ now ("" for one that was at its default)."""

    data_dir: Path
    contents: BackupContents
    schema: str
    requeued: int
    settings: Mapping[str, str]


def restore_backup(file: Path, settings: Settings, progress: Progress = lambda _: None) -> Restored:
    """Restore a backup into the data directory of the settings, which must be new or empty, and its
    blobs into the blob store of the settings.

    Raises, before anything is written: Conflict for a directory that is not empty, NotFound without
    the file, StoreError for a damaged file or one of a newer version, Unavailable if the disk is
    too small.
    """
    check_embedded(settings)
    data_dir = settings.data_dir.absolute()
    _check_empty(data_dir)
    with open_archive(file) as tar:
        contents = read_archive(file, tar)
        check_revision(f"the catalog in {file}", contents.manifest.schema)
        progress(f"checked {contents.files:,} files, {contents.bytes / MIB:,.1f} MiB")
        _check_space_for(data_dir, contents.bytes, tar.getmember(CATALOG).size)
        with _staging_folder(data_dir) as staging:
            _unpack(tar, staging, settings.blob_url)
            progress("unpacked the files")
            check_catalog(file, staging / CATALOG, contents.manifest.schema)
            schema, requeued = _migrate(staging, contents.manifest.data_dir, data_dir)
            _make_private(staging)
    then, now = contents.manifest.settings, changed_settings(settings)
    names = sorted(then.keys() | now.keys())
    differing = {name: then.get(name, "") for name in names if then.get(name) != now.get(name)}
    return Restored(data_dir, contents, schema, requeued, differing)


def _check_empty(data_dir: Path) -> None:
    if not data_dir.exists():
        return
    if not data_dir.is_dir():
        raise Conflict(f"{data_dir} is not a folder", hint="Give a new or empty --data-dir.")
    names = sorted(path.name for path in data_dir.iterdir())
    if STAGING in names and CATALOG not in names:
        raise Conflict(
            f"a restore into {data_dir} is running or was interrupted",
            hint="If none is running, remove the folder and restore again.",
        )
    if names:
        what = "holds a store" if CATALOG in names else f"is not empty ({', '.join(names[:3])})"
        raise Conflict(
            f"{data_dir} {what}; a backup is restored into a new or empty folder",
            hint="Give another --data-dir. To replace this one, stop the service and"
            " rename it first.",
        )


def _check_space_for(data_dir: Path, size: int, catalog: int) -> None:
    parent = next(path for path in (data_dir, *data_dir.parents) if path.exists())
    free, needed = shutil.disk_usage(parent).free, size + catalog + _SPARE
    if free < needed:
        raise Unavailable(
            f"{parent} has {free // MIB:,} MiB free, and {needed // MIB:,} are needed",
            hint="Restore to another disk.",
        )


@contextmanager
def _staging_folder(data_dir: Path) -> Iterator[Path]:
    """A folder whose entries are moved to the data directory when the block ends. An error removes
    everything that was created."""
    made = not data_dir.exists()
    data_dir.mkdir(parents=True, exist_ok=True)
    with suppress(PermissionError):  # another user owns it, as of a mounted volume
        data_dir.chmod(0o700)
    staging, lock, placed = data_dir / STAGING, data_dir / "service.json", list[Path]()
    with ServiceLock(data_dir, ""):  # no service can start on it
        try:
            lock.chmod(0o600)
            staging.mkdir(mode=0o700)
            yield staging
            _place(staging, data_dir, placed)
        except BaseException:  # an interrupt too
            for path in (staging, *placed, lock):
                _remove(path)
            if made:
                with suppress(OSError):  # another process created a file in it
                    data_dir.rmdir()
            raise


def _place(staging: Path, data_dir: Path, placed: list[Path]) -> None:
    """Sync the disk and move every entry to its place, the catalog last."""
    os.sync()
    for path in sorted(staging.iterdir(), key=lambda entry: entry.name == CATALOG):
        target = data_dir / path.name
        if target.exists():
            raise Conflict(
                f"another process created {target}",
                hint="Restore into a folder that nothing else uses.",
            )
        path.rename(target)
        placed.append(target)
    staging.rmdir()


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _unpack(tar: tarfile.TarFile, staging: Path, blob_url: str | None) -> None:
    """Unpack a backup that `read_archive` has checked."""
    # Python before 3.11.4 may lack this filter; the names were checked anyway.
    tar.extraction_filter = getattr(tarfile, "data_filter", lambda member, path: member)
    blobs = Blobs(blob_url) if blob_url else None
    for member in tar.getmembers():
        if member.name in (MANIFEST, SUMS):
            continue
        if blobs is not None and blob_key(member.name):
            content = tar.extractfile(member)
            assert content is not None  # a regular file
            blobs.put(content.read())
        else:
            tar.extract(member, staging, set_attrs=False)


def _migrate(staging: Path, before: str, now: Path) -> tuple[str, int]:
    """Migrate the catalog to this version's schema and its new folder. Returns the schema and the
    number of running jobs that were queued again."""
    catalog = open_catalog(staging)
    try:
        requeued = _requeue_running(catalog)
        _move_problem_paths(catalog, before, now)
        with catalog.write() as connection:
            meta.remove(connection, meta.STORE_ID)
        with catalog.read() as connection:
            schema = connection.scalar(sa.text("SELECT version_num FROM alembic_version"))
    finally:
        catalog.close()
    return str(schema), requeued


def _requeue_running(catalog: Catalog) -> int:
    """Queue the jobs of the workers of the backed-up store, which this store does not have."""
    with catalog.read() as connection:
        running = sa.select(work.c.lease_owner).where(work.c.state == "running").distinct()
        owners = connection.scalars(running).all()
    return sum(Jobs(catalog).give_back(owner) for owner in owners if owner)


def _move_problem_paths(catalog: Catalog, before: str, now: Path) -> None:
    """Update the paths of problems in the data directory in the settings of runs."""
    with catalog.write() as connection:
        for run_id, settings in connection.execute(sa.select(runs.c.id, runs.c.settings)).all():
            problem = Path(str(settings.get("problem", "")))
            if problem.is_relative_to(before):
                moved = str(now / problem.relative_to(before))
                change = runs.update().where(runs.c.id == run_id)
                connection.execute(change.values(settings={**settings, "problem": moved}))


def _make_private(folder: Path) -> None:
    """Deny access to other users: documents may be confidential."""
    for path in folder.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
