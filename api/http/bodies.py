"""Read the body of an HTTP request within a limit.

The framework's parsing is not used, because it accepts bodies of any size, and NaN.
`api.strict_json` checks the content.
"""

from __future__ import annotations

from fastapi import Request

from kb.errors import PayloadTooLarge
from kb.settings import MIB

# Bytes beyond a limit that are read and dropped, so that the client sees the answer, not a reset.
DRAIN = 64 * MIB
# Entry of the ASGI scope: the name of the request's key.
SIGNER = "kernlore.signer"
UNSIGNED = ("api", "http", "web")  # placeholder actors, which name no person


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
    key's name followed by the claim.
    """
    key: str = request.scope.get(SIGNER, "")
    if not key:
        return claimed
    return key if claimed in (*UNSIGNED, key) else f"{key} (as {claimed})"
