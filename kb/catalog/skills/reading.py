"""Skills as records, the states that may follow each other, and look-up by name, scope and words.
Lists are read as `SkillHead`s; whole rows only if the texts are needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy import Connection

from kb.catalog import tables as t
from kb.catalog import visible
from kb.catalog.dialect import json_text
from kb.catalog.engine import columns_of, portions, record_of, select_in
from kb.catalog.skills.shipped import ShippedTrial, stored_trials
from kb.catalog.tables import document_scopes, hardware
from kb.errors import InvalidRequest, NotFound, nearest
from kb.ids import SkillId
from kb.problem_terms import op_family
from kb.scope import ALL_ACCESS, ANY, AccessScope

SkillTier = Literal["curated", "learned"]
SkillState = Literal["candidate", "active", "suspect", "retired", "quarantined"]
StoreOutcome = Literal["created", "updated", "unchanged"]
EvidenceKind = Literal["ablation", "pair", "lift", "simulator"]
LinkKind = Literal["conflicts_with"]
UseRole = Literal["shown", "used", "withheld"]

TIERS: tuple[SkillTier, ...] = ("curated", "learned")
STATES: tuple[SkillState, ...] = ("candidate", "active", "suspect", "retired", "quarantined")
EVIDENCE_KINDS: tuple[EvidenceKind, ...] = ("ablation", "pair", "lift", "simulator")
LINK_KINDS: tuple[LinkKind, ...] = ("conflicts_with",)
ROLES: tuple[UseRole, ...] = ("shown", "used", "withheld")
REVISES = "revises"  # in the metadata of a revision: the name of the skill whose text it would be
REVISES_VERSION = "revises_version"  # the version of that skill which it was made from
REVISES_SHA256 = "revises_sha256"  # its digest under that name
AVOIDING = "Avoid: "  # begins the description of a warning
WRITTEN = ("created", "revised")  # events that change a skill's text
TRANSITIONS: Mapping[str, frozenset[str]] = {
    "candidate": frozenset({"active", "retired", "quarantined"}),
    "active": frozenset({"suspect", "retired", "quarantined"}),
    "suspect": frozenset({"active", "candidate", "retired", "quarantined"}),
    "retired": frozenset({"candidate", "active", "quarantined"}),
    "quarantined": frozenset({"candidate", "active", "retired"}),
}
SCOPE_KINDS: Mapping[str, str] = {
    "hardware": "hardware",
    "languages": "language",
    "ops": "op",
    "dtypes": "dtype",
    "signals": "signal",
}


@dataclass(frozen=True)
class SkillScopes:
    """The situations of a skill; an empty tuple restricts nothing."""

    hardware: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    signals: tuple[str, ...] = ()


@dataclass(frozen=True)
class SkillDraft:
    """A skill as it is to be stored. `version` counts only when the skill is new here."""

    name: str
    tier: SkillTier
    transformation: str
    description: str
    body: str
    scopes: SkillScopes
    content_sha256: str
    origin: Literal["shipped", "import", "run", "person"]
    polarity: str = "use"
    predicate: str | None = None
    moves: Sequence[Mapping[str, Any]] = ()
    recipe: Mapping[str, Any] | None = None
    sources: Sequence[Mapping[str, Any]] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    license: str | None = None
    compatibility: str | None = None
    version: int = 1
    origin_run_id: str | None = None
    toolchain_id: str | None = None


@dataclass(frozen=True)
class SkillHead:
    """What listing and ranking need of a skill: everything but its long texts.

    `trials` counts the uses of the present text, within the present scope, whose effect is known;
    `wins` counts those that helped. `toolchain_id` is that of its newest evidence, `written_at` the
    time when the present text was written.
    """

    id: SkillId
    name: str
    version: int
    tier: str
    state: str
    polarity: str
    transformation: str
    description: str
    predicate: str | None
    structured_key: str
    origin: str
    toolchain_id: str | None
    trials: int
    wins: int
    last_used_at: str | None
    written_at: str
    created_at: str
    updated_at: str
    scopes: SkillScopes


@dataclass(frozen=True)
class SkillRow(SkillHead):
    """A skill with all its texts."""

    compatibility: str | None
    license: str | None
    body: str
    moves: tuple[Mapping[str, Any], ...]
    recipe: Mapping[str, Any] | None
    sources: tuple[Mapping[str, Any], ...]
    metadata: Mapping[str, Any]
    content_sha256: str
    origin_run_id: str | None

    @property
    def revises(self) -> str | None:
        """The name of the skill that this one is a revision of."""
        return self.metadata.get(REVISES)


@dataclass(frozen=True)
class SkillEvent:
    """A change in a skill's history, numbered from 1 within the skill."""

    sequence: int
    event: str
    from_state: str | None
    to_state: str | None
    actor: str
    reason: str
    details: Mapping[str, Any]
    created_at: str


@dataclass(frozen=True)
class EvidenceRow:
    """A measurement that supports or contradicts a skill. `id` and `created_at` are empty before it
    is stored.

    `n` counts pairs of blocks, or repetitions. Times are in microseconds a call. `speedup` is the
    time without the skill over the time with it, with its 95 % interval. `toolchain_id` is the
    harness's name of the toolchain (`triton-nvidia triton 3.4.0, ...`).
    """

    hardware_id: str
    kind: str
    n: int
    id: str = ""
    device_id: str | None = None
    toolchain_id: str | None = None
    problem_id: str | None = None
    case_id: str | None = None
    evaluation_id: str | None = None
    baseline_us: float | None = None
    measured_us: float | None = None
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    created_at: str = ""


@dataclass(frozen=True)
class SkillLink:
    """A relation of two skills, by name. It reads `source kind target`."""

    source: str
    kind: str
    target: str
    created_at: str


@dataclass(frozen=True)
class NewUse:
    """The use of a skill in one answer.

    `helped` is 1, 0 or None (not known). `gain` is the time before over the time after. `situation`
    describes the request: op, dtype, hardware, language, quantities.
    """

    retrieval_id: str
    skill: str
    role: UseRole
    helped: int | None = None
    gain: float | None = None
    situation: Mapping[str, Any] = field(default_factory=dict)
    outcome_id: str | None = None


@dataclass(frozen=True)
class UseRow:
    """A stored use; `version` is the skill's when it was shown or used."""

    retrieval_id: str
    outcome_id: str | None
    version: int
    role: str
    helped: int | None
    gain: float | None
    situation: Mapping[str, Any]
    created_at: str


@dataclass(frozen=True)
class SkillLift:
    """Known outcomes of answers that showed a skill, and of those from which it was withheld."""

    shown: int
    shown_wins: int
    withheld: int
    withheld_wins: int


@dataclass(frozen=True)
class StoredSkill:
    """The result of a `put`."""

    id: SkillId
    outcome: StoreOutcome
    version: int


def structured_key(scopes: SkillScopes, transformation: str) -> str:
    """A key that is equal for two skills that make the same claim about the same situation."""
    parts = (
        scopes.ops,
        scopes.signals,
        (transformation,),
        scopes.hardware,
        scopes.dtypes,
        scopes.languages,
    )
    return "|".join(",".join(sorted(part)) for part in parts)


def as_warning(description: str) -> str:
    """The description of a skill to avoid, so that it cannot be read as advice."""
    return description if description.lower().startswith("avoid") else f"{AVOIDING}{description}"


def check_word(value: str, known: Sequence[str], what: str) -> None:
    """Raise InvalidRequest for an unknown word."""
    if value not in known:
        raise InvalidRequest(f"{value!r} is not a {what}", hint=f"Use one of {', '.join(known)}.")


# In the order of the fields of SkillHead, whose last one is `scopes`.
_HEAD_COLUMNS = columns_of(t.skills, SkillHead, "scopes")
MEND = "mend-"  # prefix of the transformation of a debugging skill
NAME_WEIGHT = 3  # of a word in the name, against one in the description
MAX_WORDS = 12

_IS, _NEXT = "\x1f", "\x1e"  # separators of kind and value, and of pairs


def find_skill(
    connection: Connection, name: str, access_scope: AccessScope = ALL_ACCESS
) -> SkillRow | None:
    """The skill of this name, or None."""
    rows = _rows(connection, _whole(access_scope).where(t.skills.c.name == name))
    return rows[0] if rows else None


def get_skill(
    connection: Connection, name: str, access_scope: AccessScope = ALL_ACCESS
) -> SkillRow:
    """The skill of this name; NotFound names the nearest."""
    skill = find_skill(connection, name, access_scope)
    if skill is None:
        known = connection.scalars(
            sa.select(t.skills.c.name).where(visible.in_skills(t.skills, access_scope))
        )
        near = nearest(name, known)
        hint = f"Did you mean {', '.join(near)}? " if near else ""
        raise NotFound(
            f"no skill {name!r}",
            hint=f"{hint}GET /skills lists every skill.",
            details={"skill": name, "nearest": near},
        )
    return skill


def revision_of(
    connection: Connection, name: str, access_scope: AccessScope = ALL_ACCESS
) -> SkillRow | None:
    """The newest candidate that revises the skill of this name, or None."""
    revised = json_text(t.skills.c.metadata, sa.literal_column(f"'{REVISES}'"))
    query = _whole(access_scope).where(revised == name, t.skills.c.state == "candidate")
    rows = _rows(connection, query)
    return max(rows, key=lambda row: row.updated_at) if rows else None


def skill_names(connection: Connection) -> list[str]:
    """The names of all skills, sorted."""
    return list(connection.scalars(sa.select(t.skills.c.name).order_by(t.skills.c.name)))


def skills_about(connection: Connection, family: str, named: Iterable[str] = ()) -> list[SkillRow]:
    """Whole skills about an operator of this family or about any operator, and the named skills (by
    name or id); sorted by name."""
    known = connection.scalars(
        sa.select(t.skill_scopes.c.value).where(t.skill_scopes.c.kind == "op").distinct()
    )
    ops = [op for op in known if op_family(op) == family]
    query = sa.select(t.skills.c.id)
    ids = set(connection.scalars(query.where(_admits("op", ops))))
    for column in (t.skills.c.name, t.skills.c.id):
        ids |= {row.id for row in select_in(connection, query, column, sorted(set(named)))}
    return [
        row
        for part in portions(sorted(ids))
        for row in _rows(connection, sa.select(t.skills).where(t.skills.c.id.in_(part)))
    ]


def heads_by_name(
    connection: Connection, names: Iterable[str], access_scope: AccessScope = ALL_ACCESS
) -> dict[str, SkillHead]:
    """The skills with these names, by name, without unknown ones."""
    heads: dict[str, SkillHead] = {}
    for part in portions(sorted(set(names))):
        query = _light(access_scope).where(t.skills.c.name.in_(part))
        heads |= {head.name: head for head in _heads(connection, query)}
    return heads


def events_of(
    connection: Connection, skill_id: str, access_scope: AccessScope = ALL_ACCESS
) -> list[SkillEvent]:
    """The whole history, oldest first."""
    rows = connection.execute(
        sa.select(*columns_of(t.skill_events, SkillEvent))
        .join(t.skills, t.skills.c.id == t.skill_events.c.skill_id)
        .where(t.skill_events.c.skill_id == skill_id, visible.in_skills(t.skills, access_scope))
        .order_by(t.skill_events.c.sequence)
    )
    return [record_of(SkillEvent, row) for row in rows]


@dataclass(frozen=True)
class RecipeText:
    """A recipe as it is stored: its JSON, and the text of its template, "" if that is missing."""

    body: Mapping[str, Any]
    template: str


@dataclass(frozen=True)
class StoredHead:
    """A head with what decides when it is chosen; see `MeasuredSkill`."""

    head: SkillHead
    owner: str
    recipe: RecipeText | None
    error: str | None
    shipped: tuple[ShippedTrial, ...] = ()
    compatibility: str = ""


def stored_heads(connection: Connection) -> list[StoredHead]:
    """The heads of all skills of every owner, sorted by name."""
    c = t.skills.c
    columns = (*_HEAD_COLUMNS, c.access_scope, c.recipe, c.metadata, c.compatibility)
    query = sa.select(*columns).order_by(c.name)
    rows = connection.execute(query).all()
    scopes = _scopes(connection, [row.id for row in rows])
    heads = []
    for row in rows:
        head = record_of(SkillHead, row, scopes=scopes[row.id])
        error = row.metadata.get("error") if head.transformation.lower().startswith(MEND) else None
        recipe = _recipe_text(row.recipe, row.metadata) if row.recipe is not None else None
        shipped = stored_trials(row.metadata)
        compatibility = row.compatibility or ""
        heads.append(StoredHead(head, row.access_scope, recipe, error, shipped, compatibility))
    return heads


def _recipe_text(body: Mapping[str, Any], metadata: Mapping[str, Any]) -> RecipeText:
    template = metadata.get("files", {}).get(body.get("template"), "")
    return RecipeText(body, str(template))


def counters(connection: Connection) -> dict[str, tuple[int, int]]:
    """(trials, wins) of every skill that was used, by id."""
    c = t.skills.c
    rows = connection.execute(sa.select(c.id, c.trials, c.wins).where(c.last_used_at.is_not(None)))
    return {row.id: (row.trials, row.wins) for row in rows}


def skill_heads(
    connection: Connection, limit: int | None = None, offset: int = 0, **narrowing: Any
) -> list[SkillHead]:
    """Skills without their texts, by name: at most `limit` after the first `offset`. Takes the
    arguments of `list_skills`."""
    scope = narrowing.get("access_scope", ALL_ACCESS)
    query = _narrowed(_light(scope), **narrowing)
    return _heads(connection, query.limit(limit).offset(offset))


def skill_languages(connection: Connection, access_scope: AccessScope) -> list[str]:
    """The languages that skills name, sorted."""
    seen = sa.select(t.skills.c.id).where(visible.in_skills(t.skills, access_scope))
    scope = t.skill_scopes.c
    query = sa.select(scope.value).where(scope.kind == "language", scope.skill_id.in_(seen))
    return sorted(connection.execute(query.distinct()).scalars())


def count_skills(connection: Connection, **narrowing: Any) -> int:
    """The number of skills. Takes the arguments of `list_skills`."""
    scope = narrowing.get("access_scope", ALL_ACCESS)
    query = _narrowed(_light(scope), **narrowing).subquery()
    return int(connection.execute(sa.select(sa.func.count()).select_from(query)).scalar_one())


def list_skills(connection: Connection, **narrowing: Any) -> list[SkillRow]:
    """Whole skills, sorted by name.

    `states`, `tier`, `origin` and `transformation` select skills with these values,
    `hardware_scopes` those for one of the scopes or for any, `signal` those that name the signal,
    `languages` those that name a language of each of its sets, or none.
    """
    scope = narrowing.get("access_scope", ALL_ACCESS)
    return _rows(connection, _narrowed(_whole(scope), **narrowing))


def _narrowed(
    query: sa.Select[Any],
    *,
    states: Sequence[str] | None = None,
    tier: str | None = None,
    hardware_scopes: Sequence[str] | None = None,
    languages: Sequence[Sequence[str]] = (),
    signal: str | None = None,
    origin: str | None = None,
    transformation: str | None = None,
    access_scope: AccessScope = ALL_ACCESS,
) -> sa.Select[Any]:
    del access_scope  # applied by the query
    if states is not None:
        query = query.where(t.skills.c.state.in_(list(states)))
    if tier is not None:
        query = query.where(t.skills.c.tier == tier)
    if origin is not None:
        query = query.where(t.skills.c.origin == origin)
    if transformation is not None:
        query = query.where(t.skills.c.transformation == transformation)
    if hardware_scopes is not None:
        query = query.where(_admits("hardware", [*hardware_scopes, ANY]))
    for admitted in languages:
        query = query.where(_admits("language", admitted))
    if signal is not None:
        query = query.where(_scoped("signal").where(t.skill_scopes.c.value == signal).exists())
    return query


def search_skills(
    connection: Connection, text: str, *, limit: int = 50, **narrowing: Any
) -> list[SkillHead]:
    """The skills that contain most of the words, best first; none without a word.

    A word counts in the name, the description, an operator or a signal, also as a part
    (`softmax` finds `log_softmax`), regardless of case. Takes the arguments of `list_skills` too.
    """
    words = list(dict.fromkeys(text.lower().replace("-", " ").split()))[:MAX_WORDS]
    if not words or limit < 1:
        return []
    matches = [_contains(word) for word in words]
    matched: sa.ColumnElement[int] = sum(
        (sa.case((sa.or_(*places), 1), else_=0) for places in matches), sa.literal(0)
    )
    in_name: sa.ColumnElement[int] = sum(
        (sa.case((places[0], 1), else_=0) for places in matches), sa.literal(0)
    )
    score = (matched * NAME_WEIGHT + in_name).label("score")
    scope = narrowing.get("access_scope", ALL_ACCESS)
    query = _narrowed(_light(scope), **narrowing)
    query = query.where(sa.or_(*(place for places in matches for place in places)))
    return _heads(connection, query.order_by(score.desc()).limit(limit))


def _contains(word: str) -> tuple[sa.ColumnElement[bool], ...]:
    """Conditions on the name, the description, and operators and signals."""
    named = t.skill_scopes.alias()
    return (
        sa.func.replace(t.skills.c.name, "-", " ").icontains(word, autoescape=True),
        t.skills.c.description.icontains(word, autoescape=True),
        t.skills.c.id.in_(
            sa.select(named.c.skill_id).where(
                named.c.kind.in_(("op", "signal")), named.c.value.icontains(word, autoescape=True)
            )
        ),
    )


def _light(access_scope: AccessScope) -> sa.Select[Any]:
    return sa.select(*_HEAD_COLUMNS).where(visible.in_skills(t.skills, access_scope))


def _whole(access_scope: AccessScope) -> sa.Select[Any]:
    return sa.select(t.skills).where(visible.in_skills(t.skills, access_scope))


def _scoped(kind: str) -> sa.Select[Any]:
    return sa.select(t.skill_scopes.c.skill_id).where(
        t.skill_scopes.c.skill_id == t.skills.c.id, t.skill_scopes.c.kind == kind
    )


def _admits(kind: str, values: Sequence[str]) -> sa.ColumnElement[bool]:
    """Skills that name one of the values, or none of this kind."""
    named = _scoped(kind)
    return sa.or_(~named.exists(), named.where(t.skill_scopes.c.value.in_(list(values))).exists())


def _heads(connection: Connection, query: sa.Select[Any]) -> list[SkillHead]:
    rows = connection.execute(query.order_by(t.skills.c.name)).all()
    scopes = _scopes(connection, [row[0] for row in rows])
    fields: Iterable[list[Any]] = ([*row, scopes[row[0]]] for row in rows)
    return [SkillHead(*values) for values in fields]


def _rows(connection: Connection, query: sa.Select[Any]) -> list[SkillRow]:
    rows = list(connection.execute(query.order_by(t.skills.c.name)))
    scopes = _scopes(connection, [row.id for row in rows])
    return [record_of(SkillRow, row, scopes=scopes[row.id]) for row in rows]


def _scopes(connection: Connection, ids: Sequence[str]) -> dict[str, SkillScopes]:
    """The scopes of skills, read as one row per skill: a quarter of the rows."""
    scopes = dict.fromkeys(ids, _parse_scopes(""))
    pair = t.skill_scopes.c.kind.concat(_IS).concat(t.skill_scopes.c.value)
    skill_id = t.skill_scopes.c.skill_id
    query = sa.select(skill_id, sa.func.aggregate_strings(pair, _NEXT)).group_by(skill_id)
    scopes |= {row[0]: _parse_scopes(row[1]) for row in select_in(connection, query, skill_id, ids)}
    return scopes


@lru_cache(maxsize=10_000)
def _parse_scopes(pairs: str) -> SkillScopes:
    """The scopes in the text of pairs that `_scopes` reads."""
    kinds: dict[str, list[str]] = {}
    for kind, _, value in (pair.partition(_IS) for pair in sorted(pairs.split(_NEXT))):
        kinds.setdefault(kind, []).append(value)
    return SkillScopes(**{name: tuple(kinds.get(kind, ())) for name, kind in SCOPE_KINDS.items()})


# -- languages


def named_languages(connection: Connection) -> frozenset[str]:
    """Languages that a chip, a toolchain, a document or a shipped skill names."""
    named: set[str] = set()
    for languages, toolchains in connection.execute(
        sa.select(hardware.c.languages, hardware.c.toolchains)
    ):
        named |= {*languages, *(toolchains or {})}
    scopes = (
        sa.select(document_scopes.c.value).where(document_scopes.c.kind == "language"),
        sa.select(t.skill_scopes.c.value)
        .join(t.skills, t.skills.c.id == t.skill_scopes.c.skill_id)
        .where(t.skill_scopes.c.kind == "language", t.skills.c.origin == "shipped"),
    )
    for query in scopes:
        named |= set(connection.scalars(query.distinct()))
    return frozenset(named)
