"""Time stamps of the catalog: UTC, ISO 8601 with microseconds, so text order is time order."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


def now() -> str:
    """The present time stamp."""
    return stamp(datetime.now(UTC))


def stamp(moment: datetime) -> str:
    """The time stamp of an aware datetime."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def after(seconds: float) -> str:
    """The time stamp `seconds` from now (negative: ago)."""
    return stamp(datetime.now(UTC) + timedelta(seconds=seconds))
