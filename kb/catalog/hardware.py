"""The hardware registry in the catalog: specs, lineage, and facts with their sources.

A spec (hardware.toml or POST /hardware) is stored as text, and its facts are rows beside the facts
proposed from documents and those that a person entered. For each key the valid fact is a person's,
then the spec's own, then an accepted proposal; a chip without the key inherits it from above.
Proposed facts are not valid until somebody accepts them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy import Connection

from kb import clock
from kb.catalog import meta, visible
from kb.catalog import tables as t
from kb.catalog.engine import Catalog
from kb.catalog.facts import (
    _FACT_COLUMNS,
    Fact,
    FactStatus,
    Outdated,
    add,
    as_read,
    keeping_what_was_read,
    outdated,
    replace_outdated,
)
from kb.catalog.kept import look_up
from kb.catalog.knowledge.documents import owe_erasure
from kb.catalog.tables import api_keys, facts, hardware
from kb.errors import Forbidden, InvalidKnowledge, InvalidRequest, NotFound, UnknownHardware
from kb.hardware import lineage as lines
from kb.hardware.schema import dump_hardware, parse_hardware
from kb.hardware.spec import FactSpec, HardwareSpec
from kb.ids import derived_id
from kb.plain import plain
from kb.scope import ALL_ACCESS, ANY, AccessScope

PutOutcome = Literal["created", "updated", "unchanged"]
# A table is checked cell by cell; a sentence may have a context that no rule sees.
_ORIGIN_RANK = {"person": 0, "spec": 1, "table": 2, "sentence": 3}
_KIND_RANK = {"datasheet": 0, "measured": 1, "derived": 2}
_RESERVED = {
    ANY: "means no hardware in particular",
    "builtin": "begins the source keys of built-in documents",
}


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
        return add(connection, rows)

    def outdated(self, name: str) -> list[Outdated]:
        """The accepted facts of exactly this hardware that stand on a replaced version of their
        document.
        """
        with self._catalog.read() as connection:
            hardware_id = self.resolve(name)
            return outdated(connection, hardware_id=hardware_id, access=self._access)

    def all_outdated(self) -> list[Outdated]:
        """Those of every hardware."""
        with self._catalog.read() as connection:
            return outdated(connection, access=self._access)

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
                replace_outdated(connection, wanted)
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
                changes |= as_read(connection, fact_id)
            elif "origin" in changes:
                changes |= keeping_what_was_read(connection, fact_id)
            changed = connection.execute(
                facts.update().where(facts.c.id == fact_id).values(**changes)
            )
            if changed.rowcount != 1:
                raise _no_fact(fact_id)
            if changes.get("status") == "accepted":
                replace_outdated(connection, [fact_id])
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


# -- hardware removal: What stands on a chip in the catalog, and taking the chip out of it.

REMOVED = "removed"  # the origin of an emptied row
_IN_USE = ("active", "suspect")


@dataclass(frozen=True)
class Use:
    """What stands on a chip, by id or name. `documents` are about it alone, `shared` about other
    chips too; `reading` are of either, and in work; `skills` are in use and hold for it alone;
    `keys` are valid and restricted to it; `runs` have not ended.
    """

    children: tuple[str, ...]
    documents: tuple[str, ...]
    shared: tuple[str, ...]
    reading: tuple[str, ...]
    skills: tuple[str, ...]
    keys: tuple[str, ...]
    runs: tuple[str, ...]


@dataclass(frozen=True)
class Removed:
    """How many facts went with a chip, how many of these a person had entered or accepted, and how
    many runs on it stay.
    """

    facts: int
    decided: int
    runs: int


def use_of(connection: Connection, hardware_id: str) -> Use:
    """What stands on this chip."""
    about = _documents(connection, hardware_id)
    children = sa.select(hardware.c.id).where(
        hardware.c.parent_id == hardware_id, hardware.c.origin != REMOVED
    )
    runs = t.runs
    running = sa.select(runs.c.id).where(
        runs.c.hardware_id == hardware_id, runs.c.finished_at.is_(None), runs.c.state == "running"
    )
    return Use(
        tuple(connection.execute(children.order_by(hardware.c.id)).scalars()),
        tuple(sorted(document for document, alone in about.items() if alone)),
        tuple(sorted(document for document, alone in about.items() if not alone)),
        tuple(_in_work(connection, hardware_id, about)),
        tuple(_skills(connection, hardware_id)),
        tuple(_keys(connection, hardware_id)),
        tuple(connection.execute(running.order_by(runs.c.id)).scalars()),
    )


def remove(connection: Connection, hardware_id: str, shared: Sequence[str]) -> Removed:
    """Take the chip out of the catalog with its facts, and out of the scopes of the documents that
    are about other chips too.
    """
    for document_id in shared:
        _leave(connection, document_id, hardware_id)
    mine = facts.c.hardware_id == hardware_id
    # The description's own facts are nobody's decision.
    stated = connection.execute(
        sa.select(facts.c.origin, facts.c.status).where(mine, facts.c.origin != "spec")
    ).all()
    connection.execute(facts.delete().where(mine))
    connection.execute(
        hardware.update()
        .where(hardware.c.id == hardware_id)
        .values(
            name=hardware_id,
            vendor=None,
            parent_id=None,
            summary="",
            aliases=[],
            languages=[],
            signatures=[],
            toolchains={},
            spec="",
            origin=REMOVED,
            updated_at=clock.now(),
        )
    )
    count_change(connection)
    owe_erasure(connection, ())
    runs = connection.execute(
        sa.select(sa.func.count()).select_from(t.runs).where(t.runs.c.hardware_id == hardware_id)
    ).scalar_one()
    decided = sum(row.status == "accepted" or row.origin == "person" for row in stated)
    return Removed(len(stated), decided, runs)


def count_change(connection: Connection) -> None:
    """The registered hardware is another now: whoever remembers it reads it again."""
    revision = int(meta.get(connection, "hardware_revision") or 0)
    meta.put(connection, "hardware_revision", revision + 1)
    meta.bump_revision(connection)


def _documents(connection: Connection, hardware_id: str) -> dict[str, bool]:
    """The documents about the chip, also those of which only some version was declared to be;
    whether they are about it alone.
    """
    about: dict[str, set[str]] = {}
    scopes, versions = t.document_scopes, t.document_versions
    for document_id, value in connection.execute(
        sa.select(scopes.c.document_id, scopes.c.value).where(scopes.c.kind == "hardware")
    ):
        about.setdefault(document_id, set()).add(value)
    found = {
        document_id: len(chips) == 1 for document_id, chips in about.items() if hardware_id in chips
    }
    for document_id, declared in connection.execute(
        sa.select(versions.c.document_id, versions.c.declared)
    ):
        if hardware_id in (declared.get("hardware") or ()):
            found.setdefault(document_id, False)
    return found


def _in_work(connection: Connection, hardware_id: str, about: dict[str, bool]) -> list[str]:
    unfinished = sa.select(t.work.c.subject_id).where(t.work.c.state.in_(("queued", "running")))
    return sorted(about.keys() & set(connection.execute(unfinished).scalars()))


def _skills(connection: Connection, hardware_id: str) -> list[str]:
    scopes = t.skill_scopes
    rows = connection.execute(
        sa.select(t.skills.c.name, scopes.c.value)
        .join(scopes, scopes.c.skill_id == t.skills.c.id)
        .where(scopes.c.kind == "hardware", t.skills.c.state.in_(_IN_USE))
    ).all()
    chips = Counter(row.name for row in rows)
    return sorted(row.name for row in rows if row.value == hardware_id and chips[row.name] == 1)


def _keys(connection: Connection, hardware_id: str) -> list[str]:
    now = clock.now()
    rows = connection.execute(
        sa.select(api_keys.c.id, api_keys.c.hardware).where(
            api_keys.c.revoked_at.is_(None),
            sa.or_(api_keys.c.expires_at.is_(None), api_keys.c.expires_at > now),
        )
    )
    return sorted(row.id for row in rows if hardware_id in row.hardware)


def _leave(connection: Connection, document_id: str, hardware_id: str) -> None:
    """The document is no longer about the chip. What is about this chip alone stays so, a passage
    or a version: without a chip it would be about every one.
    """
    scopes, versions = t.document_scopes, t.document_versions
    connection.execute(
        scopes.delete().where(
            scopes.c.document_id == document_id,
            scopes.c.kind == "hardware",
            scopes.c.value == hardware_id,
        )
    )
    for row in connection.execute(
        sa.select(versions.c.id, versions.c.declared).where(versions.c.document_id == document_id)
    ).all():
        chips = [chip for chip in row.declared.get("hardware") or () if chip != hardware_id]
        if chips:
            connection.execute(
                versions.update()
                .where(versions.c.id == row.id)
                .values(declared={**row.declared, "hardware": chips})
            )
    about, other = t.passage_hardware, t.passage_hardware.alias()
    of_document = sa.select(t.passages.c.id).where(t.passages.c.document_id == document_id)
    elsewhere = sa.select(other.c.passage_id).where(other.c.hardware_id != hardware_id)
    connection.execute(
        about.delete().where(
            about.c.hardware_id == hardware_id,
            about.c.passage_id.in_(of_document),
            about.c.passage_id.in_(elsewhere),
        )
    )
