"""Bodies of requests, as both doors take them: the models, and strict reading of JSON into them.

HTTP routes and commands check what they were sent with the same models, so both refuse alike.
Unknown fields are refused: a mistyped one would otherwise be ignored in silence. The body of
`/retrieve` is in `api.http.models`. Nothing here knows a route or a command.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Annotated, Any, Literal, NoReturn, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    ValidationError,
    model_validator,
)

from api.body_fields import meant_field
from kb.catalog.evaluations import ReviewDecision
from kb.errors import InvalidRequest, invalid_fields
from kb.hardware.facts import SubjectKind
from optimizer.search.synthesizers.external import CONTEXT_TOKENS
from retrieval.request import MAX_TOKENS
from skills.trajectories.external import MAX_IDS, MAX_PLAN, MAX_STEPS, MAX_TEXTS

MAX_SOURCE = 4_000_000

ModelT = TypeVar("ModelT", bound=BaseModel)
Name = Annotated[str, Field(max_length=200)]
Actor = Annotated[str, Field(min_length=1, max_length=200, pattern=r"\S")]
Reason = Annotated[str, Field(min_length=1, max_length=2_000, pattern=r"\S")]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class Body(BaseModel):
    """A body whose unknown fields and loosely typed values are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Tag(Body):
    """A label of a passage: a signal id or a topic."""

    kind: Literal["signal", "topic"]
    value: Annotated[str, Field(min_length=1, max_length=100)]


class PassagePatch(Body):
    """A correction of a passage. It also holds in later revisions of the document."""

    text: Annotated[str, Field(max_length=100_000)] | None = Field(
        None, description="The corrected text."
    )
    tags: Annotated[list[Tag], Field(max_length=100)] | None = Field(
        None, description="All tags of the passage; they replace the present ones."
    )
    hardware: Annotated[list[Name], Field(max_length=50)] | None = Field(
        None, description="All hardware that it is about; an empty list means any hardware."
    )
    actor: Name = Field("api", description="Who makes the correction.")

    @property
    def tag_pairs(self) -> list[tuple[str, str]] | None:
        """The tags as pairs of kind and value."""
        return None if self.tags is None else [(tag.kind, tag.value) for tag in self.tags]


class SymbolPatch(Body):
    """A correction of the card of a name, or a decision about a proposed one; fields that are left
    out stay."""

    signature: str | None = Field(None, max_length=2_000, description="How it is written.")
    meaning: str | None = Field(None, max_length=4_000, description="What it does.")
    example: str | None = Field(None, max_length=2_000, description="A line that uses it.")
    limits: list[str] | None = Field(None, max_length=50, description="What bounds it.")
    status: Literal["accepted", "rejected"] | None = Field(
        None, description="The decision about a card that a model has proposed."
    )


class FactPatch(Body):
    """Accepts or rejects a fact, or corrects its value. A corrected value counts as accepted."""

    status: Literal["accepted", "proposed", "rejected"] | None = Field(
        None, description="The new status of the fact."
    )
    number: Finite | None = Field(None, description="The value, in the unit of the fact.")
    text: Annotated[str, Field(min_length=1, max_length=200)] | None = Field(
        None, description="The value as text, where it is no number."
    )
    note: Annotated[str, Field(max_length=2000)] | None = Field(
        None, description="A remark that is shown with the fact."
    )
    withdraw: bool = Field(
        False, description="Take the correction of its value back: it is as it was read."
    )
    actor: Name = Field("api", description="Who decides.")


class FactFilterBody(Body):
    """Which proposed facts are meant; what is left out means any."""

    key: Name | None = Field(None, description="The key of the fact, such as l2_size.")
    subject: Name | None = Field(
        None, description="A part of what names the subject; empty for facts without a subject."
    )
    subject_kind: SubjectKind | None = Field(
        None, description="Whether it is about the chip itself, a family above it, or unclear."
    )
    document: Name | None = Field(None, description="The id of a document, or part of its title.")


class FactsPatch(Body):
    """Accepts or rejects many facts at once: those in `ids`, or the proposed ones of a filter."""

    status: Literal["accepted", "rejected"] = Field(description="The decision.")
    ids: Annotated[list[Name], Field(min_length=1, max_length=1000)] | None = Field(
        None, description="Facts of this hardware."
    )
    where: FactFilterBody | None = Field(
        None, description="A filter of proposed facts; an empty one means all of them."
    )
    include_unclear: bool = Field(
        False, description="Also accept facts whose subject is not clearly this hardware."
    )
    actor: Name = Field("api", description="Who decides.")


class HardwareBody(BaseModel):
    """The structure of a hardware.toml. Only `id` is required."""

    model_config = ConfigDict(extra="allow")

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
        None,
        description="Error texts of its own compiler: pattern, signal, title, remedy.",
    )
    rules: list[dict[str, Any]] | None = Field(
        None,
        description="Conclusions from its own counters: id, when, signal, title, why, confidence.",
    )
    metrics: dict[str, Any] | None = Field(
        None,
        description="For each of its own counters that is a canonical metric: canonical, scale.",
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
        None, description="The text of the problem.toml beside it, if there is one."
    )


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
        " else what the chip's toolchain states, else kernlore_run.",
    )
    parameters: dict[Name, StrictBool | StrictInt | StrictFloat | Name] = Field(
        default_factory=dict,
        max_length=200,
        description="Parameter values that were chosen, and compiler flags.",
    )


class EvaluationBody(Body):
    """A candidate to evaluate, and on which hardware."""

    problem: Name | ProblemBody = Field(
        description="The name of a built-in problem, or a problem as text."
    )
    candidate: CandidateBody
    hardware: Name = Field(
        "auto", description="An id, name or alias. `auto`: the hardware of this machine."
    )
    cases: Annotated[list[Name], Field(max_length=200)] | None = Field(
        None, description="Evaluate only these cases of the problem."
    )


class GoalBody(Body):
    """What a run aims at and how much it may spend, like the options of `kernlore optimize`."""

    language: Name | None = Field(None, description="Only candidates in this language.")
    target: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Stop at this speed-up over the reference; 1.5 means 1.5 times as fast."
    )
    target_us: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Stop at this many microseconds a call."
    )
    target_roofline: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None, description="Stop at this share of what the device's measured ceilings allow."
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


class RunBody(Body):
    """A run to start."""

    problem: Name | ProblemBody = Field(
        description="The name of a built-in problem, or a problem as text."
    )
    hardware: Name = Field(
        "auto", description="An id, name or alias. `auto`: the hardware of this machine."
    )
    goal: GoalBody = Field(
        default_factory=lambda: GoalBody.model_validate({}),
        description="What it aims at and what it may spend.",
    )
    proposers: list[Literal["builtin", "external"]] = Field(
        ["builtin"],
        min_length=1,
        description="Who proposes candidates: the built-in synthesizers, callers of"
        " `POST /runs/{run_id}/candidates`, or both.",
    )
    context_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] = Field(
        CONTEXT_TOKENS,
        description="Most tokens of knowledge in the context of an external proposer.",
    )


class StepBody(Body):
    """A candidate for the step that a run waits for."""

    step: Annotated[int, Field(ge=1)] = Field(description="The `step` of the run's context.")
    candidate: CandidateBody | None = None
    nothing_more: bool = Field(
        False,
        description="In place of a candidate: there is none to come. The run then confirms its best"
        " candidate and ends, unless built-in proposers go on.",
    )
    plan: Annotated[str, Field(max_length=2_000)] = Field(
        "", description="What the candidate changes, and why."
    )
    used: list[Name] = Field(
        default_factory=list,
        description="Ids of the excerpts, moves and skills that it is based on.",
    )

    @model_validator(mode="after")
    def _either(self) -> StepBody:
        if (self.candidate is None) != self.nothing_more:
            raise ValueError("give a candidate, or nothing_more")
        return self


class ReviewBody(BaseModel):
    """A person's decision about the integrity flags of a candidate."""

    model_config = ConfigDict(extra="forbid")

    decision: ReviewDecision = Field(
        description="`accepted`: the flags no longer hold it back. `refused`: it counts as"
        " rejected."
    )
    actor: Actor = Field(description="Who decides.")
    reason: Reason = Field(description="What was looked at. It is kept.")


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
        None, description="The kernel, where it is one file."
    )
    files: dict[Name, str] | None = Field(
        None, max_length=100, description="Relative path to text, instead of `source`."
    )
    main: Name | None = Field(None, description="The file of `files` that is compiled or imported.")
    entry: Name | None = Field(
        None,
        description="The class or function that is called. Default: ModelNew in Python,"
        " else what the chip's toolchain states, else kernlore_run.",
    )
    language: Name | None = Field(None, description="Default: the language of the trajectory.")
    parameters: dict[Name, StrictBool | StrictInt | StrictFloat | Name] = Field(
        default_factory=dict,
        max_length=200,
        description="Compiler flags, and parameter values that were chosen.",
    )
    plan: Text = Field("", description="What the step changes, and why.")
    claimed: Annotated[list[Name], Field(max_length=MAX_IDS)] = Field(
        default_factory=list,
        description="Ids of the excerpts, moves and skills that it says it used.",
    )
    told: Texts = Field(
        default_factory=list, description="Remarks of the optimizer. They are kept as data."
    )
    cases: Annotated[list[Name], Field(max_length=MAX_IDS)] = Field(
        default_factory=list,
        description="Evaluate it only on these cases of the problem. Empty: on all.",
    )
    claimed_speedup: StrictFloat | StrictInt | None = Field(
        None,
        description="The speed-up that the optimizer reports. It is kept beside what is measured"
        " here, and never used.",
    )


class TrajectoryBody(Body):
    """A search of another optimizer. Give `steps`, or `lines` of an export.

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
    lines: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=MAX_STEPS + 1)] | None = (
        Field(None, description="The lines of the trajectory.jsonl of an exported run.")
    )
    actor: Annotated[str, Field(min_length=1, max_length=100)] = Field(
        "external", description="Which optimizer it comes from."
    )
    licence: Annotated[str, Field(min_length=1, max_length=100)] | None = Field(
        None, description="SPDX id of the licence of problem and sources, if you may state it."
    )


# -- reading


def validated(model: type[ModelT], value: Any) -> ModelT:
    """The value as this model. Raises InvalidRequest that names each field that is wrong."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False)
        raise invalid_fields(problems, partial(meant_field, model)) from None


def load_json(raw: bytes) -> Any:
    """Read strict JSON: UTF-8, finite numbers, text that can be stored. Raises InvalidRequest."""
    try:
        value = json.loads(raw, parse_constant=_not_finite)
    except RecursionError:
        raise InvalidRequest("the JSON is nested too deeply", hint="Send it flatter.") from None
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"the body is not UTF-8: {error}", hint="Encode it as UTF-8."
        ) from None
    except ValueError as error:
        raise InvalidRequest(
            f"broken JSON: {error}", hint="Correct the syntax at that place."
        ) from None
    # Both can only come in as escapes.
    if b"\\u" in raw:
        check_texts(value)
    return value


def _not_finite(name: str) -> NoReturn:
    raise InvalidRequest(
        f"{name} is not a JSON number", hint="Leave the value out, or send a finite number."
    )


def check_texts(value: Any) -> None:
    """Refuse NUL and half characters anywhere in a decoded body. Raises InvalidRequest."""
    if isinstance(value, str):
        check_text(value)
    elif isinstance(value, dict):
        for key, entry in value.items():
            check_text(key)
            check_texts(entry)
    elif isinstance(value, list):
        for entry in value:
            check_texts(entry)


def check_text(text: str, what: str = "the text") -> str:
    """The text itself, if it can be stored. Raises InvalidRequest for NUL and half characters."""
    if "\x00" in text:
        raise InvalidRequest(f"{what} holds a NUL character", hint="Send text, not binary data.")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(
            f"{what} holds half of a surrogate pair", hint="Encode the whole character."
        ) from None
    return text
