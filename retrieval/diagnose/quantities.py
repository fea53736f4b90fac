"""Numbers as profilers print them: "182,432", "182.43 us", "96 Kbyte/block", "89.6 %", "0xc300".

Knows units, not metrics. Whatever is not plainly a number is None, never a guess: "1,5" and
"1.234,5" are refused, since their reading depends on where the writer lives.
"""

from __future__ import annotations

import math
import re

MAX_TEXT = 64
LARGEST = 1e18

_NUMBER = re.compile(
    r"(?P<number>0[xX][0-9a-fA-F]{1,15}"
    r"|[+-]?(?:\d{1,3}(?:,\d{3})+|\d{1,19})?(?:\.\d{1,19})?(?:[eE][+-]?\d{1,3})?)"
    r"[ \t]*(?P<unit>[A-Za-z%µ][A-Za-z/_ .-]{0,31})?"
)
_TIME = {"s": 1e6, "sec": 1e6, "second": 1e6, "ms": 1e3, "msec": 1e3, "msecond": 1e3}
_TIME |= {"us": 1.0, "µs": 1.0, "usec": 1.0, "usecond": 1.0}
_TIME |= {"ns": 1e-3, "nsec": 1e-3, "nsecond": 1e-3}
_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_SIZE = {prefix + name: factor for prefix, factor in _PREFIXES.items() for name in ("b", "byte")}
_SIZE |= {f"{p}ib": 1024.0**power for power, p in enumerate("kmgt", start=1)}
_COUNT = {prefix + name: factor for prefix, factor in _PREFIXES.items() for name in ("", "inst")}
# Per-what a size may be given; "Gbyte/second" is a rate and no size.
_PER = ("block", "thread", "cta", "workgroup")


def parse_quantity(raw: object, unit: str, scale: float = 1.0) -> float | None:
    """`raw` in the canonical `unit` (%, share, us, B or 1); None when it is no finite number.

    scale: the factor for a number without a unit of its own.
    """
    if isinstance(raw, bool):
        return None
    if isinstance(raw, (int, float)):
        return _bounded(raw, scale)
    if not isinstance(raw, str) or len(raw) > MAX_TEXT:
        return None
    match = _NUMBER.fullmatch(raw.strip())
    if match is None or not any(character.isdigit() for character in match["number"]):
        return None
    text = match["number"].replace(",", "")
    number = int(text, 16) if text[:2].lower() == "0x" else float(text)
    factor = scale if match["unit"] is None else _factor(match["unit"], unit, scale)
    return None if factor is None else _bounded(number, factor)


def _bounded(number: int | float, factor: float) -> float | None:
    if not -LARGEST <= number <= LARGEST:
        return None
    value = float(number) * factor
    return value if math.isfinite(value) and abs(value) <= LARGEST else None


def _factor(written: str, unit: str, scale: float) -> float | None:
    """The factor from the written unit to `unit`; None if there is none."""
    name = written.strip().lower()
    if unit in ("%", "share"):
        return ({"%": 1.0} if unit == "%" else {"%": 0.01}).get(name)
    if unit == "us":
        return _TIME.get(name.removesuffix("s") if len(name) > 3 else name)
    if unit == "B":
        size, _, per = name.partition("/")
        return _SIZE.get(size.rstrip("s").strip()) if per in ("", *_PER) else None
    if name in _TIME or name == "%" or name.rstrip("s") in _SIZE:
        return None
    return _COUNT.get(name, scale)
