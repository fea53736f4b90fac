"""Which host names and pages may call the service, over HTTP to a real service."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi.testclient import TestClient

from api.app import create_app
from kb.settings import Settings
from tests.api.cli_process import COMMAND, ROOT, free_port, kernlore
from tests.api.conftest import URL, assert_error
from tests.catalogs import environment_of
from tests.shared import copy_knowledge, place_models

pytestmark = pytest.mark.slow(seconds=10)
EVIL = "http://evil.example"


@pytest.fixture(scope="module")
def served(service_url: str) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=service_url, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def requests(served: httpx2.Client) -> list[tuple[str, str]]:
    """Method and path of every route, and of the pages that openapi.json omits."""
    paths: dict[str, Any] = served.get("/openapi.json").json()["paths"]
    routes = [
        (method.upper(), re.sub(r"\{\w+\}", "1", path))
        for path, operations in paths.items()
        for method in operations
    ]
    assert len(routes) > 45 and ("POST", "/documents") in routes
    others = ("/", "/docs", "/openapi.json", "/docs-static/swagger-ui.css", "/no/such/page")
    return [*routes, *(("GET", path) for path in others), ("GET", "/mcp"), ("POST", "/mcp")]


@pytest.mark.parametrize(
    "name",
    ["evil.example", "127.0.0.1.evil.example:80", "localhost.evil", "0.0.0.0", "10.0.0.7", "[::2]"],
)
def test_foreign_host_name_is_refused_on_every_route(
    served: httpx2.Client, requests: list[tuple[str, str]], name: str
) -> None:
    """A page can resolve its host name to 127.0.0.1: the browser then sees a same-origin
    request.
    """
    for method, path in requests:
        answer = served.request(method, path, headers={"host": name, "origin": f"http://{name}"})
        body = assert_error(answer, 421, "unknown_host")
        assert name in body["message"] and "--allowed-host" in body["hint"]


@pytest.mark.parametrize("origin", [EVIL, "null", "http://127.0.0.1:1", "http://[", ""])
def test_foreign_origin_is_refused_on_every_route(
    served: httpx2.Client, requests: list[tuple[str, str]], origin: str
) -> None:
    for method, path in requests:
        answer = served.request(method, path, headers={"origin": origin})
        assert_error(answer, 403, "foreign_page")


def test_foreign_origin_cannot_upload(served: httpx2.Client) -> None:
    before = served.get("/documents").json()["total"]
    files = {"file": ("planted.md", b"# Planted\n\nA page planted this.\n")}
    for headers in ({"origin": EVIL}, {"sec-fetch-site": "cross-site"}, {"host": "evil.example"}):
        assert served.post("/documents", files=files, headers=headers).status_code in (403, 421)
    assert served.get("/documents").json()["total"] == before


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_only_links_from_foreign_origin_are_served(served: httpx2.Client, site: str) -> None:
    marked = {"sec-fetch-site": site}
    link = {**marked, "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert served.get("/docs", headers=link).status_code == 200
    assert_error(served.post("/jobs/1/retry", headers=link), 403, "foreign_page")
    picture = {**marked, "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"}
    framed = {**link, "sec-fetch-dest": "iframe"}
    for headers in (marked, picture, framed):
        assert_error(served.get("/signals", headers=headers), 403, "foreign_page")


@pytest.mark.parametrize("name", ["localhost", "LOCALHOST:80", "127.0.0.1:1", "[::1]", "[::1]:80"])
def test_own_names_and_origins_are_served(served: httpx2.Client, name: str) -> None:
    for headers in ({}, {"origin": f"http://{name}"}, {"sec-fetch-site": "same-origin"}):
        answer = served.get("/signals", headers={"host": name, **headers})
        assert answer.status_code == 200, (name, headers)


class Bound:
    """A service with other settings and nothing opened."""

    def __init__(self, settings: Settings, **changes: str) -> None:
        self.client = TestClient(create_app(settings.model_copy(update=changes)), URL)

    def answers_to(self, name: str, **headers: str) -> bool:
        answer = self.client.get("/healthz", headers={"host": name, **headers})
        assert answer.status_code in (200, 403, 421)
        return answer.status_code == 200


MACHINE = socket.gethostname()


@pytest.mark.parametrize(
    ("host", "own"),
    [
        ("0.0.0.0", ["192.168.1.7:8321", "[fd00::1]:8321", "localhost:8321", MACHINE]),
        ("192.168.1.7", ["192.168.1.7", "127.0.0.1", MACHINE]),
        ("GPU-box.corp", ["gpu-box.corp:8321", "GPU-box.corp"]),
        ("fd00::1", ["[fd00::1]:8321"]),
    ],
)
def test_host_names_of_a_public_service(settings: Settings, host: str, own: list[str]) -> None:
    bound = Bound(settings, host=host)
    assert [name for name in own if not bound.answers_to(name)] == []
    strangers = ["evil.example", "192.168.1.7.evil.example", "", "user@evil.example"]
    strangers += [] if host == "0.0.0.0" else ["10.0.0.7"]
    assert [name for name in strangers if bound.answers_to(name)] == []


def test_allowed_host_names(settings: Settings) -> None:
    bound = Bound(settings, allowed_hosts="kernels.example, *.corp.example,fd00::2")
    for name in ("kernels.example", "a.corp.example:443", "[fd00::2]", "127.0.0.1:8321"):
        assert bound.answers_to(name), name
    for name in ("other.kernels.example", "corp.example.evil", "10.0.0.7"):
        assert not bound.answers_to(name), name
    # A proxy may call the service by its address for a page served under the proxy's name.
    assert bound.answers_to("127.0.0.1:8321", origin="https://kernels.example")
    assert not bound.answers_to("127.0.0.1:8321", origin="https://evil.example")


@pytest.mark.parametrize("name", ["http://kernels.example", "kernels.example:8321", "a*b", "a b"])
def test_invalid_host_name_is_refused(tmp_path: Path, name: str) -> None:
    ran = kernlore("serve", "--allowed-host", "good.example", "--allowed-host", name, data=tmp_path)
    assert ran.code == 2
    assert "allowed_hosts" in ran.err and "without scheme and port" in ran.err


def test_public_service_without_keys_warns_at_start(tmp_path: Path, model_cache: Path) -> None:
    data = place_models(tmp_path / "data", model_cache)
    data.chmod(0o700)  # otherwise it warns about that too
    few = copy_knowledge(tmp_path / "knowledge", ("guidance/memory-bound.md",))
    options = ("--host", "0.0.0.0", "--port", str(free_port()), "--allowed-host", "kernels.example")
    with subprocess.Popen(
        [*COMMAND, "serve", *options, "--data-dir", str(data)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ
        | {"KERNLORE_KNOWLEDGE_DIR": str(few), "KERNLORE_LOG_LEVEL": "error"}
        | environment_of(data),
        text=True,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        try:
            output = [process.stdout.readline() for _ in range(7)]
            warning = process.stderr.readline()
            (url,) = re.findall(r"http://\S+", output[0])
            # The request waits in the socket's queue until the application is loaded.
            with urllib.request.urlopen(f"{url}/healthz", timeout=60) as answer:
                assert json.load(answer)["status"] == "alive"
            assert status_of(f"{url}/healthz", "kernels.example") == 200
            assert status_of(f"{url}/healthz", "evil.example") == 421
            # Local commands find it through the directory.
            listed = kernlore("hardware", "list", "--json", data=data)
            assert listed.code == 0, listed.err
        finally:
            process.terminate()
            _, rest = process.communicate(timeout=60)
    assert "127.0.0.1" not in "".join(output)
    assert warning.startswith("Warning: it listens on 0.0.0.0 and needs no key")
    assert "needs no key" not in rest


def status_of(url: str, host: str) -> int:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers={"Host": host})) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_service_on_loopback_does_not_warn(service_folder: Path, service_url: str) -> None:
    output = (service_folder / "service.log").read_text(encoding="utf-8")
    assert service_url in output and "needs no key" not in output
