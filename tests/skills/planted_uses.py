"""A skill in use with a planted gain: requested, shown by the product, its outcome reported."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kb.catalog import Catalog
from kb.catalog.skills.reading import SkillDraft, SkillScopes
from kb.catalog.skills.writing import add_evidence, set_state, store_skill
from kb.ids import new_id
from kb.scope import ANY, ScopeFilter
from retrieval.compose.skill_choice import choose_skills
from retrieval.knowledge_base import Journal
from retrieval.request import RetrieveRequest
from retrieval.snapshot.store import SnapshotStore
from skills.lifecycle import observe
from tests.kb.catalog.stored_skills import ablation

NOISE = 0.05  # standard deviation of the gain of a use, as a share
OPS, DTYPES, LENGTHS = ("softmax", "matmul"), ("float32", "bfloat16"), (256, 8192)
Gain = Callable[[Mapping[str, Any]], float]


def learned(
    catalog: Catalog, name: str, scopes: SkillScopes | None = None, polarity: str = "use"
) -> None:
    """An active learned skill, measured once."""
    draft = SkillDraft(
        name=name,
        tier="learned",
        transformation="vectorise",
        description=f"Use {name} when loads are narrow.",
        body="## Steps\n\nLoad wider.",
        scopes=scopes or SkillScopes(signals=("memory_bound",)),
        content_sha256="",
        origin="run",
        polarity=polarity,
    )
    gain = 1.2 if polarity == "use" else 0.8
    with catalog.write() as connection:
        store_skill(connection, draft, state="candidate", actor="curator", reason="drafted")
        row = ablation(gain - 0.1, toolchain_id="cpp g++ 13.2")
        add_evidence(connection, name, row, actor="curator", reason="held-out shapes")
        set_state(connection, name, "active", actor="curator", reason="measured")


@dataclass
class Uses:
    """Requests knowledge, uses the shown skill, reports the outcome, and has the skill assessed."""

    catalog: Catalog
    gain: Gain
    seed: int

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.journal = Journal(self.catalog)
        self.snapshots = SnapshotStore(self.catalog, "model")

    def ask(self, name: str) -> bool:
        """False if the skill was not shown."""
        request = RetrieveRequest(
            signal="memory_bound",
            hardware="h100",
            op=self.random.choice(OPS),
            dtype=self.random.choice(DTYPES),
            language="triton",
            problem={"reduction_length": self.random.choice(LENGTHS)},
        )
        scope = ScopeFilter(("h100", "hopper", "nvidia", ANY))
        knowledge = self.snapshots.current().knowledge
        choice = choose_skills(knowledge, request, ["memory_bound"], scope, {}, {})
        names = [answer.name for answer in choice.answers]
        if name not in names:
            return False
        retrieval = new_id("ret")
        self.journal.record(row(retrieval, request, names))
        before = self.random.uniform(0.5, 4.0)
        situation = {"op": request.op, "dtype": request.dtype, **(request.problem or {})}
        gain = self.gain(situation) * (1 + NOISE * self.random.gauss(0, 1))
        self.journal.report(
            retrieval, used=[name], correct=True, speedup=before * gain, baseline_speedup=before
        )
        observe(self.catalog, [name])
        return True


def row(retrieval: str, request: RetrieveRequest, skills: list[str]) -> dict[str, Any]:
    return {
        "id": retrieval,
        "request": vars(request) | {"access_scope": request.access_scope.owner},
        "hardware_id": request.hardware,
        "signals": [request.signal],
        "excerpt_ids": [],
        "skill_ids": skills,
        "move_ids": [],
        "skills_withheld": [],
        "context_sha256": "",
        "run_id": request.run_id,
        "node_id": request.node_id,
        "milliseconds": 1.0,
        "catalog_revision": 1,
        "access_scope": "all",
    }
