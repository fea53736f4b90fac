"""Writes a backup of a data directory while a service serves and reads uploads on it.

The catalog is copied first, then what its rows refer to: a blob lies there before the row that
names it, and goes only after the row has gone. So a blob that is missing was deleted meanwhile with
its document, and the copy begins anew; or it had been lost before, which the backup says.

What can be made again is left out: Chroma's folder comes from the vectors in the catalog, the
exported models from their package.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kb import audit, clock, reserve
from kb.addresses import without_password
from kb.backup import archive
from kb.backup.archive import BLOBS, CATALOG, FOLDERS, MANIFEST, SUMS, Manifest
from kb.backup.snapshot import Snapshot, take_snapshot
from kb.blobs import Blobs, open_blobs
from kb.errors import Conflict, InvalidRequest, NotFound, Unavailable
from kb.ids import sha256
from kb.settings import MIB, Settings, product_version

ATTEMPTS = 5
# Of a data directory, and in no backup: derived, or of the processes that run on it.
DERIVED = (
    "chroma",
    "models",
    "locks",
    audit.NAME,
    reserve.NAME,
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
    contents: archive.Contents
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


def _written(settings: Settings, source: Path, part: Path, progress: Progress) -> archive.Contents:
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
) -> archive.Contents:
    manifest = _manifest(settings, snapshot, missing)
    damaged = set(missing)
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        with _tar(part.name, stream) as tar:
            writer = _Writer(tar)
            writer.add(MANIFEST, archive.manifest_text(manifest))
            writer.add_file(CATALOG, copy)
            for key in sorted(sizes):
                try:
                    data = blobs.get_unchecked(key)
                except NotFound as error:
                    if key in snapshot.blob_keys:
                        raise _Gone from error
                    continue
                if writer.add(archive.blob_name(key), data) != key:
                    damaged.add(key)
            for name, path in _files(settings.data_dir):
                writer.add_if_there(name, path)
            files, size = len(writer.sums) - 1, writer.size
            writer.add(SUMS, archive.sums_text(writer.sums))
        stream.flush()
        os.fsync(stream.fileno())
    return archive.Contents(manifest, files, size, tuple(sorted(damaged)))


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
            if plain and archive.allowed(name):
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
