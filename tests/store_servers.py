"""Every file store and every vector index of the tests on servers (`make test-stores`), each
selected separately: KERNLORE_TEST_BLOBS=s3 and KERNLORE_TEST_CHROMA=server.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests import chroma_server, seaweed

EVERYWHERE = chroma_server.EVERYWHERE or seaweed.EVERYWHERE


def environment_of(data_dir: Path) -> dict[str, str]:
    """The environment with which another process uses the same stores for a data directory. A store
    named in the test's environment takes precedence; its server may be stopped.
    """
    environment: dict[str, str] = {}
    if seaweed.EVERYWHERE and "KERNLORE_BLOB_URL" not in os.environ:
        environment["KERNLORE_BLOB_URL"] = seaweed.server().of_directory(data_dir)
    if chroma_server.EVERYWHERE and "KERNLORE_CHROMA_URL" not in os.environ:
        environment["KERNLORE_CHROMA_URL"] = chroma_server.server().of_directory(data_dir)
    return environment


def copy_directory(source: Path, target: Path) -> None:
    """Give a data directory the files of another. The index is rebuilt."""
    if seaweed.EVERYWHERE:
        seaweed.server().copy_directory(source, target)


def lose_files(data_dir: Path) -> None:
    """Remove the stored files of a data directory without Kernlore."""
    if seaweed.EVERYWHERE:
        server = seaweed.server()
        server.files().rm(server.of_directory(data_dir), recursive=True)
    else:
        shutil.rmtree(data_dir / "blobs")


def lose_index(data_dir: Path) -> None:
    """Remove the vector index of a data directory without Kernlore."""
    if chroma_server.EVERYWHERE:
        server = chroma_server.server()
        server.empty(server.of_directory(data_dir))
    else:
        shutil.rmtree(data_dir / "chroma")


def size_of_index(data_dir: Path) -> int:
    """Bytes of the vector index of a data directory. A server has one file for all indexes, so
    there the number of entries is returned.
    """
    if chroma_server.EVERYWHERE:
        server = chroma_server.server()
        return server.entries(server.of_directory(data_dir))
    files = (data_dir / "chroma").rglob("*")
    return sum(path.stat().st_size for path in files if path.is_file())


def use_everywhere() -> None:
    """Put every store that this process or a child opens on a server from now on."""
    from kb import blobs, workers
    from kb.index import chroma

    if seaweed.EVERYWHERE:
        os.environ.update(seaweed.server().environment())
        blobs.default_folder = seaweed.server().of_directory
    if chroma_server.EVERYWHERE:
        index_class: Any = chroma.ChromaIndex
        chosen = index_class.__init__

        def opened(
            index: Any, catalog: Any, model: str, directory: Path, url: str | None = None
        ) -> None:
            url = url or chroma_server.server().of_directory(directory.parent)
            chosen(index, catalog, model, directory, url)

        index_class.__init__ = opened
    given: Callable[..., Any] = workers.environment

    def environment(settings: Any) -> dict[str, str]:
        return {**given(settings), **environment_of(settings.data_dir)}

    workers.environment = environment


def stop() -> None:
    """At the end of the process."""
    chroma_server.stop()
    seaweed.stop()
