"""What is learned from and measured: chosen once for a folder, and kept in it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from benchmarks.search import knowledge_value
from benchmarks.search.replay.spaces import CPP, GROUNDS, TRITON, Ground, Kind
from kb.errors import InvalidRequest
from optimizer.evaluation.problem.load import load_problem, shipped_problems

FILE = "plan.json"
# The sixteen for which a recipe certainly beats eager on an H200 (results/search_gains_h200.md):
# where none does there is nothing to find. Every recipe of a taught one spans 80 points or more;
# one of the others has the operator of a taught one.
GPU_TAUGHT = (
    "conv1d",
    "cross_entropy_loss",
    "cumulative_sum",
    "depthwise_conv2d",
    "elementwise_chain",
    "jagged_sum",
    "rmsnorm_backward_2d",
    "softmax",
)
GPU_OTHERS = (
    "pointwise_conv2d",
    "batch_event_truncate",
    "embedding_bag_sum",
    "map_id",
    "max_pool3d",
    "mbdt",
    "row_reduction",
    "sparse_inverted_index",
)


@dataclass(frozen=True)
class Plan:
    """taught: problems that are learned from; others: that nobody learns from. candidates: of each
    run; budget: of each side of a trial; unseen_points, other_points: of each recipe in a space.
    documents: answers hold excerpts, and the curator compares texts by their embeddings too, for
    which a machine needs everything that the product depends on."""

    device: Kind
    language: str
    taught: tuple[str, ...]
    others: tuple[str, ...]
    candidates: int = 8
    budget: int = 3
    unseen_points: int = 12
    other_points: int = 8
    documents: bool = True

    @property
    def ground(self) -> Ground:
        return Ground(self.device, self.language)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def options(self) -> str:
        """Those of the command that makes this plan, as far as they are not its defaults."""
        usual = default_plan(self.ground, self.taught)
        options = []
        if self.ground != CPP:
            options.append(f"--device {self.device} --language {self.language}")
        if self.taught != default_plan(self.ground).taught:
            options.append(f"--taught {' '.join(self.taught)}")
        if self.others != usual.others:
            options.append(f"--others {' '.join(self.others)}")
        options += [
            f"--{name} {getattr(self, name)}"
            for name in ("candidates", "budget")
            if getattr(self, name) != getattr(usual, name)
        ]
        points = self.unseen_points, self.other_points
        if points != (usual.unseen_points, usual.other_points):
            options.append(f"--points {points[0]} {points[1]}")
        if self.documents != usual.documents:
            options.append("--documents" if self.documents else "--no-documents")
        return " ".join(options)


def default_plan(ground: Ground, taught: Sequence[str] | None = None) -> Plan:
    """taught: instead of the usual ones; the others leave them out."""
    if ground == CPP:
        learned = tuple(taught or knowledge_value.PROBLEMS)
        others = tuple(name for name in shipped_problems() if name not in learned)
        return Plan(ground.device, ground.language, learned, others)
    learned = tuple(taught or GPU_TAUGHT)
    others = tuple(name for name in GPU_OTHERS if name not in learned)
    return Plan(ground.device, ground.language, learned, others, documents=False)


def plan_of(folder: Path, wanted: Mapping[str, Any]) -> Plan:
    """The folder's own plan, or a new one that it keeps from now on. given: fields that were asked
    for. Raises InvalidRequest where the folder was begun with others."""
    path = folder / FILE
    begun = path.is_file() or (folder / "runs").is_dir()
    if not begun:
        plan = _made(wanted)
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(plan.as_json(), indent=1) + "\n", encoding="utf-8")
        return plan
    # Folders of before there were plans hold what is usual on a CPU.
    plan = _read(path) if path.is_file() else default_plan(CPP)
    other = [name for name, value in wanted.items() if getattr(plan, name) != value]
    if other:
        differences = ", ".join(f"{name} is {_told(getattr(plan, name))}" for name in other)
        raise InvalidRequest(
            f"{folder} was begun with other options: {differences}",
            hint="Leave those options out to go on with it, or give another --folder.",
        )
    return plan


def _told(value: Any) -> str:
    return " ".join(value) if isinstance(value, tuple) else str(value)


def _made(wanted: Mapping[str, Any]) -> Plan:
    device = wanted.get(
        "device", TRITON.device if wanted.get("language") == "triton" else CPP.device
    )
    ground = next((g for g in GROUNDS if g.device == device), CPP)
    if wanted.get("language", ground.language) != ground.language:
        raise InvalidRequest(
            f"on {ground.device} there are no recipes in {wanted['language']}",
            hint="Use " + " or ".join(f"--device {g.device} --language {g.language}"
                                      for g in GROUNDS) + ".",
        )  # fmt: skip
    plan = replace(default_plan(ground, wanted.get("taught")), **wanted)
    for name in (*plan.taught, *plan.others):
        load_problem(Path(name))  # raises NotFound with what is near
    both = sorted(set(plan.taught) & set(plan.others))
    if both:
        raise InvalidRequest(
            f"{', '.join(both)} cannot be learned from and be unknown",
            hint="Name it in --taught or in --others.",
        )
    return plan


def _read(path: Path) -> Plan:
    try:
        row = json.loads(path.read_text(encoding="utf-8"))
        known = {field.name for field in fields(Plan)}
        values = {name: value for name, value in row.items() if name in known}
        return Plan(**{**values, "taught": tuple(row["taught"]), "others": tuple(row["others"])})
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise InvalidRequest(
            f"{path} is no plan: {problem}", hint="Give a folder that this benchmark has made."
        ) from problem
