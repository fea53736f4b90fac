"""Bodies of requests, checked at the edge. Unknown fields are refused: a mistyped one would else be
ignored in silence. The body of /retrieve is in `retrieval.request_body`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
)

MAX_SOURCE = 4_000_000


Name = Annotated[str, Field(max_length=200)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


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


class Tag(Body):
    kind: Literal["signal", "topic"]
    value: Annotated[str, Field(min_length=1, max_length=100)]


class PassagePatch(Body):
    """A correction; it survives the next revision of the document."""

    text: Annotated[str, Field(max_length=100_000)] | None = None
    tags: Annotated[list[Tag], Field(max_length=100)] | None = Field(
        None, description="All tags of the passage, in place of the present ones."
    )
    hardware: Annotated[list[Name], Field(max_length=50)] | None = Field(
        None, description="All hardware it is about; an empty list means any."
    )
    actor: Name = Field("api", description="Who corrects.")


class FactPatch(Body):
    """Accept or reject a fact, or state its value; a stated value is a person's and accepted."""

    status: Literal["accepted", "proposed", "rejected"] | None = None
    number: Finite | None = Field(None, description="In the unit of the fact.")
    text: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    note: Annotated[str, Field(max_length=2000)] | None = None
    actor: Name = Field("api", description="Who decides.")


class HardwareBody(BaseModel):
    """The structure of hardware.toml; `id` is all a newcomer needs."""

    model_config = ConfigDict(extra="allow")

    id: str = Field(examples=["acme-x1"])
    name: str | None = Field(None, description="Default: the id.")
    vendor: str | None = Field(None, description="Default: the parent's, else `unknown`.")
    parent: str | None = Field(None, description="The hardware or family above it.")
    kind: Literal["accelerator", "family", "vendor"] | None = None
    aliases: list[str] | None = None
    languages: list[str] | None = None
    summary: str | None = None
    facts: list[dict[str, Any]] | None = Field(
        None, description="key, value, unit, kind, title, publisher, locator, date, ..."
    )
    signatures: list[dict[str, Any]] | None = Field(
        None, description="pattern, signal, title, remedy: error texts of its own compiler."
    )
    toolchains: dict[str, Any] | None = Field(
        None, description="Per language: a built-in toolchain or command templates."
    )


class ProblemBody(Body):
    """A problem that is not shipped: the text of its file, and of the toml beside it."""

    source: Annotated[str, Field(max_length=MAX_SOURCE)]
    toml: Annotated[str, Field(max_length=MAX_SOURCE)] | None = None


class CandidateBody(Body):
    """A bundle."""

    files: dict[Name, str] = Field(
        min_length=1, max_length=1000, description="Relative path to text."
    )
    main: Name = Field(description="The file that is compiled or imported.")
    language: Name = Field(description="cpp, triton, torch, cuda, or a chip's own.")
    entry: Name | None = Field(None, description="Default: ModelNew, or kernlore_run.")
    parameters: dict[Name, StrictBool | StrictInt | StrictFloat | Name] = Field(
        default_factory=dict, max_length=200, description="Chosen values; compiler flags."
    )


class EvaluationBody(Body):
    """What to evaluate, and for which hardware."""

    problem: Name | ProblemBody = Field(description="A shipped name, or a problem's own text.")
    candidate: CandidateBody
    hardware: Name = Field(description="An id, name or alias, or auto for what is here.")
    cases: Annotated[list[Name], Field(max_length=200)] | None = Field(
        None, description="Only these cases of the problem."
    )


class GoalBody(Body):
    """What a run is asked for; as the options of `kernlore optimize`."""

    language: Name | None = None
    target: Annotated[float, Field(gt=0)] | None = None
    target_us: Annotated[float, Field(gt=0)] | None = None
    target_roofline: Annotated[float, Field(gt=0, le=1)] | None = None
    synthesizers: list[Literal["recipe", "sample", "compiler"]] = Field(default_factory=list)
    candidates: Annotated[int, Field(gt=0, le=10_000)] = 30
    minutes: Annotated[float, Field(gt=0)] | None = None
    usd: Annotated[float, Field(gt=0)] | None = None
    knowledge: bool = True
    policy: Literal["best-first", "mcts", "evolutionary"] = "best-first"
    memory: Literal["none", "parent", "siblings", "both", "ancestors"] = "both"
    seed: int = 0
    stall: Annotated[int, Field(gt=0)] | None = None


class RunBody(Body):
    """A run to start."""

    problem: Name | ProblemBody = Field(description="A shipped name, or a problem's own text.")
    hardware: Name = "auto"
    goal: GoalBody = GoalBody()
    proposers: list[Literal["builtin", "external"]] = Field(["builtin"], min_length=1)


class StepBody(Body):
    """A candidate for the node that a run waits for."""

    step: Annotated[int, Field(ge=1)] = Field(description="As the context says it.")
    candidate: CandidateBody
    plan: Annotated[str, Field(max_length=2_000)] = ""
    used: list[Name] = Field(default_factory=list, description="Ids of what was shown and used.")
