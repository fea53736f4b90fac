"""The hardware registry in the catalog: specs, lineage, and facts with their sources.

A spec (hardware.toml or POST /hardware) is stored as text, and its facts are rows beside the facts
proposed from documents and those that a person entered. For each key the valid fact is a person's,
then the spec's own, then an accepted proposal; a chip without the key inherits it from above.
Proposed facts are not valid until somebody accepts them."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy import Connection

from kb import clock
from kb.catalog import meta, read_facts, visible
from kb.catalog.engine import Catalog
from kb.catalog.hardware_removal import REMOVED, count_change
from kb.catalog.kept import look_up
from kb.catalog.read_facts import Outdated
from kb.catalog.tables.hardware import facts, hardware
from kb.errors import Forbidden, InvalidKnowledge, InvalidRequest, NotFound, UnknownHardware
from kb.hardware import lineage as lines
from kb.hardware.schema import parse_hardware
from kb.hardware.spec import FactSpec, HardwareSpec
from kb.hardware.writer import dump_hardware
from kb.ids import derived_id
from kb.plain import plain
from kb.scope import ALL_ACCESS, ANY, AccessScope

PutOutcome = Literal["created", "updated", "unchanged"]
FactStatus = Literal["accepted", "proposed", "rejected"]
# A table is checked cell by cell; a sentence may have a context that no rule sees.
_ORIGIN_RANK = {"person": 0, "spec": 1, "table": 2, "sentence": 3}
_KIND_RANK = {"datasheet": 0, "measured": 1, "derived": 2}
_RESERVED = {
    ANY: "means no hardware in particular",
    "builtin": "begins the source keys of built-in documents",
}


@dataclass(frozen=True)
class Fact:
    """`number` is in `unit`; `text` is the value as its source writes it. `hardware_id` is the
    owner.

    `subject` is what names the subject of a value that was read from a document, `subject_kind`
    whether that is the owner itself, a family above it, or not clear; None where nobody looked.
    """

    id: str
    hardware_id: str
    key: str
    number: float | None
    text: str
    unit: str
    kind: str
    status: str
    origin: str
    title: str
    publisher: str
    locator: str
    url: str | None
    date: str | None
    note: str | None
    formula: str | None
    subject: str | None
    document_id: str | None
    version_id: str | None
    page_index: int | None
    page_label: str | None
    cell: Mapping[str, Any] | None
    actor: str | None
    subject_kind: str | None = None

    @property
    def holds_for_owner(self) -> bool:
        """False where the value is about a variant ("PCIe") or its subject is not clear."""
        known = self.subject_kind in ("chip", "family")
        return known or not self.subject or self.origin == "person"

    @property
    def value(self) -> float | str:
        """The number in `unit`, or the text of a fact that has none."""
        return self.number if self.number is not None else self.text


_FACT_COLUMNS = [facts.c[name] for name in Fact.__dataclass_fields__]


class HardwareRegistry:
    """Look-ups are cached until a spec changes; every method fails closed on unknown ids.

    What a caller may not see is not there: it is refused in the words for an unknown id, and is
    among no nearest names.
    """

    def __init__(self, catalog: Catalog, access: AccessScope = ALL_ACCESS) -> None:
        self._catalog = catalog
        self._access = access
        self._whole = self
        self._lock = threading.Lock()  # protects _cached and _version
        self._cached: tuple[int, dict[str, HardwareSpec]] | None = None
        self._version: Hashable = None  # the catalog's, at which _cached held
        self._parsed: dict[str, tuple[str, HardwareSpec]] = {}  # by id: the text, and what it says

    def seen_by(self, access: AccessScope) -> HardwareRegistry:
        """The same registry as this caller may see and change it."""
        if not access.restricted:
            return self
        seen = HardwareRegistry(self._catalog, access)
        seen._whole = self._whole
        return seen

    # -- specs and lineage

    def all(self) -> dict[str, HardwareSpec]:
        """Every registered hardware by id."""
        visible_ids = self._access.hardware
        if visible_ids is not None:
            return {key: spec for key, spec in self._whole.all().items() if key in visible_ids}
        version = self._catalog.version()  # first: what is read below is not older
        with self._lock:
            if self._cached is not None and self._version == version:
                return self._cached[1]
        with self._catalog.read() as connection:
            state = int(meta.get(connection, "hardware_revision") or 0)
            with self._lock:
                if self._cached is not None and self._cached[0] == state:
                    self._version = version
                    return self._cached[1]
            rows = connection.execute(
                sa.select(hardware.c.id, hardware.c.spec)
                .where(hardware.c.origin != REMOVED)
                .order_by(hardware.c.id)
            )
            specs = {row.id: self._spec(row.id, row.spec) for row in rows}
        with self._lock:
            self._cached, self._version = (state, specs), version
        return specs

    def _spec(self, hardware_id: str, text: str) -> HardwareSpec:
        """What the text says; one that was read before is not read again."""
        known = self._parsed.get(hardware_id)
        if known is None or known[0] != text:
            known = self._parsed[hardware_id] = (text, parse_hardware(text, hardware_id))
        return known[1]

    def resolve(self, name: str) -> str:
        """The id that a name, alias or spelling means; UnknownHardware names the nearest."""
        return lines.resolve(name, self.all())

    def get(self, name: str) -> HardwareSpec:
        """The spec that a name, alias or spelling means. Raises UnknownHardware."""
        return self.all()[self.resolve(name)]

    def lineage(self, hardware_id: str) -> tuple[str, ...]:
        """From the chip up to its vendor."""
        return lines.lineage(hardware_id, self.all())

    def lineage_or_id(self, hardware_id: str) -> tuple[str, ...]:
        """The lineage; of hardware that was removed, which runs may still name, its id alone."""
        return self.lineage(hardware_id) if hardware_id in self.all() else (hardware_id,)

    def scopes(self, hardware_id: str) -> tuple[str, ...]:
        """What a request for this hardware may see: its lineage and what is about no hardware."""
        return (*self.lineage(hardware_id), ANY)

    def put(self, spec: HardwareSpec, origin: str) -> PutOutcome:
        """Register or replace a spec. Its own facts are replaced; other facts stay."""
        self.check_change(spec)
        known = dict(self._whole.all())
        if known.get(spec.id) == spec:  # as with each start: no lock is taken
            return "unchanged"
        text = dump_hardware(spec)
        before = known.get(spec.id)
        known[spec.id] = spec
        self._check(spec, known, origin)
        with self._catalog.write() as connection:
            row = connection.execute(
                sa.select(hardware.c.spec, hardware.c.origin).where(hardware.c.id == spec.id)
            ).one_or_none()
            stored = None if row is None or row.origin == REMOVED else row.spec
            if stored is not None and (stored == text or self._spec(spec.id, stored) == spec):
                return "unchanged"
            values = _hardware_values(spec, text, origin)
            if stored is None:
                values["created_at"] = clock.now()
            if row is None:
                connection.execute(hardware.insert().values(**values))
            else:
                connection.execute(
                    hardware.update().where(hardware.c.id == spec.id).values(**values)
                )
            _replace_spec_facts(connection, spec)
            count_change(connection)
        return "created" if before is None else "updated"

    def check_change(self, spec: HardwareSpec) -> None:
        """Raise unless this caller may register the spec. One that is restricted may neither move
        its chip below another, whose knowledge it would see then, nor state commands: they run on
        this machine.
        """
        if not self._access.restricted:
            return
        self._access.check_change([spec.id], f"the hardware {spec.id}")
        known = self.all()
        if spec.parent is not None and spec.parent not in known:
            raise UnknownHardware(spec.parent, known)
        stored = known.get(spec.id)
        if spec.toolchains and (stored is None or stored.toolchains != spec.toolchains):
            raise Forbidden(
                "a key for some hardware alone may not state toolchains",
                hint="Their commands run on the machine of the service, where they could read"
                " everything. Let somebody register them whose key is not restricted.",
            )

    def check_removal(self, hardware_id: str) -> None:
        """Raise Forbidden unless this caller may remove it, with what others see of it."""
        if self._access.restricted:
            raise Forbidden(
                f"{hardware_id} may not be removed with a key for some hardware alone",
                hint="Let somebody do it whose key is not restricted.",
            )

    @staticmethod
    def _check(spec: HardwareSpec, known: Mapping[str, HardwareSpec], origin: str) -> None:
        if spec.id in _RESERVED:
            raise InvalidKnowledge(
                f"the id `{spec.id}` {_RESERVED[spec.id]}", hint="Choose another id."
            )
        if spec.parent is not None and spec.parent not in known:
            raise UnknownHardware(spec.parent, known)
        if origin == "builtin":
            # What users registered meanwhile keeps its names: a clash must not stop the start.
            lines.lineage(spec.id, known)
            return
        # A new id may be what another chip is called too (the id wins); a new alias may not take
        # an id away.
        ids = {lines.plain(other): other for other in known if other != spec.id}
        clashing = [alias for alias in spec.aliases if lines.plain(alias) in ids]
        problems = lines.registry_problems(known)
        problems += [f"the alias {a} is the id of {ids[lines.plain(a)]}" for a in clashing]
        if problems:
            raise InvalidKnowledge(
                f"{spec.id} does not fit the registered hardware: {problems[0]}",
                hint="Change its parent or aliases.",
                details={"problems": problems},
            )

    # -- facts

    def facts(self, name: str, *, status: FactStatus | None = None) -> list[Fact]:
        """All facts stated for exactly this hardware, by key."""
        hardware_id = self.resolve(name)
        query = sa.select(*_FACT_COLUMNS).where(
            facts.c.hardware_id == hardware_id, visible.facts(self._access)
        )
        if status is not None:
            query = query.where(facts.c.status == status)
        with self._catalog.read() as connection:
            rows = connection.execute(query.order_by(facts.c.key, facts.c.origin, facts.c.id))
            return [Fact(**row._mapping) for row in rows]

    def all_facts(self) -> dict[str, list[Fact]]:
        """All facts stated for exactly each hardware that has any, by its id, then by key."""
        query = sa.select(*_FACT_COLUMNS).where(visible.facts(self._access))
        stated: dict[str, list[Fact]] = {}
        with self._catalog.read() as connection:
            rows = connection.execute(query.order_by(facts.c.key, facts.c.origin, facts.c.id))
            for row in rows:
                stated.setdefault(row.hardware_id, []).append(Fact(**row._mapping))
        return stated

    def lineages(self) -> dict[str, tuple[str, ...]]:
        """Of every registered hardware, from the chip up to its vendor."""
        specs = self.all()
        return {hardware_id: lines.lineage(hardware_id, specs) for hardware_id in specs}

    def effective_facts(self, name: str) -> dict[str, Fact]:
        """The fact that holds for each key, inherited ones included; by key."""
        owners = self.lineage(self.resolve(name))
        with self._catalog.read() as connection:
            stated = self._accepted(connection)
        effective: dict[str, Fact] = {}
        for owner in owners:
            own: dict[str, Fact] = {}
            for fact in stated.get(owner, ()):
                if fact.holds_for_owner:
                    own.setdefault(fact.key, fact)
            effective = {**own, **effective}
        return dict(sorted(effective.items()))

    def _accepted(self, connection: Connection) -> Mapping[str, Sequence[Fact]]:
        """The accepted facts of each hardware, of one key the one that holds first. Read once a
        revision: of all hardware they take hardly longer than of one.
        """

        def read(scopes: Sequence[AccessScope]) -> dict[AccessScope, dict[str, list[Fact]]]:
            accepted = sa.select(*_FACT_COLUMNS).where(
                facts.c.status == "accepted", visible.facts(self._access)
            )
            stated: dict[str, list[Fact]] = {}
            for row in connection.execute(accepted):
                stated.setdefault(row.hardware_id, []).append(Fact(**row._mapping))
            for own in stated.values():
                own.sort(
                    key=lambda f: (_ORIGIN_RANK.get(f.origin, 9), _KIND_RANK.get(f.kind, 9), f.id)
                )
            return dict.fromkeys(scopes, stated)

        return look_up(connection, "accepted facts", [self._access], read, skills=False)[
            self._access
        ]

    def values(self, name: str) -> dict[str, float | str]:
        """Fact values by key, for predicates."""
        return {key: fact.value for key, fact in self.effective_facts(name).items()}

    def values_if_known(self, hardware_id: str) -> dict[str, float | str]:
        """The same; none for hardware that was removed, which runs may still name."""
        return self.values(hardware_id) if hardware_id in self.all() else {}

    def propose(self, connection: Connection, proposals: Sequence[Fact]) -> int:
        """Add facts read from a document, in its transaction; what a person decided before stays
        decided.
        """
        names = Fact.__dataclass_fields__
        rows = [{name: getattr(proposal, name) for name in names} for proposal in proposals]
        return read_facts.add(connection, rows)

    def outdated(self, name: str) -> list[Outdated]:
        """The accepted facts of exactly this hardware that stand on a replaced version of their
        document.
        """
        with self._catalog.read() as connection:
            hardware_id = self.resolve(name)
            return read_facts.outdated(connection, hardware_id=hardware_id, access=self._access)

    def all_outdated(self) -> list[Outdated]:
        """Those of every hardware."""
        with self._catalog.read() as connection:
            return read_facts.outdated(connection, access=self._access)

    def set_status(self, fact_ids: Sequence[str], status: FactStatus, actor: str) -> list[Fact]:
        """Decide about many facts at once, all of them or, where an id is unknown, none. Raises
        NotFound.
        """
        wanted = list(dict.fromkeys(fact_ids))
        with self._catalog.write() as connection:
            self._check_facts(connection, wanted)
            changed = [
                connection.execute(
                    facts.update().where(facts.c.id == fact_id).values(status=status, actor=actor)
                ).rowcount
                for fact_id in wanted
            ]
            unknown = [i for i, count in zip(wanted, changed, strict=True) if count != 1]
            if unknown:
                raise _no_fact(unknown[0])
            if status == "accepted":
                read_facts.replace_outdated(connection, wanted)
            meta.bump_revision(connection)
            rows = [
                connection.execute(sa.select(*_FACT_COLUMNS).where(facts.c.id == fact_id)).one()
                for fact_id in wanted
            ]
            return [Fact(**row._mapping) for row in rows]

    def patch_fact(
        self,
        fact_id: str,
        *,
        status: FactStatus | None = None,
        number: float | None = None,
        text: str | None = None,
        note: str | None = None,
        withdraw: bool = False,
        actor: str,
    ) -> Fact:
        """Accept, reject or correct a fact. A corrected value is a person's and accepted;
        `withdraw` takes the correction back: value and status are as before it.
        """
        changes: dict[str, Any] = {"actor": actor}
        if status is not None:
            changes["status"] = status
        if number is not None or text is not None:
            changes |= {"number": number, "origin": "person", "status": status or "accepted"}
            changes["text"] = text if text is not None else str(number)
        if withdraw and len(changes) > 1:
            raise InvalidRequest("withdraw and a change", hint="Give one of them.")
        if note is not None:
            changes["note"] = note
        if len(changes) == 1 and not withdraw:
            raise InvalidRequest(
                "nothing to change",
                hint="Give status (accepted, rejected), number, text, note or withdraw.",
            )
        with self._catalog.write() as connection:
            self._check_facts(connection, [fact_id])
            if withdraw:
                changes |= read_facts.as_read(connection, fact_id)
            elif "origin" in changes:
                changes |= read_facts.keeping_what_was_read(connection, fact_id)
            changed = connection.execute(
                facts.update().where(facts.c.id == fact_id).values(**changes)
            )
            if changed.rowcount != 1:
                raise _no_fact(fact_id)
            if changes.get("status") == "accepted":
                read_facts.replace_outdated(connection, [fact_id])
            meta.bump_revision(connection)
            row = connection.execute(sa.select(*_FACT_COLUMNS).where(facts.c.id == fact_id)).one()
            return Fact(**row._mapping)

    def _check_facts(self, connection: Connection, fact_ids: Sequence[str]) -> None:
        """Raise NotFound for a fact that the caller may not see, Forbidden for one that it may not
        change.
        """
        if not self._access.restricted:
            return
        for fact_id in fact_ids:
            owner = connection.execute(
                sa.select(facts.c.hardware_id).where(
                    facts.c.id == fact_id, visible.facts(self._access)
                )
            ).scalar()
            if owner is None:
                raise _no_fact(fact_id)
            self._access.check_change([owner], f"the fact {fact_id}")


def _no_fact(fact_id: str) -> NotFound:
    return NotFound(f"no fact {fact_id!r}", hint="GET /hardware/{id}/facts lists them with ids.")


def _hardware_values(spec: HardwareSpec, text: str, origin: str) -> dict[str, Any]:
    return {
        "id": spec.id,
        "name": spec.name,
        "vendor": spec.vendor,
        "parent_id": spec.parent,
        "kind": spec.kind,
        "summary": spec.summary,
        "aliases": list(spec.aliases),
        "languages": list(spec.languages),
        "signatures": [vars(signature) for signature in spec.signatures],
        "toolchains": plain(spec.toolchains),
        "spec": text,
        "origin": origin,
        "updated_at": clock.now(),
    }


def _replace_spec_facts(connection: Connection, spec: HardwareSpec) -> None:
    connection.execute(
        facts.delete().where(facts.c.hardware_id == spec.id, facts.c.origin == "spec")
    )
    mine = sa.select(facts.c.id).where(facts.c.hardware_id == spec.id)
    corrected = set(connection.execute(mine).scalars())  # by a person, whose value holds
    stated = (_fact_row(spec.id, number, fact) for number, fact in enumerate(spec.facts))
    rows = [row for row in stated if row["id"] not in corrected]
    if rows:
        connection.execute(facts.insert(), rows)


def _fact_row(hardware_id: str, number: int, fact: FactSpec) -> dict[str, Any]:
    values = {key: value or None for key, value in vars(fact).items() if key != "value"}
    return {
        **values,
        "unit": fact.unit,
        "title": fact.title,
        "publisher": fact.publisher,
        "locator": fact.locator,
        "id": derived_id("fact", hardware_id, "spec", number, fact.key, fact.value),
        "hardware_id": hardware_id,
        "number": None if isinstance(fact.value, str) else float(fact.value),
        "text": str(fact.value),
        "status": "accepted",
        "origin": "spec",
        "created_at": clock.now(),
    }
