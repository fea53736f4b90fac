"""From a trajectory to deltas of the library: gate, contrast, draft, lint, normalise, match.

`propose_deltas` is a function of the trajectory, a snapshot of the library, and the answers of the
model and of lifting; equal inputs give equal decisions. It stores nothing. A delta is a new skill,
more evidence for one, or a contradiction of two. Figures of two skills are never averaged. The
scope of a candidate may widen to new measurements; a skill in use keeps its claim until it is
verified.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from kb.catalog.skills.reading import EvidenceRow, SkillDraft, SkillRow, SkillScopes, structured_key
from kb.embedding import Embedder
from kb.hardware.lineage import NameIndex
from kb.ids import SkillId, derived_id
from kb.problem_terms import changes_named, op_family
from kb.tokens import tokenize
from optimizer.search.runs.knowledge import skill_of
from skills.curator.comparison import (
    APPLIED,
    body_key,
    copied_from,
    kernel_key,
    prose,
    without_copies,
)
from skills.curator.contrast import GatePass, contrast, gate
from skills.curator.draft import (
    WHEN,
    DraftedSkill,
    SkillSentences,
    as_text,
    compose,
    dangling,
    is_written,
    predicate_of,
    render,
    rows_of,
    slug,
    tested,
    text_node,
)
from skills.curator.drafter import (
    BadDelta,
    Drafter,
    DraftTask,
    ModelDelta,
    ReplayedDrafter,
    parse_delta,
)
from skills.curator.records import (
    ADOPTED,
    UNNAMED,
    WRITTEN,
    CuratorContext,
    Decision,
    Delta,
    Distillation,
    KernelChange,
    LibrarySkill,
    LibrarySnapshot,
    Lift,
    LiftedRecipe,
    Lineages,
    Narrowing,
    Operation,
    inputs_from_json,
)
from skills.format.lint import Allowed, lint, unsafe
from skills.format.schema import TEXT, numbered_name
from skills.format.skillfile import with_content_hash
from skills.trajectories.records import Trajectory, TrajectoryStep
from skills.uses import ScopePart

# -- matching
#
# Whether the library already has a draft: the same text, the same claim about the same situation,
# or the same in other words; and what separates two skills of opposite effect. Decides over a
# snapshot of the library, so equal snapshots give equal answers. Figures of two skills are never
# averaged: a difference narrows both.

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


# -- the pipeline

REMOVED = frozenset({"quarantined"})  # states of skills that are not learned again
KNOWN = " has this measurement already"  # end of a decision, after the name of the skill
TRIES = 2  # of the drafting model: an answer and one repair
# A list of sentences with a larger share of copied words says nothing new.
MOST_COPIED = 0.5


def propose_deltas(
    trajectory: Trajectory,
    library: LibrarySnapshot,
    context: CuratorContext,
    *,
    drafter: Drafter | None = None,
    lift: Lift | None = None,
) -> Distillation:
    """The deltas that a trajectory proposes for this library, with all decisions.

    `drafter` may write the sentences of skills; `lift` makes recipes of kernels. Without them,
    drafts have the curator's sentences, and whole kernels become text skills at most.
    """
    run = CuratorRun(
        trajectory,
        context,
        {known.row.name: known for known in library.known},
        set(library.taken),
        drafter,
        lift,
        TextSimilarity(context.embedder),
        NameIndex(context.names),
    )
    seen: dict[str, int] = {}  # code of earlier candidates -> node
    gated: list[tuple[TrajectoryStep, GatePass | None, Decision]] = []
    for step in trajectory.steps:
        gated.append((step, *gate(trajectory, step, seen)))
        if step.child.bundle is not None:
            seen.setdefault(kernel_key(step.child.bundle), step.child.number)
    passed = [(step, gate_pass) for step, gate_pass, _ in gated if gate_pass is not None]
    run.text_node = text_node(passed, context.roles)
    for step, gate_pass, decision in gated:
        run.decisions.append(decision)
        if gate_pass is not None:
            _judge(run, step, gate_pass)
    return Distillation(
        trajectory=trajectory,
        library=library,
        context=context,
        decisions=tuple(run.decisions),
        deltas=tuple(run.deltas),
        drafter=drafter.name if drafter is not None else "",
        answers=run.answers,
        lifted=run.lifted,
        after=LibrarySnapshot(tuple(run.known.values()), frozenset(run.taken)),
    )


def replay(
    record: Mapping[str, Any],
    embedder: Embedder | None = None,
    lifted: Mapping[str, Any] | None = None,
) -> Distillation:
    """Judge a stored distillation again, with the recorded answers.

    `embedder` must be the one that it was made with. `lifted` holds the recorded results of lifting
    by node; None without lifting. Raises InvalidKnowledge for another format or embedder.
    """
    inputs = inputs_from_json(record, embedder)

    def recorded_lift(trajectory: Trajectory, change: KernelChange) -> LiftedRecipe | str:
        answer = (lifted or {}).get(str(change.node), "the record has no answer")
        if isinstance(answer, str):
            return answer
        return LiftedRecipe(**{**answer, "signals": tuple(answer.get("signals", ()))})

    return propose_deltas(
        inputs.trajectory,
        inputs.library,
        inputs.context,
        drafter=ReplayedDrafter(inputs.drafter, inputs.answers) if inputs.drafter else None,
        lift=recorded_lift if lifted is not None else None,
    )


@dataclass
class CuratorRun:
    """The state of one pass over a trajectory.

    `known` grows by the deltas of the pass, so that a later step meets them. `answers` are the
    drafter's and `lifted` the results of lifting, by node. `text_node` is the node that may be
    taught as text, `node` the one that is judged.
    """

    trajectory: Trajectory
    context: CuratorContext
    known: dict[str, LibrarySkill]
    taken: set[str]
    drafter: Drafter | None
    lift: Lift | None
    texts: TextSimilarity
    names: NameIndex
    decisions: list[Decision] = field(default_factory=list)
    deltas: list[Delta] = field(default_factory=list)
    answers: dict[str, tuple[str, ...]] = field(default_factory=dict)
    lifted: dict[str, Any] = field(default_factory=dict)
    text_node: int | None = None
    node: int = 0

    def decide(self, stage: str, passed: bool, reason: str, **details: Any) -> None:
        """Record a decision about the present node."""
        self.decisions.append(Decision(stage, self.node, passed, reason, details))

    def add(self, delta: Delta, known: LibrarySkill) -> None:
        """Record a delta, and the skill as it is afterwards."""
        self.deltas.append(delta)
        self.known[known.row.name] = known
        self.taken.add(known.row.name)


def _judge(run: CuratorRun, step: TrajectoryStep, gate_pass: GatePass) -> None:
    run.node = step.child.number
    cause = _attributed(run, step)
    change, decision = contrast(step, gate_pass, run.context.roles, attributed=cause is not None)
    run.decisions.append(decision)
    if change is None:
        return
    evidence = rows_of(run.trajectory, change, gate_pass.evidence)
    draft = compose(run.trajectory, change, evidence)
    matched = cause or _applied(run, change)
    if matched is not None:
        _add_to_match(run, draft, matched)
        return
    lifted = _lifted(run, change, draft)
    if lifted is not None:
        _learn(run, change, lifted)


def _learn(run: CuratorRun, change: KernelChange, draft: DraftedSkill) -> None:
    draft, delta = _drafted_by_model(run, change, draft)
    operation = delta.operation if delta is not None else None
    unnamed = draft.transformation == UNNAMED
    if unnamed and operation not in ("ADD_EVIDENCE", "REFINE"):
        run.decide("draft", False, "no rule and nobody names what the new lines do")
        return
    if run.drafter is None:
        run.decide("draft", True, "drafted without a model", name=draft.name)
    problems = draft_findings(run, change, draft)
    reason = "; ".join(problems[:3]) if problems else "clean"
    run.decide("lint", not problems, reason, findings=problems)
    if problems:
        return
    draft = _normalised(run, draft)
    matched = None
    if delta is not None and operation != "ADD":
        matched = _named_match(run, delta, draft)
    if matched is None and unnamed:
        return  # `_named_match` recorded why the skill that the model named does not match
    if matched is None:
        matched = match(draft, list(run.known.values()), run.texts, run.context.lineages)
    if matched is None:
        run.decide("match", True, "nothing in the library says this", name=draft.name)
        _add_skill(run, draft)
        return
    refine = operation == "REFINE" and matched.tier == "named"
    _add_to_match(run, draft, matched, refine=refine)


def _normalised(run: CuratorRun, draft: DraftedSkill) -> DraftedSkill:
    """The draft under a free name."""
    if draft.name in run.taken:
        draft = replace(draft, name=numbered_name(draft.name, "-", 2, run.taken))
    run.decide("normalise", True, draft.name, body=body_key(draft.template()))
    return draft


def _add_to_match(
    run: CuratorRun, draft: DraftedSkill, matched: Match, *, refine: bool = False
) -> None:
    row = matched.known.row
    similar = vars(matched.similarity) if matched.similarity is not None else {}
    if row.state in REMOVED:
        run.decide("match", False, f"{row.name} says this, and a person took it out")
        return
    if matched.opposite and matched.tier != "attributed":
        _contradict(run, draft, matched)
        return
    operation: Operation = "REFINE" if refine else "ADD_EVIDENCE"
    reason = f"{row.name} says this already ({matched.tier})"
    run.decide("match", True, reason, operation=operation, **similar)
    _support(run, draft, matched, refine=refine)


# -- skills that a step used


def _attributed(run: CuratorRun, step: TrajectoryStep) -> Match | None:
    """The skill that certainly made the change."""
    by_id: dict[str, LibrarySkill] = {known.row.id: known for known in run.known.values()}
    for identity in step.proposal.attributed:
        known = run.known.get(skill_of(identity)) or by_id.get(identity)
        if known is not None:
            return Match(known, "attributed", False)
    return None


def _applied(run: CuratorRun, change: KernelChange) -> Match | None:
    """The shown skill whose text has most of the lines that came: the change is its use."""
    texts = {}
    for name in change.step.shown.get("skills", ()):
        if name in run.known:
            row = run.known[name].row
            files = row.metadata.get("files", {})
            texts[name] = "\n".join([row.body, *(files[key] for key in sorted(files))])
    name, share = copied_from("\n".join(change.added), texts)
    if not name or share < APPLIED:
        return None
    known = run.known[name]
    return Match(known, "applied", known.row.polarity != change.polarity)


# -- whole kernels


def _lifted(run: CuratorRun, change: KernelChange, draft: DraftedSkill) -> DraftedSkill | None:
    """The draft of a whole kernel as a recipe or as text, or None; any other draft as it is."""
    # Lifting may have the template of a recipe that is not in the library.
    foreign = run.lift is not None and change.adopted and change.adopted not in run.taken
    if change.transformation != WRITTEN and not foreign:
        if is_written(change) and run.drafter is None and run.node == run.text_node:
            draft = as_text(run.trajectory, change, draft)
            reason = "no rule names what the new lines do; drafted as a text skill"
            run.decide("draft", True, reason, kind=TEXT)
        return _without_excerpts(run, change, draft)
    if run.lift is None:
        reason = "a whole kernel against the reference: nothing to compare, and no recipe of it"
        return _as_text(run, change, draft, reason)
    lifted = run.lift(run.trajectory, change)
    run.lifted[str(run.node)] = lifted if isinstance(lifted, str) else asdict(lifted)
    if isinstance(lifted, str):
        return _as_text(run, change, draft, f"it cannot be lifted to a recipe: {lifted}")
    before = tuple(lifted.signals) or change.before
    adopted = replace(change, transformation=ADOPTED + lifted.name, pattern=(), before=before)
    run.decide("draft", True, f"lifted to the recipe {lifted.name}")
    composed = compose(run.trajectory, adopted, draft.evidence)
    return replace(composed, recipe=lifted.recipe, files=lifted.files)


def _as_text(
    run: CuratorRun, change: KernelChange, draft: DraftedSkill, reason: str
) -> DraftedSkill | None:
    """The kernel as text, if a model or a person wrote it and it is the run's fastest. `reason` is
    the reason why it is not a recipe."""
    if is_written(change) and run.node != run.text_node:
        reason = f"{reason}; as text, this run teaches node {run.text_node}, which is faster"
    if not is_written(change) or run.node != run.text_node:
        run.decide("draft", False, reason)
        return None
    run.decide("draft", True, f"{reason}; drafted as a text skill", kind=TEXT)
    return as_text(run.trajectory, change, draft)


def _without_excerpts(run: CuratorRun, change: KernelChange, draft: DraftedSkill) -> DraftedSkill:
    """The draft without code of a document: the store has the passage already."""
    ids = change.step.shown.get("excerpts", ())
    texts = {id_: run.context.shown[id_] for id_ in ids if id_ in run.context.shown}
    source, share = copied_from("\n".join(draft.after), texts)
    if not change.pattern or share < APPLIED:
        return draft
    run.decide("draft", True, f"its code is that of {source} and is left out", share=share)
    return replace(draft, before=(), after=(), sources=(*draft.sources, f"passage {source}"))


# -- the drafting model


def _drafted_by_model(
    run: CuratorRun, change: KernelChange, draft: DraftedSkill
) -> tuple[DraftedSkill, ModelDelta | None]:
    """The draft with the model's sentences and its delta, after at most one repair; without a model
    or a valid answer the draft as it is."""
    if run.drafter is None:
        return draft, None
    close = tuple(known.row for known in nearest(draft, list(run.known.values()), run.texts))
    task, answers = DraftTask(change, draft, close), list[str]()
    for _ in range(TRIES):
        answer = run.drafter.propose(task)
        answers.append(answer)
        run.answers[str(run.node)] = tuple(answers)
        try:
            delta = parse_delta(answer, change, close)
            written = _with_sentences(run, change, draft, delta)
        except BadDelta as problem:
            task = replace(task, problem=str(problem), refused=answer)
            continue
        run.decide("draft", True, f"{run.drafter.name} answered {delta.operation}")
        return written, delta
    reason = f"the draft of {run.drafter.name} was refused: {task.problem}; drafted without it"
    run.decide("draft", False, reason, answers=len(answers))
    return draft, None


def _with_sentences(
    run: CuratorRun, change: KernelChange, draft: DraftedSkill, delta: ModelDelta
) -> DraftedSkill:
    """The draft with the model's sentences. Raises BadDelta for a text that the linter refuses."""
    if delta.operation == "ADD" and delta.transformation and draft.transformation == UNNAMED:
        hardware, op = draft.scopes.hardware[0], draft.scopes.ops[0]
        name = slug(hardware, delta.transformation, op, draft.polarity)
        draft = replace(draft, transformation=delta.transformation, name=name)
    if delta.words is None:
        return draft
    words = _without_copies(run, change, delta.words)
    drafter = run.drafter.name if run.drafter is not None else ""
    written = replace(draft, words=words, written_by=drafter)
    problems = draft_findings(run, change, written)
    if problems:
        raise BadDelta("; ".join(problems[:5]))
    return written


def _without_copies(run: CuratorRun, change: KernelChange, words: SkillSentences) -> SkillSentences:
    """The sentences without spans of texts that the step was shown."""
    ids = {id_ for shown in change.step.shown.values() for id_ in shown}
    texts = {id_: text for id_, text in run.context.shown.items() if id_ in ids}
    texts |= {n: k.row.body for n, k in run.known.items() if n in ids or k.row.id in ids}
    fields: dict[str, Any] = {}
    for name, value in vars(words).items():
        lines = (value,) if isinstance(value, str) else value
        stripped = [without_copies(line, texts.values()) for line in lines]
        left = tuple(text for text, share in stripped if text and share <= MOST_COPIED)
        if not left:
            raise BadDelta(f"{name} says what the store says already")
        fields[name] = left[0] if isinstance(value, str) else left
    return SkillSentences(**fields)


def _named_match(run: CuratorRun, delta: ModelDelta, draft: DraftedSkill) -> Match | None:
    """The skill that the model named, if the measurement allows its operation."""
    known, operation = run.known[delta.skill], delta.operation
    if operation == "DEPRECATE":
        run.decide("match", False, f"held for a person: is {delta.skill} wrong?")
        return None
    opposite = known.row.polarity != draft.polarity
    alike = comparable(draft, known, run.context.lineages) and same_moves(draft, known.row)
    if not alike:
        reason = f"{delta.skill} is about something else; the model's {operation} is left out"
    elif opposite != (operation == "CONTRADICT"):
        reason = f"the figures do not say so; {operation} of {delta.skill} is left out"
    else:
        return Match(known, "named", opposite)
    run.decide("match", False, reason)
    return None


# -- lint


def draft_findings(run: CuratorRun, change: KernelChange, draft: DraftedSkill) -> list[str]:
    """The linter's findings in a draft, as template and with figures; empty for a clean one."""
    template, description = draft.template(), draft.words.description
    texts = {"description": description, "body": template}
    problems = [str(finding) for finding in lint(texts, _allowed(run, change))]
    missing = dangling(template + description, draft.evidence)
    problems += [f"{text} refers to no figure" for text in missing]
    if not missing:
        problems += [str(f) for f in unsafe("the rendered body", render(template, draft.evidence))]
    for name, text in sorted(draft.files.items()):
        problems += [str(f) for f in unsafe(name, text)]
    return list(dict.fromkeys(problems))


def _allowed(run: CuratorRun, change: KernelChange) -> Allowed:
    values = {str(v) for p in change.parameters for v in (p.before, p.after) if v is not None}
    if change.adopted:
        values |= {str(value) for value in change.step.proposal.values.values()}
    hardware = {run.trajectory.hardware, *run.trajectory.lineage}
    return Allowed(frozenset(values), frozenset(hardware), run.names)


# -- deltas


def _add_skill(run: CuratorRun, draft: DraftedSkill, *, conflicts_with: str = "") -> None:
    skill = draft.skill()
    reason = f"learned from {run.trajectory.id}, node {run.node}"
    delta = Delta("ADD", run.node, skill.name, reason, skill, draft.evidence, conflicts_with)
    run.add(delta, LibrarySkill(skill_row(skill), draft.evidence))


def _support(run: CuratorRun, draft: DraftedSkill, matched: Match, *, refine: bool = False) -> None:
    """Propose more evidence for the matched skill. `refine` also replaces the text of a candidate
    of the curator."""
    known, row = matched.known, matched.known.row
    added = _new_evidence(draft, known)
    if not added:
        run.decide("match", False, f"{row.name}{KNOWN}")
        return
    revised = None
    if refine and _is_own_candidate(row):
        revised = replace(draft, name=row.name, transformation=row.transformation).skill()
    elif refine:
        reason = f"{row.name} is no candidate of the curator's: its text stays"
        run.decide("match", False, reason)
    elif matched.tier in ("content", "key", "words"):
        revised = _widened(known, draft)
    operation: Operation = "REFINE" if refine and revised is not None else "ADD_EVIDENCE"
    reason = f"measured again in {run.trajectory.id}, node {run.node} ({matched.tier})"
    delta = Delta(operation, run.node, row.name, reason, revised, added, version=row.version)
    if revised is not None:
        version = row.version + (revised.content_sha256 != row.content_sha256)
        row = replace(skill_row(revised), id=row.id, version=version)
    run.add(delta, LibrarySkill(row, (*known.evidence, *added)))


def _contradict(run: CuratorRun, draft: DraftedSkill, matched: Match) -> None:
    """Propose the consequence of two opposite effects. If the measurements differ in a quality,
    both conditions are narrowed by it; otherwise a person decides."""
    known, row = matched.known, matched.known.row
    separated = separation(draft, known)
    if separated is None:
        reason = f"{row.name} says the opposite, and nothing differs between the two"
        run.decide("match", False, reason, held=True)
        added = _new_evidence(draft, known)
        if added:
            version = row.version
            delta = Delta("CONTRADICT", run.node, row.name, reason, None, added, version=version)
            run.add(delta, LibrarySkill(row, (*known.evidence, *added)))
        return
    reason = f"{row.name} has the opposite effect; they differ in {separated.quality}"
    run.decide("match", True, reason, ours=separated.ours, theirs=separated.theirs)
    _add_skill(run, _narrowed(draft, separated), conflicts_with=row.name)
    narrowing, narrowed = None, row
    if separated.parts:
        predicate = _and(row.predicate or "", separated.theirs)
        narrowing = Narrowing(predicate, separated.parts)
        narrowed = replace(row, predicate=predicate, version=row.version + 1)
    delta = Delta(
        "CONTRADICT",
        run.node,
        row.name,
        reason,
        conflicts_with=run.deltas[-1].skill,
        narrowing=narrowing,
        version=row.version,
    )
    run.add(delta, LibrarySkill(narrowed, known.evidence))


def _narrowed(draft: DraftedSkill, separated: Separation) -> DraftedSkill:
    condition = (
        f"The {separated.quality} differs: there the opposite was measured, see the linked skill."
    )
    words = replace(draft.words, when_not=(*draft.words.when_not, condition))
    predicate = _and(draft.predicate, separated.ours)
    moves = tuple({**move, "when": predicate} for move in draft.moves)
    return replace(draft, words=words, predicate=predicate, moves=moves)


def _and(predicate: str, condition: str) -> str:
    if not predicate or not condition:
        return predicate or condition
    return f"({predicate}) and {condition}"


def _new_evidence(draft: DraftedSkill, known: LibrarySkill) -> tuple[EvidenceRow, ...]:
    """The measurements of a draft that the skill does not have yet."""

    def measurement(row: EvidenceRow) -> tuple[Any, ...]:
        details = row.details
        return row.evaluation_id, row.case_id, details.get("run"), details.get("node")

    present = {measurement(row) for row in known.evidence}
    return tuple(row for row in draft.evidence if measurement(row) not in present)


def _is_own_candidate(row: SkillRow) -> bool:
    return row.tier == "learned" and row.state == "candidate" and "curator" in row.metadata


def _widened(known: LibrarySkill, draft: DraftedSkill) -> SkillDraft | None:
    """A candidate of the curator with the new measurements in its scopes and sizes. None if they
    are in them already, or if the skill is in use, narrowed or not the curator's."""
    row = known.row
    pairs = supporting_pairs(known)
    as_measured = predicate_of(row.scopes.ops, row.scopes.signals, pairs)
    if not _is_own_candidate(row) or row.predicate != as_measured:
        return None
    scopes = SkillScopes(
        **{
            kind: _union(getattr(row.scopes, kind), getattr(draft.scopes, kind))
            for kind in vars(draft.scopes)
        }
    )
    predicate = predicate_of(scopes.ops, scopes.signals, [*pairs, *draft.evidence])
    if scopes == row.scopes and predicate == row.predicate:
        return None
    new = draft.scopes
    parts = [", ".join(part) for part in (new.ops, new.languages, new.dtypes, new.hardware) if part]
    sentence = f"- The same effect was measured for {', '.join(parts)}.\n"
    drafted = dict(row.metadata["curator"])
    template, body = drafted["template"], row.body
    if scopes != row.scopes and sentence not in body:
        title = f"## {WHEN[row.polarity]}\n\n"
        template, body = (text.replace(title, title + sentence, 1) for text in (template, body))
    fields = {name: getattr(row, name) for name in SkillDraft.__dataclass_fields__}
    fields |= {
        "scopes": scopes,
        "predicate": predicate,
        "body": body,
        "metadata": {**row.metadata, "curator": {**drafted, "template": template}},
        "moves": tuple({**move, "when": predicate} for move in row.moves),
    }
    return with_content_hash(SkillDraft(**fields))


def _union(ours: Sequence[str], theirs: Sequence[str]) -> tuple[str, ...]:
    """The union of two lists of a scope; an empty list restricts nothing and stays empty."""
    return tuple(sorted({*ours, *theirs})) if ours and theirs else ()


def skill_row(draft: SkillDraft) -> SkillRow:
    """A draft as the catalog will return it, without times."""
    copied = {
        name: getattr(draft, name)
        for name in SkillRow.__dataclass_fields__
        if name in SkillDraft.__dataclass_fields__ and name not in ("moves", "sources")
    }
    return SkillRow(
        **copied,
        id=SkillId(derived_id("sk", draft.name)),
        state="candidate",
        structured_key=structured_key(draft.scopes, draft.transformation),
        moves=tuple(draft.moves),
        sources=tuple(draft.sources),
        trials=0,
        wins=0,
        last_used_at=None,
        written_at="",
        created_at="",
        updated_at="",
    )
