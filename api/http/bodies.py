"""Read the body of an HTTP request within a limit, and within a time.

The framework's parsing is not used, because it accepts bodies of any size, and NaN.
`api.strict_json` checks the content.
"""

from __future__ import annotations

import asyncio
import time

from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.http.errors import respond
from kb.errors import KernloreError, PayloadTooLarge
from kb.settings import MIB

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
