"""Content-addressed files: originals, artifacts, profiles. The key is the SHA-256 of the bytes.

Goes through fsspec, so a bucket can take the folder's place. Nothing is ever overwritten: equal
keys are equal bytes, and what is read is held against its key. A store on a server that does not
answer raises StoreAway."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec

from kb.addresses import without_password
from kb.data_dir import private_folder
from kb.errors import InvalidRequest, KernloreError, NotFound, StoreAway, StoreError, Unavailable
from kb.ids import new_id, sha256

KEY = re.compile(r"[0-9a-f]{64}")
# A write of theirs is seen whole or not at all.
_OBJECT_STORES = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss"})
_S3 = frozenset({"s3", "s3a"})
# Seconds. A server that says nothing is given up after twice the second: a request waits for it,
# and at times the writer of the catalog.
CONNECT_SECONDS, ANSWER_SECONDS, ATTEMPTS = 3, 10, 2
MOST_REASON = 200  # characters
ONE_PUT = (5 << 30) - 1  # bytes; more would be sent in parts, which a crash leaves behind
_EXTRAS = {"s3fs": "s3"}
_REFUSED = frozenset({"NoCredentialsError", "PartialCredentialsError", "TokenRetrievalError"})
_LOST = "Upload the document again, or restore the file from a backup."
_DAMAGED = "Restore the file from a backup; or delete the document and upload it again."


class Blobs:
    """put, get, sizes, delete. A crash leaves no half blob."""

    def __init__(self, url: str) -> None:
        """Opens nothing yet. Raises InvalidRequest for a URL that names no store, Unavailable where
        the package for it is not installed.
        """
        self.name = without_password(url)
        protocol = fsspec.core.split_protocol(url)[0] or "file"
        if "@" in url and protocol in _S3:
            raise InvalidRequest(
                f"the URL of the store of files holds credentials: {self.name}",
                hint="Give KERNLORE_BLOB_URL as s3://BUCKET/PREFIX and the credentials in"
                " AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or in ~/.aws.",
            )
        self.near = protocol in ("file", "local", "memory")  # asking it costs nothing
        self._whole = protocol in _OBJECT_STORES
        self._fs: Any
        self._fs, self._root = _opened(url, self.name, protocol)

    def _path(self, key: str) -> str:
        return f"{self._root}/{key[:2]}/{key}"

    def put(self, data: bytes) -> str:
        """Store the bytes; storing them again is free. Returns the key."""
        key = sha256(data)
        path = self._path(key)
        with self._answering():
            if self._size(path) != len(data):
                self._write(path, data)
        return key

    def _size(self, path: str) -> int | None:
        """Bytes of a stored file, None where there is none."""
        try:
            return int(self._fs.info(path)["size"])
        except FileNotFoundError:
            return None

    def _write(self, path: str, data: bytes) -> None:
        if self._whole:
            options = {"chunksize": ONE_PUT} if self._fs.protocol[0] in _S3 else {}
            try:
                self._fs.pipe_file(path, data, **options)
            except FileNotFoundError as error:
                raise self._fault(error) from error
            return
        self._fs.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
        partial = f"{path}.{new_id('part')}"
        try:
            self._fs.pipe_file(partial, data)
            self._fs.mv(partial, path)
        except OSError:  # no space: what was written takes none either
            if self._fs.exists(partial):
                self._fs.rm(partial)
            raise

    def get(self, key: str) -> bytes:
        """The bytes stored under the key. Raises NotFound, and StoreError where they are not what
        was stored.
        """
        data = self.get_unchecked(key)
        if sha256(data) != key:
            raise StoreError(
                f"the stored file {key[:12]} is damaged: it has {len(data):,} bytes that are not"
                " those of its key",
                hint=_DAMAGED,
            )
        return data

    def get_unchecked(self, key: str) -> bytes:
        """The bytes under the key, damaged or not. Raises NotFound."""
        try:
            with self._answering():
                return bytes(self._fs.cat_file(self._path(key)))
        except FileNotFoundError as error:
            self.check()
            hint = "The data directory is incomplete; restore it from a backup."
            raise NotFound(
                f"no stored file {key[:12]}",
                hint=hint if self.near else f"{self.name} has lost it. {_LOST}",
            ) from error

    def sizes(self) -> dict[str, int]:
        """The bytes of every stored blob, by its key."""
        self.check()
        with self._answering():
            stored = self._fs.find(self._root, detail=True) if self._fs.exists(self._root) else {}
        named = ((path.rsplit("/", 1)[-1], entry) for path, entry in stored.items())
        return {key: int(entry["size"]) for key, entry in named if KEY.fullmatch(key)}

    def delete(self, key: str) -> None:
        """Remove the blob; an unknown key is no error."""
        with self._answering():
            if self._fs.exists(self._path(key)):
                self._fs.rm_file(self._path(key))
                return
        self.check()  # where the bucket is not there either, nothing was removed

    def check(self) -> None:
        """Raise StoreAway where a store on a server cannot be read. A folder is always there: it is
        made when it is needed.
        """
        if self.near:
            return
        try:
            with self._answering():
                self._fs.ls(self._root, detail=False)
        except FileNotFoundError as error:  # with an answer of the server's: not just empty
            if error.__cause__ is not None:
                raise self._fault(error) from error

    @contextmanager
    def _answering(self) -> Iterator[None]:
        """Turns what a store on a server raises into StoreAway. That a file is not there is an
        answer.
        """
        try:
            yield
        except (FileNotFoundError, KernloreError):
            raise
        except Exception as error:  # each file system raises what its own libraries do
            if self.near:
                raise
            raise self._fault(error) from error

    def _fault(self, error: Exception) -> StoreAway:
        code = _code(error)
        if isinstance(error, FileNotFoundError):
            return StoreAway(
                f"the store of files {self.name} is not there ({code or 'no such bucket'})",
                hint="Make the bucket, or correct KERNLORE_BLOB_URL. What waits goes on then.",
            )
        if isinstance(error, PermissionError) or type(error).__name__ in _REFUSED:
            return StoreAway(
                f"the store of files {self.name} refuses the credentials"
                f" ({code or type(error).__name__})",
                hint="Check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and that they may list,"
                " read, write and delete in the bucket. What waits goes on then.",
            )
        reason = code or f"{type(error).__name__}: {error}".partition("\n")[0][:MOST_REASON]
        return StoreAway(
            f"the store of files {self.name} does not answer ({without_password(reason)})",
            hint="Start it, or check KERNLORE_BLOB_URL and AWS_ENDPOINT_URL. What waits for it goes"
            " on by itself when it answers; repeat the request then.",
        )


def _opened(url: str, name: str, protocol: str) -> tuple[Any, str]:
    """The file system of a URL and the path in it."""
    options: dict[str, Any] = {}
    if protocol in _S3:
        options = {
            "skip_instance_cache": True,
            # Other processes write too: what was listed before says nothing about now.
            "use_listings_cache": False,
            "config_kwargs": {
                "connect_timeout": CONNECT_SECONDS,
                "read_timeout": ANSWER_SECONDS,
                "retries": {"mode": "standard", "total_max_attempts": ATTEMPTS},
            },
        }
    try:
        fs, root = fsspec.core.url_to_fs(url, **options)
    except ImportError as error:
        missing = (error.name or str(error)).partition(".")[0]
        extra = _EXTRAS.get("s3fs" if protocol in _S3 else missing)
        install = f"'kernlore[{extra}]'" if extra else missing
        raise Unavailable(
            f"the store of files {name} needs a package that is not installed",
            hint=f"Install it: pip install {install}.",
        ) from error
    except ValueError as error:
        raise InvalidRequest(
            f"the URL of the store of files names none: {name}",
            hint="Give KERNLORE_BLOB_URL as s3://BUCKET/PREFIX, or file:///FOLDER.",
        ) from error
    if protocol in _S3:
        fs.retries = 1  # beside those of the configuration, which it would multiply
    return fs, root


def _code(error: BaseException) -> str:
    """The code of a server's answer, where there was one."""
    response = getattr(error, "response", None) or getattr(error.__cause__, "response", None)
    try:
        return str(response["Error"]["Code"]) if response else ""
    except (KeyError, TypeError):
        return ""


def open_blobs(data_dir: Path, url: str | None) -> Blobs:
    """The configured blob store, by default a folder in the data directory."""
    return Blobs(url or _folder_of(data_dir))


def _folder_of(data_dir: Path) -> str:
    return str(private_folder((data_dir / "blobs").absolute()))
