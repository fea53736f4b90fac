"""Which skills of the library a trajectory is compared with; each text is embedded once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from kb.catalog import Catalog
from kb.catalog.skills.reading import SkillScopes, get_skill
from kb.embedding import LocalEmbedder, Vectors
from kb.errors import InvalidKnowledge
from skills.curator.distil import StoredVectors, parameter_roles, snapshot
from skills.curator.pipeline import ALIKE_COSINE, TextSimilarity
from skills.curator.records import LibrarySkill
from skills.skill_library import SkillLibrary
from tests.kb.catalog.stored_skills import put_curated
from tests.skills.curator.planted import RECIPE, ROLES, VALUES, distil, step, trajectory, tuned

SHIPPED = Path(__file__).parents[3] / "skills" / "library"


def put(catalog: Catalog, name: str, *ops: str, **given: object) -> None:
    put_curated(catalog, name, SkillScopes(ops=ops), **given)


def compared_skills(catalog: Catalog, **fields: Any) -> list[str]:
    made = tuned()
    change = step(made.parent, made.child, **fields)
    return [known.row.name for known in snapshot(catalog, trajectory(change)).known]


def test_trajectory_is_compared_with_family_any_and_named_skills(catalog: Catalog) -> None:
    for name, op in (("a-norm", "rmsnorm"), ("b-other", "matmul"), ("c-far", "conv")):
        put(catalog, name, op)
    put(catalog, "d-any")
    assert compared_skills(catalog) == ["a-norm", "d-any"]
    assert compared_skills(catalog, shown={"skills": ("c-far",)}) == ["a-norm", "c-far", "d-any"]
    assert compared_skills(catalog, attributed=("b-other",)) == ["a-norm", "b-other", "d-any"]
    library = snapshot(catalog, trajectory(tuned()))
    assert library.taken == {"a-norm", "b-other", "c-far", "d-any"}


def test_move_of_a_skill_gives_it_evidence(catalog: Catalog) -> None:
    put(catalog, "b-other", "matmul")
    assert compared_skills(catalog, attributed=("b-other#0",)) == ["b-other"]
    made = tuned()
    change = step(made.parent, made.child, attributed=("b-other#0",))
    done = distil(trajectory(change), catalog, roles=ROLES)
    assert [(d.operation, d.skill) for d in done.deltas] == [("ADD_EVIDENCE", "b-other")]


def test_roles_are_those_of_library_recipes(catalog: Catalog) -> None:
    SkillLibrary(catalog).sync_builtin(SHIPPED)
    with catalog.read() as connection:
        recipe = get_skill(connection, RECIPE).recipe
    assert recipe is not None
    roles = {p["name"]: p["role"] for p in recipe["parameters"]}
    assert roles and parameter_roles(cast(Any, SimpleNamespace(catalog=catalog)))[RECIPE] == roles


def test_unreadable_recipe_is_an_error(catalog: Catalog) -> None:
    put(catalog, "a-norm", "rmsnorm", recipe={"format": 1})
    with pytest.raises(InvalidKnowledge):
        parameter_roles(cast(Any, SimpleNamespace(catalog=catalog)))


class Counting:
    """A real embedder that records its input."""

    def __init__(self, inner: LocalEmbedder, fingerprint: str) -> None:
        self.inner, self.fingerprint = inner, fingerprint
        self.dimension, self.window = inner.dimension, inner.window
        self.asked: list[str] = []

    def count_tokens(self, text: str) -> int:
        return self.inner.count_tokens(text)

    def encode(self, texts: Sequence[str]) -> Vectors:
        return self.inner.encode(texts)

    def encode_query(self, text: str) -> Vectors:
        self.asked.append(text)
        return self.inner.encode_query(text)


def test_no_text_is_embedded_twice(catalog: Catalog, embedder: LocalEmbedder) -> None:
    put(catalog, "a-norm", "rmsnorm", transformation="another-thing")
    put(catalog, "d-any", transformation="a-third-thing")
    counting = Counting(embedder, embedder.fingerprint)
    lanes = tuned(after={**VALUES, "lanes": 16}, nodes=(1, 3))
    distil(trajectory(tuned()), catalog, roles=ROLES, embedder=counting)
    first = len(counting.asked)
    assert first and len(set(counting.asked)) == first
    distil(trajectory(lanes, run="run_2"), catalog, roles=ROLES, embedder=counting)
    assert len(counting.asked) > first  # the new draft
    assert len(set(counting.asked)) == len(counting.asked)


def test_cached_vectors_equal_those_of_model(catalog: Catalog, embedder: LocalEmbedder) -> None:
    counting = Counting(embedder, embedder.fingerprint)
    stored = StoredVectors(catalog, counting)
    for _ in range(2):
        assert np.array_equal(
            stored.encode_query("load wider"), embedder.encode_query("load wider")
        )
    assert counting.asked == ["load wider"]
    other = Counting(embedder, "another-model")
    StoredVectors(catalog, other).encode_query("load wider")
    assert other.asked == ["load wider"]  # a vector of another model is not reused
    similarity = TextSimilarity(StoredVectors(catalog, counting)).similarity(
        "load wider", "load wider"
    )
    assert similarity.cosine is not None and similarity.cosine > ALIKE_COSINE


def test_text_is_normalised_once_for_all_drafts(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(catalog, "a-norm", "rmsnorm")
    (known,) = snapshot(catalog, trajectory(tuned())).known
    key = known.body_key
    monkeypatch.setattr("skills.curator.pipeline.body_key", None)  # a second call would fail
    assert known.body_key == key
    assert known == LibrarySkill(known.row, known.evidence)
