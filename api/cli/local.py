"""A command carried out in this process: the catalog, exact search over its vectors, its own reading.

The same parts as the service's (`api.services`), without Chroma and without a port. An empty
catalog gets the built-in hardware at once, so that a first `ingest --hardware h100` knows the chip;
the built-in documents come with `kernlore ingest --builtin` or `kernlore serve`.
"""

from __future__ import annotations

import getpass
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from api.cli.output import plain
from api.cli.target import About, Json
from api.services import open_services
from ingestion.builtin import builtin_documents, builtin_hardware, load_builtin
from ingestion.uploads import Submitted, Upload
from kb.catalog import passages
from kb.catalog.hardware import HardwareRegistry
from kb.errors import InvalidRequest, PayloadTooLarge, StoreError, Unavailable
from kb.settings import Settings

POLL_SECONDS = 0.2
STOP_SECONDS = 2.0


class LocalTarget:
    """One command's services; `close` when it is done."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.services = open_services(settings)
        self.name = f"data directory {settings.data_dir}"

    def close(self) -> None:
        self.services.close()

    @property
    def _registry(self) -> HardwareRegistry:
        registry = self.services.registry
        if not registry.all():
            self._put_builtin_hardware()
        return registry

    def _put_builtin_hardware(self) -> None:
        for spec in builtin_hardware(self.settings.knowledge_dir):
            self.services.registry.put(spec, "builtin")

    # -- asking

    def retrieve(self, request: Json) -> Json:
        from retrieval.answer import RetrieveRequest

        if not self.services.documents.list():
            raise Unavailable(
                f"there are no documents in {self.settings.data_dir} yet",
                hint="Run `kernlore serve`, or `kernlore ingest --builtin` to load the built-in"
                " knowledge here.",
            )
        text = request.get("log")
        if text is not None and len(text.encode()) > self.settings.max_log_bytes:
            raise PayloadTooLarge(
                f"the log is over {self.settings.max_log_bytes:,} bytes",
                hint="Send the part around the first error, or raise KERNLORE_MAX_LOG_BYTES.",
            )
        asked = {"k": self.settings.default_k, "max_tokens": self.settings.default_max_tokens}
        asked |= request
        for name in ("categories", "skill_states"):
            if name in asked:
                asked[name] = tuple(asked[name])
        answer = self.services.retriever.retrieve(RetrieveRequest(**asked))
        found: Json = plain(answer.as_json())
        return found

    def report_outcome(self, retrieval_id: str, outcome: Json) -> Json:
        outcome_id = self.services.retriever.report_outcome(retrieval_id, **outcome)
        return {"retrieval_id": retrieval_id, "outcome_id": outcome_id}

    def knowledge(self, path: str, depth: int) -> Json:
        from retrieval.tree import knowledge_node

        found: Json = plain(
            knowledge_node(self.services.catalog, self._registry, path, depth=depth)
        )
        return found

    def signals(self) -> list[Json]:
        from retrieval.signals import load_signals

        return [plain(signal) for signal in load_signals()]

    # -- files in

    def upload(self, path: Path, name: str, about: About) -> Json:
        size = path.stat().st_size
        if size > self.settings.max_file_bytes:  # said before the file fills the memory
            raise PayloadTooLarge(
                f"{name} has {size:,} bytes; the limit is {self.settings.max_file_bytes:,}",
                hint="Split the document, or raise KERNLORE_MAX_FILE_BYTES.",
            )
        upload = Upload(
            name=name,
            data=path.read_bytes(),
            category=about.category,
            hardware=about.hardware,
            languages=about.languages,
            title=about.title,
            source_key=about.source_key,
        )
        _ = self._registry
        return _submitted(self.services.uploads.submit(upload))

    def upload_builtin(self) -> Iterator[Json]:
        """Hand in the built-in documents one by one; those no longer among them are removed."""
        self._put_builtin_hardware()
        for upload in builtin_documents(self.settings.knowledge_dir):
            yield {**_submitted(self.services.uploads.submit(upload)), "name": upload.source_key}
        services = self.services
        load_builtin(
            self.settings.knowledge_dir, services.registry, services.uploads, services.documents
        )

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read and embed what is queued, in a thread, while the caller watches the jobs."""
        stop = threading.Event()
        thread = threading.Thread(target=self._read, args=(stop,), name="reading", daemon=True)
        self._reader = thread
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(timeout=STOP_SECONDS)

    def _read(self, stop: threading.Event) -> None:
        with self.services.parser_pool() as parsers:
            self.services.worker(parsers).run(stop, idle_seconds=POLL_SECONDS)

    def job(self, job_id: str) -> Json:
        job: Json = plain(self.services.jobs.get(job_id))
        reader = getattr(self, "_reader", None)
        if reader is not None and not reader.is_alive() and job["state"] in ("queued", "running"):
            raise StoreError(
                "reading stopped before every document was read",
                hint="The reason stands above; run the same command again to go on.",
            )
        return job

    def retry_job(self, job_id: str) -> Json:
        self.services.jobs.get(job_id)
        self.services.jobs.retry(job_id)
        return self.job(job_id)

    # -- documents

    def documents(self, hardware: str | None, category: str | None) -> list[Json]:
        named = None if hardware is None else self._registry.resolve(hardware)
        return [plain(d) for d in self.services.documents.list(hardware=named, category=category)]

    def document(self, document_id: str) -> Json:
        documents = self.services.documents
        found = plain(documents.get(document_id))
        versions = plain(documents.versions(document_id))
        sections = plain(documents.sections(document_id))
        return {**found, "versions": versions, "sections": sections}

    def delete_document(self, document_id: str) -> Json:
        for key in self.services.documents.delete(document_id):
            self.services.blobs.delete(key)
        return {"document_id": document_id, "deleted": True}

    def passages(self, document_id: str, offset: int, limit: int) -> list[Json]:
        documents = self.services.documents
        with self.services.catalog.read() as connection:
            version_id = documents.version_id(connection, document_id, None, "all")
            found = passages.of_version(connection, version_id, offset=offset, limit=limit)
        return [plain(passage) for passage in found]

    def correct_passage(self, passage_id: str, patch: Json) -> Json:
        hardware = patch.get("hardware")
        tags = patch.get("tags")
        change = passages.Patch(
            text=patch.get("text"),
            tags=None if tags is None else tuple((tag["kind"], tag["value"]) for tag in tags),
            hardware=None
            if hardware is None
            else tuple(self._registry.resolve(name) for name in hardware),
        )
        corrected = passages.correct(self.services.catalog, passage_id, change, _actor())
        if change.text is not None:
            with self.services.parser_pool() as parsers:
                self.services.worker(parsers).drain()  # the new text needs its vector
        found: Json = plain(corrected)
        return found

    # -- hardware

    def hardware(self) -> list[Json]:
        return [_summary(spec) for spec in self._registry.all().values()]

    def hardware_one(self, hardware_id: str) -> Json:
        registry = self._registry
        spec = registry.get(hardware_id)
        effective = registry.effective_facts(spec.id)
        return {
            **plain(spec),
            "lineage": list(registry.lineage(spec.id)),
            "facts": [plain(fact) for fact in effective.values()],
        }

    def add_hardware(self, text: str, origin: str) -> Json:
        from kb.hardware.schema import parse_hardware

        spec = parse_hardware(text, origin)
        return {"id": spec.id, "outcome": self._registry.put(spec, "upload")}

    def facts(self, hardware_id: str, status: str | None) -> list[Json]:
        registry = self._registry
        if status is None:
            return [plain(fact) for fact in registry.effective_facts(hardware_id).values()]
        if status not in ("accepted", "proposed", "rejected"):
            raise InvalidRequest(
                f"unknown status {status!r}", hint="Use accepted, proposed or rejected."
            )
        return [plain(f) for f in registry.facts(hardware_id) if f.status == status]

    def patch_fact(self, fact_id: str, patch: Json) -> Json:
        changed: Json = plain(self._registry.patch_fact(fact_id, **patch, actor=_actor()))
        return changed

    def coverage(self, hardware_id: str) -> Json:
        from retrieval.coverage import coverage

        registry = self._registry
        found: Json = plain(
            coverage(self.services.catalog, registry, registry.resolve(hardware_id))
        )
        return found

    # -- skills

    def skills(self, filters: Json) -> list[Json]:
        library: Any = self.services
        return [plain(skill) for skill in library.skills.list(**filters)]

    def skill(self, name: str) -> Json:
        library: Any = self.services
        found: Json = plain(library.skills.show(name))
        return found


def _submitted(submitted: Submitted) -> Json:
    found: Mapping[str, Any] = plain(submitted)
    return found


def _summary(spec: Any) -> Json:
    kept = ("id", "name", "vendor", "parent", "kind", "aliases", "languages", "summary")
    return {name: plain(getattr(spec, name)) for name in kept}


def _actor() -> str:
    """Who corrects: the name of the account."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # an account without a name, as in some containers
        return "cli"
