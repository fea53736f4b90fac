"""Integrity flags over HTTP: what waits for a person, and the person's answer. Runs nothing."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends
from pydantic import BaseModel, ConfigDict, Field

from api.http.bodies import json_body
from api.http.dependencies import Access, Parts
from kb.catalog.search.reviews import ReviewDecision
from kb.errors import NotFound

router = APIRouter(tags=["runs"])


class ReviewBody(BaseModel):
    """A person's answer to the flags of a candidate."""

    model_config = ConfigDict(extra="forbid")

    decision: ReviewDecision = Field(
        description="`accepted`: the flags hold it no longer. `refused`: it counts as rejected."
    )
    actor: Annotated[str, Field(min_length=1, max_length=200, pattern=r"\S")] = Field(
        description="Who says so."
    )
    reason: Annotated[str, Field(min_length=1, max_length=2_000, pattern=r"\S")] = Field(
        description="What was looked at; it is kept."
    )


_BODY = {"application/json": {"schema": ReviewBody.model_json_schema()}}


@router.get("/runs/{run_id}/flagged", summary="Candidates that wait for a person")
def flagged(run_id: str, parts: Parts, access: Access) -> dict[str, Any]:
    """Candidates of a run, or of a told trajectory that is ready, with integrity flags that only a
    person can decide on. `decision` is the newest answer, null while nobody has answered: until
    then nothing is learned from the candidate, and it is left out of training data."""
    from skills.trajectories.reviews import flagged_nodes

    found = flagged_nodes(parts, run_id, access)
    return {"run": run_id, "flagged": [one.as_json() for one in found]}


@router.post(
    "/runs/{run_id}/nodes/{number}/review",
    summary="Accept or refuse a flagged candidate",
    status_code=201,
    openapi_extra={"requestBody": {"required": True, "content": _BODY}},
)
def review(
    run_id: str,
    number: str,
    parts: Parts,
    access: Access,
    body: Annotated[ReviewBody, Depends(json_body(ReviewBody))],
) -> dict[str, Any]:
    """Answers are kept, the newest counts. 409 where no flag of the candidate waits for a person,
    or a check rejected it, which nobody can overrule."""
    from skills.trajectories.reviews import flagged_nodes, review_node

    if not (number.isascii() and number.isdigit() and len(number) < 10):
        flagged_nodes(parts, run_id, access)  # an unknown run is said first
        raise NotFound(
            f"{run_id} has no node {number[:80]!r}",
            hint=f"GET /runs/{run_id}/flagged shows what waits for a person.",
        )
    answered = review_node(
        parts, run_id, int(number), body.decision, body.actor, body.reason, access
    )
    return answered.as_json()
