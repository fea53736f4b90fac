"""The answers about runs and trajectories, as models for the interface description; those about
everything else, and the table of routes, are in `api.http.answers`.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from kb.catalog.evaluations import ReviewDecision

Json = dict[str, Any]


# -- runs


class ShownRun(BaseModel):
    """A search. One that is starting has `id` and `state` alone."""

    id: str
    state: str = Field(description="starting, running, finished, cancelled or failed.")
    ended: str = Field("", description="Why it ended.")
    problem: str = ""
    problem_sha256: str = ""
    hardware: str = ""
    goal: Json = Field(default_factory=dict)
    started_at: float = 0.0
    seconds: float = 0.0
    environment: dict[str, str] = Field(default_factory=dict)
    asked: Json = Field(default_factory=dict)
    cluster: Json = Field(
        default_factory=dict, description="Where candidates are measured; empty for one machine."
    )
    result: Json = Field(default_factory=dict)


class ListedRuns(BaseModel):
    """Runs, newest first."""

    runs: list[ShownRun]


class ListedNode(BaseModel):
    """A candidate as lists show it; number 0 is the reference."""

    number: int
    parent: int | None
    language: str | None
    plan: str
    state: str
    validity: str | None
    message: str
    speedup: Json | None
    signals: list[str]
    metrics: Json


class RunTree(BaseModel):
    """Every candidate of a run."""

    nodes: list[ListedNode]


class ShownNode(BaseModel):
    """A candidate with its files, the knowledge shown to its proposer, and its evaluation."""

    number: int
    parent: int | None
    state: str
    proposal: Json | None
    evaluation: Json | None
    shown: Json


class RunContext(BaseModel):
    """What the next candidate can be based on; `context` is null while nothing is waited for."""

    waiting: bool
    state: str
    context: Json | None


class AcceptedStep(BaseModel):
    """A candidate was handed to its run."""

    run: str
    step: int
    state: Literal["accepted"]


class ShownReview(BaseModel):
    """A person's decision about a candidate."""

    decision: ReviewDecision
    actor: str
    reason: str
    created_at: str


class FlaggedNode(BaseModel):
    """A candidate with flags that only a person can decide on."""

    node: int
    speedup: Json | None
    flags: list[str]
    evaluation: str
    decision: str | None
    review: ShownReview | None
    told: str = Field(description="The decision in words.")


class FlaggedNodes(BaseModel):
    """What waits for a person in a run."""

    run: str
    flagged: list[FlaggedNode]


# -- trajectories


class ListedTrajectory(BaseModel):
    """The search of another optimizer."""

    id: str
    origin: str
    state: str = Field(description="queued, running, ready, failed or unverified.")
    created_at: str | None


class ListedTrajectories(BaseModel):
    """Trajectories, newest first."""

    trajectories: list[ListedTrajectory]


class ShownTrajectory(BaseModel):
    """A trajectory; `trajectory` is there once it was measured."""

    id: str
    state: str = ""
    trajectory: Json | None = None
