"""Content-addressed files (originals, artifacts, profiles) in a folder or a bucket, through fsspec.

The key of a blob is the SHA-256 of its bytes, which is checked when it is read; nothing is ever
overwritten. A server that does not respond raises StoreAway.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from kb.addresses import without_password
from kb.data_dir import private_folder
from kb.errors import InvalidRequest, KernloreError, NotFound, StoreAway, StoreError, Unavailable
from kb.ids import new_id, sha256

KEY = re.compile(r"[0-9a-f]{64}")
# Their writes are atomic.
_OBJECT_STORES = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss"})
_S3 = frozenset({"s3", "s3a"})
# Timeouts and attempts of S3 requests: callers wait for them, sometimes within a transaction.
_CONNECT_SECONDS, READ_SECONDS, _ATTEMPTS = 3, 10, 2
_MAX_REASON = 200  # characters
_MAX_SINGLE_PUT = (
    5 << 30
) - 1  # bytes; a larger file is sent in parts, which a crash leaves behind
_EXTRAS = {"s3fs": "s3"}
_CREDENTIAL_ERRORS = frozenset(
    {"NoCredentialsError", "PartialCredentialsError", "TokenRetrievalError"}
)
_LOST = "Upload the document again, or restore the file from a backup."
_DAMAGED = "Restore the file from a backup; or delete the document and upload it again."


class Blobs:
    """A store of blobs. A crash leaves no incomplete blob."""

    def __init__(self, url: str) -> None:
        """Does not connect. Raises InvalidRequest for a URL that does not name a store, Unavailable
        if its package is not installed."""
        self.name = without_password(url)
        protocol = url.partition("://")[0] if "://" in url else "file"
        if "@" in url and protocol in _S3:
            raise InvalidRequest(
                f"the URL of the blob store contains credentials: {self.name}",
                hint="Give KERNLORE_BLOB_URL as s3://BUCKET/PREFIX and the credentials in"
                " AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or in ~/.aws.",
            )
        self.is_local = protocol in ("file", "local", "memory")  # fast to query, always available
        self._atomic = protocol in _OBJECT_STORES
        self._url, self._protocol = url, protocol
        if not self.is_local:
            self._opened  # noqa: B018  raises

    @cached_property
    def _opened(self) -> tuple[Any, str]:
        return _open_file_system(self._url, self.name, self._protocol)

    @property
    def _fs(self) -> Any:
        return self._opened[0]

    @property
    def _root(self) -> str:
        return self._opened[1]

    def _path(self, key: str) -> str:
        """The place of a blob. Raises NotFound for a key that is no hash: it may be a path."""
        if not KEY.fullmatch(key):
            raise NotFound(
                f"no stored file {key[:12]!r}: it is no hash",
                hint="The catalog was changed from outside; restore it from a backup.",
            )
        return f"{self._root}/{key[:2]}/{key}"

    def put(self, data: bytes) -> str:
        """Store bytes unless they are stored already. Returns the key."""
        key = sha256(data)
        path = self._path(key)
        with self._server_errors():
            if self._size(path) != len(data):
                self._write(path, data)
        return key

    def _size(self, path: str) -> int | None:
        """Bytes of a stored file, None without one."""
        try:
            return int(self._fs.info(path)["size"])
        except FileNotFoundError:
            return None

    def _write(self, path: str, data: bytes) -> None:
        if self._atomic:
            options = {"chunksize": _MAX_SINGLE_PUT} if self._fs.protocol[0] in _S3 else {}
            try:
                self._fs.pipe_file(path, data, **options)
            except FileNotFoundError as error:
                raise self._store_away(error) from error
            return
        self._fs.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
        partial = f"{path}.{new_id('part')}"
        try:
            self._fs.pipe_file(partial, data)
            self._fs.mv(partial, path)
        except OSError:  # no space: remove the incomplete file
            if self._fs.exists(partial):
                self._fs.rm(partial)
            raise

    def get(self, key: str) -> bytes:
        """The bytes of a key. Raises NotFound, and StoreError for a damaged file."""
        data = self.get_unchecked(key)
        if sha256(data) != key:
            raise StoreError(
                f"the stored file {key[:12]} is damaged: its {len(data):,} bytes do not match"
                " its key",
                hint=_DAMAGED,
            )
        return data

    def get_unchecked(self, key: str) -> bytes:
        """The bytes of a key without a check for damage. Raises NotFound."""
        try:
            with self._server_errors():
                return bytes(self._fs.cat_file(self._path(key)))
        except FileNotFoundError as error:
            self.check()
            hint = "The data directory is incomplete; restore it from a backup."
            raise NotFound(
                f"no stored file {key[:12]}",
                hint=hint if self.is_local else f"It was lost from {self.name}. {_LOST}",
            ) from error

    def sizes(self) -> dict[str, int]:
        """The number of bytes of every stored blob, by key."""
        self.check()
        with self._server_errors():
            stored = self._fs.find(self._root, detail=True) if self._fs.exists(self._root) else {}
        named = ((path.rsplit("/", 1)[-1], entry) for path, entry in stored.items())
        return {key: int(entry["size"]) for key, entry in named if KEY.fullmatch(key)}

    def delete(self, key: str) -> None:
        """Remove a blob, if it exists."""
        with self._server_errors():
            if self._fs.exists(self._path(key)):
                self._fs.rm_file(self._path(key))
                return
        self.check()  # the bucket may be missing too

    def check(self) -> None:
        """Raise StoreAway if a store on a server cannot be read."""
        if self.is_local:
            return
        try:
            with self._server_errors():
                self._fs.ls(self._root, detail=False)
        except FileNotFoundError as error:  # the bucket is missing, not just empty
            if error.__cause__ is not None:
                raise self._store_away(error) from error

    @contextmanager
    def _server_errors(self) -> Iterator[None]:
        """Convert errors of a server, other than a missing file, to StoreAway."""
        try:
            yield
        except (FileNotFoundError, KernloreError):
            raise
        except Exception as error:  # the classes depend on the file system
            if self.is_local:
                raise
            raise self._store_away(error) from error

    def _store_away(self, error: Exception) -> StoreAway:
        code = _code(error)
        if isinstance(error, FileNotFoundError):
            return StoreAway(
                f"the blob store {self.name} does not exist ({code or 'no such bucket'})",
                hint="Create the bucket, or correct KERNLORE_BLOB_URL. Waiting jobs then continue.",
            )
        if isinstance(error, PermissionError) or type(error).__name__ in _CREDENTIAL_ERRORS:
            return StoreAway(
                f"the blob store {self.name} refuses the credentials"
                f" ({code or type(error).__name__})",
                hint="Check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and that they permit"
                " to list, read, write and delete in the bucket. Waiting jobs then continue.",
            )
        reason = code or f"{type(error).__name__}: {error}".partition("\n")[0][:_MAX_REASON]
        return StoreAway(
            f"the blob store {self.name} does not answer ({without_password(reason)})",
            hint="Start it, or check KERNLORE_BLOB_URL and AWS_ENDPOINT_URL. Waiting jobs continue"
            " when it answers; repeat the request then.",
        )


def _open_file_system(url: str, name: str, protocol: str) -> tuple[Any, str]:
    """The fsspec file system of a URL, and the path in it."""
    import fsspec  # 60 ms, which a first answer does not need

    options: dict[str, Any] = {}
    if protocol in _S3:
        options = {
            "skip_instance_cache": True,
            # Other processes write too.
            "use_listings_cache": False,
            "config_kwargs": {
                "connect_timeout": _CONNECT_SECONDS,
                "read_timeout": READ_SECONDS,
                "retries": {"mode": "standard", "total_max_attempts": _ATTEMPTS},
            },
        }
    try:
        fs, root = fsspec.core.url_to_fs(url, **options)
    except ImportError as error:
        missing = (error.name or str(error)).partition(".")[0]
        extra = _EXTRAS.get("s3fs" if protocol in _S3 else missing)
        install = f"'kernlore[{extra}]'" if extra else missing
        raise Unavailable(
            f"the blob store {name} needs a package that is not installed",
            hint=f"Install it: pip install {install}.",
        ) from error
    except ValueError as error:
        raise InvalidRequest(
            f"not a URL of a blob store: {name}",
            hint="Give KERNLORE_BLOB_URL as s3://BUCKET/PREFIX, or file:///FOLDER.",
        ) from error
    if protocol in _S3:
        fs.retries = 1  # multiplied by those of the configuration
    return fs, root


def _code(error: BaseException) -> str:
    """The error code of a server's response, or ""."""
    response = getattr(error, "response", None) or getattr(error.__cause__, "response", None)
    try:
        return str(response["Error"]["Code"]) if response else ""
    except (KeyError, TypeError):
        return ""


def open_blobs(data_dir: Path, url: str | None) -> Blobs:
    """The configured blob store, by default a folder in the data directory."""
    return Blobs(url or default_folder(data_dir))


def default_folder(data_dir: Path) -> str:
    """The folder of blobs in a data directory, created if missing."""
    return str(private_folder((data_dir / "blobs").absolute()))
