"""Every error a user of Kernlore can meet. One tree, one JSON shape, one sentence that says what to
do next.

    KernloreError
    |-- InvalidRequest          400  invalid_request     the request itself is malformed
    |   |-- InvalidPredicate    400  invalid_predicate   an expression does not parse, names nothing
    |   `-- InvalidKnowledge    400  invalid_knowledge   a hardware.toml, front matter or SKILL.md
    |-- Unauthorized            401  unauthorized        no key, or one that is not valid
    |-- Forbidden               403  forbidden           not with this key
    |-- PayloadTooLarge         413  payload_too_large   a body, log or file is over its limit
    |-- UnsupportedFormat       415  unsupported_format  no reader for these bytes
    |-- NotFound                404  not_found           no such id (or not visible to the caller)
    |   |-- UnknownSignal       404  unknown_signal      names the nearest signal ids
    |   `-- UnknownHardware     404  unknown_hardware    names the nearest hardware ids
    |-- Conflict                409  conflict            the row exists, or changed meanwhile
    |-- ParseFailed             422  parse_failed        a document could not be read
    |-- TooManyRequests         429  too_many_requests   a caller is over its limit a minute
    |-- Unavailable             503  unavailable         a part that is needed is not there
    |   |-- StoreAway           503  store_away          a store on a server does not answer
    |   `-- Overloaded          503  overloaded          too many requests at once
    |-- StoreError              500  store_error         the catalog is damaged, or newer than this
    |   `-- StoreFull           507  disk_full           no space to write in the data directory
    `-- InternalError           500  internal_error      a defect of Kernlore, to be reported

It does not know HTTP: `status` is the number a door should use, nothing more.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, cast

from kb.plain import Doc


class KernloreError(Exception):
    """Root of the tree. `hint` is a sentence that tells the reader what to do next."""

    code = "error"
    status = 500

    def __init__(
        self, message: str, *, hint: str = "", details: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details = dict(details or {})

    def as_json(self) -> dict[str, Any]:
        """The one shape in which an error leaves the product."""
        return {
            "code": self.code,
            "message": self.message,
            "hint": self.hint,
            "details": self.details,
        }


class InvalidRequest(KernloreError):
    """The request itself is malformed."""

    code, status = "invalid_request", 400


class InvalidPredicate(InvalidRequest):
    """An expression does not parse, or names nothing."""

    code = "invalid_predicate"


class InvalidKnowledge(InvalidRequest):
    """A hardware.toml, front matter or SKILL.md breaks its format."""

    code = "invalid_knowledge"


class Unauthorized(KernloreError):
    """Who asks has shown no key, or one that is not valid."""

    code, status = "unauthorized", 401


class Forbidden(KernloreError):
    """What this key may not do."""

    code, status = "forbidden", 403


class PayloadTooLarge(KernloreError):
    """A body, log or file is over its limit."""

    code, status = "payload_too_large", 413


class UnsupportedFormat(KernloreError):
    """No reader for these bytes."""

    code, status = "unsupported_format", 415


class NotFound(KernloreError):
    """No such id, or not visible to the caller."""

    code, status = "not_found", 404


def nearest(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """The known names closest to a mistyped one, best first; may be empty."""
    candidates = sorted(set(known))
    lowered = {candidate.lower(): candidate for candidate in reversed(candidates)}
    close = difflib.get_close_matches(name.lower(), lowered, n=count, cutoff=0.4)
    contained = [
        c for c in candidates if name and (name.lower() in c.lower() or c.lower() in name.lower())
    ]
    ranked = [lowered[c] for c in close]
    return (ranked + [c for c in contained if c not in ranked])[:count]


class UnknownSignal(NotFound):
    """No such signal; names the nearest ids."""

    code = "unknown_signal"

    def __init__(self, name: str, known: Iterable[str]) -> None:
        near = nearest(name, known)
        hint = f"Did you mean {', '.join(near)}? " if near else ""
        super().__init__(
            f"unknown signal {name!r}",
            hint=f"{hint}GET /signals lists every signal; without one, post a raw log or metrics.",
            details={"signal": name, "nearest": near},
        )


class UnknownHardware(NotFound):
    """No such hardware; names the nearest ids."""

    code = "unknown_hardware"

    def __init__(self, name: str, known: Iterable[str]) -> None:
        near = nearest(name, known)
        hint = f"Did you mean {', '.join(near)}? " if near else ""
        super().__init__(
            f"unknown hardware {name!r}",
            hint=f"{hint}GET /hardware lists every id; register a new chip with POST /hardware.",
            details={"hardware": name, "nearest": near},
        )


class Conflict(KernloreError):
    """The row exists already, or changed meanwhile."""

    code, status = "conflict", 409


class ParseFailed(KernloreError):
    """A document could not be read."""

    code, status = "parse_failed", 422


class TooManyRequests(KernloreError):
    """Over the caller's limit; `details.retry_after_seconds` says when to come back."""

    code, status = "too_many_requests", 429


class Unavailable(KernloreError):
    """A part that is needed is not there."""

    code, status = "unavailable", 503


class StoreAway(Unavailable):
    """A server that holds files or vectors does not answer, or refuses. What waits for it is tried
    again; nothing fails for good.
    """

    code = "store_away"


class Overloaded(Unavailable):
    """Too many requests at once; `details.retry_after_seconds` says when to come back."""

    code = "overloaded"


class StoreError(KernloreError):
    """The catalog is damaged, or of another version than this Kernlore can open."""

    code, status = "store_error", 500


class StoreFull(StoreError):
    """There is no space in the data directory."""

    code, status = "disk_full", 507


class InternalError(KernloreError):
    code, status = "internal_error", 500


@dataclass(frozen=True)
class ErrorBody:
    """The one shape of an error."""

    code: Annotated[str, Doc("Stable; for programs.", "unknown_hardware")]
    message: Annotated[str, Doc("What is wrong.", "unknown hardware 'h10'")]
    hint: Annotated[str, Doc("What to do next.", "Did you mean h100?")]
    details: Annotated[dict[str, Any], Doc("Values to act on; may be empty.")]


MAX_ERROR_TEXT = 20_000  # characters of one text in an error's JSON


def error_json(error: KernloreError) -> dict[str, Any]:
    """The error's JSON shape, safe to encode.

    Text that repeats hostile input may hold lone surrogates, which UTF-8 refuses; they are
    replaced, and each text is cut at `MAX_ERROR_TEXT` characters.
    """
    return cast(dict[str, Any], _encodable(error.as_json()))


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value[:MAX_ERROR_TEXT].encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, Mapping):
        return {_encodable(str(key)): _encodable(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_encodable(entry) for entry in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    return _encodable(str(value))


def _nearest_field(names: Sequence[str], loc: Sequence[Any]) -> str:
    near = nearest(str(loc[0])[:80], names, count=1) if len(loc) == 1 else []
    return near[0] if near else ""


def invalid_fields(
    problems: Sequence[Mapping[str, Any]],
    known: Iterable[str] | Callable[[Sequence[Any]], str] = (),
) -> InvalidRequest:
    """Which fields of a request are wrong, and how. Each problem is pydantic's: `loc`, the path to
    the field, `type` and `msg`. `known` are the fields of the whole: the nearest to an unknown one
    is named; or what gives, for the path of an unknown field, the one that is meant, or nothing.
    """
    meant = known if callable(known) else partial(_nearest_field, list(known))
    messages: dict[str, str] = {}
    for problem in problems:
        path = ".".join(str(part)[:80] for part in problem["loc"]) or "body"
        text = problem["msg"].removeprefix("Value error, ")
        if problem.get("type") == "extra_forbidden":
            near = meant(problem["loc"])
            text = "unknown field" + (f"; did you mean {near}?" if near else "")
        messages.setdefault(path, text[:1].lower() + text[1:])
    listed = [{"path": path, "message": text} for path, text in messages.items()][:20]
    first = listed[0]
    others = f" (and {len(messages) - 1} more)" if len(messages) > 1 else ""
    return InvalidRequest(
        f"{first['path']}: {first['message']}{others}",
        hint=f"Correct {first['path']}; GET /docs shows what each request takes.",
        details={"problems": listed},
    )
