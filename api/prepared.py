"""A prepared store: the built-in knowledge of this version as a data directory, from which new data
directories are copied instead of read and built.

`prepare` makes it in a folder of the installation, under a name that changes with the code and the
built-in files. A copy has its own store id. It is complete or absent: a start that finds parts of
an interrupted copy removes them. If the copy fails, the service reads and builds.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog

from ingestion.builtin import files_key
from kb.catalog import meta, open_catalog
from kb.catalog.database import NAME
from kb.data_dir import private_files, private_folder, sync
from kb.errors import Unavailable
from kb.settings import Settings
from retrieval.snapshot.store import FOLDER, MANIFEST

PARTS = ("blobs", "models", "snapshot", NAME)  # in the order in which a copy gets them
COPY = ".prepared"  # folder of a data directory: a copy that is not complete
log = structlog.get_logger(__name__)


def prepared_store(settings: Settings) -> Path:
    """The folder of the prepared store of this version, which may not exist."""
    folder = settings.prepared_dir or Path(sys.prefix) / "share" / "kernlore"
    return folder / f"store-{files_key(settings)[:16]}"


def prepare(settings: Settings) -> Path:
    """Make the prepared store of this version, unless it exists, and remove those of others.
    Returns its folder. Raises Unavailable if the built-in knowledge cannot be read completely,
    OSError if the folder cannot be written."""
    target = prepared_store(settings)
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".", dir=target.parent) as scratch:
        made = Path(scratch) / "store"
        embedded = {"data_dir": made, "catalog": None, "blob_url": None}
        _build(settings.model_copy(update=embedded))
        for path in made.iterdir():
            if path.name not in PARTS:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        for path in (made, *made.rglob("*")):  # every user of the installation may copy it
            path.chmod(0o755 if path.is_dir() else 0o644)
            sync(path)  # a crash of the machine must not leave half a store
        try:
            made.rename(target)
        except OSError:
            if not target.is_dir():  # made by another process meanwhile
                raise
    for other in target.parent.glob("store-*"):
        if other != target:
            shutil.rmtree(other, ignore_errors=True)
    return target


def _build(settings: Settings) -> None:
    from api.services import open_services
    from ingestion.builtin import load_hardware

    services = open_services(settings)
    try:
        services.embedder.prepare()
        services.load_builtin(load_hardware(settings.knowledge_dir, services.registry))
        with services.local_reader() as reader:
            services.worker(reader).drain()
        embedded, passages = services.vectors()
        if services.documents.unread("builtin") or embedded < passages:
            raise Unavailable(
                "the built-in knowledge was not read completely",
                hint="`kernlore ingest --builtin` says which documents were not, and why.",
            )
        services.retriever.warm(settings.models_dir, settings.knowledge_dir)
        services.embedder.wait()
        services.snapshots.publish()
        services.catalog.empty_log()
    finally:
        services.close()


def copy_prepared(settings: Settings) -> bool:
    """Make a new data directory a copy of the prepared store; returns whether that happened."""
    folder = settings.data_dir
    if settings.catalog is not None or settings.blob_url is not None or (folder / NAME).exists():
        return False
    source = prepared_store(settings)
    if not source.is_dir():
        log.info(
            "the built-in knowledge is read, because no store of this version is prepared",
            prepared_dir=str(source.parent),
        )
        return False
    try:
        with _locked(folder):
            part = folder / COPY
            if (part / NAME).exists():  # an earlier copy was interrupted
                _discard(folder)
            if any((folder / name).exists() for name in PARTS):
                return False  # another process was faster, or the store has lost its catalog
            try:
                _copy(source, part)
                _give_own_id(part)
                for name in PARTS:
                    (part / name).rename(folder / name)
            except OSError:
                _discard(folder)
                raise
            shutil.rmtree(part)
    except OSError as error:
        log.warning("the built-in knowledge is read: no store can be copied", reason=str(error))
        return False
    log.info("the data directory is a copy of the prepared store", source=str(source))
    return True


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Held by one process at a time."""
    locks = private_folder(folder / "locks")
    descriptor = os.open(locks / "prepared", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _discard(folder: Path) -> None:
    """Remove an incomplete copy; the part that marks it as such last."""
    for name in PARTS[:-1]:
        shutil.rmtree(folder / name, ignore_errors=True)
    shutil.rmtree(folder / COPY, ignore_errors=True)


def _copy(source: Path, target: Path) -> None:
    """Copy the parts in their order, for this user alone."""
    with private_files():
        for name in PARTS:
            for path in (source / name, *sorted((source / name).rglob("*"))):
                copied = target / path.relative_to(source)
                if path.is_dir():
                    private_folder(copied)
                else:
                    shutil.copyfile(path, copied)


def _give_own_id(folder: Path) -> None:
    """Replace the store id, which names the collections of a store on a Chroma server."""
    catalog = open_catalog(folder)
    try:
        with catalog.write() as connection:
            meta.remove(connection, meta.STORE_ID)
        path = folder / FOLDER / MANIFEST
        manifest = json.loads(path.read_text()) | {"store": catalog.store_id()}
        path.write_text(json.dumps(manifest))
    finally:
        catalog.close()
