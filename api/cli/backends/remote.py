"""A command carried out by a running service, over its HTTP interface.

Passes JSON through as it is; knows paths, not meanings.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from api.cli.backends.contract import About, Filters, Json
from kb.errors import KernloreError, Unavailable
from retrieval.client import HttpBackend, KernloreClientError, Part

if TYPE_CHECKING:
    from skills.format.schema import SkillFile
    from skills.format.skillfile import Exported

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
        self._http.close()

    def call(self, method: str, path: str, **carried: Any) -> Any:
        """One request; an error of the service is raised as one of ours."""
        try:
            status, body = self._http.send(method, path, **carried)
        except KernloreClientError as error:
            raise ServiceError(error) from error
        if status < 300:
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

    def _get(self, at: str, **params: Any) -> Any:
        return self.call("GET", at, params={k: v for k, v in params.items() if v is not None})

    # -- asking

    def retrieve(self, request: Json) -> Json:
        return _mapping(self.call("POST", "/retrieve", json=dict(request)))

    def report_outcome(self, retrieval_id: str, outcome: Json) -> Json:
        path = _at("/retrievals", retrieval_id, "outcome")
        return _mapping(self.call("POST", path, json=dict(outcome)))

    def knowledge(self, path: str) -> Json:
        return _mapping(self._get("/knowledge", path=path))

    def signals(self) -> list[Json]:
        return _rows(self._get("/signals"), "signals")

    # -- files in

    def upload(self, path: Path, name: str, about: About) -> Json:
        parts = [Part("hardware", hardware) for hardware in about.hardware]
        parts += [Part("languages", language) for language in about.languages]
        fields = {
            "category": about.category,
            "title": about.title,
            "source_key": about.source_key,
            "group": about.group,
        }
        parts += [Part(key, value) for key, value in fields.items() if value is not None]
        with path.open("rb") as file:
            body = self.call("POST", "/documents", files=[*parts, Part("file", file, name)])
        return _mapping(body)

    def upload_builtin(self, group: str) -> Iterator[Json]:
        """The service loads them by itself when it starts."""
        yield from ()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """The service reads by itself."""
        yield

    def jobs(self, asked: Json) -> Json:
        return _mapping(self._get("/jobs", **asked))

    def job(self, job_id: str) -> Json:
        return _mapping(self._get(_at("/jobs", job_id)))

    def retry_job(self, job_id: str) -> Json:
        return _mapping(self.call("POST", _at("/jobs", job_id, "retry")))

    # -- documents

    def documents(self, hardware: str | None, category: str | None) -> list[Json]:
        return _rows(self._get("/documents", hardware=hardware, category=category), "documents")

    def document(self, document_id: str) -> Json:
        return _mapping(self._get(_at("/documents", document_id)))

    def sections(self, document_id: str) -> list[Json]:
        return _rows(self._get(_at("/documents", document_id, "sections")), "sections")

    def delete_document(self, document_id: str) -> Json:
        return _mapping(self.call("DELETE", _at("/documents", document_id)))

    def drop_correction(self, document_id: str, correction_id: str) -> Json:
        path = _at("/documents", document_id, "corrections", correction_id)
        return _mapping(self.call("DELETE", path))

    def passages(self, document_id: str, offset: int, limit: int) -> list[Json]:
        path = _at("/documents", document_id, "passages")
        return _rows(self._get(path, offset=offset, limit=limit), "passages")

    def correct_passage(self, passage_id: str, patch: Json) -> Json:
        return _mapping(self.call("PATCH", _at("/passages", passage_id), json=dict(patch)))

    # -- hardware

    def hardware(self) -> list[Json]:
        return _rows(self._get("/hardware"), "hardware")

    def hardware_one(self, hardware_id: str) -> Json:
        return _mapping(self._get(_at("/hardware", hardware_id)))

    def add_hardware(self, description: Json, origin: str) -> Json:
        return _mapping(self.call("POST", "/hardware", json=dict(description)))

    def remove_hardware(self, hardware_id: str, *, with_documents: bool) -> Json:
        path = _at("/hardware", hardware_id)
        asked = {"with_documents": "true" if with_documents else "false"}
        return _mapping(self.call("DELETE", path, params=asked))

    def facts(self, hardware_id: str, *, status: str, where: Json) -> Json:
        return _mapping(self._get(_at("/hardware", hardware_id, "facts"), status=status, **where))

    def patch_facts(self, hardware_id: str, patch: Json) -> Json:
        path = _at("/hardware", hardware_id, "facts")
        return _mapping(self.call("PATCH", path, json=dict(patch)))

    def patch_fact(self, fact_id: str, patch: Json) -> Json:
        return _mapping(self.call("PATCH", _at("/facts", fact_id), json=dict(patch)))

    def coverage(self, hardware_id: str) -> Json:
        return _mapping(self._get(_at("/hardware", hardware_id, "coverage")))

    def symbols(self, hardware_id: str, query: str, status: str) -> list[Json]:
        path = _at("/hardware", hardware_id, "symbols")
        return _rows(self._get(path, q=query, status=status), "symbols")

    def samples(self, hardware_id: str, operator: str) -> list[Json]:
        path = _at("/hardware", hardware_id, "samples")
        return _rows(self._get(path, operator=operator), "samples")

    def patch_symbol(self, symbol_id: str, fix: Json) -> Json:
        return _mapping(self.call("PATCH", _at("/symbols", symbol_id), json=dict(fix)))

    # -- skills

    def skills(self, filters: Filters) -> list[Json]:
        given = vars(filters)
        words = {"q": given["words"]}
        others = {name: value for name, value in given.items() if name != "words"}
        return _rows(self._get("/skills", **others, **words), "skills")

    def skill(self, name: str) -> Json:
        return _mapping(self._get(_at("/skills", name)))

    def skill_history(self, name: str) -> list[Json]:
        return _rows(self._get(_at("/skills", name, "history")), "events")

    def change_skill(self, name: str, patch: Json) -> Json:
        return _mapping(self.call("PATCH", _at("/skills", name), json=dict(patch)))

    def revise_skill(self, name: str, change: Json) -> Json:
        return _mapping(self.call("POST", _at("/skills", name, "revisions"), json=dict(change)))

    def export_skills(self, names: Sequence[str], parent: Path, filters: Filters) -> Exported:
        from skills.format.skillfile import write_export

        chosen = names or [skill["name"] for skill in self.skills(filters)]
        files = [self._exported(name) for name in chosen]
        states = {skill["name"]: skill["state"] for skill in self.skills(Filters())}
        return write_export(files, parent, states)

    def _exported(self, name: str) -> SkillFile:
        from skills.format.skillfile import read_skill, unpacked

        self.skill(name)  # an unknown one is refused in the service's own words
        answer = self._http.download(_at("/skills", name, "export"))
        if not answer.is_success or not zipfile.is_zipfile(io.BytesIO(answer.content)):
            raise Unavailable(
                f"the service answered {answer.status_code} instead of a zip of {name}",
                hint="Check that the URL is Kernlore's and that both are of one version.",
            )
        with unpacked(answer.content) as folder:
            return read_skill(folder)

    def import_skill(self, folder: Path, actor: str) -> Json:
        from skills.format.skillfile import packed

        file = Part("file", packed(folder.resolve()), f"{folder.resolve().name}.zip")
        return _mapping(self.call("POST", "/skills", files=[Part("actor", actor), file]))


def _at(*parts: str) -> str:
    """A path whose parts after the first are quoted."""
    first, *rest = parts
    return "/".join([first, *(quote(part, safe="") for part in rest)])


def _mapping(body: Any) -> Json:
    if not isinstance(body, Mapping):
        raise _foreign(body)
    return body


def _rows(body: Any, key: str) -> list[Json]:
    rows = _mapping(body).get(key)
    if not isinstance(rows, list):
        raise _foreign(body)
    return rows


def _foreign(body: Any) -> Unavailable:
    return Unavailable(
        f"the service did not answer as Kernlore does: {str(body)[:200]}",
        hint="Check that the URL is Kernlore's and that both are of one version.",
    )
