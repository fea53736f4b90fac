"""A command carried out in this process: the catalog, exact search over its vectors, own reading.

The same parts as the service's (`api.services`), without Chroma and without a port, and the same
functions that HTTP routes call, so both answer alike. An empty catalog gets the built-in hardware
and skills at once, so that a first `ingest --hardware h100` knows the chip; the built-in documents
come with `kernlore ingest --builtin` or `kernlore serve`.

Imports are where they are used: a command pays only for what it needs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from api.cli.backends.contract import About, Filters, Json
from api.cli.output import note
from kb.data_dir import access_of_others, running_service
from kb.errors import PayloadTooLarge, StoreAway, StoreError, Unavailable
from kb.plain import plain
from kb.scope import ALL_ACCESS
from kb.settings import Settings

if TYPE_CHECKING:
    from api.services import Services
    from ingestion.cluster import ClusterReader
    from ingestion.read import DocumentReader
    from ingestion.worker import Worker
    from kb.catalog.hardware import HardwareRegistry
    from kb.catalog.knowledge.symbols import SymbolStatus
    from kb.cluster import Cluster
    from skills.format.skillfile import Exported
    from skills.skill_library import SkillLibrary

POLL_SECONDS = 0.2
STOP_SECONDS = 2.0


class LocalTarget:
    """The services of one command over a data directory; `close` them when it is done."""

    loads_builtin = False

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.name = f"data directory {settings.data_dir}"
        self._cluster: ClusterReader | None = None
        self._readers: list[threading.Thread] = []
        self._workers: list[Worker] = []

    def close(self) -> None:
        """Close what was opened."""
        for name in ("services", "_library_catalog"):
            if name in self.__dict__:
                self.__dict__[name].close()

    @cached_property
    def services(self) -> Services:
        """The parts of the data directory, opened when first used."""
        from api.services import open_services

        opened = open_services(self.settings)
        if not opened.registry.all():
            self._put_builtin_hardware(opened.registry)
            opened.skills.sync_builtin(self.settings.skills_dir)
        return opened

    def _put_builtin_hardware(self, registry: HardwareRegistry) -> None:
        from ingestion.builtin import load_hardware

        load_hardware(self.settings.knowledge_dir, registry)

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
                group=about.group,
            )
        )

    def upload_builtin(self, group: str) -> Iterator[Json]:
        """Queue the built-in documents one by one; those that no longer ship are removed."""
        from ingestion.builtin import builtin_documents

        self._put_builtin_hardware(self.services.registry)
        for upload in builtin_documents(self.settings.knowledge_dir):
            submitted = self._submit(replace(upload, group=group))
            yield {**submitted, "name": upload.source_key}
        self.services.load_builtin()

    def load_knowledge(self, say: Callable[[str], None]) -> None:
        """Load the built-in documents of this version with their facts and moves; they are found by
        words when this returns.

        Vectors are left to a service or to `ingest`: they take minutes, and made beside a search
        they would disturb its measurements. `say` gets remarks for the user.
        """
        services = self.services
        if running_service(self.settings.data_dir) is None:  # which sees to them itself
            changed = self._load_builtin(say)
            unread = services.documents.unread("builtin", ("staged",))
            if changed or unread:
                say(f"reading {max(changed, unread)} built-in documents into the data directory")
                with services.local_reader() as reader:
                    worker = services.worker(reader)
                    worker.read_all(threading.Event())
                    worker.hand_back()
        unread = services.documents.unread("builtin")
        if unread:
            say(f"{unread} built-in documents are not read; `kernlore ingest --builtin` says why")
        if not services.dense_ready:
            embedded, passages = services.vectors()
            say(
                f"{embedded} of {passages} passages have a vector; until `kernlore serve` or"
                " `kernlore ingest --builtin` has made the rest, knowledge is found by words and"
                " tags alone"
            )

    def _load_builtin(self, say: Callable[[str], None]) -> int:
        """Number of documents that are to be read."""
        try:
            return self.services.load_builtin().changed
        except StoreAway as error:  # what was loaded before still answers
            say(f"the built-in knowledge is as it was last loaded: {error.message}. {error.hint}")
            return 0

    def _submit(self, upload: Any) -> Json:
        submitted: Json = plain(self.services.uploads.submit(upload))
        return submitted

    def read_on(self, cluster: Cluster) -> None:
        """Let the nodes of a cluster read and embed from now on."""
        self._cluster = self.services.cluster_reader(cluster, note)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read and embed what is queued in threads, while the caller watches the jobs: in one, or
        on a cluster in as many as files are read there at once.
        """
        if (wide := access_of_others(self.settings.data_dir)) is not None:
            note(f"Warning: {wide}.")
        stop = threading.Event()
        workers = self._workers = []
        count = 1 if self._cluster is None else self._cluster.at_once
        with self.services.local_reader() as local:
            reader = self._cluster or local
            self._readers = [
                threading.Thread(
                    target=self._read, args=(stop, workers, reader), name="reading", daemon=True
                )
                for _ in range(count)
            ]
            for thread in self._readers:
                thread.start()
            try:
                yield
            finally:
                stop.set()
                deadline = time.monotonic() + STOP_SECONDS
                for thread in self._readers:
                    thread.join(timeout=max(0.0, deadline - time.monotonic()))
                for worker in workers:
                    worker.release()  # else what a stopped command leaves would still be running
                self._readers = []

    def _read(self, stop: threading.Event, workers: list[Worker], reader: DocumentReader) -> None:
        worker = self.services.worker(reader)
        workers.append(worker)
        worker.run(stop, idle_seconds=POLL_SECONDS)

    def jobs(self, asked: Json) -> Json:
        from ingestion.progress import JobFilter, list_jobs

        filters = JobFilter(
            states=tuple(asked.get("state") or ()),
            hardware=asked.get("hardware"),
            group=asked.get("group"),
            ended_since=asked.get("ended_since"),
        )
        paging = {name: asked[name] for name in ("limit", "cursor") if asked.get(name) is not None}
        page: Json = plain(list_jobs(self.services, filters, **paging))
        self._check_reader(page["counts"]["queued"] + page["counts"]["running"] > 0)
        return page

    def job(self, job_id: str) -> Json:
        from ingestion.progress import show_job

        job: Json = plain(show_job(self.services, job_id))
        self._check_reader(job["state"] in ("queued", "running"))
        return job

    def retry_job(self, job_id: str) -> Json:
        from ingestion.progress import retry_job

        job: Json = plain(retry_job(self.services, job_id))
        return job

    def _check_reader(self, unfinished: bool) -> None:
        stopped = bool(self._readers) and not any(r.is_alive() for r in self._readers)
        if unfinished and any(worker.full for worker in self._workers):
            from kb.catalog.database import full

            raise full("no space to read a document")
        for worker in self._workers:
            if unfinished and worker.away is not None:
                raise worker.away
        if stopped and unfinished:
            raise StoreError(
                "reading stopped before every document was read",
                hint="The reason stands above; run the same command again to go on.",
            )

    # -- documents

    def documents(self, hardware: str | None, category: str | None) -> list[Json]:
        from retrieval.documents import list_documents

        return [*list_documents(self.services, hardware=hardware, category=category)]

    def document(self, document_id: str) -> Json:
        from retrieval.documents import show_document

        return show_document(self.services, document_id)

    def sections(self, document_id: str) -> list[Json]:
        from retrieval.documents import list_sections

        return [*list_sections(self.services, document_id)]

    def delete_document(self, document_id: str) -> Json:
        from retrieval.documents import delete_document

        return delete_document(self.services, document_id)

    def drop_correction(self, document_id: str, correction_id: str) -> Json:
        from retrieval.documents import drop_correction

        drop_correction(self.services, document_id, correction_id)
        return {"id": correction_id, "document_id": document_id, "dropped": True}

    def passages(self, document_id: str, offset: int, limit: int) -> list[Json]:
        from retrieval.documents import list_passages

        page = list_passages(self.services, document_id, offset=offset, limit=limit)
        return [*page["passages"]]

    def correct_passage(self, passage_id: str, patch: Json) -> Json:
        from api.bodies import PassagePatch, validated
        from retrieval.documents import correct_passage

        body = validated(PassagePatch, dict(patch))
        corrected = correct_passage(
            self.services,
            passage_id,
            text=body.text,
            tags=body.tag_pairs,
            hardware=body.hardware,
            actor=body.actor,
        )
        if body.text is not None:
            with self.services.local_reader() as reader:
                self.services.worker(reader).drain()  # the new text needs its vector
        return corrected

    # -- hardware

    def hardware(self) -> list[Json]:
        from ingestion.hardware import list_hardware

        return [*list_hardware(self.services.registry)]

    def hardware_one(self, hardware_id: str) -> Json:
        from ingestion.hardware import show_hardware

        return show_hardware(self.services.registry, hardware_id)

    def add_hardware(self, description: Json, origin: str) -> Json:
        return self.services.register_hardware(description, origin)

    def remove_hardware(self, hardware_id: str, *, with_documents: bool) -> Json:
        from retrieval.hardware_removal import remove_hardware

        return remove_hardware(self.services, hardware_id, with_documents=with_documents)

    def facts(self, hardware_id: str, *, status: str, where: Json) -> Json:
        from ingestion.hardware import FactFilter, FactWhere, facts_of

        chosen: FactFilter = "proposed" if status == "proposed" else "effective"
        return facts_of(self.services.registry, hardware_id, chosen, FactWhere(**where))

    def patch_facts(self, hardware_id: str, patch: Json) -> Json:
        from api.bodies import FactsPatch, validated
        from ingestion.hardware import FactWhere, decide_facts

        body = validated(FactsPatch, dict(patch))
        where = None if body.where is None else FactWhere(**body.where.model_dump())
        fields = body.model_dump(exclude={"where"})
        return decide_facts(self.services.registry, hardware_id, where=where, **fields)

    def patch_fact(self, fact_id: str, patch: Json) -> Json:
        from api.bodies import FactPatch, validated
        from ingestion.hardware import decide_fact

        body = validated(FactPatch, dict(patch))
        return decide_fact(self.services.registry, fact_id, **body.model_dump())

    def coverage(self, hardware_id: str) -> Json:
        from retrieval.coverage import coverage

        services = self.services
        resolved = services.registry.resolve(hardware_id)
        answer: Mapping[str, Any] = coverage(
            services.catalog, services.registry, resolved, ALL_ACCESS
        ).as_json()
        return answer

    def symbols(self, hardware_id: str, query: str, status: str) -> list[Json]:
        from retrieval.vocabulary import list_symbols

        chosen: SymbolStatus = "proposed" if status == "proposed" else "accepted"
        return list(list_symbols(self.services, hardware_id, query, status=chosen))

    def samples(self, hardware_id: str, operator: str) -> list[Json]:
        from retrieval.vocabulary import list_samples

        return list(list_samples(self.services, hardware_id, operator))

    def patch_symbol(self, symbol_id: str, fix: Json) -> Json:
        from api.bodies import SymbolPatch, validated
        from retrieval.vocabulary import correct_symbol

        body = validated(SymbolPatch, dict(fix))
        return correct_symbol(self.services, symbol_id, body.model_dump(exclude_none=True))

    # -- skills

    @cached_property
    def _library_catalog(self) -> Any:
        from kb.catalog import open_catalog

        return open_catalog(self.settings.data_dir, self.settings.catalog)

    def _library(self) -> SkillLibrary:
        """The library alone, without what documents and models need; filled when it is empty."""
        from skills.skill_library import SkillLibrary

        library = SkillLibrary(self._library_catalog)
        if not library.list():
            self._know_hardware()  # skills name the chips that they hold for
            library.sync_builtin(self.settings.skills_dir)
        return library

    def _library_with_hardware(self) -> SkillLibrary:
        """The library, over a registry that knows the built-in hardware."""
        self._know_hardware()
        return self._library()

    def _know_hardware(self) -> None:
        from kb.catalog.hardware import HardwareRegistry

        registry = HardwareRegistry(self._library_catalog)
        if not registry.all():
            self._put_builtin_hardware(registry)

    def skills(self, filters: Filters) -> list[Json]:
        library = self._library() if filters.hardware is None else self._library_with_hardware()
        states = None
        if filters.state is not None:
            states = [part.strip() for part in filters.state.split(",") if part.strip()]
        skills = library.list(
            states=states,
            tier=filters.tier,
            hardware=filters.hardware,
            signal=filters.signal,
            language=filters.language,
            words=filters.words,
        )
        return [plain(skill) for skill in skills]

    def skill(self, name: str) -> Json:
        skill: Json = plain(self._library().show(name))
        return skill

    def skill_history(self, name: str) -> list[Json]:
        return [*self.skill(name)["events"]]

    def change_skill(self, name: str, patch: Json) -> Json:
        from api.bodies import validated
        from api.skill_bodies import SkillPatch
        from skills.lifecycle import change_state

        body = validated(SkillPatch, dict(patch))
        self._library()
        event = change_state(
            self.services.catalog,
            name,
            body.state,
            actor=body.actor,
            reason=body.reason,
            force=body.force,
        )
        warnings = self._library().warnings(name, event)
        return {
            "name": name,
            "state": event.to_state,
            "event": plain(event),
            "warnings": [*warnings],
        }

    def revise_skill(self, name: str, change: Json) -> Json:
        from api.bodies import validated
        from api.skill_bodies import RevisionBody
        from skills.skill_library import Revision

        body = validated(RevisionBody, dict(change))
        revision = Revision(body.description, body.predicate, body.body)
        library = self._library_with_hardware()
        stored = library.revise(name, revision, actor=body.actor, reason=body.reason)
        return {**plain(stored)}

    def export_skills(self, names: Sequence[str], parent: Path, filters: Filters) -> Exported:
        from skills.format.skillfile import write_export

        chosen = names or [skill["name"] for skill in self.skills(filters)]
        library = self._library()
        states = {skill.name: skill.state for skill in library.list()}
        return write_export(library.files(chosen), parent, states)

    def import_skill(self, folder: Path, actor: str) -> Json:
        library = self._library_with_hardware()
        imported: Json = plain(library.import_folder(folder, actor=actor))
        return imported
