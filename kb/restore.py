"""Restores a backup into a new data directory, completely or not at all.

The files are unpacked, migrated and checked in a folder inside the data directory, then moved to
their places, the catalog last. A directory without a catalog is not a store, so an interrupted
restore is never mistaken for a complete one.
"""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from kb.backup import (
    CATALOG,
    MANIFEST,
    SUMS,
    BackupContents,
    Progress,
    blob_key,
    changed_settings,
    check_catalog,
    check_embedded,
    open_archive,
    read_archive,
)
from kb.blobs import Blobs
from kb.catalog import meta
from kb.catalog.engine import Catalog, open_catalog
from kb.catalog.jobs import Jobs
from kb.catalog.schema import check_revision
from kb.catalog.tables import runs, work
from kb.data_dir import ServiceLock
from kb.errors import Conflict, Unavailable
from kb.settings import MIB, Settings

STAGING = ".restoring"
_SPARE = 64 * MIB  # for migrations, in addition to twice the size of the catalog


@dataclass(frozen=True)
class Restored:
    """A restored data directory. `schema` is the present migration of the catalog, `requeued` the
    number of jobs that were running and are queued again, `settings` the former values of settings
    that differ now ("" for one that was at its default).
    """

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
        _check_space(data_dir, contents.bytes, tar.getmember(CATALOG).size)
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


def _check_space(data_dir: Path, size: int, catalog: int) -> None:
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
    everything that was created.
    """
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
    number of running jobs that were queued again.
    """
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
