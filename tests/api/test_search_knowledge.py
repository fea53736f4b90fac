"""Knowledge that a search retrieves, and its view of the local device."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from api.cli.target import CommandTarget
from api.services import Services
from kb.catalog.skills.reading import EvidenceRow
from kb.catalog.skills.writing import add_evidence
from kb.hardware.detection import detect_devices
from kb.settings import Settings
from optimizer.evaluation.collectors.probe import identify
from optimizer.evaluation.evaluate import choose_target
from optimizer.evaluation.targets import AUTO, facts_of
from optimizer.search.knowledge import operator_query
from optimizer.search.propose import EXCERPTS
from optimizer.search.runs.knowledge import ServiceKnowledge
from retrieval.request import RetrieveRequest
from skills.lifecycle import change_state
from tests.api.conftest import small_knowledge
from tests.shared import BUILTIN, place_models
from tests.skills.trials.curated import skill_in

pytestmark = pytest.mark.slow(seconds=15)

PARAMETERS = "guidance/parameters-of-cpp-kernels.md"


def request_of(*signals: str, **metrics: float) -> RetrieveRequest:
    return RetrieveRequest(
        signals=signals,
        metrics=metrics or None,
        query=None if signals else operator_query("softmax", "cpp"),
        hardware="x86-64",
        op="softmax",
        language="cpp",
        dtype="float32",
        problem={"element_bytes": 4},
        k=EXCERPTS,
        max_tokens=2_000,
        node_id="1",
        roles=("vector", "block"),
    )


def measured_skill(services: Services, folder: Path) -> None:
    """An active skill with a move, confirmed by a trial on this chip."""
    change = {"role": "unroll", "direction": "increase"}
    moves = [{"id": "more", "when": "signals.memory_bound", "change": change, "why": "Why not."}]
    files = {"references/moves.json": json.dumps(moves).encode()}
    reported = {"kb.signals": "memory_bound", "kb.hardware": "x86-64", "kb.languages": "cpp"}
    reported["kb.ops"] = "softmax"
    skill = skill_in(
        services.catalog, folder, "", name="unroll-rows", files=files, metadata=reported
    )
    measured = EvidenceRow("x86-64", "ablation", 6, speedup=1.5, speedup_low=1.4, speedup_high=1.6)
    signed: dict[str, Any] = {"actor": "ann", "reason": "a test"}
    with services.catalog.write() as connection:
        add_evidence(connection, skill.name, measured, **signed)
    change_state(services.catalog, skill.name, "active", **signed)


def test_verdict_without_signal_is_queried_by_operator(tmp_path: Path, model_cache: Path) -> None:
    knowledge = small_knowledge(tmp_path / "knowledge")
    shutil.copy(BUILTIN / PARAMETERS, knowledge / PARAMETERS)
    data = place_models(tmp_path / "data", model_cache)
    local = CommandTarget(Settings(data_dir=data, knowledge_dir=knowledge))
    try:
        local.load_knowledge(lambda _: None)
        source = ServiceKnowledge(local.services)
        far = source.consult(request_of(call_us=100.0, roofline_pct=20.0, copy_bandwidth_pct=20.0))
        near = source.consult(request_of(call_us=100.0, roofline_pct=90.0, copy_bandwidth_pct=90.0))
        untimed = source.consult(request_of())
        measured_skill(local.services, tmp_path)
        ours = source.consult(request_of("memory_bound", copy_bandwidth_pct=70.0))
        several = source.consult(request_of("memory_bound", "poor_reuse", copy_bandwidth_pct=70.0))
        chosen = choose_target(local.services, AUTO, "cpp")
    finally:
        local.close()
    assert far.excerpts and {move.applies for move in far.moves} == {True}
    assert {"fill-the-vector-register", "more-work-per-chunk"} <= {m.name for m in far.moves}
    width = next(move for move in far.moves if move.name == "fill-the-vector-register")
    assert (width.limit_name, width.limit_unit) == ("vector_bits", "bit")
    free = {"fill-the-vector-register", "more-work-per-chunk"}
    assert not free & {move.name for move in near.moves} and untimed.moves == ()
    assert "longer-shares-of-a-stream" in {move.name for move in several.moves}
    # Measurements on this machine precede general moves.
    assert [move.id for move in ours.moves].index("unroll-rows#0") == 0 < len(ours.moves) - 1
    if chosen.target.device == "cpu":
        reported = facts_of(identify("cpu"))
        assert {key: chosen.target.facts[key] for key in reported} == reported
        assert [d.kind for d in detect_devices().devices][:1] == ["cpu"]
