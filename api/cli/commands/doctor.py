"""`kernlore doctor`: checks of the data directory and the installation, or the known ways to cheat
an evaluation.

Every check reports, also after one that failed. Chroma is opened only under the service's own
lock: two processes on one directory serve deleted vectors.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import pkgutil
import platform
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from api.cli.command import AsJson, DataDir, Url, command
from api.cli.output import Json, show
from api.cli.target import CommandTarget, read_settings, send_logs_to_stderr
from kb.errors import Conflict, KernloreError, NotFound, StoreAway
from kb.plain import Doc

if TYPE_CHECKING:
    from api.services import Services
    from kb.settings import Settings
    from optimizer.evaluation.exploits.proof import Defence, ExploitResult


@command()
def doctor(
    data_dir: DataDir = None,
    url: Url = None,
    exploits: Annotated[
        bool, Doc("Instead, run the known ways to cheat an evaluation against this one.")
    ] = False,
    without: Annotated[
        int | None,
        typer.Option(
            metavar="ROW", help="With --exploits: switch off the defence of this exploit."
        ),
    ] = None,
    only: Annotated[
        list[int] | None,
        typer.Option(
            metavar="ROW", help="With --exploits: run only this exploit; repeat for more."
        ),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Check the data directory and the installation. Exits 1 if something is wrong."""
    send_logs_to_stderr("error")
    if exploits or without is not None or only:
        return _run_exploits(without, only, as_json)
    checks = list(
        check_service(url) if url is not None else check_directory(read_settings(data_dir))
    )
    healthy = all(check.ok for check in checks)
    show({"ok": healthy, "checks": checks}, as_json, _checks_text)
    return 0 if healthy else 1


def _checks_text(answer: Json) -> str:
    return "\n".join(
        f"{'ok' if c['ok'] else 'WRONG':<6}{c['name']}: {c['detail']}"
        + (f"\n      {c['hint']}" if c["hint"] and not c["ok"] else "")
        for c in answer["checks"]
    )


# -- checks

FREE_MIB = 512
PROBES = 5  # a scope, about
CLOSE = 0.01  # a cosine; stored vectors are of unit length only to bf16's precision
LIBRARIES = ("chromadb", "llama-index-core", "onnxruntime", "pypdfium2", "sqlalchemy", "torch")


@dataclass(frozen=True)
class Check:
    """The result of a check; `hint` has the remedy if it is not ok."""

    name: str
    ok: bool
    detail: str
    hint: str = ""


def check_service(url: str) -> Iterator[Check]:
    """Check a running service by its own reports."""
    from api.operations import service

    target = CommandTarget(url=url)
    try:
        for report in (service.healthz, service.readyz):
            try:
                yield Check(report.path, True, f"{target.call(report)}")
            except KernloreError as error:
                yield Check(report.path, False, error.message, error.hint)
    finally:
        target.close()


def check_directory(settings: Settings) -> Iterator[Check]:
    """Check a data directory and this installation."""
    from api.services import open_services

    yield _versions()
    yield _variables()
    yield _parsers()
    yield _guarded("isolation", _isolation)
    try:
        services = open_services(settings)
    except KernloreError as error:
        yield Check("catalog", False, error.message, error.hint)
        return
    checks: dict[str, Callable[[Services], Check]] = {
        "disk": _disk,
        "stores": _stores,
        "catalog": _catalog,
        "snapshot": _snapshot,
        "embedder": _embedder,
        "vectors": _vectors,
        "originals": _originals,
        "vector index": _index,
    }
    try:
        for name, check in checks.items():
            yield _guarded(name, partial(check, services))
    finally:
        services.close()


def _variables() -> Check:
    from kb.settings import unknown_settings

    unknown = unknown_settings(os.environ)
    hint = "docs/reference/settings.md lists every setting."
    detail = "; ".join(unknown) or "no variable is a mistyped setting"
    return Check("settings", not unknown, detail, hint)


def _guarded(name: str, check: Callable[[], Check]) -> Check:
    """Run one check; an error that ends it is its result."""
    from sqlalchemy.exc import SQLAlchemyError

    try:
        return check()
    except KernloreError as error:
        return Check(name, False, error.message, error.hint)
    except (OSError, ImportError, SQLAlchemyError) as error:
        return Check(name, False, f"{type(error).__name__}: {error}")


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
    """The isolation of kernels; no level of it is an error, as every machine can evaluate."""
    from optimizer.evaluation.isolation.levels import available

    return Check("isolation", True, available())


def _parsers() -> Check:
    """Whether every reader below ingestion/formats can be imported."""
    from ingestion import formats

    readers, broken = [], []
    for module in pkgutil.walk_packages(formats.__path__, f"{formats.__name__}."):
        name = module.name.removeprefix(f"{formats.__name__}.")
        try:
            importlib.import_module(module.name)
        except ImportError as error:
            broken.append(f"{name}: {error}")
        if "." not in name and name != "detect":
            readers.append(name)
    detail = "; ".join(broken) or ", ".join(readers)
    return Check("parsers", not broken, detail, "Install the missing packages: `make setup`.")


def _disk(services: Services) -> Check:
    from kb.data_dir import access_of_others
    from kb.settings import MIB

    settings = services.settings
    free = shutil.disk_usage(settings.data_dir).free // MIB
    detail = f"{free:,} MiB free at {settings.data_dir.absolute()}"
    if (wide := access_of_others(settings.data_dir)) is not None:
        detail += f"; {wide}"
    return Check(
        "disk", free >= FREE_MIB, detail, f"Free some space: below {FREE_MIB} MiB writes fail."
    )


def _stores(services: Services) -> Check:
    """The places of catalog, vectors and files, and whether servers among them answer."""
    from kb.index.chroma import ServedChroma

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
    import sqlalchemy as sa

    from kb.catalog.meta import revision

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


def _snapshot(services: Services) -> Check:
    import sqlalchemy as sa

    from kb.catalog import tables as t

    live = sa.select(sa.func.count()).where(t.passages.c.active.is_(True))
    with services.catalog.read() as connection:
        passages = connection.execute(live).scalar_one()
    found = services.snapshots.publish().passages
    detail = f"{found:,} of {passages:,} passages"
    return Check("snapshot", found == passages, detail, "Run `kernlore reindex`.")


def _embedder(services: Services) -> Check:
    import numpy as np

    vector = services.embedder.encode_query("shared memory bank conflicts")
    length = float(np.linalg.norm(vector))
    fits = vector.shape == (services.embedder.dimension,) and abs(length - 1) < 1e-2
    detail = f"{services.embedder.fingerprint}, {vector.shape[0]} numbers of length {length:.3f}"
    return Check("embedder", fits, detail, "Remove DATA_DIR/models; it is exported again.")


def _vectors(services: Services) -> Check:
    from kb.catalog.knowledge import embeddings

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
    from kb.ids import sha256

    try:
        return sha256(services.blobs.get_unchecked(key)) == key
    except NotFound:
        return False


def _index(services: Services) -> Check:
    """Chroma against exact search, on vectors of the store itself."""
    from kb.data_dir import ServiceLock, running_service

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
        return Check("vector index", True, f"not checked: {error.message}")


def _parity(services: Services) -> Check:
    from kb.catalog.knowledge import embeddings
    from kb.index.chroma import ChromaIndex
    from kb.scope import ALL_ACCESS

    settings, model = services.settings, services.embedder.fingerprint
    snapshot = services.snapshots.publish()
    index = ChromaIndex(services.catalog, model, settings.data_dir / "chroma", settings.chroma_url)
    probes, differing = 0, []
    try:
        caught_up = index.sync()  # it lacks documents that were ingested without a service
        with services.catalog.read() as connection:
            scopes = embeddings.hardware_scopes(connection)
            sets = {s: embeddings.of_scope(connection, model, s, ALL_ACCESS) for s in scopes}
        for scope, vectors in sets.items():
            step = max(1, len(vectors.seqs) // PROBES)
            for n in range(0, len(vectors.seqs), step):
                probes += 1
                best = next(iter(snapshot.near([scope], vectors.matrix[n], 1).values()), 0.0)
                found = index.query([scope], vectors.matrix[n], 1, ALL_ACCESS).values()
                answer = next(iter(found), 0.0)
                if abs(best - answer) > CLOSE:
                    differing.append(scope)
    finally:
        index.close()
    detail = f"{probes} probes in {len(sets)} scopes; caught up by {caught_up.added} vectors"
    if differing:
        detail += f"; differs from exact search in {', '.join(sorted(set(differing)))}"
    return Check("vector index", not differing, detail, "Run `kernlore reindex`.")


# -- exploits


def _run_exploits(without: int | None, only: Sequence[int] | None, as_json: bool) -> int:
    """Print one line for each exploit as soon as it has run, then the counts."""
    from optimizer.evaluation.exploits.proof import run_exploits

    results = []
    for result in run_exploits(only, without):
        results.append(result)
        if not as_json:
            typer.echo(_line(result, without))
    counted = [result for result in results if result.state != "not run here"]
    caught = sum(result.state == "caught" for result in counted)
    rows = [
        {"row": r.row.number, "title": r.row.title, "kind": r.row.kind, "state": r.state}
        | {"detail": r.detail, "defence": r.row.defence, "shows": _shown(r.row)}
        for r in results
    ]
    show(
        {"caught": caught, "of": len(counted), "without": without, "exploits": rows},
        as_json,
        lambda _: (
            f"candidates {_share(counted, 'candidate')}, properties {_share(counted, 'property')}\n"
            f"caught {caught} of {len(counted)}"
        ),
    )
    return int(caught < len(counted))


def _line(result: ExploitResult, without: int | None) -> str:
    off = " (defence off)" if result.row.number == without else ""
    state = "GOT THROUGH" if result.state == "won" else result.state
    line = f"{result.row.number:>2}  {state:<13}{result.row.title}{off}: {result.detail}"
    return f"{line}\n    shows: {_shown(result.row)}"


def _shown(row: Defence) -> str:
    """The defence against an exploit, and the gap without it."""
    if not row.without:
        return row.defence
    return f"{row.defence}; without it {row.without} and the exploit wins"


def _share(results: Sequence[ExploitResult], kind: str) -> str:
    of_kind = [result for result in results if result.row.kind == kind]
    return f"{sum(result.state == 'caught' for result in of_kind)} of {len(of_kind)}"
