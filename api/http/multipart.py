"""Multipart uploads: each file is spooled up to its limit, and the rest of it is dropped.

A file over its limit does not fail the other files of the upload.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request
from python_multipart.multipart import parse_options_header
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from api.http.bodies import media_type, too_large
from api.operations import Incoming
from api.strict_json import check_text
from kb.errors import InvalidRequest, UnsupportedFormat, nearest
from kb.settings import Settings

# Limit of one upload, in files of the largest size: spooled files are on the temporary disk.
TOTAL_FILES = 16


@dataclass(frozen=True)
class UploadForm:
    """The files of an upload, and the values of its other fields by name. Fields in `several` may
    be repeated. `input` has the fields as parameters of the operation."""

    files: tuple[Incoming, ...]
    fields: dict[str, list[str]] = field(default_factory=dict)
    several: tuple[str, ...] = ()

    @property
    def input(self) -> dict[str, Any]:
        return {n: self.listed(n) if n in self.several else self.text(n) for n in self.fields}

    def text(self, name: str) -> str | None:
        """The first value of a field, or None."""
        return next(iter(self.fields.get(name, ())), None)

    def listed(self, name: str) -> tuple[str, ...]:
        """The values of a field that may be repeated, or hold a list with commas."""
        values = self.fields.get(name, ())
        return tuple(part.strip() for value in values for part in value.split(",") if part.strip())


class _LimitedParser(MultiPartParser):
    def __init__(
        self, headers: Headers, stream: AsyncGenerator[bytes, None], settings: Settings
    ) -> None:
        super().__init__(headers, stream, max_files=settings.max_files_per_upload, max_fields=100)
        self.oversized: set[int] = set()
        self._limit = settings.max_file_bytes
        self._size = 0
        self._total = 0

    def on_part_begin(self) -> None:
        super().on_part_begin()
        self._size = 0

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        file = self._current_part.file
        if file is not None:
            self._size += end - start
            if self._size > self._limit:
                self.oversized.add(id(file))
                return
            self._total += end - start
            if self._total > TOTAL_FILES * self._limit:
                limit = TOTAL_FILES * self._limit
                raise too_large("upload", limit, "KERNLORE_MAX_FILE_BYTES, or send fewer files")
        super().on_part_data(data, start, end)


async def read_form(
    request: Request, known: Sequence[str], several: Sequence[str] = ()
) -> UploadForm:
    """The files and the known fields of a multipart request; those in `several` may be repeated.
    The caller closes the files."""
    settings: Settings = request.app.state.settings
    _check_type(request)
    parser = _LimitedParser(request.headers, request.stream(), settings)
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise InvalidRequest(
            f"unreadable upload: {error.message}",
            hint="Send multipart/form-data with one or more files in the field `file`.",
            details={"max_files": settings.max_files_per_upload},
        ) from None
    try:
        return _sorted(form.multi_items(), parser.oversized, known, several)
    except InvalidRequest:
        await form.close()
        raise


def _check_type(request: Request) -> None:
    kind = media_type(request)
    if kind != "multipart/form-data":
        skill = request.url.path.endswith("/skills")
        form = (
            "file=@skill.zip .../skills"
            if skill
            else "file=@manual.pdf -F hardware=ID .../documents"
        )
        raise UnsupportedFormat(
            f"{kind or 'a body without content type'} instead of an upload",
            hint=f"Send multipart/form-data: curl -F {form}",
        )
    _, options = parse_options_header(request.headers["content-type"])
    charset = options.get(b"charset", b"utf-8").lower()
    if charset not in (b"utf-8", b"utf8", b"us-ascii"):
        raise UnsupportedFormat("the form's charset is not UTF-8", hint="Send it in UTF-8.")


def _sorted(
    items: list[tuple[str, str | UploadFile]],
    oversized: set[int],
    known: Sequence[str],
    several: Sequence[str],
) -> UploadForm:
    files: list[Incoming] = []
    fields: dict[str, list[str]] = {}
    for name, value in items:
        if isinstance(value, UploadFile):
            if name != "file":
                raise _misplaced(f"a file in the field {name[:80]!r}", known, "file")
            label = check_text(value.filename or "", "the file name")
            files.append(Incoming(label, value.file, id(value) in oversized))
        elif name in known:
            fields.setdefault(name, []).append(check_text(value, name))
        elif name == "file":
            raise _misplaced("the field `file` without a file name", known, "file")
        else:
            near = nearest(name[:80], known, 1)
            raise _misplaced(f"unknown field {name[:80]!r}", known, *near)
    _check(files, fields, several)
    return UploadForm(tuple(files), fields, tuple(several))


def _misplaced(what: str, known: Sequence[str], *meant: str) -> InvalidRequest:
    near = f"Did you mean {meant[0]}? " if meant else ""
    return InvalidRequest(what, hint=f"{near}Files go into `file`; fields are {', '.join(known)}.")


def _check(files: list[Incoming], fields: dict[str, list[str]], several: Sequence[str]) -> None:
    if not files or files == [f for f in files if not f.name]:
        raise InvalidRequest("no file in the upload", hint="Send at least one in the field `file`.")
    for name, values in fields.items():
        if len(values) > 1 and name not in several:
            raise InvalidRequest(f"{name} is given twice", hint="Give it once.")
    for name in ("title", "source_key"):
        # With one source_key, the files would be versions of each other.
        if len(files) > 1 and (fields.get(name) or [""])[0].strip():
            raise InvalidRequest(
                f"one {name} for {len(files)} files", hint=f"Send them one by one to give a {name}."
            )
    for name, values in fields.items():
        if any(len(value) > 2000 for value in values):
            raise InvalidRequest(f"{name} is over 2,000 characters", hint="Shorten it.")
