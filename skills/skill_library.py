"""The skill library: built-in folders kept in step with the catalog, skills in and out as folders,
and what a reader sees of one.

What a file says about its own state is never believed: shipped skills are curated and active,
whatever is imported is a candidate without evidence. Ranking and drafting are done elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
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
from kb.errors import Conflict, InvalidRequest
from kb.scope import ALL_ACCESS, AccessScope
from retrieval.diagnose.signals import load_signals
from skills.conflicts import Contradiction, contradictions
from skills.drafts import draft_of, read_checked
from skills.format.schema import MOVES_JSON, RECIPE_JSON, SkillFile, advice, skill_file
from skills.format.skillfile import write_skill
from skills.format.warning_marks import marked
from skills.observation import observe
from skills.revising import Revision, changed, changes_of, take
from skills.scoping import check_language, warnings_about
from skills.shipped import SyncReport, sync_shipped
from skills.uses import Finding

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

    def sync_builtin(self, folder: Path) -> SyncReport:
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
    ) -> Mapping[str, Finding]:
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
                from retrieval.scope import scope_of

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
