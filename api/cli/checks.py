"""The checks of `kernlore doctor`; each reports what it saw, and what to do where that is wrong.

Chroma is opened only under the service's own lock: two processes on one directory serve deleted
vectors.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import sqlalchemy as sa

from api.services import Services, open_services
from kb.catalog import tables as t
from kb.catalog.knowledge import embeddings, lexical
from kb.catalog.meta import revision
from kb.data_dir import ServiceLock, access_of_others, running_service
from kb.errors import Conflict, KernloreError, NotFound, StoreAway
from kb.ids import sha256
from kb.index.chroma import ServedChroma
from kb.scope import ALL_ACCESS
from kb.settings import MIB, Settings, unknown_settings

FREE_MIB = 512
PROBES = 5  # a scope, about
CLOSE = 0.01  # a cosine; stored vectors are of unit length only to bf16's precision
LIBRARIES = ("chromadb", "llama-index-core", "onnxruntime", "pypdfium2", "sqlalchemy", "torch")
PARSERS = ("pdf.document", "html", "markdown", "rst", "docx", "notebook", "text")


@dataclass(frozen=True)
class Check:
    """What one check saw; `hint` says what to do where it is not ok."""

    name: str
    ok: bool
    detail: str
    hint: str = ""


def of_service(url: str) -> Iterator[Check]:
    """What a running service reports about itself."""
    from api.cli.backends.remote import RemoteTarget

    service = RemoteTarget(url)
    try:
        for path in ("/healthz", "/readyz"):
            try:
                yield Check(path, True, f"{service.call('GET', path)}")
            except KernloreError as error:
                yield Check(path, False, error.message, error.hint)
    finally:
        service.close()


def of_directory(settings: Settings) -> Iterator[Check]:
    """Check a data directory and this installation."""
    yield _versions()
    yield _variables()
    yield from _parsers()
    yield from _guarded("isolation", _isolation)
    try:
        services = open_services(settings)
    except KernloreError as error:
        yield Check("catalog", False, error.message, error.hint)
        return
    try:
        yield _disk(settings)
        yield from _guarded("stores", lambda: _stores(services))
        yield from _guarded("catalog", lambda: _catalog(services))
        yield from _guarded("lexical index", lambda: _lexical(services))
        yield from _guarded("embedder", lambda: _embedder(services))
        yield from _guarded("vectors", lambda: _vectors(services))
        yield from _guarded("originals", lambda: _originals(services))
        yield from _guarded("vector index", lambda: _index(services))
    finally:
        services.close()


def _variables() -> Check:
    unknown = unknown_settings(os.environ)
    hint = "docs/reference/settings.md lists every setting."
    detail = "; ".join(unknown) or "no variable is a mistyped setting"
    return Check("settings", not unknown, detail, hint)


def _guarded(name: str, check: Callable[[], Check]) -> Iterator[Check]:
    """Run one check; an error that ends it is its result."""
    try:
        yield check()
    except KernloreError as error:
        yield Check(name, False, error.message, error.hint)
    except (OSError, ImportError, sa.exc.SQLAlchemyError) as error:
        yield Check(name, False, f"{type(error).__name__}: {error}")


def _versions() -> Check:
    installed = [f"python {platform.python_version()}"]
    missing = []
    for name in LIBRARIES:
        try:
            installed.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    detail = ", ".join(installed) + (f"; missing: {', '.join(missing)}" if missing else "")
    return Check("versions", not missing, detail, "Install them: `make setup`.")


def _isolation() -> Check:
    """What keeps kernels apart here; a machine that has little of it evaluates all the same."""
    from optimizer.evaluation.isolation.levels import available

    return Check("isolation", True, available())


def _parsers() -> Iterator[Check]:
    broken = []
    for name in PARSERS:
        try:
            importlib.import_module(f"ingestion.formats.{name}")
        except ImportError as error:
            broken.append(f"{name}: {error}")
    detail = "; ".join(broken) or ", ".join(name.partition(".")[0] for name in PARSERS)
    yield Check("parsers", not broken, detail, "Install what is missing: `make setup`.")


def _disk(settings: Settings) -> Check:
    free = shutil.disk_usage(settings.data_dir).free // MIB
    detail = f"{free:,} MiB free at {settings.data_dir.absolute()}"
    if (wide := access_of_others(settings.data_dir)) is not None:
        detail += f"; {wide}"
    return Check(
        "disk", free >= FREE_MIB, detail, f"Free some space: below {FREE_MIB} MiB writes fail."
    )


def _stores(services: Services) -> Check:
    """Where everything is kept, and whether what is on servers answers."""
    settings, away = services.settings, []
    vectors = "Chroma in the data directory"
    if settings.chroma_url:
        server = ServedChroma(settings.chroma_url)
        vectors = f"Chroma at {server.address.name}"
        away += _not_answering(server.check)
    away += _not_answering(services.blobs.check)
    places = f"catalog {services.catalog.name}, vectors {vectors}, files {services.blobs.name}"
    reasons = "; ".join(error.message for error in away)
    hints = " ".join(error.hint for error in away)
    return Check("stores", not away, f"{places}{'; ' if away else ''}{reasons}", hints)


def _not_answering(check: Callable[[], None]) -> list[StoreAway]:
    try:
        check()
    except StoreAway as error:
        return [error]
    return []


def _catalog(services: Services) -> Check:
    verdict = services.catalog.verdict()
    with services.catalog.read() as connection:
        schema = connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()
        state = revision(connection)
    jobs = services.jobs.counts()
    job_counts = ", ".join(f"{n} jobs {name}" for name, n in sorted(jobs.items())) or "no jobs"
    return Check(
        "catalog",
        verdict == "ok",
        f"{verdict}; schema {schema}, revision {state}, {job_counts}",
        "Restore the data directory from a backup.",
    )


def _lexical(services: Services) -> Check:
    live = sa.select(sa.func.count()).where(t.passages.c.active.is_(True))
    sections = sa.select(sa.func.count(sa.distinct(t.passages.c.section_id))).where(
        t.passages.c.active.is_(True)
    )
    with services.catalog.read() as connection:
        due = (connection.execute(live).scalar_one(), connection.execute(sections).scalar_one())
        rows = (lexical.count(connection, "passage"), lexical.count(connection, "section"))
    detail = f"{rows[0]:,} rows for {due[0]:,} active passages, {rows[1]:,} for {due[1]:,} sections"
    return Check("lexical index", rows == due, detail, "Restore the data directory from a backup.")


def _embedder(services: Services) -> Check:
    vector = services.embedder.encode_query("shared memory bank conflicts")
    length = float(np.linalg.norm(vector))
    fits = vector.shape == (services.embedder.dimension,) and abs(length - 1) < 1e-2
    detail = f"{services.embedder.fingerprint}, {vector.shape[0]} numbers of length {length:.3f}"
    return Check("embedder", fits, detail, "Remove DATA_DIR/models; it is exported again.")


def _vectors(services: Services) -> Check:
    with services.catalog.read() as connection:
        embedded, active = embeddings.counts(connection, services.embedder.fingerprint)
    busy = sum(services.jobs.counts().get(state, 0) for state in ("queued", "running"))
    detail = f"{embedded:,} of {active:,} passages" + (f", {busy} jobs under way" if busy else "")
    hint = "Start `kernlore serve` (or `kernlore ingest`): it embeds what lacks a vector."
    return Check("vectors", embedded == active or busy > 0, detail, hint)


def _originals(services: Services) -> Check:
    """Whether the stored file of each current version is there, byte for byte."""
    keys = {d.version.blob_key for d in services.documents.find() if d.version is not None}
    damaged = [key for key in sorted(keys) if not _is_whole(services, key)]
    detail = f"{len(keys)} stored files" + (
        f", {len(damaged)} missing or damaged" if damaged else ""
    )
    return Check("originals", not damaged, detail, "Restore them from a backup, or upload again.")


def _is_whole(services: Services, key: str) -> bool:
    try:
        return sha256(services.blobs.get_unchecked(key)) == key
    except NotFound:
        return False


def _index(services: Services) -> Check:
    """Chroma against exact search, on vectors of the store itself."""
    settings = services.settings
    running = running_service(settings.data_dir)
    if running:
        return Check("vector index", True, f"owned by the service at {running}; see its /readyz")
    if not settings.chroma_url and not (settings.data_dir / "chroma").exists():
        return Check("vector index", True, "none yet; the service makes it")
    try:
        with ServiceLock(settings.data_dir, ""):
            return _parity(services)
    except Conflict as error:
        return Check("vector index", True, f"not looked at: {error.message}")


def _parity(services: Services) -> Check:
    from kb.index.chroma import ChromaIndex
    from kb.index.exact import ExactIndex

    settings, model = services.settings, services.embedder.fingerprint
    exact = ExactIndex(services.catalog, model)
    index = ChromaIndex(services.catalog, model, settings.data_dir / "chroma", settings.chroma_url)
    probes, differing = 0, []
    try:
        caught_up = index.sync()  # what was ingested without a service is not in it yet
        with services.catalog.read() as connection:
            scopes = embeddings.hardware_scopes(connection)
            sets = {s: embeddings.of_scope(connection, model, s, ALL_ACCESS) for s in scopes}
        for scope, vectors in sets.items():
            step = max(1, len(vectors.seqs) // PROBES)
            for n in range(0, len(vectors.seqs), step):
                probes += 1
                best = next(iter(exact.query([scope], vectors.matrix[n], 1).values()), 0.0)
                answer = next(iter(index.query([scope], vectors.matrix[n], 1).values()), 0.0)
                if abs(best - answer) > CLOSE:
                    differing.append(scope)
    finally:
        index.close()
    detail = f"{probes} probes in {len(sets)} scopes; caught up by {caught_up.added} vectors"
    if differing:
        detail += f"; differs from exact search in {', '.join(sorted(set(differing)))}"
    return Check("vector index", not differing, detail, "Run `kernlore reindex`.")
