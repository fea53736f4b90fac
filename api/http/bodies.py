"""Reads the body of an HTTP request, up to a limit and not a byte more kept.

The framework's own reading is not used: it takes a body of any size, and NaN. What a body may hold
is in `api.bodies`. Knows no route.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeVar

from fastapi import Depends, Request
from pydantic import BaseModel

from api.bodies import check_text, load_json, validated
from kb.errors import PayloadTooLarge, UnsupportedFormat
from kb.settings import MIB

# Routes take the reading of a body and the checks of its text from one place.
__all__ = [
    "check_text",
    "is_json",
    "json_body",
    "load_json",
    "media_type",
    "read_json_body",
    "read_limited",
    "signed",
    "too_large",
    "validated",
]

# Read and dropped beyond a limit, so that the sender gets to see the answer and not a reset.
DRAIN = 64 * MIB
# In the scope of a request with a key: the key's name.
SIGNER = "kernlore.signer"
UNSIGNED = ("api", "http", "web")  # actors of changes that name nobody
ModelT = TypeVar("ModelT", bound=BaseModel)


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


async def read_json_body(request: Request) -> bytes:
    """The bytes of a JSON request."""
    kind = media_type(request)
    if not is_json(kind):
        raise UnsupportedFormat(
            f"{kind or 'a body without content type'} where JSON belongs",
            hint="Send JSON with the header `content-type: application/json`.",
        )
    limit = request.app.state.settings.max_body_bytes
    return await read_limited(request, limit, "body", "KERNLORE_MAX_BODY_BYTES")


def signed(request: Request, claimed: str) -> str:
    """Who is stored as the actor of a change: who the request says, and where it came with a key,
    the key's name with the claim beside it."""
    key: str = request.scope.get(SIGNER, "")
    if not key:
        return claimed
    return key if claimed in (*UNSIGNED, key) else f"{key} (as {claimed})"


def json_body(model: type[ModelT]) -> Callable[..., ModelT]:
    """A dependency that gives the body as this model."""

    # Apart from reading, so that decoding megabytes does not hold up other requests.
    def checked(request: Request, raw: Annotated[bytes, Depends(read_json_body)]) -> ModelT:
        body = validated(model, load_json(raw))
        if "actor" not in model.model_fields:
            return body
        return body.model_copy(update={"actor": signed(request, str(vars(body)["actor"]))})

    return checked
