"""The part of a snapshot that is no text of documents: hardware with facts, moves, skills and
verified kernels. Plain data, and look-ups in it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from kb.catalog.hardware import Fact
from kb.catalog.knowledge.moves import StoredMove
from kb.catalog.knowledge.samples import Sample
from kb.catalog.skills import EvidenceRow, SkillHead
from kb.hardware import lineage as lines
from kb.hardware.spec import HardwareSpec
from kb.problem_terms import canonical_dtype, canonical_op
from kb.scope import ALL_ACCESS, ANY, AccessScope, ScopeFilter


@dataclass(frozen=True)
class KnownSkill:
    """A skill as it is chosen. `error` are the fixed words of the error that a debugging skill is
    about, `tested` its trials with and without it and how many of them bear it out; `evidence` is
    without details.
    """

    head: SkillHead
    owner: str
    recipe: bool
    error: str | None
    tested: tuple[int, int]
    evidence: tuple[EvidenceRow, ...]


@dataclass(frozen=True)
class Chips:
    """The registered hardware that a caller may see, with accepted facts. `facts` are by hardware,
    those of one key in the order in which they hold; `hidden` are documents that it may not see.
    """

    specs: Mapping[str, HardwareSpec]
    facts: Mapping[str, Sequence[Fact]]
    access: AccessScope = ALL_ACCESS
    hidden: frozenset[str] = frozenset()

    def all(self) -> Mapping[str, HardwareSpec]:
        """Every hardware by id."""
        return self.specs

    def resolve(self, name: str) -> str:
        """The id that a name, alias or spelling means; UnknownHardware names the nearest."""
        return lines.resolve(name, self.specs)

    def get(self, name: str) -> HardwareSpec:
        """The spec that a name, alias or spelling means. Raises UnknownHardware."""
        return self.specs[self.resolve(name)]

    def lineage(self, hardware_id: str) -> tuple[str, ...]:
        """From the chip up to its vendor."""
        return lines.lineage(hardware_id, self.specs)

    def effective_facts(self, name: str) -> dict[str, Fact]:
        """The fact that holds for each key, inherited ones included; by key."""
        effective: dict[str, Fact] = {}
        for owner in self.lineage(self.resolve(name)):
            own: dict[str, Fact] = {}
            for fact in self.facts.get(owner, ()):
                if fact.holds_for_owner and fact.document_id not in self.hidden:
                    own.setdefault(fact.key, fact)
            effective = {**own, **effective}
        return dict(sorted(effective.items()))


@dataclass(frozen=True)
class Knowledge:
    """`specs`, `facts` as `Chips` has them; `moves` are accepted ones by document and name;
    `move_sections` are the sections that they rest on; `verified` are kernels that runs have found
    right; `toolchains` are those in use by hardware and name; `owners` are of moves by id.
    """

    specs: Mapping[str, HardwareSpec] = field(default_factory=dict)
    facts: Mapping[str, Sequence[Fact]] = field(default_factory=dict)
    moves: Sequence[StoredMove] = ()
    move_sections: Mapping[str, str] = field(default_factory=dict)
    owners: Mapping[str, str] = field(default_factory=dict)
    verified: Sequence[Sample] = ()
    skills: Sequence[KnownSkill] = ()
    toolchains: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    # Hardware of every document, those in no answer too: whose facts a restricted caller may see.
    document_hardware: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    # -- hardware

    def chips(self, access: AccessScope = ALL_ACCESS) -> Chips:
        """The hardware that a caller may see."""
        if access.hardware is None:
            return self._chips
        visible = access.hardware
        specs = {name: spec for name, spec in self.specs.items() if name in visible}
        facts = {name: own for name, own in self.facts.items() if name in visible}
        return Chips(specs, facts, access, self._hidden(access))

    @cached_property
    def _chips(self) -> Chips:
        return Chips(self.specs, self.facts)

    def _hidden(self, access: AccessScope) -> frozenset[str]:
        return frozenset(
            document
            for document, hardware in self.document_hardware.items()
            if not access.sees(hardware)
        )

    @cached_property
    def shared_languages(self) -> tuple[str, ...]:
        """Languages that chips of more than one vendor are described with, sorted."""
        vendors: dict[str, set[str]] = {}
        for spec in self.specs.values():
            for language in spec.languages if spec.vendor else ():
                vendors.setdefault(language, set()).add(spec.vendor.lower())
        return tuple(sorted(name for name, known in vendors.items() if len(known) > 1))

    # -- moves

    def fitting_moves(self, signals: Sequence[str], scope: ScopeFilter) -> list[StoredMove]:
        """Moves within the scope that are about any of the signals, or about none; by document and
        name.
        """
        wanted, places = set(signals), frozenset(scope.hardware or ())
        access = scope.access_scope
        hidden = self._hidden(access) if access.restricted else frozenset[str]()
        return [
            move
            for move in self.moves
            if self.owners.get(move.id, access.owner) == access.owner
            and move.document_id not in hidden
            and not (move.signals and wanted.isdisjoint(move.signals))
            and not (move.hardware and places.isdisjoint(move.hardware))
            and scope.speaks(move.languages)
        ]

    def sections_of_moves(self, move_ids: Collection[str]) -> set[str]:
        """The sections that these moves rest on."""
        return {self.move_sections[i] for i in move_ids if i in self.move_sections}

    # -- skills

    def candidate_skills(
        self,
        signals: Sequence[str],
        hardware_scopes: Sequence[str] | None,
        op: str | None,
        languages: Sequence[str] | None,
        dtype: str | None,
        states: Sequence[str],
        access: AccessScope = ALL_ACCESS,
        *,
        begins: bool = False,
    ) -> list[KnownSkill]:
        """Skills that may apply, sorted by name: each scope that they state admits the request.

        Without `signals`, skills of any signal. `hardware_scopes` is the lineage; None admits every
        chip. What the request leaves open (op, languages, dtype None) excludes nothing. With
        `begins`, only skills that name the operator and have a recipe, which a search begins with.
        """
        wanted = {
            "signals": list(signals) or None,
            "hardware": None if hardware_scopes is None else [*hardware_scopes, ANY],
            "ops": [canonical_op(op)] if op else None,
            "languages": languages,
            "dtypes": [canonical_dtype(dtype)] if dtype else None,
        }
        chosen = [
            skill
            for skill in self.seen_skills(states, access)
            if all(
                values is None or not (own := getattr(skill.head.scopes, kind)) or set(own) & set(values)
                for kind, values in wanted.items()
            )
        ]
        if begins:
            named = canonical_op(op or "")
            chosen = [s for s in chosen if s.recipe and named in s.head.scopes.ops]
        return chosen

    def error_words(self, states: Sequence[str], access: AccessScope = ALL_ACCESS) -> dict[str, str]:
        """The fixed words of the error that each debugging skill is about, by the skill's name."""
        return {
            skill.head.name: skill.error
            for skill in self.seen_skills(states, access)
            if skill.error is not None
        }

    def seen_skills(self, states: Sequence[str], access: AccessScope) -> list[KnownSkill]:
        """Skills in these states that a caller may see, sorted by name."""
        return [
            skill
            for skill in self.skills
            if skill.head.state in states
            and skill.owner == access.owner
            and access.sees(skill.head.scopes.hardware)
        ]
