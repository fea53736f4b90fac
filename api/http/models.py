"""Bodies of requests, checked at the edge. Unknown fields are refused: a mistyped one would else be
ignored in silence. The body of /retrieve is in `retrieval.request_body`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from api.bodies import Body, Finite, Name


class OutcomeBody(Body):
    """What a caller did with an answer, and how the kernel turned out."""

    used: Annotated[list[Name], Field(max_length=1000)] = Field(
        default_factory=list, description="Ids of the excerpts, moves and skills acted on."
    )
    correct: bool | None = Field(None, description="Whether the kernel's results were correct.")
    speedup: Finite | None = Field(
        None, description="Speed-up of the kernel; 2.0 means twice as fast."
    )
    baseline_speedup: Finite | None = Field(
        None,
        description="Speed-up of the kernel before the change, where both are over the same"
        " reference; otherwise left out.",
    )
    note: Annotated[str, Field(max_length=4000)] | None = None
