"""Request bodies: read up to a limit and not a byte more kept, strict JSON, checked models.

The framework's own body reading is not used: it takes any size and NaN. Knows no route.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any, NoReturn, TypeVar

from fastapi import Depends, Request
from pydantic import BaseModel, ValidationError

from kb.errors import InvalidRequest, PayloadTooLarge, UnsupportedFormat, invalid_fields
from kb.settings import MIB

# Read and dropped beyond a limit, so that the sender gets to see the answer and not a reset.
DRAIN = 64 * MIB
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
    return PayloadTooLarge(
        f"the {what} is over the limit of {limit:,} bytes",
        hint=f"Send less of it, or raise {setting}.",
        details={"limit": limit},
    )


def media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def is_json(kind: str) -> bool:
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


def json_body(model: type[ModelT]) -> Callable[[bytes], ModelT]:
    """A dependency that gives the body as this model."""

    # Apart from reading, so that decoding megabytes does not hold up other requests.
    def checked(raw: Annotated[bytes, Depends(read_json_body)]) -> ModelT:
        return validated(model, load_json(raw))

    return checked


def validated(model: type[ModelT], value: Any) -> ModelT:
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise invalid_fields(error.errors(include_url=False, include_context=False)) from None


def load_json(raw: bytes) -> Any:
    """Strict JSON: UTF-8, finite numbers, text that can be stored."""
    try:
        value = json.loads(raw, parse_constant=_not_finite)
    except RecursionError:
        raise InvalidRequest("the JSON is nested too deeply", hint="Send it flatter.") from None
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"the body is not UTF-8: {error}", hint="Encode it as UTF-8."
        ) from None
    except ValueError as error:
        raise InvalidRequest(
            f"broken JSON: {error}", hint="Correct the syntax at that place."
        ) from None
    # Both can only come in as escapes.
    if b"\\u" in raw:
        check_texts(value)
    return value


def _not_finite(name: str) -> NoReturn:
    raise InvalidRequest(
        f"{name} is not a JSON number", hint="Leave the value out, or send a finite number."
    )


def check_texts(value: Any) -> None:
    """Refuse NUL and halves of characters anywhere in a decoded body."""
    if isinstance(value, str):
        check_text(value)
    elif isinstance(value, dict):
        for key, entry in value.items():
            check_text(key)
            check_texts(entry)
    elif isinstance(value, list):
        for entry in value:
            check_texts(entry)


def check_text(text: str, what: str = "the text") -> str:
    """The text itself, if it can be stored."""
    if "\x00" in text:
        raise InvalidRequest(f"{what} holds a NUL character", hint="Send text, not binary data.")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(
            f"{what} holds half of a surrogate pair", hint="Encode the whole character."
        ) from None
    return text
