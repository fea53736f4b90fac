"""The body of `POST /trajectories`: a search that another optimizer tells of, or the lines that
`kernlore runs export` wrote.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, StrictBool, StrictFloat, StrictInt

from api.http.models import MAX_SOURCE, Body, Name, ProblemBody
from skills.trajectories.external_trajectory import MAX_IDS, MAX_PLAN, MAX_STEPS, MAX_TEXTS


def _one_or_many(value: object) -> object:
    return [value] if isinstance(value, str) else value


Text = Annotated[str, Field(max_length=MAX_PLAN)]
Texts = Annotated[list[Text], BeforeValidator(_one_or_many), Field(max_length=MAX_TEXTS)]


class ToldStepBody(Body):
    """One candidate. Steps count from 1; give `source`, or `files` and `main`."""

    parent: Annotated[int, Field(ge=0)] = Field(
        0, description="Step that it changes; 0: the problem's reference."
    )
    source: Annotated[str, Field(max_length=MAX_SOURCE)] | None = None
    files: dict[Name, str] | None = Field(
        None, max_length=100, description="Relative path to text, in place of `source`."
    )
    main: Name | None = None
    entry: Name | None = Field(None, description="Default: ModelNew, or kernlore_run.")
    language: Name | None = Field(None, description="Default: the trajectory's.")
    parameters: dict[Name, StrictBool | StrictInt | StrictFloat | Name] = Field(
        default_factory=dict, max_length=200, description="Compiler flags; chosen values."
    )
    plan: Text = ""
    claimed: Annotated[list[Name], Field(max_length=MAX_IDS)] = Field(
        default_factory=list, description="Ids of excerpts, moves and skills that it used."
    )
    told: Texts = Field(default_factory=list, description="What it says about it; kept as data.")
    cases: Annotated[list[Name], Field(max_length=MAX_IDS)] = Field(
        default_factory=list, description="Only those of the problem that it is for; none: all."
    )
    claimed_speedup: StrictFloat | StrictInt | None = Field(
        None, description="Kept beside what is measured here, never used."
    )


class TrajectoryBody(Body):
    """Give `steps`, or `lines` of an export. Everything is evaluated here before it is believed."""

    problem: Name | ProblemBody | None = Field(
        None, description="A shipped name, or a problem's own text; lines may do without."
    )
    hardware: Name | None = Field(None, description="An id, name or alias, or auto.")
    language: Name | None = None
    steps: Annotated[list[ToldStepBody], Field(min_length=1, max_length=MAX_STEPS)] | None = None
    lines: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=MAX_STEPS + 1)] | None = (
        None
    )
    actor: Annotated[str, Field(min_length=1, max_length=100)] = Field(
        "external", description="Who tells it."
    )
    licence: Annotated[str, Field(min_length=1, max_length=100)] | None = Field(
        None, description="SPDX id of problem and sources, where you may state it."
    )
