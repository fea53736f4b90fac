"""A full disk: a clear error, correct states, equal answers, and nothing lost.

The directory of the service is a small tmpfs in a separate mount namespace, which needs root.
Without root, a catalog with a page limit replaces it: SQLite reports the same error.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from sqlalchemy import event

from kb.data_dir import fill_reserve, free_reserve
from kb.errors import StoreFull
from tests.api.cli_process import COMMAND, ROOT, free_port
from tests.shared import copy_knowledge

if TYPE_CHECKING:
    from tests.fixtures import Store

pytestmark = [pytest.mark.in_data_dir, pytest.mark.slow(seconds=20), pytest.mark.embedded]

MANUAL = "# Manual\n\n## Loads\n\nThe persimmon unit issues two loads per clock.\n"
MOUNT = 'mount -t tmpfs -o size=48m tmpfs "$0" && exec "$@"'
WAIT_SECONDS = 90.0


def namespaces() -> bool:
    if not sys.platform.startswith("linux"):
        return False
    tried = ["unshare", "-m", "sh", "-c", MOUNT, "/mnt", "true"]
    try:
        return subprocess.run(tried, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


@dataclass
class Served:
    """A service whose data directory `folder`, as seen by this process, is 48 MiB."""

    url: str
    folder: Path

    def upload(self, name: str, text: str) -> httpx.Response:
        sent = {"file": (name, text.encode())}
        return httpx.post(
            f"{self.url}/documents", files=sent, data={"hardware": "h100"}, timeout=30
        )

    def get(self, path: str) -> Any:
        return httpx.get(f"{self.url}{path}", timeout=30).json()

    def until(self, path: str, holds: Callable[[Any], bool]) -> Any:
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            try:
                if holds(answer := self.get(path)):
                    return answer
            except httpx.TransportError:
                pass
            time.sleep(0.1)
        raise AssertionError(f"{path} is still {answer}")

    def texts(self) -> list[str]:
        request = {"query": "loads of the persimmon unit", "hardware": "h100", "k": 9}
        answer = httpx.post(f"{self.url}/retrieve", json=request, timeout=30)
        return [excerpt["text"] for excerpt in answer.raise_for_status().json()["excerpts"]]

    def fill(self, left: int) -> None:
        """Leave this many bytes free."""
        with (self.folder / "filler").open("ab", buffering=0) as file:
            block = b"x" * 4096
            while True:
                try:
                    file.write(block)
                except OSError:
                    break
            file.truncate(file.tell() - left)


@pytest.fixture
def served(tmp_path: Path, model_cache: Path) -> Iterator[Served]:
    if not namespaces():
        pytest.skip("mount namespaces are unavailable")
    mount, port = tmp_path / "disk", free_port()
    mount.mkdir()
    knowledge = copy_knowledge(tmp_path / "knowledge", ("guidance/memory-bound.md",), vectors=False)
    prepare = f'{MOUNT.split(" && ")[0]} && ln -s \'{model_cache}\' "$0/models" && exec "$@"'
    arguments = ["serve", "--port", str(port), "--data-dir", str(mount)]
    environment = ["env", f"KERNLORE_KNOWLEDGE_DIR={knowledge}"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            ["unshare", "-m", "sh", "-c", prepare, str(mount), *environment, *COMMAND, *arguments],
            cwd=ROOT,
            stdout=log,
            stderr=log,
        )
    service = Served(f"http://127.0.0.1:{port}", Path(f"/proc/{process.pid}/root{mount}"))
    try:
        service.until("/readyz", lambda state: state["ready"])
        yield service
    finally:
        process.kill()
        process.wait()


def test_service_on_full_disk_answers_and_resumes(served: Served) -> None:
    first = served.upload("first.md", MANUAL).json()
    served.until(f"/jobs/{first['job_id']}", lambda job: job["state"] == "ready")
    expected = served.texts()
    assert any("persimmon" in text for text in expected)

    served.fill(left=2 << 20)  # enough to accept a file, but not to read it
    small = served.upload("small.md", MANUAL.replace("persimmon", "quince"))
    assert small.status_code == 202
    state = served.until("/readyz", lambda state: "Free some space" in state["note"])
    assert state["jobs"].get("running", 0) == 0
    assert served.texts() == expected

    served.fill(left=0)
    refused = served.upload("large.md", MANUAL + "More of it.\n" * 20_000)
    assert refused.status_code == 507
    assert refused.json()["code"] == "disk_full" and "Free some space" in refused.json()["hint"]
    assert served.texts() == expected
    assert served.get(f"/jobs/{small.json()['job_id']}")["state"] == "queued"

    (served.folder / "filler").unlink()
    served.until(f"/jobs/{small.json()['job_id']}", lambda job: job["state"] == "ready")
    again = served.upload("large.md", MANUAL + "More of it.\n" * 20_000).json()
    served.until(f"/jobs/{again['job_id']}", lambda job: job["state"] == "ready")
    assert served.get("/documents")["total"] == 4
    assert not list((served.folder / "blobs").rglob("*.part_*"))


def test_job_without_disk_space_fails_with_hint_and_can_be_retried(store: Store) -> None:
    """SQLite itself refuses: the number of pages of its file is limited."""
    lines = "".join(f"## Part {n}\n\nUnit {n} of the chip has {n} lanes.\n\n" for n in range(200))
    submitted = store.submit("manual.md", f"# Manual\n\n{lines}")
    bounded = True

    @event.listens_for(store.catalog._engine, "checkout")
    def bound(connection: Any, record: Any, proxy: Any) -> None:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        limit = pages if bounded else 1 << 30
        connection.execute(f"PRAGMA max_page_count={limit}")

    store.worker().drain()
    job = store.job(submitted)
    assert job.state == "failed" and job.error is not None
    assert job.error["code"] == StoreFull.code and "Free some space" in job.error["hint"]
    assert store.rows("passages") == store.rows("sections") == 0
    bounded = False
    store.jobs.retry(job.id)
    store.worker().drain()
    assert store.job(submitted).state == "ready" and store.rows("passages") >= 200


def test_space_is_reserved_for_final_state(tmp_path: Path) -> None:
    fill_reserve(tmp_path)
    stored = tmp_path / "reserve"
    assert stored.stat().st_blocks * 512 >= 4 << 20
    fill_reserve(tmp_path)
    free_reserve(tmp_path)
    free_reserve(tmp_path)
    assert not stored.exists()
