"""Whether a draft says what the library says already: the same text, the same claim about the same
situation, or the same in other words. And what sets two skills of opposite effect apart.

Decides over a snapshot of the library, so the same snapshot gives the same answer. Figures of two
skills are never averaged: what differs narrows both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from kb.catalog.engine import Catalog
from kb.catalog.knowledge import embeddings
from kb.catalog.skills import EvidenceRow, SkillRow
from kb.embedding import Embedder, Vectors
from kb.ids import sha256
from kb.moves_vocabulary import changes_named
from kb.problem_terms import op_family
from kb.tokens import tokenize
from skills.curator.draft import DraftedSkill, tested
from skills.curator.texts import body_key, prose
from skills.uses import ScopePart

# Chosen with the default embedding model on planted paraphrases (least 0.73 and 0.62) and near
# misses (none above both; most 0.75 with 0.39, and 0.55 with 0.56): tests/skills/curator.
ALIKE_COSINE = 0.70
ALIKE_OVERLAP = 0.58
# How far apart two ranges of sizes must be to say that the size made the difference.
APART = 1.5

PAIRS = ("pair", "simulator")

Tier = Literal["content", "key", "words", "attributed", "applied", "named"]
Lineages = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class KnownSkill:
    """A skill of the library with its measurements."""

    row: SkillRow
    evidence: tuple[EvidenceRow, ...] = ()

    @cached_property
    def body_key(self) -> str:
        """What its text is recognised by; worked out once, however many drafts are compared."""
        return body_key(_text(self.row))


def backing(known: KnownSkill) -> list[EvidenceRow]:
    """The pairs that support a skill; what contradicts it is kept beside them."""
    return [
        row
        for row in known.evidence
        if row.kind in PAIRS and row.details.get("polarity") == known.row.polarity
    ]


@dataclass(frozen=True)
class Similarity:
    """How alike two texts are: the cosine of their embeddings (None without an embedder), and the
    share of the shorter text's words that the other has too."""

    cosine: float | None
    overlap: float


@dataclass(frozen=True)
class Match:
    """The skill that a draft repeats or contradicts. `tier` says by what it was recognised;
    `opposite`, that it makes the same claim with the other effect."""

    known: KnownSkill
    tier: Tier
    opposite: bool
    similarity: Similarity | None = None


@dataclass(frozen=True)
class Apart:
    """What separates a draft from the skill of opposite effect. `ours` is the condition that the
    draft gets, `theirs` the one that the skill gets, and `parts` are those of the skill's scope
    that it loses by that. All are empty where the scopes separate them already."""

    what: str
    ours: str = ""
    theirs: str = ""
    parts: tuple[ScopePart, ...] = ()


@dataclass
class Texts:
    """Similarity of texts; every text is embedded once."""

    embedder: Embedder | None = None
    _vectors: dict[str, Sequence[float]] = field(default_factory=dict)

    def similarity(self, text: str, other: str) -> Similarity:
        """How alike two texts are."""
        cosine = None
        if self.embedder is not None:
            pairs = zip(self._vector(text), self._vector(other), strict=True)
            cosine = math.fsum(a * b for a, b in pairs)
        return Similarity(cosine, overlap(text, other))

    def _vector(self, text: str) -> Sequence[float]:
        assert self.embedder is not None
        if text not in self._vectors:
            vector = self.embedder.encode_query(text)  # cut to the window; passages are refused
            self._vectors[text] = [float(value) for value in vector]
        return self._vectors[text]


def overlap(text: str, other: str) -> float:
    """The share of the shorter text's words that the other text has too, from 0 to 1."""
    sets = [frozenset(tokenize(text)) for text in (text, other)]
    smaller = min(len(words) for words in sets)
    return len(sets[0] & sets[1]) / smaller if smaller else 0.0


def match(
    draft: DraftedSkill, library: Sequence[KnownSkill], texts: Texts, lineages: Lineages
) -> Match | None:
    """The skill that the draft repeats or contradicts, None where the library says nothing of it;
    the surest tier decides, then the name. `lineages` holds the lineage of each hardware."""
    near = [known for known in library if comparable(draft, known, lineages)]
    claims = [known for known in near if _same_claim(draft, known)]
    contested = [known for known in claims if _contested(draft, known)]
    if contested:
        return Match(contested[0], "key", True)
    key = body_key(draft.template())
    for known in near:
        same = known.body_key == key and same_moves(draft, known.row)
        if same and known.row.polarity == draft.polarity:
            return Match(known, "content", False)
    claims.sort(key=lambda known: _opposite(draft, known))
    if claims:
        return Match(claims[0], "key", _opposite(draft, claims[0]))
    return _in_other_words(draft, near, texts)


def nearest(
    draft: DraftedSkill, library: Sequence[KnownSkill], texts: Texts, count: int = 3
) -> list[KnownSkill]:
    """The skills of the same op family and language whose words come closest."""
    ours = spoken(draft)
    scored = []
    for known in library:
        if _same_subject(draft, known.row):
            similarity = texts.similarity(ours, _spoken(known.row))
            scored.append((-(similarity.cosine or 0.0) - similarity.overlap, known.row.name, known))
    return [known for _, _, known in sorted(scored, key=lambda entry: entry[:2])[:count]]


def spoken(draft: DraftedSkill) -> str:
    """What of a skill is compared as words: what it does, without where it was measured."""
    return _words_of(draft.transformation, draft.words.description, draft.template())


def _spoken(row: SkillRow) -> str:
    return _words_of(row.transformation, row.description, _text(row))


def _words_of(transformation: str, description: str, body: str) -> str:
    plain = prose(body)
    steps = plain.partition("## steps")[2].partition("## ")[0]
    return prose(f"{transformation.replace('-', ' ')}. {description} {steps}")


def _text(row: SkillRow) -> str:
    drafted: Mapping[str, str] = row.metadata.get("curator", {})
    return drafted.get("template", row.body)


# -- tiers


def _same_subject(draft: DraftedSkill, row: SkillRow) -> bool:
    ops, languages = row.scopes.ops, row.scopes.languages
    return (not ops or draft.family in {op_family(op) for op in ops}) and (
        not languages or draft.language in languages
    )


def comparable(draft: DraftedSkill, known: KnownSkill, lineages: Lineages) -> bool:
    """Whether a skill is about the draft's op family, language, recipe and hardware family."""
    row = known.row
    if not _same_subject(draft, row) or not _same_recipe(draft, known):
        return False
    return (
        _hardware_family(row.scopes.hardware, lineages)
        & _hardware_family(draft.scopes.hardware, lineages)
        != frozenset()
        or not row.scopes.hardware
    )


def _same_recipe(draft: DraftedSkill, known: KnownSkill) -> bool:
    """A knob of one recipe is not that of another, whatever both are called."""
    ours = {row.details.get("recipe") for row in draft.evidence} - {None}
    theirs = {row.details.get("recipe") for row in backing(known)} - {None}
    return not ours or not theirs or bool(ours & theirs)


def _hardware_family(hardware: Sequence[str], lineages: Lineages) -> frozenset[str]:
    """The chip's generation: what stands right above it, itself where nothing does. A scope that
    names the generation counts as it."""
    families = set()
    for name in hardware:
        line = [above for above in lineages.get(name, (name,)) if above != "any"]
        families.add(line[1] if len(line) > 2 else name)
    return frozenset(families)


def _same_claim(draft: DraftedSkill, known: KnownSkill) -> bool:
    """Op family, language, hardware family, transformation, signals; the element type and the chip
    may differ: then the scope widens, or explains the opposite effect."""
    row = known.row
    if not row.scopes.hardware or not row.scopes.ops:
        return False
    signals = set(draft.scopes.signals), set(row.scopes.signals)
    return row.transformation == draft.transformation and (
        not signals[0] or not signals[1] or bool(signals[0] & signals[1])
    )


def _opposite(draft: DraftedSkill, known: KnownSkill) -> bool:
    return known.row.polarity != draft.polarity


def _contested(draft: DraftedSkill, known: KnownSkill) -> bool:
    """The opposite was measured in the same situation: that comes before any agreement."""
    return _opposite(draft, known) and apart(draft, known) is None


def _in_other_words(draft: DraftedSkill, near: Sequence[KnownSkill], texts: Texts) -> Match | None:
    ours, best = spoken(draft), None
    for known in near:
        if not same_moves(draft, known.row) or (draft.recipe and known.row.recipe):
            continue  # two recipes are two kernels, however alike they read
        if draft.kind or known.row.metadata.get("kind"):
            continue  # a kernel as text is that kernel, an error is that error
        similarity = texts.similarity(ours, _spoken(known.row))
        if (
            similarity.cosine is None
            or similarity.cosine < ALIKE_COSINE
            or similarity.overlap < ALIKE_OVERLAP
        ):
            continue
        if best is None or similarity.cosine > (best.similarity or similarity).cosine:  # type: ignore[operator]
            best = Match(known, "words", known.row.polarity != draft.polarity, similarity)
    return best


def same_moves(draft: DraftedSkill, row: SkillRow) -> bool:
    """Two texts that move different knobs are different, however alike they read. What to avoid
    has no moves: there the transformation names the knobs."""

    def knobs(moves: Sequence[Mapping[str, object]], named: str) -> frozenset[tuple[str, str]]:
        changes = [move.get("change") for move in moves]
        return frozenset(
            (str(change.get("role")), str(change.get("direction")))
            for change in changes
            if isinstance(change, Mapping)
        ) or frozenset(changes_named(named))

    ours = knobs(draft.moves, draft.transformation)
    theirs = knobs(row.moves, row.transformation)
    return not ours or not theirs or ours == theirs


# -- opposite effects


def apart(draft: DraftedSkill, known: KnownSkill) -> Apart | None:
    """What differs between the measurements of two skills: operator, element type, hardware, or
    sizes. None: nothing does, and the effect is contested."""
    for name, title in (("op", "operator"), ("dtype", "element type")):
        ours = {str(row.details.get(name)) for row in draft.evidence} - {"None"}
        theirs = {str(row.details.get(name)) for row in backing(known)} - {"None"}
        theirs = theirs or set(known.row.scopes.ops if name == "op" else known.row.scopes.dtypes)
        if ours and theirs and not ours & theirs:
            return _values_apart(title, name, ours)
    ours, theirs = set(draft.scopes.hardware), set(known.row.scopes.hardware)
    if ours and theirs and not ours & theirs:
        return Apart("hardware")
    return _sizes_apart(draft.evidence, backing(known))


def _values_apart(title: str, name: str, ours: set[str]) -> Apart:
    listed = ", ".join(f"'{value}'" for value in sorted(ours))
    parts = tuple(ScopePart(name, value) for value in sorted(ours))
    field_ = f"problem.{name}"
    return Apart(title, f"{field_} in [{listed}]", f"{field_} not in [{listed}]", parts)


def _sizes_apart(ours: Sequence[EvidenceRow], theirs: Sequence[EvidenceRow]) -> Apart | None:
    """The quantity whose two ranges lie furthest apart, cut at their geometric middle."""
    mine, other = tested(ours), tested(theirs)
    best: tuple[float, Apart] | None = None
    for name in sorted(mine.keys() & other.keys()):
        (low, high), (their_low, their_high) = mine[name], other[name]
        above = low > their_high
        gap = low / their_high if above else their_low / high
        if gap < APART or (best is not None and gap <= best[0]):
            continue
        # Rounded, so that the condition and the part are the same number.
        cut = float(f"{math.sqrt(low * their_high if above else their_low * high):.6g}")
        larger, smaller = f"problem.{name} >= {cut!r}", f"problem.{name} < {cut!r}"
        part = ScopePart(name, at_least=cut) if above else ScopePart(name, below=cut)
        sides = (larger, smaller) if above else (smaller, larger)
        best = (gap, Apart(name.replace("_", " "), *sides, (part,)))
    return best[1] if best else None


class KeptVectors:
    """Embeds through another embedder and keeps vectors in the catalog, so that a skill's text is
    embedded once and not with every distillation.

    Only single texts are kept (`encode_query`, which is what skills are compared by). Vectors of
    two models never mix: they are kept by the model's fingerprint.
    """

    def __init__(self, catalog: Catalog, embedder: Embedder) -> None:
        self._catalog = catalog
        self._embedder = embedder

    @property
    def fingerprint(self) -> str:
        return self._embedder.fingerprint

    @property
    def dimension(self) -> int:
        return self._embedder.dimension

    @property
    def window(self) -> int:
        return self._embedder.window

    def count_tokens(self, text: str) -> int:
        return self._embedder.count_tokens(text)

    def encode(self, texts: Sequence[str]) -> Vectors:
        return self._embedder.encode(texts)

    def encode_query(self, text: str) -> Vectors:
        key, model = sha256(text), self.fingerprint
        with self._catalog.read() as connection:
            known = embeddings.of_text(connection, model, key)
        if known is not None:
            return known
        vector = self._embedder.encode_query(text)
        with self._catalog.write() as connection:
            embeddings.put(connection, model, {key: vector})
        return vector
