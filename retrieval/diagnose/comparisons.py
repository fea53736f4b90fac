"""A failed comparison of values in a log: the computed, expected and allowed values, and the cause
that these numbers suggest.

Reads the lines around a known line of a test (gtest, Catch2, doctest, Boost.Test, pytest, numpy,
torch.testing, JAX, Rust, Julia, tests of libraries). `comparisons_of_values` of messages.toml has
the patterns; their named groups are the fields of `Comparison`. Does not know signatures.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache

from retrieval.diagnose.message import message_words

ABOVE, BELOW = 3, 10  # lines around the known line
ROUNDING = 8.0  # times the tolerance up to which an error is taken for rounding
FEW = 0.05  # share of wrong elements below which logic and layout are right
TINY = 1e-5  # below it an expected value has no meaningful relative error
SMALL_ERROR = 0.01  # relative error up to which rounding of 16-bit types is possible
FP32_ERROR = 1e-4  # relative error up to which a long sum in fp32 explains it


@dataclass(frozen=True)
class Comparison:
    """The numbers of one failed comparison; None for what the log lacks. `error` and `allowed` are
    absolute, `relative` and `allowed_relative` are shares of the expected value; `wrong` of `total`
    elements differ; `at` is the index of the largest error."""

    got: float | None = None
    want: float | None = None
    error: float | None = None
    relative: float | None = None
    allowed: float | None = None
    allowed_relative: float | None = None
    wrong: float | None = None
    total: float | None = None
    at: str | None = None

    @property
    def share(self) -> float | None:
        """The share of wrong elements."""
        return self.wrong / self.total if self.wrong is not None and self.total else None

    @property
    def excess(self) -> float | None:
        """How many times the smallest known tolerance the error is; None without a tolerance."""
        pairs = ((self.error, self.allowed), (self.relative, self.allowed_relative))
        ratios = [e / a for e, a in pairs if e is not None and a and math.isfinite(e)]
        return min(ratios) if ratios else None

    @property
    def title(self) -> str:
        """The numbers in words; empty without any."""
        parts = []
        if self._is_equal_now:
            return f"The test failed, and 0 of {self.total:,.0f} elements differ in its report"
        if self.wrong is not None and self.total:
            parts.append(f"{self.wrong:,.0f} of {self.total:,.0f} elements are wrong")
        if self.got is not None and self.want is not None:
            parts.append(f"{self.got:.7g} instead of {self.want:.7g}")
        elif self.error is not None:
            parts.append(f"the largest error is {self.error:.3g}")
        elif self.relative is not None:
            parts.append(f"the largest relative error is {self.relative:.3g}")
        if parts and self.allowed:
            parts.append(f"{self.allowed:.3g} is allowed")
        elif parts and self.allowed_relative:
            parts.append(f"a relative error of {self.allowed_relative:.3g} is allowed")
        return ", ".join(parts)

    @property
    def remedy(self) -> str:
        """What to look for, by the size of the error and the share of wrong elements."""
        return next(filter(None, self._causes()), "")

    def _causes(self) -> Iterator[str]:
        if self._is_equal_now:
            yield (
                "The values changed between the comparison and its report, so no index is wrong:"
                " the result was read before the kernel had ended, or something writes it later."
                " Synchronise the stream (or device) before the comparison, keep the buffers alive,"
                " and repeat the test: a race inside of the kernel shows other elements each time"
                " (compute-sanitizer --tool racecheck and synccheck)."
            )
        share = self.share
        where = f" Index {self.at} has the largest error." if self.at else ""
        if any(v is not None and not math.isfinite(v) for v in (self.got, self.error)):
            yield (
                "The computed value is not finite: look for a division by zero, exp of a large"
                " value, an overflow of fp16, or memory that was not initialised, before any"
                f" question of precision.{where}"
            )
        if self.want is not None and abs(self.want) < TINY and (self.got or 0) < 10 * TINY:
            yield (
                "The expected value is nearly 0, so its relative error says nothing: add an"
                " absolute tolerance of about the rounding error of the summed terms."
            )
        if self.got == 0 and self.want:
            yield (
                "The output is 0 there: the element was not written, or its inputs were masked or"
                " read as 0. Compare the grid times the tile with the shape of the output, and"
                f" check the mask of the store and the last tile.{where}"
            )
        if self._is_rounding:
            yield (
                f"{self._size_of_error}: compare both results with a float64 reference. If the"
                " reference itself is as far off, raise the tolerance; else accumulate in fp32 and"
                " round once at the end, and check fast math, TF32 and the order of the sum."
                f"{where}"
            )
        if share is not None and share < FEW:
            yield (
                "Few elements are far off, so logic and layout are right: look at what is special"
                " about these indices (last tile of a dimension, mask, first or last step), and run"
                " twice: other elements in the second run mean a missing barrier or memory that was"
                f" not initialised.{where}"
            )
        yield self._of_ratio(where)
        if share is not None and share > 1 - FEW:
            yield (
                "Nearly all elements are wrong: suspect strides or a transposed operand, the scale"
                " factor, the element type of an argument, or a kernel that did not run; check one"
                f" element by hand.{where}"
            )
        if share is not None:
            yield (
                "A part of the elements is wrong: print which rows and columns they are; a"
                " period shows the thread, warp or tile that is mapped wrongly, and"
                f" a half or quarter a part of the tile that nothing computes.{where}"
            )
        if (self.got is not None and self.want is not None) or self.excess is not None:
            much = f" ({self.excess:.2g} times the tolerance)" if self.excess is not None else ""
            yield (
                f"The error{much} is too large for rounding: recompute this element by hand from"
                " its inputs, then check index, mask, scale and element type; a small case with"
                f" one block tells kernel from launch.{where}"
            )

    @property
    def _is_equal_now(self) -> bool:
        return self.wrong == 0 and bool(self.total)

    @property
    def _size_of_error(self) -> str:
        excess = f" ({self.excess:.2g} times the tolerance)" if self.excess is not None else ""
        relative = self.relative
        if self.got is not None and self.want:
            relative = abs(self.got - self.want) / abs(self.want)
        if relative is not None and FP32_ERROR < relative <= SMALL_ERROR:
            return (
                f"A relative error of {relative:.2g}{excess} is rounding where bf16 (0.004), fp16"
                " or TF32 (0.0005) take part, and too much for fp32 alone"
            )
        return f"The error{excess} has the size of rounding, not of a wrong index"

    @property
    def _is_rounding(self) -> bool:
        if self.got is not None and self.want:
            relative = abs(self.got - self.want) / abs(self.want)
            return relative <= SMALL_ERROR or (self.excess or math.inf) <= ROUNDING
        return self.excess is not None and self.excess <= ROUNDING

    def _of_ratio(self, where: str) -> str:
        """The remedy where a simple factor lies between both values."""
        if not self.got or not self.want:
            return ""
        ratio = self.got / self.want
        part = next(
            (name for value, name in _FACTORS if abs(ratio - value) < 0.01 * abs(value)), ""
        )
        if not part:
            return ""
        return (
            f"The result is {part} of the expected value: a part of a sum is missing or counted"
            " twice, or a scale or sign is applied wrongly: check the bound of the inner loop,"
            f" split-K, partial sums of warps, and the epilogue.{where}"
        )


NO_COMPARISON = Comparison()
_FACTORS = (
    *((0.25, "a quarter"), (0.5, "one half"), (0.75, "three quarters"), (1.5, "1.5 times")),
    *((2.0, "twice"), (4.0, "four times"), (-1.0, "the negative")),
)
_NAMES = tuple(field.name for field in fields(Comparison))


@lru_cache(maxsize=1)
def _patterns() -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(row, re.IGNORECASE) for row in message_words()["comparisons_of_values"])


def comparison_at(lines: Sequence[str], number: int) -> Comparison:
    """The comparison around line `number` (from 1): its own numbers first, then those of the lines
    below, then those above."""
    below = range(number - 1, min(len(lines), number + BELOW))
    above = range(number - 2, max(-1, number - 2 - ABOVE), -1)
    result = Comparison()
    for index in (*below, *above):
        if index > number - 1 and not lines[index].strip() and result.title:
            continue
        for pattern in _patterns():
            found = pattern.search(lines[index][:2_000])
            if found is not None:
                values = {k: v for k, v in found.groupdict().items() if v and k in _NAMES}
                result = _with(result, values)
    if result.error is None and None not in (result.got, result.want):
        assert result.got is not None and result.want is not None
        result = replace(result, error=abs(result.got - result.want))
    return result


def _with(comparison: Comparison, texts: dict[str, str]) -> Comparison:
    """The comparison with the fields that it lacks."""
    for name, text in texts.items():
        if getattr(comparison, name) is not None:
            continue
        value = text.strip() if name == "at" else _number(text)
        if value is not None:
            comparison = replace(comparison, **{name: value})  # type: ignore[arg-type]
    return comparison


def _number(text: str) -> float | None:
    text = text.strip().replace(",", "")
    scale = 0.01 if text.endswith("%") else 1.0
    text = re.sub(r"(?<=[\d.])(?:_?f(?:16|32|64)?|h|d|l)$", "", text.rstrip("%"), flags=re.I)
    try:
        return scale * float(text)
    except ValueError:
        return None
