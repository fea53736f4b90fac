"""One running application for all HTTP tests: real store, real models, real Chroma."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fastapi.testclient import TestClient
from httpx2 import Client, Response
from jsonschema import Draft202012Validator

from api.app import create_app
from kb.settings import MIB, Settings
from tests.api.cli_process import data, files  # noqa: F401  (fixtures)
from tests.known_device import store_ceilings
from tests.shared import copy_knowledge, place_models
from tests.waiting import until

if TYPE_CHECKING:
    from tests.api.keyed_service import KeyedService

DOCUMENTS = (
    "guidance/memory-bound.md",
    "constraints/masking-and-bounds.md",
    "hardware/h100/tuning.md",
    "hardware/mi300x/tuning.md",
)
FILE_LIMIT = 2 * MIB
URL = "http://127.0.0.1:8321"  # a host name that is allowed


def small_knowledge(folder: Path) -> Path:
    return copy_knowledge(folder, DOCUMENTS)


@pytest.fixture(scope="session")
def settings(tmp_path_factory: pytest.TempPathFactory, model_cache: Path) -> Settings:
    base = tmp_path_factory.mktemp("http")
    return Settings(
        data_dir=store_ceilings(place_models(base / "data", model_cache)),
        knowledge_dir=small_knowledge(base / "knowledge"),
        max_file_bytes=FILE_LIMIT,
        max_files_per_upload=20,
        max_body_bytes=7 * MIB,
        max_log_bytes=6 * MIB,
    )


@pytest.fixture(scope="session")
def client(settings: Settings) -> Iterator[TestClient]:
    with TestClient(create_app(settings), URL, raise_server_exceptions=False) as running:
        validate_answers(running)
        wait_until_ready(running)
        yield running


@pytest.fixture(scope="session")
def keyed(tmp_path_factory: pytest.TempPathFactory, model_cache: Path) -> Iterator[KeyedService]:
    """A service with keys, on a separate port."""
    from tests.api.keyed_service import keyed_service

    with keyed_service(tmp_path_factory.mktemp("keys"), model_cache) as running:
        yield running


def validate_answers(client: TestClient) -> None:
    """Validate every later JSON answer to this client against openapi.json."""
    description = client.get("/openapi.json").json()
    routes = [
        (method.upper(), re.compile(re.sub(r"\{\w+\}", "[^/]+", path)), operation["responses"])
        for path, operations in description["paths"].items()
        for method, operation in operations.items()
    ]

    def check(response: Response) -> None:
        response.read()
        request = response.request
        for method, path, responses in routes:
            if method == request.method and path.fullmatch(request.url.path):
                kind = f"{response.status_code // 100}XX"
                stated = responses.get(str(response.status_code)) or responses.get(kind)
                assert stated is not None, f"{method} {path.pattern}: {response.status_code}"
                schema = stated.get("content", {}).get("application/json", {}).get("schema")
                if schema and response.headers["content-type"] == "application/json":
                    whole = {**schema, "components": description["components"]}
                    Draft202012Validator(whole).validate(response.json())

    client.event_hooks = {"response": [check]}


def wait_until_ready(client: Client, seconds: float = 400) -> dict[str, Any]:
    """The readiness once it is ready."""
    state: dict[str, Any] = until(
        lambda: client.get("/readyz").json(), lambda state: state["ready"], seconds=seconds
    )
    return state


def upload(client: Client, name: str, content: bytes, **fields: Any) -> Response:
    return client.post("/documents", files=[("file", (name, content))], data=fields)


def finished(client: Client, job_id: str, seconds: float = 400) -> dict[str, Any]:
    """The job once it has ended."""
    job: dict[str, Any] = until(
        lambda: client.get(f"/jobs/{job_id}").json(),
        lambda job: job["state"] in ("ready", "partial", "failed"),
        seconds=seconds,
    )
    return job


def assert_error(response: Response, status: int, code: str | None = None) -> dict[str, Any]:
    """Assert the common error shape without internals."""
    assert response.status_code == status, response.text[:500]
    assert response.headers["content-type"].startswith("application/json")
    body: dict[str, Any] = response.json()
    assert sorted(body) == ["code", "details", "hint", "message"]
    assert all(isinstance(body[key], str) and body[key] for key in ("code", "hint", "message"))
    assert isinstance(body["details"], dict)
    assert "Traceback" not in response.text and "sqlalchemy" not in response.text
    assert code is None or body["code"] == code, body
    return body
