"""A command carried out by a running service, over its HTTP interface."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kb.errors import KernloreError, Unavailable
from kb.routes import routes
from retrieval.client import HttpBackend, KernloreClientError, Part

if TYPE_CHECKING:
    from api.cli.backends import About, Json
    from skills.format.schema import SkillFile

TIMEOUT = 120.0  # seconds; an upload of the largest file through a slow disk


class ServiceError(KernloreError):
    """An error of the service, or the lack of an answer, in this process's own tree."""

    def __init__(self, error: KernloreClientError) -> None:
        super().__init__(error.message, hint=error.hint, details=error.details)
        self.code = error.code
        self.status = error.status or (400 if error.code.startswith("invalid") else 503)


class RemoteTarget:
    """A running service, by its URL."""

    loads_builtin = True

    def __init__(self, url: str) -> None:
        try:
            self._http = HttpBackend(url, timeout=TIMEOUT, transport=None)
        except KernloreClientError as error:
            raise ServiceError(error) from error
        self.name = self._http.url

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def call(self, operation: str, **given: Any) -> Json:
        """The answer of an operation. Raises ServiceError."""
        method, path, query, body = routes()[operation].request(given)
        carried = {} if body is None else {"json": body}
        return self.send(method, path, params=query, **carried)

    def send(self, method: str, path: str, **carried: Any) -> Json:
        """One request; an error of the service is raised as one of ours."""
        try:
            status, body = self._http.send(method, path, **carried)
        except KernloreClientError as error:
            raise ServiceError(error) from error
        if status < 300:
            if not isinstance(body, Mapping):
                raise Unavailable(
                    f"the service did not answer as Kernlore does: {str(body)[:200]}",
                    hint="Check that the URL is Kernlore's and that both are of one version.",
                )
            return body
        known = body if isinstance(body, Mapping) else {}
        raise ServiceError(
            KernloreClientError(
                str(known.get("code", "unexpected_answer")),
                str(known.get("message", f"{method} {path} answered {status}")),
                str(known.get("hint", "Check that the URL is Kernlore's.")),
                known.get("details"),
                status,
            )
        )

    def upload(self, path: Path, name: str, about: About) -> Json:
        """Queue a file to be read."""
        parts = [Part("hardware", hardware) for hardware in about.hardware]
        parts += [Part("languages", language) for language in about.languages]
        fields = {
            "category": about.category,
            "title": about.title,
            "source_key": about.source_key,
            "group": about.group,
        }
        parts += [Part(key, value) for key, value in fields.items() if value is not None]
        route = routes()["upload"]
        with path.open("rb") as file:
            return self.send(route.method, route.path, files=[*parts, Part("file", file, name)])

    def upload_builtin(self, group: str) -> Iterator[Json]:
        """Nothing: the service loads them when it starts."""
        yield from ()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """The service reads by itself."""
        yield

    def add_hardware(self, description: Json, origin: str) -> Json:
        """Register a hardware."""
        return self.call("register_hardware", description=dict(description))

    def skill_file(self, name: str) -> SkillFile:
        """A skill as it is exported."""
        from skills.format.skillfile import read_skill, unpacked

        self.call("show_skill", name=name)  # an unknown one is refused in the service's own words
        _, path, _, _ = routes()["export_skill"].request({"name": name})
        answer = self._http.download(path)
        if not answer.is_success or not zipfile.is_zipfile(io.BytesIO(answer.content)):
            raise Unavailable(
                f"the service answered {answer.status_code} instead of a zip of {name}",
                hint="Check that the URL is Kernlore's and that both are of one version.",
            )
        with unpacked(answer.content) as folder:
            return read_skill(folder)

    def import_skill(self, folder: Path, actor: str) -> Json:
        """Import a folder as a candidate skill."""
        from skills.format.skillfile import packed

        file = Part("file", packed(folder.resolve()), f"{folder.resolve().name}.zip")
        route = routes()["import_skill"]
        return self.send(route.method, route.path, files=[Part("actor", actor), file])
