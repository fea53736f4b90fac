"""A command carried out in this process: the catalog, exact search over its vectors, own reading.

The same parts as the service's (`api.services`), without Chroma and without a port; where a route
of the HTTP door is a plain function, it is called as one, so both answer alike. An empty catalog
gets the built-in hardware and skills at once, so that a first `ingest --hardware h100` knows the
chip; the built-in documents come with `kernlore ingest --builtin` or `kernlore serve`.

Imports are where they are used: a command pays for what it needs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from api.cli.backends.contract import About, Json
from kb.errors import InvalidRequest, PayloadTooLarge, StoreError, Unavailable, nearest
from kb.plain import plain
from kb.scope import ALL_ACCESS, CATEGORIES, Category
from kb.service_lock import running_service
from kb.settings import Settings

if TYPE_CHECKING:
    from api.services import Services
    from kb.catalog.hardware import HardwareRegistry
    from skills.skill_library import SkillLibrary

POLL_SECONDS = 0.2
STOP_SECONDS = 2.0


class LocalTarget:
    """One command's services; `close` when it is done."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.name = f"data directory {settings.data_dir}"
        self._reader: threading.Thread | None = None

    def close(self) -> None:
        for opened in ("services", "_library_catalog"):
            if opened in self.__dict__:
                self.__dict__[opened].close()

    @cached_property
    def services(self) -> Services:
        from api.services import open_services

        opened = open_services(self.settings)
        if not opened.registry.all():
            self._put_builtin_hardware(opened.registry)
            opened.skills.sync_builtin(self.settings.skills_dir)
        return opened

    def _put_builtin_hardware(self, registry: HardwareRegistry) -> None:
        from ingestion.builtin import builtin_hardware

        for spec in builtin_hardware(self.settings.knowledge_dir):
            registry.put(spec, "builtin")

    # -- asking

    def retrieve(self, request: Json) -> Json:
        from retrieval.request_body import read_request

        settings = self.settings
        if not self.services.documents.find():
            raise Unavailable(
                f"there are no documents in {settings.data_dir} yet",
                hint="Run `kernlore serve`, or `kernlore ingest --builtin` to load the built-in"
                " knowledge here.",
            )
        text = request.get("log")
        if text is not None and len(text.encode()) > settings.max_log_bytes:
            raise PayloadTooLarge(
                f"the log is over the limit of {settings.max_log_bytes:,} bytes",
                hint="Send the part around the first error, or raise KERNLORE_MAX_LOG_BYTES.",
            )
        defaults = {"k": settings.default_k, "max_tokens": settings.default_max_tokens}
        answer: Json = plain(self.services.retriever.retrieve(read_request(request, defaults)))
        return answer

    def report_outcome(self, retrieval_id: str, outcome: Json) -> Json:
        outcome_id = self.services.retriever.report_outcome(retrieval_id, **outcome)
        return {"retrieval_id": retrieval_id, "outcome_id": outcome_id}

    def knowledge(self, path: str) -> Json:
        from retrieval.knowledge_tree import knowledge_node

        services = self.services
        return knowledge_node(services.catalog, services.registry, path, ALL_ACCESS).as_json()

    def signals(self) -> list[Json]:
        from retrieval.diagnose.signals import load_signals

        return [plain(signal) for signal in load_signals()]

    # -- files in

    def upload(self, path: Path, name: str, about: About) -> Json:
        from ingestion.uploads import Upload

        self.services.uploads.check_size(name, path.stat().st_size)
        return self._submit(
            Upload(
                name=name,
                data=path.read_bytes(),
                category=about.category,
                hardware=about.hardware,
                languages=about.languages,
                title=about.title,
                source_key=about.source_key,
            )
        )

    def upload_builtin(self) -> Iterator[Json]:
        """Hand in the built-in documents one by one; those no longer among them are removed."""
        from ingestion.builtin import builtin_documents

        self._put_builtin_hardware(self.services.registry)
        for upload in builtin_documents(self.settings.knowledge_dir):
            yield {**self._submit(upload), "name": upload.source_key}
        self.services.load_builtin()

    def load_knowledge(self, say: Callable[[str], None]) -> None:
        """The built-in documents of this version, with their facts and moves, found by words when
        this returns. Vectors are left to a service or to `ingest`: they take minutes, and made
        beside a search they would disturb its measurements.
        """
        services = self.services
        if running_service(self.settings.data_dir) is None:  # which sees to them itself
            changed = services.load_builtin().changed
            unread = services.documents.unread("builtin", ("staged",))
            if changed or unread:
                say(f"reading {max(changed, unread)} built-in documents into the data directory")
                with services.parser_pool() as parsers:
                    worker = services.worker(parsers)
                    worker.read_all(threading.Event())
                    worker.hand_back()
        unread = services.documents.unread("builtin")
        if unread:
            say(f"{unread} built-in documents are not read: `kernlore ingest --builtin` says why")
        if not services.dense_ready:
            embedded, passages = services.vectors()
            say(
                f"{embedded} of {passages} passages have a vector: knowledge is found by words and"
                " tags alone until `kernlore ingest --builtin` or `kernlore serve` made the rest"
            )

    def _submit(self, upload: Any) -> Json:
        submitted: Json = plain(self.services.uploads.submit(upload))
        return submitted

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read and embed what is queued, in a thread, while the caller watches the jobs."""
        stop = threading.Event()
        self._reader = threading.Thread(
            target=self._read, args=(stop,), name="reading", daemon=True
        )
        self._reader.start()
        try:
            yield
        finally:
            stop.set()
            self._reader.join(timeout=STOP_SECONDS)
            self._reader = None

    def _read(self, stop: threading.Event) -> None:
        with self.services.parser_pool() as parsers:
            self.services.worker(parsers).run(stop, idle_seconds=POLL_SECONDS)

    def job(self, job_id: str) -> Json:
        from api.http.routes import documents

        job = documents.job(job_id, self.services, ALL_ACCESS)
        lost = self._reader is not None and not self._reader.is_alive()
        if lost and job["state"] in ("queued", "running"):
            raise StoreError(
                "reading stopped before every document was read",
                hint="The reason stands above; run the same command again to go on.",
            )
        return job

    def retry_job(self, job_id: str) -> Json:
        from api.http.routes import documents

        return documents.retry(job_id, self.services, ALL_ACCESS)

    # -- documents

    def documents(self, hardware: str | None, category: str | None) -> list[Json]:
        from api.http.routes import documents

        found = documents.list_documents(
            self.services, ALL_ACCESS, hardware or "", _category(category)
        )
        return list(found["documents"])

    def document(self, document_id: str) -> Json:
        from api.http.routes import documents

        return documents.show(document_id, self.services, ALL_ACCESS)

    def sections(self, document_id: str) -> list[Json]:
        from api.http.routes import documents

        return list(documents.sections(document_id, self.services, ALL_ACCESS)["sections"])

    def delete_document(self, document_id: str) -> Json:
        from api.http.routes import documents

        return documents.delete(document_id, self.services, ALL_ACCESS)

    def passages(self, document_id: str, offset: int, limit: int) -> list[Json]:
        from api.http.routes import passages

        found = passages.list_passages(
            document_id, self.services, ALL_ACCESS, None, None, offset, limit
        )
        return list(found["passages"])

    def correct_passage(self, passage_id: str, patch: Json) -> Json:
        from api.http.bodies import validated
        from api.http.models import PassagePatch
        from api.http.routes import passages

        body = validated(PassagePatch, dict(patch))
        corrected = passages.correct(passage_id, self.services, ALL_ACCESS, body)
        if body.text is not None:
            with self.services.parser_pool() as parsers:
                self.services.worker(parsers).drain()  # the new text needs its vector
        return corrected

    # -- hardware

    def hardware(self) -> list[Json]:
        from api.http.routes import hardware

        return list(hardware.list_hardware(self.services)["hardware"])

    def hardware_one(self, hardware_id: str) -> Json:
        from api.http.routes import hardware

        return hardware.show(hardware_id, self.services)

    def add_hardware(self, text: str, origin: str) -> Json:
        from kb.hardware.schema import parse_hardware

        spec = parse_hardware(text, origin)
        registry = self.services.registry
        outcome = registry.put(spec, "api")
        return {"id": spec.id, "outcome": outcome, "lineage": list(registry.lineage(spec.id))}

    def facts(self, hardware_id: str, *, proposed: bool) -> Json:
        from api.http.routes import hardware

        return hardware.list_facts(
            hardware_id, self.services, "proposed" if proposed else "effective"
        )

    def patch_fact(self, fact_id: str, patch: Json) -> Json:
        from api.http.bodies import validated
        from api.http.models import FactPatch
        from api.http.routes import hardware

        return hardware.patch_fact(fact_id, self.services, validated(FactPatch, dict(patch)))

    def coverage(self, hardware_id: str) -> Json:
        from retrieval.coverage import coverage

        services = self.services
        resolved = services.registry.resolve(hardware_id)
        found: Mapping[str, Any] = coverage(
            services.catalog, services.registry, resolved, ALL_ACCESS
        ).as_json()
        return found

    # -- skills

    @cached_property
    def _library_catalog(self) -> Any:
        from kb.catalog import open_catalog

        return open_catalog(self.settings.data_dir)

    def _library(self) -> SkillLibrary:
        """The library alone, without what documents and models need; filled when it is empty."""
        from skills.skill_library import SkillLibrary

        library = SkillLibrary(self._library_catalog)
        if not library.list():
            library.sync_builtin(self.settings.skills_dir)
        return library

    def skills(self) -> list[Json]:
        return [plain(skill) for skill in self._library().list()]

    def skill(self, name: str) -> Json:
        found: Json = plain(self._library().show(name))
        return found


def _category(name: str | None) -> Category | None:
    for known in CATEGORIES:
        if name == known:
            return known
    if name is None:
        return None
    near = nearest(name, CATEGORIES)
    raise InvalidRequest(
        f"unknown category {name!r}",
        hint=f"Use one of {', '.join(CATEGORIES)}"
        + (f"; did you mean {near[0]}?" if near else "."),
    )
