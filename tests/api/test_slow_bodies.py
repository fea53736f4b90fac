"""Clients that send slowly take no retrieval slot, and are disconnected."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest

from api.app import create_app
from kb.settings import Settings
from tests.api.conftest import wait_until_ready
from tests.api.keyed_service import running
from tests.shared import copy_knowledge, place_models

pytestmark = pytest.mark.slow(seconds=15)

SECONDS = 3.0
# Path, type of the body, its beginning.
UNFINISHED = (
    ("/retrieve", "application/json", b"-"),
    ("/retrieve", "text/plain", b"-"),
    ("/ui/retrieve", "application/x-www-form-urlencoded", b"-"),
    ("/mcp", "application/json", b"-"),
    ("/documents", "multipart/form-data; boundary=b", b"--b\r\n"),
)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, model_cache: Path) -> Iterator[str]:
    """A service with one slot."""
    base = tmp_path_factory.mktemp("slow")
    settings = Settings(
        data_dir=place_models(base / "data", model_cache),
        knowledge_dir=copy_knowledge(base / "knowledge", ("guidance/memory-bound.md",)),
        retrievals_at_once=1,
        retrievals_waiting=1,
        body_seconds=SECONDS,
    )
    with running(create_app(settings)) as at, httpx2.Client(base_url=at, timeout=60) as client:
        wait_until_ready(client)
        yield at


def unfinished(
    url: str, path: str, kind: str, begin: bytes = b"{", size: int = 1000
) -> socket.socket:
    """A connection with a request whose body is incomplete."""
    at = urlsplit(url)
    connection = socket.create_connection((at.hostname or "", at.port or 0), 20)
    head = f"POST {path} HTTP/1.1\r\nHost: {at.netloc}\r\nContent-Type: {kind}\r\n"
    connection.sendall(f"{head}Content-Length: {size}\r\n\r\n".encode() + begin)
    return connection


def answer_of(connection: socket.socket) -> tuple[str, bytes]:
    """Head and body of the answer, once the service has closed the connection."""
    data = b""
    while part := connection.recv(65_536):
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    return head.decode(), body


def test_unfinished_bodies_take_no_slot_and_time_out(url: str) -> None:
    with ExitStack() as open_ones:
        slow = [
            (path, open_ones.enter_context(unfinished(url, path, kind, begin)))
            for path, kind, begin in UNFINISHED
            for _ in range(4)
        ]
        time.sleep(0.2)
        for _ in range(3):  # refused, if bodies of `/retrieve` had the slot and the place to wait
            given = {"signals": ["memory_bound"], "hardware": "h100"}
            answer = httpx2.post(f"{url}/retrieve", json=given, timeout=20)
            assert answer.status_code == 200, answer.text
        for path, connection in slow:
            head, body = answer_of(connection)
            assert head.startswith("HTTP/1.1 408") and "connection: close" in head.lower(), path
            assert b"KERNLORE_BODY_SECONDS" in body, path
            if path != "/ui/retrieve":
                assert json.loads(body)["code"] == "request_timeout", path


def test_body_that_arrives_in_time_is_answered(url: str) -> None:
    whole = json.dumps({"signals": ["memory_bound"], "hardware": "h100", "k": 3}).encode()
    with unfinished(url, "/retrieve", "application/json", whole[:1], len(whole)) as connection:
        for byte in whole[1:]:
            connection.sendall(bytes([byte]))
            time.sleep(0.01)
        assert connection.recv(15).startswith(b"HTTP/1.1 200")


def test_slow_bytes_do_not_extend_timeout(url: str) -> None:
    started = time.monotonic()
    with unfinished(url, "/retrieve", "application/json", b'{"query": "', 10_000) as connection:
        connection.settimeout(0.2)
        head = b""
        while not head:
            assert time.monotonic() - started < SECONDS + 5
            connection.sendall(b"x")
            try:
                head = connection.recv(12)
            except TimeoutError:
                continue
        assert head == b"HTTP/1.1 408"
    assert time.monotonic() - started >= SECONDS - 0.1
