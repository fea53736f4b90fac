"""Bodies of requests about skills: the models that routes, pages and commands check them with."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from api.bodies import Actor, Reason
from skills.lifecycle import Wanted


class SkillPatch(BaseModel):
    """The state that a skill is to have, who decides, and why."""

    model_config = ConfigDict(extra="forbid")

    state: Wanted = Field(
        description="`restored` brings back a retired or quarantined skill, in the state that its"
        " measurements allow."
    )
    actor: Actor = Field(description="Who decides.")
    reason: Reason = Field(description="Why. It is kept in the skill's history.")
    force: bool = Field(False, description="Approve although no trial supports it.")


class RevisionBody(BaseModel):
    """What is to change of a skill, who changes it, and why. What is left out stays."""

    model_config = ConfigDict(extra="forbid")

    description: Annotated[str, Field(min_length=1, max_length=1024)] | None = Field(
        None, description="What it does, and when to use it."
    )
    predicate: Annotated[str, Field(max_length=4000)] | None = Field(
        None, description="Its precondition; empty for none."
    )
    body: Annotated[str, Field(min_length=1, max_length=100_000)] | None = Field(
        None, description="Its text in Markdown, below the front matter."
    )
    actor: Actor = Field(description="Who changes it.")
    reason: Reason = Field(description="Why. It is kept in the skill's history.")

    @model_validator(mode="after")
    def _changes_something(self) -> Self:
        if self.description is None and self.predicate is None and self.body is None:
            raise ValueError("give description, predicate or body")
        return self


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
