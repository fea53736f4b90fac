"""A skill as a proposer receives it: moves, or a last step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kb.catalog import Catalog, open_catalog
from optimizer.search.knowledge import ShownKnowledge, knowledge_from_json
from optimizer.search.runs.knowledge import remedies_of, skill_of
from optimizer.search.synthesizers.recipe.synthesizer import Knob, avoided
from tests.catalogs import fresh_data_dir
from tests.skills.trials.curated import skill_in


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    opened = open_catalog(fresh_data_dir(tmp_path / "data"))
    yield opened
    opened.close()


def test_avoid_skill_is_a_warning_without_role(catalog: Catalog, tmp_path: Path) -> None:
    metadata = {
        "kb.polarity": "avoid",
        "kb.transformation": "decrease-vector",
        "kb.predicate": "problem.op in ['reduction']",
    }
    skill = skill_in(catalog, tmp_path, "", name="avoid-narrow", files={}, metadata=metadata)
    (remedy,) = remedies_of(skill)
    assert (remedy.id, skill_of(remedy.id)) == ("avoid-narrow#0", "avoid-narrow")
    assert remedy.when == skill.predicate and remedy.change.get("role") is None
    assert avoided(remedy) == (Knob("vector", "decrease"),)
    assert remedies_of(replace(skill, transformation="set-dtype")) == ()
    again = knowledge_from_json(ShownKnowledge("ret_1", moves=(remedy,)).as_json())
    assert again.moves == (remedy,)  # as in a portable session
