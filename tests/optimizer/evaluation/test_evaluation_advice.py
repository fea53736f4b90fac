"""Advice to the author of an evaluated kernel: moves that fit the operator and that the toolchain
does not apply itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from api.cli.commands.problem import knowledge_lines
from api.cli.target import CommandTarget
from kb.answers import SignalFinding
from kb.settings import Settings
from optimizer.evaluation.evaluate import knowledge_about
from optimizer.evaluation.records import EvaluationVerdict
from tests.evaluations import RIGHT
from tests.shared import copy_knowledge, place_models

pytestmark = pytest.mark.slow(seconds=5)

DOCUMENTS = (
    "guidance/tiling-for-a-memory-hierarchy.md",
    "hardware/x86-64/programming-and-limits.md",
    "hardware/x86-64/architecture.md",
)
SCALAR = replace(
    RIGHT,
    toolchain="g++ (Debian 12.2.0-14+deb12u1) 12.2.0; native=znver3",
    timing="repeat",
    reached="benchmark",
    metrics={"packed_instructions": 0, "vec_missed": 5},
    verdict=EvaluationVerdict((SignalFinding("not_vectorized", "B"),)),
)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory, model_cache: Path) -> Iterator[CommandTarget]:
    folder = tmp_path_factory.mktemp("known")
    knowledge = copy_knowledge(folder / "knowledge", DOCUMENTS, vectors=False)
    target = CommandTarget(Settings(data_dir=folder / "data", knowledge_dir=knowledge))
    place_models(folder / "data", model_cache)
    target.load_knowledge(lambda line: None)
    yield target
    target.close()


def known(local: CommandTarget, op: str, **changes: Any) -> dict[str, Any]:
    evaluation = replace(SCALAR, verdict=replace(SCALAR.verdict, op=op), **changes)
    return knowledge_about(local.services, evaluation)


def names(answer: dict[str, Any]) -> set[str]:
    return {move["name"] for move in answer["moves"]}


def test_tile_move_is_given_only_for_tiled_operators(local: CommandTarget) -> None:
    assert "vector-shaped-tile" in names(known(local, "matmul"))
    assert "vector-shaped-tile" not in names(known(local, "groupnorm"))


def test_settings_of_toolchain_are_not_advised(local: CommandTarget) -> None:
    assert "name-the-target" not in names(known(local, "groupnorm"))
    assert "name-the-target" in names(known(local, "groupnorm", toolchain="own-cc 1"))


def test_command_describes_changes_of_code(local: CommandTarget) -> None:
    """Names of parameters are for recipes; other kernels have none."""
    lines = [
        line for line in knowledge_lines(known(local, "matmul")) if "vector-shaped-tile" in line
    ]
    assert lines == [
        "  move vector-shaped-tile: The unit-stride edge of the innermost tile has to be a multiple"
        " of the vector width. (The register tile: products per load)"
    ]
