"""Bodies of requests, checked at the edge. Unknown fields are refused: a mistyped one would else be
ignored in silence.
"""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import BeforeValidator, Field, PlainValidator

from api.bodies import Body, Finite, Name

MAX_QUERY = 20_000
MAX_METRICS = 5_000


def _metric(value: object) -> float | str:
    """A profiler's value: a finite number, or the text that the profiler printed."""
    if isinstance(value, str):
        if len(value) > 500:
            raise ValueError("a metric's text has at most 500 characters")
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("a metric is a number, or a number as text")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError("a metric is a finite number")
    return number


def _listed(value: object) -> object:
    """`a,b` as well as ["a", "b"]."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return value


MetricValue = Annotated[float | str, PlainValidator(_metric, json_schema_input_type=float | str)]
Names = Annotated[list[Name], BeforeValidator(_listed), Field(max_length=50)]


class RetrieveBody(Body):
    """Give a signal, a raw log, a profiler's metrics or a question, or several of them."""

    signal: Name | None = Field(None, description="A run-time signal; GET /signals lists them.")
    log: str | None = Field(None, description="What the compiler or the run printed, unchanged.")
    metrics: dict[Name, MetricValue] | None = Field(
        None, description="A profiler's own metric names and values.", max_length=MAX_METRICS
    )
    query: str | None = Field(None, description="A question.", max_length=MAX_QUERY)
    hardware: Name | None = Field(None, description="An id, name or alias; GET /hardware.")
    op: Name | None = Field(None, description="The operator or its family, as matmul.")
    language: Name | None = Field(None, description="What the kernel is written in, as triton.")
    dtype: Name | None = Field(None, description="Its main element type, as bf16.")
    problem: dict[Name, Finite | Name] | None = Field(
        None,
        description="Further quantities of the problem, like compulsory_bytes or flops.",
        max_length=50,
    )
    k: int | None = Field(None, description="Excerpts in the ranked list.")
    max_tokens: int | None = Field(None, description="Budget of `context` in tokens.")
    categories: Names | None = Field(None, description="constraint, guidance, hardware.")
    skill_states: Names | None = Field(None, description="Further states of skills to consider.")
    run_id: Name | None = Field(None, description="Of an optimizer's run, for the log.")
    node_id: Name | None = Field(None, description="Of a node of that run.")


class OutcomeBody(Body):
    """What became of an answer."""

    used: Annotated[list[Name], Field(max_length=1000)] = Field(
        default_factory=list, description="Ids of the excerpts, moves and skills acted on."
    )
    correct: bool | None = Field(None, description="Whether the kernel's results were right.")
    speedup: Finite | None = Field(None, description="2.0 means twice as fast.")
    baseline_speedup: Finite | None = Field(
        None,
        description="That of what was there before, where both are over a third; else left out.",
    )
    note: Annotated[str, Field(max_length=4000)] | None = None
