"""Tools that measure: a kernel, an optimization that an agent drives, and kernels that were tried
elsewhere.

They run the code of their caller. Their routes allow that to callers on the machine of the service
only, unless `evaluate_over_http` is set.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from api.mcp import results
from api.mcp.routes import Routes
from api.mcp.tool import READS, RECORDS, REPEATABLE, WAIT, Arguments, Wait, until
from api.operations.bodies import TrajectoryStepBody
from kb.errors import InvalidRequest
from optimizer.search.runs.run_store import problem_name
from skills.trajectories.external import MAX_STEPS, file_name

CONTEXT_TOKENS = 6_000  # the window of an agent is shared with everything else that it does
BEGINNING, MEASURING = ("starting",), ("starting", "running")

Name = Annotated[str, Field(min_length=1, max_length=200)]


class ProblemArguments(Arguments):
    problem: Name | None = Field(None, description="A built-in problem, like softmax.")
    problem_source: str | None = Field(
        None,
        description="Or the text of a Python file with `Model`, `get_inputs()` and"
        " `get_init_inputs()`.",
    )
    problem_toml: str | None = Field(
        None, description="Cases, dtypes and tolerances of `problem_source`."
    )


class KernelArguments(Arguments):
    language: Name | None = Field(
        None, description="cpp, triton, torch, cuda, or a language of the chip's own toolchain."
    )
    source: str | None = Field(None, description="The kernel as one source text.")
    files: dict[str, str] | None = Field(
        None, description="Or several files, path to text, with `main`."
    )
    main: Name | None = Field(None, description="The file that is compiled or imported.")
    entry: Name | None = Field(
        None, description="The class or function that is called; each language has a default."
    )
    parameters: dict[str, bool | int | float | str] | None = Field(
        None, description="Chosen parameters and compiler flags."
    )


class EvaluateArguments(ProblemArguments, KernelArguments):
    hardware: Name = Field("auto", description="Id, name or alias; auto: this machine's.")
    cases: list[str] | None = Field(None, description="Only these cases of the problem.")
    evaluation_id: Name | None = Field(
        None, description="Show this evaluation; leave out everything else."
    )
    wait_seconds: Wait = WAIT


class StartArguments(ProblemArguments):
    hardware: Name = Field("auto", description="Id, name or alias; auto: this machine's.")
    language: Name | None = Field(None, description="Only kernels in it.")
    candidates: Annotated[int, Field(gt=0, le=10_000)] = Field(
        30, description="How many kernels it tries at most."
    )
    minutes: Annotated[float, Field(gt=0)] | None = Field(
        None, description="End it after so many minutes."
    )
    target: Annotated[float, Field(gt=0)] | None = Field(
        None, description="End it at this speed-up over the reference."
    )
    wait_seconds: Wait = WAIT


class NextArguments(StartArguments):
    run_id: Name | None = Field(
        None,
        description="A run to continue; it keeps the fields that it was started with. Default:"
        " start one.",
    )
    knowledge: bool = Field(True, description="Of a new run: whether to retrieve knowledge.")
    context_tokens: Annotated[int, Field(ge=1, le=100_000)] = Field(
        CONTEXT_TOKENS, description="Of a new run: most tokens of knowledge in a briefing."
    )
    whole: bool = Field(
        False,
        description="Repeat what the first briefings of the run have: problem, interface, chip.",
    )


class RunsArguments(Arguments):
    run_id: Name | None = Field(None, description="Only this run.")
    limit: Annotated[int, Field(ge=1, le=50)] = Field(10, description="Most runs.")
    wait_seconds: Wait = Field(
        0.0, description="With `run_id`: longest time until it has ended, in seconds."
    )


class CancelArguments(Arguments):
    run_id: Name


class SubmitArguments(KernelArguments):
    run_id: Name
    step: Annotated[int, Field(ge=1)] = Field(description="`step` of the context.")
    plan: Annotated[str, Field(max_length=2_000)] = Field(
        "", description="The change that the kernel makes, and its reason."
    )
    used: list[str] = Field(
        default_factory=list, description="`knowledge_ids` that the kernel is based on."
    )
    nothing_more: bool = Field(
        False,
        description="In place of a kernel: you have no better one. The run measures its best once"
        " more and ends, also where `step` is an earlier one.",
    )
    wait_seconds: Wait = WAIT


class TrajectoryArguments(ProblemArguments):
    hardware: Name
    steps: Annotated[list[TrajectoryStepBody], Field(min_length=1, max_length=MAX_STEPS)] = Field(
        description="The kernels in the order in which they were tried."
    )
    language: Name | None = Field(None, description="The language of steps without their own.")
    actor: Annotated[str, Field(min_length=1, max_length=100)] = Field(
        "external", description="Which optimizer or agent tried them."
    )


async def evaluate_candidate(routes: Routes, given: EvaluateArguments) -> results.Evaluated:
    """Compile, check and time one kernel against the reference of a problem: is it correct on
    every case, how fast, and why. Runs the code. In cpp and cuda: `int kernlore_run(const
    kernlore_tensor *t, const kernlore_counts *c)` of `kernlore_abi.h`. `next_candidate_context`
    has the interface, for many kernels of one problem."""
    if given.evaluation_id is None:
        body = {"problem": _problem(given), "candidate": _kernel(given), "hardware": given.hardware}
        body |= {"cases": given.cases} if given.cases is not None else {}
        job = await routes.call("evaluate_candidate", **body)
    else:
        job = await routes.call("show_evaluation", evaluation_id=given.evaluation_id)

    async def state() -> Any:
        return await routes.call("show_evaluation", evaluation_id=job["id"])

    async def ended() -> Any:
        shown = await state()
        return shown if shown["state"] in ("ready", "failed") else None

    shown = await until(ended, given.wait_seconds) or await state()
    knowledge = (shown["result"] or {}).get("knowledge")
    return results.Evaluated.model_validate({**shown, "knowledge": knowledge})


async def next_candidate_context(routes: Routes, given: NextArguments) -> results.NextContext:
    """Optimize a kernel yourself, step by step. A problem starts a run; the answer has the problem,
    the interface, the kernel to start from with its verdict, and knowledge about both. Hand in a
    kernel by `submit_candidate`, then call this again with `run_id`. While `waiting` is false and
    the run starts or runs, call it again; at its end it has a `result`."""
    run_id = given.run_id or await _start(routes, given, "external", given.context_tokens)
    shown = await _settled(routes, run_id, given.wait_seconds)
    run = await routes.call("show_run", run_id=run_id)
    context = shown["context"] or {}
    briefing = context.get("briefing") or {}
    # The call that started the run may have ended before there was a briefing.
    parts = [briefing.get("task", "")] if briefing.get("first") or given.whole else []
    return results.NextContext(
        run_id=run_id,
        state=run["state"],
        waiting=shown["waiting"],
        step=context.get("step"),
        briefing="\n\n".join([*parts, briefing.get("step", "")]).strip(),
        knowledge_ids=list(briefing.get("shown", ())),
        best=context.get("best"),
        work={} if shown["waiting"] else run.get("work") or {},
        ended=run.get("ended") or run.get("note", ""),
        result=run.get("result") or {},
    )


async def _settled(routes: Routes, run_id: str, seconds: float) -> Any:
    """The context of a run once it waits for a candidate or has ended, or after `seconds`."""

    async def settled() -> Any:
        shown = await routes.call("show_context", run_id=run_id)
        return shown if shown["waiting"] or shown["state"] not in MEASURING else None

    return await until(settled, seconds) or await routes.call("show_context", run_id=run_id)


async def start_run(routes: Routes, given: StartArguments) -> results.ListedRun:
    """Let the built-in search look for a faster kernel of a problem, without you. `list_runs` with
    the run's id has its state and result. To write kernels yourself use
    `next_candidate_context`."""
    return await _run(routes, await _start(routes, given, "builtin"), given.wait_seconds)


async def list_runs(routes: Routes, given: RunsArguments) -> results.RunList:
    """List runs, newest first, or show one: state, problem, speed-up, and why it ended."""
    if given.run_id is not None:
        return results.RunList(runs=[await _run(routes, given.run_id, given.wait_seconds)])
    rows = (await routes.call("list_runs"))["runs"][: given.limit]
    return results.RunList(runs=[_listed(row) for row in rows])


async def cancel_run(routes: Routes, given: CancelArguments) -> results.ListedRun:
    """End a run. Its candidates stay."""
    return _listed(await routes.call("cancel_run", run_id=given.run_id))


async def _run(routes: Routes, run_id: str, seconds: float) -> results.ListedRun:
    """A run, after its end or after `seconds`."""

    async def ended() -> Any:
        shown = await routes.call("show_run", run_id=run_id)
        return None if shown["state"] in MEASURING else shown

    shown = await until(ended, seconds) or await routes.call("show_run", run_id=run_id)
    return _listed(shown)


def _listed(run: Any) -> results.ListedRun:
    return results.ListedRun.model_validate(
        {**run, "problem": problem_name(Path(run.get("problem", "")))}
    )


async def submit_candidate(routes: Routes, given: SubmitArguments) -> results.SubmittedCandidate:
    """Hand in the kernel that a run waits for, or `nothing_more`, and get its verdict and figures.
    Runs the code. If `state` is pending, call `next_candidate_context` with the run's id: the
    next briefing has the verdict."""
    if given.nothing_more:  # `step` may be that of the last verdict
        context = (await _settled(routes, given.run_id, given.wait_seconds))["context"] or {}
        given = given.model_copy(update={"step": context.get("step", given.step)})
    elif given.language is None:
        run = await routes.call("show_run", run_id=given.run_id)
        given = given.model_copy(update={"language": (run.get("goal") or {}).get("language")})
    body: dict[str, Any] = {"step": given.step, "plan": given.plan, "used": given.used}
    what = {"nothing_more": True} if given.nothing_more else {"candidate": _kernel(given)}
    await routes.call("propose_candidate", run_id=given.run_id, **body, **what)

    async def measured() -> Any:
        nodes = (await routes.call("show_tree", run_id=given.run_id))["nodes"]
        run = await routes.call("show_run", run_id=given.run_id)
        over = run["state"] not in MEASURING
        done = len(nodes) > given.step and not given.nothing_more
        return (run, nodes) if done or over else None

    outcome = await until(measured, given.wait_seconds)
    if outcome is None or len(outcome[1]) <= given.step:
        run = await routes.call("show_run", run_id=given.run_id)
        pending = outcome is None and not given.nothing_more
        return _submitted(given, run, "pending" if pending else "none", None)
    node = await routes.call("node_record", run_id=given.run_id, number=given.step)
    return _submitted(given, outcome[0], node["state"], node["evaluation"])


async def submit_trajectory(
    routes: Routes, given: TrajectoryArguments
) -> results.SubmittedTrajectory:
    """Send the kernels that you tried on a problem elsewhere, failures too, so that skills can be
    learned from them. Every step is evaluated here first. Runs the code."""
    body: dict[str, Any] = {
        "problem": _problem(given),
        "hardware": given.hardware,
        "language": given.language,
        "steps": [step.model_dump(exclude_none=True) for step in given.steps],
        "actor": given.actor,
    }
    sent = {name: value for name, value in body.items() if value is not None}
    answer = await routes.call("submit_trajectory", trajectory=sent)
    return results.SubmittedTrajectory.model_validate(answer)


TOOLS = (
    (evaluate_candidate, EvaluateArguments, results.Evaluated, REPEATABLE, "Evaluate a kernel"),
    (next_candidate_context, NextArguments, results.NextContext, RECORDS, "Get the next step"),
    (submit_candidate, SubmitArguments, results.SubmittedCandidate, RECORDS, "Hand in a kernel"),
    (start_run, StartArguments, results.ListedRun, RECORDS, "Start a search"),
    (list_runs, RunsArguments, results.RunList, READS, "List runs"),
    (cancel_run, CancelArguments, results.ListedRun, REPEATABLE, "End a run"),
    (
        submit_trajectory,
        TrajectoryArguments,
        results.SubmittedTrajectory,
        REPEATABLE,
        "Send kernels",
    ),
)


async def _start(
    routes: Routes, given: StartArguments, proposer: str, context_tokens: int | None = None
) -> str:
    goal = given.model_dump(
        include={"language", "candidates", "minutes", "target", "knowledge"}, exclude_none=True
    )
    run = await routes.call(
        "start_run",
        problem=_problem(given),
        hardware=given.hardware,
        goal=goal,
        proposers=[proposer],
        context_tokens=context_tokens,
    )
    return str(run["id"])


def _problem(given: ProblemArguments) -> Any:
    if (given.problem is None) == (given.problem_source is None):
        raise InvalidRequest(
            "give `problem` or `problem_source`, one of them",
            hint="`problem` names a built-in problem, `problem_source` is the text of one.",
        )
    if given.problem is not None:
        return given.problem
    return {"source": given.problem_source, "toml": given.problem_toml}


def _kernel(given: KernelArguments) -> dict[str, Any]:
    if given.language is None or (given.source is None) == (given.files is None):
        raise InvalidRequest(
            "a kernel needs `language`, and `source` or `files`, one of them",
            hint="Send one source text as `source`; several files as `files`, with `main`.",
        )
    files, main = given.files, given.main
    if given.source is not None:
        main = main or file_name(given.language)
        files = {main: given.source}
    if main is None:
        raise InvalidRequest("`main` is missing", hint="Name the file that is compiled.")
    kernel = {"files": files, "main": main, "language": given.language, "entry": given.entry}
    return {**kernel, "parameters": given.parameters or {}}


def _submitted(
    given: SubmitArguments, run: Any, state: str, evaluation: Any
) -> results.SubmittedCandidate:
    return results.SubmittedCandidate(
        run_id=given.run_id,
        step=given.step,
        run_state=run["state"],
        state=state,
        ended=run.get("ended") or run.get("note", ""),
        work=(run.get("work") or {}) if state == "pending" else {},
        result=None if evaluation is None else results.KernelResult.model_validate(evaluation),
        run_result=run.get("result") or {},
    )
