"""Bodies of requests, checked at the edge. Unknown fields are refused: a mistyped one would else be
ignored in silence. The body of /retrieve is in `retrieval.request_body`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from api.bodies import Body, Finite, Name


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
