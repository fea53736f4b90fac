"""Where a command is carried out: by a running service over HTTP, or in this process.

`CommandTarget.call` carries out an operation either way and returns the JSON of the HTTP interface.
This process opens the same services as `kernlore serve`, without Chroma and without a port. An
empty catalog gets the built-in hardware and skills at once, so that a first `ingest --hardware
h100` knows the chip; `ingest --builtin` and `serve` load the built-in documents.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec
from urllib.request import urlopen

from api.cli.output import Json, note
from kb.errors import InvalidRequest, KernloreError, StoreAway, StoreError, Unavailable
from kb.plain import plain
from kb.routes import routes

if TYPE_CHECKING:
    from api.operations import Incoming, Operation
    from api.services import Services
    from ingestion.cluster import ClusterReader
    from ingestion.worker import Worker
    from kb.cluster import Cluster
    from kb.settings import Settings
    from retrieval.client import HttpBackend, KernloreClientError, Part
    from skills.importing import ShippedSync

P = ParamSpec("P")
URL_VARIABLE = "KERNLORE_URL"  # a service for commands that name neither a URL nor a directory
REQUEST_SECONDS = 120.0  # an upload of the largest file through a slow disk
IDLE_SECONDS = 0.2  # between two checks of an empty queue
STOP_SECONDS = 2.0  # for the readers of an interrupted command


@contextmanager
def open_target(data_dir: Path | None, url: str | None) -> Iterator[CommandTarget]:
    """The service at `url`, else the one that runs on the data directory, else this process."""
    service = service_at(data_dir, url)
    settings = None
    if service is None:
        send_logs_to_stderr("warning")
        settings = read_settings(data_dir)
        if not settings.data_dir.exists() and "data_dir" not in settings.model_fields_set:
            note(_new_data(settings))
    target = CommandTarget(settings, url=service)
    try:
        yield target
    finally:
        target.close()


@contextmanager
def opened(data_dir: Path | None) -> Iterator[CommandTarget]:
    """This process as the target, also where a service runs on the data directory."""
    send_logs_to_stderr("error")
    settings = read_settings(data_dir)
    if data_dir is None and os.environ.get(URL_VARIABLE) and not settings.data_dir.exists():
        raise InvalidRequest(
            f"this command reads a data directory, not the service of {URL_VARIABLE}, and"
            f" {settings.data_dir} does not exist",
            hint="Run it on the service's machine with --data-dir or KERNLORE_DATA_DIR.",
        )
    target = CommandTarget(settings)
    try:
        yield target
    finally:
        target.close()


def service_at(data_dir: Path | None, url: str | None) -> str | None:
    """`url`, else without a data directory that of KERNLORE_URL, else the URL of the service that
    runs on the data directory, or None. Raises InvalidRequest for both."""
    from kb.data_dir import running_service

    if url is None and data_dir is None:
        url = os.environ.get(URL_VARIABLE) or None

    if url is not None and data_dir is not None:
        raise InvalidRequest(
            "--url and --data-dir exclude each other",
            hint="Give the URL of a service, or its data.",
        )
    return url or running_service(read_settings(data_dir).data_dir)


def _new_data(settings: Settings) -> str:
    """A remark about a data directory that the command makes in the current folder."""
    said = (
        f"No service runs on ./{settings.data_dir}: the command makes a new data directory there."
    )
    service = f"http://{settings.host}:{settings.port}"
    try:
        with urlopen(f"{service}/healthz", timeout=1) as answer:
            alive = b'"alive"' in answer.read(1_000)
    except (OSError, ValueError):
        alive = False
    if alive:
        said += f" A service runs at {service}: --url {service}, or {URL_VARIABLE}, uses that one."
    return said


class CommandTarget:
    """A running service where a URL is given, else this process over the data directory of the
    settings. `close` it at the end."""

    def __init__(self, settings: Settings | None = None, *, url: str | None = None) -> None:
        self._settings = settings
        self._service = None if url is None else _Service(url)
        self._cluster: ClusterReader | None = None
        self._specs: int | None = None  # chips that were registered here
        self._skills: ShippedSync | None = None  # the shipped skills, where they were loaded here

    def close(self) -> None:
        if self._service is not None:
            self._service.close()
        if "services" in self.__dict__:
            self.services.close()

    def call(self, operation: Operation[P, Any], /, *args: P.args, **given: P.kwargs) -> Json:
        """Carry out an operation; its output as JSON. Fields of a JSON body may be given as plain
        JSON; a parameter that is None is left out."""
        answer = self._answer(operation, args, given)
        if not isinstance(answer, Mapping):
            raise Unavailable(
                f"the service did not answer as Kernlore does: {str(answer)[:200]}",
                hint="Check that the URL is Kernlore's and that both are of one version.",
            )
        return answer

    def download(self, operation: Operation[P, Any], /, *args: P.args, **given: P.kwargs) -> bytes:
        """Carry out an operation whose output is a file; its bytes."""
        answer = self._answer(operation, args, given)
        return answer if isinstance(answer, bytes) else bytes(answer.data)

    def _answer(
        self, operation: Operation[Any, Any], args: Sequence[Any], named: Mapping[str, Any]
    ) -> Any:
        inputs = operation.inputs
        given = {i.name: value for i, value in zip(inputs, args, strict=False)} | dict(named)
        defaults = {i.name: i.default for i in inputs}
        given = {n: v for n, v in given.items() if v is not None and v != defaults.get(n)}
        if self._service is not None:
            return self._service.request(operation, given)
        for i in inputs:
            if i.place == "files" and i.name in given:
                given[i.name] = tuple(self._measured(file) for file in given[i.name])
        services: Any = None if operation.static else self.services
        output = operation(services, **operation.checked(given))
        return output if operation.produces else plain(output)

    def _measured(self, file: Incoming) -> Incoming:
        size = file.file.seek(0, 2)
        file.file.seek(0)
        return replace(file, oversized=size > self.settings.max_file_bytes)

    # -- this process

    @property
    def settings(self) -> Settings:
        """Settings of the data directory. Not those of a service."""
        assert self._settings is not None, "the data directory of a service is its own"
        return self._settings

    @cached_property
    def services(self) -> Services:
        """The services of the data directory, opened at the first use."""
        from api.prepared import copy_prepared
        from api.services import open_services
        from ingestion.builtin import load_hardware

        copy_prepared(self.settings)
        services = open_services(self.settings)
        if not services.registry.all():
            self._specs = load_hardware(self.settings.knowledge_dir, services.registry)
            self._skills = services.skills.sync_builtin(self.settings.skills_dir)
        return services

    def ensure_documents(self) -> None:
        """Load the built-in knowledge where this process has no documents to answer from, and say
        where it is that of another version."""
        if self._service is not None:
            return
        if not self.services.documents.find(limit=1):
            self.load_knowledge(note)
        elif self.services.loaded_from_others():
            note(
                "the built-in knowledge in the data directory is of another version; `kernlore"
                " serve` or `kernlore ingest --builtin` brings it up to date"
            )

    def load_knowledge(self, log: Callable[[str], None]) -> None:
        """Load the built-in documents of this version with their facts and moves, so that they are
        found by words; `log` gets remarks for the user.

        Vectors are left to a service or to `ingest`: they take minutes, and would disturb the
        measurements of a search.
        """
        from kb.data_dir import running_service

        services = self.services
        if running_service(self.settings.data_dir) is None:
            changed = self._load_builtin(log)
            unread = services.documents.unread("builtin", ("staged",))
            if changed or unread:
                log(f"reading {max(changed, unread)} built-in documents into the data directory")
                with services.local_reader() as reader:
                    worker = services.worker(reader)
                    worker.read_all(threading.Event())
                    worker.hand_back()
        unread = services.documents.unread("builtin")
        if unread:
            log(f"{unread} built-in documents are not read; `kernlore ingest --builtin` says why")
        if not services.dense_ready:
            embedded, passages = services.vectors()
            log(
                f"{embedded} of {passages} passages have a vector; until `kernlore serve` or"
                " `kernlore ingest --builtin` has made the rest, knowledge is found by words and"
                " tags alone"
            )

    def _load_builtin(self, log: Callable[[str], None]) -> int:
        """Number of documents to read."""
        try:
            return self.services.load_builtin(self._specs, self._skills).changed
        except StoreAway as error:  # documents that were loaded before can still be found
            log(f"the built-in knowledge is as it was last loaded: {error.message}. {error.hint}")
            return 0

    # -- reading of queued files: a service does it by itself

    def upload_builtin(self, group: str) -> Iterator[Json]:
        """Queue the built-in documents one by one, and remove those that no longer ship."""
        if self._service is not None:
            note(f"{self._service.url} loads the built-in knowledge by itself when it starts")
            return
        from ingestion.builtin import builtin_documents, load_hardware

        load_hardware(self.settings.knowledge_dir, self.services.registry)
        for upload in builtin_documents(self.settings.knowledge_dir):
            submitted = self.services.uploads.submit(replace(upload, group=group))
            yield {**plain(submitted), "name": upload.source_key}
        self.services.load_builtin()

    def read_on(self, cluster: Cluster) -> None:
        """Let the nodes of a cluster read and embed from now on."""
        self._cluster = self.services.cluster_reader(cluster, note)

    @contextmanager
    def reading(self) -> Iterator[Callable[[], None]]:
        """Read and embed queued files in threads, as many as a cluster reads at once. Call the
        yielded function while jobs are unfinished: it raises where reading has stopped."""
        if self._service is not None:
            yield lambda: None
            return
        from kb.data_dir import access_of_others

        if (wide := access_of_others(self.settings.data_dir)) is not None:
            note(f"Warning: {wide}.")
        stop = threading.Event()
        workers: list[Worker] = []
        with self.services.local_reader() as local:

            def read() -> None:
                worker = self.services.worker(self._cluster or local)
                workers.append(worker)
                worker.run(stop, IDLE_SECONDS)

            count = 1 if self._cluster is None else self._cluster.at_once
            readers = [
                threading.Thread(target=read, name="reading", daemon=True) for _ in range(count)
            ]
            for reader in readers:
                reader.start()
            try:
                yield lambda: _check_reading(readers, workers)
            finally:
                stop.set()
                deadline = time.monotonic() + STOP_SECONDS
                for reader in readers:
                    reader.join(timeout=max(0.0, deadline - time.monotonic()))
                for worker in workers:
                    worker.release()  # the jobs of a stopped command do not stay `running`

    def finish_reading(self) -> None:
        """Read and embed everything that is queued."""
        if self._service is None:
            with self.services.local_reader() as reader:
                self.services.worker(reader).drain()


def _check_reading(readers: Sequence[threading.Thread], workers: Sequence[Worker]) -> None:
    if any(worker.full for worker in workers):
        from kb.catalog.database import full

        raise full("no space to read a document")
    for worker in workers:
        if worker.away is not None:
            raise worker.away
    if not any(reader.is_alive() for reader in readers):
        raise StoreError(
            "reading stopped before every document was read",
            hint="The reason is printed above; run the same command again to continue.",
        )


@contextmanager
def cluster_at(address: str, packages: tuple[str, ...]) -> Iterator[Cluster]:
    """A connection to a Ray cluster, whose nodes import these packages of the program."""
    from kb.cluster import connect_to_cluster

    with connect_to_cluster(address, packages) as cluster:
        note(f"dashboard of the cluster: {cluster.dashboard or 'none is running'}")
        yield cluster


# -- a service over HTTP


class ServiceError(KernloreError):
    """An error of the service, or a missing answer, as an error of this process."""

    def __init__(self, error: KernloreClientError) -> None:
        super().__init__(error.message, hint=error.hint, details=error.details)
        self.code = error.code
        self.status = error.status or (400 if error.code.startswith("invalid") else 503)


class _Service:
    """Requests to a running service, made from operations and their input."""

    def __init__(self, url: str) -> None:
        from retrieval.client import HttpBackend, KernloreClientError

        try:
            self._http: HttpBackend = HttpBackend(url, timeout=REQUEST_SECONDS, transport=None)
        except KernloreClientError as error:
            raise ServiceError(error) from error
        self.url = self._http.url

    def close(self) -> None:
        self._http.close()

    def request(self, operation: Operation[Any, Any], given: Mapping[str, Any]) -> Any:
        """The decoded JSON of the answer, or the bytes of a file. Raises ServiceError."""
        from retrieval.client import KernloreClientError

        method, path, query, body, form, files = routes()[operation.name].request(given)
        try:
            if operation.produces:
                answer = self._http.download(path, query)
                if answer.is_success:
                    return answer.content
                status, content = answer.status_code, _decoded(answer)
            else:
                parts = _parts(form, files) or None
                status, content = self._http.send(
                    method, path, params=query or None, json=body, files=parts
                )
        except KernloreClientError as error:
            raise ServiceError(error) from error
        if status >= 300:
            raise _refused(f"{method} {path}", status, content)
        return content


def _parts(form: Mapping[str, Any], files: Mapping[str, Sequence[Incoming]]) -> list[Part]:
    """The fields of a multipart body, then its files; a list is a repeated field."""
    from retrieval.client import Part

    parts = []
    for name, value in form.items():
        parts += [Part(name, one) for one in ([value] if isinstance(value, str) else value)]
    for name, several in files.items():
        parts += [Part(name, incoming.file, incoming.name) for incoming in several]
    return parts


def _decoded(answer: Any) -> Any:
    try:
        return answer.json()
    except ValueError:
        return None


def _refused(request: str, status: int, content: Any) -> ServiceError:
    from retrieval.client import KernloreClientError

    error = content if isinstance(content, Mapping) else {}
    return ServiceError(
        KernloreClientError(
            str(error.get("code", "unexpected_answer")),
            str(error.get("message", f"{request} answered {status}")),
            str(error.get("hint", "Check that the URL is Kernlore's.")),
            error.get("details"),
            status,
        )
    )


# -- settings and surroundings of a command


def read_settings(data_dir: Path | None = None, **given: Any) -> Settings:
    """Settings from options, the environment and defaults, in this order.

    An option that is None was not given. Raises InvalidRequest for a value that does not fit.
    """
    from pydantic import ValidationError

    from kb.settings import Settings

    chosen = {k: v for k, v in {"data_dir": data_dir, **given}.items() if v is not None}
    try:
        return Settings(**chosen)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        option = "--" + {"allowed_hosts": "allowed-host"}.get(name, name.replace("_", "-"))
        wrong = option if name in chosen else f"KERNLORE_{name.upper()}"
        raise InvalidRequest(
            f"setting {name}: {first['msg']} (it is {first.get('input')!r})",
            hint=f"Correct {wrong}; docs/reference/settings.md lists every setting.",
        ) from error


def send_logs_to_stderr(level: str) -> None:
    """Log from `level` up to standard error; standard output is for the answer."""
    import structlog

    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise InvalidRequest(
            f"log level {level!r} is unknown", hint="Use debug, info, warning or error."
        )
    logging.basicConfig(
        stream=sys.stderr, level=max(number, logging.WARNING), format="%(levelname)s %(message)s"
    )
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def login() -> str:
    """The login name, as the actor of corrections and decisions."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):  # an account without a name, as in some containers
        return "cli"
