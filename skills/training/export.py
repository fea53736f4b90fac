"""Runs and external trajectories as training data.

A problem's file is run to see its cases, in this process, as `kernlore evaluate` does: the command
line exports, the service does not.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kb.catalog.search.evaluations import Evaluations
from kb.catalog.search.reviews import Reviews
from kb.catalog.search.trajectories import StoredTrajectory
from kb.errors import Conflict, InvalidRequest, KernloreError
from kb.settings import product_version
from optimizer.evaluation.evaluate import declaration_of, own_toolchains
from optimizer.evaluation.problem.load import load_problem
from optimizer.evaluation.problem.spec import Problem
from optimizer.evaluation.records import Evaluation, evaluation_from_json
from optimizer.evaluation.settings import HARNESS
from optimizer.search.bench.local import problem_view
from optimizer.search.goal import Goal
from optimizer.search.propose import Task
from optimizer.search.records import REFERENCE, Node
from optimizer.search.runs.run_store import run_store
from optimizer.search.store import RunRow
from optimizer.search.synthesizers.base import HardwareView
from optimizer.search.synthesizers.llm.settings import Redaction
from optimizer.search.tree import Tree
from retrieval.knowledge_base import KnowledgeBase
from skills.training.prompts import Prompts, answer_text
from skills.training.rows import FORMATS, SHAPES, shaped, write_manifest, write_rows
from skills.training.samples import Reward, Sample, reward_of, state_of
from skills.training.shown_knowledge import ShownKnowledge
from skills.training.trainable import LicenceBook, trainable
from skills.trajectories.accept import trajectory_store
from skills.trajectories.external_trajectory import (
    ExternalTrajectory,
    external_trajectory_from_json,
    tree_of,
)
from skills.trajectories.reading import searched_problem
from skills.trajectories.reviews import flagged_in, reviewed_tree

FORMAT = 1
ALL = 100_000


@dataclass(frozen=True)
class ExportRequest:
    """What is exported. `only` holds ids of runs and external trajectories, empty for all; `models`
    those whose terms are accepted."""

    shape: str
    format: str = "jsonl"
    only: tuple[str, ...] = ()
    trainable: bool = False
    with_excerpts: bool = False
    models: tuple[str, ...] = ()


@dataclass(frozen=True)
class Source:
    """A trajectory as a tree with its problem. `toml` is the text beside the problem's source;
    `licence` is as the sender of an external trajectory stated it."""

    id: str
    goal: Goal
    hardware: str
    languages: tuple[str, ...]
    tree: Tree
    problem: Problem
    toml: str | None
    external: bool
    licence: str | None = None


def export_trajectories(
    base: KnowledgeBase, request: ExportRequest, folder: Path
) -> dict[str, Any]:
    """Write samples of runs and external trajectories into a new folder; returns the manifest,
    which accounts for every candidate. Raises Conflict where the folder has files, and for a
    trajectory that was named and cannot be exported; InvalidRequest for an unknown shape or
    format."""
    shape = next((name for name in SHAPES if name == request.shape), None)
    form = next((name for name in FORMATS if name == request.format), None)
    if shape is None or form is None:
        raise InvalidRequest(
            f"unknown shape {request.shape!r} or format {request.format!r}",
            hint=f"Shapes: {', '.join(SHAPES)}. Formats: {', '.join(FORMATS)}.",
        )
    if folder.exists() and any(folder.iterdir()):  # before minutes of work
        raise Conflict(f"{folder} is not empty", hint="Give a new folder.")
    left_out = Counter[str]()
    samples = list(_samples(base, request, left_out))
    candidates = len(samples) + left_out.total()
    reviews = _answered(base, samples)
    if request.trainable:
        kept = trainable(samples)
        samples = list(kept.samples)
        left_out.update(kept.left_out)
    shaped_rows = shaped(samples, shape)
    left_out.update(shaped_rows.left_out)
    file = write_rows(shaped_rows.rows, shape, form, folder)
    return write_manifest(
        {
            "format": FORMAT,
            "asked": asdict(request),
            "rows": len(shaped_rows.rows),
            "candidates": candidates,
            "left_out": dict(left_out),
            "reviews": reviews,
            "trajectories": sorted({sample.trajectory for sample in samples}),
            "columns": sorted(shaped_rows.rows[0]) if shaped_rows.rows else [],
            "version": product_version(),
            "harness": HARNESS,
            "written_at": datetime.now(UTC).isoformat(timespec="seconds"),
        },
        file,
    )


def _answered(base: KnowledgeBase, samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """What people answered to flags of these candidates; an accepted one has no flag in its row."""
    reviews = Reviews(base.catalog).latest(sample.reward.evaluation for sample in samples)
    return [
        {"candidate": sample.id, **reviews[sample.reward.evaluation].as_json()}
        for sample in samples
        if sample.reward.evaluation in reviews
    ]


def _samples(
    base: KnowledgeBase, request: ExportRequest, left_out: Counter[str]
) -> Iterator[Sample]:
    knowledge = ShownKnowledge(base, request.with_excerpts)
    book = LicenceBook(base, request.models)
    for identity in _wanted(base, request):
        missing = Counter[str]()
        try:
            with tempfile.TemporaryDirectory(prefix="kernlore-problem-") as place:
                source = _source(base, identity, Path(place))
                samples = list(_of(base, source, knowledge, book, missing))
        except KernloreError as error:
            if request.only:
                raise
            # What was not asked for by its id may be missing, and is counted.
            left_out[f"of {identity}: {error.message}"] += _steps(base, identity)
            continue
        left_out.update(missing)
        yield from samples


def _wanted(base: KnowledgeBase, request: ExportRequest) -> list[str]:
    if request.only:
        return list(dict.fromkeys(request.only))
    runs = [run.id for run in run_store(base).latest(ALL)]
    external = [row.id for row in trajectory_store(base).latest(ALL)]
    return [*reversed(runs), *reversed(external)]


def _steps(base: KnowledgeBase, identity: str) -> int:
    if identity.startswith("run_"):
        return max(0, len(run_store(base).nodes(identity)) - 1)
    return int(trajectory_store(base).find(identity).summary["steps"])


def _source(base: KnowledgeBase, identity: str, place: Path) -> Source:
    """With people's answers to the integrity flags of its candidates."""
    source = _stored(base, identity, place)
    answers = Reviews(base.catalog).latest(flagged_in(source.tree))
    return replace(source, tree=reviewed_tree(source.tree, answers))


def _stored(base: KnowledgeBase, identity: str, place: Path) -> Source:
    if identity.startswith("run_"):
        return _of_run(base, run_store(base).run(identity))
    return _of_external(base, trajectory_store(base).find(identity), place)


def _of_run(base: KnowledgeBase, run: RunRow) -> Source:
    problem = searched_problem(run)
    languages = (run.goal.language,) if run.goal.language else tuple(run.environment)
    tree = Tree(run_store(base).nodes(run.id))
    return Source(
        run.id,
        run.goal,
        run.hardware,
        languages,
        tree,
        problem,
        declaration_of(problem),
        external=False,
    )


def _of_external(base: KnowledgeBase, row: StoredTrajectory, place: Path) -> Source:
    store = trajectory_store(base)
    external = external_trajectory_from_json(store.report(row))
    measured = store.results(row)
    if row.state != "ready" or measured is None:
        raise Conflict("it was not evaluated here", hint=f"Verify it first: `... verify {row.id}`.")
    tree = _external_tree(base, external, measured["evaluations"])
    problem = _placed(external, place)
    languages = tuple(dict.fromkeys(step.bundle.language for step in external.steps))
    # Nobody says what it was shown, so the prompt is that of a search without knowledge.
    goal = Goal(knowledge=False)
    toml = external.problem.toml if external.problem.name is None else declaration_of(problem)
    return Source(
        row.id, goal, external.hardware, languages, tree, problem, toml, True, external.licence
    )


def _external_tree(
    base: KnowledgeBase, external: ExternalTrajectory, keys: Mapping[str, str]
) -> Tree:
    """Evaluations are read anew from their rows."""
    rows = Evaluations(base.catalog)

    def evaluation(number: int) -> Evaluation | None:
        stored = rows.find(keys.get(str(number), ""))
        record = stored.record if stored is not None else None
        return None if record is None else evaluation_from_json(record)

    by_bundle = {
        step.bundle.sha256: measured
        for step in external.steps
        if (measured := evaluation(step.number)) is not None
    }
    # A stranger's words are shown to no model: neither as an answer nor inside a later prompt.
    steps = [replace(step, plan="", texts=()) for step in external.steps]
    return tree_of(steps, evaluation(REFERENCE), by_bundle, {})


def _placed(external: ExternalTrajectory, place: Path) -> Problem:
    if external.problem.name is not None:
        return load_problem(Path(external.problem.name))
    file = place / "told.py"
    file.write_text(external.problem.source, encoding="utf-8")
    if external.problem.toml is not None:
        file.with_suffix(".toml").write_text(external.problem.toml, encoding="utf-8")
    return load_problem(file)


def _of(
    base: KnowledgeBase,
    source: Source,
    knowledge: ShownKnowledge,
    book: LicenceBook,
    left_out: Counter[str],
) -> Iterator[Sample]:
    prompts = Prompts(base, _task(base, source), knowledge)
    for node in source.tree.nodes[1:]:
        reward = reward_of(source.tree, node)
        if reward is None:
            reason = "the same bundle as another" if node.same_as is not None else "not evaluated"
            left_out[reason] += 1
            continue
        yield _sample(source, node, reward, prompts, book)


def _sample(
    source: Source, node: Node, reward: Reward, prompts: Prompts, book: LicenceBook
) -> Sample:
    proposal = node.proposal
    assert proposal is not None  # only the reference has none
    shown = {*node.shown.excerpts, *node.shown.moves, *node.shown.skills}
    used = [name for name in (*proposal.attributed, *proposal.claimed) if name in shown]
    bundle, problem = proposal.bundle, source.problem
    return Sample(
        trajectory=source.id,
        node=node.number,
        parent=node.parent or REFERENCE,
        external=source.external,
        origin=proposal.origin,
        synthesizer=proposal.synthesizer,
        model=proposal.model,
        problem=problem.name,
        problem_sha256=problem.sha256,
        problem_source=problem.source,
        problem_toml=source.toml,
        hardware=source.hardware,
        language=bundle.language,
        bundle_sha256=bundle.sha256,
        prompt=prompts.of(source.tree, node),
        state=state_of(source.tree, node),
        completion=Redaction().known(
            answer_text(bundle, proposal.plan, tuple(dict.fromkeys(used)))
        ),
        reward=reward,
        licences=book.of(problem, proposal, source.licence),
    )


def _task(base: KnowledgeBase, source: Source) -> Task:
    devices = [node.evaluation.device for node in source.tree if node.evaluation is not None]
    device = devices[0] if devices else "cpu"
    registry = base.registry
    lineage = registry.lineage_or_id(source.hardware)
    hardware = HardwareView(
        source.hardware,
        lineage,
        device,
        source.languages,
        registry.values_if_known(source.hardware),
        own_toolchains(registry.all(), lineage),
    )
    return Task(source.id, source.goal, problem_view(source.problem, device), hardware)
