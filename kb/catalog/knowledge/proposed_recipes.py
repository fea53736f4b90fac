"""Recipes proposed from the code samples of uploaded manuals, in the catalog's table `recipes`.

Bodies are JSON that `ingestion.samples.recipes` writes and the search reads; nothing here looks
into one. They belong to their document: a new version replaces them, and what a person decided
about a sample that is still the same stays decided, whatever its section is called now. They are no
skills: nothing exports them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import sqlalchemy as sa
from sqlalchemy import Connection

from kb import clock
from kb.catalog import visible
from kb.catalog.tables import knowledge as t
from kb.errors import NotFound
from kb.ids import derived_id, sha256
from kb.scope import ALL_ACCESS, AccessScope

RecipeStatus = Literal["proposed", "accepted", "rejected"]
ORIGIN = "sample"
BEGINNING = 60  # characters that tell a sample from others


class RecipeLike(Protocol):
    """What a document proposes (ingestion.samples.recipes.ProposedRecipe)."""

    @property
    def name(self) -> str: ...
    @property
    def language(self) -> str: ...
    @property
    def hardware(self) -> tuple[str, ...]: ...
    @property
    def section(self) -> tuple[str, ...]: ...
    @property
    def code(self) -> str: ...
    @property
    def body(self) -> Mapping[str, Any]: ...


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


def replace_document_recipes(
    connection: Connection, version_id: str, recipes: Sequence[RecipeLike]
) -> int:
    """Replace the recipes that the document of this version proposes; returns their number."""
    document = connection.execute(
        sa.select(t.documents)
        .join(t.document_versions, t.document_versions.c.document_id == t.documents.c.id)
        .where(t.document_versions.c.id == version_id)
    ).one()
    mine = sa.and_(t.recipes.c.document_id == document.id, t.recipes.c.origin == ORIGIN)
    before = connection.execute(sa.select(t.recipes.c.id, t.recipes.c.status).where(mine)).all()
    decided = {row.id: row.status for row in before}
    connection.execute(t.recipes.delete().where(mine))
    passages = _passages(connection, version_id, {recipe.section for recipe in recipes})
    seen: Counter[str] = Counter()
    for recipe in recipes:
        code = sha256(recipe.code)
        # Samples with the same text are told apart by their order.
        identity = derived_id("rcp", document.id, code, seen[code])
        seen[code] += 1
        connection.execute(
            t.recipes.insert().values(
                id=identity,
                name=recipe.name,
                language=recipe.language,
                document_id=document.id,
                passage_id=_beginning(recipe, passages[recipe.section]),
                skill_id=None,
                hardware=list(recipe.hardware),
                body={**recipe.body, "section": list(recipe.section)},
                status=decided.get(identity, "proposed"),
                origin=ORIGIN,
                created_at=clock.now(),
                access_scope=document.access_scope,
            )
        )
    return len(recipes)


def _passages(
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


def _beginning(recipe: RecipeLike, passages: Sequence[tuple[str, str]]) -> str | None:
    """The passage that the sample begins in: short ones share one with the text around them."""
    beginning = "".join(recipe.code.split())[:BEGINNING]
    return next((id_ for id_, text in passages if beginning in text), None)


def listed(
    connection: Connection,
    hardware: Sequence[str] | None = None,
    statuses: Sequence[RecipeStatus] = ("proposed", "accepted", "rejected"),
    access_scope: AccessScope = ALL_ACCESS,
) -> list[StoredRecipe]:
    """Recipes by document and name; with `hardware`, those for any of these ids."""
    rows = connection.execute(
        sa.select(t.recipes, t.documents.c.title)
        .join(t.documents, t.documents.c.id == t.recipes.c.document_id)
        .where(
            t.recipes.c.origin == ORIGIN,
            t.recipes.c.status.in_(statuses),
            visible.read_from(t.recipes, access_scope),
        )
        .order_by(t.documents.c.title, t.recipes.c.name, t.recipes.c.id)
    )
    recipes = [
        replace(recipe, hardware=access_scope.named(recipe.hardware))
        for recipe in map(_stored, rows)
        if access_scope.sees(recipe.hardware)
    ]
    return [
        recipe for recipe in recipes if hardware is None or set(recipe.hardware) & set(hardware)
    ]


def decide(
    connection: Connection,
    recipe_id: str,
    status: RecipeStatus,
    access_scope: AccessScope = ALL_ACCESS,
) -> None:
    """Store a person's decision on a proposal. Raises NotFound."""
    about = connection.execute(
        sa.select(t.recipes.c.hardware).where(
            t.recipes.c.id == recipe_id, visible.read_from(t.recipes, access_scope)
        )
    ).scalar()
    if about is not None and access_scope.sees(about):
        access_scope.check_change(about, f"the recipe {recipe_id}")
    changed = connection.execute(
        t.recipes.update()
        .where(
            t.recipes.c.id == recipe_id,
            t.recipes.c.origin == ORIGIN,
            visible.read_from(t.recipes, access_scope),
        )
        .values(status=status)
    )
    if changed.rowcount != 1:
        raise NotFound(
            f"no proposed recipe {recipe_id[:80]!r}",
            hint="`kernlore knowledge recipes` lists them with ids.",
        )


def _stored(row: sa.Row[Any]) -> StoredRecipe:
    return StoredRecipe(
        id=row.id,
        name=row.name,
        language=row.language,
        hardware=tuple(row.hardware),
        status=row.status,
        document_id=row.document_id,
        document_title=row.title,
        section=tuple(row.body.get("section", ())),
        passage_id=row.passage_id,
        body=row.body,
    )
