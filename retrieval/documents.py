"""Documents: list, show with versions and passages, correct, delete.

Every function sees and changes only what `base.access` allows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Le, MaxLen, MinLen

from kb.catalog.jobs import JobState
from kb.catalog.knowledge import corrections, moves
from kb.catalog.knowledge import passages as passage_rows
from kb.catalog.knowledge.corrections import UnfitCorrection
from kb.catalog.knowledge.documents import Document, Section, Version, erase_deleted
from kb.catalog.knowledge.moves import StoredMove
from kb.catalog.knowledge.passages import Passage, Patch
from kb.catalog.knowledge.samples import RecipeStatus, StoredRecipe, decide_recipe, list_recipes
from kb.catalog.knowledge.versions import check_document, succession_of
from kb.embedding import embedding_text
from kb.errors import InvalidRequest, NotFound, StoreAway, unknown_word
from kb.plain import Doc
from kb.scope import ANY, CATEGORIES, Category
from retrieval.diagnose.signals import load_signals
from retrieval.knowledge_base import KnowledgeBase


@dataclass(frozen=True)
class OriginalFile:
    """A file as it was uploaded. `format` is the detected one, like `pdf` or `markdown`."""

    name: str
    format: str
    sha256: str
    data: bytes


@dataclass(frozen=True)
class DocumentVersion:
    """One content of a document."""

    id: str
    number: int
    state: Annotated[str, Doc("staged, current, superseded or failed.")]
    sha256: str
    pipeline: Annotated[str, Doc("Fingerprint of the reader that read it.")]
    file_name: str
    format: str
    size_bytes: int
    created_at: str


@dataclass(frozen=True)
class ListedDocument:
    """A logical manual, known by its source key."""

    id: str
    source_key: str
    title: str
    category: Category
    origin: Annotated[str, Doc("builtin, upload, or draft: accepted drafts of a model.")]
    hardware: tuple[str, ...]
    languages: tuple[str, ...]
    created_at: str
    updated_at: str
    passages: int
    version: Annotated[DocumentVersion | None, Doc("The current version.")]
    job_id: str | None
    job_state: JobState | None


@dataclass(frozen=True)
class ListedDocuments:
    """Documents by category and title."""

    documents: list[ListedDocument]
    total: int


@dataclass(frozen=True)
class ShownDocument(ListedDocument):
    """A document with its versions, newest first."""

    report: Annotated[
        Mapping[str, Any], Doc("Contents read from the current version: pages, warnings, ...")
    ]
    corrections_unfit: Annotated[
        list[UnfitCorrection],
        Doc("No longer applicable; a new correction under the same headings replaces it."),
    ]
    versions: list[DocumentVersion]


@dataclass(frozen=True)
class DeletedDocument:
    """A deleted document."""

    id: str
    facts_removed: Annotated[int, Doc("Facts read from it, which were removed with it.")]
    accepted_facts_removed: Annotated[int, Doc("How many of them had been accepted.")]
    facts_stated_elsewhere: Annotated[
        int, Doc("How many of the accepted values still hold, because another source states them.")
    ]
    deleted: Literal[True]
    note: Annotated[str | None, Doc("Only for a document that the next start loads again.")] = None


@dataclass(frozen=True)
class OfDocument:
    """The document of a passage, and the number of its version."""

    id: str
    title: str
    version: int


@dataclass(frozen=True)
class OfSection:
    """The section of a passage, with its headings from the outermost."""

    id: str
    path: tuple[str, ...]


@dataclass(frozen=True)
class PassagePage:
    """`index` counts from 0; `label` is printed on the page."""

    index: int
    label: str | None


@dataclass(frozen=True)
class PassageTag:
    """A signal or a topic of a passage."""

    kind: str
    value: str


@dataclass(frozen=True)
class Tag:
    """A label to give to a passage: a signal id or a topic."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    kind: Literal["signal", "topic"]
    value: Annotated[str, MinLen(1), MaxLen(100)]


@dataclass(frozen=True)
class ShownPassage:
    """The indexed unit of a document."""

    id: str
    document: OfDocument
    category: Category
    section: OfSection
    ordinal: int
    kind: str
    lead: Annotated[str, Doc("Caption and header rows of a table that goes on here.")]
    text: str
    language: str | None
    page: PassagePage | None
    boxes: Annotated[tuple[Mapping[str, Any], ...], Doc("Its places on the page.")]
    hardware: tuple[str, ...]
    tags: list[PassageTag]
    corrected: bool


@dataclass(frozen=True)
class OnePassage(ShownPassage):
    """A passage, and whether its document has a newer version."""

    superseded: Annotated[bool, Doc("Whether another version replaced that of the passage.")]
    current_passage: Annotated[
        str | None, Doc("The passage that replaced it in the current version, where known.")
    ]


@dataclass(frozen=True)
class ListedPassages:
    """Passages in reading order. `total` counts all of the document or section."""

    passages: list[ShownPassage]
    total: int
    offset: int
    limit: int


@dataclass(frozen=True)
class Sections:
    """The headings of a document in reading order."""

    sections: list[Section]


@dataclass(frozen=True)
class DocumentMoves:
    """The remedies that a document states."""

    moves: list[StoredMove]


@dataclass(frozen=True)
class DroppedCorrection:
    """A dropped correction."""

    id: str
    document_id: str
    dropped: bool


@dataclass(frozen=True)
class ProposedRecipes:
    """Recipes proposed from manuals."""

    recipes: list[StoredRecipe]


VersionNumber = Annotated[
    int | None, Doc("Number of a version. Default: the current one."), Ge(1), Le(10**9)
]


def list_documents(
    base: KnowledgeBase,
    hardware: Annotated[
        str, Doc("Only documents about exactly this hardware (id, name or alias).")
    ] = "",
    category: Annotated[Category | None, Doc("Only documents of this category.")] = None,
    q: Annotated[str, Doc("Words that title or source key must have."), MaxLen(400)] = "",
    origin: Annotated[
        Literal["builtin", "upload"] | None, Doc("Only built-in documents, or only uploads.")
    ] = None,
    limit: Annotated[
        int | None, Doc("Documents to return. Default: all."), Ge(1), Le(10_000)
    ] = None,
    offset: Annotated[int, Doc("Documents to skip."), Ge(0)] = 0,
) -> ListedDocuments:
    """Documents by category and title. `total` counts those of all pages."""
    page = page_of_documents(
        base,
        limit=limit,
        offset=offset,
        hardware=hardware,
        category=category,
        words=q,
        origin=origin,
    )
    return ListedDocuments(*page)


def page_of_documents(
    base: KnowledgeBase,
    *,
    limit: int | None = None,
    offset: int = 0,
    hardware: str = "",
    category: str | None = None,
    words: str = "",
    origin: str | None = None,
    newest: bool = False,
) -> tuple[list[ListedDocument], int]:
    """At most `limit` documents by category and title, or the `newest` first, after the first
    `offset`, and the number of all. `words` must each occur in title or source key. Raises
    UnknownHardware, and InvalidRequest for an unknown category."""
    if category is not None and category not in CATEGORIES:
        raise unknown_word("category", category, CATEGORIES)
    filters: dict[str, Any] = {
        "hardware": base.registry.resolve(hardware) if hardware else None,
        "category": category,
        "words": words,
        "builtin": None if origin is None else origin == "builtin",
        "access_scope": base.access,
    }
    rows = base.documents.find(limit=limit, offset=offset, newest=newest, **filters)
    listed = [ListedDocument(**_listed(row)) for row in rows]
    whole = limit is None and not offset
    return listed, len(rows) if whole else base.documents.count(**filters)


def show_document(base: KnowledgeBase, document_id: str) -> ShownDocument:
    """`report` covers the current version: pages, tables, warnings."""
    document = base.documents.get(document_id, access_scope=base.access)
    versions = base.documents.versions(document_id, access_scope=base.access)
    with base.catalog.read() as connection:
        unfit = corrections.unfit(connection, document_id, base.access)
    return ShownDocument(
        **_listed(document),
        report=document.version.report if document.version else {},
        corrections_unfit=unfit,
        versions=[_version(version) for version in versions],
    )


def drop_correction(base: KnowledgeBase, document_id: str, correction_id: str) -> DroppedCorrection:
    """`corrections_unfit` of the document lists them: of passages, of headings and of cards."""
    base.documents.get(document_id, access_scope=base.access)
    with base.catalog.write() as connection:
        check_document(connection, document_id, base.access)
        unfit = {entry.id for entry in corrections.unfit(connection, document_id, base.access)}
        if correction_id not in unfit or not corrections.drop(
            connection, document_id, correction_id
        ):
            raise NotFound(
                f"no correction {correction_id!r} that no longer fits",
                hint=f"GET /documents/{document_id} lists them.",
            )
    return DroppedCorrection(correction_id, document_id, True)


def delete_document(base: KnowledgeBase, document_id: str) -> DeletedDocument:
    """After the response, no answer contains any part of the document."""
    document = base.documents.get(document_id, access_scope=base.access)
    facts = base.documents.delete(document_id, access_scope=base.access)
    base.snapshots.publish()  # removes it from answers and from the snapshot files
    note: str | None = None
    try:
        erased = erase_deleted(base.catalog, base.blobs)
    except StoreAway as error:
        note = f"No answer has it any more. Its stored file is removed later: {error.message}."
    else:
        if document.origin == "builtin":
            note = "It is built in: the next start loads it again while its file exists."
        elif not erased:
            note = (
                "No answer has it any more. Another process reads the catalog as it was, so its"
                " text is overwritten in the files by the next deletion or the next start of the"
                " service."
            )
    return DeletedDocument(
        document_id, facts.removed, facts.accepted, facts.stated_elsewhere, True, note
    )


def original_file(
    base: KnowledgeBase, document_id: str, version: int | None = None
) -> OriginalFile:
    """The uploaded file of a version; without a number, of the current one. Raises NotFound."""
    document = base.documents.get(document_id, access_scope=base.access)
    stored = _numbered_version(base, document, version)
    name = stored.file_name.rsplit("/", 1)[-1]
    return OriginalFile(name, stored.format, stored.sha256, base.blobs.get(stored.blob_key))


def list_sections(base: KnowledgeBase, document_id: str, version: VersionNumber = None) -> Sections:
    """Headings in reading order, each with its level and its number of passages."""
    return Sections(base.documents.sections(document_id, version=version, access_scope=base.access))


def list_moves(base: KnowledgeBase, document_id: str) -> DocumentMoves:
    """Moves: a condition, a change of the kernel, and a reason."""
    base.documents.get(document_id, access_scope=base.access)
    with base.catalog.read() as connection:
        return DocumentMoves(moves.of_document(connection, document_id, base.access))


def list_passages(
    base: KnowledgeBase,
    document_id: str,
    section: Annotated[str | None, Doc("Only passages of this section id.")] = None,
    version: VersionNumber = None,
    offset: Annotated[int, Doc("Passages to skip."), Ge(0), Le(10**9)] = 0,
    limit: Annotated[int, Doc("Passages to return."), Ge(1), Le(1000)] = 100,
) -> ListedPassages:
    """`total` counts all passages of the document, or of the section if one is given."""
    sections = base.documents.sections(document_id, version=version, access_scope=base.access)
    counts = {row.id: row.passages for row in sections}
    if section is not None and section not in counts:
        raise NotFound(
            f"no section {section[:80]!r} in this document",
            hint=f"GET /documents/{document_id}/sections lists them.",
        )
    with base.catalog.read() as connection:
        version_id = base.documents.version_id(connection, document_id, version, base.access)
        passages = passage_rows.of_version(
            connection,
            version_id,
            offset=offset,
            limit=limit,
            section_id=section,
            access_scope=base.access,
        )
    total = sum(counts.values()) if section is None else counts[section]
    shown = [ShownPassage(**_shown(passage)) for passage in passages]
    return ListedPassages(shown, total, offset, limit)


def show_passage(base: KnowledgeBase, passage_id: str) -> OnePassage:
    """Its text, page, boxes on the page, hardware and tags. A passage of an earlier version of its
    document is `superseded`, with the id of its `current_passage` where that is known."""
    with base.catalog.read() as connection:
        passage = passage_rows.get(connection, passage_id, base.access)
        place = succession_of(connection, passage_id, base.access)
    return OnePassage(
        **_shown(passage), superseded=place.superseded, current_passage=place.successor
    )


def correct_passage(
    base: KnowledgeBase,
    passage_id: str,
    text: Annotated[Annotated[str, MaxLen(100_000)] | None, Doc("The corrected text.")] = None,
    tags: Annotated[
        Annotated[list[Tag], MaxLen(100)] | None,
        Doc("All tags of the passage; they replace the present ones."),
    ] = None,
    hardware: Annotated[
        Annotated[list[Annotated[str, MaxLen(200)]], MaxLen(50)] | None,
        Doc("All hardware that it is about; an empty list means any hardware."),
    ] = None,
    actor: Annotated[str, Doc("Who makes the correction."), MaxLen(200)] = "api",
) -> ShownPassage:
    """The correction takes effect at once, and in every later revision that has the same text."""
    # A corrected text has no vector until an ingestion worker embeds it.
    if text is not None:
        with base.catalog.read() as connection:
            _check_length(base, passage_rows.get(connection, passage_id, base.access), text)
    for tag in tags or ():
        if tag.kind == "signal":
            load_signals().get(tag.value)
    scopes = None
    if hardware is not None:
        scopes = tuple(sorted({base.registry.resolve(name) for name in hardware if name != ANY}))
    pairs = None if tags is None else tuple((tag.kind, tag.value) for tag in tags)
    patch = Patch(text=text, tags=pairs, hardware=scopes)
    corrected = passage_rows.correct(
        base.catalog, passage_id, patch, actor, access_scope=base.access
    )
    return ShownPassage(**_shown(corrected))


def list_proposed_recipes(
    base: KnowledgeBase,
    hardware: Annotated[str, Doc("Only recipes for this chip, its family or its vendor.")] = "",
) -> ProposedRecipes:
    """Only a search on the manual's own hardware uses them; none of them is a skill."""
    lineage = None
    if hardware:
        lineage = base.registry.lineage(base.registry.resolve(hardware))
    with base.catalog.read() as connection:
        return ProposedRecipes(list_recipes(connection, lineage, access_scope=base.access))


@dataclass(frozen=True)
class DecidedRecipe:
    """A proposed recipe after the decision."""

    id: str
    status: RecipeStatus


def decide_proposed_recipe(
    base: KnowledgeBase, recipe_id: str, status: Annotated[RecipeStatus, Doc("The decision.")]
) -> DecidedRecipe:
    """Only an accepted recipe is used by a search."""
    with base.catalog.write() as connection:
        decide_recipe(connection, recipe_id, status, base.access)
    return DecidedRecipe(recipe_id, status)


def _numbered_version(base: KnowledgeBase, document: Document, number: int | None) -> Version:
    if number is None and document.version is not None:
        return document.version
    for version in base.documents.versions(document.id, access_scope=base.access):
        if version.number == number:
            return version
    raise NotFound(
        f"document {document.id} has no version {number}",
        hint=f"GET /documents/{document.id} lists its versions.",
    )


def _check_length(base: KnowledgeBase, passage: Passage, text: str) -> None:
    """Refuse a passage that exceeds the embedder's window."""
    embedder = base.embedder
    tokens = embedder.count_tokens(embedding_text(passage.path, passage.lead, text))
    if tokens > embedder.window:
        raise InvalidRequest(
            f"the text has {tokens} tokens with its heading; a passage holds {embedder.window}",
            hint="Shorten it, or correct the neighbouring passages too.",
            details={"tokens": tokens, "limit": embedder.window},
        )


def _listed(document: Document) -> dict[str, Any]:
    return {**vars(document), "version": document.version and _version(document.version)}


def _version(version: Version) -> DocumentVersion:
    return DocumentVersion(**{name: getattr(version, name) for name in _VERSION_FIELDS})


_VERSION_FIELDS = tuple(DocumentVersion.__dataclass_fields__)


def _shown(passage: Passage) -> dict[str, Any]:
    page = None
    if passage.page_index is not None:
        page = PassagePage(passage.page_index, passage.page_label)
    return {
        "id": passage.id,
        "document": OfDocument(passage.document_id, passage.document_title, passage.version),
        "category": passage.category,
        "section": OfSection(passage.section_id, passage.path),
        "ordinal": passage.ordinal,
        "kind": passage.kind,
        "lead": passage.lead,
        "text": passage.text,
        "language": passage.language,
        "page": page,
        "boxes": passage.boxes,
        "hardware": tuple(name for name in passage.hardware if name != ANY),
        "tags": [PassageTag(kind, value) for kind, value in passage.tags],
        "corrected": passage.corrected,
    }
