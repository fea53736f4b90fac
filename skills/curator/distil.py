"""Distillation of a run or an external trajectory: the library is read, the curator judges, and
record and deltas are stored.

The record is a blob; judged again with the recorded answers of the model and of lifting, it must
come out the same. All deltas are stored in one transaction, each with its event. Evidence that is
stored already is not proposed again, so distilling a search twice changes nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Any

from sqlalchemy import Connection

from kb.blobs import Blobs
from kb.catalog.engine import Catalog
from kb.catalog.hardware import HardwareRegistry
from kb.catalog.knowledge import embeddings, passages
from kb.catalog.skills.evidence import evidence_for
from kb.catalog.skills.reading import (
    find_skill,
    skill_names,
    skills_about,
)
from kb.catalog.skills.writing import add_evidence, link_skills, store_skill
from kb.embedding import Embedder, Vectors
from kb.errors import Conflict, InvalidKnowledge, KernloreError, NotFound
from kb.hardware.lineage import lineage
from kb.hardware.table_reader import Problems
from kb.ids import sha256
from kb.scope import ALL_ACCESS
from optimizer.evaluation.abi import TensorSpec
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.problem.spec import Problem
from optimizer.search.bench.local import LocalBench, problem_view
from optimizer.search.bench.simulated import SimulatedBench
from optimizer.search.records import Proposal, Value
from optimizer.search.runs.knowledge import RecipeSource, library_recipes, library_sources, skill_of
from optimizer.search.runs.places import bench_for, places_for
from optimizer.search.synthesizers.base import CaseView, ProblemView
from optimizer.search.synthesizers.recipe.recipe import (
    C_LIKE,
    ENTRY,
    FORMAT,
    PLACEHOLDER,
    PYTHON,
    ROLE_OF,
    Recipe,
    instantiate,
    parse_recipe,
)
from optimizer.search.synthesizers.recipe.synthesizer import fit
from retrieval.knowledge_base import KnowledgeBase
from skills.curator.contrast import constant_role, roles_of
from skills.curator.drafter import Drafter, model_drafter
from skills.curator.pipeline import propose_deltas, replay
from skills.curator.records import (
    CuratorContext,
    Delta,
    Distillation,
    KernelChange,
    LibrarySkill,
    LibrarySnapshot,
    Lift,
    LiftedRecipe,
    Roles,
    StoredDelta,
)
from skills.importing import sync_shipped
from skills.lifecycle import store_narrowed
from skills.trajectories.reading import StoredSearch, stored_search, trajectory_of
from skills.trajectories.records import Trajectory, TrajectoryStep
from skills.trials.trial import held_out_cases

# -- kernels that become recipes
#
# Whole kernels, and the winner of a search that tuned a recipe, so that a search can begin with
# them.
#
# In a whole kernel the named constants become typed parameters, and its tensors are the
# problem's. It is accepted only if instances are correct on cases that no search used and with
# other values of the parameters; those values are its domain.
#
# A tuned recipe is the same template with the winner's values as defaults. Several values may
# have changed one after the other, so no single step of the tree shows the gain. The first
# instance of the recipe is therefore compared with the winner as one composed step, which passes
# the gate like any other.

HELD_OUT_CASES = 3
OTHER_VALUES = 2
MAX_PARAMETERS = 4
_RUN = re.compile(r"^def run\(", re.MULTILINE)
_CONSTANT = {
    True: re.compile(r"(?P<name>\b[A-Za-z_]\w*)\s*(?::\s*tl\.constexpr\s*)?=\s*(?P<value>\d+)\b"),
    False: re.compile(
        r"(?:#define[ \t]+(?P<macro>[A-Za-z_]\w*)[ \t]+|(?:constexpr|const)\s[\w\s:]*?"
        r"(?P<name>[A-Za-z_]\w*)\s*=\s*)(?P<value>\d+)\b"
    ),
}


class NotLifted(Exception):
    """A kernel cannot become a recipe; the message is the reason."""


@dataclass(frozen=True)
class NamedConstant:
    """A named number of the source. `start` and `end` are its offsets in the text."""

    name: str
    role: str
    value: int
    start: int
    end: int

    @property
    def others(self) -> tuple[int, ...]:
        """Other values to try: twice and half of a power of two."""
        if self.value & (self.value - 1) or self.value < 1:
            return ()
        return tuple(v for v in (2 * self.value, self.value // 2) if v >= 1)


@dataclass(frozen=True)
class KernelLifter:
    """Lifts whole kernels of one problem. `bench` opens a bench for a problem on the device, where
    instances of the recipe are tried."""

    problem: Problem
    device: str
    bench: Callable[[Problem], AbstractContextManager[LocalBench]]
    seed: int = 0

    def lift(self, trajectory: Trajectory, change: KernelChange) -> LiftedRecipe | str:
        """The kernel of a change as a recipe with the tested values, or the reason why not."""
        kernel = change.step.proposal.bundle
        try:
            view = problem_view(self.problem, self.device)
            constants = constants_of(kernel)
            name = f"{kernel.language}-{trajectory.subject.family}-{view.name}".replace("_", "-")
            lifted = lifted_from(name.lower(), kernel, view, constants)
            return self._tested(lifted, constants)
        except NotLifted as problem:
            return str(problem)
        except KernloreError as problem:
            return problem.message

    def _tested(self, lifted: LiftedRecipe, constants: Sequence[NamedConstant]) -> LiftedRecipe:
        recipe = recipe_from(lifted)
        unseen = held_out_cases(self.problem, self.device, self.seed)
        cases = list(islice(unseen, HELD_OUT_CASES))
        if len(cases) < HELD_OUT_CASES:
            raise NotLifted(
                f"it can be tried on {len(cases)} unseen cases only, {HELD_OUT_CASES} are needed"
            )
        for target in cases:
            with self.bench(target.problem) as bench:
                self._check(bench, recipe, recipe.defaults, f"on {target.case.name}")
        good: dict[str, list[Value]] = {c.name: [c.value] for c in constants}
        with self.bench(self.problem) as bench:
            for constant, value in ((c, value) for c in constants for value in c.others):
                values = {**recipe.defaults, constant.name: value}
                try:
                    self._check(bench, recipe, values, f"with {constant.name} = {value}")
                except NotLifted:
                    continue  # not in its domain
                good[constant.name].append(value)
        tried = sum(len(values) - 1 for values in good.values())
        if constants and tried < OTHER_VALUES:
            raise NotLifted(f"it is right with {tried} other values, {OTHER_VALUES} are needed")
        body = dict(lifted.recipe)
        body["parameters"] = [
            {**p, "values": sorted(good[p["name"]]), "tested": sorted(good[p["name"]])}
            for p in lifted.recipe["parameters"]
        ]
        return replace(lifted, recipe=body)

    def _check(
        self, bench: LocalBench, recipe: Recipe, values: Mapping[str, Value], where: str
    ) -> None:
        view = problem_view(bench.problem, self.device)
        fitting = fit(recipe, view, {})
        if fitting is None:
            raise NotLifted(f"its recipe does not fit {where}")
        bundle = instantiate(recipe, values, fitting.binding, view.source)
        proposal = Proposal(bundle, "lifting", cases=fitting.cases)
        evaluation = bench.evaluate(proposal)
        if not evaluation.correct:
            raise NotLifted(
                f"an instance of it is {evaluation.validity} {where}: {evaluation.message}"
            )


def constants_of(kernel: Bundle) -> list[NamedConstant]:
    """Named numbers of a known role that are defined once, in the order of the source."""
    text, python = kernel.files[kernel.main], kernel.language not in C_LIKE
    by_name: dict[str, list[NamedConstant]] = {}
    for match in _CONSTANT[python].finditer(text):
        groups = match.groupdict()
        name = groups["name"] or groups.get("macro") or ""
        role = constant_role(name)
        if role is not None:
            start, end = match.span("value")
            constant = NamedConstant(name, role, int(groups["value"]), start, end)
            by_name.setdefault(name, []).append(constant)
    # A name that is defined twice may mean two things.
    single = [c for c in by_name.values() if len(c) == 1]
    return [constants[0] for constants in single][:MAX_PARAMETERS]


def lifted_from(
    name: str, kernel: Bundle, view: ProblemView, constants: Sequence[NamedConstant]
) -> LiftedRecipe:
    """The kernel's text with placeholders for its constants. Raises NotLifted."""
    if len(kernel.files) != 1:
        raise NotLifted(f"it has {len(kernel.files)} files, and a template is one")
    text = kernel.files[kernel.main]
    if kernel.language in C_LIKE and kernel.entry != ENTRY:
        raise NotLifted(f"its entry is {kernel.entry}, and a recipe's is {ENTRY}")
    if kernel.language in PYTHON and not _RUN.search(text):
        raise NotLifted("it is a whole module; a recipe in Python is a function `run`")
    if PLACEHOLDER.search(text):
        raise NotLifted("its text has a placeholder like those of a template")
    for constant in sorted(constants, key=lambda c: -c.start):
        text = f"{text[: constant.start]}@{{{constant.name}}}{text[constant.end :]}"
    suffix = kernel.main.rsplit(".", 1)[-1]
    path = f"references/kernel.{suffix}"
    body = {
        "format": FORMAT,
        "language": kernel.language,
        "template": path,
        "ops": [view.op],
        "tensors": list(_tensors(view)),
        "parameters": [
            {
                "name": c.name,
                "role": c.role,
                "values": sorted({c.value, *c.others}),
                "default": c.value,
            }
            for c in constants
        ],
    }
    lifted = LiftedRecipe(name, body, {path: text})
    recipe_from(lifted)
    return lifted


def recipe_from(lifted: LiftedRecipe) -> Recipe:
    """The parsed recipe. Raises InvalidKnowledge for an invalid one."""
    problems = Problems(f"recipe {lifted.name}")
    recipe = parse_recipe(lifted.name, lifted.recipe, lifted.files, problems)
    problems.raise_if_any()
    assert recipe is not None
    return recipe


def _tensors(view: ProblemView) -> Iterator[dict[str, Any]]:
    """The main case's tensors; sizes that are equal in every case share a name."""
    main = view.main
    same = [case for case in view.cases if _alike(case, main)]
    names: dict[tuple[int, ...], str] = {}
    for number, tensor in enumerate(main.signature.tensors):
        dims = []
        for axis in range(len(tensor.shape)):
            sizes = tuple(case.signature.tensors[number].shape[axis] for case in same)
            dims.append(names.setdefault(sizes, f"d{len(names)}"))
        yield {
            "name": f"t{number}_" + re.sub(r"\W", "_", tensor.name),
            "role": ROLE_OF[tensor.role],
            "dtypes": [tensor.dtype],
            "dims": dims,
        }


def _alike(case: CaseView, main: CaseView) -> bool:
    """Whether two cases differ only in the sizes of their tensors."""
    ours, theirs = case.signature.tensors, main.signature.tensors
    return len(ours) == len(theirs) and all(map(_same_kind, ours, theirs))


def _same_kind(ours: TensorSpec, theirs: TensorSpec) -> bool:
    return len(ours.shape) == len(theirs.shape) and ours.dtype == theirs.dtype


# -- tuned recipes

COMPOSED = "composed"  # synthesizer of the composed step


@dataclass(frozen=True)
class TunedRecipe:
    """The recipe that a search tuned, and the trajectory of its composed step."""

    trajectory: Trajectory
    lifted: LiftedRecipe


def tuned_instance(
    trajectory: Trajectory, recipes: Mapping[str, RecipeSource]
) -> TunedRecipe | str:
    """The recipe that a trajectory tuned, from its certainly fastest candidate, or the reason for
    its absence. `recipes` are those of the library, by name."""
    correct = [step for step in trajectory.steps if _is_correct(step)]
    faster = [step for step in correct if _merit(step) > 0]
    best = max(faster, key=lambda step: (_merit(step), -step.child.number), default=None)
    if best is None:
        return "no candidate is correct and measured"
    winner, number = best.proposal, best.child.number
    if winner.recipe is None:
        return f"the winner, node {number}, is no instance of a recipe"
    if winner.recipe not in recipes:
        return f"no skill in use has the recipe {winner.recipe}"
    source = recipes[winner.recipe]
    changed = {
        name: value
        for name, value in winner.values.items()
        if name in source.defaults and source.defaults[name] != value
    }
    if not changed:
        return f"the winner, node {number}, has the values of {winner.recipe} itself"
    instances = [step for step in correct if step.proposal.recipe == winner.recipe]
    if instances[0].child.number == number:
        return f"{winner.recipe} was begun with the winner's values: nothing to compare them with"
    parts = [f"{name}{value}" for name, value in sorted(changed.items())]
    name = re.sub(r"[^a-z0-9]+", "-", "-".join([winner.recipe, *parts]).lower()).strip("-")
    composed = replace(
        winner,
        synthesizer=COMPOSED,
        plan=f"The values that {winner.recipe} was tuned to.",
        recipe=name,
        claimed=(),
        attributed=(),
    )
    step = TrajectoryStep(
        parent=instances[0].child,
        child=replace(best.child, proposal=composed),
        shown={"excerpts": (), "moves": (), "skills": ()},
    )
    template = source.body["template"]
    lifted = LiftedRecipe(
        name,
        _tuned_body(source, winner, [step.proposal for step in instances]),
        {template: source.files[template]},
        _signals(trajectory, source),
    )
    return TunedRecipe(replace(trajectory, steps=(step,)), lifted)


def _is_correct(step: TrajectoryStep) -> bool:
    evaluation = step.child.evaluation
    if step.child.proposal is None or evaluation is None or evaluation.rejected:
        return False
    return evaluation.correct and evaluation.checks[0] == evaluation.checks[1]


def _merit(step: TrajectoryStep) -> float:
    """Lower bound of the speed-up over the reference; 0 without a figure."""
    return step.child.speedup.low if step.child.speedup is not None else 0.0


def _tuned_body(
    source: RecipeSource, winner: Proposal, instances: Sequence[Proposal]
) -> dict[str, Any]:
    """The recipe's JSON with the winner's values as defaults, and as `tested` the values of correct
    candidates."""
    parameters = []
    for parameter in source.body["parameters"]:
        name = parameter["name"]
        tried = [*parameter.get("tested", ()), *(i.values.get(name) for i in instances)]
        default = winner.values.get(name, source.defaults[name])
        tested = [value for value in parameter["values"] if value in tried]
        parameters.append({**parameter, "default": default, "tested": tested})
    return {**source.body, "parameters": parameters}


def _signals(trajectory: Trajectory, source: RecipeSource) -> tuple[str, ...]:
    """The signals of the reference, then those of the recipe's skill. The verdict of an instance
    does not count: it is known only once the recipe was used."""
    references = (step.parent for step in trajectory.steps if step.parent.proposal is None)
    seen = next((kernel.signals for kernel in references if kernel.evaluation is not None), ())
    return tuple(dict.fromkeys((*seen, *source.signals)))


def recipe_lift(
    tuned: Mapping[str, LiftedRecipe],
    whole: Lift | str = "there is no device here to try instances of it on",
) -> Lift:
    """Lifting of tuned recipes, by name, and of whole kernels. `whole` may be the reason why these
    cannot be lifted here."""

    def lift(trajectory: Trajectory, change: KernelChange) -> LiftedRecipe | str:
        recipe = change.step.proposal.recipe
        if recipe is not None:
            return tuned.get(recipe) or f"no skill has the recipe {recipe}"
        return whole if isinstance(whole, str) else whole(trajectory, change)

    return lift


# -- distillation

ACTOR = "curator"
RECORD_FORMAT = 1


@dataclass(frozen=True)
class Distilled:
    """The result of distilling a run or an external trajectory, whose id is `source`.

    The first distillation is that of the trajectory itself, the second that of the composed step of
    a tuned recipe. `record` is the key of the blob. `tuned` is the recipe that the search tuned, or
    the reason for its absence.
    """

    source: str
    distillations: tuple[Distillation, ...]
    record: str
    tuned: str = ""

    def as_json(self) -> dict[str, Any]:
        """Decisions and stored deltas; the trajectory is in the record."""
        return {
            "source": self.source,
            "decisions": [
                {**asdict(decision), "composed": place > 0}
                for place, distillation in enumerate(self.distillations)
                for decision in distillation.decisions
            ],
            "stored": [
                asdict(stored)
                for distillation in self.distillations
                for stored in distillation.stored
            ],
            "tuned": self.tuned,
            "record": self.record,
        }


def distil_source(base: KnowledgeBase, identity: str, model: str = "") -> Distilled:
    """Distil the run or external trajectory of an id: judge it, store the record, and store
    candidates and evidence, all or nothing.

    `model` is a litellm model name; it drafts the sentences. Raises NotFound, Conflict if the
    library changed meanwhile or nothing was measured, and Unavailable for a model that cannot be
    called.
    """
    sync_shipped(base.catalog, base.registry, base.settings.skills_dir)
    search = stored_search(base, identity)
    whole = trajectory_of(base, search)
    tuned = tuned_instance(whole, library_sources(base))
    trajectories, recipes = [whole], {}
    if not isinstance(tuned, str):
        trajectories.append(tuned.trajectory)
        recipes[tuned.lifted.name] = tuned.lifted
    distilled = distil(
        base.catalog,
        base.blobs,
        trajectories,
        source=identity,
        roles=parameter_roles(base),
        shown=_shown_excerpts(base, whole),
        embedder=base.embedder,
        drafter=model_drafter(model) if model else None,
        lift=recipe_lift(recipes, _whole_kernels(base, search, whole)),
    )
    return replace(distilled, tuned=tuned if isinstance(tuned, str) else tuned.lifted.name)


def distil(
    catalog: Catalog,
    blobs: Blobs,
    trajectories: Sequence[Trajectory],
    *,
    roles: Roles,
    source: str = "",
    shown: Mapping[str, str] | None = None,
    embedder: Embedder | None = None,
    drafter: Drafter | None = None,
    lift: Lift | None = None,
) -> Distilled:
    """Judge trajectories of one source, store the record, and store the deltas, all or nothing.

    Each trajectory is judged against the library as the one before it leaves it. `shown` holds the
    texts of excerpts that steps were shown, by id. Without an embedder, paraphrases of skills are
    not recognised. Raises Conflict if the library changed meanwhile; then nothing is stored.
    """
    proposed: list[Distillation] = []
    for judged in trajectories:
        before = proposed[-1].after if proposed else None
        library = snapshot(catalog, judged, before=before)
        ids = {id_ for step in judged.steps for id_ in step.shown.get("excerpts", ())}
        texts = {id_: text for id_, text in (shown or {}).items() if id_ in ids}
        context = context_of(catalog, roles=roles, shown=texts, embedder=embedder)
        proposed.append(propose_deltas(judged, library, context, drafter=drafter, lift=lift))
    record = {
        "format": RECORD_FORMAT,
        "source": source,
        "passes": [
            {"distillation": distillation.as_json(), "lifted": dict(distillation.lifted)}
            for distillation in proposed
        ],
    }
    # The record first, so that no event names a missing one. Keys are not sorted: the hash of a
    # skill's content depends on the order in its recipe.
    key = blobs.put(json.dumps(record).encode())
    return Distilled(source, store_deltas(catalog, proposed, record=key), key)


def replayed(base: KnowledgeBase, record: str) -> list[str]:
    """Judge a record again; returns the names of the fields that came out differently.

    `record` is the key of the blob. Raises InvalidKnowledge for a blob that is no record of this
    format, or that was made with another embedding model.
    """
    stored = json.loads(base.blobs.get(record))
    if not isinstance(stored, dict) or stored.get("format") != RECORD_FORMAT:
        stored = {}
    if "passes" not in stored:
        raise InvalidKnowledge(
            f"{record[:12]} is no distillation of format {RECORD_FORMAT}",
            hint="`kernlore skills distill` prints the key of its record.",
        )
    differences = []
    for number, row in enumerate(stored["passes"], 1):
        before = row["distillation"]
        embedder = base.embedder if before["means"]["embedder"] else None
        again = replay(before, embedder, row["lifted"])
        now = json.loads(json.dumps(again.as_json()))
        names = [name for name in now if name != "stored" and now[name] != before[name]]
        differences += [f"pass {number}: {name}" for name in names]
    return differences


def parameter_roles(base: KnowledgeBase) -> dict[str, dict[str, str]]:
    """Recipe -> parameter -> its role, of the active recipes."""
    return roles_of(library_recipes(base))


def _shown_excerpts(base: KnowledgeBase, whole: Trajectory) -> dict[str, str]:
    """The present texts of the excerpts that steps were shown, by id."""
    ids = sorted({id_ for step in whole.steps for id_ in step.shown.get("excerpts", ())})
    texts = {}
    with base.catalog.read() as connection:
        for identity in ids:
            try:
                texts[identity] = passages.get(connection, identity, ALL_ACCESS).text
            except NotFound:  # its document version was deleted
                continue
    return texts


def _whole_kernels(base: KnowledgeBase, search: StoredSearch, whole: Trajectory) -> Lift | str:
    """Lifting of whole kernels on the device of the search, or the reason why it is not
    possible."""
    if all(step.proposal.recipe is not None for step in whole.steps):
        return "every candidate is an instance of a recipe"
    problem = search.problem()
    try:
        place = next(iter(places_for(base, whole.hardware, None).values()))
    except KernloreError as error:
        return error.message
    device = place.target.device
    if device is None:
        return f"no {whole.hardware} in this machine"

    @contextmanager
    def bench(tried: Problem) -> Iterator[LocalBench]:
        with bench_for(base, tried, places_for(base, whole.hardware, None)) as opened:
            if isinstance(opened, SimulatedBench):
                raise InvalidKnowledge(
                    "a simulator has no reference to compare results with",
                    hint="Distil on a machine that has the chip itself.",
                )
            yield opened

    return KernelLifter(problem, device, bench).lift


# -- the library before


def snapshot(
    catalog: Catalog, trajectory: Trajectory, *, before: LibrarySnapshot | None = None
) -> LibrarySnapshot:
    """The skills that a trajectory can concern: those about its op family or any, and those that a
    step names. `before` is the library after another trajectory, whose deltas are not stored
    yet."""
    named = {skill_of(id_) for step in trajectory.steps for id_ in step.proposal.attributed}
    named |= {id_ for step in trajectory.steps for id_ in step.shown.get("skills", ())}
    with catalog.read() as connection:
        rows = skills_about(connection, trajectory.subject.family, named)
        evidence = evidence_for(connection, [row.id for row in rows])
        taken = set(skill_names(connection))
    known = {row.name: LibrarySkill(row, tuple(evidence.get(row.id, ()))) for row in rows}
    if before is not None:
        known |= {skill.row.name: skill for skill in before.known}
        taken |= before.taken
    return LibrarySnapshot(tuple(known[name] for name in sorted(known)), frozenset(taken))


def context_of(
    catalog: Catalog,
    *,
    roles: Roles,
    shown: Mapping[str, str] | None = None,
    embedder: Embedder | None = None,
) -> CuratorContext:
    """The inputs of decisions, with the hardware that is registered here. Vectors of the embedder
    are stored in the catalog."""
    specs = HardwareRegistry(catalog).all()
    return CuratorContext(
        roles=roles,
        names={id_: (spec.id, spec.name, *spec.aliases) for id_, spec in specs.items()},
        lineages={id_: lineage(id_, specs) for id_ in specs},
        shown=dict(shown or {}),
        embedder=StoredVectors(catalog, embedder) if embedder is not None else None,
    )


class StoredVectors:
    """An embedder that stores the vectors of single texts (`encode_query`) in the catalog, so that
    a skill's text is embedded once. They are stored by the model's fingerprint."""

    def __init__(self, catalog: Catalog, embedder: Embedder) -> None:
        self._catalog = catalog
        self._embedder = embedder
        self.fingerprint = embedder.fingerprint
        self.dimension = embedder.dimension
        self.window = embedder.window
        self.count_tokens = embedder.count_tokens
        self.encode = embedder.encode

    def encode_query(self, text: str) -> Vectors:
        """The vector of a text, cut to the model's window."""
        key, model = sha256(text), self.fingerprint
        with self._catalog.read() as connection:
            known = embeddings.of_text(connection, model, key)
        if known is not None:
            return known
        vector = self._embedder.encode_query(text)
        with self._catalog.write() as connection:
            embeddings.put(connection, model, {key: vector})
        return vector


# -- the deltas after


def store_deltas(
    catalog: Catalog, distillations: Sequence[Distillation], *, record: str = ""
) -> tuple[Distillation, ...]:
    """Store the deltas of all distillations in order, or none; returns them with the results.
    `record` is the key of the blob, for the events. Raises Conflict if the library is no longer the
    one that was judged."""
    with catalog.write() as connection:
        return tuple(
            replace(
                distillation,
                stored=tuple(
                    store_delta(connection, delta, distillation.trajectory.id, record)
                    for delta in distillation.deltas
                ),
            )
            for distillation in distillations
        )


def store_delta(
    connection: Connection, delta: Delta, trajectory: str, record: str = ""
) -> StoredDelta:
    """Store one delta of the trajectory with this id, with its event. Raises Conflict if the skill
    is no longer the one that was judged."""
    known = find_skill(connection, delta.skill)
    version = known.version if known is not None else 0
    if version != delta.version:
        raise Conflict(
            f"{delta.skill} has version {version}, and version {delta.version} was judged",
            hint="The library changed meanwhile: distil the run again.",
        )
    details = {"run": trajectory, "node": delta.node, "operation": delta.operation}
    details |= {"record": record} if record else {}
    signed: dict[str, Any] = {"actor": ACTOR, "reason": delta.reason}
    outcome = "unchanged"
    if delta.draft is not None:
        put = store_skill(connection, delta.draft, state="candidate", details=details, **signed)
        outcome, version = put.outcome, put.version
    if delta.narrowing is not None and known is not None:
        narrowed = replace(known, predicate=delta.narrowing.predicate)
        noted = {**details, "conflicts_with": delta.conflicts_with}
        parts = delta.narrowing.parts
        version = store_narrowed(connection, narrowed, parts, details=noted, **signed).version
        outcome = "updated"
    for row in delta.evidence:
        add_evidence(connection, delta.skill, row, **signed)
    if delta.evidence and outcome == "unchanged":
        outcome = "updated"
    if delta.conflicts_with:
        link_skills(connection, delta.skill, "conflicts_with", delta.conflicts_with, **signed)
    return StoredDelta(delta.skill, delta.operation, outcome, version, len(delta.evidence))
