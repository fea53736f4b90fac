"""Time stamps of the catalog: UTC, ISO 8601 with microseconds, so text order is time order."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


def now() -> str:
    """The present time stamp."""
    return stamp(datetime.now(UTC))


def stamp(moment: datetime) -> str:
    """The time stamp of an aware datetime."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def time_left(seconds: float) -> str:
    """A time left as a person reads it: 40 s, 12 min, 2 h."""
    if seconds < 90:
        return f"{max(5, round(seconds / 5) * 5)} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{round(seconds / 3600)} h"


def after(seconds: float) -> str:
    """The time stamp `seconds` from now (negative: ago)."""
    return stamp(datetime.now(UTC) + timedelta(seconds=seconds))
