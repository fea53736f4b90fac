"""The library: the skills of the catalog, listed, shown, imported, exported and revised.

The claims of a file about its own state are ignored: shipped skills are curated and active, an
imported one is a candidate without evidence. A revision of a skill in use is a candidate of its
own, `NAME-r2` for what would be version 2 of `NAME`. It is verified and approved like any other;
when it becomes active it replaces the text of the skill (`kb.catalog.skills`).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

from sqlalchemy import Connection

from kb.catalog.engine import Catalog
from kb.catalog.hardware import HardwareRegistry
from kb.catalog.skills.evidence import (
    NOT_MEASURED,
    effects_of,
    evidence_for,
    evidence_line,
    evidence_lines,
    evidence_of,
)
from kb.catalog.skills.reading import (
    REVISES,
    REVISES_SHA256,
    REVISES_VERSION,
    STATES,
    TIERS,
    EvidenceRow,
    SkillDraft,
    SkillEvent,
    SkillHead,
    SkillLink,
    SkillRow,
    SkillScopes,
    StoreOutcome,
    count_skills,
    events_of,
    find_skill,
    get_skill,
    list_skills,
    named_languages,
    revision_of,
    search_skills,
    skill_heads,
    skill_languages,
    skill_names,
)
from kb.catalog.skills.shipped import (
    EFFECTS,
    UNTESTED,
    GainRow,
    ShippedTrial,
    SkillEffect,
    gains_by_chip,
    own_gains,
    stored_trials,
)
from kb.catalog.skills.writing import links_of, set_state, store_skill
from kb.errors import Conflict, InvalidRequest, nearest
from kb.hardware.table_reader import Problems
from kb.problem_terms import problem_terms
from kb.scope import ALL_ACCESS, AccessScope
from kb.tokens import tokenize
from retrieval.diagnose.signals import load_signals
from skills.format.schema import (
    MOVES_JSON,
    RECIPE_JSON,
    SkillFile,
    advice,
    check,
    marked,
    numbered_name,
    skill_file,
)
from skills.format.skillfile import content_sha256, render, write_skill
from skills.importing import ShippedSync, draft_of, read_checked, sync_shipped

AUTHORS_FIGURES = "measured by the skill's author: see Expected effect; not repeated here"
_CLAIM = re.compile(r"^## Expected effect$.*?\bMeasured on\b", re.MULTILINE | re.DOTALL)
REVISABLE = ("candidate", "retired")  # states of skills that are not shown, so text may change
IN_USE = ("active", "suspect")
ORDERS = ("name", "effect")
CARRIED = (REVISES, REVISES_VERSION, REVISES_SHA256)


class SkillFilter(TypedDict, total=False):
    """The filter of a list of skills.

    `hardware`: skills that hold for it, so also those of its lineage and of any, in languages that
    its kernels can be written in. `language`: skills of this language and of any. `effect`: skills
    with one of these effects (`EFFECTS`), with commas between. `order`: `name`, or `effect` for
    those with the largest certain gain first and untested ones last.
    """

    states: Sequence[str] | None
    tier: str | None
    hardware: str | None
    signal: str | None
    language: str | None
    effect: str | None
    order: str


@dataclass(frozen=True)
class Imported:
    """A stored text. `dropped` names content and claims of its folder that are ignored, `warnings`
    are sentences about its scopes. `revises` is the skill in use that it is a revision of."""

    name: str
    outcome: StoreOutcome
    state: str
    dropped: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    revises: str | None = None


@dataclass(frozen=True)
class Revision:
    """A person's change of a skill's text; None leaves a part as it is. An empty `predicate`
    removes the precondition."""

    description: str | None = None
    predicate: str | None = None
    body: str | None = None


@dataclass(frozen=True)
class Contradiction:
    """A skill that says the opposite of another one."""

    name: str
    state: str
    polarity: str

    def __str__(self) -> str:
        says = "advises against it" if self.polarity == "avoid" else "advises it"
        return f"It conflicts with {self.name} ({self.state}), which {says}. Both are shown."


@dataclass(frozen=True)
class AlikeSkill:
    """A skill that says nearly the same, with its effect in words."""

    name: str
    state: str
    why: str
    effect: str


@dataclass(frozen=True)
class SkillSummary:
    """A skill as lists show it. `effect` is its effect measured by Kernlore or here, and
    `effect_text` the same in words; `evidence` is one line about the measurements of this
    installation, or "not measured here"."""

    name: str
    description: str
    tier: str
    state: str
    polarity: str
    version: int
    scopes: SkillScopes
    evidence: str
    updated_at: str
    effect: SkillEffect = UNTESTED
    effect_text: str = "untested"


@dataclass(frozen=True)
class SkillDetail:
    """A skill with its evidence and history. `front_matter` is that of its export. `conflicts` are
    skills that say the opposite about the same transformation. `revision` is the candidate that
    would replace its text; for such a one, `revises` and how it `changes` the text are set.
    `shipped` are the trials that ship with it, `evidence` the measurements of this installation,
    and `gains` both by chip and dtype. `alike` are skills that may be merged with it."""

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
    links: tuple[SkillLink, ...]
    transformation: str
    warnings: tuple[str, ...] = ()
    conflicts: tuple[Contradiction, ...] = ()
    revision: str | None = None
    revises: str | None = None
    changes: str = ""
    shipped: tuple[ShippedTrial, ...] = ()
    gains: tuple[GainRow, ...] = ()
    alike: tuple[AlikeSkill, ...] = ()


class SkillLibrary:
    """The skills of a catalog. Every method sees only what `access_scope` may see."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._registry = HardwareRegistry(catalog)

    # -- reading

    def list(
        self,
        *,
        words: str | None = None,
        access_scope: AccessScope = ALL_ACCESS,
        **narrowed: Unpack[SkillFilter],
    ) -> Sequence[SkillSummary]:
        """Skills by name; with `words`, those that contain the most of them first. Raises
        UnknownHardware, UnknownSignal, and InvalidRequest for an unknown language."""
        wanted = self._narrowing(narrowed, access_scope)
        with self._catalog.read() as connection:
            if words is None:
                rows = skill_heads(connection, **wanted)
            else:
                rows = search_skills(connection, words, **wanted)
            return _by_effect(_summaries(connection, rows, access_scope), narrowed)

    def page(
        self,
        *,
        limit: int,
        offset: int = 0,
        access_scope: AccessScope = ALL_ACCESS,
        **narrowed: Unpack[SkillFilter],
    ) -> tuple[Sequence[SkillSummary], int]:
        """At most `limit` skills of `list` after the first `offset`, and the number of all."""
        if narrowed.get("effect") or narrowed.get("order", "name") != "name":
            every = self.list(access_scope=access_scope, **narrowed)
            return every[offset : offset + limit], len(every)
        wanted = self._narrowing(narrowed, access_scope)
        with self._catalog.read() as connection:
            rows = skill_heads(connection, limit, offset, **wanted)
            return _summaries(connection, rows, access_scope), count_skills(connection, **wanted)

    def _narrowing(self, narrowed: SkillFilter, access_scope: AccessScope) -> dict[str, Any]:
        states, tier = narrowed.get("states"), narrowed.get("tier")
        odd = sorted({*(states or ())} - {*STATES})
        if odd or (tier is not None and tier not in TIERS):
            raise InvalidRequest(
                f"no such state or tier: {', '.join(odd) or tier}",
                hint=f"States: {', '.join(STATES)}. Tiers: {', '.join(TIERS)}.",
            )
        odd = sorted({*_effects(narrowed)} - {*EFFECTS})
        order = narrowed.get("order", "name")
        if odd or order not in ORDERS:
            raise InvalidRequest(
                f"no such effect or order: {', '.join(odd) or order}",
                hint=f"Effects: {', '.join(EFFECTS)}. Orders: {', '.join(ORDERS)}.",
            )
        hardware, signal = narrowed.get("hardware"), narrowed.get("signal")
        registry = self._registry.seen_by(access_scope)
        scopes = None if hardware is None else registry.scopes(registry.resolve(hardware))
        return {
            "states": states,
            "tier": tier,
            "hardware_scopes": scopes,
            "languages": self._languages(hardware, narrowed.get("language"), access_scope),
            "signal": None if signal is None else load_signals().get(signal).id,
            "access_scope": access_scope,
        }

    def _languages(
        self, hardware: str | None, language: str | None, access_scope: AccessScope
    ) -> Sequence[Sequence[str]]:
        """Sets of languages; a listed skill must name one of each set, or no language at all."""
        sets: list[Sequence[str]] = []
        if hardware is None and language is None:
            return sets
        with self._catalog.read() as connection:
            if hardware is not None:
                # Imported here: they take 0.3 s of processor time that no other list needs.
                from kb.catalog.knowledge.documents import languages_of
                from retrieval.request import RetrieveRequest
                from retrieval.scope import scope_of

                registry = self._registry.seen_by(access_scope)
                request = RetrieveRequest(
                    query=hardware, hardware=hardware, access_scope=access_scope
                )
                scope = scope_of(
                    request, registry, lambda chip: languages_of(connection, chip, access_scope)
                )
                sets.append(scope.filter.languages or ())
            if language is not None:
                known = known_languages(connection)
                if language not in known:
                    near, listed = _did_you_mean(language, known), ", ".join(sorted(known))
                    raise InvalidRequest(
                        f"no chip, document or shipped skill here names the language"
                        f" {language[:80]!r}",
                        hint=f"{near}Known: {listed}.",
                    )
                sets.append([language])
        return sets

    def languages(self, *, access_scope: AccessScope = ALL_ACCESS) -> Sequence[str]:
        with self._catalog.read() as connection:
            return skill_languages(connection, access_scope)

    def show(self, name: str, *, access_scope: AccessScope = ALL_ACCESS) -> SkillDetail:
        """One skill with its evidence and history. Raises NotFound, which names the nearest."""
        with self._catalog.read() as connection:
            row = get_skill(connection, name, access_scope)
            evidence = evidence_of(connection, row.id, access_scope)
            events = events_of(connection, row.id, access_scope)
            links = links_of(connection, name, access_scope)
            warnings = _scope_warnings(connection, row)
            conflicts = self._conflicts(connection, row, access_scope)
            revision = revision_of(connection, name, access_scope)
            revised = find_skill(connection, row.revises, access_scope) if row.revises else None
            effect = effects_of(connection, [row], access_scope)[row.id]
            alike = _alike(connection, row, access_scope)
        seen, shipped = _as_seen(row, access_scope), stored_trials(row.metadata)
        line = evidence_line(evidence)
        if line == NOT_MEASURED and row.tier == "curated" and _CLAIM.search(row.body):
            line = AUTHORS_FIGURES
        return SkillDetail(
            summary=_summary(row, line, effect, access_scope),
            id=row.id,
            front_matter=_front_matter(marked(skill_file(seen, evidence))),
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
            conflicts=conflicts,
            revision=revision.name if revision is not None else None,
            revises=row.revises,
            changes=_changes(row, revised) if revised is not None else "",
            shipped=shipped,
            gains=(*gains_by_chip(shipped), *own_gains(evidence)),
            alike=alike,
        )

    def warnings(
        self, name: str, event: SkillEvent, *, access_scope: AccessScope = ALL_ACCESS
    ) -> Sequence[str]:
        """Sentences about the scopes of a skill that the event made active; empty after any other
        event."""
        if event.to_state != "active":
            return ()
        with self._catalog.read() as connection:
            row = get_skill(connection, name, access_scope)
            return self._warnings(connection, row, access_scope)

    def _warnings(
        self, connection: Connection, skill: SkillDraft | SkillHead, access_scope: AccessScope
    ) -> tuple[str, ...]:
        conflicts = self._conflicts(connection, skill, access_scope)
        return (*_scope_warnings(connection, skill), *map(str, conflicts))

    def _conflicts(
        self, connection: Connection, skill: SkillDraft | SkillHead, access_scope: AccessScope
    ) -> tuple[Contradiction, ...]:
        """The skills of the other polarity about the same transformation, by name, where both can
        hold for one kernel. They need no evidence for that."""
        lineages = self._registry.lineages()
        others = skill_heads(
            connection,
            states=("candidate", *IN_USE),
            transformation=skill.transformation,
            access_scope=access_scope,
        )
        return tuple(
            Contradiction(other.name, other.state, other.polarity)
            for other in others
            if other.polarity != skill.polarity and _overlap(skill.scopes, other.scopes, lineages)
        )

    # -- in and out

    def sync_builtin(self, folder: Path) -> ShippedSync:
        """Store the shipped skills of `folder` (`importing.sync_shipped`)."""
        return sync_shipped(self._catalog, self._registry, folder)

    def import_folder(
        self, folder: Path, *, actor: str, access_scope: AccessScope = ALL_ACCESS
    ) -> Imported:
        """Import a skill folder as a candidate, without its evidence and scripts. A candidate or
        retired skill of its name gets a new version, one in use a revision. Raises
        InvalidKnowledge, UnknownHardware, UnknownSignal, and Conflict if a skill of its name is
        quarantined or shipped."""
        registry = self._registry.seen_by(access_scope)
        skill = read_checked(folder, registry)
        draft = draft_of(skill, "learned", "import", registry)
        claims = [key for key in ("kb.status", "kb.evidence") if key in skill.metadata]
        used = {*draft.metadata["files"], MOVES_JSON, RECIPE_JSON}
        dropped = tuple(claims + sorted(skill.files.keys() - used))
        claimed_sha = skill.metadata.get("kb.content-sha256")
        details = {"dropped": list(dropped), "claimed_sha256": claimed_sha}
        signed = {"actor": actor, "reason": "imported from a folder", "details": details}
        with self._catalog.write() as connection:
            warnings = self._warnings(connection, draft, access_scope)
            imported = _store_text(connection, draft, signed, access_scope)
        return replace(imported, dropped=dropped, warnings=warnings)

    def revise(
        self,
        name: str,
        change: Revision,
        *,
        actor: str,
        reason: str,
        access_scope: AccessScope = ALL_ACCESS,
    ) -> Imported:
        """Change the text of a learned skill; for one in use, store or change its revision. Raises
        NotFound, InvalidKnowledge, UnknownSignal, and Conflict if nothing differs or the skill is
        shipped or quarantined."""
        registry = self._registry.seen_by(access_scope)
        with self._catalog.write() as connection:
            row = get_skill(connection, name, access_scope)
            present = revision_of(connection, name, access_scope) or row
            draft = draft_of(_revised(advice(present), row, change), "learned", "person", registry)
            warnings = self._warnings(connection, draft, access_scope)
            signed = {"actor": actor, "reason": reason, "details": {}}
            imported = _store_text(connection, draft, signed, access_scope)
        if imported.outcome == "unchanged":
            raise Conflict(f"{name} says this already", hint="Change its text or precondition.")
        return replace(imported, warnings=warnings)

    def export(
        self,
        parent: Path,
        names: Iterable[str] | None = None,
        *,
        access_scope: AccessScope = ALL_ACCESS,
    ) -> Sequence[Path]:
        """Write skills as folders below `parent`: the named ones, else all active ones."""
        return [write_skill(file, parent) for file in self.files(names, access_scope=access_scope)]

    def files(
        self, names: Iterable[str] | None = None, *, access_scope: AccessScope = ALL_ACCESS
    ) -> Sequence[SkillFile]:
        """Skills as they are exported: the named ones, else all active ones."""
        with self._catalog.read() as connection:
            if names is not None:
                rows = [get_skill(connection, name, access_scope) for name in names]
            else:
                rows = list_skills(connection, states=("active",), access_scope=access_scope)
            evidence = evidence_for(connection, [row.id for row in rows], access_scope)
        seen = [_as_seen(row, access_scope) for row in rows]
        return [marked(skill_file(row, evidence.get(row.id, []))) for row in seen]


def _as_seen(row: SkillRow, access_scope: AccessScope) -> SkillRow:
    """The skill without hardware that the caller may not see."""
    seen = access_scope.visible_hardware(tuple(row.scopes.hardware))
    return replace(row, scopes=replace(row.scopes, hardware=seen))


def _summaries(
    connection: Connection, rows: Sequence[SkillHead], access_scope: AccessScope
) -> list[SkillSummary]:
    ids = [row.id for row in rows]
    evidence = evidence_lines(connection, ids, access_scope)
    effects = effects_of(connection, rows, access_scope)
    return [_summary(row, evidence[row.id], effects[row.id], access_scope) for row in rows]


def _effects(narrowed: SkillFilter) -> list[str]:
    return [name.strip() for name in (narrowed.get("effect") or "").split(",") if name.strip()]


def _by_effect(rows: list[SkillSummary], narrowed: SkillFilter) -> list[SkillSummary]:
    """The rows with one of the wanted effects, in the wanted order."""
    wanted = _effects(narrowed)
    chosen = [row for row in rows if not wanted or row.effect.state in wanted]
    if narrowed.get("order", "name") == "effect":
        chosen.sort(key=lambda row: row.effect.rank)
    return chosen


def _summary(
    row: SkillHead, evidence: str, effect: SkillEffect, access_scope: AccessScope
) -> SkillSummary:
    seen = access_scope.visible_hardware(tuple(row.scopes.hardware))
    return SkillSummary(
        name=row.name,
        description=row.description,
        tier=row.tier,
        state=row.state,
        polarity=row.polarity,
        version=row.version,
        scopes=replace(row.scopes, hardware=seen),
        evidence=evidence,
        updated_at=row.updated_at,
        effect=effect,
        effect_text=str(effect),
    )


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


# -- skills that say nearly the same

ALIKE_WORDS = 0.5  # share of words in common, of two skills about one transformation or operator


def _alike(
    connection: Connection, skill: SkillRow, access_scope: AccessScope
) -> tuple[AlikeSkill, ...]:
    """The skills that a person may merge with this one: they make the same claim, or are about the
    same operator and language in mostly the same words."""
    heads = skill_heads(connection, states=("candidate", *IN_USE), access_scope=access_scope)
    reasons = {
        other.id: why
        for other in heads
        if other.name != skill.name and (why := _why_alike(skill, other)) is not None
    }
    chosen = [head for head in heads if head.id in reasons]
    effects = effects_of(connection, chosen, access_scope)
    return tuple(
        AlikeSkill(head.name, head.state, reasons[head.id], str(effects[head.id]))
        for head in chosen
    )


def _why_alike(skill: SkillHead, other: SkillHead) -> str | None:
    if skill.polarity != other.polarity or skill.scopes.languages != other.scopes.languages:
        return None
    if skill.structured_key == other.structured_key:
        return "the same transformation in the same situation"
    mine, theirs = (set(tokenize(f"{s.name} {s.description}")) for s in (skill, other))
    shared = len(mine & theirs) / max(1, min(len(mine), len(theirs)))
    if skill.transformation == other.transformation and {*skill.scopes.ops} & {*other.scopes.ops}:
        return "the same transformation of the same operator"
    if shared >= ALIKE_WORDS and {*skill.scopes.ops} & {*other.scopes.ops}:
        return f"{shared:.0%} of its words, and the same operator"
    return None


# -- warnings about scopes, and conflicts

UNSCOPED = (
    "It names neither hardware, language nor signal (kb.hardware, kb.languages, kb.signals in its"
    " metadata), so it is shown for a request that has its operator or its words, and for no other."
)
ADVISING = (
    "It is a warning (kb.polarity: avoid), and its description says when to use it: let the"
    " description name the change to avoid, and why."
)


def known_languages(connection: Connection) -> frozenset[str]:
    """The languages that chips, documents or shipped skills name, and the general ones."""
    # Imported here: loading the layout takes as long as listing the skills.
    from retrieval.layout import load_layout

    return named_languages(connection) | load_layout().known_languages


def _scope_warnings(connection: Connection, skill: SkillDraft | SkillHead) -> tuple[str, ...]:
    """Sentences about scopes whose effect the author may not intend; empty for most skills."""
    warnings, scopes = [], skill.scopes
    if not (scopes.hardware or scopes.languages or scopes.signals):
        warnings.append(UNSCOPED)
    if skill.polarity == "avoid" and skill.description.lower().startswith("use when"):
        warnings.append(ADVISING)
    if skill.origin == "import":  # a run names the operators of its problems
        terms = problem_terms()
        ops = frozenset({*terms.ops, *terms.families})
        warnings += [
            f"No operator here is called {op!r}, so it holds for problems that name it so and for"
            f" no other. {_did_you_mean(op, ops)}".rstrip()
            for op in scopes.ops
            if op not in ops
        ]
    if scopes.languages:
        known = known_languages(connection)
        warnings += [
            f"No chip, document or shipped skill here names the language {language!r}."
            f" {_did_you_mean(language, known)}".rstrip()
            for language in scopes.languages
            if language not in known
        ]
    return tuple(warnings)


def _did_you_mean(name: str, known: frozenset[str]) -> str:
    near = nearest(name, known)
    return f"Did you mean {' or '.join(near)}? " if near else ""


def _overlap(mine: SkillScopes, theirs: SkillScopes, lineages: Mapping[str, Sequence[str]]) -> bool:
    """Whether two scopes can hold for one kernel. A chip and its family share the chip."""
    for name in ("languages", "ops", "dtypes", "signals"):
        ours, others = getattr(mine, name), getattr(theirs, name)
        if ours and others and not {*ours} & {*others}:
            return False
    if not mine.hardware or not theirs.hardware:
        return True
    return any(
        ours in lineages.get(other, (other,)) or other in lineages.get(ours, (ours,))
        for ours in mine.hardware
        for other in theirs.hardware
    )


# -- texts that are imported or revised


def _revised(file: SkillFile, skill: SkillRow, change: Revision) -> SkillFile:
    """The text of `skill`, or of its revision (`file`), with a change. Raises InvalidKnowledge for
    a text that breaks the format, and Conflict for a shipped skill."""
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


def _store_text(
    connection: Connection, draft: SkillDraft, signed: dict[str, Any], access_scope: AccessScope
) -> Imported:
    """Store a draft under its name as a candidate, or as the revision of a skill in use. `signed`
    has actor, reason and details. Raises Conflict if the skill of its name is quarantined or
    shipped, and Forbidden if the caller may not change it."""
    known = find_skill(connection, draft.name, access_scope)
    if known is not None and known.tier == draft.tier and known.state in IN_USE:
        return _store_revision(connection, known, draft, signed, access_scope)
    if known is not None and known.revises is not None:  # imported under the revision's own name
        carried = {key: known.metadata[key] for key in CARRIED}
        carried[REVISES_SHA256] = _digest(replace(draft, name=known.revises))
        draft = replace(draft, metadata={**draft.metadata, **carried})
    if known is not None and known.content_sha256 == draft.content_sha256:
        return Imported(draft.name, "unchanged", known.state, revises=known.revises)
    if known is not None and (known.state not in REVISABLE or known.tier != draft.tier):
        raise _not_revisable(known, draft)
    stored = store_skill(connection, draft, state="candidate", access_scope=access_scope, **signed)
    if known is not None and known.state == "retired":  # its new text is judged anew
        set_state(
            connection,
            draft.name,
            "candidate",
            actor=signed["actor"],
            reason="a new revision was imported",
            access_scope=access_scope,
        )
    revises = known.revises if known is not None else None
    return Imported(draft.name, stored.outcome, "candidate", revises=revises)


def _store_revision(
    connection: Connection,
    skill: SkillRow,
    draft: SkillDraft,
    signed: dict[str, Any],
    access_scope: AccessScope,
) -> Imported:
    access_scope.check_change(skill.scopes.hardware, f"the skill {skill.name}")
    if skill.content_sha256 == draft.content_sha256:
        return Imported(skill.name, "unchanged", skill.state)
    pending = revision_of(connection, skill.name, access_scope)
    if pending is not None:
        name = pending.name
    else:  # a name that no skill has, including those that the caller may not see
        name = numbered_name(skill.name, "-r", skill.version + 1, skill_names(connection))
    metadata = {
        **draft.metadata,
        REVISES: skill.name,
        REVISES_VERSION: skill.version,
        REVISES_SHA256: draft.content_sha256,
    }
    revision = replace(draft, name=name, version=1, metadata=metadata)
    revision = replace(revision, content_sha256=_digest(revision))
    signed = {**signed, "details": {**signed["details"], REVISES: skill.name}}
    stored = store_skill(
        connection, revision, state="candidate", access_scope=access_scope, **signed
    )
    return Imported(name, stored.outcome, "candidate", revises=skill.name)


def _changes(revision: SkillRow, skill: SkillRow) -> str:
    before, after = (
        render(advice(row)).splitlines(keepends=True)
        for row in (skill, replace(revision, name=skill.name))
    )
    label = f"{skill.name} version {skill.version}"
    return "".join(difflib.unified_diff(before, after, label, revision.name))


def _digest(draft: SkillDraft) -> str:
    return content_sha256(advice(draft))


def _not_revisable(known: SkillRow, draft: SkillDraft) -> Conflict:
    """The error for a text under the name of a skill whose text cannot change."""
    name = known.name
    hint = "To import it as a separate skill, give the folder and its `name` another name."
    if known.tier == draft.tier:
        hint = (
            f"To revise it: `kernlore skills restore {name} --reason TEXT`, then import it again."
            f" {hint}"
        )
    return Conflict(f"{name} is already here as {known.tier} and {known.state}", hint=hint)
