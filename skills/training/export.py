"""Runs and external trajectories as training data, with a manifest that accounts for every
candidate.

A problem's file is run in this process to see its cases, as `kernlore evaluate` does. The export is
therefore a command, and the service has no route for it.
"""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy import Connection

from kb.catalog import tables as t
from kb.catalog.evaluations import Reviews
from kb.catalog.knowledge import passages
from kb.catalog.skills.reading import find_skill
from kb.errors import Conflict, InvalidRequest, KernloreError, NotFound, Unavailable
from kb.scope import ALL_ACCESS
from kb.settings import product_version
from optimizer.evaluation.bundle import Bundle, default_entry
from optimizer.evaluation.evaluate import declaration_of
from optimizer.evaluation.problem.load import SHIPPED, load_problem, shipped_problems
from optimizer.evaluation.problem.spec import Problem
from optimizer.evaluation.records import Evaluation, Interval
from optimizer.evaluation.settings import HARNESS
from optimizer.evaluation.targets import command_toolchains
from optimizer.evaluation.timing.statistics import independent_ratio
from optimizer.search.bench.local import problem_view
from optimizer.search.goal import Goal
from optimizer.search.knowledge import ShownExcerpt, ShownKnowledge, ShownMove, ShownSkill
from optimizer.search.propose import SearchTask, compose_context, tree_before
from optimizer.search.records import REFERENCE, Node, Proposal, ShownIds
from optimizer.search.runs.knowledge import MARK, remedies_of, skill_of
from optimizer.search.runs.run_store import run_store
from optimizer.search.synthesizers.base import HardwareView
from optimizer.search.synthesizers.llm.conversation import FolderTranscripts, ModelTranscript
from optimizer.search.synthesizers.llm.prompt import compose
from optimizer.search.synthesizers.llm.settings import Redaction
from optimizer.search.synthesizers.llm.templates import WORD, Fence
from optimizer.search.tree import Tree
from retrieval.knowledge_base import KnowledgeBase
from skills.trajectories.external import ExternalTrajectory
from skills.trajectories.reading import (
    StoredSearch,
    flagged_keys,
    reviewed_tree,
    stored_search,
    stored_transcript,
    trajectory_store,
)

FORMAT = 1
ALL = 100_000


# -- one candidate as a training sample, and which samples may be used for training

PromptOrigin = Literal["stored", "rendered"]
FAILED = ("incorrect", "unsupported", "crashed", "timed_out", "not_compiled", "rejected")


@dataclass(frozen=True)
class TrainingPrompt:
    """Two messages. Origin `stored`: they were sent to a model; `rendered`: they would have been
    sent to one from the same state. `left_out` holds ids whose texts are left out."""

    system: str
    user: str
    origin: PromptOrigin
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reward:
    """The result of a candidate. `value` is the lower bound of the speed-up over the reference, 0
    for a failed candidate, None if unknown. `over_parent` is the speed-up over its parent, from two
    figures that were each taken against the reference. `cases` are those of the figures. `flags`
    are integrity findings; if `held`, a person has to decide about them."""

    value: float | None
    validity: str
    timing: str
    checks: tuple[int, int]
    speedup: Interval | None
    over_parent: Interval | None
    cases: tuple[str, ...]
    flags: tuple[str, ...]
    held: bool
    harness: str
    toolchain: str
    device: str
    evaluation: str


@dataclass(frozen=True)
class Licences:
    """SPDX ids, or `model:NAME` for the answer of a model whose terms were accepted; None if
    unknown."""

    problem: str | None
    source: str | None


@dataclass(frozen=True)
class TrainingSample:
    """One candidate as a training sample. `trajectory` is the id of its search. `state` holds what
    its proposer was shown, and the parent's results."""

    trajectory: str
    node: int
    parent: int
    external: bool
    proposal: Proposal
    problem: Problem
    problem_toml: str | None
    hardware: str
    prompt: TrainingPrompt
    state: Mapping[str, Any]
    completion: str
    reward: Reward
    licences: Licences

    @property
    def id(self) -> str:
        return f"{self.trajectory}/{self.node}"

    def provenance(self) -> dict[str, Any]:
        return {
            "trajectory": self.trajectory,
            "node": self.node,
            "parent": self.parent,
            "told": self.external,
            "origin": self.proposal.origin,
            "synthesizer": self.proposal.synthesizer,
            "model": self.proposal.model,
            "problem_sha256": self.problem.sha256,
            "bundle_sha256": self.proposal.bundle.sha256,
            "licences": asdict(self.licences),
            "left_out": list(self.prompt.left_out),
            **asdict(self.reward),
        }


def reward_of(tree: Tree, node: Node) -> Reward | None:
    """The reward of a node; None if the harness has no result for the kernel."""
    evaluation = node.evaluation
    if node.state not in ("evaluated", "unmeasured") or evaluation is None:
        return None
    known = evaluation.speedup if evaluation.correct else None
    value = 0.0 if evaluation.validity in FAILED else (known.low if known is not None else None)
    return Reward(
        value=value,
        validity=evaluation.validity,
        timing=evaluation.timing,
        checks=(sum(check.ok for check in evaluation.checks), len(evaluation.checks)),
        speedup=known,
        over_parent=_over_parent(tree, node, evaluation),
        cases=timed_cases(evaluation),
        flags=tuple(flag.message for flag in evaluation.flags),
        held=any(flag.severity == "review" for flag in evaluation.flags),
        harness=evaluation.harness,
        toolchain=evaluation.toolchain,
        device=evaluation.device,
        evaluation=evaluation.key,
    )


def timed_cases(evaluation: Evaluation) -> tuple[str, ...]:
    return tuple(sorted(timing.case for timing in evaluation.timings))


def state_of(tree: Tree, node: Node) -> dict[str, Any]:
    """The ids that the proposer was shown, and the parent's results."""
    parent = tree[node.parent or REFERENCE]
    evaluation = parent.evaluation
    bundle = parent.proposal.bundle if parent.proposal is not None else None
    return {
        "shown": asdict(node.shown),
        "parent": {
            "node": parent.number,
            "files": dict(bundle.files) if bundle is not None else {},
            "validity": evaluation.validity if evaluation is not None else None,
            "signals": list(parent.signals),
            "verdict": evaluation.verdict.as_json() if evaluation is not None else {},
            "speedup": asdict(parent.speedup) if parent.speedup is not None else None,
        },
        "inherited": node.inherited,
    }


def _over_parent(tree: Tree, node: Node, evaluation: Evaluation) -> Interval | None:
    """The speed-up over the parent; None without figures of the same cases and clock."""
    own = evaluation.speedup if evaluation.correct else None
    if (parent := tree[node.parent or REFERENCE]).number == REFERENCE:
        return own
    other = parent.evaluation
    if other is None or own is None or other.speedup is None or not other.correct:
        return None
    comparable = (timed_cases(evaluation), evaluation.device, evaluation.timing)
    same = comparable == (timed_cases(other), other.device, other.timing)
    return independent_ratio(own, other.speedup) if same else None


# -- which samples may be used for training

SHIPPED_SKILL = "shipped"  # origin of a skill

_SPDX = re.compile(
    r"SPDX-License-Identifier:[ \t]*([A-Za-z0-9][A-Za-z0-9 .()+-]*?)[ \t*/>-]*$", re.M
)


def trainable(samples: Sequence[TrainingSample]) -> tuple[list[TrainingSample], Counter[str]]:
    """The samples that may be used for training, and a count of the others by their first reason.
    Of equal bundles for the same problem and hardware the first is taken."""
    redaction = Redaction()
    left_out = Counter[str]()
    usable: dict[tuple[str, str, str], TrainingSample] = {}
    for sample in samples:
        key = (sample.problem.sha256, sample.hardware, sample.proposal.bundle.sha256)
        reason = refusal(sample, redaction)
        if not reason and key in usable:
            reason = "the same bundle as another"
        if reason:
            left_out[reason] += 1
        else:
            usable[key] = sample
    return list(usable.values()), left_out


def refusal(sample: TrainingSample, redaction: Redaction) -> str:
    """The reason why a sample may not be used for training, or ""."""
    if sample.reward.validity == "rejected":
        return "rejected for integrity"
    if sample.reward.held:
        return "held for a person by an integrity flag"
    if sample.reward.value is None:
        return "without a known reward"
    if sample.licences.problem is None:
        return "of a problem without a known licence"
    if sample.licences.source is None:
        return "of a source without a known licence"
    if holds_secret(sample, redaction):
        return "with what looks like a secret"
    return ""


def holds_secret(sample: TrainingSample, redaction: Redaction) -> bool:
    """Whether the sample has a configured secret, or a text that looks like a key."""
    texts = (sample.prompt.system, sample.prompt.user, sample.completion, str(sample.state))
    return any(redaction.error(text) != text for text in texts)


def stated_licence(text: str) -> str | None:
    line = _SPDX.search(text)
    return line[1].strip() if line is not None else None


OWN = "Apache-2.0"  # shipped problems, built-in recipes


class LicenceBook:
    """The licences of candidates and problems. `accepted` names models whose terms allow training
    on their answers."""

    def __init__(self, base: KnowledgeBase, accepted: tuple[str, ...]) -> None:
        self._base = base
        self._accepted = frozenset(accepted)
        self._shipped = {load_problem(SHIPPED / name).sha256 for name in shipped_problems()}

    def of(self, problem: Problem, proposal: Proposal, stated: str | None) -> Licences:
        """The licences of a candidate and its problem. `stated` is the one that the sender of an
        external trajectory stated; None for a run."""
        about = OWN if problem.sha256 in self._shipped else None
        about = about or stated_licence(problem.source) or stated
        return Licences(about, self._source(proposal, about, stated))

    def _source(self, proposal: Proposal, problem: str | None, stated: str | None) -> str | None:
        if proposal.origin in ("config", "rewrite"):  # made from the problem's own text
            return problem
        if proposal.origin == "recipe":
            return self._recipe(proposal.recipe)
        if proposal.origin == "llm":
            return f"model:{proposal.model}" if proposal.model in self._accepted else None
        return stated_licence(proposal.bundle.source) or stated

    def _recipe(self, name: str | None) -> str | None:
        with self._base.catalog.read() as connection:
            skill = find_skill(connection, name or "", ALL_ACCESS)
        if skill is None:
            return None
        return OWN if skill.origin == SHIPPED_SKILL else skill.license


# -- the export of stored searches


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
        {"candidate": sample.id, **asdict(reviews[sample.reward.evaluation])}
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


# -- rows: samples in the three shapes that TRL's trainers load, and the files that hold them
#
# The shapes are TRL's documented dataset types, all conversational: prompt-completion for
# SFTTrainer, preference with an explicit prompt for DPOTrainer, prompt-only for GRPOTrainer, whose
# other columns reach reward functions by name. Other columns hold texts and numbers only, so that
# all rows of a file have the same columns and types; nested values are JSON text.

Shape = Literal["sft", "dpo", "grpo"]
SHAPES: tuple[Shape, ...] = ("sft", "dpo", "grpo")
Row = dict[str, Any]
Message = dict[str, str]


# Rows of one shape, and the number of samples that are in no row, by reason.
RowsAndRest = tuple[list[Row], Mapping[str, int]]


def shaped(samples: Sequence[TrainingSample], shape: Shape) -> RowsAndRest:
    return {"sft": _sft, "dpo": _dpo, "grpo": _grpo}[shape](samples)


def _sft(samples: Sequence[TrainingSample]) -> RowsAndRest:
    """Samples worth imitating: correct, certainly faster than the reference, and not certainly
    slower than their parent."""
    rows: list[Row] = []
    left_out = Counter[str]()
    for sample in samples:
        over = sample.reward.over_parent
        if not faster(sample):
            left_out["not faster than the reference for certain"] += 1
            continue
        if over is not None and over.high < 1.0:
            left_out["slower than what it changes for certain"] += 1
            continue
        rows.append(
            {
                "prompt": messages(sample.prompt),
                "completion": _answer(sample.completion),
                **_about(sample),
            }
        )
    return rows, left_out


def _dpo(samples: Sequence[TrainingSample]) -> RowsAndRest:
    """Pairs of the same parent. The prompt is that of the earlier proposal, so it cannot contain
    the later one."""
    rows: list[Row] = []
    used: set[str] = set()
    for group in _siblings(samples):
        for first, second in combinations(group, 2):
            better = preferred(first, second)
            if better is None:
                continue
            chosen, rejected, by = better
            earlier = min(first, second, key=lambda sample: sample.node)
            used |= {first.id, second.id}
            rows.append(
                {
                    "prompt": messages(earlier.prompt),
                    "chosen": _answer(chosen.completion),
                    "rejected": _answer(rejected.completion),
                    **_about(chosen),
                    "preferred_by": by,
                    "rejected_id": rejected.id,
                    "rejected_reward": rejected.reward.value,
                    "rejected_provenance": _json(rejected.provenance()),
                }
            )
    rest = sum(sample.id not in used for sample in samples)
    return rows, {"without a sibling of certain difference": rest} if rest else {}


def _grpo(samples: Sequence[TrainingSample]) -> RowsAndRest:
    """One row for each distinct prompt. A trainer draws answers, and a reward function evaluates
    them with the columns on problem and hardware. `best_known` is the highest lower bound of a
    speed-up that was measured from this state."""
    groups: dict[tuple[str, str], list[TrainingSample]] = {}
    for sample in samples:
        groups.setdefault((sample.prompt.system, sample.prompt.user), []).append(sample)
    rows = []
    for group in groups.values():
        first = group[0]
        known = [s.reward.value for s in group if s.reward.value is not None]
        rows.append(
            {
                "prompt": messages(first.prompt),
                **_about(first),
                "problem_source": first.problem.source,
                "problem_toml": first.problem_toml or "",
                "parent_files": _json(first.state["parent"]["files"]),
                "best_known": max(known, default=None),
            }
        )
    again = len(samples) - len(rows)
    return rows, {"the same prompt as another": again} if again else {}


def faster(sample: TrainingSample) -> bool:
    """Whether a sample is correct and certainly faster than the reference."""
    speedup = sample.reward.speedup
    return sample.reward.validity == "correct" and speedup is not None and speedup.low > 1.0


def preferred(
    first: TrainingSample, second: TrainingSample
) -> tuple[TrainingSample, TrainingSample, str] | None:
    """(better, worse, reason) if that is certain: their intervals over the same cases do not
    overlap, or one is correct and faster than the reference and the other is not correct."""
    for better, worse in ((first, second), (second, first)):
        high, low = better.reward.speedup, worse.reward.speedup
        if high is not None and low is not None and _comparable(better, worse):
            if high.low > low.high:
                return better, worse, "speed-up"
        elif faster(better) and worse.reward.value == 0.0:
            return better, worse, "validity"
    return None


def _comparable(first: TrainingSample, second: TrainingSample) -> bool:
    def clock(sample: TrainingSample) -> tuple[Any, ...]:
        reward = sample.reward
        return (reward.cases, reward.device, reward.timing, reward.harness, sample.hardware)

    return clock(first) == clock(second)


def _siblings(samples: Sequence[TrainingSample]) -> Iterator[list[TrainingSample]]:
    groups: dict[tuple[str, int], list[TrainingSample]] = {}
    for sample in samples:
        groups.setdefault((sample.trajectory, sample.parent), []).append(sample)
    yield from groups.values()


def messages(prompt: TrainingPrompt) -> list[Message]:
    return [{"role": "system", "content": prompt.system}, {"role": "user", "content": prompt.user}]


def _answer(text: str) -> list[Message]:
    return [{"role": "assistant", "content": text}]


def _about(sample: TrainingSample) -> Row:
    """Columns whose names no trainer interprets (as `text`, `messages`, `image`, `label`)."""
    return {
        "id": sample.id,
        "prompt_origin": sample.prompt.origin,
        "problem": sample.problem.name,
        "hardware": sample.hardware,
        "language": sample.proposal.bundle.language,
        "reward": sample.reward.value,
        "state": _json(sample.state),
        "provenance": _json(sample.provenance()),
    }


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


# -- files

Format = Literal["jsonl", "parquet"]
FORMATS: tuple[Format, ...] = ("jsonl", "parquet")
MANIFEST = "manifest.json"
_MESSAGES = ("prompt", "completion", "chosen", "rejected")
_NUMBERS = ("reward", "rejected_reward", "best_known")
# The columns of a file without rows.
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "sft": ("prompt", "completion"),
    "dpo": ("prompt", "chosen", "rejected"),
    "grpo": ("prompt",),
}


def write_rows(rows: Sequence[Mapping[str, Any]], shape: str, format: Format, folder: Path) -> Path:
    """Write rows as one file of a new folder; returns its path. Raises Conflict for a folder with
    files, and Unavailable without pyarrow."""
    if folder.exists() and any(folder.iterdir()):
        raise Conflict(f"{folder} is not empty", hint="Give a new folder.")
    table = _table(rows, shape) if format == "parquet" else None
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{shape}.{format}"
    if table is not None:
        from pyarrow import parquet

        parquet.write_table(table, path)
        return path
    with path.open("w", encoding="utf-8") as stream:
        for row in rows:
            stream.write(json.dumps(row, ensure_ascii=False) + "\n")
    return path


def write_manifest(manifest: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Write the manifest into the file's folder, with its hash and size; returns it."""
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    complete = {**manifest, "file": str(file), "sha256": digest, "bytes": file.stat().st_size}
    text = json.dumps({**complete, "file": file.name}, indent=1, sort_keys=True)
    (file.parent / MANIFEST).write_text(text + "\n", encoding="utf-8")
    return complete


def _table(rows: Sequence[Mapping[str, Any]], shape: str) -> Any:
    """An Arrow table with explicit types, which a column of nulls or empty lists needs."""
    try:
        import pyarrow
    except ImportError as missing:
        raise Unavailable(
            "Parquet needs pyarrow, which is not installed",
            hint="Install kernlore[train], or export --format jsonl.",
        ) from missing
    message = pyarrow.struct([("role", pyarrow.string()), ("content", pyarrow.string())])
    names = list(rows[0]) if rows else list(COLUMNS[shape])

    def kind(name: str) -> Any:
        if name in _MESSAGES:
            return pyarrow.list_(message)
        return pyarrow.float64() if name in _NUMBERS else pyarrow.string()

    schema = pyarrow.schema([(name, kind(name)) for name in names])
    return pyarrow.Table.from_pylist([dict(row) for row in rows], schema=schema)


# -- prompts: the prompt of a candidate, the answer that goes with it, and the knowledge shown
#
# A prompt is the one that was sent to a model, if it is stored, or else rendered from the same
# state. The answer is the candidate in the form of a model's answer: a JSON object, then every file
# in a code block (`synthesizers.llm.conversation` reads it). Knowledge is looked up by
# its ids, as its texts are now. The texts of built-in documents and shipped skills may be shown;
# those of uploaded documents and of imported or learned skills only with leave.

_BLOCK = re.compile(
    rf"(?P<begin>--- {WORD} (?P<boundary>\w+) BEGIN (?P<kind>excerpt|move|skill) ---\n)"
    rf"(?P<text>.*?)\n(?P<end>--- {WORD} (?P=boundary) END ---)",
    re.S,
)
_ID = re.compile(r"id: (\S+)")


class Prompts:
    """The prompts of one run or external trajectory."""

    def __init__(self, base: KnowledgeBase, task: SearchTask, knowledge: KnowledgeLookup) -> None:
        self._task = task
        self._knowledge = knowledge
        self._redact = Redaction()
        self._transcripts = FolderTranscripts(base.settings.data_dir / "transcripts")

    def of(self, tree: Tree, node: Node) -> TrainingPrompt:
        """The prompt of a candidate, without known secrets."""
        stored = self._stored(node)
        prompt = self._sent(stored) if stored is not None else self._rendered(tree, node)
        known = self._redact.known
        return replace(prompt, system=known(prompt.system), user=known(prompt.user))

    def _rendered(self, tree: Tree, node: Node) -> TrainingPrompt:
        known, left_out = self._knowledge.of(node.shown, self._task.hardware.id)
        before = tree_before(tree, node)
        context = compose_context(self._task, before, node.parent or 0, known)
        # The boundary depends on the state alone, so equal states give equal prompts.
        state = f"{self._task.run_id}:{node.parent}"
        fence = Fence(hashlib.sha256(state.encode()).hexdigest()[:16])
        prompt = compose(context, fence, budget=context.max_tokens, tools=False)
        return TrainingPrompt(prompt.system, prompt.user, "rendered", left_out)

    def _stored(self, node: Node) -> ModelTranscript | None:
        """The stored conversation of a node, if it begins with a system and a user message."""
        if node.proposal is None:
            return None
        transcript = stored_transcript(self._transcripts, node.proposal)
        if transcript is None:
            return None
        roles = [message.get("role") for message in transcript.messages[:2]]
        return transcript if roles == ["system", "user"] else None

    def _sent(self, transcript: ModelTranscript) -> TrainingPrompt:
        """Its first two messages; the others led to the answer and are not part of the state."""
        system, user = (str(message["content"]) for message in transcript.messages[:2])
        user, left_out = without_uploads(user, self._knowledge.may_show)
        return TrainingPrompt(system, user, "stored", left_out)


def without_uploads(text: str, may_show: Callable[[str], bool]) -> tuple[str, tuple[str, ...]]:
    """The text with quoted blocks reduced to their ids unless `may_show`, and these ids."""
    left_out: list[str] = []

    def shown(block: re.Match[str]) -> str:
        named = _ID.match(block["text"])
        if named is not None and may_show(named[1]):
            return block[0]
        name = named[1] if named is not None else "unknown"
        left_out.append(name)
        return f"{block['begin']}id: {name}\n{LEFT_OUT}\n{block['end']}"

    return _BLOCK.sub(shown, text), tuple(left_out)


_FENCE = re.compile(r"^[ \t]*(`{3,})", re.M)


def answer_text(bundle: Bundle, plan: str, used: Sequence[str]) -> str:
    """A candidate in the form of a model's answer. `used` holds ids that it was shown. A file that
    does not end in a line break gets one."""
    head: dict[str, Any] = {
        "plan": plan,
        "used": list(used),
        "language": bundle.language,
        "main": bundle.main,
    }
    if bundle.entry != default_entry(bundle.main):
        head["entry"] = bundle.entry
    if bundle.parameters:
        head["parameters"] = dict(bundle.parameters)
    parts = [json.dumps(head, ensure_ascii=False)]
    return "\n\n".join([*parts, *(_block(name, text) for name, text in bundle.files.items())])


def _block(name: str, text: str) -> str:
    """A file in a fence longer than any in it."""
    ticks = "`" * max([3, *(len(fence[1]) + 1 for fence in _FENCE.finditer(text))])
    end = "" if text.endswith("\n") else "\n"
    return f"File: {name}\n{ticks}\n{text}{end}{ticks}"


# -- the shown knowledge

BUILTIN = "builtin"  # origin of a document
LEFT_OUT = "(text left out)"


@dataclass
class KnowledgeLookup:
    """Looks up the knowledge that proposers were shown. `with_uploads` includes the texts of
    uploaded documents and of imported or learned skills."""

    base: KnowledgeBase
    with_uploads: bool
    _may_show: dict[str, bool] = field(default_factory=dict)  # by id

    def of(self, shown: ShownIds, hardware: str) -> tuple[ShownKnowledge, tuple[str, ...]]:
        """The shown knowledge, and the ids whose texts are left out."""
        facts = self.base.registry.values_if_known(hardware)
        left_out: list[str] = []
        with self.base.catalog.read() as connection:
            excerpts = [self._excerpt(connection, name, left_out) for name in shown.excerpts]
            moves = [self._move(connection, name, facts, left_out) for name in shown.moves]
            skills = [self._skill(connection, name, left_out) for name in shown.skills]
        known = ShownKnowledge(
            shown.retrieval_id,
            tuple(excerpts),
            tuple(move for move in moves if move is not None),
            tuple(skill for skill in skills if skill is not None),
            facts,
        )
        return known, tuple(left_out)

    def may_show(self, identity: str) -> bool:
        """Whether the text of an id is a built-in or shipped one, or uploads are included."""
        if self.with_uploads:
            return True
        if identity not in self._may_show:
            with self.base.catalog.read() as connection:
                skill = find_skill(connection, skill_of(identity), ALL_ACCESS)
                self._may_show[identity] = (
                    _document_origin(connection, t.passages, identity) == BUILTIN
                    or _document_origin(connection, t.moves, identity) == BUILTIN
                    or (skill is not None and skill.origin == SHIPPED_SKILL)
                )
        return self._may_show[identity]

    def _excerpt(self, connection: Connection, name: str, left_out: list[str]) -> ShownExcerpt:
        own = self.with_uploads or _document_origin(connection, t.passages, name) == BUILTIN
        try:
            passage = passages.get(connection, name, ALL_ACCESS) if own else None
        except NotFound:  # its document version was deleted
            passage = None
        if passage is None:
            left_out.append(name)
            return ShownExcerpt(name, "", LEFT_OUT)
        title = f"{passage.document_title}: {' > '.join(passage.path)}"
        return ShownExcerpt(name, title, passage.shown)

    def _move(
        self, connection: Connection, name: str, facts: dict[str, Any], left_out: list[str]
    ) -> ShownMove | None:
        if MARK in name:
            return self._move_of_skill(connection, name, left_out)
        row = connection.execute(sa.select(t.moves).where(t.moves.c.id == name)).one_or_none()
        if row is None:
            left_out.append(name)
            return None
        limit = facts.get(row.limit_fact) if row.limit_fact else None
        move = ShownMove(
            row.id,
            row.name,
            dict(row.change),
            float(limit) if isinstance(limit, int | float) else None,
            row.limit_fact,
            row.why,
            True,
        )
        if self.with_uploads or _document_origin(connection, t.moves, name) == BUILTIN:
            return move
        left_out.append(name)
        return replace(move, name=name, why=LEFT_OUT)

    def _move_of_skill(
        self, connection: Connection, name: str, left_out: list[str]
    ) -> ShownMove | None:
        row = find_skill(connection, skill_of(name), ALL_ACCESS)
        moves = remedies_of(row) if row is not None else ()
        move = next((move for move in moves if move.id == name), None)
        shipped = row is not None and row.origin == SHIPPED_SKILL
        if move is not None and (self.with_uploads or shipped):
            return move
        left_out.append(name)
        return None if move is None else replace(move, name=name, why=LEFT_OUT, when="")

    def _skill(self, connection: Connection, name: str, left_out: list[str]) -> ShownSkill | None:
        row = find_skill(connection, name, ALL_ACCESS)
        if row is None:
            left_out.append(name)
            return None
        if not (self.with_uploads or row.origin == SHIPPED_SKILL):
            left_out.append(name)
            return ShownSkill(name, "", LEFT_OUT, 0.0)
        return ShownSkill(name, row.description, row.body, 0.0)


def _document_origin(connection: Connection, table: sa.Table, name: str) -> str | None:
    """The origin of the document that a passage or move is from."""
    query = (
        sa.select(t.documents.c.origin)
        .join(table, table.c.document_id == t.documents.c.id)
        .where(table.c.id == name)
    )
    return connection.execute(query).scalar_one_or_none()
