"""The skill library: built-in folders kept in step with the catalog, skills in and out as folders,
and what a reader sees of one.

What a file says about its own state is never believed: shipped skills are curated and active,
whatever is imported is a candidate without evidence. Ranking and drafting are done elsewhere.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from kb.catalog import skills as store
from kb.catalog.engine import Catalog
from kb.catalog.hardware import HardwareRegistry
from kb.catalog.skills import (
    EvidenceRow,
    Link,
    Outcome,
    SkillDraft,
    SkillEvent,
    SkillHead,
    SkillRow,
    SkillScopes,
    State,
    Tier,
)
from kb.errors import Conflict, InvalidRequest, nearest
from kb.hardware.table_reader import Problems
from kb.problem_terms import problem_terms
from kb.scope import ALL_ACCESS, AccessScope
from retrieval.diagnose.signals import load_signals
from skills.format.schema import (
    MAX_NAME,
    MOVES_JSON,
    RECIPE_JSON,
    SkillFile,
    advice,
    check,
    marked,
    skill_file,
)
from skills.format.skillfile import content_sha256, render, write_skill
from skills.importing import ShippedSync, draft_of, read_checked, sync_shipped
from skills.lifecycle import observe
from skills.uses import UseVerdict

AUTHORS_FIGURES = "measured by the skill's author: see Expected effect; not repeated here"
_CLAIM = re.compile(r"^## Expected effect$.*?\bMeasured on\b", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Imported:
    """`dropped`: what the folder held or claimed that is not taken over. `warnings`: sentences
    about scopes that leave open when it holds, or name what nobody knows. `revises`: the skill in
    use that this candidate is a revision of.
    """

    name: str
    outcome: Outcome
    state: str
    dropped: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    revises: str | None = None


@dataclass(frozen=True)
class SkillSummary:
    """A skill as lists show it."""

    name: str
    description: str
    tier: str
    state: str
    polarity: str
    version: int
    scopes: SkillScopes
    evidence: str  # one line of figures, or "not measured here"
    updated_at: str

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class SkillDetail:
    """A skill with all that backs it. `front_matter` is that of its export, `warnings` are those of
    its import. `conflicts`: skills that say the opposite of the same transformation. `revision`:
    the candidate that would take its place; of such a one, `revises` and how it `changes` the text.
    """

    summary: SkillSummary
    id: str
    front_matter: Mapping[str, Any]
    body: str
    predicate: str | None
    moves: tuple[Mapping[str, Any], ...]
    recipe: Mapping[str, Any] | None
    sources: tuple[Mapping[str, Any], ...]
    files: Mapping[str, str]
    origin: str
    events: tuple[SkillEvent, ...]
    evidence: tuple[EvidenceRow, ...]
    links: tuple[Link, ...]
    transformation: str
    warnings: tuple[str, ...] = ()
    conflicts: tuple[Contradiction, ...] = ()
    revision: str | None = None
    revises: str | None = None
    changes: str = ""

    def as_json(self) -> dict[str, Any]:
        fields = asdict(self)
        return {**fields.pop("summary"), "measured": fields.pop("evidence"), **fields}


class SkillLibrary:
    """Every method sees only what `access_scope` may see."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._registry = HardwareRegistry(catalog)

    # -- reading

    def list(
        self,
        *,
        states: Sequence[str] | None = None,
        tier: str | None = None,
        hardware: str | None = None,
        signal: str | None = None,
        language: str | None = None,
        access_scope: AccessScope = ALL_ACCESS,
    ) -> Sequence[SkillSummary]:
        """Skills by name.

        `hardware`: those that hold for it, so also of its lineage and of any, in languages that its
        kernels can be written in. `language`: those of this one, and of any. Raises
        UnknownHardware, UnknownSignal, and InvalidRequest for a language that nothing here names.
        """
        wanted = self._narrowing(states, tier, hardware, signal, language, access_scope)
        with self._catalog.read() as connection:
            return _summaries(connection, store.heads(connection, **wanted), access_scope)

    def page(
        self,
        *,
        limit: int,
        offset: int = 0,
        states: Sequence[str] | None = None,
        tier: str | None = None,
        hardware: str | None = None,
        signal: str | None = None,
        language: str | None = None,
        access_scope: AccessScope = ALL_ACCESS,
    ) -> tuple[Sequence[SkillSummary], int]:
        """At most `limit` of what `list` has, after the first `offset`; how many `list` has."""
        wanted = self._narrowing(states, tier, hardware, signal, language, access_scope)
        with self._catalog.read() as connection:
            rows = store.heads(connection, limit, offset, **wanted)
            return _summaries(connection, rows, access_scope), store.count(connection, **wanted)

    def _narrowing(
        self,
        states: Sequence[str] | None,
        tier: str | None,
        hardware: str | None,
        signal: str | None,
        language: str | None,
        access_scope: AccessScope,
    ) -> dict[str, Any]:
        odd = sorted({*(states or ())} - {*store.STATES})
        if odd or (tier is not None and tier not in store.TIERS):
            raise InvalidRequest(
                f"no such state or tier: {', '.join(odd) or tier}",
                hint=f"States: {', '.join(store.STATES)}. Tiers: {', '.join(store.TIERS)}.",
            )
        return {
            "states": states,
            "tier": tier,
            "hardware_scopes": None if hardware is None else self._scopes(hardware, access_scope),
            "languages": self._languages(hardware, language, access_scope),
            "signal": None if signal is None else load_signals().get(signal).id,
            "access_scope": access_scope,
        }

    def search(
        self,
        text: str,
        *,
        states: Sequence[str] | None = None,
        limit: int = 50,
        access_scope: AccessScope = ALL_ACCESS,
    ) -> Sequence[SkillSummary]:
        """Skills that hold the most of the words in name, description, operators or signals."""
        with self._catalog.read() as connection:
            rows = store.search(
                connection, text, states=states, limit=limit, access_scope=access_scope
            )
            return _summaries(connection, rows, access_scope)

    def find(
        self,
        *,
        states: Sequence[str] | None = None,
        tier: str | None = None,
        hardware: str | None = None,
        signal: str | None = None,
        language: str | None = None,
        words: str | None = None,
        access_scope: AccessScope = ALL_ACCESS,
    ) -> Sequence[SkillSummary]:
        """What `list` has; with `words`, those that contain the most of them first."""
        wanted = self._narrowing(states, tier, hardware, signal, language, access_scope)
        with self._catalog.read() as connection:
            if words is None:
                rows = store.heads(connection, **wanted)
            else:
                rows = store.search(connection, words, **wanted)
            return _summaries(connection, rows, access_scope)

    def languages(self, *, access_scope: AccessScope = ALL_ACCESS) -> Sequence[str]:
        """The languages that skills name, sorted."""
        with self._catalog.read() as connection:
            return sorted(
                {
                    language
                    for head in store.heads(connection, access_scope=access_scope)
                    for language in head.scopes.languages
                }
            )

    def show(self, name: str, *, access_scope: AccessScope = ALL_ACCESS) -> SkillDetail:
        """One skill with all that backs it. Raises NotFound, which names the nearest."""
        with self._catalog.read() as connection:
            row = store.get(connection, name, access_scope)
            evidence = store.evidence_of(connection, row.id, access_scope)
            events = store.events(connection, row.id, access_scope)
            links = store.links_of(connection, name, access_scope)
            warnings = warnings_about(connection, row)
            opposed = contradictions(connection, row, self._registry.lineages(), access_scope)
            revision = store.revision_of(connection, name, access_scope)
            revised = store.find(connection, row.revises, access_scope) if row.revises else None
        exported = marked(skill_file(row, evidence))
        return SkillDetail(
            summary=_summary(row, _backing(row, evidence)),
            id=row.id,
            front_matter=_front_matter(exported),
            body=row.body,
            predicate=row.predicate,
            moves=row.moves,
            recipe=row.recipe,
            sources=row.sources,
            files=dict(row.metadata.get("files", {})),
            origin=row.origin,
            events=tuple(events),
            evidence=tuple(evidence),
            links=tuple(links),
            transformation=row.transformation,
            warnings=warnings,
            conflicts=opposed,
            revision=revision.name if revision is not None else None,
            revises=row.revises,
            changes=changes_of(row, revised) if revised is not None else "",
        )

    def warnings(
        self, name: str, event: SkillEvent, *, access_scope: AccessScope = ALL_ACCESS
    ) -> Sequence[str]:
        """What to tell whoever has just made the skill active; nothing after another event."""
        if event.to_state != "active":
            return ()
        with self._catalog.read() as connection:
            row = store.get(connection, name, access_scope)
            return self._warnings(connection, row, access_scope)

    # -- in and out

    def sync_builtin(self, folder: Path) -> ShippedSync:
        """Bring the shipped skills up to the folders below `folder`; those gone are retired, those
        about a chip that is not registered here left out. A state that somebody else set stays."""
        return sync_shipped(self._catalog, self._registry, folder)

    def import_folder(
        self,
        folder: Path,
        *,
        actor: str,
        tier: Tier = "learned",
        access_scope: AccessScope = ALL_ACCESS,
    ) -> Imported:
        """Import a skill folder as a candidate, without its evidence and scripts. One of its name
        that is a candidate or retired gets a new version, one in use a revision beside it. Raises
        InvalidKnowledge, UnknownHardware, UnknownSignal, and Conflict where a skill of its name is
        quarantined or shipped."""
        registry = self._registry.seen_by(access_scope)
        skill = read_checked(folder, registry)
        draft = draft_of(skill, tier, "import", registry)
        claims = [key for key in ("kb.status", "kb.evidence") if key in skill.metadata]
        kept = {*draft.metadata["files"], MOVES_JSON, RECIPE_JSON}
        dropped = tuple(claims + sorted(skill.files.keys() - kept))
        claimed_sha = skill.metadata.get("kb.content-sha256")
        details = {"dropped": list(dropped), "claimed_sha256": claimed_sha}
        with self._catalog.write() as connection:
            warnings = self._warnings(connection, draft, access_scope)
            taken = take(
                connection,
                draft,
                actor=actor,
                reason="imported from a folder",
                details=details,
                access_scope=access_scope,
            )
        return Imported(**vars(taken), dropped=dropped, warnings=warnings)

    def revise(
        self,
        name: str,
        change: Revision,
        *,
        actor: str,
        reason: str,
        access_scope: AccessScope = ALL_ACCESS,
    ) -> Imported:
        """Change what a learned skill says: of one in use as a revision beside it, which is changed
        further where there is one already. Raises NotFound, InvalidKnowledge, UnknownSignal, and
        Conflict where nothing differs or the skill ships or is quarantined."""
        registry = self._registry.seen_by(access_scope)
        with self._catalog.write() as connection:
            row = store.get(connection, name, access_scope)
            present = store.revision_of(connection, name, access_scope) or row
            skill = changed(advice(present), row, change)
            draft = draft_of(skill, "learned", "person", registry)
            warnings = self._warnings(connection, draft, access_scope)
            taken = take(
                connection,
                draft,
                actor=actor,
                reason=reason,
                details={},
                access_scope=access_scope,
            )
        if taken.outcome == "unchanged":
            raise Conflict(f"{name} says this already", hint="Change its text or precondition.")
        return Imported(**vars(taken), dropped=(), warnings=warnings)

    def export(
        self,
        parent: Path,
        names: Iterable[str] | None = None,
        *,
        access_scope: AccessScope = ALL_ACCESS,
    ) -> Sequence[Path]:
        """Write skills as folders below `parent`: the named ones, else all that are active."""
        return [write_skill(file, parent) for file in self.files(names, access_scope=access_scope)]

    def files(
        self, names: Iterable[str] | None = None, *, access_scope: AccessScope = ALL_ACCESS
    ) -> Sequence[SkillFile]:
        """Skills as they are exported: the named ones, else all that are active."""
        with self._catalog.read() as connection:
            if names is not None:
                rows = [store.get(connection, name, access_scope) for name in names]
            else:
                rows = store.listed(connection, states=("active",), access_scope=access_scope)
            evidence = store.evidence_for(connection, [row.id for row in rows], access_scope)
        return [marked(skill_file(row, evidence.get(row.id, []))) for row in rows]

    def set_state(
        self,
        name: str,
        state: State,
        *,
        actor: str,
        reason: str,
        access_scope: AccessScope = ALL_ACCESS,
    ) -> SkillEvent:
        """Set a skill's state, with an event. Raises NotFound and Conflict."""
        with self._catalog.write() as connection:
            return store.set_state(
                connection, name, state, actor=actor, reason=reason, access_scope=access_scope
            )

    def observed(
        self, names: Iterable[str], *, access_scope: AccessScope = ALL_ACCESS
    ) -> Mapping[str, UseVerdict]:
        """Judge these skills anew after an outcome came in: those that lose are narrowed or
        retired."""
        return observe(self._catalog, names, access_scope=access_scope)

    # -- parts

    def _warnings(
        self, connection: Connection, skill: SkillDraft | SkillHead, access_scope: AccessScope
    ) -> tuple[str, ...]:
        lineages = self._registry.lineages()
        opposed = contradictions(connection, skill, lineages, access_scope)
        return (*warnings_about(connection, skill), *map(str, opposed))

    def _scopes(self, hardware: str, access_scope: AccessScope) -> tuple[str, ...]:
        registry = self._registry.seen_by(access_scope)
        return registry.scopes(registry.resolve(hardware))

    def _languages(
        self, hardware: str | None, language: str | None, access_scope: AccessScope
    ) -> Sequence[Sequence[str]]:
        """Sets of languages of each of which a listed skill must name one, or none at all."""
        admitted: list[Sequence[str]] = []
        if hardware is None and language is None:
            return admitted
        with self._catalog.read() as connection:
            if hardware is not None:
                # Imported here: they take 0.3 s of processor time that no other list needs.
                from kb.catalog.knowledge.documents import languages_of
                from retrieval.request import RetrieveRequest
                from retrieval.request_scope import scope_of

                registry = self._registry.seen_by(access_scope)
                asked = RetrieveRequest(
                    query=hardware, hardware=hardware, access_scope=access_scope
                )
                scope = scope_of(
                    asked, registry, lambda chip: languages_of(connection, chip, access_scope)
                )
                admitted.append(scope.filter.languages or ())
            if language is not None:
                check_language(connection, language)
                admitted.append([language])
        return admitted


def _summaries(
    connection: Connection, rows: Sequence[SkillHead], access_scope: AccessScope
) -> list[SkillSummary]:
    evidence = store.evidence_lines(connection, [row.id for row in rows], access_scope)
    return [_summary(row, evidence[row.id]) for row in rows]


def _summary(row: SkillHead, evidence: str) -> SkillSummary:
    return SkillSummary(
        name=row.name,
        description=row.description,
        tier=row.tier,
        state=row.state,
        polarity=row.polarity,
        version=row.version,
        scopes=row.scopes,
        evidence=evidence,
        updated_at=row.updated_at,
    )


def _backing(row: SkillRow, evidence: Sequence[EvidenceRow]) -> str:
    """The figures of what was measured here, or whose figures the text of a sourced skill has."""
    line = store.evidence_line(evidence)
    claimed = row.tier == "curated" and _CLAIM.search(row.body)
    return AUTHORS_FIGURES if line == store.NOT_MEASURED and claimed else line


def _front_matter(skill: SkillFile) -> dict[str, Any]:
    fields = {
        "name": skill.name,
        "description": skill.description,
        "license": skill.license,
        "compatibility": skill.compatibility,
        "allowed-tools": skill.allowed_tools,
    }
    present = {key: value for key, value in fields.items() if value is not None}
    return {**present, "metadata": dict(skill.metadata)}


# -- scoping: What a skill leaves open, names in vain or says of both sides: for whoever takes it

UNSCOPED = (
    "It names neither hardware, language nor signal (kb.hardware, kb.languages, kb.signals in its"
    " metadata), so it is shown for a request that has its operator or its words, and for no other."
)


ADVISING = (
    "It is a warning (kb.polarity: avoid), and its description says when to use it: let the"
    " description say what to avoid, and why."
)


def known_languages(connection: Connection) -> frozenset[str]:
    """The languages that something here names, and those that every model has seen."""
    # Loaded by those who name a language alone: the layout takes as long as the list of skills.
    from retrieval.layout import load_layout

    return store.named_languages(connection) | load_layout().known_languages


def check_language(connection: Connection, language: str) -> None:
    """Raise InvalidRequest for a language that nothing here names."""
    known = known_languages(connection)
    if language not in known:
        raise InvalidRequest(
            f"no chip, document or shipped skill here names the language {language[:80]!r}",
            hint=f"{_meant(language, known)}Known: {', '.join(sorted(known))}.",
        )


def warnings_about(connection: Connection, skill: SkillDraft | SkillHead) -> tuple[str, ...]:
    """Sentences about what will not do what its author may think; empty for most."""
    warnings, scopes = [], skill.scopes
    if not (scopes.hardware or scopes.languages or scopes.signals):
        warnings.append(UNSCOPED)
    if skill.polarity == "avoid" and skill.description.lower().startswith("use when"):
        warnings.append(ADVISING)
    if skill.origin == "import":  # a run names the operators of its problems
        warnings += _unknown_ops(scopes.ops)
    if scopes.languages:
        known = known_languages(connection)
        warnings += [
            f"No chip, document or shipped skill here names the language {language!r}."
            f" {_meant(language, known)}".rstrip()
            for language in scopes.languages
            if language not in known
        ]
    return tuple(warnings)


def _unknown_ops(ops: Sequence[str]) -> list[str]:
    terms = problem_terms()
    known = frozenset({*terms.ops, *terms.families})
    return [
        f"No operator here is called {op!r}, so it holds for problems that name it so and for no"
        f" other. {_meant(op, known)}".rstrip()
        for op in ops
        if op not in known
    ]


def _meant(name: str, known: frozenset[str]) -> str:
    near = nearest(name, known)
    return f"Did you mean {' or '.join(near)}? " if near else ""


# -- conflicts: Skills that contradict each other: one advises a transformation, another warns of

# A retired or quarantined skill says nothing to anybody.
SPEAKING = ("candidate", "active", "suspect")
Lineages = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Contradiction:
    """`name` says the opposite of the skill that was asked about."""

    name: str
    state: str
    polarity: str

    def __str__(self) -> str:
        says = "warns of what this skill advises" if self.polarity == "avoid" else "advises it"
        return f"It conflicts with {self.name} ({self.state}), which {says}. Both are shown."


def contradictions(
    connection: Connection,
    skill: SkillDraft | SkillHead,
    lineages: Lineages,
    access_scope: AccessScope = ALL_ACCESS,
) -> tuple[Contradiction, ...]:
    """The skills of the other polarity about the same transformation, by name, where both can hold
    for one kernel. `lineages`: of every hardware, from the chip up to its vendor."""
    others = store.heads(
        connection,
        states=SPEAKING,
        transformation=skill.transformation,
        access_scope=access_scope,
    )
    return tuple(
        Contradiction(other.name, other.state, other.polarity)
        for other in others
        if other.polarity != skill.polarity and _overlap(skill.scopes, other.scopes, lineages)
    )


def _overlap(mine: SkillScopes, theirs: SkillScopes, lineages: Lineages) -> bool:
    pairs = [
        (getattr(mine, name), getattr(theirs, name))
        for name in ("languages", "ops", "dtypes", "signals")
    ]
    meet = all(not ours or not others or {*ours} & {*others} for ours, others in pairs)
    return meet and _share_a_chip(mine.hardware, theirs.hardware, lineages)


def _share_a_chip(mine: Sequence[str], theirs: Sequence[str], lineages: Lineages) -> bool:
    """Whether some hardware is below one of each: a chip and its family share the chip."""
    if not mine or not theirs:
        return True
    return any(
        ours in lineages.get(other, (other,)) or other in lineages.get(ours, (ours,))
        for ours in mine
        for other in theirs
    )


# -- revising: A skill's text as it is sent in: a new skill, a new version of one that nobody is s

REVISABLE = ("candidate", "retired")  # nobody is shown them, so their text may change
IN_USE = ("active", "suspect")
CARRIED = (store.REVISES, store.REVISES_VERSION, store.REVISES_SHA256)


@dataclass(frozen=True)
class Revision:
    """What a person changes of a skill; None leaves it. An empty `predicate` is no precondition."""

    description: str | None = None
    predicate: str | None = None
    body: str | None = None


@dataclass(frozen=True)
class Taken:
    """What became of a text. `revises`: the skill in use that it is a revision of."""

    name: str
    outcome: Outcome
    state: str
    revises: str | None = None


def changed(file: SkillFile, skill: SkillRow, change: Revision) -> SkillFile:
    """What `skill` says, or a revision of it (`file`), with a change. Raises InvalidKnowledge for
    one that breaks the format, and Conflict for a skill that ships.
    """
    if skill.tier != "learned":
        raise Conflict(
            f"{skill.name} is {skill.tier}: its text comes with Kernlore",
            hint="Export it, give the folder and its `name` another name, import it, and retire"
            " this one once that is approved.",
        )
    metadata = dict(file.metadata)
    if change.predicate is not None:
        metadata["kb.predicate"] = change.predicate.strip()
    file = replace(
        file,
        name=skill.name,
        description=file.description if change.description is None else change.description.strip(),
        body=file.body if change.body is None else change.body.replace("\r\n", "\n").strip(),
        metadata={key: value for key, value in metadata.items() if value},
    )
    problems = Problems(f"the revision of {skill.name}")
    check(file, skill.name, problems)
    problems.raise_if_any()
    return file


def take(
    connection: Connection,
    draft: SkillDraft,
    *,
    actor: str,
    reason: str,
    details: Mapping[str, Any],
    access_scope: AccessScope,
) -> Taken:
    """Store a draft under its name, as a candidate; where that skill is in use, as its revision.
    Raises Conflict where the skill of its name is quarantined or shipped, Forbidden where the
    caller may not change it.
    """
    known = store.find(connection, draft.name, access_scope)
    if known is not None and known.tier == draft.tier and known.state in IN_USE:
        return _as_revision(connection, known, draft, actor, reason, details, access_scope)
    if known is not None and known.revises is not None:  # sent in under the revision's own name
        carried = {key: known.metadata[key] for key in CARRIED}
        carried[store.REVISES_SHA256] = _digest(replace(draft, name=known.revises))
        draft = replace(draft, metadata={**draft.metadata, **carried})
    if known is not None and known.content_sha256 == draft.content_sha256:
        return Taken(draft.name, "unchanged", known.state, known.revises)
    if known is not None and (known.state not in REVISABLE or known.tier != draft.tier):
        raise _not_revisable(known, draft)
    signed: dict[str, Any] = {"actor": actor, "access_scope": access_scope}
    stored = store.put(
        connection, draft, state="candidate", reason=reason, details=details, **signed
    )
    if known is not None and known.state == "retired":  # other text, to be judged anew
        why = "a new revision was imported"
        store.set_state(connection, draft.name, "candidate", reason=why, **signed)
    return Taken(draft.name, stored.outcome, "candidate", known.revises if known else None)


def _as_revision(
    connection: Connection,
    skill: SkillRow,
    draft: SkillDraft,
    actor: str,
    reason: str,
    details: Mapping[str, Any],
    access_scope: AccessScope,
) -> Taken:
    access_scope.check_change(skill.scopes.hardware, f"the skill {skill.name}")
    if skill.content_sha256 == draft.content_sha256:
        return Taken(skill.name, "unchanged", skill.state)
    pending = store.revision_of(connection, skill.name, access_scope)
    name = pending.name if pending is not None else _free_name(connection, skill)
    told = {
        store.REVISES: skill.name,
        store.REVISES_VERSION: skill.version,
        store.REVISES_SHA256: draft.content_sha256,
    }
    revision = replace(draft, name=name, version=1, metadata={**draft.metadata, **told})
    revision = replace(revision, content_sha256=_digest(revision))
    stored = store.put(
        connection,
        revision,
        state="candidate",
        actor=actor,
        reason=reason,
        details={**details, store.REVISES: skill.name},
        access_scope=access_scope,
    )
    return Taken(name, stored.outcome, "candidate", skill.name)


def changes_of(revision: SkillRow, skill: SkillRow) -> str:
    """How a revision's text differs from the skill's, as a unified diff; empty for equal texts."""
    before, after = (
        render(advice(row)).splitlines(keepends=True)
        for row in (skill, replace(revision, name=skill.name))
    )
    label = f"{skill.name} version {skill.version}"
    return "".join(difflib.unified_diff(before, after, label, revision.name))


def _free_name(connection: Connection, skill: SkillRow) -> str:
    """A name that nobody has, whoever may see it."""
    taken = set(store.names(connection))
    number = skill.version + 1
    while True:
        suffix = f"-r{number}"
        name = f"{skill.name[: MAX_NAME - len(suffix)].rstrip('-')}{suffix}"
        if name not in taken:
            return name
        number += 1


def _digest(draft: SkillDraft) -> str:
    return content_sha256(advice(draft))


def _not_revisable(known: SkillRow, draft: SkillDraft) -> Conflict:
    """The error for a text under the name of a skill whose text stays; it says how to go on."""
    name = known.name
    hint = "Give the folder and its `name` another name to import it beside that."
    if known.tier == draft.tier:
        hint = (
            f"To revise it: `kernlore skills restore {name} --reason TEXT`, then import it again."
            f" Or: {hint[0].lower()}{hint[1:]}"
        )
    return Conflict(f"{name} is already here as {known.tier} and {known.state}", hint=hint)
