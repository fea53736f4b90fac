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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from api.cli.output import note
from kb.data_dir import access_of_others, running_service
from kb.errors import StoreAway, StoreError, Unavailable
from kb.plain import plain
from kb.routes import routes
from kb.settings import Settings

if TYPE_CHECKING:
    from api.cli.backends import About, Json
    from api.services import Services
    from ingestion.cluster import ClusterReader
    from ingestion.read import DocumentReader
    from ingestion.worker import Worker
    from kb.catalog.hardware import HardwareRegistry
    from kb.cluster import Cluster
    from skills.format.schema import SkillFile

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
        if "services" in self.__dict__:
            self.services.close()

    @cached_property
    def services(self) -> Services:
        """The parts of the data directory, opened when first used."""
        from api.services import open_services

        opened = open_services(self.settings)
        if not opened.registry.all():
            self._put_builtin_hardware(opened.registry)
        if not opened.skills.list():
            opened.skills.sync_builtin(self.settings.skills_dir)
        return opened

    def _put_builtin_hardware(self, registry: HardwareRegistry) -> None:
        from ingestion.builtin import load_hardware

        load_hardware(self.settings.knowledge_dir, registry)

    def call(self, operation: str, **given: Any) -> Json:
        """The answer of an operation, as the service would give it."""
        from api.operations import operation_named

        if operation == "retrieve" and not self.services.documents.find():
            raise Unavailable(
                f"there are no documents in {self.settings.data_dir} yet",
                hint="Run `kernlore serve`, or `kernlore ingest --builtin` to load the built-in"
                " knowledge here.",
            )
        declared = operation_named(routes()[operation].noun, operation)
        known = {name: value for name, value in given.items() if value is not None}
        answer: Json = plain(declared(self.services, **declared.checked(known)))
        if operation == "correct_passage" and "text" in known:
            with self.services.local_reader() as reader:
                self.services.worker(reader).drain()  # the new text needs its vector
        if operation == "list_jobs":
            self._check_reader(answer["counts"]["queued"] + answer["counts"]["running"] > 0)
        if operation == "show_job":
            self._check_reader(answer["state"] in ("queued", "running"))
        return answer

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

    # -- hardware and skills

    def add_hardware(self, description: Json, origin: str) -> Json:
        """Register a hardware; `origin` names the description in errors."""
        added: Json = plain(self.services.register_hardware(description, origin))
        return added

    def skill_file(self, name: str) -> SkillFile:
        """A skill as it is exported."""
        [file] = self.services.skills.files([name])
        return file

    def import_skill(self, folder: Path, actor: str) -> Json:
        """Import a folder as a candidate skill."""
        imported: Json = plain(self.services.skills.import_folder(folder, actor=actor))
        return imported
