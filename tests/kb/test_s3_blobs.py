"""Files in a bucket of a real S3 server: refused, unreachable, slow, damaged, and restored."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from fsspec.registry import _registry as fsspec_registry

from ingestion.uploads import FileUpload
from kb import blobs as blobs_module
from kb.backup import restore_backup, write_backup
from kb.blobs import Blobs
from kb.catalog.knowledge.documents import erase_deleted, is_erasure_owed
from kb.errors import InvalidRequest, NotFound, StoreAway, StoreError, Unavailable
from kb.ids import sha256
from kb.settings import Settings
from tests.faulty_proxy import FaultyProxy
from tests.seaweed import KEY, READER, SECRET, S3Server

if TYPE_CHECKING:
    from tests.fixtures import Store

pytestmark = pytest.mark.slow(seconds=12)
MANUAL = "# Manual\n\n## Loads\n\nThe quince unit loads 16 bytes a clock.\n"


@pytest.fixture
def proxy(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    """A proxy between the product and the server."""
    faulty = FaultyProxy(s3_server.port)
    for name, value in s3_server.environment(faulty.url).items():
        monkeypatch.setenv(name, value)
    yield faulty
    faulty.close()


@pytest.fixture
def url(s3_server: S3Server, proxy: FaultyProxy) -> str:
    return s3_server.folder_of_bucket()


@pytest.fixture
def blobs(url: str) -> Blobs:
    return Blobs(url)


@pytest.fixture
def on_s3(store: Store, url: str) -> Store:
    """A store whose files are in the bucket."""
    store.blobs = Blobs(url)
    return store


def stopped_server_error(call: Callable[[], object]) -> StoreAway:
    with pytest.raises(StoreAway) as refused:
        call()
    output = refused.value.message + refused.value.hint
    assert refused.value.status == 503 and refused.value.hint
    assert SECRET not in output and READER[1] not in output
    return refused.value


def test_blobs_round_trip(blobs: Blobs, s3_server: S3Server) -> None:
    assert blobs.sizes() == {}
    data = bytes(range(256)) * 1000
    key = blobs.put(data)
    assert key == blobs.put(data) == sha256(data)
    assert blobs.get(key) == data and blobs.sizes() == {key: len(data)}
    assert blobs.put(b"") in blobs.sizes() and blobs.get(sha256(b"")) == b""
    blobs.delete(key)
    blobs.delete(key)
    with pytest.raises(NotFound, match="no stored file"):
        blobs.get(key)
    assert list(blobs.sizes()) == [sha256(b"")]


def test_write_is_one_atomic_request(blobs: Blobs, s3_server: S3Server) -> None:
    key = blobs.put(b"x" * (101 << 20))  # s3fs sends more than 100 MiB in parts
    assert list(blobs.sizes()) == [key]
    stored = s3_server.files().info(blobs._path(key))
    assert "-" not in stored["ETag"]  # the ETag of a multipart upload has one


def test_damaged_blob_is_not_returned(blobs: Blobs, s3_server: S3Server) -> None:
    key = blobs.put(b"manual" * 100)
    files, path = s3_server.files(), blobs._path(key)
    for damage in (b"manual", b"x" * 600):
        files.pipe_file(path, damage)
        with pytest.raises(StoreError, match="is damaged"):
            blobs.get(key)
        assert blobs.get_unchecked(key) == damage
    files.pipe_file(path, b"manual")
    blobs.put(b"manual" * 100)  # a new upload repairs the truncated object
    assert blobs.get(key) == b"manual" * 100


def test_missing_bucket_is_named(blobs: Blobs) -> None:
    key = blobs.put(b"manual")
    wrong = Blobs("s3://no-such-bucket-of-kernlore/prefix")
    calls: tuple[Callable[[], object], ...] = (
        wrong.check,
        wrong.sizes,
        lambda: wrong.put(b"manual"),
        lambda: wrong.get(key),
        lambda: wrong.delete(key),
    )
    for call in calls:
        error = stopped_server_error(call)
        assert "no-such-bucket-of-kernlore" in error.message and "bucket" in error.hint


WRONG = {"secret": (KEY, "another"), "key": ("nobody", SECRET), "none": ("", "")}


@pytest.mark.parametrize("what", WRONG)
def test_refused_credentials(
    blobs: Blobs, url: str, what: str, monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    key = blobs.put(b"manual")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, value in zip(
        ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), WRONG[what], strict=True
    ):
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name)
    refused = Blobs(url)
    for call in (refused.check, lambda: refused.get(key), lambda: refused.put(b"other")):
        error = stopped_server_error(call)
        assert "refuses the credentials" in error.message and "AWS_ACCESS_KEY_ID" in error.hint


def test_read_only_credentials(blobs: Blobs, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    key = blobs.put(b"manual")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", READER[0])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", READER[1])
    reader = Blobs(url)
    assert reader.get(key) == b"manual"
    assert "AccessDenied" in stopped_server_error(lambda: reader.put(b"other")).message
    assert "AccessDenied" in stopped_server_error(lambda: reader.delete(key)).message
    assert blobs.get(key) == b"manual"


@pytest.mark.parametrize("mode", ["refuse", "silent", "cut"])
def test_unresponsive_server(
    url: str, proxy: FaultyProxy, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blobs_module, "READ_SECONDS", 0.5)
    blobs = Blobs(url)
    key = blobs.put(b"x" * 100_000)
    proxy.set(mode)  # type: ignore[arg-type]
    assert "does not answer" in stopped_server_error(lambda: blobs.get(key)).message
    if mode != "cut":
        stopped_server_error(lambda: blobs.put(b"other"))
        stopped_server_error(blobs.check)
    proxy.set("pass")
    assert blobs.get(key) == b"x" * 100_000 and list(blobs.sizes()) == [key]


def test_slow_server_answers_within_timeout(blobs: Blobs, proxy: FaultyProxy) -> None:
    proxy.delay_seconds = 0.3
    assert blobs.get(blobs.put(b"manual")) == b"manual"


def test_killed_server_has_all_blobs_after_restart(blobs: Blobs, s3_server: S3Server) -> None:
    key = blobs.put(b"manual")
    s3_server.stop()
    try:
        stopped_server_error(lambda: blobs.get(key))
        stopped_server_error(lambda: blobs.put(b"other"))
    finally:
        s3_server.start()
    assert blobs.get(key) == b"manual" and list(blobs.sizes()) == [key]


def test_credentials_in_url_are_refused_without_repeating_them() -> None:
    with pytest.raises(InvalidRequest) as refused:
        Blobs("s3://me:secret@bucket/prefix")
    assert "secret" not in refused.value.message + refused.value.hint.replace("SECRET", "")
    with pytest.raises(InvalidRequest, match="not a URL of a blob store"):
        Blobs("nonsense://bucket")


def test_missing_s3_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(fsspec_registry, "s3", raising=False)
    with pytest.raises(Unavailable) as refused:
        Blobs("s3://bucket")
    assert "kernlore[s3]" in refused.value.hint


# -- documents


def test_document_waits_for_its_file(on_s3: Store, proxy: FaultyProxy) -> None:
    submitted = on_s3.submit("manual.md", MANUAL, hardware=("h100",))
    worker = on_s3.worker()
    proxy.set("refuse")
    worker.drain()
    job = on_s3.job(submitted)
    assert (job.state, job.attempts, job.error) == ("queued", 0, None)
    assert worker.away is not None and on_s3.by_words("quince") == []
    worker.drain()
    assert on_s3.job(submitted).state == "queued"
    proxy.set("pass")
    worker.drain()
    assert on_s3.job(submitted).state == "ready" and worker.away is None
    assert len(on_s3.by_words("quince")) == 1


def test_vectors_are_made_while_files_are_unreachable(on_s3: Store, proxy: FaultyProxy) -> None:
    first = on_s3.submit("manual.md", MANUAL, hardware=("h100",))
    worker = on_s3.worker()
    worker.read_all(threading.Event())
    second = on_s3.submit("other.md", MANUAL.replace("quince", "medlar"), hardware=("h100",))
    proxy.set("refuse")
    worker.drain()
    assert [on_s3.job(s).state for s in (first, second)] == ["ready", "queued"]
    proxy.set("pass")
    worker.drain()
    assert on_s3.job(second).state == "ready"


def test_missing_or_damaged_file_fails_its_document(on_s3: Store, s3_server: S3Server) -> None:
    lost = on_s3.submit("lost.md", MANUAL, hardware=("h100",))
    cut = on_s3.submit("cut.md", MANUAL.replace("quince", "medlar"), hardware=("h100",))
    on_s3.blobs.delete(sha256(MANUAL))
    s3_server.files().pipe_file(on_s3.blobs._path(sha256(MANUAL.replace("quince", "medlar"))), b"#")
    on_s3.worker().drain()
    errors = [on_s3.job(submitted).error or {} for submitted in (lost, cut)]
    assert [error["code"] for error in errors] == ["not_found", "store_error"]
    again = on_s3.ingest("lost.md", MANUAL, hardware=("h100",))
    assert on_s3.job(again).state == "ready"


def test_upload_to_unreachable_store_leaves_no_rows(on_s3: Store, proxy: FaultyProxy) -> None:
    proxy.set("refuse")
    stopped_server_error(lambda: on_s3.submit("manual.md", MANUAL, hardware=("h100",)))
    assert on_s3.rows("documents") == on_s3.rows("work") == 0


def test_built_in_documents_are_stored_once(on_s3: Store, proxy: FaultyProxy) -> None:
    upload = FileUpload("a.md", MANUAL.encode(), origin="builtin", source_key="builtin/a.md")
    on_s3.uploads.submit(upload)
    proxy.set("refuse")
    assert on_s3.uploads.submit(upload).outcome == "unchanged"  # no request was sent


def test_deletion_is_completed_once_files_are_reachable(on_s3: Store, proxy: FaultyProxy) -> None:
    document = on_s3.ingest("manual.md", MANUAL, hardware=("h100",)).document_id
    on_s3.documents.delete(document)
    proxy.set("refuse")
    stopped_server_error(lambda: erase_deleted(on_s3.catalog, on_s3.blobs))
    assert is_erasure_owed(on_s3.catalog) and on_s3.by_words("quince") == []
    proxy.set("pass")
    assert list(on_s3.blobs.sizes()) == [sha256(MANUAL)]
    assert erase_deleted(on_s3.catalog, on_s3.blobs)
    assert on_s3.blobs.sizes() == {} and not is_erasure_owed(on_s3.catalog)


def test_file_uploaded_during_removal_is_stored(
    on_s3: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = on_s3.ingest("manual.md", MANUAL, hardware=("h100",)).document_id
    on_s3.documents.delete(document)
    uploads = on_s3.uploads
    stored = uploads._store_blob

    def stored_and_removed(upload: FileUpload) -> str:
        key = stored(upload)
        erase_deleted(on_s3.catalog, on_s3.blobs)
        assert on_s3.blobs.sizes() == {}
        return key

    monkeypatch.setattr(uploads, "_store_blob", stored_and_removed)
    uploads.submit(FileUpload("manual.md", MANUAL.encode(), hardware=("h100",)))
    assert list(on_s3.blobs.sizes()) == [sha256(MANUAL)]


@pytest.mark.embedded
def test_backup_includes_bucket_and_restores_it(
    on_s3: Store, url: str, s3_server: S3Server, tmp_path: Path
) -> None:
    on_s3.ingest("manual.md", MANUAL, hardware=("h100",))
    backup = write_backup(Settings(data_dir=on_s3.data_dir, blob_url=url), tmp_path / "b.tar")
    assert backup.contents.damaged == ()
    there = s3_server.folder_of_bucket()
    restore_backup(backup.path, Settings(data_dir=tmp_path / "new", blob_url=there))
    assert Blobs(there).get(sha256(MANUAL)) == MANUAL.encode()
    assert not (tmp_path / "new" / "blobs").exists()
