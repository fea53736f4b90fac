"""JSON that operations take as one value: descriptions of hardware, problems, candidates, searches.

Unknown fields are refused: a mistyped one would otherwise be ignored in silence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    model_validator,
)

from kb.errors import InvalidRequest
from skills.trajectories.external import MAX_IDS, MAX_ORIGIN, MAX_PLAN, MAX_STEPS, MAX_TEXTS

MAX_SOURCE = 4_000_000
MAX_LINES = 20_000  # of a transcript

Name = Annotated[str, Field(max_length=200)]
Actor = Annotated[str, Field(min_length=1, max_length=200, pattern=r"\S")]
Reason = Annotated[str, Field(min_length=1, max_length=2_000, pattern=r"\S")]


class Body(BaseModel):
    """JSON whose unknown fields and loosely typed values are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


class HardwareBody(BaseModel):
    """The structure of a hardware.toml. Only `id` is required."""

    model_config = ConfigDict(extra="allow")

    @model_validator(mode="wrap")
    @classmethod
    def _unchecked(cls, value: Any, handler: Any) -> Any:
        """Skip validation: `kb.hardware.schema` checks the fields, and names every error."""
        if not isinstance(value, dict):
            raise InvalidRequest("no JSON object", hint='Send at least {"id": "..."}.')
        return cls.model_construct(set(value), **value)

    @property
    def structure(self) -> Mapping[str, Any]:
        """The given fields, as the table of a hardware.toml."""
        given = {**vars(self), **(self.model_extra or {})}
        return {name: given[name] for name in self.model_fields_set}

    id: str = Field(examples=["acme-x1"], description="Lower case, digits and hyphens.")
    name: str | None = Field(None, description="Default: the id.")
    vendor: str | None = Field(None, description="Default: the parent's, or `unknown`.")
    parent: str | None = Field(
        None, description="The hardware, family or vendor that it inherits knowledge from."
    )
    kind: Literal["accelerator", "family", "vendor"] | None = Field(
        None, description="Default: accelerator."
    )
    aliases: list[str] | None = Field(None, description="Other names that requests may use.")
    languages: list[str] | None = Field(None, description="Languages that kernels can be in.")
    summary: str | None = Field(None, description="One sentence about it.")
    facts: list[dict[str, Any]] | None = Field(
        None,
        description="Numbers with their sources: key, value, unit, kind, title, publisher,"
        " locator, date.",
    )
    signatures: list[dict[str, Any]] | None = Field(
        None, description="Error texts of its compiler: pattern, signal, title, remedy."
    )
    rules: list[dict[str, Any]] | None = Field(
        None, description="Conclusions from its counters: id, when, signal, title, why, confidence."
    )
    metrics: dict[str, Any] | None = Field(
        None, description="For each of its counters that is a canonical metric: canonical, scale."
    )
    terms: dict[str, str] | None = Field(
        None, description="Words of its manuals with the concept that each means, empty for none."
    )
    toolchains: dict[str, Any] | None = Field(
        None,
        description="For each language a built-in toolchain, or command templates with the entry,"
        " interface, arguments, scalars and a sample of a kernel.",
    )


class ProblemBody(Body):
    """A problem that is not built in, as text."""

    source: Annotated[str, Field(max_length=MAX_SOURCE)] = Field(
        description="The text of the problem file."
    )
    toml: Annotated[str, Field(max_length=MAX_SOURCE)] | None = Field(
        None, description="The text of its problem.toml."
    )
    name: Name | None = Field(None, description="Its name. Default: sent.")


class CandidateBody(Body):
    """A kernel as one or more files."""

    files: dict[Name, str] = Field(
        min_length=1, max_length=1000, description="Relative path to text."
    )
    main: Name = Field(description="The file that is compiled or imported.")
    language: Name = Field(
        description="cpp, triton, torch, cuda, or a language of the chip's own toolchain."
    )
    entry: Name | None = Field(
        None,
        description="The class or function that is called. Default: ModelNew in Python,"
        " else that of the toolchain.",
    )
    parameters: dict[Name, StrictBool | StrictInt | StrictFloat | Name] = Field(
        default_factory=dict,
        max_length=200,
        description="Parameter values that were chosen, and compiler flags.",
    )


class GoalBody(Body):
    """The goal and the budget of a run, like the options of `kernlore optimize`."""

    language: Name | None = Field(None, description="Only candidates in this language.")
    target: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Stop at this speed-up over the reference; 1.5 means 1.5 times as fast."
    )
    target_us: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Stop at this many microseconds a call."
    )
    target_roofline: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None, description="Stop at this share of the device's measured ceilings."
    )
    synthesizers: list[Literal["recipe", "sample", "traced", "compiler"]] = Field(
        default_factory=list, description="Only these built-in proposers. Empty: all."
    )
    candidates: Annotated[int, Field(gt=0, le=10_000)] = Field(
        30, description="Try at most this many candidates."
    )
    minutes: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Search for at most this many minutes."
    )
    usd: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Spend at most this many US dollars on language models."
    )
    knowledge: bool = Field(True, description="Whether proposers are shown retrieved knowledge.")
    policy: Literal["best-first", "mcts", "evolutionary"] = Field(
        "best-first", description="How the next candidate to improve is chosen."
    )
    memory: Literal["none", "parent", "siblings", "both", "ancestors"] = Field(
        "both", description="Which earlier candidates a proposer is shown."
    )
    seed: int = Field(0, description="Random seed.")
    stall: Annotated[int, Field(gt=0)] | None = Field(
        None, description="Stop after this many candidates without an improvement."
    )


class SkillBody(BaseModel):
    """A skill's folder as texts."""

    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-z0-9-]+$")] = Field(
        description="The name of the folder, which is the skill's name."
    )
    files: dict[Annotated[str, Field(min_length=1, max_length=200)], str] = Field(
        min_length=1, description="Relative path to text. SKILL.md must be among them."
    )
    actor: Actor = Field("http", description="Who sends it.")


def _one_or_many(value: object) -> object:
    return [value] if isinstance(value, str) else value


Text = Annotated[str, Field(max_length=MAX_PLAN)]
Texts = Annotated[list[Text], BeforeValidator(_one_or_many), Field(max_length=MAX_TEXTS)]


class TrajectoryStepBody(Body):
    """One candidate of an external search. Give `source`, or `files` and `main`.

    Steps are numbered from 1 in the order of the list.
    """

    parent: Annotated[int, Field(ge=0)] = Field(
        0, description="Number of the step that it changes. 0: the problem's reference."
    )
    source: Annotated[str, Field(max_length=MAX_SOURCE)] | None = Field(
        None, description="The kernel as one file."
    )
    files: dict[Name, str] | None = Field(
        None, max_length=100, description="Relative path to text, instead of `source`."
    )
    main: Name | None = Field(None, description="The file of `files` that is compiled or imported.")
    entry: Name | None = Field(
        None,
        description="The class or function that is called. Default: ModelNew in Python,"
        " else that of the toolchain.",
    )
    language: Name | None = Field(None, description="Default: the language of the trajectory.")
    parameters: dict[Name, StrictBool | StrictInt | StrictFloat | Name] = Field(
        default_factory=dict,
        max_length=200,
        description="Compiler flags, and parameter values that were chosen.",
    )
    plan: Text = Field("", description="The change of the step, and its reason.")
    claimed: Annotated[list[Name], Field(max_length=MAX_IDS)] = Field(
        default_factory=list,
        description="Ids of the excerpts, moves and skills that it claims to have used.",
    )
    told: Texts = Field(
        default_factory=list, description="Remarks of the optimizer, stored as data."
    )
    cases: Annotated[list[Name], Field(max_length=MAX_IDS)] = Field(
        default_factory=list,
        description="Evaluate it only on these cases of the problem. Empty: on all.",
    )
    claimed_speedup: StrictFloat | StrictInt | None = Field(
        None, description="The speed-up that the optimizer reports, only to be compared."
    )
    provenance: dict[Name, Annotated[str, Field(max_length=MAX_ORIGIN)]] = Field(
        default_factory=dict,
        max_length=MAX_TEXTS,
        description="Where it comes from, such as repository, commit and path. Says nothing about"
        " its merit.",
    )


class TrajectoryBody(Body):
    """A search of another optimizer. Give `steps`, or `lines` of an export or of a session.

    Every step is evaluated here before anything is learned from it.
    """

    problem: Name | ProblemBody | None = Field(
        None,
        description="The name of a built-in problem, or a problem as text. `lines` about a"
        " built-in problem need none.",
    )
    hardware: Name | None = Field(
        None, description="An id, name or alias. `auto`: the hardware of this machine."
    )
    language: Name | None = Field(None, description="The language of every step without its own.")
    steps: Annotated[list[TrajectoryStepBody], Field(min_length=1, max_length=MAX_STEPS)] | None = (
        Field(None, description="The candidates in the order in which they were tried.")
    )
    lines: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=MAX_LINES)] | None = (
        Field(
            None,
            description="The lines of the trajectory.jsonl of an exported run, or of the transcript"
            " of a coding agent, which needs `problem` and `hardware`.",
        )
    )
    entry: Name | None = Field(
        None, description="The class or function of the candidates of a transcript."
    )
    actor: Annotated[str, Field(min_length=1, max_length=100)] = Field(
        "external", description="Which optimizer it comes from."
    )
    licence: Annotated[str, Field(min_length=1, max_length=100)] | None = Field(
        None, description="SPDX id of the licence of problem and sources, if you may state it."
    )
