"""Whether the library already has a draft: the same text, the same claim about the same situation,
or the same in other words; and what separates two skills of opposite effect.

Decides over a snapshot of the library, so equal snapshots give equal answers. Figures of two skills
are never averaged: a difference narrows both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from kb.catalog.skills.reading import EvidenceRow, SkillRow
from kb.embedding import Embedder
from kb.moves_vocabulary import changes_named
from kb.problem_terms import op_family
from kb.tokens import tokenize
from skills.curator.comparison import body_key, prose
from skills.curator.draft import DraftedSkill, tested
from skills.curator.records import LibrarySkill, Lineages
from skills.uses import ScopePart

# Chosen with the default embedding model on planted paraphrases (least 0.73 and 0.62) and near
# misses (none above both; most 0.75 with 0.39, and 0.55 with 0.56): tests/skills/curator.
ALIKE_COSINE = 0.70
ALIKE_OVERLAP = 0.58
# How far apart two ranges of sizes must be for the size to explain opposite effects.
LEAST_GAP = 1.5

PAIRS = ("pair", "simulator")

Tier = Literal["content", "key", "words", "attributed", "applied", "named"]


@dataclass(frozen=True)
class Similarity:
    """How alike two texts are: the cosine of their embeddings (None without an embedder), and the
    share of the shorter text's words that the other has too."""

    cosine: float | None
    overlap: float


@dataclass(frozen=True)
class Match:
    """The skill that a draft repeats or contradicts. `tier` is the method that recognised it;
    `opposite` means the same claim with the other effect."""

    known: LibrarySkill
    tier: Tier
    opposite: bool
    similarity: Similarity | None = None


@dataclass(frozen=True)
class Separation:
    """The `quality` in which a draft differs from the skill of opposite effect. `ours` is the
    condition that the draft gets, `theirs` that of the skill, and `parts` those of the skill's
    scope that it loses. They are empty if the scopes separate the two already."""

    quality: str
    ours: str = ""
    theirs: str = ""
    parts: tuple[ScopePart, ...] = ()


@dataclass
class TextSimilarity:
    """Compares texts; each is embedded once."""

    embedder: Embedder | None = None
    _vectors: dict[str, Sequence[float]] = field(default_factory=dict)

    def similarity(self, text: str, other: str) -> Similarity:
        cosine = None
        if self.embedder is not None:
            pairs = zip(self._vector(text), self._vector(other), strict=True)
            cosine = math.fsum(a * b for a, b in pairs)
        return Similarity(cosine, overlap(text, other))

    def _vector(self, text: str) -> Sequence[float]:
        assert self.embedder is not None
        if text not in self._vectors:
            # As a query: these are cut to the model's window, passages are refused.
            self._vectors[text] = [float(value) for value in self.embedder.encode_query(text)]
        return self._vectors[text]


def overlap(text: str, other: str) -> float:
    """The share of the shorter text's words that the other text has too, from 0 to 1."""
    sets = [frozenset(tokenize(text)) for text in (text, other)]
    smaller = min(len(words) for words in sets)
    return len(sets[0] & sets[1]) / smaller if smaller else 0.0


def match(
    draft: DraftedSkill, library: Sequence[LibrarySkill], texts: TextSimilarity, lineages: Lineages
) -> Match | None:
    """The skill that the draft repeats or contradicts, or None. The surest tier decides, then the
    name."""
    near = [known for known in library if comparable(draft, known, lineages)]
    claims = [known for known in near if _same_claim(draft, known)]
    for known in claims:
        # The opposite was measured in the same situation: that precedes any agreement.
        if _opposite(draft, known) and separation(draft, known) is None:
            return Match(known, "key", True)
    key = body_key(draft.template())
    for known in near:
        same = known.body_key == key and same_moves(draft, known.row)
        if same and not _opposite(draft, known):
            return Match(known, "content", False)
    claims.sort(key=lambda known: _opposite(draft, known))
    if claims:
        return Match(claims[0], "key", _opposite(draft, claims[0]))
    return _paraphrase(draft, near, texts)


def nearest(
    draft: DraftedSkill, library: Sequence[LibrarySkill], texts: TextSimilarity, count: int = 3
) -> list[LibrarySkill]:
    """The skills of the same op family and language with the most similar words."""
    ours = draft_words(draft)
    scored = []
    for known in library:
        if _same_subject(draft, known.row):
            similarity = texts.similarity(ours, _skill_words(known))
            scored.append((-(similarity.cosine or 0.0) - similarity.overlap, known.row.name, known))
    return [known for _, _, known in sorted(scored, key=lambda entry: entry[:2])[:count]]


def draft_words(draft: DraftedSkill) -> str:
    """The words that skills are compared by: transformation and description, without the place of
    measurement."""
    return _words(draft.transformation, draft.words.description, draft.template())


def _skill_words(known: LibrarySkill) -> str:
    return _words(known.row.transformation, known.row.description, known.text)


def _words(transformation: str, description: str, body: str) -> str:
    steps = prose(body).partition("## steps")[2].partition("## ")[0]
    return prose(f"{transformation.replace('-', ' ')}. {description} {steps}")


def supporting_pairs(known: LibrarySkill) -> list[EvidenceRow]:
    """The measured pairs that support a skill; those that contradict it are left out."""
    return [
        row
        for row in known.evidence
        if row.kind in PAIRS and row.details.get("polarity") == known.row.polarity
    ]


# -- tiers


def comparable(draft: DraftedSkill, known: LibrarySkill, lineages: Lineages) -> bool:
    """Whether a skill is about the draft's op family, language, recipe and hardware family."""
    hardware = known.row.scopes.hardware
    if not _same_subject(draft, known.row) or not _same_recipe(draft, known):
        return False
    ours = _hardware_families(draft.scopes.hardware, lineages)
    return not hardware or bool(_hardware_families(hardware, lineages) & ours)


def _same_subject(draft: DraftedSkill, row: SkillRow) -> bool:
    ops, languages = row.scopes.ops, row.scopes.languages
    return (not ops or draft.family in {op_family(op) for op in ops}) and (
        not languages or draft.language in languages
    )


def _same_recipe(draft: DraftedSkill, known: LibrarySkill) -> bool:
    """Parameters of two recipes differ, even under one name."""
    ours = {row.details.get("recipe") for row in draft.evidence} - {None}
    theirs = {row.details.get("recipe") for row in supporting_pairs(known)} - {None}
    return not ours or not theirs or bool(ours & theirs)


def _hardware_families(hardware: Sequence[str], lineages: Lineages) -> frozenset[str]:
    """The generation of each chip: its parent, or the chip without one. A generation counts as
    itself."""
    families = set()
    for name in hardware:
        line = [above for above in lineages.get(name, (name,)) if above != "any"]
        families.add(line[1] if len(line) > 2 else name)
    return frozenset(families)


def _same_claim(draft: DraftedSkill, known: LibrarySkill) -> bool:
    """Op family, language, hardware family, transformation, signals. Element type and chip may
    differ: then the scope widens, or they explain the opposite effect."""
    row = known.row
    if not row.scopes.hardware or not row.scopes.ops:
        return False
    signals = set(draft.scopes.signals), set(row.scopes.signals)
    return row.transformation == draft.transformation and (
        not signals[0] or not signals[1] or bool(signals[0] & signals[1])
    )


def _opposite(draft: DraftedSkill, known: LibrarySkill) -> bool:
    return known.row.polarity != draft.polarity


def _paraphrase(
    draft: DraftedSkill, near: Sequence[LibrarySkill], texts: TextSimilarity
) -> Match | None:
    """The skill that says the same in other words."""
    ours = draft_words(draft)
    best: tuple[float, Match] | None = None
    for known in near:
        row = known.row
        if not same_moves(draft, row) or (draft.recipe and row.recipe):
            continue  # two recipes are two kernels, however alike they read
        if draft.kind or row.metadata.get("kind"):
            continue  # a text of a kernel, or of an error, is about that one alone
        similarity = texts.similarity(ours, _skill_words(known))
        cosine = similarity.cosine
        if cosine is None or cosine < ALIKE_COSINE or similarity.overlap < ALIKE_OVERLAP:
            continue
        if best is None or cosine > best[0]:
            best = cosine, Match(known, "words", _opposite(draft, known), similarity)
    return best[1] if best is not None else None


def same_moves(draft: DraftedSkill, row: SkillRow) -> bool:
    """Whether two skills move the same parameter roles, of those known in both. A skill to avoid
    has no moves: its transformation names the roles."""

    def moved(moves: Sequence[Mapping[str, object]], named: str) -> frozenset[tuple[str, str]]:
        changes = [move.get("change") for move in moves]
        return frozenset(
            (str(change.get("role")), str(change.get("direction")))
            for change in changes
            if isinstance(change, Mapping)
        ) or frozenset(changes_named(named))

    ours = moved(draft.moves, draft.transformation)
    theirs = moved(row.moves, row.transformation)
    return not ours or not theirs or ours == theirs


# -- opposite effects


def separation(draft: DraftedSkill, known: LibrarySkill) -> Separation | None:
    """The difference between the measurements of two skills: operator, element type, hardware, or
    sizes; None if they are equal, so that the effect is contested."""
    pairs = supporting_pairs(known)
    for name, title in (("op", "operator"), ("dtype", "element type")):
        ours = {str(row.details.get(name)) for row in draft.evidence} - {"None"}
        theirs = {str(row.details.get(name)) for row in pairs} - {"None"}
        theirs = theirs or set(known.row.scopes.ops if name == "op" else known.row.scopes.dtypes)
        if ours and theirs and not ours & theirs:
            listed = ", ".join(f"'{value}'" for value in sorted(ours))
            parts = tuple(ScopePart(name, value) for value in sorted(ours))
            term = f"problem.{name}"
            return Separation(title, f"{term} in [{listed}]", f"{term} not in [{listed}]", parts)
    ours, theirs = set(draft.scopes.hardware), set(known.row.scopes.hardware)
    if ours and theirs and not ours & theirs:
        return Separation("hardware")
    return _separated_sizes(draft.evidence, pairs)


def _separated_sizes(
    ours: Sequence[EvidenceRow], theirs: Sequence[EvidenceRow]
) -> Separation | None:
    """The quantity whose two ranges are furthest apart, cut at the geometric mean of the gap."""
    mine, other = tested(ours), tested(theirs)
    best: tuple[float, Separation] | None = None
    for name in sorted(mine.keys() & other.keys()):
        (low, high), (their_low, their_high) = mine[name], other[name]
        above = low > their_high
        gap = low / their_high if above else their_low / high
        if gap < LEAST_GAP or (best is not None and gap <= best[0]):
            continue
        # Rounded, so that the condition and the part are the same number.
        cut = float(f"{math.sqrt(low * their_high if above else their_low * high):.6g}")
        larger, smaller = f"problem.{name} >= {cut!r}", f"problem.{name} < {cut!r}"
        part = ScopePart(name, at_least=cut) if above else ScopePart(name, below=cut)
        sides = (larger, smaller) if above else (smaller, larger)
        best = (gap, Separation(name.replace("_", " "), *sides, (part,)))
    return best[1] if best else None
