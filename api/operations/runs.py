"""Runs: start, watch, cancel, propose candidates, review flagged ones.

Starting, cancelling and proposing run code on the machine of the service.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Ge, Le, MaxLen, MinLen

from api.operations import operation
from api.operations.bodies import Actor, CandidateBody, GoalBody, Name, ProblemBody, Reason
from kb.catalog.evaluations import ReviewDecision
from kb.errors import InvalidRequest, NotFound
from kb.plain import Doc
from optimizer.search.runs import run_store as runs
from optimizer.search.runs.run_store import AcceptedStep, ListedRuns, RunContext, ShownRun
from optimizer.search.synthesizers.external import CONTEXT_TOKENS
from retrieval.request import MAX_TOKENS
from skills.trajectories.reading import FlaggedCandidate, FlaggedNodes, flagged_nodes, review_node

if TYPE_CHECKING:
    from api.services import Services
    from optimizer.search.runs.processes import ServiceRuns

declared = partial(operation, tag="runs")
_ANY_GOAL = GoalBody.model_validate({})


def _processes(services: Services, run_id: str) -> ServiceRuns:
    """The runs of the service. Raises NotFound for a run that the caller may not see."""
    if services.access.restricted:
        runs.run_store(services).run(run_id)
    return services.running.runs


@declared("GET /runs", "List runs, newest first")
def list_runs(services: Services) -> ListedRuns:
    """Each run with its goal, state and result."""
    stored = [runs.shown_run(row) for row in runs.run_store(services).latest()]
    return {"runs": [*runs.starting_runs(services), *stored]}


@declared(
    "POST /runs",
    "Start a run",
    role="admin",
    status=202,
    runs_code=True,
    body=("RunBody", "A run to start."),
    example={
        "problem": "map_id",
        "hardware": "x86-64",
        "goal": {"language": "cpp", "candidates": 8},
        "proposers": ["builtin"],
    },
)
def start_run(
    services: Services,
    problem: Annotated[
        Name | ProblemBody, Doc("The name of a built-in problem, or a problem as text.")
    ],
    hardware: Annotated[
        Name, Doc("An id, name or alias. `auto`: the hardware of this machine.")
    ] = "auto",
    goal: Annotated[GoalBody, Doc("What it aims at and what it may spend.")] = _ANY_GOAL,
    proposers: Annotated[
        list[Literal["builtin", "external"]],
        Doc(
            "Who proposes candidates: the built-in synthesizers, callers of"
            " `POST /runs/{run_id}/candidates`, or both."
        ),
        MinLen(1),
    ] = ["builtin"],  # noqa: B006  never changed
    context_tokens: Annotated[
        int,
        Doc("Most tokens of knowledge in the context of an external proposer."),
        Ge(1),
        Le(MAX_TOKENS),
    ] = CONTEXT_TOKENS,
) -> ShownRun:
    """Search for a faster kernel. With the proposer `external`, the run waits for
    `POST /runs/{run_id}/candidates`; `GET /runs/{run_id}/context` shows the step."""
    sent = problem if isinstance(problem, str) else problem.model_dump()
    given = goal.model_dump(exclude_none=True)
    run_id = services.running.runs.start(sent, hardware, given, proposers, context_tokens)
    return {"id": run_id, "state": "starting"}


@declared("GET /runs/{run_id}", "Show the goal, state and result of a run")
def show_run(services: Services, run_id: str) -> ShownRun:
    """`state` is starting, running, finished, cancelled or failed; `ended` says why it ended."""
    return _processes(services, run_id).show(run_id)


show_tree = declared("GET /runs/{run_id}/tree", "List every candidate of a run")(runs.show_tree)
show_candidate = declared(
    "GET /runs/{run_id}/candidates/{number}", "Show one candidate with its evaluation"
)(runs.node_record)


@declared("POST /runs/{run_id}/cancel", "End a run", role="admin", runs_code=True)
def cancel_run(services: Services, run_id: str) -> ShownRun:
    """When the request returns, every process of a run that this service started has ended; those
    of another replica end within a few seconds, those of a command or of a service that was killed
    after their candidate. `note` says where processes may still be ending."""
    return _processes(services, run_id).cancel(run_id)


@declared("GET /runs/{run_id}/context", "Show the basis of the next candidate")
def show_context(services: Services, run_id: str) -> RunContext:
    """The candidate to change, its evaluation, and the knowledge about it; `briefing` is the
    same as text, as in the prompt of a language model. `waiting` is false while the run measures,
    and after it has ended."""
    return _processes(services, run_id).context(run_id)


@declared(
    "POST /runs/{run_id}/candidates",
    "Propose the candidate that a run waits for, or nothing more",
    role="admin",
    status=202,
    runs_code=True,
    body=("StepBody", "A candidate for the step that a run waits for."),
)
def propose_candidate(
    services: Services,
    run_id: str,
    step: Annotated[int, Doc("The `step` of the run's context."), Ge(1)],
    candidate: CandidateBody | None = None,
    nothing_more: Annotated[
        bool,
        Doc(
            "Instead of a candidate: no further one follows. The run then confirms its best"
            " candidate and ends, unless built-in proposers go on."
        ),
    ] = False,
    plan: Annotated[str, Doc("The change of the candidate, and its reason."), MaxLen(2_000)] = "",
    used: Annotated[
        list[Name], Doc("Ids of the excerpts, moves and skills that it is based on.")
    ] = [],  # noqa: B006  never changed
) -> AcceptedStep:
    """`step` is that of the run's context; 404 for a step that the run does not wait for, 409 for a
    step that has a candidate already."""
    if (candidate is None) != nothing_more:
        raise InvalidRequest(
            "give a candidate, or nothing_more",
            hint="`nothing_more` ends the run; a candidate is measured next.",
        )
    sent = None if candidate is None else candidate.model_dump(exclude_none=True)
    return _processes(services, run_id).propose(run_id, step, sent, plan, used)


# -- integrity flags and decisions about them; no code runs


@declared("GET /runs/{run_id}/flagged", "List candidates that wait for a person's decision")
def list_flagged(services: Services, run_id: str) -> FlaggedNodes:
    """Candidates with integrity flags that only a person can decide on. `run_id` may be the id of a
    run, or of an external trajectory that is ready. `decision` is the newest decision, null
    before the first: until then nothing is learned from the candidate, and it is left out of
    training data."""
    return FlaggedNodes(run_id, flagged_nodes(services, run_id, services.access))


@declared(
    "POST /runs/{run_id}/nodes/{number}/review",
    "Accept or refuse a flagged candidate",
    role="curator",
    status=201,
    body=("ReviewBody", "A person's decision about the integrity flags of a candidate."),
)
def review_candidate(
    services: Services,
    run_id: str,
    number: str,
    decision: Annotated[
        ReviewDecision,
        Doc("`accepted`: the flags no longer hold it back. `refused`: it counts as rejected."),
    ],
    actor: Annotated[Actor, Doc("Who decides.")],
    reason: Annotated[Reason, Doc("The evidence for the decision. It is stored.")],
) -> FlaggedCandidate:
    """Every decision is stored, and the newest counts. 409 if no flag of the candidate waits for a
    decision, or if a check rejected it, which cannot be overruled."""
    if not (number.isascii() and number.isdigit() and len(number) < 10):
        flagged_nodes(services, run_id, services.access)  # an unknown run is reported first
        raise NotFound(
            f"{run_id} has no node {number[:80]!r}",
            hint=f"GET /runs/{run_id}/flagged lists the candidates that wait for a decision.",
        )
    return review_node(services, run_id, int(number), decision, actor, reason, services.access)
