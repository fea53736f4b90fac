"""Read the body of an HTTP request within a limit, and within a time.

The framework's parsing is not used, because it accepts bodies of any size, and NaN.
`api.strict_json` checks the content. Each file of an upload is spooled up to its limit, and the
rest of it is dropped: a file over its limit does not fail the other files.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request
from python_multipart.multipart import parse_options_header
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.http.errors import respond
from api.operations import Incoming
from api.strict_json import check_text
from kb.errors import InvalidRequest, KernloreError, PayloadTooLarge, UnsupportedFormat, nearest
from kb.settings import MIB, Settings

# Bytes beyond a limit that are read and dropped, so that the client sees the answer, not a reset.
DRAIN = 64 * MIB
# Entry of the ASGI scope: the name of the request's key.
SIGNER = "kernlore.signer"
# A body that arrives faster than this, in bytes a second, is never late.
LEAST_RATE = 16 * 1024
UNSIGNED = ("api", "http", "web")  # placeholder actors, which name no person


class LateBody(KernloreError):
    """The body of a request did not arrive in time."""

    code, status = "request_timeout", 408


class BodyDeadline:
    """Middleware: the body of every request arrives within `seconds`, plus the time that its bytes
    take at LEAST_RATE, or the request ends with LateBody."""

    def __init__(self, app: ASGIApp, seconds: float) -> None:
        self._app = app
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, received, complete, begun = time.monotonic(), 0, False, False

        async def limited() -> Message:
            nonlocal received, complete
            if complete:  # only the end of the connection follows
                return await receive()
            end = started + self._seconds + received / LEAST_RATE
            try:
                message = await asyncio.wait_for(receive(), end - time.monotonic())
            except TimeoutError:
                raise self._late() from None
            received += len(message.get("body", b""))
            complete = not message.get("more_body", False)
            return message

        async def noted(message: Message) -> None:
            nonlocal begun
            begun = True
            if message["type"] == "http.response.start" and not complete:
                # The rest of the body would be read as the next request.
                message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
            await send(message)

        try:
            await self._app(scope, limited, noted)
        except LateBody as error:  # of an application without the handlers of errors
            if begun:
                raise
            await respond(error)(scope, receive, noted)

    def _late(self) -> LateBody:
        return LateBody(
            f"the body of the request did not arrive within {self._seconds:g} s",
            hint="Send the request again. On a slow network send smaller files, or raise"
            " KERNLORE_BODY_SECONDS.",
        )


async def read_limited(request: Request, limit: int, what: str, setting: str) -> bytes:
    """The body, or PayloadTooLarge. `what` and `setting` name the limit to the sender."""
    declared = request.headers.get("content-length", "")
    size = int(declared) if declared.isdecimal() else 0
    body = bytearray()
    if size <= limit + DRAIN:
        size = 0
        async for chunk in request.stream():
            size += len(chunk)
            if size <= limit:
                body += chunk
            elif size > limit + DRAIN:
                break
    if size > limit:
        raise too_large(what, limit, setting)
    return bytes(body)


def too_large(what: str, limit: int, setting: str) -> PayloadTooLarge:
    """The error for a body over a limit of bytes that `setting` raises."""
    return PayloadTooLarge(
        f"the {what} is over the limit of {limit:,} bytes",
        hint=f"Send less of it, or raise {setting}.",
        details={"limit": limit},
    )


def media_type(request: Request) -> str:
    """The media type of the body, in lower case and without parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def is_json(kind: str) -> bool:
    """Whether a media type is JSON."""
    return kind == "application/json" or kind.endswith("+json")


def signed(request: Request, claimed: str) -> str:
    """The actor that is stored with a change: the actor that the request claims, or with a key, the
    key's name followed by the claim."""
    key: str = request.scope.get(SIGNER, "")
    if not key:
        return claimed
    return key if claimed in (*UNSIGNED, key) else f"{key} (as {claimed})"


# -- uploads

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
