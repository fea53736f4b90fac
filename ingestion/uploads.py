"""Uploads: a file becomes a document, a version and a queued job, or is refused with a reason.

Names are labels, never paths: drives, roots, `..` and control characters are removed first. Nothing
is parsed here."""

from __future__ import annotations

import posixpath
import re
import unicodedata
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO
from zipfile import BadZipFile, ZipFile

from sqlalchemy import Connection

from ingestion.findings.scopes import template_languages
from ingestion.formats.detect import Format, detect
from ingestion.includes import JoinedUpload, join_includes
from kb import telemetry
from kb.blobs import Blobs
from kb.catalog.engine import Catalog
from kb.catalog.hardware import HardwareRegistry
from kb.catalog.jobs import Jobs, Turn
from kb.catalog.knowledge.documents import (
    Document,
    Documents,
    Version,
    blobs_maybe_gone,
    count_erasures,
    is_blob_in_use,
)
from kb.catalog.knowledge.versions import (
    DocumentSource,
    Registered,
    UploadOutcome,
    newest_builtin,
    register,
    with_own_key,
)
from kb.catalog.meta import bump_waiting
from kb.errors import InvalidRequest, NotFound, ParseFailed, PayloadTooLarge, unknown_word
from kb.ids import DocumentId, JobId, sha256
from kb.scope import ALL_ACCESS, CATEGORIES, AccessScope

MAX_NAME = 200
TRACE = "trace"  # in the payload of a job: the span of its upload
REPLACE = "replace"  # in the payload of a job: its sender confirms that an unrelated text goes
_CONTROL = re.compile(r"[\x00-\x1f\x7f<>:\"|?*\\]")
_LANGUAGE = re.compile(r"[a-z][a-z0-9_+.-]{0,31}")
BUILTIN = "builtin"  # the origin of built-in documents, and the first part of their source keys
_GROUP = re.compile(r"[\w.:-]{1,100}", re.ASCII)
# Versions of readers: a document in one of these formats is read again after a change.
_READERS = {Format.ASCIIDOC: 1, Format.LATEX: 1, Format.ROFF: 1}
# Skipped in folders; a file of such a name can be uploaded by itself.
_SKIPPED = frozenset({".git", "__pycache__", ".DS_Store", "node_modules", ".ipynb_checkpoints"})


@dataclass(frozen=True)
class FileUpload:
    """One file with its description. Empty `hardware` means no hardware in particular. Stored as a
    `DocumentSource`: names resolved, the bytes in the blob store. The jobs of a `group` of uploads
    can be listed together. `replace` confirms that an unrelated text may be replaced."""

    name: str
    data: bytes
    category: str | None = None
    hardware: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()
    title: str | None = None
    source_key: str | None = None
    origin: str = "upload"
    access_scope: AccessScope = ALL_ACCESS
    group: str | None = None
    replace: bool = False


@dataclass(frozen=True)
class Submitted:
    """The result of an upload. `job_id` is None if nothing has to be read (unchanged,
    duplicate_of, included: the text is in the document of the file that includes it)."""

    document_id: DocumentId
    job_id: JobId | None
    outcome: UploadOutcome
    name: str
    group: str | None = None


def safe_name(name: str) -> str:
    """A file name as a relative label without drive, root, `..` and control characters."""
    # A name that is not UTF-8 has lone surrogates, which no store accepts.
    text = name.encode("utf-8", "replace").decode("utf-8")
    text = unicodedata.normalize("NFC", text).replace("\\", "/")
    text = "".join("_" if unicodedata.category(c) in ("Cc", "Cf") else c for c in text)
    parts = [
        _CONTROL.sub("_", part).strip(". ") or "_"
        for part in PurePosixPath(text).parts
        if part not in ("/", ".", "..", "")
    ]
    label = "/".join(parts)[-MAX_NAME:].strip("/")
    if not label or not label.strip("_/"):
        raise InvalidRequest(
            f"unusable file name {name[:80]!r}", hint="Send the file with a plain name."
        )
    return label


class Uploads:
    """Accepts files into the catalog. `pipeline` is the fingerprint of the pipeline that will read
    them."""

    def __init__(
        self,
        catalog: Catalog,
        blobs: Blobs,
        jobs: Jobs,
        registry: HardwareRegistry,
        pipeline: str,
        max_bytes: int,
    ) -> None:
        self._catalog = catalog
        self._blobs = blobs
        self._jobs = jobs
        self._registry = registry
        self._pipeline = pipeline
        self._max_bytes = max_bytes

    def check_size(self, name: str, size: int) -> None:
        """Raise PayloadTooLarge for a file of more than KERNLORE_MAX_FILE_BYTES bytes. `submit`
        checks it too; call this before the bytes are in memory, if their size is known."""
        if size > self._max_bytes:
            raise self.too_large(name)

    def too_large(self, name: str) -> PayloadTooLarge:
        """The error for a file over the limit, for a caller that stopped reading it there."""
        return PayloadTooLarge(
            f"{name[:MAX_NAME]} is over the limit of {self._max_bytes:,} bytes",
            hint="Split the document, or raise KERNLORE_MAX_FILE_BYTES.",
            details={"limit": self._max_bytes},
        )

    def submit(self, upload: FileUpload) -> Submitted:
        """Store one file and queue its reading. Raises PayloadTooLarge, UnsupportedFormat,
        ParseFailed (an empty or damaged file), UnknownHardware, and InvalidRequest for a bad name,
        category or language."""
        return self.submit_all([upload])[0]

    def submit_all(self, uploads: Sequence[FileUpload]) -> list[Submitted]:
        """Store several files and queue their reading, all or none. Raises as `submit`."""
        with self._catalog.read() as connection:
            erasures = count_erasures(connection)
        sources = [self._source(upload) for upload in uploads]
        keys = {source.blob_key for source in sources}
        with self._catalog.write() as connection:
            gone = blobs_maybe_gone(connection, keys, erasures)
            for upload, source in zip(uploads, sources, strict=True):
                if source.blob_key in gone:
                    self._blobs.put(upload.data)
            sources = [with_own_key(connection, source) for source in sources]
            registered = register(connection, sources)
            submitted = [
                self._queued(connection, *own)
                for own in zip(uploads, sources, registered, strict=True)
            ]
            if any(own.job_id is not None for own in submitted):
                bump_waiting(connection)
        return submitted

    def _source(self, upload: FileUpload) -> DocumentSource:
        """Check and store the bytes of an upload."""
        name = safe_name(upload.name)
        self.check_size(name, len(upload.data))
        kind = detect(upload.data, name)  # refuses empty files and unreadable bytes
        access = upload.access_scope
        registry = self._registry.seen_by(access)
        hardware = tuple(sorted({registry.resolve(h) for h in upload.hardware if h}))
        access.check_change(hardware, name)
        category = self._category(upload.category, hardware)
        _group(upload.group)
        key = self._store_blob(upload)
        return DocumentSource(
            source_key=self._source_key(upload, name, category, hardware),
            title=" ".join((upload.title or "").split()) or title_from_name(name),
            category=category,
            hardware=hardware,
            languages=_languages(upload.languages),
            file_name=name,
            format=kind.value,
            sha256=key,
            size_bytes=len(upload.data),
            blob_key=key,
            pipeline=self._pipeline_for(hardware, kind),
            origin=upload.origin,
            access_scope=upload.access_scope,
        )

    def _queued(
        self,
        connection: Connection,
        upload: FileUpload,
        source: DocumentSource,
        registered: Registered,
    ) -> Submitted:
        name, group = source.file_name, _group(upload.group)
        job_id = None
        if registered.version_id is not None:
            if registered.outcome == "new_version" and group is not None and not upload.replace:
                self._check_group(connection, registered.document_id, group, name)
            payload: dict[str, Any] = {
                "version_id": registered.version_id,
                "title_given": bool((upload.title or "").strip()),
            }
            if upload.replace:
                payload[REPLACE] = True
            if trace := telemetry.carrier():
                payload[TRACE] = trace
            job_id = self._jobs.enqueue(
                connection, registered.document_id, payload, _turn(source, group)
            )
        elif group is not None:
            self._jobs.join_group(connection, registered.document_id, group)
        return Submitted(registered.document_id, job_id, registered.outcome, name, group)

    def _check_group(
        self, connection: Connection, document_id: DocumentId, group: str, name: str
    ) -> None:
        """Refuse a second file of one name in an upload; the transaction is rolled back."""
        if self._jobs.is_in_group(connection, document_id, group):
            raise InvalidRequest(
                f"two files of this upload are called {name}",
                hint="Send the folder above both, so that each has its path; or send them one at a"
                " time, each with its own source_key.",
            )

    def known_builtin(self) -> dict[tuple[str, str], DocumentId]:
        """The built-in documents whose newest version is of the current pipeline, by source key and
        SHA-256, in one query for each start."""
        with self._catalog.read() as connection:
            newest = newest_builtin(connection)
        return {
            (row.source_key, row.sha256): DocumentId(row.document_id)
            for row in newest
            if row.pipeline == self._pipeline_for(row.declared["hardware"])
        }

    def stored_builtin(
        self, known: Mapping[tuple[str, str], DocumentId], source_key: str, data: bytes
    ) -> DocumentId | None:
        """The document of `known_builtin` with these bytes; its file is stored again if it was
        lost."""
        document_id = known.get((source_key, sha256(data)))
        if document_id is not None and self._blobs.is_local:
            self._blobs.put(data)
        return document_id

    def _store_blob(self, upload: FileUpload) -> str:
        """Store the bytes; returns their key. Built-in documents come with each start and command,
        so known ones are not sent to a store on a server again."""
        key = sha256(upload.data)
        if upload.origin == BUILTIN and not self._blobs.is_local:
            with self._catalog.read() as connection:
                if is_blob_in_use(connection, key):
                    return key
        return self._blobs.put(upload.data)

    def _pipeline_for(self, hardware: Sequence[str], kind: Format | None = None) -> str:
        """The pipeline with the languages of the chips' toolchains, in which names and kernels are
        read, and the version of a format's reader, if it came after the pipeline."""
        languages = template_languages(hardware, self._registry.all())
        version = [f"{kind.value} {_READERS[kind]}"] if kind in _READERS else []
        return "+".join((self._pipeline, *sorted(languages), *version))

    @staticmethod
    def _source_key(upload: FileUpload, name: str, category: str, hardware: Sequence[str]) -> str:
        """The caller's key, else the name within its scope: equal names for two chips are two
        documents."""
        key = (upload.source_key or "").strip()[:500]
        key = key or f"{'+'.join(hardware) or category}/{name}"
        if upload.origin != BUILTIN and is_builtin_key(key):
            raise InvalidRequest(
                f"the source key {key!r} is that of built-in knowledge",
                hint=f"Give a source key that does not begin with {BUILTIN}/; to change built-in"
                " knowledge, copy its folder and set KERNLORE_KNOWLEDGE_DIR.",
            )
        return key

    @staticmethod
    def _category(category: str | None, hardware: Sequence[str]) -> str:
        if category is None or not category.strip():
            return "hardware" if hardware else "guidance"
        if category not in CATEGORIES:
            raise unknown_word("category", category, CATEGORIES)
        if category == "hardware" and not hardware:
            raise InvalidRequest(
                "a document of category hardware needs a hardware id",
                hint="Give `hardware`, or use category guidance or constraint.",
            )
        return category


def is_builtin_key(key: str) -> bool:
    """Whether a source key is that of a built-in document, also if it is written with other case,
    separators, invisible characters or detours (`./`, `a/../`)."""
    text = unicodedata.normalize("NFKC", key).casefold().replace("\\", "/")
    text = "".join(c for c in text if unicodedata.category(c) not in ("Cc", "Cf"))
    parts = posixpath.normpath(f"/{text}").strip("/").split("/")
    return parts[0].strip() == BUILTIN


def _turn(source: DocumentSource, group: str | None) -> Turn:
    if source.origin == BUILTIN:
        return Turn(group, BUILTIN, behind=True)
    # Files without a group share one turn for their hardware: a thousand of them, sent one per
    # request, count once.
    return Turn(group, group or "+".join(source.hardware) or source.category)


def _group(name: str | None) -> str | None:
    if name is None or not name.strip():
        return None
    if not _GROUP.fullmatch(name.strip()):
        raise InvalidRequest(
            f"unusable group {name[:40]!r}",
            hint="Use up to 100 letters, digits, dots, colons, dashes and underscores.",
        )
    return name.strip()


def title_from_name(name: str) -> str:
    """The title of a document until its own is read."""
    stem = PurePosixPath(name).stem
    return re.sub(r"[_\s]+", " ", stem).strip() or name


def _languages(values: Sequence[str]) -> tuple[str, ...]:
    languages = sorted({value.strip().lower() for value in values if value.strip()})
    for language in languages:
        if not _LANGUAGE.fullmatch(language):
            raise InvalidRequest(
                f"unusable language name {language[:40]!r}",
                hint="Use short names such as triton, cuda, hip, cpp.",
            )
    return tuple(languages)


def archived_files(
    archive: BinaryIO, name: str, limits: tuple[int, int, int]
) -> Iterator[tuple[str, bytes]]:
    """The files of a ZIP archive with their paths in it, without hidden files and caches. `limits`
    are files, bytes of one, and bytes of all. Raises PayloadTooLarge, and ParseFailed for a
    damaged or encrypted archive."""
    most_files, most_bytes, left = limits
    try:
        with ZipFile(archive) as opened:
            members = [m for m in opened.infolist() if not m.is_dir() and not _hidden(m.filename)]
            if len(members) > most_files:
                raise PayloadTooLarge(
                    f"{name[:MAX_NAME]} has {len(members):,} files; the limit is {most_files:,}",
                    hint="Split it, or use `kernlore ingest FOLDER`.",
                    details={"limit": most_files},
                )
            for member in members:
                with opened.open(member) as content:
                    data = content.read(most_bytes + 1)  # the size that it declares may be wrong
                left -= len(data)
                if left < 0:
                    raise PayloadTooLarge(
                        f"the files of {name[:MAX_NAME]} are too large together",
                        hint="Split it, or use `kernlore ingest FOLDER`.",
                    )
                yield member.filename, data
    except (BadZipFile, NotImplementedError, RuntimeError, EOFError, zlib.error) as error:
        raise ParseFailed(
            f"{name[:MAX_NAME]} cannot be unpacked: {error}",
            hint="Send an archive without a password, or the files themselves.",
        ) from None


def join_upload(files: Mapping[str, BinaryIO], most_bytes: int) -> JoinedUpload:
    """The files of an upload that include each other: those sent as they are, and those of each
    archive. A damaged archive has none; `archived_files` refuses it."""
    whole = {name: file for name, file in files.items() if not is_archive(file, name)}

    def sent(name: str) -> bytes:
        data = whole[name].read()
        whole[name].seek(0)
        return data

    joined = join_includes(whole, sent, most_bytes)
    for name in files.keys() - whole.keys():
        with suppress(BadZipFile, NotImplementedError, RuntimeError, EOFError, zlib.error):
            joined.update(_join_archived(files[name], most_bytes))
        files[name].seek(0)
    return joined


def _join_archived(archive: BinaryIO, most_bytes: int) -> JoinedUpload:
    with ZipFile(archive) as opened:

        def packed(name: str) -> bytes:
            with opened.open(name) as content:
                return content.read(most_bytes + 1)

        members = (m.filename for m in opened.infolist() if not m.is_dir())
        return join_includes({m for m in members if not _hidden(m)}, packed, most_bytes)


def is_archive(file: BinaryIO, name: str) -> bool:
    """Whether a file is a ZIP archive of documents. Office documents are archives of other parts,
    under another name."""
    if not name.lower().endswith(".zip"):
        return False
    start = file.read(4)
    file.seek(0)
    return start == b"PK\x03\x04"


def _hidden(path: str) -> bool:
    parts = PurePosixPath(path.replace("\\", "/")).parts
    return any(p in _SKIPPED or p.startswith(".") or p == "__MACOSX" for p in parts)


@dataclass(frozen=True)
class LocalFile:
    """A file to be uploaded; `name` is its path below the folder of the caller."""

    path: Path
    name: str


def files_under(paths: Sequence[Path]) -> Iterator[LocalFile]:
    """The files of paths and folders in a stable order, without hidden files, caches and links that
    lead out of their folder. Raises InvalidRequest for a path that does not exist."""
    for path in paths:
        if path.is_file():
            yield LocalFile(path, path.name)
        elif path.is_dir():
            for file in _visible(path):
                if file.is_file() and not _leads_out(file, path):
                    yield LocalFile(file, file.relative_to(path).as_posix())
        else:
            raise InvalidRequest(
                f"no file or folder {path}", hint="Check the path; it is relative to where you are."
            )


def links_out(paths: Sequence[Path]) -> Iterator[Path]:
    """The links that lead out of their folder, which `files_under` skips."""
    for path in paths:
        if path.is_dir():
            yield from (f for f in _visible(path) if f.is_symlink() and _leads_out(f, path))


def _visible(folder: Path) -> Iterator[Path]:
    """The entries of a folder at any depth, in order; links to folders are not followed."""
    for file in sorted(folder.rglob("*")):
        parts = file.relative_to(folder).parts
        if not any(part in _SKIPPED or part.startswith(".") for part in parts):
            yield file


def _leads_out(file: Path, folder: Path) -> bool:
    """Whether a file or folder is, through a link, outside of the folder."""
    return not file.resolve().is_relative_to(folder.resolve())


def read_again(
    uploads: Uploads, documents: Documents, blobs: Blobs, hardware: str
) -> list[Submitted]:
    """Queue the uploaded documents about exactly this hardware that would be read differently now:
    names and kernels are read in the languages of its toolchains."""
    queued = []
    for document in documents.find(hardware=hardware):
        if document.origin == BUILTIN:  # read again with each start of the service
            continue
        newest = documents.versions(document.id)[0]
        again = _again(document, newest, blobs, ALL_ACCESS)
        submitted = uploads.submit(replace(again, title=document.title))
        if submitted.job_id is not None:
            queued.append(submitted)
    return queued


def restore_version(
    uploads: Uploads,
    documents: Documents,
    blobs: Blobs,
    document_id: str,
    version: int,
    access_scope: AccessScope = ALL_ACCESS,
) -> Submitted:
    """Read the file of an earlier version again, as the newest version of its document. Raises
    NotFound."""
    document = documents.get(document_id, access_scope=access_scope)
    for stored in documents.versions(document_id, access_scope=access_scope):
        if stored.number == version:
            again = _again(document, stored, blobs, access_scope)
            return uploads.submit(replace(again, replace=True))
    raise NotFound(
        f"{document_id} has no version {version}",
        hint=f"GET /documents/{document_id} lists its versions.",
    )


def keep_separate(
    uploads: Uploads,
    documents: Documents,
    blobs: Blobs,
    document_id: str,
    version_id: str,
    access_scope: AccessScope = ALL_ACCESS,
    group: str | None = None,
) -> Submitted:
    """Make a version that was not stored, because its text is unrelated to the document's, a
    separate document."""
    document = documents.get(document_id, access_scope=access_scope)
    versions = documents.versions(document_id, access_scope=access_scope)
    stored = next(v for v in versions if v.id == version_id)
    again = _again(document, stored, blobs, access_scope)
    key = f"{document.source_key}#{stored.sha256[:8]}"
    return uploads.submit(replace(again, source_key=key, group=group))


def _again(
    document: Document, version: Version, blobs: Blobs, access_scope: AccessScope
) -> FileUpload:
    return FileUpload(
        name=version.file_name,
        data=blobs.get(version.blob_key),
        category=document.category,
        hardware=document.hardware,
        languages=document.languages,
        source_key=document.source_key,
        origin=document.origin,
        access_scope=access_scope,
    )
