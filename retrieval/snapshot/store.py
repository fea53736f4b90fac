"""The current snapshot of a process, and the files shared between processes.

A folder holds segments and `manifest.json`, which maps the catalog's documents to segments. A
process that finds the catalog changed publishes: it reads the changed documents, writes them as one
segment, and replaces the manifest. Files are derived data: a missing, damaged or foreign folder is
rebuilt from the catalog. A request continues with the snapshot it started with.

No process answers from a snapshot older than the last change that answers wait for
(`kb.catalog.meta`): a document can be found once it is read, and not after it is deleted, and a
quarantined skill is not shown. A deletion is published before it is acknowledged
(`SnapshotStore.publish`); then no file contains any part of the document.

Everything that depends on a text alone is computed once, when its document is published: tokens,
words, scopes, counts.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import secrets
import shutil
import threading
import tomllib
import zlib
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, cached_property
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import Any

import orjson
import sqlalchemy as sa
import structlog
from sqlalchemy import Connection

from kb import prompt_tokens, tokens
from kb.catalog import meta
from kb.catalog import tables as t
from kb.catalog.engine import Catalog, select_in
from kb.catalog.knowledge import samples, symbols
from kb.catalog.knowledge.drafts import (
    Reading,
    ReadLine,
    is_drafted,
    readings_of,
    signal_of,
    text_key,
)
from kb.catalog.knowledge.passages import About
from kb.catalog.knowledge.samples import Sample
from kb.catalog.knowledge.section_texts import Piece, section_text
from kb.catalog.knowledge.symbols import Symbol
from kb.catalog.meta import State
from kb.data_dir import private_folder
from kb.prompt_tokens import count_once
from kb.scope import ANY
from kb.tokens import shadow
from retrieval.snapshot import lexicon, ontology
from retrieval.snapshot.cache import Cache
from retrieval.snapshot.knowledge import Descriptions, Knowledge, read_knowledge
from retrieval.snapshot.lexicon import SectionTexts, Term, corrected, terms_of
from retrieval.snapshot.ontology import load_ontology
from retrieval.snapshot.segment import (
    DocumentRows,
    PassageRow,
    SectionRow,
    SegmentPart,
    StoredDocument,
    build_segment,
    merge_segments,
    open_segment,
    write_segment,
)
from retrieval.snapshot.snapshot import Snapshot
from retrieval.snapshot.words import HEADING_WEIGHT

# -- values of texts that ship with the built-in knowledge: search tokens, numbers of prompt tokens,
# and terms that documents define. Computing them takes half of the time of building a snapshot.
#
# A value is found by the digest of its text and of all that computes it. A text that has changed,
# or any text after a change of that code, is computed, so an outdated file costs time but never
# gives a wrong value. `kernlore knowledge vectors` writes the file.

TEXTS_FILE = "texts.json.z"
_TEXT_CODE = (tokens, prompt_tokens, lexicon, ontology)
log = structlog.get_logger(__name__)


class TextValues:
    """The values of a file; those that it lacks are computed. Without a file, `computed` keeps all
    values for `write`."""

    def __init__(self, path: Path | None = None) -> None:
        """`path` is the file; without one all values are computed."""
        self._path = path
        self.computed: dict[str, Any] = {}

    def words(self, text: str) -> str:
        """The search tokens of a text, as `kb.tokens.shadow` gives them."""
        return str(self._value("words", text, lambda: shadow(text)))

    def tokens(self, text: str) -> int:
        """The number of tokens of a text in a prompt."""
        return int(self._value("tokens", text, lambda: count_once(text)))

    def terms(self, sections: Sequence[SectionTexts]) -> list[Term]:
        """The terms that a document defines."""
        ids = [section.id for section in sections]

        def computed() -> list[list[Any]]:
            terms = terms_of(sections, load_ontology())
            return [[t.term, t.concept, t.how, t.quote, ids.index(t.section_id)] for t in terms]

        text = orjson.dumps([[section.path, section.texts] for section in sections]).decode()
        found = self._value("terms", text, computed)
        return [Term(term, of, how, quote, ids[at]) for term, of, how, quote, at in found]

    def write(self, path: Path) -> None:
        path.write_bytes(zlib.compress(orjson.dumps(self.computed, option=orjson.OPT_SORT_KEYS), 9))

    def _value(self, kind: str, text: str, computed: Callable[[], Any]) -> Any:
        key = blake2b(f"{kind}\n{text}".encode(), digest_size=12, key=_text_code()).hexdigest()
        value = self._shipped.get(key)
        if value is None:
            value = computed()
            if self._path is None:
                self.computed[key] = value
        return value

    @cached_property
    def _shipped(self) -> dict[str, Any]:
        try:
            shipped: dict[str, Any] = {}
            if self._path is not None:
                shipped = orjson.loads(zlib.decompress(self._path.read_bytes()))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, zlib.error) as error:
            log.warning("values of texts that ship cannot be read", reason=str(error))
            return {}
        return shipped


@cache
def _text_code() -> bytes:
    """The digest of the code and data that values depend on, except for their texts and the
    encoding of `kb.prompt_tokens`, which never changes."""
    sources = [Path(str(module.__file__)).read_bytes() for module in _TEXT_CODE]
    stemmer, concepts = version("snowballstemmer"), load_ontology().fingerprint
    return blake2b(b"\n".join((*sources, f"{stemmer} {concepts}".encode()))).digest()


# -- the store

FORMAT = 5  # version of segments and of values computed from texts
FOLDER, MANIFEST, LOCK = "snapshot", "manifest.json", "lock"
MOST_PASSAGES = 8_000  # of a segment built from documents; building takes 30 KB per passage
# passages; ratio of tiers; segments of one tier before they are merged
SMALL, GROWTH, MOST_ALIKE = 1_000, 8, 3
MOST_DEAD = 0.3  # share of a segment's passages


class SnapshotStore:
    """Provides the current snapshot of a catalog. Safe to share between threads."""

    def __init__(
        self,
        catalog: Catalog,
        model: str,
        heading_weight: float = HEADING_WEIGHT,
        folder: Path | None = None,
        shipped: Path | None = None,
    ) -> None:
        """`model` is the fingerprint of the embedding model; `heading_weight` is the weight of a
        word in a heading; `folder` defaults to that of the catalog's data directory; `shipped` is
        the file with values of the texts of built-in documents."""
        self._catalog = catalog
        self._model = model
        self._heading_weight = heading_weight
        self._folder = folder or catalog.data_dir / FOLDER
        self._shipped = TextValues(shipped)
        self._names = itertools.count()
        self._descriptions = Descriptions()
        self._lock = threading.Lock()  # held while publishing; protects the parts and the snapshot
        self._parts: tuple[SegmentPart, ...] = ()
        self._manifest = ""  # text of the manifest that the parts come from
        # The latest snapshot with a version of the catalog that it is valid for. One attribute: a
        # request that finds the version must not have read the snapshot before.
        self._latest: tuple[Snapshot | None, Hashable] = (None, None)
        self.cache = Cache()

    def current(self) -> Snapshot:
        """The current knowledge of the catalog. While another thread or process publishes, the
        previous one, unless answers wait for a change since."""
        version = self._catalog.version()
        latest = self._latest
        snapshot, valid_for = latest
        if snapshot is not None and version == valid_for:
            return snapshot
        with self._catalog.read() as connection:
            state = meta.state(connection)
        if snapshot is not None and snapshot.state == state:
            if self._latest is latest:
                self._latest = (snapshot, version)
            return snapshot
        wait = snapshot is None or state.awaited > snapshot.state.revision
        if not self._lock.acquire(blocking=wait):
            assert snapshot is not None
            return snapshot
        try:
            return self._published(wait) or self._published(wait=True)  # type: ignore[return-value]
        finally:
            self._lock.release()

    def publish(self) -> Snapshot:
        """Publish the current knowledge of the catalog, in this process and in the files."""
        with self._lock:
            snapshot = self._published(wait=True)
            assert snapshot is not None
            return snapshot

    def rebuild(self) -> Snapshot:
        """Publish from the catalog alone, without the files."""
        with self._lock:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._parts, self._manifest, self._latest = (), "", (None, None)
        return self.publish()

    # -- publishing; the caller holds the lock of this process

    def _published(self, wait: bool) -> Snapshot | None:
        """None if another process publishes and `wait` is false."""
        version = self._catalog.version()
        with self._catalog.read() as connection:
            state = meta.state(connection)
            last, _ = self._latest
            if last is not None and last.state == state:
                self._latest = (last, version)
                return last
            if last is None or last.state.stamp != state.stamp:
                with self._folder_lock(wait) as locked:
                    if not locked and last is not None:
                        return last
                    self._bring_up_to_date(connection)
            known = None if last is None else last.knowledge
            since = None if last is None else last.state
            knowledge = read_knowledge(connection, self._descriptions, known, since, state)
        snapshot = self._snapshot_of(state, knowledge)
        self._latest = (snapshot, version)
        return snapshot

    def _snapshot_of(self, state: State, knowledge: Knowledge) -> Snapshot:
        name = f"{state.revision}.{next(self._names)}"
        return Snapshot(name, state, self._parts, knowledge, self.cache)

    def _bring_up_to_date(self, connection: Any) -> None:
        """Update the parts to the documents that a transaction sees."""
        self._adopt()
        stamps = document_stamps(connection)
        parts = list(self._parts)
        held = {
            document.id: document.stamp
            for part in parts
            for place, document in enumerate(part.segment.documents)
            if place not in part.without
        }
        changed = {i: stamp for i, stamp in stamps.items() if held.get(i) != stamp}
        left = {i for i in held if i in stamps and i not in changed}
        if not changed and len(left) == len(held):
            return
        parts = [_only(part, left) for part in parts]
        deleted = [
            any(document.id not in stamps for document in part.segment.documents) for part in parts
        ]
        fresh = [
            SegmentPart(self._written(build_segment(rows, self._heading_weight)))
            for rows in _portions(read_documents(connection, changed, self._model, self._shipped))
        ]
        rewritten = [
            self._compacted(part) if gone or _dead_share(part) > MOST_DEAD else part
            for part, gone in zip(parts, deleted, strict=True)
        ]
        parts = [part for part in (*rewritten, *fresh) if _size(part)]
        self._parts = tuple(self._merged(parts))
        self._write_manifest()

    def _compacted(self, part: SegmentPart) -> SegmentPart:
        return SegmentPart(self._written(merge_segments([part]))) if _size(part) else part

    def _merged(self, parts: Sequence[SegmentPart]) -> list[SegmentPart]:
        """The parts, with several of about one size merged: a search visits every segment, and the
        cost of publishing should depend on the size of the change."""
        merged = list(parts)
        while True:
            tiers: dict[int, list[SegmentPart]] = {}
            for part in merged:
                tiers.setdefault(_tier(_size(part)), []).append(part)
            full = next(
                (alike for _, alike in sorted(tiers.items()) if len(alike) > MOST_ALIKE), []
            )
            if not full:
                return merged
            one = SegmentPart(self._written(merge_segments(full)))
            merged = [part for part in merged if part not in full] + [one]

    # -- files

    def _written(self, segment: Any) -> Any:
        """The segment mapped from its new file; in memory if no file can be written."""
        path = self._folder / f"{secrets.token_hex(8)}.segment"
        try:
            private_folder(self._folder)
            write_segment(segment, path)
            return open_segment(path)
        except OSError as error:
            log.warning("a snapshot cannot be written and is in memory only", reason=str(error))
            return segment

    def _write_manifest(self) -> None:
        parts = [[part.segment.name, sorted(part.without)] for part in self._parts]
        manifest = json.dumps({**self._identity(), "parts": parts})
        if not all(part.segment.name for part in self._parts) or manifest == self._manifest:
            return
        path = self._folder / MANIFEST
        scratch = path.with_suffix(f".{os.getpid()}.tmp")
        try:
            private_folder(self._folder)
            scratch.write_text(manifest)
            scratch.replace(path)
        except OSError as error:
            log.warning("the manifest of the snapshot cannot be written", reason=str(error))
            return
        self._manifest = manifest
        used = {part.segment.name for part in self._parts}
        for other in self._folder.glob("*.segment"):
            if other.name not in used:
                with suppress(OSError):
                    other.unlink()

    def _adopt(self) -> None:
        """Load the manifest that another process has published. Unreadable parts are rebuilt."""
        try:
            text = (self._folder / MANIFEST).read_text()
            if text == self._manifest:
                return
            manifest = json.loads(text)
            if {name: manifest.get(name) for name in self._identity()} != self._identity():
                raise ValueError("it is of another catalog, model or release")
            known = {part.segment.name: part.segment for part in self._parts}
            parts = tuple(
                SegmentPart(
                    known.get(name) or open_segment(self._folder / name), frozenset(without)
                )
                for name, without in manifest["parts"]
            )
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.info("the snapshot is built anew", reason=str(error))
            self._parts, self._manifest = (), ""
            return
        self._parts, self._manifest = parts, text

    def _identity(self) -> Mapping[str, Any]:
        return {
            "format": FORMAT,
            "store": self._catalog.store_id(),
            "model": self._model,
            "heading_weight": self._heading_weight,
            "ontology": load_ontology().fingerprint,
        }

    @contextmanager
    def _folder_lock(self, wait: bool) -> Iterator[bool]:
        """Held by one process at a time; False if another holds it and `wait` is false."""
        try:
            private_folder(self._folder)
            descriptor = os.open(self._folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError:  # read-only folder: snapshots stay in memory
            yield True
            return
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            yield False
            return
        try:
            yield True
        finally:
            os.close(descriptor)


def _only(part: SegmentPart, ids: set[str]) -> SegmentPart:
    """The part without documents of other ids."""
    others = (n for n, document in enumerate(part.segment.documents) if document.id not in ids)
    return SegmentPart(part.segment, part.without | frozenset(others))


def _size(part: SegmentPart) -> int:
    """The number of passages."""
    documents = enumerate(part.segment.documents)
    return sum(document.passages for n, document in documents if n not in part.without)


def _dead_share(part: SegmentPart) -> float:
    return 1 - _size(part) / part.segment.rows if part.segment.rows else 1.0


def _tier(passages: int) -> int:
    """Segments of one tier have similar sizes."""
    tier = 0
    while passages > SMALL * GROWTH**tier:
        tier += 1
    return tier


def _portions(documents: Iterator[DocumentRows]) -> Iterator[list[DocumentRows]]:
    """The documents in portions of at most MOST_PASSAGES passages, or of one document."""
    portion: list[DocumentRows] = []
    passages = 0
    for document in documents:
        if portion and passages + len(document.passages) > MOST_PASSAGES:
            yield portion
            portion, passages = [], 0
        portion.append(document)
        passages += len(document.passages)
    if portion:
        yield portion


PORTION = 50  # documents read at a time


def document_stamps(connection: Connection) -> dict[str, int]:
    """The state of every document that answers may quote, by id."""
    rows = connection.execute(
        sa.select(t.documents.c.id, t.documents.c.stamp).where(
            t.documents.c.current_version_id.is_not(None)
        )
    )
    return {row.id: row.stamp for row in rows}


def read_documents(
    connection: Connection, stamps: Mapping[str, int], model: str, shipped: TextValues
) -> Iterator[DocumentRows]:
    """These documents with the rows that answers may quote; vectors are of this model. `shipped`
    has values of built-in texts."""
    ids = sorted(stamps)
    for start in range(0, len(ids), PORTION):
        yield from _read(connection, ids[start : start + PORTION], stamps, model, shipped)


def write_text_values(catalog: Catalog, folder: Path) -> None:
    """Write the values of all texts of a catalog that has read only this folder."""
    values = TextValues()
    with catalog.read() as connection:
        deque(read_documents(connection, document_stamps(connection), "", values), maxlen=0)
    values.write(folder / TEXTS_FILE)


def _read(
    connection: Connection,
    ids: Sequence[str],
    stamps: Mapping[str, int],
    model: str,
    shipped: TextValues,
) -> list[DocumentRows]:
    documents = connection.execute(
        sa.select(
            t.documents.c.id,
            t.documents.c.title,
            t.documents.c.category,
            t.documents.c.access_scope,
            t.documents.c.source_key,
            t.documents.c.origin,
            t.document_versions.c.number,
            t.document_versions.c.id.label("version_id"),
        )
        .join(t.document_versions, t.document_versions.c.id == t.documents.c.current_version_id)
        .where(t.documents.c.id.in_(ids))
        .order_by(t.documents.c.id)
    ).all()
    scopes: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in connection.execute(
        sa.select(t.document_scopes)
        .where(t.document_scopes.c.document_id.in_(ids))
        .order_by(t.document_scopes.c.value)
    ):
        scopes[row.document_id, row.kind].append(row.value)
    versions = [row.version_id for row in documents]
    decided = _terms_decided(connection)
    sections = _sections(connection, versions)
    passages = _passages(connection, versions, model)
    cards: dict[str, list[Symbol]] = defaultdict(list)
    for card in symbols.of_versions(connection, versions):
        cards[card.document_id].append(card)
    read = readings_of(connection, ids)
    kernels: dict[str, list[Sample]] = defaultdict(list)
    for kernel in samples.of_versions(connection, versions):
        kernels[str(kernel.document_id)].append(kernel)
    return [
        _document(
            row,
            stamps[row.id],
            tuple(scopes[row.id, "hardware"]),
            tuple(scopes[row.id, "language"]),
            sections[row.version_id],
            passages[row.version_id],
            cards[row.id],
            kernels[row.id],
            read,
            {term: c for chip in scopes[row.id, "hardware"] for term, c in decided(chip).items()},
            shipped if row.origin == "builtin" else TextValues(),
        )
        for row in documents
    ]


def _terms_decided(connection: Connection) -> Callable[[str], Mapping[str, str]]:
    """The terms that the description of each hardware states, with their concepts."""
    columns = t.hardware.c
    query = sa.select(columns.id, columns.spec).where(columns.spec.contains("[terms]"))
    stated = {row.id: tomllib.loads(row.spec).get("terms", {}) for row in connection.execute(query)}
    return lambda chip: stated.get(chip, {})


def _sections(connection: Connection, versions: Sequence[str]) -> dict[str, list[sa.Row[Any]]]:
    rows: dict[str, list[sa.Row[Any]]] = defaultdict(list)
    for row in connection.execute(
        sa.select(t.sections)
        .where(t.sections.c.version_id.in_(versions))
        .order_by(t.sections.c.ordinal)
    ):
        rows[row.version_id].append(row)
    return rows


def _passages(
    connection: Connection, versions: Sequence[str], model: str
) -> dict[str, list[dict[str, Any]]]:
    """The active passages of versions, with hardware, tags and vector."""
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    by_id: dict[str, dict[str, Any]] = {}
    query = (
        sa.select(t.passages, t.embeddings.c.vector)
        .outerjoin(
            t.embeddings,
            sa.and_(
                t.embeddings.c.text_sha256 == t.passages.c.embed_sha256,
                t.embeddings.c.model_fingerprint == model,
            ),
        )
        .where(t.passages.c.version_id.in_(versions), t.passages.c.active.is_(True))
        .order_by(t.passages.c.seq)
    )
    for row in connection.execute(query):
        passage = {**row._mapping, "hardware": [], "tags": []}
        rows[row.version_id].append(passage)
        by_id[row.id] = passage
    about, tags = t.passage_hardware.c, t.passage_tags.c
    of_passages = sa.select(about.passage_id, about.hardware_id).order_by(about.hardware_id)
    of_signals = (
        sa.select(tags.passage_id, tags.value).where(tags.kind == "signal").order_by(tags.value)
    )
    for passage_id, hardware_id in select_in(connection, of_passages, about.passage_id, by_id):
        by_id[passage_id]["hardware"].append(hardware_id)
    for passage_id, signal in select_in(connection, of_signals, tags.passage_id, by_id):
        by_id[passage_id]["tags"].append(("signal", signal))
    return rows


def _document(
    row: Any,
    stamp: int,
    hardware: tuple[str, ...],
    languages: tuple[str, ...],
    sections: Sequence[sa.Row[Any]],
    passages: Sequence[Mapping[str, Any]],
    cards: Sequence[Symbol],
    kernels: Sequence[Sample],
    read: Mapping[tuple[str, str], Reading],
    decided: Mapping[str, str],
    values: TextValues,
) -> DocumentRows:
    used = {passage["section_id"] for passage in passages}
    shown = [section for section in sections if section.id in used]
    place = {section.id: n for n, section in enumerate(shown)}
    headings = {section.id: values.words(" ".join(section.path[-3:])) for section in shown}
    chips = tuple(sorted({chip for card in cards for chip in card.hardware}))

    def about(scope: Sequence[str]) -> About:
        return About(row.access_scope, row.category, tuple(sorted(scope)), languages, hardware)

    document = StoredDocument(
        id=row.id,
        stamp=stamp,
        title=row.title,
        category=row.category,
        owner=row.access_scope,
        version=row.number,
        source_key=row.source_key,
        hardware=hardware,
        languages=languages,
        passages=len(passages),
        embedded=sum(p["vector"] is not None for p in passages),
        card_chips=chips if cards else None,
        kernels=len(kernels),
    )
    pieces: dict[str, list[Piece]] = {section.id: [] for section in shown}
    for p in passages:
        piece = Piece(p["kind"], p["lead"], p["text"], p["language"])
        pieces[p["section_id"]].append(piece)
    texts = {section.id: section_text(pieces[section.id]) for section in shown}
    lines = {
        section.id: _lines(row, section, texts[section.id], read)
        for section in (shown if read or is_drafted(row.source_key) else ())
    }
    section_rows = [
        SectionRow(
            section.seq,
            section.id,
            about(section.hardware_scope or hardware or (ANY,)),
            (section.parent_id, section.ordinal, section.level, section.path),
            values.tokens(texts[section.id]),
            lines.get(section.id),
        )
        for section in shown
    ]
    passage_rows = [
        PassageRow(
            seq=p["seq"],
            id=p["id"],
            section=place[p["section_id"]],
            prose=p["prose"],
            code=p["kind"] == "code",
            characters=len(p["text"]),
            about=about(p["hardware"]),
            record=[
                *(p[name] for name in ("ordinal", "kind", "lead", "text", "language")),
                *(p[name] for name in ("page_index", "page_label", "boxes", "corrected", "tags")),
            ],
            words=(headings[p["section_id"]], values.words(f"{p['lead']}\n{p['text']}")),
            vector=p["vector"],
        )
        for p in passages
    ]
    in_order = [
        SectionTexts(section.id, section.path, [piece.text for piece in pieces[section.id]])
        for section in shown
    ]
    terms = corrected(values.terms(in_order), decided)
    return DocumentRows(document, section_rows, passage_rows, terms, cards, kernels)


def _lines(
    row: Any, section: sa.Row[Any], text: str, read: Mapping[tuple[str, str], Reading]
) -> tuple[ReadLine, ...] | None:
    """What a model wrote about a section, None if it has not read it. A drafted section was written
    as the answer to its signal."""
    if is_drafted(row.source_key):
        return (ReadLine(signal_of(section.heading), 2, "", ""),)
    reading = read.get((row.id, text_key(section.path, text)))
    return None if reading is None else reading.lines
