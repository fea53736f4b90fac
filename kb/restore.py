"""Makes a data directory from a backup: all of it, or nothing.

Everything is unpacked, brought forward and checked in a folder beside its places, then moved there,
the catalog last. A directory without a catalog is no store, so one that was cut off is not taken
for a whole one.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
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
    broken_archive,
    changed_settings,
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
_SPARE = 64 * MIB  # for migrations, beside twice the size of the catalog


@dataclass(frozen=True)
class Restored:
    """A restored data directory. `schema` is that of the catalog now; `requeued` is the number of
    jobs that were under way and are queued again; `settings` are those, with their values then,
    that are others now.
    """

    data_dir: Path
    contents: BackupContents
    schema: str
    requeued: int
    settings: Mapping[str, str]


def restore_backup(file: Path, settings: Settings, progress: Progress = lambda _: None) -> Restored:
    """Make a new or empty data directory, that of the settings, from a backup; blobs go to the
    store of the settings.

    Raises Conflict for a directory that is not empty; and before anything is written NotFound,
    StoreError for a damaged file or one of a newer version, and Unavailable where the disk is too
    small.
    """
    check_embedded(settings)
    data_dir = settings.data_dir.absolute()
    _check_empty(data_dir)
    with open_archive(file) as tar:
        contents = read_archive(file, tar)
        check_revision(f"the catalog in {file}", contents.manifest.schema)
        progress(f"checked {contents.files:,} files, {contents.bytes / MIB:,.1f} MiB")
        _check_space(data_dir, contents.bytes, tar.getmember(CATALOG).size)
        with _filled(data_dir) as staging:
            _unpack(tar, staging, settings.blob_url)
            progress("unpacked them")
            _check_catalog(file, staging / CATALOG, contents.manifest.schema)
            schema, requeued = _brought_forward(staging, contents.manifest.data_dir, data_dir)
            _close_to_others(staging)
    unlike = _other_settings(contents.manifest.settings, changed_settings(settings))
    return Restored(data_dir, contents, schema, requeued, unlike)


def _other_settings(then: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    names = sorted(then.keys() | now.keys())
    return {name: then.get(name, "") for name in names if then.get(name) != now.get(name)}


def _check_empty(data_dir: Path) -> None:
    if not data_dir.exists():
        return
    if not data_dir.is_dir():
        raise Conflict(f"{data_dir} is no folder", hint="Give a new or empty --data-dir.")
    names = sorted(path.name for path in data_dir.iterdir())
    if STAGING in names and CATALOG not in names:
        raise Conflict(
            f"a restore into {data_dir} is going on, or was cut off",
            hint="If none is going on, remove the folder and restore again.",
        )
    if names:
        what = "holds a store" if CATALOG in names else f"is not empty ({', '.join(names[:3])})"
        raise Conflict(
            f"{data_dir} {what}; a backup is restored into a new or empty folder",
            hint="Give another --data-dir. To put it in the place of this one, stop the service and"
            " rename this one first.",
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
def _filled(data_dir: Path) -> Iterator[Path]:
    """A folder whose entries become those of the directory when the block is done. Where anything
    fails, nothing of it is left.
    """
    made = not data_dir.exists()
    data_dir.mkdir(parents=True, exist_ok=True)
    with suppress(PermissionError):  # somebody else's folder, as of a mounted volume
        data_dir.chmod(0o700)
    staging, lock, placed = data_dir / STAGING, data_dir / "service.json", list[Path]()
    with ServiceLock(data_dir, ""):  # no service may begin on it
        try:
            lock.chmod(0o600)
            staging.mkdir(mode=0o700)
            yield staging
            _place(staging, data_dir, placed)
        except BaseException:  # also an interrupt leaves nothing half restored
            for path in (staging, *placed, lock):
                _remove(path)
            if made:
                with suppress(OSError):  # somebody put a file there meanwhile
                    data_dir.rmdir()
            raise


def _place(staging: Path, data_dir: Path, placed: list[Path]) -> None:
    """Move every entry to its place, the catalog last, when everything is on the disk."""
    os.sync()
    for path in sorted(staging.iterdir(), key=lambda entry: entry.name == CATALOG):
        target = data_dir / path.name
        if target.exists():
            raise Conflict(
                f"{target} was made meanwhile", hint="Restore into a folder that nothing else uses."
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
    """Unpack files that `archive.read_all` has checked."""
    # Python before 3.11.4 may lack it; no name leads out then either: they were all checked.
    tar.extraction_filter = getattr(tarfile, "data_filter", lambda member, path: member)
    blobs = Blobs(blob_url) if blob_url else None
    for member in tar.getmembers():
        if member.name in (MANIFEST, SUMS):
            continue
        if blobs is not None and blob_key(member.name):
            content = tar.extractfile(member)
            assert content is not None  # it is a plain file
            blobs.put(content.read())
        else:
            tar.extract(member, staging, set_attrs=False)


def _check_catalog(file: Path, catalog: Path, schema: str) -> None:
    """SQLite takes a file of a few bytes for an empty database, which opening would fill."""
    try:
        with closing(sqlite3.connect(catalog)) as connection:
            row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    except sqlite3.DatabaseError as error:
        raise broken_archive(file, f"its catalog cannot be opened: {error}") from error
    if row != (schema,):
        raise broken_archive(file, "its catalog is not of the schema that its manifest says")


def _brought_forward(staging: Path, before: str, now: Path) -> tuple[str, int]:
    """Bring the catalog to this version's schema and to its new place: the schema, and how many
    jobs are queued again that were under way.
    """
    catalog = open_catalog(staging)
    try:
        requeued = _queue_again(catalog)
        _follow_problems(catalog, before, now)
        with catalog.write() as connection:
            meta.remove(connection, meta.STORE_ID)
        with catalog.read() as connection:
            schema = connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()
    finally:
        catalog.close()
    return str(schema), requeued


def _queue_again(catalog: Catalog) -> int:
    """Queue the jobs whose workers are elsewhere: they would fail when their leases ran out."""
    with catalog.read() as connection:
        running = sa.select(work.c.lease_owner).where(work.c.state == "running").distinct()
        owners = connection.execute(running).scalars().all()
    return sum(Jobs(catalog).give_back(owner) for owner in owners if owner)


def _follow_problems(catalog: Catalog, before: str, now: Path) -> None:
    """Runs whose problem lies in the data directory find it in the new one."""
    with catalog.write() as connection:
        for run_id, settings in connection.execute(sa.select(runs.c.id, runs.c.settings)).all():
            problem = Path(str(settings.get("problem", "")))
            if problem.is_relative_to(before):
                moved = str(now / problem.relative_to(before))
                change = runs.update().where(runs.c.id == run_id)
                connection.execute(change.values(settings={**settings, "problem": moved}))


def _close_to_others(folder: Path) -> None:
    """Nobody else may read it: manuals of unreleased chips are in it."""
    for path in folder.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
