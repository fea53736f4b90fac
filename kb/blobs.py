"""Content-addressed files: originals, artifacts, profiles. The key is the SHA-256 of the bytes.

Goes through fsspec, so a bucket can take the folder's place. Nothing is ever overwritten: equal
keys are equal bytes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import fsspec

from kb.errors import NotFound
from kb.ids import new_id, sha256
from kb.private import private_folder

KEY = re.compile(r"[0-9a-f]{64}")


class Blobs:
    """put, get, sizes, delete. Writes land under a temporary name: a crash leaves no half blob."""

    def __init__(self, url: str) -> None:
        self._fs: Any
        self._fs, self._root = fsspec.core.url_to_fs(url)

    def _path(self, key: str) -> str:
        return f"{self._root}/{key[:2]}/{key}"

    def put(self, data: bytes) -> str:
        """Store the bytes; storing them again is free. Returns the key."""
        key = sha256(data)
        path = self._path(key)
        if not self._fs.exists(path):
            self._fs.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
            partial = f"{path}.{new_id('part')}"
            try:
                self._fs.pipe_file(partial, data)
                self._fs.mv(partial, path)
            except OSError:  # no space: what was written takes none either
                if self._fs.exists(partial):
                    self._fs.rm(partial)
                raise
        return key

    def get(self, key: str) -> bytes:
        """The bytes stored under the key. Raises NotFound."""
        try:
            return bytes(self._fs.cat_file(self._path(key)))
        except FileNotFoundError as error:
            raise NotFound(
                f"no stored file {key[:12]}",
                hint="The data directory is incomplete; restore it from a backup.",
            ) from error

    def sizes(self) -> dict[str, int]:
        """The bytes of every stored blob, by its key."""
        stored = self._fs.find(self._root, detail=True) if self._fs.exists(self._root) else {}
        named = ((path.rsplit("/", 1)[-1], entry) for path, entry in stored.items())
        return {key: int(entry["size"]) for key, entry in named if KEY.fullmatch(key)}

    def delete(self, key: str) -> None:
        """Remove the blob; an unknown key is no error."""
        if self._fs.exists(self._path(key)):
            self._fs.rm(self._path(key))


def open_blobs(data_dir: Path, url: str | None) -> Blobs:
    """The configured blob store, by default a folder in the data directory."""
    return Blobs(url or str(private_folder((data_dir / "blobs").absolute())))
