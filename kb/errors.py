"""The errors of Kernlore: one tree, one JSON shape, a hint with the next step.

`status` is the HTTP status of a response; nothing else here is about HTTP.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, cast

from kb.plain import Doc


class KernloreError(Exception):
    """Root of the tree. `hint` is a sentence that names the next step."""

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
        """The JSON shape of every error."""
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
    """A request without a valid key."""

    code, status = "unauthorized", 401


class Forbidden(KernloreError):
    """A request that its key does not permit."""

    code, status = "forbidden", 403


class PayloadTooLarge(KernloreError):
    """A body, log or file exceeds its limit."""

    code, status = "payload_too_large", 413


class UnsupportedFormat(KernloreError):
    """No reader supports the format of a file."""

    code, status = "unsupported_format", 415


class NotFound(KernloreError):
    """No such id, or not visible to the caller."""

    code, status = "not_found", 404


# Names that callers guess, with the fields that they mean.
GUESSES = dict.fromkeys(("question", "prompt"), ("query", "q")) | dict.fromkeys(
    ("chip", "device", "gpu"), ("hardware",)
)


def nearest(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """The known names closest to a mistyped one, best first; may be empty."""
    candidates = sorted(set(known))
    if meant := [guess for guess in GUESSES.get(name.lower(), ()) if guess in candidates]:
        return meant[:count]
    lowered = {candidate.lower(): candidate for candidate in reversed(candidates)}
    close = difflib.get_close_matches(name.lower(), lowered, n=count, cutoff=0.4)
    contained = [
        c for c in candidates if name and (name.lower() in c.lower() or c.lower() in name.lower())
    ]
    ranked = [lowered[c] for c in close]
    return (ranked + [c for c in contained if c not in ranked])[:count]


def unknown_word(what: str, word: str, known: Sequence[str]) -> InvalidRequest:
    """The error of a word that is none of the known ones."""
    near = nearest(word, known)
    meant = f"; did you mean {near[0]}?" if near else "."
    return InvalidRequest(f"unknown {what} {word!r}", hint=f"Use one of {', '.join(known)}{meant}")


class UnknownSignal(NotFound):
    """No such signal; the hint names the nearest ids."""

    code = "unknown_signal"

    def __init__(
        self, name: str, known: Iterable[str], titles: Mapping[str, str] | None = None
    ) -> None:
        words = set(re.findall(r"[a-z]+", name.lower()))
        shared = {
            own: len(words & set(title.lower().split())) for own, title in (titles or {}).items()
        }
        titled = sorted((own for own in shared if shared[own] > 1), key=lambda own: -shared[own])
        near = list(dict.fromkeys([*titled, *nearest(name, known)]))[:3]
        hint = f"Did you mean {', '.join(near)}? " if near else ""
        super().__init__(
            f"unknown signal {name!r}",
            hint=f"{hint}GET /signals lists every signal; without one, post a raw log or metrics.",
            details={"signal": name, "nearest": near},
        )


class UnknownHardware(NotFound):
    """No such hardware; the hint names the nearest ids, or how to load the built-in ones."""

    code = "unknown_hardware"

    def __init__(self, name: str, known: Iterable[str]) -> None:
        ids = tuple(known)
        near = nearest(name, ids)
        hint = f"Did you mean {', '.join(near)}? " if near else ""
        hint += "GET /hardware lists every id; register a new chip with POST /hardware."
        message = f"unknown hardware {name!r}"
        if not ids:
            message = f"{name!r} is not known: the data directory has no hardware yet"
            hint = "`kernlore serve` or `kernlore ingest --builtin` loads the built-in knowledge."
        super().__init__(message, hint=hint, details={"hardware": name, "nearest": near})


class Conflict(KernloreError):
    """A row exists already, or was changed concurrently."""

    code, status = "conflict", 409


class UnrelatedVersion(KernloreError):
    """A version of a document that would replace an unrelated text."""

    code, status = "unrelated_version", 409


class ParseFailed(KernloreError):
    """A document could not be read."""

    code, status = "parse_failed", 422


class TooManyRequests(KernloreError):
    """The caller exceeds its limit per minute; `details.retry_after_seconds` says when to retry."""

    code, status = "too_many_requests", 429


class Unavailable(KernloreError):
    """A required component is not available."""

    code, status = "unavailable", 503


class StoreAway(Unavailable):
    """A server of files or vectors does not respond, or denies access. Jobs that need it are
    retried later."""

    code = "store_away"


class Overloaded(Unavailable):
    """Too many concurrent requests; `details.retry_after_seconds` says when to retry."""

    code = "overloaded"


class StoreError(KernloreError):
    """The catalog is damaged, or of a version that this Kernlore cannot open."""

    code, status = "store_error", 500


class StoreFull(StoreError):
    """There is no space in the data directory."""

    code, status = "disk_full", 507


class InternalError(KernloreError):
    """A defect of Kernlore."""

    code, status = "internal_error", 500


@dataclass(frozen=True)
class ErrorBody:
    """The one shape of an error."""

    code: Annotated[str, Doc("Stable; for programs.", "unknown_hardware")]
    message: Annotated[str, Doc("The problem.", "unknown hardware 'h10'")]
    hint: Annotated[str, Doc("What to do next.", "Did you mean h100?")]
    details: Annotated[dict[str, Any], Doc("Values to act on; may be empty.")]


MAX_ERROR_TEXT = 20_000  # characters of one text in an error's JSON


def error_json(error: KernloreError) -> dict[str, Any]:
    """The JSON shape of an error, safe to encode: lone surrogates of quoted input are replaced, and
    texts are truncated to `MAX_ERROR_TEXT` characters."""
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
    """The error for wrong fields of a request. `problems` are pydantic's: `loc`, the path of a
    field, `type` and `msg`. `known` are the fields of the body, the nearest of which is suggested
    for an unknown one, or a function that returns the suggestion for a path, "" for none."""
    suggest = known if callable(known) else partial(_nearest_field, list(known))
    messages: dict[str, str] = {}
    for problem in problems:
        path = ".".join(str(part)[:80] for part in problem["loc"]) or "body"
        text = problem["msg"].removeprefix("Value error, ")
        if problem.get("type") == "extra_forbidden":
            near = suggest(problem["loc"])
            text = "unknown field" + (f"; did you mean {near}?" if near else "")
        messages.setdefault(path, text[:1].lower() + text[1:])
    listed = [{"path": path, "message": text} for path, text in messages.items()][:20]
    first = listed[0]
    others = f" (and {len(messages) - 1} more)" if len(messages) > 1 else ""
    return InvalidRequest(
        f"{first['path']}: {first['message']}{others}",
        hint=f"Correct {first['path']}; GET /docs describes every request.",
        details={"problems": listed},
    )
