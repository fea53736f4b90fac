"""Whether the library has a draft already, and what separates opposite effects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from kb.catalog import Catalog
from kb.catalog.skills.evidence import evidence_of
from kb.catalog.skills.reading import EvidenceRow, SkillRow, get_skill, list_skills
from kb.catalog.skills.writing import links_of, set_state
from kb.embedding import LocalEmbedder
from kb.predicates import Bindings, compile_predicate
from kb.scope import ALL_ACCESS
from skills.curator.draft import SkillSentences
from skills.curator.pipeline import (
    ALIKE_COSINE,
    ALIKE_OVERLAP,
    TextSimilarity,
    draft_words,
    match,
    skill_row,
)
from skills.curator.records import LibrarySkill
from tests.skills.curator.paraphrases import NEAR, PAIRS, Paraphrase
from tests.skills.curator.planted import LINEAGES, ROLES, VALUES, distil, trajectory, tuned
from tests.skills.curator.test_draft import drafted

pytestmark = pytest.mark.slow(seconds=3)

SMALL = {"main": {"compulsory_bytes": 65536.0}}
LARGE = {"main": {"compulsory_bytes": 1e9}}
FAILED = {"validity": "incorrect", "checks": (3, 6), "cases": ()}


def draft_with(paraphrase: Paraphrase):  # type: ignore[no-untyped-def]
    """A draft about a layer norm on x86-64 in these words, without a distinguishing parameter."""
    words = SkillSentences(
        paraphrase.description, ("Rows.",), ("Else.",), paraphrase.steps, ("Time.",), ("Slower.",)
    )
    made = drafted(trajectory(tuned()))
    return replace(made, name=paraphrase.transformation, transformation=paraphrase.transformation,
                   words=words, moves=(), before=(), after=())  # fmt: skip


def as_known(paraphrase: Paraphrase) -> LibrarySkill:
    draft = draft_with(paraphrase)
    return LibrarySkill(skill_row(draft.skill()), draft.evidence)


def test_paraphrases_match_and_near_misses_do_not(embedder: LocalEmbedder) -> None:
    texts = TextSimilarity(embedder)
    for name, (first, other) in PAIRS.items():
        library = [as_known(two) for key, pair in PAIRS.items() if key != name for two in pair]
        library += [as_known(near) for near in NEAR.values()]
        assert match(draft_with(other), library, texts, LINEAGES) is None, name
        matched = match(draft_with(other), [*library, as_known(first)], texts, LINEAGES)
        assert matched is not None, name
        assert (matched.known.row.name, matched.tier) == (first.transformation, "words")
        alike = texts.similarity(draft_words(draft_with(first)), draft_words(draft_with(other)))
        assert alike.cosine is not None
        assert alike.cosine > ALIKE_COSINE + 0.02 and alike.overlap > ALIKE_OVERLAP + 0.02


def test_other_parameters_operators_or_chips_never_match(embedder: LocalEmbedder) -> None:
    first, other = PAIRS["prefetch"]
    texts, draft, known = TextSimilarity(embedder), draft_with(other), as_known(first)
    assert match(draft, [known], texts, LINEAGES) is not None
    moved = ({"change": {"role": "prefetch", "direction": "add"}},)
    unlike = ({"change": {"role": "prefetch", "direction": "remove"}},)
    row = replace(known.row, moves=unlike)
    assert match(replace(draft, moves=moved), [LibrarySkill(row)], texts, LINEAGES) is None
    elsewhere = [
        replace(known.row.scopes, ops=("matmul",)),
        replace(known.row.scopes, languages=("triton",)),
        replace(known.row.scopes, hardware=("a100",)),
    ]
    for scopes in elsewhere:
        row = replace(known.row, scopes=scopes)
        assert match(draft, [LibrarySkill(row)], texts, LINEAGES) is None
    assert match(draft, [known], TextSimilarity(None), LINEAGES) is None


def rows(catalog: Catalog) -> dict[str, SkillRow]:
    with catalog.read() as connection:
        return {row.name: row for row in list_skills(connection)}


def evidence(catalog: Catalog, name: str) -> Sequence[EvidenceRow]:
    with catalog.read() as connection:
        return evidence_of(connection, get_skill(connection, name, ALL_ACCESS).id)


def test_same_claim_on_sibling_chip_and_dtype_widens_candidate(catalog: Catalog) -> None:
    distil(trajectory(tuned(), hardware="h100"), catalog, roles=ROLES)
    made = distil(trajectory(tuned(), hardware="h200", run="run_2", dtype="bf16",
                             sizes=LARGE), catalog, roles=ROLES)  # fmt: skip
    assert [delta.operation for delta in made.deltas] == ["ADD_EVIDENCE"]
    (row,) = rows(catalog).values()
    assert row.scopes.hardware == ("h100", "h200") and row.scopes.dtypes == ("bfloat16", "float32")
    assert row.state == "candidate" and row.version == 2
    assert "The same effect was measured for layernorm, cpp, bfloat16, h200." in row.body
    assert len(evidence(catalog, row.name)) == 2
    large: dict[str, Any] = {"op": "layernorm", "compulsory_bytes": 1e9}
    assert row.predicate is not None
    holds = compile_predicate(row.predicate).evaluate(Bindings(("memory_bound",), problem=large))
    assert holds.value is True
    distil(trajectory(tuned(), hardware="a100", run="run_3"), catalog, roles=ROLES)
    assert len(rows(catalog)) == 2  # another family is a separate claim


def test_claim_of_an_active_skill_is_not_widened(catalog: Catalog) -> None:
    distil(trajectory(tuned(), hardware="h100"), catalog, roles=ROLES)
    (name,) = rows(catalog)
    with catalog.write() as connection:
        set_state(connection, name, "active", actor="ann", reason="verified", force=True)
    distil(trajectory(tuned(), hardware="h200", run="run_2"), catalog, roles=ROLES)
    (row,) = rows(catalog).values()
    assert (row.state, row.version, row.scopes.hardware) == ("active", 1, ("h100",))
    assert len(evidence(catalog, name)) == 2


@pytest.mark.parametrize(
    ("other", "inside", "outside"),
    [
        ({"dtype": "float16"}, {"dtype": "float16"}, {"dtype": "float32"}),
        ({"op": "rmsnorm"}, {"op": "rmsnorm"}, {"op": "layernorm"}),
        ({"sizes": SMALL}, {"compulsory_bytes": 65536.0}, {"compulsory_bytes": 3e7}),
    ],
)
@pytest.mark.parametrize("failure", [False, True])
def test_opposite_effects_narrow_both_skills(
    catalog: Catalog,
    other: dict[str, Any],
    inside: dict[str, Any],
    outside: dict[str, Any],
    failure: bool,
) -> None:
    distil(trajectory(tuned()), catalog, roles=ROLES)
    worse = tuned(speedups=(1.0, None), child=FAILED) if failure else tuned(speedups=(1.0, 0.7))
    made = distil(trajectory(worse, run="run_2", **other), catalog, roles=ROLES)
    assert [delta.operation for delta in made.deltas] == ["ADD", "CONTRADICT"]
    skills = rows(catalog)
    (use,) = [row for row in skills.values() if row.polarity == "use"]
    (avoid,) = [row for row in skills.values() if row.polarity == "avoid"]
    with catalog.read() as connection:
        (link,) = links_of(connection, use.name)
    assert {link.source, link.target} == set(skills) and link.kind == "conflicts_with"
    base = {"op": "layernorm", "dtype": "float32", "compulsory_bytes": 3e7}

    def holds(row: SkillRow, problem: dict[str, object]) -> bool | None:
        assert row.predicate is not None
        values = {**base, **problem}
        bindings = Bindings(("memory_bound",), problem=values)  # type: ignore[arg-type]
        return compile_predicate(row.predicate).evaluate(bindings).value

    assert holds(use, outside) is True and holds(use, inside) is False
    assert holds(avoid, inside) is True and holds(avoid, outside) is False
    assert [e.details["polarity"] for e in evidence(catalog, use.name)] == ["use"]


def test_opposite_evidence_is_recorded_without_averaging(catalog: Catalog) -> None:
    distil(trajectory(tuned()), catalog, roles=ROLES)
    made = distil(trajectory(tuned(speedups=(1.0, 0.7)), run="run_2"), catalog, roles=ROLES)
    assert [delta.operation for delta in made.deltas] == ["CONTRADICT"]
    assert made.decisions[-1].details["held"] is True
    (row,) = rows(catalog).values()
    figures = [round(e.speedup or 0, 2) for e in evidence(catalog, row.name)]
    assert sorted(figures) == [0.7, 1.5] and row.version == 1


def test_parameter_of_another_recipe_is_a_separate_claim(catalog: Catalog) -> None:
    distil(trajectory(tuned()), catalog, roles=ROLES)
    made = tuned(speedups=(1.0, 0.7))
    sides = {}
    for name in ("parent", "child"):
        side = getattr(made, name)
        sides[name] = replace(side, proposal=replace(side.proposal, recipe="cpp-other-layernorm"))
    roles = {**ROLES, "cpp-other-layernorm": dict.fromkeys(VALUES, "unroll")}
    distil(trajectory(replace(made, **sides), run="run_2"), catalog, roles=roles)
    assert {row.polarity for row in rows(catalog).values()} == {"use", "avoid"}
    with catalog.read() as connection:
        assert [links_of(connection, name) for name in rows(catalog)] == [[], []]


def test_skill_retired_by_person_is_not_learned_again(catalog: Catalog) -> None:
    distil(trajectory(tuned()), catalog, roles=ROLES)
    (name,) = rows(catalog)
    with catalog.write() as connection:
        set_state(connection, name, "quarantined", actor="ann", reason="doubtful")
    made = distil(trajectory(tuned(), run="run_2"), catalog, roles=ROLES)
    assert made.deltas == () and "took it out" in made.decisions[-1].reason
