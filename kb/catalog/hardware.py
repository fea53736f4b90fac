"""The hardware registry in the catalog: specs, lineage, facts with their sources, and removal.

A spec (hardware.toml or POST /hardware) is stored as text. Its facts are rows, as are those that
documents propose and people enter (`kb.catalog.facts`). For each key the valid fact is a person's,
then the spec's own, then an accepted proposal; a chip without the key inherits it from above. An
undecided proposal is not valid.
"""

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
    Fact,
    FactStatus,
    Outdated,
    accepted_facts,
    effective_facts,
    note_value_read,
    outdated_facts,
    replace_outdated,
    rows_not_read,
    select_facts,
    value_read,
)
from kb.catalog.knowledge.documents import owe_erasure
from kb.catalog.tables import api_keys, facts, hardware
from kb.errors import Forbidden, InvalidKnowledge, InvalidRequest, NotFound, UnknownHardware
from kb.hardware import lineage as lines
from kb.hardware.facts import (
    MAX_TEXT,
    fact_keys,
    key_problem,
    stated_value,
    value_problem,
    value_with_unit,
)
from kb.hardware.schema import dump_hardware, parse_hardware
from kb.hardware.spec import FactSpec, HardwareSpec
from kb.ids import derived_id
from kb.plain import plain
from kb.scope import ALL_ACCESS, ANY, AccessScope

PutOutcome = Literal["created", "updated", "unchanged"]
REMOVED = "removed"  # the origin of the emptied row of removed hardware
_RESERVED = {
    ANY: "means no hardware in particular",
    "builtin": "begins the source keys of built-in documents",
}


class HardwareRegistry:
    """Look-ups are cached until a spec changes; every method fails closed on unknown ids.

    Hardware that a caller may not see raises the same error as an unknown id, and is never
    suggested as a nearest name.
    """

    def __init__(self, catalog: Catalog, access: AccessScope = ALL_ACCESS) -> None:
        self._catalog = catalog
        self._access = access
        self._whole = self
        self._lock = threading.Lock()  # protects _cached and _version
        self._cached: tuple[int, dict[str, HardwareSpec]] | None = None
        self._version: Hashable = None  # of the catalog when _cached was read
        self._parsed: dict[str, tuple[str, HardwareSpec]] = {}  # text and spec by id

    def seen_by(self, access: AccessScope) -> HardwareRegistry:
        """The registry restricted to the rows that a caller may see and change."""
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
        version = self._catalog.version()  # first: rows read below are not older
        with self._lock:
            if self._cached is not None and self._version == version:
                return self._cached[1]
        with self._catalog.read() as connection:
            state = int(meta.get(connection, "hardware_revision") or 0)
            with self._lock:
                if self._cached is not None and self._cached[0] == state:
                    self._version = version
                    return self._cached[1]
            texts = descriptions(connection)
            specs = {identity: self._spec(identity, text) for identity, text in texts.items()}
        with self._lock:
            self._cached, self._version = (state, specs), version
        return specs

    def _spec(self, hardware_id: str, text: str) -> HardwareSpec:
        """The parsed text; parsed once."""
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

    def lineages(self) -> dict[str, tuple[str, ...]]:
        """The lineage of every registered hardware."""
        specs = self.all()
        return {hardware_id: lines.lineage(hardware_id, specs) for hardware_id in specs}

    def lineage_or_id(self, hardware_id: str) -> tuple[str, ...]:
        """The lineage; of removed hardware, which runs may still name, its id alone."""
        return self.lineage(hardware_id) if hardware_id in self.all() else (hardware_id,)

    def scopes(self, hardware_id: str) -> tuple[str, ...]:
        """The scopes that a request for this hardware may see: its lineage and `any`."""
        return (*self.lineage(hardware_id), ANY)

    def put(self, spec: HardwareSpec, origin: str) -> PutOutcome:
        """Register or replace a spec. Its own facts are replaced; other facts stay."""
        return self.put_all([spec], origin)[0]

    def put_all(self, specs: Sequence[HardwareSpec], origin: str) -> list[PutOutcome]:
        """Register or replace specs, each after its parent, all or none."""
        for spec in specs:
            self.check_change(spec)
        before = self._whole.all()
        changed = [spec for spec in specs if before.get(spec.id) != spec]
        if not changed:  # as with each start: no lock is taken
            return ["unchanged" for _ in specs]
        known = dict(before)
        for spec in changed:
            known[spec.id] = spec
            self._check(spec, known, origin)
        outcomes: dict[str, PutOutcome] = {}
        with self._catalog.write() as connection:
            for spec in changed:
                outcomes[spec.id] = self._store(connection, spec, origin, before.get(spec.id))
            if set(outcomes.values()) != {"unchanged"}:
                _count_change(connection)
        return [outcomes.get(spec.id, "unchanged") for spec in specs]

    def _store(
        self, connection: Connection, spec: HardwareSpec, origin: str, before: HardwareSpec | None
    ) -> PutOutcome:
        text = dump_hardware(spec)
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
            connection.execute(hardware.update().where(hardware.c.id == spec.id).values(**values))
        _replace_spec_facts(connection, spec)
        if spec.terms != (before.terms if before is not None else {}):
            scopes = t.document_scopes.c
            about = sa.select(scopes.document_id).where(
                scopes.kind == "hardware", scopes.value == spec.id
            )
            if documents := set(connection.scalars(about)):
                meta.bump_documents(connection, documents)
        return "created" if before is None else "updated"

    def check_change(self, spec: HardwareSpec) -> None:
        """Raise unless this caller may register the spec. A restricted caller may neither move its
        chip below another, whose knowledge it would see then, nor state commands: they run on this
        machine."""
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
                " everything. Register them with a key that is not restricted.",
            )

    def check_removal(self, hardware_id: str) -> None:
        """Raise Forbidden for a restricted caller: other callers see the hardware too."""
        if self._access.restricted:
            raise Forbidden(
                f"{hardware_id} may not be removed with a key for some hardware alone",
                hint="Remove it with a key that is not restricted.",
            )

    def _check(self, spec: HardwareSpec, known: Mapping[str, HardwareSpec], origin: str) -> None:
        if spec.id in _RESERVED:
            raise InvalidKnowledge(
                f"the id `{spec.id}` {_RESERVED[spec.id]}", hint="Choose another id."
            )
        if spec.parent is not None and spec.parent not in known:
            raise UnknownHardware(spec.parent, known)
        if origin == "builtin":
            # Hardware that users registered meanwhile keeps its names: a clash must not stop the
            # start.
            lines.lineage(spec.id, known)
            return
        # A new id may equal an alias of another chip (the id wins); a new alias may not equal an
        # id.
        ids = {lines.folded_name(other): other for other in known if other != spec.id}
        clashing = [alias for alias in spec.aliases if lines.folded_name(alias) in ids]
        problems = lines.registry_problems(known)
        problems += [f"the alias {a} is the id of {ids[lines.folded_name(a)]}" for a in clashing]
        if problems and self._access.restricted:
            raise InvalidKnowledge(
                f"{spec.id} does not fit the registered hardware: a parent or an alias is taken or"
                " cannot be used",
                hint="Change its parent or aliases.",
            )
        if problems:
            raise InvalidKnowledge(
                f"{spec.id} does not fit the registered hardware: {problems[0]}",
                hint="Change its parent or aliases.",
                details={"problems": problems},
            )

    # -- facts

    def facts(self, name: str, *, status: FactStatus | None = None) -> list[Fact]:
        """All facts stated for exactly this hardware, by key."""
        conditions = [facts.c.hardware_id == self.resolve(name), visible.facts(self._access)]
        if status is not None:
            conditions.append(facts.c.status == status)
        with self._catalog.read() as connection:
            return select_facts(connection, *conditions)

    def all_facts(self) -> dict[str, list[Fact]]:
        """All facts stated for exactly each hardware that has any, by its id, then by key."""
        with self._catalog.read() as connection:
            return _by_hardware(select_facts(connection, visible.facts(self._access)))

    def effective_facts(self, name: str) -> dict[str, Fact]:
        """The valid fact for each key, inherited ones included; by key."""
        with self._catalog.read() as connection:
            stated = accepted_facts(connection, self._access)
        return effective_facts(stated, self.lineage(self.resolve(name)))

    def values(self, name: str) -> dict[str, float | str]:
        """Fact values by key, for predicates."""
        return {key: fact.value for key, fact in self.effective_facts(name).items()}

    def values_if_known(self, hardware_id: str) -> dict[str, float | str]:
        """The same; empty for removed hardware, which runs may still name."""
        return self.values(hardware_id) if hardware_id in self.all() else {}

    def outdated(self, name: str) -> list[Outdated]:
        """The accepted facts of exactly this hardware that are of a replaced version of their
        document."""
        with self._catalog.read() as connection:
            hardware_id = self.resolve(name)
            return outdated_facts(connection, hardware_id=hardware_id, access=self._access)

    def all_outdated(self) -> list[Outdated]:
        """Those of every hardware."""
        with self._catalog.read() as connection:
            return outdated_facts(connection, access=self._access)

    def set_status(self, fact_ids: Sequence[str], status: FactStatus, actor: str) -> list[Fact]:
        """Decide about many facts at once: all of them, or none if an id is unknown. Raises
        NotFound."""
        wanted = list(dict.fromkeys(fact_ids))
        with self._catalog.write() as connection:
            self._check_facts(connection, wanted)
            for fact_id in wanted:
                _change_fact(connection, fact_id, {"status": status, "actor": actor})
            if status == "accepted":
                replace_outdated(connection, wanted)
            meta.bump_revision(connection)
            return [_fact(connection, fact_id) for fact_id in wanted]

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
        `withdraw` takes the correction back: value and status are as before it. Raises
        InvalidKnowledge for a value that a hardware.toml may not state either."""
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
                changes |= value_read(connection, fact_id)
            elif "origin" in changes:
                changes |= _checked_value(_known_fact(connection, fact_id).key, number, text)
                changes |= note_value_read(connection, fact_id)
            _change_fact(connection, fact_id, changes)
            if changes.get("status") == "accepted":
                replace_outdated(connection, [fact_id])
            meta.bump_revision(connection)
            return _fact(connection, fact_id)

    def add_fact(
        self, name: str, key: str, text: str, *, document_id: str | None, locator: str, actor: str
    ) -> Fact:
        """Add an accepted fact that a person states, of a document or of none. Raises
        InvalidKnowledge for a key or a value that a hardware.toml may not state either."""
        hardware_id = self.resolve(name)
        self._access.check_change((hardware_id,), f"a fact of {hardware_id}")
        if problem := key_problem(key):
            raise InvalidKnowledge(problem, hint="Correct the key, then send the fact again.")
        title = ""
        with self._catalog.write() as connection:
            if document_id is not None:
                of = t.documents.c.id == document_id, visible.documents(self._access)
                title = connection.scalar(sa.select(t.documents.c.title).where(*of)) or ""
                if not title:
                    lists = "GET /documents lists them."
                    raise NotFound(f"no document {document_id!r}", hint=lists)
            number, unit = stated_value(key, text)
            values = {
                **_checked_value(key, number, text),
                "id": derived_id("fact", hardware_id, "person", key, text, locator, clock.now()),
                "hardware_id": hardware_id,
                "key": key,
                "unit": unit,
                "kind": "datasheet",
                "status": "accepted",
                "origin": "person",
                "title": title or "stated by a person",
                "publisher": "",
                "locator": locator,
                "document_id": document_id,
                "actor": actor,
                "created_at": clock.now(),
            }
            connection.execute(facts.insert().values(**values))
            meta.bump_revision(connection)
            return _fact(connection, str(values["id"]))

    def rows_not_read(self, name: str) -> list[tuple[str, str, str]]:
        """Rows of the documents about exactly this hardware that gave no fact: the id and title of
        the document, and the row."""
        with self._catalog.read() as connection:
            return rows_not_read(connection, self.resolve(name), self._access)

    def fact(self, fact_id: str) -> Fact:
        """The fact with this id. Raises NotFound, also if the caller may not see it."""
        with self._catalog.read() as connection:
            found = select_facts(connection, facts.c.id == fact_id, visible.facts(self._access))
        if not found:
            raise _no_fact(fact_id)
        return found[0]

    def _check_facts(self, connection: Connection, fact_ids: Sequence[str]) -> None:
        """Raise NotFound for a fact that the caller may not see, Forbidden for one that it may not
        change."""
        if not self._access.restricted:
            return
        for fact_id in fact_ids:
            seen = facts.c.id == fact_id, visible.facts(self._access)
            owner = connection.scalar(sa.select(facts.c.hardware_id).where(*seen))
            if owner is None:
                raise _no_fact(fact_id)
            self._access.check_change([owner], f"the fact {fact_id}")


def _by_hardware(stated: Sequence[Fact]) -> dict[str, list[Fact]]:
    by_hardware: dict[str, list[Fact]] = {}
    for fact in stated:
        by_hardware.setdefault(fact.hardware_id, []).append(fact)
    return by_hardware


def _change_fact(connection: Connection, fact_id: str, changes: Mapping[str, Any]) -> None:
    changed = connection.execute(facts.update().where(facts.c.id == fact_id).values(**changes))
    if changed.rowcount != 1:
        raise _no_fact(fact_id)


def _checked_value(key: str, number: float | None, text: str | None) -> dict[str, Any]:
    """The columns of a corrected value: text for keys that are text, else a number."""
    known = fact_keys().get(key)
    if number is not None and text is not None and known is not None and known.unit == "text":
        number = None  # a text that looks like a number
    elif number is None and text is not None and known is not None and known.unit != "text":
        number = value_with_unit(key, text)
    problem = value_problem(key, text if number is None else number)
    if problem is not None:
        unit = f" The unit of {key} is {known.unit}." if known is not None else ""
        fix = f"Give a number in that unit, or with its unit, like 192 KiB or 1.4 GHz.{unit}"
        if known is not None and known.unit == "text":
            fix = f"Give `text`; {key} is a text of at most {MAX_TEXT} characters."
        raise InvalidKnowledge(
            f"{key} cannot be {str(text if number is None else number)[:40]!r}: {problem.reason}",
            hint=fix,
            details={"key": key, "unit": known.unit if known is not None else None},
        )
    return {"number": number, "text": text if text is not None else str(number)}


def _known_fact(connection: Connection, fact_id: str) -> Fact:
    found = select_facts(connection, facts.c.id == fact_id)
    if not found:
        raise _no_fact(fact_id)
    return found[0]


def _fact(connection: Connection, fact_id: str) -> Fact:
    return select_facts(connection, facts.c.id == fact_id)[0]


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
    of_spec = facts.c.hardware_id == spec.id
    connection.execute(facts.delete().where(of_spec, facts.c.origin == "spec"))
    # Those with an id of the spec were corrected by a person, whose value is valid.
    corrected = set(connection.scalars(sa.select(facts.c.id).where(of_spec)))
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


def descriptions(connection: Connection) -> dict[str, str]:
    """The description of every registered hardware, by id."""
    rows = connection.execute(
        sa.select(hardware.c.id, hardware.c.spec)
        .where(hardware.c.origin != REMOVED)
        .order_by(hardware.c.id)
    )
    return {row.id: row.spec for row in rows}


def _count_change(connection: Connection) -> None:
    """The registered hardware has changed: caches read it again."""
    revision = int(meta.get(connection, "hardware_revision") or 0)
    meta.put(connection, "hardware_revision", revision + 1)
    meta.bump_revision(connection)


# -- removal


@dataclass(frozen=True)
class HardwareUse:
    """Rows that refer to a chip, by id or name. `documents` are about it alone, `shared` about
    other chips too; `reading` are of either, and have unfinished jobs; `skills` are in use and hold
    for it alone; `keys` are valid and restricted to it; `runs` have not ended."""

    children: tuple[str, ...]
    documents: tuple[str, ...]
    shared: tuple[str, ...]
    reading: tuple[str, ...]
    skills: tuple[str, ...]
    keys: tuple[str, ...]
    runs: tuple[str, ...]


@dataclass(frozen=True)
class Removed:
    """Counts of the facts removed with a chip, of those that a person had entered or accepted, and
    of the runs on it, which remain."""

    facts: int
    decided: int
    runs: int


def use_of_hardware(connection: Connection, hardware_id: str) -> HardwareUse:
    """The rows that refer to this chip."""
    about = _documents(connection, hardware_id)
    children = sa.select(hardware.c.id).where(
        hardware.c.parent_id == hardware_id, hardware.c.origin != REMOVED
    )
    unfinished = sa.select(t.work.c.subject_id).where(t.work.c.state.in_(("queued", "running")))
    running = sa.select(t.runs.c.id).where(
        t.runs.c.hardware_id == hardware_id,
        t.runs.c.finished_at.is_(None),
        t.runs.c.state == "running",
    )
    return HardwareUse(
        tuple(connection.scalars(children.order_by(hardware.c.id))),
        tuple(sorted(document for document, alone in about.items() if alone)),
        tuple(sorted(document for document, alone in about.items() if not alone)),
        tuple(sorted(about.keys() & set(connection.scalars(unfinished)))),
        tuple(_skills(connection, hardware_id)),
        tuple(_keys(connection, hardware_id)),
        tuple(connection.scalars(running.order_by(t.runs.c.id))),
    )


def _documents(connection: Connection, hardware_id: str) -> dict[str, bool]:
    """The documents about the chip, also those with only a version that was declared to be; whether
    they are about it alone."""
    about: dict[str, set[str]] = {}
    scopes, versions = t.document_scopes.c, t.document_versions.c
    for document_id, value in connection.execute(
        sa.select(scopes.document_id, scopes.value).where(scopes.kind == "hardware")
    ):
        about.setdefault(document_id, set()).add(value)
    found = {
        document_id: len(chips) == 1 for document_id, chips in about.items() if hardware_id in chips
    }
    for document_id, declared in connection.execute(
        sa.select(versions.document_id, versions.declared)
    ):
        if hardware_id in (declared.get("hardware") or ()):
            found.setdefault(document_id, False)
    return found


def _skills(connection: Connection, hardware_id: str) -> list[str]:
    scopes = t.skill_scopes
    rows = connection.execute(
        sa.select(t.skills.c.name, scopes.c.value)
        .join(scopes, scopes.c.skill_id == t.skills.c.id)
        .where(scopes.c.kind == "hardware", t.skills.c.state.in_(("active", "suspect")))
    ).all()
    chips = Counter(row.name for row in rows)
    return sorted(row.name for row in rows if row.value == hardware_id and chips[row.name] == 1)


def _keys(connection: Connection, hardware_id: str) -> list[str]:
    rows = connection.execute(
        sa.select(api_keys.c.id, api_keys.c.hardware).where(
            api_keys.c.revoked_at.is_(None),
            sa.or_(api_keys.c.expires_at.is_(None), api_keys.c.expires_at > clock.now()),
        )
    )
    return sorted(row.id for row in rows if hardware_id in row.hardware)


def remove_hardware_rows(
    connection: Connection, hardware_id: str, shared: Sequence[str]
) -> Removed:
    """Remove the chip with its facts, and from the scopes of the documents that are about other
    chips too. Its row stays, emptied, because measurements on its devices refer to it; registering
    the id again fills it."""
    for document_id in shared:
        _remove_from_document(connection, document_id, hardware_id)
    mine = facts.c.hardware_id == hardware_id
    # No person has decided about the facts of the description.
    stated = connection.execute(
        sa.select(facts.c.origin, facts.c.status).where(mine, facts.c.origin != "spec")
    ).all()
    connection.execute(facts.delete().where(mine))
    empty: dict[str, Any] = {"vendor": None, "parent_id": None, "summary": "", "aliases": []}
    empty |= {"languages": [], "signatures": [], "toolchains": {}, "spec": ""}
    connection.execute(
        hardware.update()
        .where(hardware.c.id == hardware_id)
        .values(**empty, name=hardware_id, origin=REMOVED, updated_at=clock.now())
    )
    _count_change(connection)
    meta.bump_documents(connection, shared)
    owe_erasure(connection, ())
    runs = connection.execute(
        sa.select(sa.func.count()).select_from(t.runs).where(t.runs.c.hardware_id == hardware_id)
    ).scalar_one()
    decided = sum(row.status == "accepted" or row.origin == "person" for row in stated)
    return Removed(len(stated), decided, runs)


def _remove_from_document(connection: Connection, document_id: str, hardware_id: str) -> None:
    """Remove the chip from the scope of a document. A passage or version about this chip alone
    keeps it: an empty scope would mean every chip."""
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
            change = versions.update().where(versions.c.id == row.id)
            connection.execute(change.values(declared={**row.declared, "hardware": chips}))
    about, other = t.passage_hardware, t.passage_hardware.alias()
    of_document = sa.select(t.passages.c.id).where(t.passages.c.document_id == document_id)
    of_others = sa.select(other.c.passage_id).where(other.c.hardware_id != hardware_id)
    connection.execute(
        about.delete().where(
            about.c.hardware_id == hardware_id,
            about.c.passage_id.in_(of_document),
            about.c.passage_id.in_(of_others),
        )
    )
