"""Hardware: register and show descriptions, list facts with their sources, decide about them. Every
function reads and changes only records visible to the caller of its registry.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import IsFinite, MaxLen, MinLen

from kb.catalog.facts import Fact, Outdated
from kb.catalog.hardware import HardwareRegistry
from kb.errors import Conflict, InvalidRequest, NotFound
from kb.hardware.facts import SubjectKind, key_problem, readable
from kb.hardware.lineage import find
from kb.hardware.lineage import folded_name as spelled
from kb.hardware.schema import parse_hardware, with_defaults
from kb.hardware.spec import HardwareSpec, is_shipped
from kb.plain import Doc, plain
from kb.validity import Validity

REMARKED = 6  # accepted facts that a job names
FactStatus = Literal["accepted", "proposed", "rejected"]
# effective: facts in force, inherited ones included; the others choose among the hardware's own
# facts.
FactFilter = Literal["effective", "accepted", "proposed", "rejected", "all"]
Name = Annotated[str, MaxLen(200)]


@dataclass(frozen=True)
class ListedChip:
    """A chip, a family or a vendor."""

    id: str
    name: str
    vendor: str
    kind: str
    parent: str | None
    lineage: tuple[str, ...]
    aliases: tuple[str, ...]
    languages: tuple[str, ...]
    summary: str


@dataclass(frozen=True)
class ListedHardware:
    """Every registered hardware."""

    hardware: list[ListedChip]


@dataclass(frozen=True)
class ShownHardware(ListedChip):
    """Everything that a description states."""

    facts: list[dict[str, Any]]
    signatures: list[dict[str, Any]]
    rules: list[dict[str, Any]]
    metrics: dict[str, dict[str, Any]]
    terms: dict[str, str]
    toolchains: dict[str, dict[str, Any]]


@dataclass(frozen=True)
class RegisteredHardware:
    """The outcome of registering a description."""

    id: str
    outcome: Literal["created", "updated", "unchanged"]
    lineage: tuple[str, ...]


@dataclass(frozen=True)
class ShownFact:
    """One number about a hardware with its source."""

    id: str
    hardware_id: Annotated[str, Doc("The hardware that states it.")]
    key: str
    value: Annotated[float | str, Doc("The number in `unit`, or the text of one without.")]
    number: float | None
    text: str
    unit: str
    kind: Annotated[str, Doc("datasheet, measured or derived.")]
    status: str
    origin: str
    title: str
    publisher: str
    locator: str
    inherited: bool
    subject: str | None
    subject_kind: SubjectKind | None
    url: str | None
    date: str | None
    note: str | None
    formula: str | None
    document_id: str | None
    version_id: str | None
    page_index: int | None
    page_label: str | None
    cell: Annotated[Mapping[str, Any] | None, Doc("Its place in a table of the document.")]
    actor: str | None
    validity: Annotated[tuple[Validity, ...], Doc("With what it was read or measured, and when.")]


@dataclass(frozen=True)
class NowStated:
    """The statement of the current version of a document."""

    fact_id: str
    value: float | str
    status: str


@dataclass(frozen=True)
class OutdatedFact:
    """An accepted fact of a version of a document that another one has replaced."""

    hardware_id: str
    key: str
    unit: str
    subject: str | None
    document_id: str
    title: Annotated[str, Doc("Title of the version that states it.")]
    fact_id: str
    value: Annotated[float | str, Doc("The accepted value; it holds until it is rejected.")]
    version: Annotated[int, Doc("The version that states it.")]
    current_version: int
    now: Annotated[list[NowStated], Doc("Statements of the current version about the same key.")]
    text: Annotated[str, Doc("The same as a sentence.")]


@dataclass(frozen=True)
class UnreadRow:
    """A row or sentence of a document with a number that gave no fact. `key` and `text` are a
    proposal for `add_fact`; `key` is a known one, or made of the label."""

    document_id: str
    title: str
    row: str
    key: str
    text: str


@dataclass(frozen=True)
class Facts:
    """Facts, other statements about their keys, where sources disagree, and outdated facts.
    `not_read`, with the proposed facts: rows of documents that gave none."""

    hardware: str
    lineage: tuple[str, ...]
    facts: list[ShownFact]
    other_kinds: list[ShownFact]
    conflicts: list[FactConflict]
    outdated: list[OutdatedFact]
    not_read: list[UnreadRow]


@dataclass(frozen=True)
class LeftFact:
    """A fact that was not accepted, and why."""

    id: str
    key: str
    value: float | str
    reason: str


@dataclass(frozen=True)
class DecidedFacts:
    """Decisions about many facts."""

    hardware: str
    facts: list[ShownFact]
    left: list[LeftFact]


def list_hardware(registry: HardwareRegistry) -> ListedHardware:
    """Every chip, family and vendor with its lineage, aliases and languages."""
    return ListedHardware([_chip(registry, spec) for spec in registry.all().values()])


def show_hardware(registry: HardwareRegistry, hardware_id: str) -> ShownHardware:
    """Everything that its description states. `hardware_id` may be an id, name or alias."""
    spec = registry.get(hardware_id)
    return ShownHardware(**{**plain(spec), **vars(_chip(registry, spec))})


def _chip(registry: HardwareRegistry, spec: HardwareSpec) -> ListedChip:
    return ListedChip(
        id=spec.id,
        name=spec.name,
        vendor=spec.vendor,
        kind=spec.kind,
        parent=spec.parent,
        lineage=registry.lineage(spec.id),
        aliases=spec.aliases,
        languages=spec.languages,
        summary=spec.summary,
    )


def register_hardware(
    registry: HardwareRegistry,
    description: Mapping[str, Any],
    origin: str,
    *,
    knowledge_dir: Path,
    check_signature: Callable[[Mapping[str, Any], str], object],
    check_rules: Callable[[HardwareSpec], object] = lambda spec: None,
) -> RegisteredHardware:
    """Register or replace a hardware; `description` is the structure of a hardware.toml.

    Only `id` is required. `origin` names the description in errors. `check_signature` refuses an
    error signature that retrieval could not use, `check_rules` rules and metric aliases. Raises
    InvalidKnowledge, and Conflict for another description of a built-in hardware.
    """
    spec = parse_hardware(_completed(description, registry), origin)
    registry.check_change(spec)
    for signature in spec.signatures:  # one that retrieval refuses would fail every posted log
        check_signature(asdict(signature), spec.id)
    check_rules(spec)
    if is_shipped(spec.id, knowledge_dir) and registry.all().get(spec.id) != spec:
        raise Conflict(
            f"{spec.id} is built in; its description cannot be replaced",
            hint=f'Register a child of it (parent = "{spec.id}"), or correct single facts. To'
            " change built-in hardware, copy its folder and set KERNLORE_KNOWLEDGE_DIR.",
        )
    outcome = registry.put(spec, "api")
    return RegisteredHardware(spec.id, outcome, registry.lineage(spec.id))


@dataclass(frozen=True)
class FactFilterBody:
    """A filter of proposed facts; a field that is left out matches any."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    key: Annotated[Name | None, Doc("The key of the fact, such as l2_size.")] = None
    subject: Annotated[
        Name | None, Doc("A part of what names the subject; empty for facts without a subject.")
    ] = None
    subject_kind: Annotated[
        SubjectKind | None,
        Doc("Whether it is about the chip itself, a family above it, or unclear."),
    ] = None
    document: Annotated[Name | None, Doc("The id of a document, or part of its title.")] = None

    def holds(self, fact: Fact) -> bool:
        """Whether a fact is meant."""
        if self.key is not None and fact.key != self.key:
            return False
        if self.subject_kind is not None and fact.subject_kind != self.subject_kind:
            return False
        if self.subject is not None and not _names_part(self.subject, fact.subject or ""):
            return False
        if self.document is None or self.document == fact.document_id:
            return True
        return fact.document_id is not None and _names_part(self.document, fact.title)


def _names_part(query: str, text: str) -> bool:
    return spelled(query) in spelled(text) if spelled(query) else not text


def facts_of(
    registry: HardwareRegistry,
    hardware_id: str,
    status: Annotated[
        FactFilter,
        Doc(
            "effective: the facts that hold, inherited ones included. Any other value selects among"
            " the hardware's own facts by their status."
        ),
    ] = "effective",
    key: Annotated[Name | None, Doc("Only this key.")] = None,
    subject: Annotated[
        Name | None, Doc("A part of what names the subject; empty for facts without a subject.")
    ] = None,
    subject_kind: Annotated[
        SubjectKind | None, Doc("Read as about the chip itself, a family above it, or unclear.")
    ] = None,
    document: Annotated[Name | None, Doc("The id of a document, or part of its title.")] = None,
) -> Facts:
    """`conflicts` lists disagreements of sources about this hardware. `other_kinds` lists further
    values of an effective fact, such as a measured bandwidth next to the datasheet's."""
    where = FactFilterBody(key, subject, subject_kind, document)
    hardware = registry.resolve(hardware_id)
    own = [fact for fact in registry.facts(hardware) if where.holds(fact)]
    if status == "effective":
        effective = registry.effective_facts(hardware).values()
        facts = [fact for fact in effective if where.holds(fact)]
    else:
        facts = [fact for fact in own if status in ("all", fact.status)]
    listed = {fact.id for fact in facts}
    ids = {fact.id for fact in own}
    return Facts(
        hardware=hardware,
        lineage=registry.lineage(hardware),
        facts=[_fact(fact, hardware) for fact in facts],
        other_kinds=[
            _fact(fact, hardware)
            for fact in own
            if status == "effective" and fact.status == "accepted" and fact.id not in listed
        ],
        conflicts=_conflicts(own),
        outdated=[
            outdated_fact(entry)
            for entry in registry.outdated(hardware)
            if entry.now and entry.accepted.fact_id in ids
        ],
        not_read=[
            row
            for row in map(_unread_row, registry.rows_not_read(hardware))
            if status == "proposed"
            and key in (None, row.key)
            and (
                document is None or document == row.document_id or _names_part(document, row.title)
            )
        ],
    )


_REASON = re.compile(r" \(perhaps (\w+)(?: or \w+)*, but not clearly\)$")
# "2 cores": a count and its noun; "8MiB 8MiB of on-chip SRAM in total": a size and a further cell
_COUNTED = re.compile(
    r"(\d[\d,.]*) [a-z ]+|(\d[\d,.]* ?[kKMGTP]?i?(?:B|bits?|bytes?|Hz|W|FL?OPS)(?:/s)?) .+"
)


def _unread_row(found: tuple[str, str, str]) -> UnreadRow:
    """A row of a report with the key and the value that it seems to state."""
    document, title, row = found
    reason = _REASON.search(row)
    label, _, value = _REASON.sub("", row).partition(": ")
    key = re.sub(r"[^a-z0-9]+", "_", label.lower()).strip("_")[:64]
    key = f"x_{key}"[:64] if key_problem(key) and not key_problem(f"x_{key}"[:64]) else key
    counted = _COUNTED.fullmatch(value)
    text = counted[1] or counted[2] if counted else value
    return UnreadRow(document, title, row, reason[1] if reason else key if value else "", text)


def add_fact(
    registry: HardwareRegistry,
    hardware_id: str,
    key: Annotated[Name, Doc("A known key, such as l2_size, or one of your own.")],
    text: Annotated[
        Annotated[str, MinLen(1), MaxLen(200)], Doc("The value with its unit, like 192 KiB.")
    ],
    document_id: Annotated[Name | None, Doc("The document that states it.")] = None,
    locator: Annotated[
        Annotated[str, MaxLen(400)], Doc("The place in it: a page, or the row as written.")
    ] = "",
    actor: Annotated[str, Doc("Who states it."), MaxLen(200)] = "api",
) -> ShownFact:
    """It is accepted, and applies to every later request. A row of `not_read` is no longer listed
    there when its text is the `locator`."""
    fact = registry.add_fact(
        hardware_id, key, text, document_id=document_id, locator=locator, actor=actor
    )
    return _fact(fact, fact.hardware_id)


def outdated_fact(entry: Outdated) -> OutdatedFact:
    """An accepted fact of a replaced version, with the statement of the current one."""
    return OutdatedFact(
        hardware_id=entry.hardware_id,
        key=entry.key,
        unit=entry.unit,
        subject=entry.subject,
        document_id=entry.document_id,
        title=entry.title,
        fact_id=entry.accepted.fact_id,
        value=entry.accepted.value,
        version=entry.version,
        current_version=entry.current_version,
        now=[NowStated(now.fact_id, now.value, now.status) for now in entry.now],
        text=_outdated_text(entry),
    )


def _outdated_text(entry: Outdated) -> str:
    """The same as a sentence."""
    of = f"{entry.key} of {entry.hardware_id}" + (f" ({entry.subject})" if entry.subject else "")
    statements = [readable(now.value, entry.unit) for now in entry.now]
    current = f"says {' and '.join(statements)}" if statements else "no longer states it"
    return (
        f"{of}: the accepted {readable(entry.accepted.value, entry.unit)} is from version"
        f" {entry.version} of '{entry.title}'; version {entry.current_version} {current}"
    )


def outdated_remarks(entries: Sequence[Outdated]) -> list[str]:
    """Remarks in the job of a new version about accepted facts that it does not repeat."""
    if not entries:
        return []
    texts = [_outdated_text(entry) for entry in entries]
    more = [f"and {len(texts) - REMARKED} more"] if len(texts) > REMARKED else []
    decide = f"`kernlore hardware facts {entries[0].hardware_id} --accept ID` or `--reject ID`"
    hint = f"accepted values hold until a decision: {decide}"
    return [f"{'; '.join([*texts[:REMARKED], *more])}; {hint}"]


def outdated_counts(registry: HardwareRegistry) -> dict[str, int]:
    """Of each hardware with any: how many accepted facts a newer version states differently."""
    return Counter(entry.hardware_id for entry in registry.all_outdated() if entry.now)


def open_questions(registry: HardwareRegistry) -> list[tuple[str, int, int]]:
    """Of each hardware with facts: its id, how many wait for a decision, and about how many the
    sources disagree."""
    known = registry.all()
    return [
        (hardware, sum(fact.status == "proposed" for fact in stated), len(_conflicts(stated)))
        for hardware, stated in sorted(registry.all_facts().items())
        if hardware in known
    ]


def show_fact(registry: HardwareRegistry, fact_id: str) -> ShownFact:
    """Its value, source, status, and the value before a correction."""
    fact = registry.fact(fact_id)
    return _fact(fact, fact.hardware_id)


def decide_fact(
    registry: HardwareRegistry,
    fact_id: str,
    status: Annotated[FactStatus | None, Doc("The new status of the fact.")] = None,
    number: Annotated[IsFinite[float] | None, Doc("The value, in the unit of the fact.")] = None,
    text: Annotated[
        Annotated[str, MinLen(1), MaxLen(200)] | None,
        Doc("The value as text: with its unit, like 192 KiB, or one that is not a number."),
    ] = None,
    note: Annotated[
        Annotated[str, MaxLen(2000)] | None, Doc("A remark that is shown with the fact.")
    ] = None,
    withdraw: Annotated[
        bool, Doc("Take the correction of its value back: it is as it was read.")
    ] = False,
    actor: Annotated[str, Doc("Who decides."), MaxLen(200)] = "api",
) -> ShownFact:
    """The decision applies to every later request."""
    fact = registry.patch_fact(
        fact_id, status=status, number=number, text=text, note=note, withdraw=withdraw, actor=actor
    )
    return _fact(fact, fact.hardware_id)


def decide_facts(
    registry: HardwareRegistry,
    hardware_id: str,
    status: Annotated[Literal["accepted", "rejected"], Doc("The decision.")],
    ids: Annotated[
        Annotated[list[Name], MinLen(1), MaxLen(1000)] | None, Doc("Facts of this hardware.")
    ] = None,
    where: Annotated[
        FactFilterBody | None, Doc("A filter of proposed facts; an empty one means all of them.")
    ] = None,
    include_unclear: Annotated[
        bool, Doc("Also accept facts whose subject is not clearly this hardware.")
    ] = False,
    actor: Annotated[str, Doc("Who decides."), MaxLen(200)] = "api",
) -> DecidedFacts:
    """`left` lists facts that were not accepted, with the reason: the subject is unclear, or a
    filter chose facts that state different values for one key."""
    if (ids is None) == (where is None):
        raise InvalidRequest(
            "give either ids or a filter",
            hint='`"where": {}` means every proposed fact of this hardware.',
        )
    hardware = registry.resolve(hardware_id)
    own = {fact.id: fact for fact in registry.facts(hardware)}
    if ids is not None:
        unknown = [fact_id for fact_id in ids if fact_id not in own]
        if unknown:
            raise NotFound(
                f"{hardware} has no fact {unknown[0]!r}",
                hint=f"GET /hardware/{hardware}/facts?status=all lists them with ids.",
                details={"ids": unknown},
            )
        chosen = [own[fact_id] for fact_id in dict.fromkeys(ids)]
    else:
        assert where is not None
        chosen = [f for f in own.values() if f.status == "proposed" and where.holds(f)]
    reasons: dict[str, str] = {}
    if status == "accepted":
        reasons = {} if include_unclear else {f.id: _UNCLEAR for f in chosen if _is_unclear(f)}
        if ids is None:
            reasons = _differing([f for f in chosen if f.id not in reasons]) | reasons
    decided = registry.set_status([f.id for f in chosen if f.id not in reasons], status, actor)
    return DecidedFacts(
        hardware,
        [_fact(fact, hardware) for fact in decided],
        [LeftFact(f.id, f.key, f.value, reasons[f.id]) for f in chosen if f.id in reasons],
    )


_UNCLEAR = "it is not clear that this value is about the chip"
_DIFFERS = "the chosen facts state different values for this key"


def _is_unclear(fact: Fact) -> bool:
    """Also true for facts read before subjects were determined."""
    read = fact.origin in ("table", "sentence")
    return read and fact.subject_kind not in ("chip", "family")


def _differing(facts: Sequence[Fact]) -> dict[str, str]:
    """Reasons by id for the facts of keys whose values differ by more than rounding."""
    disputed = {conflict.key for conflict in _conflicts([f for f in facts if f.holds_for_owner])}
    return {f.id: _DIFFERS for f in facts if f.key in disputed and f.holds_for_owner}


def _completed(description: Mapping[str, Any], registry: HardwareRegistry) -> dict[str, Any]:
    """With a name and a vendor, which a newcomer may leave out."""
    completed = {key: value for key, value in description.items() if value is not None}
    known = registry.all()
    parent = completed.get("parent")
    if isinstance(parent, str) and (resolved := find(parent, known)) is not None:
        completed["parent"] = resolved
        completed.setdefault("vendor", known[resolved].vendor)
    return with_defaults(completed)


def _fact(fact: Fact, hardware: str) -> ShownFact:
    inherited = fact.hardware_id != hardware
    return ShownFact(**vars(fact), value=fact.value, inherited=inherited, validity=fact.validity)


def _conflicts(facts: Sequence[Fact]) -> list[FactConflict]:
    """Within one kind: a measured bandwidth below the datasheet's contradicts nothing."""
    conflicts: list[FactConflict] = []
    for kind in ("datasheet", "measured", "derived"):
        conflicts += find_conflicts(
            SourcedFact(
                f.key,
                "" if f.holds_for_owner else f.subject or "",
                f.value,
                f.unit,
                f"{f.title}, {f.locator}",
            )
            for f in facts
            if f.kind == kind and f.status != "rejected"
        )
    return conflicts


# -- sources that disagree


@dataclass(frozen=True)
class SourcedFact:
    """A value as one source states it; `source` tells a reader where (document, page, table)."""

    key: str
    subject: str
    value: float | int | str
    unit: str
    source: str


@dataclass(frozen=True)
class FactConflict:
    """Sources that disagree on one fact. `reason` is the probable cause, or ""."""

    key: str
    subject: str
    values: tuple[SourcedFact, ...]
    reason: str = ""


# Peaks and rates are rounded in datasheets (3.35 against 3.352 TB/s); counts and sizes are not.
TOLERANCES = {"B/s": 0.02, "flop/s": 0.02, "op/s": 0.02, "Hz": 0.02, "W": 0.02}


def find_conflicts(facts: Iterable[SourcedFact]) -> list[FactConflict]:
    """Facts of the same key and subject whose values differ by more than rounding."""
    groups: dict[tuple[str, str], list[SourcedFact]] = {}
    for fact in facts:
        groups.setdefault((fact.key, re.sub(r"[\W_]+", "", fact.subject).lower()), []).append(fact)
    conflicts = []
    for _, group in sorted(groups.items()):
        distinct = _distinct(group)
        if len(distinct) > 1:
            first, reason = group[0], _reason(distinct)
            conflicts.append(FactConflict(first.key, first.subject, tuple(group), reason))
    return conflicts


def _distinct(group: Sequence[SourcedFact]) -> list[SourcedFact]:
    distinct: list[SourcedFact] = []
    for fact in group:
        if not any(_agree(fact, other) for other in distinct):
            distinct.append(fact)
    return distinct


def _agree(left: SourcedFact, right: SourcedFact) -> bool:
    if left.unit != right.unit:
        return False
    if isinstance(left.value, str) or isinstance(right.value, str):
        return str(left.value).strip().lower() == str(right.value).strip().lower()
    high = max(abs(left.value), abs(right.value))
    return abs(left.value - right.value) <= TOLERANCES.get(left.unit, 0.0) * high


def _reason(distinct: Sequence[SourcedFact]) -> str:
    units = sorted({fact.unit for fact in distinct})
    if len(units) > 1:
        return f"different units: {', '.join(units)}"
    numbers = sorted(float(f.value) for f in distinct if not isinstance(f.value, str))
    if units == ["B"] and len(numbers) == 2 and numbers[0] > 0:
        ratio = numbers[1] / numbers[0]
        if any(abs(ratio / 1.024**power - 1) < 0.004 for power in (1, 2, 3, 4)):
            return "one may count the prefix in powers of 1000, the other in powers of 1024"
    return ""
