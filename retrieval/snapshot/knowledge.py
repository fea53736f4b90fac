"""The part of a snapshot other than documents: hardware with facts, moves, skills and kernels of
runs. Plain data with look-ups, and the functions that read it from a catalog.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import sqlalchemy as sa
from sqlalchemy import Connection

from kb.catalog import facts as fact_rows
from kb.catalog import tables as t
from kb.catalog.facts import Fact
from kb.catalog.hardware import descriptions
from kb.catalog.jobs import WaitingDocument, waiting_documents
from kb.catalog.knowledge import moves as move_rows
from kb.catalog.knowledge import samples as sample_rows
from kb.catalog.knowledge.moves import AcceptedMove, StoredMove
from kb.catalog.knowledge.samples import RunSample
from kb.catalog.knowledge.validities import StoredValidities, stored_validities
from kb.catalog.meta import State
from kb.catalog.skills.evidence import MeasuredSkill, known_skills, present_toolchains
from kb.catalog.skills.reading import counters
from kb.hardware import lineage as lines
from kb.hardware.schema import parse_hardware
from kb.hardware.spec import HardwareSpec
from kb.problem_terms import canonical_dtype, canonical_op
from kb.scope import ALL_ACCESS, ANY, AccessScope, ScopeFilter


@dataclass(frozen=True)
class Chips:
    """The registered hardware that a caller may see, with accepted facts. `facts` are by hardware,
    those of one key by precedence; `hidden` are documents that the caller may not see."""

    specs: Mapping[str, HardwareSpec]
    facts: Mapping[str, Sequence[Fact]]
    hidden: frozenset[str] = frozenset()

    def all(self) -> Mapping[str, HardwareSpec]:
        """Every hardware by id."""
        return self.specs

    def resolve(self, name: str) -> str:
        """Resolve a name, alias or spelling to an id. Raises UnknownHardware, which names the
        nearest."""
        return lines.resolve(name, self.specs)

    def get(self, name: str) -> HardwareSpec:
        """The spec for a name, alias or spelling. Raises UnknownHardware."""
        return self.specs[self.resolve(name)]

    def lineage(self, hardware_id: str) -> tuple[str, ...]:
        """From the chip up to its vendor."""
        return lines.lineage(hardware_id, self.specs)

    def effective_facts(self, name: str) -> dict[str, Fact]:
        """The effective fact for each key, including inherited ones."""
        lineage = self.lineage(self.resolve(name))
        stated = {
            owner: [f for f in self.facts.get(owner, ()) if f.document_id not in self.hidden]
            for owner in lineage
        }
        return fact_rows.effective_facts(stated, lineage)


@dataclass(frozen=True)
class Knowledge:
    """`specs` and `facts` are as in `Chips`; `moves` are accepted ones by document and name;
    `kernels` are those that runs have verified; `skills` are sorted by name; `toolchains` are those
    in use by hardware and name. `document_hardware` has every document that names hardware;
    `waiting` are documents that have never been read, `validities` say with which versions of tools
    documents, sections, signatures and skills hold."""

    specs: Mapping[str, HardwareSpec] = field(default_factory=dict)
    facts: Mapping[str, Sequence[Fact]] = field(default_factory=dict)
    moves: Sequence[AcceptedMove] = ()
    kernels: Sequence[RunSample] = ()
    skills: Sequence[MeasuredSkill] = ()
    toolchains: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    document_hardware: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    waiting: Sequence[WaitingDocument] = ()
    validities: StoredValidities = field(default_factory=StoredValidities)

    # -- hardware

    def chips(self, access: AccessScope = ALL_ACCESS) -> Chips:
        """The hardware that a caller may see."""
        if access.hardware is None:
            return Chips(self.specs, self.facts)
        specs = {name: spec for name, spec in self.specs.items() if name in access.hardware}
        return Chips(specs, self.facts, self._hidden(access))

    def _hidden(self, access: AccessScope) -> frozenset[str]:
        """Documents that a restricted caller may not see."""
        about = self.document_hardware.items()
        return frozenset(document for document, chips in about if not access.sees(chips))

    @cached_property
    def shared_languages(self) -> tuple[str, ...]:
        """Languages in descriptions of chips of more than one vendor, sorted."""
        vendors: dict[str, set[str]] = {}
        for spec in self.specs.values():
            for language in spec.languages if spec.vendor else ():
                vendors.setdefault(language, set()).add(spec.vendor.lower())
        return tuple(sorted(name for name, known in vendors.items() if len(known) > 1))

    def waiting_for(self, scope: ScopeFilter) -> list[WaitingDocument]:
        """Documents in the scope that have never been read, by title."""
        access, places = scope.access_scope, scope.hardware
        return [
            document
            for document in self.waiting
            if document.owner == access.owner
            and access.sees(document.hardware)
            and (places is None or not document.hardware or {*places} & {*document.hardware})
        ]

    # -- moves

    def fitting_moves(self, signals: Sequence[str], scope: ScopeFilter) -> list[StoredMove]:
        """Moves in the scope that are about any of the signals, or about none; by document and
        name."""
        places = frozenset(scope.hardware or ())
        access = scope.access_scope
        hidden = self._hidden(access) if access.restricted else frozenset[str]()
        by_signal = self._moves_by_signal
        about = sorted({n for signal in {"", *signals} for n in by_signal.get(signal, ())})
        return [
            move
            for move in (self.moves[n].move for n in about if self.moves[n].owner == access.owner)
            if move.document_id not in hidden
            and not (move.hardware and places.isdisjoint(move.hardware))
            and scope.admits_languages(move.languages)
        ]

    @cached_property
    def _moves_by_signal(self) -> dict[str, list[int]]:
        """Places of moves by signal; those about none under the empty name."""
        places: dict[str, list[int]] = {}
        for place, row in enumerate(self.moves):
            for signal in row.move.signals or ("",):
                places.setdefault(signal, []).append(place)
        return places

    def sections_of_moves(self, move_ids: Collection[str]) -> frozenset[str]:
        ids = set(move_ids)
        return frozenset(
            row.section_id for row in self.moves if row.section_id and row.move.id in ids
        )

    # -- skills

    def seen_skills(self, states: Collection[str], access: AccessScope) -> list[MeasuredSkill]:
        """Skills in these states that a caller may see, sorted by name."""
        return [
            skill
            for skill in self.skills
            if skill.head.state in states
            and skill.owner == access.owner
            and access.sees(skill.head.scopes.hardware)
        ]

    def fitting_skills(
        self,
        signals: Sequence[str],
        hardware_scopes: Sequence[str] | None,
        op: str | None,
        languages: Sequence[str] | None,
        dtype: str | None,
        states: Collection[str],
        access: AccessScope = ALL_ACCESS,
        *,
        begins: bool = False,
    ) -> list[MeasuredSkill]:
        """Skills that may apply, sorted by name: each scope that they state admits the request.
        Without `signals`, skills of any signal. `hardware_scopes` is the lineage; None admits every
        chip. Unspecified parts of the request (op, languages, dtype None) exclude nothing. With
        `begins`, only skills that name the operator and have a recipe, with which a search begins.
        """
        requested = {
            "signals": set(signals) or None,
            "hardware": None if hardware_scopes is None else {*hardware_scopes, ANY},
            "ops": {canonical_op(op)} if op else None,
            "languages": None if languages is None else set(languages),
            "dtypes": {canonical_dtype(dtype)} if dtype else None,
        }
        narrowing = {kind: values for kind, values in requested.items() if values is not None}
        named = canonical_op(op or "")

        def admits(skill: MeasuredSkill) -> bool:
            if begins and not (skill.recipe and named in skill.head.scopes.ops):
                return False
            scopes = ((getattr(skill.head.scopes, kind), v) for kind, v in narrowing.items())
            return all(not own or not values.isdisjoint(own) for own, values in scopes)

        return [skill for skill in self.seen_skills(states, access) if admits(skill)]


# -- from a catalog


class Descriptions:
    """Parsed descriptions of hardware, cached while they do not change."""

    def __init__(self) -> None:
        self._parsed: dict[str, tuple[str, HardwareSpec]] = {}

    def specs(self, connection: Connection) -> dict[str, HardwareSpec]:
        """Every registered hardware, by id."""
        texts = descriptions(connection)
        for identity, text in texts.items():
            known = self._parsed.get(identity)
            if known is None or known[0] != text:
                self._parsed[identity] = (text, parse_hardware(text, identity))
        return {identity: self._parsed[identity][1] for identity in texts}


def read_knowledge(
    connection: Connection,
    parsed: Descriptions,
    last: Knowledge | None = None,
    since: State | None = None,
    state: State | None = None,
) -> Knowledge:
    """The knowledge that a transaction sees at `state`. Parts that have not changed since the
    `last` knowledge, read at `since`, are taken from it."""
    if last is not None and since is not None and state is not None:
        if since.waiting != state.waiting:
            last = replace(last, waiting=tuple(waiting_documents(connection)))
        only_skills = since.revision - since.skills == state.revision - state.skills
        if only_skills and since.skills == state.skills:
            return _with_counters(connection, last)
        if only_skills:
            skills = tuple(known_skills(connection))
            toolchains = present_toolchains(connection)
            return replace(last, skills=skills, toolchains=toolchains)
    return Knowledge(
        specs=parsed.specs(connection),
        facts=fact_rows.accepted_facts(connection),
        moves=tuple(move_rows.accepted(connection)),
        kernels=tuple(sample_rows.of_runs(connection)),
        skills=tuple(known_skills(connection)),
        toolchains=present_toolchains(connection),
        document_hardware=_document_hardware(connection),
        waiting=tuple(waiting_documents(connection)),
        validities=stored_validities(connection),
    )


def _with_counters(connection: Connection, last: Knowledge) -> Knowledge:
    """The same knowledge with the current use counts of skills."""
    now = counters(connection)
    skills = []
    for skill in last.skills:
        trials, wins = now.get(skill.head.id, (skill.head.trials, skill.head.wins))
        if (trials, wins) != (skill.head.trials, skill.head.wins):
            skill = replace(skill, head=replace(skill.head, trials=trials, wins=wins))
        skills.append(skill)
    return replace(last, skills=tuple(skills))


def _document_hardware(connection: Connection) -> dict[str, tuple[str, ...]]:
    about: dict[str, tuple[str, ...]] = {}
    rows = connection.execute(
        sa.select(t.document_scopes.c.document_id, t.document_scopes.c.value)
        .where(t.document_scopes.c.kind == "hardware")
        .order_by(t.document_scopes.c.value)
    )
    for document_id, value in rows:
        about[document_id] = (*about.get(document_id, ()), value)
    return about
