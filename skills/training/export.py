"""Runs and external trajectories as training data, with a manifest that accounts for every
candidate.

A problem's file is run in this process to see its cases, as `kernlore evaluate` does. The export is
therefore a command, and the service has no route for it.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kb.catalog.evaluations import Reviews
from kb.errors import Conflict, InvalidRequest, KernloreError
from kb.settings import product_version
from optimizer.evaluation.evaluate import declaration_of
from optimizer.evaluation.problem.load import load_problem
from optimizer.evaluation.problem.spec import Problem
from optimizer.evaluation.settings import HARNESS
from optimizer.evaluation.targets import command_toolchains
from optimizer.search.bench.local import problem_view
from optimizer.search.goal import Goal
from optimizer.search.propose import SearchTask
from optimizer.search.records import REFERENCE, Node
from optimizer.search.runs.run_store import run_store
from optimizer.search.synthesizers.base import HardwareView
from optimizer.search.synthesizers.llm.settings import Redaction
from optimizer.search.tree import Tree
from retrieval.knowledge_base import KnowledgeBase
from skills.training.prompts import KnowledgeLookup, Prompts, answer_text
from skills.training.rows import FORMATS, SHAPES, shaped, write_manifest, write_rows
from skills.training.samples import (
    LicenceBook,
    Reward,
    TrainingSample,
    reward_of,
    state_of,
    trainable,
)
from skills.trajectories.external import ExternalTrajectory
from skills.trajectories.reading import (
    StoredSearch,
    flagged_keys,
    reviewed_tree,
    stored_search,
    trajectory_store,
)

FORMAT = 1
ALL = 100_000


@dataclass(frozen=True)
class ExportRequest:
    """A request for an export. `only` holds ids of runs and external trajectories, empty for all;
    `models` names models whose terms are accepted."""

    shape: str
    format: str = "jsonl"
    only: tuple[str, ...] = ()
    trainable: bool = False
    with_excerpts: bool = False
    models: tuple[str, ...] = ()


def export_trajectories(
    base: KnowledgeBase, request: ExportRequest, folder: Path
) -> dict[str, Any]:
    """Write samples of runs and external trajectories into a new folder; returns the manifest.
    Raises Conflict for a folder with files and for a named trajectory that cannot be exported, and
    InvalidRequest for an unknown shape or format."""
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
    reviews = _reviews_of(base, samples)
    if request.trainable:
        samples, refused = trainable(samples)
        left_out.update(refused)
    rows, unused = shaped(samples, shape)
    left_out.update(unused)
    file = write_rows(rows, shape, form, folder)
    return write_manifest(
        {
            "format": FORMAT,
            "asked": asdict(request),
            "rows": len(rows),
            "candidates": candidates,
            "left_out": dict(left_out),
            "reviews": reviews,
            "trajectories": sorted({sample.trajectory for sample in samples}),
            "columns": sorted(rows[0]) if rows else [],
            "version": product_version(),
            "harness": HARNESS,
            "written_at": datetime.now(UTC).isoformat(timespec="seconds"),
        },
        file,
    )


def _reviews_of(base: KnowledgeBase, samples: Sequence[TrainingSample]) -> list[dict[str, Any]]:
    """People's decisions about flags of these candidates; an accepted one has no flag in its
    row."""
    reviews = Reviews(base.catalog).latest(sample.reward.evaluation for sample in samples)
    return [
        {"candidate": sample.id, **reviews[sample.reward.evaluation].as_json()}
        for sample in samples
        if sample.reward.evaluation in reviews
    ]


def _samples(
    base: KnowledgeBase, request: ExportRequest, left_out: Counter[str]
) -> Iterator[TrainingSample]:
    knowledge = KnowledgeLookup(base, request.with_excerpts)
    book = LicenceBook(base, request.models)
    for identity in _wanted(base, request):
        missing = Counter[str]()
        try:
            with tempfile.TemporaryDirectory(prefix="kernlore-problem-") as folder:
                exported = exported_search(base, identity, Path(folder))
                samples = list(_of_search(base, exported, knowledge, book, missing))
        except KernloreError as error:
            if request.only:
                raise
            # Without ids, a trajectory that cannot be exported is counted and skipped.
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


@dataclass(frozen=True)
class ExportedSearch:
    """A search with people's decisions applied, and its problem. `toml` is the text of its
    problem.toml."""

    search: StoredSearch
    problem: Problem
    toml: str | None

    @property
    def tree(self) -> Tree:
        return self.search.tree

    @property
    def licence(self) -> str | None:
        """The licence that the sender of an external trajectory stated."""
        return self.search.external.licence if self.search.external is not None else None


def exported_search(base: KnowledgeBase, identity: str, folder: Path) -> ExportedSearch:
    """The search of an id. An external problem's file is placed in `folder`, where it can be
    run."""
    search = stored_search(base, identity)
    reviews = Reviews(base.catalog).latest(flagged_keys(search.tree))
    tree = reviewed_tree(search.tree, reviews)
    external = search.external
    if external is None:
        problem = search.problem()
        return ExportedSearch(replace(search, tree=tree), problem, declaration_of(problem))
    # Another optimizer's plans are shown to no model, as an answer or in a later prompt.
    tree = Tree(
        replace(n, proposal=replace(n.proposal, plan="")) if n.proposal is not None else n
        for n in tree
    )
    problem = _placed(external, folder)
    toml = external.problem.toml if external.problem.name is None else declaration_of(problem)
    return ExportedSearch(replace(search, tree=tree), problem, toml)


def _placed(external: ExternalTrajectory, folder: Path) -> Problem:
    if external.problem.name is not None:
        return load_problem(Path(external.problem.name))
    file = folder / "told.py"  # the name of a problem without one
    file.write_text(external.problem.source, encoding="utf-8")
    if external.problem.toml is not None:
        file.with_suffix(".toml").write_text(external.problem.toml, encoding="utf-8")
    return load_problem(file)


def _of_search(
    base: KnowledgeBase,
    exported: ExportedSearch,
    knowledge: KnowledgeLookup,
    book: LicenceBook,
    left_out: Counter[str],
) -> Iterator[TrainingSample]:
    prompts = Prompts(base, task_of(base, exported), knowledge)
    for node in exported.tree.nodes[1:]:
        reward = reward_of(exported.tree, node)
        if reward is None:
            reason = "the same bundle as another" if node.same_as is not None else "not evaluated"
            left_out[reason] += 1
            continue
        yield _sample(exported, node, reward, prompts, book)


def _sample(
    exported: ExportedSearch, node: Node, reward: Reward, prompts: Prompts, book: LicenceBook
) -> TrainingSample:
    proposal = node.proposal
    assert proposal is not None  # only the reference has none
    shown = {*node.shown.excerpts, *node.shown.moves, *node.shown.skills}
    used = [name for name in (*proposal.attributed, *proposal.claimed) if name in shown]
    answer = answer_text(proposal.bundle, proposal.plan, tuple(dict.fromkeys(used)))
    return TrainingSample(
        trajectory=exported.search.id,
        node=node.number,
        parent=node.parent or REFERENCE,
        external=exported.search.external is not None,
        proposal=proposal,
        problem=exported.problem,
        problem_toml=exported.toml,
        hardware=exported.search.hardware,
        prompt=prompts.of(exported.tree, node),
        state=state_of(exported.tree, node),
        completion=Redaction().known(answer),
        reward=reward,
        licences=book.of(exported.problem, proposal, exported.licence),
    )


def task_of(base: KnowledgeBase, exported: ExportedSearch) -> SearchTask:
    """The task from which prompts are rendered. The knowledge shown to an external search is
    unknown, so its prompts are those of a search without knowledge."""
    search = exported.search
    if search.run is not None:
        goal = search.run.goal
        languages = (goal.language,) if goal.language else tuple(search.run.environment)
    else:
        goal = Goal(knowledge=False)
        steps = search.external.steps if search.external is not None else ()
        languages = tuple(dict.fromkeys(step.bundle.language for step in steps))
    devices = [node.evaluation.device for node in search.tree if node.evaluation is not None]
    device = devices[0] if devices else "cpu"
    registry = base.registry
    lineage = registry.lineage_or_id(search.hardware)
    hardware = HardwareView(
        search.hardware,
        lineage,
        device,
        languages,
        registry.values_if_known(search.hardware),
        command_toolchains(registry.all(), lineage),
    )
    return SearchTask(search.id, goal, problem_view(exported.problem, device), hardware)
