"""Data directories whose catalog needs no migration, because they are copies of a migrated one; and
the environment with which another process finds their stores.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from functools import cache
from pathlib import Path

from sqlalchemy import Connection

from api.cli.target import CommandTarget, read_settings
from kb.catalog import Catalog, open_catalog
from kb.catalog.knowledge import embeddings
from kb.catalog.knowledge.embeddings import Vector
from kb.catalog.meta import bump_vectors
from tests import postgresql, store_servers


def environment_of(data_dir: Path) -> dict[str, str]:
    """The environment with which another process uses a data directory's catalog, files and
    index.
    """
    return postgresql.environment_of(data_dir) | store_servers.environment_of(data_dir)


@cache
def _template() -> tempfile.TemporaryDirectory[str]:
    """An empty catalog at the newest revision, made once per process and removed at its end."""
    folder = tempfile.TemporaryDirectory(prefix="kernlore-catalog-")
    open_catalog(Path(folder.name)).close()
    return folder


def fresh_data_dir(folder: Path) -> Path:
    """`folder`, created if needed, with an empty catalog at the newest revision. Migrations take
    0.3 s, a copy 1 ms. An existing catalog stays. Its permissions are those of a start; a folder
    created here is open to others.
    """
    folder.mkdir(parents=True, exist_ok=True)
    catalog = folder / "catalog.sqlite"
    if not postgresql.EVERYWHERE and not catalog.exists():
        shutil.copy(Path(_template().name) / "catalog.sqlite", catalog)
    return folder


@cache
def _filled(fill: Callable[[Catalog], None]) -> tempfile.TemporaryDirectory[str]:
    folder = tempfile.TemporaryDirectory(prefix="kernlore-filled-")
    with closing(open_catalog(fresh_data_dir(Path(folder.name)))) as catalog:
        fill(catalog)
    return folder


def filled_data_dir(folder: Path, fill: Callable[[Catalog], None]) -> Path:
    """`folder`, created if needed, with a catalog as `fill` made it once in this process. An
    existing one stays; on a server it is empty. Registering eight chips takes 30 ms, a copy 1 ms;
    hundreds of tests need it.
    """
    if not postgresql.EVERYWHERE and not (folder / "catalog.sqlite").exists():
        copy_data_dir(Path(_filled(fill).name), folder)
    return fresh_data_dir(folder)


@cache
def _builtin() -> tempfile.TemporaryDirectory[str]:
    """An empty data directory after its first command, made once per process."""
    folder = tempfile.TemporaryDirectory(prefix="kernlore-builtin-")
    local = CommandTarget(read_settings(fresh_data_dir(Path(folder.name))))
    assert local.services.registry.all()
    local.close()
    with suppress(FileNotFoundError):  # empty; files on a server have none next to the catalog
        (Path(folder.name) / "blobs").rmdir()
    return folder


def builtin_data_dir(folder: Path) -> Path:
    """`folder`, created if needed, with the built-in hardware and skills, without documents.
    Reading these takes 0.7 s, a copy some milliseconds.
    """
    return copy_data_dir(Path(_builtin().name), folder)


def copy_data_dir(source: Path, target: Path) -> Path:
    """A copy of a data directory without writers, with its catalog; returns `target`. The link to
    the exported query model, which has 90 MB, stays a link.
    """
    shutil.copytree(source, target, dirs_exist_ok=True, symlinks=True)
    if postgresql.EVERYWHERE:
        postgresql.server().copy_directory(source, target)
    store_servers.copy_directory(source, target)
    return target


def all_missing(connection: Connection, model: str) -> list[embeddings.MissingText]:
    """Every text of an active passage without a vector of this model."""
    limits = dict.fromkeys(embeddings.pending(connection, model), 10_000)
    return embeddings.missing(connection, model, limits)


def put_vectors(connection: Connection, model: str, vectors: Mapping[str, Vector]) -> None:
    """Store vectors by the SHA-256 of their text, as a worker does."""
    embeddings.put(connection, model, vectors)
    bump_vectors(connection, embeddings.documents_of(connection, list(vectors)))
