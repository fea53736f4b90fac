"""Whole kernels of manuals and of runs, and the recipes that are proposed from code of manuals.

A manual's sample belongs to a version of its document. The result of the chip's own toolchain
(`status`) is carried over to equal code in the next version. A kernel of a run has no document; it
was measured to be right. A recipe belongs to its document: a new version replaces it, and a
person's decision stays with equal code. Its body is JSON that `ingestion.samples.recipes` writes
and the search reads. Recipes are no skills: nothing exports them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy import Connection

from kb import clock
from kb.catalog import tables as t
from kb.catalog import visible
from kb.catalog.engine import record_of
from kb.catalog.knowledge.versions import StoredVersion, replace_rows
from kb.catalog.meta import bump_revision
from kb.errors import NotFound
from kb.ids import derived_id, sha256
from kb.scope import ALL_ACCESS, ANY, AccessScope

# The result of the chip's toolchain, in rising order. `refused`: it does not compile.
Status = Literal["untried", "refused", "compiles", "runs", "right"]
STATUSES: tuple[Status, ...] = ("untried", "refused", "compiles", "runs", "right")


def is_shipped_sample(source_key: str) -> bool:
    """Whether a document is a kernel of the built-in knowledge."""
    return source_key.startswith("builtin/samples/")


@dataclass(frozen=True)
class KernelSample:
    """A whole kernel in a manual.

    `operator` is canonical, empty if not named; `title` is the section's; `language` that of
    the code block, or the only one that the document can be about; `shapes` are arguments as the
    entry writes them, such as `A[64][64]`. `section` is an index, `code` is verbatim, `symbols` are
    the names of cards in it, in order of first use. `status` and `evidence` are stated for built-in
    samples only.
    """

    operator: str
    title: str
    language: str
    shapes: tuple[str, ...]
    section: int
    code: str
    symbols: tuple[str, ...]
    status: Status = "untried"
    evidence: str = ""


@dataclass(frozen=True)
class VerifiedKernel:
    """A kernel that a run has found right on a chip."""

    title: str
    operator: str
    language: str
    hardware: str
    shapes: tuple[str, ...]
    symbols: tuple[str, ...]
    code: str
    evidence: str
    run_id: str


@dataclass(frozen=True)
class Sample:
    """A kernel with its operator, language and argument shapes as its code writes them. `status` is
    the result of the chip's toolchain, `evidence` a sentence that explains it. `document_id` is
    None for a kernel of a run."""

    id: str
    title: str
    operator: str
    language: str
    hardware: tuple[str, ...]
    shapes: tuple[str, ...]
    symbols: tuple[str, ...]
    code: str
    status: Status
    evidence: str
    document_id: str | None
    document_title: str
    version: int | None
    section_id: str | None
    path: tuple[str, ...]
    run_id: str | None


def listed(
    connection: Connection,
    hardware: Sequence[str] | None = None,
    access_scope: AccessScope = ALL_ACCESS,
) -> list[Sample]:
    """Active samples, those of runs first; with `hardware`, those about one of these ids."""
    samples = _read(connection, access_scope)
    if hardware is not None:
        wanted = set(hardware)
        samples = [s for s in samples if set(s.hardware) & wanted]
    return sorted(samples, key=lambda s: (s.document_id is not None, s.document_title, s.id))


_SELECT = (
    sa.select(t.samples, t.documents.c.title.label("document_title"))
    .add_columns(t.document_versions.c.number.label("version"), t.sections.c.path)
    .outerjoin(t.documents, t.documents.c.id == t.samples.c.document_id)
    .outerjoin(t.document_versions, t.document_versions.c.id == t.samples.c.version_id)
    .outerjoin(t.sections, t.sections.c.id == t.samples.c.section_id)
)


def _read(connection: Connection, access_scope: AccessScope = ALL_ACCESS) -> list[Sample]:
    query = _SELECT.where(t.samples.c.active.is_(True), visible.read_from(t.samples, access_scope))
    return [
        replace(sample, hardware=access_scope.visible_hardware(sample.hardware))
        for sample in map(_sample, connection.execute(query))
        if access_scope.sees(sample.hardware)
    ]


def of_versions(connection: Connection, version_ids: Sequence[str]) -> list[Sample]:
    """The active samples of some versions."""
    query = _SELECT.where(t.samples.c.active.is_(True), t.samples.c.version_id.in_(version_ids))
    return list(map(_sample, connection.execute(query)))


@dataclass(frozen=True)
class RunSample:
    """A kernel that a run has found right, with the owner of the run."""

    sample: Sample
    owner: str


def of_runs(connection: Connection) -> list[RunSample]:
    """The kernels that runs have found right."""
    query = _SELECT.where(t.samples.c.active.is_(True), t.samples.c.document_id.is_(None))
    return [RunSample(_sample(row), row.access_scope) for row in connection.execute(query)]


def _sample(row: sa.Row[Any]) -> Sample:
    return record_of(
        Sample,
        row,
        hardware=tuple(h for h in row.hardware if h != ANY),
        document_title=row.document_title or "",
        path=tuple(row.path or ()),
    )


def replace_version_samples(
    connection: Connection, samples: Sequence[tuple[StoredVersion, Sequence[KernelSample]]]
) -> None:
    """Replace the kernels of versions. Those of other versions of their documents leave every
    answer."""
    rows = []
    for version, own in samples:
        tried = {} if version.first else _tried(connection, version.document.id)
        for n, sample in enumerate(own):
            digest = sha256(sample.code)
            status, evidence = sample.status, sample.evidence
            if status == "untried":
                status, evidence = tried.get(digest, (status, evidence))
            columns = version.columns(version.sections[sample.section])
            judged = {"status": status, "evidence": evidence}
            identity = derived_id("smp", version.id, n)
            rows.append({**_values(sample, digest), **columns, **judged, "id": identity})
    replace_rows(connection, t.samples, (version for version, _ in samples), rows)


def _tried(connection: Connection, document_id: str) -> dict[str, tuple[Status, str]]:
    """Status and evidence of earlier code, by its digest."""
    rows = connection.execute(
        sa.select(t.samples.c.code_sha256, t.samples.c.status, t.samples.c.evidence).where(
            t.samples.c.document_id == document_id, t.samples.c.status != "untried"
        )
    )
    return {row.code_sha256: (row.status, row.evidence) for row in rows}


def _values(kernel: KernelSample | VerifiedKernel, digest: str) -> dict[str, Any]:
    return {
        "title": kernel.title,
        "operator": kernel.operator,
        "language": kernel.language,
        "shapes": list(kernel.shapes),
        "symbols": list(kernel.symbols),
        "code": kernel.code,
        "code_sha256": digest,
        "created_at": clock.now(),
    }


def add_verified(connection: Connection, kernel: VerifiedKernel) -> str:
    """Store a right kernel of a run as a sample of its chip, in place of the run's earlier one for
    this operator; returns its id."""
    connection.execute(
        t.samples.delete().where(
            t.samples.c.run_id == kernel.run_id,
            t.samples.c.operator == kernel.operator,
            t.samples.c.language == kernel.language,
        )
    )
    digest = sha256(kernel.code)
    identity = derived_id("smp", kernel.run_id, digest)
    row = {
        **_values(kernel, digest),
        "id": identity,
        "run_id": kernel.run_id,
        "hardware": [kernel.hardware],
        "status": "right",
        "evidence": kernel.evidence,
        "active": True,
    }
    connection.execute(t.samples.insert().values(row))
    bump_revision(connection)
    return identity


# -- recipes

RecipeStatus = Literal["proposed", "accepted", "rejected"]
RECIPE_ORIGIN = "sample"
BEGINNING = 60  # characters of a sample that identify it in a passage


@dataclass(frozen=True)
class ProposedRecipe:
    """A code sample as a template with parameters. `name` is made of the section's title or the
    entry, `hardware` are the chips that it is for, `section` is its heading path, `body` is JSON as
    `ingestion.samples.recipes.body_of` describes it."""

    name: str
    language: str
    hardware: tuple[str, ...]
    section: tuple[str, ...]
    code: str
    body: Mapping[str, Any]


@dataclass(frozen=True)
class StoredRecipe:
    """A recipe; `passage_id` is the passage that its code begins in, `section` its heading path."""

    id: str
    name: str
    language: str
    hardware: tuple[str, ...]
    status: str
    document_id: str
    document_title: str
    section: tuple[str, ...]
    passage_id: str | None
    body: Mapping[str, Any]


def list_recipes(
    connection: Connection,
    hardware: Sequence[str] | None = None,
    statuses: Sequence[RecipeStatus] = ("proposed", "accepted", "rejected"),
    access_scope: AccessScope = ALL_ACCESS,
) -> list[StoredRecipe]:
    """Recipes by document and name; with `hardware`, those for any of these ids."""
    rows = connection.execute(
        sa.select(t.recipes, t.documents.c.title.label("document_title"))
        .join(t.documents, t.documents.c.id == t.recipes.c.document_id)
        .where(
            t.recipes.c.origin == RECIPE_ORIGIN,
            t.recipes.c.status.in_(statuses),
            visible.read_from(t.recipes, access_scope),
        )
        .order_by(t.documents.c.title, t.recipes.c.name, t.recipes.c.id)
    )
    recipes = (
        record_of(
            StoredRecipe,
            row,
            hardware=access_scope.visible_hardware(tuple(row.hardware)),
            section=tuple(row.body.get("section", ())),
        )
        for row in rows
        if access_scope.sees(row.hardware)
    )
    return [
        recipe for recipe in recipes if hardware is None or set(recipe.hardware) & set(hardware)
    ]


def replace_document_recipes(
    connection: Connection, version: StoredVersion, recipes: Sequence[ProposedRecipe]
) -> None:
    document = version.document
    mine = sa.and_(t.recipes.c.document_id == document.id, t.recipes.c.origin == RECIPE_ORIGIN)
    before = connection.execute(sa.select(t.recipes.c.id, t.recipes.c.status).where(mine)).all()
    decided = {row.id: row.status for row in before}
    connection.execute(t.recipes.delete().where(mine))
    passages = _passages_by_path(connection, version.id, {recipe.section for recipe in recipes})
    seen: Counter[str] = Counter()
    for recipe in recipes:
        code = sha256(recipe.code)
        # Samples with the same text differ by their order.
        identity = derived_id("rcp", document.id, code, seen[code])
        seen[code] += 1
        connection.execute(
            t.recipes.insert().values(
                id=identity,
                name=recipe.name,
                language=recipe.language,
                document_id=document.id,
                passage_id=_beginning(recipe, passages[recipe.section]),
                hardware=list(recipe.hardware),
                body={**recipe.body, "section": list(recipe.section)},
                status=decided.get(identity, "proposed"),
                origin=RECIPE_ORIGIN,
                created_at=clock.now(),
                access_scope=document.access_scope,
            )
        )


def _passages_by_path(
    connection: Connection, version_id: str, sections: Set[tuple[str, ...]]
) -> dict[tuple[str, ...], list[tuple[str, str]]]:
    """(id, text without white space) of the passages under each heading path, in reading order."""
    passages: dict[tuple[str, ...], list[tuple[str, str]]] = {path: [] for path in sections}
    if not sections:
        return passages
    rows = connection.execute(
        sa.select(t.passages.c.id, t.passages.c.text, t.sections.c.path)
        .join(t.sections, t.sections.c.id == t.passages.c.section_id)
        .where(t.passages.c.version_id == version_id)
        .order_by(t.passages.c.ordinal)
    )
    for row in rows:
        if (path := tuple(row.path)) in passages:
            passages[path].append((row.id, "".join(row.text.split())))
    return passages


def _beginning(recipe: ProposedRecipe, passages: Sequence[tuple[str, str]]) -> str | None:
    """The passage that the sample begins in: a short sample shares a passage with the text around
    it."""
    beginning = "".join(recipe.code.split())[:BEGINNING]
    return next((id_ for id_, text in passages if beginning in text), None)


def decide_recipe(
    connection: Connection,
    recipe_id: str,
    status: RecipeStatus,
    access_scope: AccessScope = ALL_ACCESS,
) -> None:
    """Store a person's decision on a proposal. Raises NotFound."""
    mine = t.recipes.c.id == recipe_id, visible.read_from(t.recipes, access_scope)
    about = connection.scalar(sa.select(t.recipes.c.hardware).where(*mine))
    if about is not None and access_scope.sees(about):
        access_scope.check_change(about, f"the recipe {recipe_id}")
    changed = connection.execute(
        t.recipes.update().where(*mine, t.recipes.c.origin == RECIPE_ORIGIN).values(status=status)
    )
    if changed.rowcount != 1:
        raise NotFound(
            f"no proposed recipe {recipe_id[:80]!r}",
            hint="`kernlore knowledge recipes` lists them with ids.",
        )
