"""Documents: the list, one document with its versions and sections, and deletion.

A deletion removes rows in one transaction, and SQLite writes zeros over them. Stored files, words
in segments of the lexical index and pages of the write-ahead log still hold text then: the deletion
notes that in its own transaction, and `erase_deleted` removes them; after a crash in between the
next call does.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from kb.blobs import Blobs
from kb.catalog import meta, visible
from kb.catalog import tables as t
from kb.catalog.engine import Catalog, columns_of, record_of, select_in
from kb.catalog.facts import Withdrawn, documents_gone, withdraw_facts
from kb.catalog.knowledge import drafts, embeddings
from kb.catalog.knowledge.versions import check_document, deactivate
from kb.catalog.meta import bump_documents
from kb.errors import NotFound, StoreAway, UnrelatedVersion
from kb.scope import ALL_ACCESS, AccessScope


@dataclass(frozen=True)
class Version:
    """One content hash of a document, read by one pipeline. `report` is the ingestion report."""

    id: str
    number: int
    state: str
    sha256: str
    pipeline: str
    file_name: str
    format: str
    size_bytes: int
    blob_key: str
    report: Mapping[str, Any]
    created_at: str


@dataclass(frozen=True)
class Document:
    """`version` is the current one, else the newest; `job` its latest job's id and state."""

    id: str
    source_key: str
    title: str
    category: str
    origin: str
    hardware: tuple[str, ...]
    languages: tuple[str, ...]
    created_at: str
    updated_at: str
    passages: int
    version: Version | None
    job_id: str | None
    job_state: str | None


@dataclass(frozen=True)
class Section:
    """A heading with the number of its passages; `hardware` None inherits the scope above it."""

    id: str
    parent_id: str | None
    level: int
    heading: str
    path: tuple[str, ...]
    page_index: int | None
    page_label: str | None
    hardware: tuple[str, ...] | None
    passages: int


class Documents:
    """Every method sees only rows that `access_scope` may see."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def find(
        self,
        *,
        hardware: str | None = None,
        category: str | None = None,
        words: str = "",
        builtin: bool | None = None,
        newest: bool = False,
        limit: int | None = None,
        offset: int = 0,
        access_scope: AccessScope = ALL_ACCESS,
    ) -> list[Document]:
        """Documents by category, then title, or with `newest` by the time of their last change.
        `hardware`: only those scoped to exactly this id; `words`: only those that have each of them
        in title or source key; `builtin`: only built-in ones, or only others; with `limit`, at most
        that many after the first `offset`."""
        where = _conditions(hardware, category, words, builtin, access_scope)
        query = sa.select(t.documents).where(*where).limit(limit).offset(offset)
        order: list[Any] = [t.documents.c.updated_at.desc()] if newest else []
        order += [t.documents.c.category, t.documents.c.title, t.documents.c.id]
        query = query.order_by(*order)
        with self._catalog.read() as connection:
            return _complete(connection, connection.execute(query).all(), access_scope)

    def count(
        self,
        *,
        hardware: str | None = None,
        category: str | None = None,
        words: str = "",
        builtin: bool | None = None,
        access_scope: AccessScope = ALL_ACCESS,
    ) -> int:
        """How many documents `find` has without a limit."""
        where = _conditions(hardware, category, words, builtin, access_scope)
        query = sa.select(sa.func.count(t.documents.c.id)).where(*where)
        with self._catalog.read() as connection:
            return int(connection.execute(query).scalar_one())

    def unread(self, origin: str, states: Sequence[str] = ("staged", "failed")) -> int:
        """How many documents of this origin have a newest version in one of these states."""
        newer = t.document_versions.alias()
        newest = (
            sa.select(sa.func.max(newer.c.number))
            .where(newer.c.document_id == t.document_versions.c.document_id)
            .scalar_subquery()
        )
        query = (
            sa.select(sa.func.count())
            .select_from(t.document_versions)
            .join(t.documents, t.documents.c.id == t.document_versions.c.document_id)
            .where(
                t.documents.c.origin == origin,
                t.document_versions.c.state.in_(states),
                t.document_versions.c.number == newest,
            )
        )
        with self._catalog.read() as connection:
            return int(connection.execute(query).scalar_one())

    def get(self, document_id: str, *, access_scope: AccessScope = ALL_ACCESS) -> Document:
        """The document with this id. Raises NotFound, also if the caller may not see it."""
        with self._catalog.read() as connection:
            row = self._row(connection, document_id, access_scope)
            return _complete(connection, [row], access_scope)[0]

    def versions(
        self, document_id: str, *, access_scope: AccessScope = ALL_ACCESS
    ) -> list[Version]:
        """All versions, newest first."""
        with self._catalog.read() as connection:
            self._row(connection, document_id, access_scope)
            rows = connection.execute(
                sa.select(*columns_of(t.document_versions, Version))
                .where(t.document_versions.c.document_id == document_id)
                .order_by(t.document_versions.c.number.desc())
            )
            return [record_of(Version, row) for row in rows]

    def sections(
        self,
        document_id: str,
        *,
        version: int | None = None,
        access_scope: AccessScope = ALL_ACCESS,
    ) -> list[Section]:
        """The heading tree of the current version (or of a numbered one) in reading order."""
        with self._catalog.read() as connection:
            version_id = self.version_id(connection, document_id, version, access_scope)
            counts = (
                sa.select(t.passages.c.section_id, sa.func.count().label("n"))
                .where(t.passages.c.version_id == version_id, visible.passages(access_scope))
                .group_by(t.passages.c.section_id)
                .subquery()
            )
            rows = connection.execute(
                sa.select(t.sections, sa.func.coalesce(counts.c.n, 0).label("passages"))
                .outerjoin(counts, counts.c.section_id == t.sections.c.id)
                .where(t.sections.c.version_id == version_id)
                .order_by(t.sections.c.ordinal)
            )
            return [
                record_of(Section, row, hardware=_named(row.hardware_scope, access_scope))
                for row in rows
                if access_scope.sees(row.hardware_scope or ())
            ]

    def version_id(
        self,
        connection: Connection,
        document_id: str,
        number: int | None,
        access_scope: AccessScope,
    ) -> str:
        """The id of a numbered version, or of the current one. Raises NotFound."""
        row = self._row(connection, document_id, access_scope)
        if number is None and row.current_version_id is not None:
            return str(row.current_version_id)
        versions = t.document_versions
        query = sa.select(versions.c.id).where(versions.c.document_id == document_id)
        if number is not None:
            query = query.where(versions.c.number == number)
        version_id = connection.scalar(query.order_by(versions.c.number.desc()).limit(1))
        if version_id is None:
            raise NotFound(
                f"document {document_id} has no version {number}",
                hint=f"GET /documents/{document_id} lists its versions.",
            )
        return str(version_id)

    def delete(self, document_id: str, *, access_scope: AccessScope = ALL_ACCESS) -> Withdrawn:
        """Remove a document with everything derived from it, accepted facts and drafts that quote
        it included; returns the removed facts. `erase_deleted` then removes its stored files and
        the rest of its text."""
        with self._catalog.write() as connection:
            self._row(connection, document_id, access_scope)
            check_document(connection, document_id, access_scope)
            keys = connection.scalars(
                sa.select(t.document_versions.c.blob_key).where(
                    t.document_versions.c.document_id == document_id
                )
            )
            owe_erasure(connection, set(keys))
            texts = connection.scalars(
                sa.select(t.passages.c.embed_sha256)
                .distinct()
                .where(t.passages.c.document_id == document_id)
            )
            embedded = list(texts)
            deactivate(connection, document_id)
            withdrawn = withdraw_facts(connection, document_id)
            drafts.withdraw(connection, document_id)
            connection.execute(t.work.delete().where(t.work.c.subject_id == document_id))
            connection.execute(t.documents.delete().where(t.documents.c.id == document_id))
            embeddings.delete_unused(connection, embedded)
            bump_documents(connection)
            return withdrawn

    def discard(
        self,
        document_id: str,
        version_id: str,
        job_id: str,
        *,
        access_scope: AccessScope = ALL_ACCESS,
    ) -> None:
        """Remove a version that was never stored, with its failed job."""
        versions = t.document_versions
        with self._catalog.write() as connection:
            check_document(connection, document_id, access_scope)
            chosen = sa.select(versions.c.blob_key).where(versions.c.id == version_id)
            key = connection.scalar(chosen)
            connection.execute(
                versions.delete().where(
                    versions.c.id == version_id,
                    versions.c.document_id == document_id,
                    versions.c.state == "failed",
                )
            )
            connection.execute(t.work.delete().where(t.work.c.id == job_id))
            if key is not None:
                owe_erasure(connection, [key])

    @staticmethod
    def _row(connection: Connection, document_id: str, access_scope: AccessScope) -> sa.Row[Any]:
        row = connection.execute(
            sa.select(t.documents).where(
                t.documents.c.id == document_id, visible.documents(access_scope)
            )
        ).one_or_none()
        if row is None:
            raise NotFound(f"no document {document_id!r}", hint="GET /documents lists them.")
        return row


def _conditions(
    hardware: str | None,
    category: str | None,
    words: str,
    builtin: bool | None,
    access: AccessScope,
) -> list[sa.ColumnElement[bool]]:
    text = t.documents.c.title.concat(" ").concat(t.documents.c.source_key)
    conditions = [visible.documents(access)]
    conditions += [text.icontains(word, autoescape=True) for word in words.split()]
    if category is not None:
        conditions.append(t.documents.c.category == category)
    if builtin is not None:
        origin = t.documents.c.origin
        conditions.append(origin == "builtin" if builtin else origin != "builtin")
    if hardware is not None:
        about = sa.select(t.document_scopes.c.document_id).where(
            t.document_scopes.c.kind == "hardware", t.document_scopes.c.value == hardware
        )
        conditions.append(t.documents.c.id.in_(about))
    return conditions


def _complete(
    connection: Connection, rows: Sequence[sa.Row[Any]], access: AccessScope
) -> list[Document]:
    """Fetch the other parts of documents in one query a table, not one a document."""
    ids = [row.id for row in rows]
    scopes: dict[tuple[str, str], list[str]] = {}
    query = sa.select(t.document_scopes).order_by(t.document_scopes.c.value)
    for row in select_in(connection, query, t.document_scopes.c.document_id, ids):
        scopes.setdefault((row.document_id, row.kind), []).append(row.value)
    about = t.passages.c.document_id
    counted = sa.select(about, sa.func.count().label("n")).group_by(about)
    counted = counted.where(t.passages.c.active.is_(True), visible.passages(access))
    counts = {row.document_id: int(row.n) for row in select_in(connection, counted, about, ids)}
    work = t.work.c
    jobs = sa.select(work.subject_id, work.id, work.state).order_by(work.created_at, work.id)
    latest_jobs = {
        row.subject_id: (row.id, row.state)
        for row in select_in(connection, jobs, work.subject_id, ids)
    }
    versions = _newest_versions(connection, ids)
    return [
        Document(
            row.id,
            _visible_key(row.source_key, scopes.get((row.id, "hardware"), ()), access),
            row.title,
            row.category,
            row.origin,
            access.visible_hardware(tuple(scopes.get((row.id, "hardware"), ()))),
            tuple(scopes.get((row.id, "language"), ())),
            row.created_at,
            row.updated_at,
            counts.get(row.id, 0),
            versions.get(row.id),
            *latest_jobs.get(row.id, (None, None)),
        )
        for row in rows
    ]


def _visible_key(key: str, hardware: Sequence[str], access: AccessScope) -> str:
    """The source key, without its first part where that may name hardware that the caller does not
    see: that of the document, or of the key with which it was uploaded."""
    first, _, rest = key.rpartition("/")
    hidden = len(access.visible_hardware(tuple(hardware))) < len(hardware)
    uploader = access.restricted and "+" in first and first != "+".join(sorted(access.own))
    return rest if hidden or uploader else key


def _named(hardware: list[str] | None, access: AccessScope) -> tuple[str, ...] | None:
    return None if hardware is None else access.visible_hardware(tuple(hardware))


def _newest_versions(connection: Connection, ids: list[str]) -> dict[str, Version]:
    """Per document the current version, else the newest."""
    columns = t.document_versions.c
    query = sa.select(columns.document_id, *columns_of(t.document_versions, Version))
    chosen: dict[str, Version] = {}
    for row in select_in(connection, query.order_by(columns.number), columns.document_id, ids):
        known = chosen.get(row.document_id)
        if known is None or known.state != "current":
            chosen[row.document_id] = record_of(Version, row)
    return chosen


def languages_of(
    connection: Connection, hardware_id: str, access_scope: AccessScope
) -> tuple[str, ...]:
    """The languages of current documents about exactly this hardware, by name."""
    about, language = t.document_scopes.alias(), t.document_scopes.alias()
    rows = connection.execute(
        sa.select(language.c.value)
        .distinct()
        .join(about, about.c.document_id == language.c.document_id)
        .join(t.documents, t.documents.c.id == language.c.document_id)
        .where(
            language.c.kind == "language",
            about.c.kind == "hardware",
            about.c.value == hardware_id,
            visible.documents(access_scope),
            t.documents.c.current_version_id.is_not(None),
        )
        .order_by(language.c.value)
    )
    return tuple(rows.scalars())


# -- erasure

_OWED = "erasures_owed"  # keys of stored files; None: nothing
_COUNT = "erasures"  # number of removals of stored files


def owe_erasure(connection: Connection, blob_keys: Collection[str]) -> None:
    """Note the stored files that the deletion of this transaction leaves to `erase_deleted`."""
    owed = meta.get(connection, _OWED) or ()
    meta.put(connection, _OWED, sorted({*owed, *blob_keys}))


def is_erasure_owed(catalog: Catalog) -> bool:
    """Whether a deletion has left something to `erase_deleted`."""
    with catalog.read() as connection:
        return meta.get(connection, _OWED) is not None


def erase_deleted(catalog: Catalog, blobs: Blobs) -> bool:
    """Finish all deletions. Returns False if another process still reads an earlier snapshot of the
    catalog: the log holds the text until the next call. Raises StoreAway if the files cannot be
    removed now; the next call removes them."""
    if not is_erasure_owed(catalog):
        return True
    away: StoreAway | None = None
    try:
        blobs.check()  # wait for a silent server before holding the write lock
    except StoreAway as error:
        away = error
    # Under the write lock: the same file may not be stored again between the look and the removal.
    with catalog.write() as connection:
        owed = meta.get(connection, _OWED) or ()
        try:
            for key in _unused_blobs(connection, owed) if away is None else ():
                blobs.delete(key)
        except StoreAway as error:
            away = error  # the words are removed all the same
        meta.put(connection, _COUNT, count_erasures(connection) + 1)
    if not catalog.empty_log():
        return False
    if away is not None:
        raise away
    with catalog.write() as connection:
        if meta.get(connection, _OWED) == owed:  # else something was deleted meanwhile
            meta.put(connection, _OWED, None)
    return True


def _unused_blobs(connection: Connection, blob_keys: Collection[str]) -> list[str]:
    """The keys without a version that uses the file."""
    column = t.document_versions.c.blob_key
    rows = select_in(connection, sa.select(column), column, blob_keys)
    return sorted(set(blob_keys) - {row.blob_key for row in rows})


def is_blob_in_use(connection: Connection, blob_key: str) -> bool:
    """Whether a version uses the file of the key."""
    return not _unused_blobs(connection, [blob_key])


def count_erasures(connection: Connection) -> int:
    """How many times stored files were removed."""
    return int(meta.get(connection, _COUNT) or 0)


def blobs_maybe_gone(
    connection: Connection, blob_keys: Collection[str], count_before: int
) -> Collection[str]:
    """Those files that were stored when the count was `count_before` and may have been removed
    since. In a transaction that writes, the answer holds until its end."""
    owed = meta.get(connection, _OWED) or ()
    return blob_keys if count_erasures(connection) != count_before else {*blob_keys} & {*owed}


def remove_orphan_facts(catalog: Catalog) -> int:
    """Remove the facts of deleted documents; returns the number of documents. Earlier releases left
    accepted ones, with a quotation; `erase_deleted` then removes them from the files."""
    with catalog.read() as connection:
        if not documents_gone(connection):  # the usual case, which needs no write lock
            return 0
    with catalog.write() as connection:
        gone = documents_gone(connection)
        for document_id in gone:
            withdraw_facts(connection, document_id)
        owe_erasure(connection, ())
    return len(gone)


# -- text that versions share
#
# A version that shares hardly any text with the current one under another title is not stored
# until its sender confirms it. Remarks tell the uploader of two manuals under one name, or one
# under two.

MAX_TEXT = 200_000  # characters of a version that are compared
RUN = 4  # words in a row that count as the same text
UNRELATED = 0.4  # a revision shares more of its runs with the version before, even if reworded
HARDLY = 0.05
COMPARABLE = 40  # runs of a version whose title alone does not show that it is a revision
CONFIRMED = 0.2  # up to this share, a version with another title needs a confirmation
SAME = 0.6  # from this share on, two documents look like one
_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class EarlierDocument:
    """The state of a document before a version of it was stored."""

    title: str
    version_id: str | None


def earlier_document(connection: Connection, document_id: str) -> EarlierDocument:
    """Read it before the new version is made current."""
    row = connection.execute(
        sa.select(t.documents.c.title, t.documents.c.current_version_id).where(
            t.documents.c.id == document_id
        )
    ).one()
    return EarlierDocument(row.title, row.current_version_id)


def check_replacement(
    connection: Connection, earlier: EarlierDocument, title: str, texts: Iterable[str]
) -> None:
    """Raise UnrelatedVersion if a version with these passages is about something else than the
    current version of its document."""
    if earlier.version_id is None:
        return
    new, old = _runs(texts), _stored_runs(connection, earlier.version_id)
    share = len(new & old) / max(1, min(len(new), len(old)))
    same_title = _folded(title) == _folded(earlier.title)
    if share > (0 if same_title else CONFIRMED) or (same_title and len(new) < COMPARABLE):
        return
    raise UnrelatedVersion(
        f"'{title}' would replace '{earlier.title}', with which it shares {_shared(share)}",
        hint="Nothing was replaced. Decide about the job (`kernlore jobs decide`): replace,"
        " separate (keep both) or discard; or send the file with replace=true, or with another"
        " source_key.",
        details={"replaces": earlier.title, "share": round(share, 3)},
    )


def remarks(connection: Connection, version_id: str, earlier: EarlierDocument) -> list[str]:
    """One line for an unrelated document that this version replaces, and one for another document
    with mostly the same text. The version is stored and current."""
    document = connection.execute(
        sa.select(t.documents)
        .join(t.document_versions, t.document_versions.c.document_id == t.documents.c.id)
        .where(t.document_versions.c.id == version_id)
    ).one()
    said = [_replaced(connection, document.title, version_id, earlier)]
    said.append(_doubled(connection, document, version_id))
    return [line for line in said if line]


def _replaced(connection: Connection, title: str, version_id: str, earlier: EarlierDocument) -> str:
    if earlier.version_id in (None, version_id) or _folded(title) == _folded(earlier.title):
        return ""
    new = _stored_runs(connection, version_id)
    old = _stored_runs(connection, str(earlier.version_id))
    share = len(new & old) / max(1, min(len(new), len(old)))
    if share > UNRELATED:
        return ""
    return (
        f"replaces '{earlier.title}', with which it shares {_shared(share)}; `kernlore documents"
        " restore` takes this back"
    )


def _shared(share: float) -> str:
    if not share:
        return "no text"
    return f"{int(100 * share)} % of its text" if share > HARDLY else "hardly any text"


def _stored_runs(connection: Connection, version_id: str) -> set[tuple[str, ...]]:
    """The runs of words of a version's passages."""
    return _runs(
        connection.execute(
            sa.select(t.passages.c.text)
            .where(t.passages.c.version_id == version_id)
            .order_by(t.passages.c.ordinal)
        ).scalars()
    )


def _runs(texts: Iterable[str]) -> set[tuple[str, ...]]:
    runs: set[tuple[str, ...]] = set()
    left = MAX_TEXT
    for text in texts:
        words = _WORD.findall(text[:left].lower())
        runs.update(zip(*(words[n:] for n in range(RUN)), strict=False))
        left -= len(text)
        if left <= 0:
            break
    return runs


def _doubled(connection: Connection, document: sa.Row[tuple[object, ...]], version_id: str) -> str:
    """Identical passages are known by their hash."""
    own = t.passages.alias()
    mine = dict(
        connection.execute(
            sa.select(own.c.text_sha256, sa.func.max(sa.func.length(own.c.text)))
            .where(own.c.version_id == version_id)
            .group_by(own.c.text_sha256)
        ).all()
    )
    rows = connection.execute(
        sa.select(t.passages.c.document_id, t.passages.c.text_sha256)
        .distinct()
        .where(
            t.passages.c.document_id.in_(_siblings(document)),
            t.passages.c.active.is_(True),
            t.passages.c.text_sha256.in_(
                sa.select(own.c.text_sha256).where(own.c.version_id == version_id)
            ),
        )
    ).all()
    shared: dict[str, int] = {}
    for other, sha in rows:
        shared[other] = shared.get(other, 0) + mine[sha]
    if not shared:
        return ""
    nearest = max(sorted(shared), key=lambda other: shared[other])
    share = shared[nearest] / max(1, sum(mine.values()))
    if share < SAME:
        return ""
    other = connection.execute(
        sa.select(t.documents.c.title, t.documents.c.source_key).where(t.documents.c.id == nearest)
    ).one()
    return (
        f"shares {int(100 * share)} % of its text with '{other.title}' ({other.source_key}); if"
        " it replaces that one, delete this document and upload it with --source-key"
        f" '{other.source_key}'"
    )


def _siblings(document: sa.Row[tuple[object, ...]]) -> sa.Select[tuple[str]]:
    """The uploaded documents about a hardware that this one is about, of the same owner."""
    scope, of = t.document_scopes.alias(), t.document_scopes
    hardware = sa.select(of.c.value).where(of.c.document_id == document.id, of.c.kind == "hardware")
    return (
        sa.select(t.documents.c.id)
        .join(scope, scope.c.document_id == t.documents.c.id)
        .where(
            scope.c.kind == "hardware",
            scope.c.value.in_(hardware),
            t.documents.c.id != document.id,
            t.documents.c.origin == "upload",
            t.documents.c.access_scope == document.access_scope,
        )
    )


def _folded(text: str) -> str:
    return " ".join(text.split()).casefold()
