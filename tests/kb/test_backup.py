"""A backup is one snapshot of a data directory; a restore is complete or leaves nothing."""

from __future__ import annotations

import io
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config

import kb.catalog.migrations
from kb.backup import (
    MANIFEST,
    STAGING,
    SUMS,
    manifest_text,
    restore_backup,
    sums_text,
    verify_backup,
    write_backup,
)
from kb.blobs import Blobs
from kb.catalog import meta, open_catalog
from kb.catalog.evaluations import Evaluations, ProblemRow
from kb.catalog.jobs import Jobs
from kb.catalog.runs import Runs
from kb.errors import Conflict, InvalidRequest, KernloreError, NotFound, StoreError
from kb.ids import sha256
from kb.settings import Settings
from retrieval.documents import delete_document
from retrieval.knowledge_base import KnowledgeBase
from tests.catalogs import fresh_data_dir
from tests.fixtures import Store

pytestmark = [pytest.mark.in_data_dir, pytest.mark.slow(seconds=12), pytest.mark.embedded]

ROOT = Path(__file__).resolve().parents[2]
MANUAL = "# Tiles\n\nA tile of 64 rows is copied by one instruction.\n"
FILES = {
    "devices/cpu.json": b'{"copy": 1}',
    "runs/run_1/problem.py": b"class Model: ...",
    "runs/run_1/mail/context-1.json": b"{}",
    "transcripts/run_1/1-0.json": b'{"heard": []}',
}
DERIVED = (
    "chroma/index.bin",
    "chroma.old_1/index.bin",
    "locks/run_1.json",
    "models/query.onnx",
    "snapshot/manifest.json",
)
Member = tuple[tarfile.TarInfo, bytes]


def settings_of(data_dir: Path, **given: Any) -> Settings:
    return Settings(data_dir=data_dir, **given)


def put_files(data_dir: Path, contents: dict[str, bytes]) -> None:
    for name, data in contents.items():
        (data_dir / name).parent.mkdir(parents=True, exist_ok=True)
        (data_dir / name).write_bytes(data)


def files_of(folder: Path) -> dict[str, bytes]:
    """The files below a folder that a backup copies, by name."""
    names = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    stored = ("blobs", "devices", "runs", "transcripts")
    relative = {path.relative_to(folder).as_posix(): path for path in names}
    return {n: p.read_bytes() for n, p in relative.items() if n.split("/")[0] in stored}


def rows_of(catalog: Path) -> dict[str, list[Any]]:
    """Every row of every table."""
    with closing(sqlite3.connect(catalog)) as connection:
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        return {
            name: sorted(connection.execute(f"SELECT * FROM {name}").fetchall(), key=repr)
            for (name,) in names
        }


@pytest.fixture
def backup(store: Store, tmp_path: Path) -> Path:
    """A backup of a directory with two waiting uploads and files of every kind."""
    store.submit("tiles.md", MANUAL, hardware=("h100",))
    store.submit("waves.md", MANUAL.replace("Tile", "Wave"), hardware=("h200",))
    put_files(store.data_dir, FILES)
    return write_backup(settings_of(store.data_dir), tmp_path / "backup.tar").path


# -- contents


def test_backup_holds_only_files_that_cannot_be_rebuilt(store: Store, tmp_path: Path) -> None:
    submitted = store.ingest("tiles.md", MANUAL, hardware=("h100",))
    put_files(store.data_dir, {**FILES, **dict.fromkeys(DERIVED, b"derived"), "notes.txt": b"mine"})
    put_files(store.data_dir, {"transcripts/run_1/2-0.17.part": b"half", "service.json": b""})
    (store.data_dir / "runs" / "link").symlink_to("/etc/passwd")
    written = write_backup(settings_of(store.data_dir), tmp_path / "backup.tar")
    with tarfile.open(written.path) as tar:
        names = tar.getnames()
        assert all(member.isreg() for member in tar)
    key = store.documents.get(submitted.document_id).version
    assert key is not None
    blob = f"blobs/{key.blob_key[:2]}/{key.blob_key}"
    assert names == [MANIFEST, "catalog.sqlite", blob, *sorted(FILES), SUMS]
    assert written.left_out == ("notes.txt",)
    manifest = written.contents.manifest
    assert (manifest.counts["documents"], manifest.jobs) == (1, {"ready": 1})
    assert manifest.vectors == {store.embedder.fingerprint: store.rows("embeddings")}
    assert manifest.schema == rows_of(store.catalog.path)["alembic_version"][0][0]
    assert written.path.stat().st_mode & 0o777 == 0o600
    assert written.bytes == written.path.stat().st_size
    assert verify_backup(written.path) == written.contents


def test_checksums_are_read_by_standard_tools(backup: Path, tmp_path: Path) -> None:
    with tarfile.open(backup) as tar:
        tar.extractall(tmp_path / "out", filter="data")
    check = ["sha256sum", "--check", "--strict", "--quiet", SUMS]
    assert subprocess.run(check, cwd=tmp_path / "out", check=False).returncode == 0
    (tmp_path / "out" / "devices" / "cpu.json").write_bytes(b"{}")
    changed = subprocess.run(check, cwd=tmp_path / "out", check=False, capture_output=True)
    assert changed.returncode == 1


@pytest.mark.parametrize("name", ["backup.tar", "backup.tar.gz"])
def test_restored_directory_has_every_row_and_file(store: Store, tmp_path: Path, name: str) -> None:
    store.ingest("tiles.md", MANUAL, hardware=("h100",))
    put_files(store.data_dir, FILES)
    file = write_backup(settings_of(store.data_dir), tmp_path / name).path
    restored = restore_backup(file, settings_of(tmp_path / "new" / "data"))
    assert rows_of(restored.data_dir / "catalog.sqlite") == rows_of(store.catalog.path)
    assert store.rows("embeddings") > 0
    assert files_of(restored.data_dir) == files_of(store.data_dir)
    assert FILES.items() < files_of(restored.data_dir).items()
    modes = {path.stat().st_mode & 0o777 for path in restored.data_dir.rglob("*")}
    assert (modes, restored.data_dir.stat().st_mode & 0o777) == ({0o600, 0o700}, 0o700)
    assert not (restored.data_dir / STAGING).exists()


def test_compressed_backup_is_smaller(store: Store, backup: Path, tmp_path: Path) -> None:
    packed = write_backup(settings_of(store.data_dir), tmp_path / "backup.tgz")
    assert packed.bytes < backup.stat().st_size / 2
    assert packed.contents.bytes == verify_backup(backup).bytes


# -- consistency


def test_transaction_is_in_backup_whole_or_not(store: Store, tmp_path: Path) -> None:
    stop, written = threading.Event(), threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            with store.catalog.write() as connection:
                for name in ("left", "right"):
                    meta.put(connection, name, {"number": number, "filler": "x" * 20_000})
            written.set()
            stop.wait(0.002)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        assert written.wait(60)
        numbers = []
        for number in range(4):
            written.clear()
            assert written.wait(60)
            file = write_backup(settings_of(store.data_dir), tmp_path / f"{number}.tar").path
            data_dir = restore_backup(file, settings_of(tmp_path / f"data{number}")).data_dir
            with closing(sqlite3.connect(data_dir / "catalog.sqlite")) as connection:
                select = "SELECT json_extract(value, '$.number') FROM meta WHERE key = ?"
                left, right = (
                    connection.execute(select, (name,)).fetchone()[0] for name in ("left", "right")
                )
            assert left == right
            numbers.append(left)
    finally:
        stop.set()
        thread.join()
    assert numbers == sorted(set(numbers))  # the writer continued between the copies


def test_document_deleted_during_backup_is_excluded(store: Store, tmp_path: Path) -> None:
    stored = store.submit("tiles.md", MANUAL)
    deleted = store.submit("waves.md", MANUAL.replace("Tile", "Wave"))
    base = KnowledgeBase(settings_of(store.data_dir))
    copies = []

    def progress(message: str) -> None:
        copies.append(message)
        if len(copies) == 1:  # after the catalog was copied, before its blobs
            delete_document(base, deleted.document_id)

    written = write_backup(base.settings, tmp_path / "backup.tar", progress)
    base.close()
    assert len(copies) > 1
    assert written.contents.damaged == ()
    restored = restore_backup(written.path, settings_of(tmp_path / "new"))
    assert [row[0] for row in rows_of(restored.data_dir / "catalog.sqlite")["documents"]] == [
        stored.document_id
    ]
    assert len(list((restored.data_dir / "blobs").rglob("*/*"))) == 1


def test_continuous_deletions_end_backup_with_conflict(store: Store, tmp_path: Path) -> None:
    submitted = [store.submit(f"{n}.md", f"{MANUAL}\nNumber {n}.\n") for n in range(12)]
    base = KnowledgeBase(settings_of(store.data_dir))

    def progress(message: str) -> None:
        delete_document(base, submitted.pop().document_id)

    with pytest.raises(Conflict, match="deleted during each"):
        write_backup(base.settings, tmp_path / "backup.tar", progress)
    base.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]


def test_missing_blob_is_named(store: Store, tmp_path: Path) -> None:
    lost, changed = (sha256(text) for text in ("# Lost\n\nGone.\n", "# Changed\n\nOther.\n"))
    store.submit("lost.md", "# Lost\n\nGone.\n")
    store.submit("changed.md", "# Changed\n\nOther.\n")
    store.blobs.delete(lost)
    (store.data_dir / "blobs" / changed[:2] / changed).write_bytes(b"damaged")
    written = write_backup(settings_of(store.data_dir), tmp_path / "backup.tar")
    assert written.contents.damaged == tuple(sorted((lost, changed)))
    assert written.contents.manifest.missing == [lost]
    assert verify_backup(written.path) == written.contents
    restored = restore_backup(written.path, settings_of(tmp_path / "new"))
    assert files_of(restored.data_dir) == files_of(store.data_dir)


# -- the restored directory


def test_running_jobs_are_queued_again(
    store: Store, tmp_path: Path, make_store: Callable[[Path], Store]
) -> None:
    store.ingest("done.md", MANUAL)
    running = store.submit("running.md", MANUAL.replace("Tile", "Wave"))
    queued = store.submit("queued.md", MANUAL.replace("Tile", "Lane"))
    claimed = Jobs(store.catalog).claim("worker_1", 60.0)
    assert claimed is not None and claimed.id == running.job_id
    written = write_backup(settings_of(store.data_dir), tmp_path / "backup.tar")
    assert written.contents.manifest.jobs == {"queued": 1, "ready": 1, "running": 1}
    restored = restore_backup(written.path, settings_of(tmp_path / "new"))
    assert restored.requeued == 1
    other = make_store(restored.data_dir)
    jobs = [other.job(submitted) for submitted in (running, queued)]
    assert [(j.state, j.attempts, j.lease_owner) for j in jobs] == [("queued", 0, None)] * 2
    other.worker().drain()
    assert [other.job(submitted).state for submitted in (running, queued)] == ["ready"] * 2
    assert other.passages_of(running.document_id) and other.passages_of(queued.document_id)
    assert store.job(running).state == "running"  # the source is unchanged


def test_restored_run_finds_its_problem(store: Store, tmp_path: Path) -> None:
    inside, outside = store.data_dir / "runs" / "run_1" / "problem.py", tmp_path / "mine.py"
    Evaluations(store.catalog).add_problem(
        ProblemRow("mine", sha256("mine"), "file", "matmul", store.blobs.put(b"mine"), {}), ()
    )
    runs = Runs(store.catalog)
    for number, path in enumerate((inside, outside), 1):
        row = {"problem": str(path), "goal": {}}
        runs.begin(f"run_{number}", sha256("mine"), "x86-64", "best_first", 0, row)
    put_files(store.data_dir, FILES)
    file = write_backup(settings_of(store.data_dir), tmp_path / "backup.tar").path
    data_dir = restore_backup(file, settings_of(tmp_path / "new")).data_dir
    catalog = open_catalog(data_dir)
    problems = [Runs(catalog).find(f"run_{n}").settings["problem"] for n in (1, 2)]
    catalog.close()
    assert problems == [str(data_dir / "runs" / "run_1" / "problem.py"), str(outside)]
    assert Path(problems[0]).read_bytes() == FILES["runs/run_1/problem.py"]


def test_differing_settings_are_named(store: Store, tmp_path: Path) -> None:
    then = settings_of(store.data_dir, default_k=7, chroma_url="http://user:secret@host:8000")
    file = write_backup(then, tmp_path / "backup.tar").path
    assert verify_backup(file).manifest.settings == {"default_k": "7"}
    now = settings_of(tmp_path / "new", max_k=50)
    assert restore_backup(file, now).settings == {"default_k": "7", "max_k": ""}
    assert restore_backup(file, settings_of(tmp_path / "other", default_k=7)).settings == {}


def test_blobs_outside_data_directory_are_included(store: Store, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    key = Blobs(here.as_uri()).put(b"an original")
    settings = settings_of(store.data_dir, blob_url=here.as_uri())
    file = write_backup(settings, tmp_path / "backup.tar").path
    new = settings_of(tmp_path / "new", blob_url=there.as_uri())
    restore_backup(file, new)
    assert Blobs(there.as_uri()).get(key) == b"an original"
    assert not (new.data_dir / "blobs").exists()


# -- other versions


def at_revision(data_dir: Path, revision: str) -> None:
    """Make a catalog with the schema of an earlier version."""
    data_dir.mkdir()
    (folder,) = kb.catalog.migrations.__path__
    config = Config()
    config.set_main_option("script_location", folder)
    engine = sa.create_engine(f"sqlite:///{data_dir / 'catalog.sqlite'}")
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
    engine.dispose()


def schema_of(data_dir: Path) -> Any:
    return rows_of(data_dir / "catalog.sqlite")["alembic_version"]


def test_older_schema_is_migrated_by_restore(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    at_revision(old, "0008")
    written = write_backup(settings_of(old), tmp_path / "backup.tar")
    assert schema_of(old) == [("0008",)]
    assert written.contents.manifest.schema == "0008"
    restored = restore_backup(written.path, settings_of(new))
    assert schema_of(new) == schema_of(fresh_data_dir(tmp_path / "fresh")) != [("0008",)]
    assert restored.schema == schema_of(new)[0][0]
    assert "symbols" in rows_of(new / "catalog.sqlite")


@pytest.mark.parametrize(("revision", "words"), [("9999", "newer Kernlore"), ("0003", "older")])
def test_unsupported_schema_is_refused(
    store: Store, tmp_path: Path, revision: str, words: str
) -> None:
    with store.catalog.write() as connection:
        connection.exec_driver_sql(f"UPDATE alembic_version SET version_num = '{revision}'")
    file = write_backup(settings_of(store.data_dir), tmp_path / "backup.tar").path
    with pytest.raises(StoreError, match=words) as refused:
        restore_backup(file, settings_of(tmp_path / "new"))
    assert f"revision {revision}" in refused.value.message and refused.value.hint
    assert not (tmp_path / "new").exists()


# -- damaged and hostile files


def members_of(file: Path) -> list[Member]:
    with tarfile.open(file) as tar:
        contents = [(member, tar.extractfile(member)) for member in tar]
        return [(member, stream.read() if stream else b"") for member, stream in contents]


def rewrite(file: Path, change: Callable[[list[Member]], list[Member]]) -> None:
    """Change the members of a backup and write matching checksums."""
    members = change([(m, data) for m, data in members_of(file) if m.name != SUMS])
    sums = sums_text({member.name: sha256(data) for member, data in members})
    with tarfile.open(file, "w") as tar:
        for member, data in [*members, entry(SUMS, sums)]:
            tar.addfile(member, io.BytesIO(data))


def entry(name: str, data: bytes = b"", **fields: Any) -> Member:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    for field, value in fields.items():
        setattr(member, field, value)
    return member, data


def of_format(members: list[Member], number: int) -> list[Member]:
    values = json.loads(members[0][1]) | {"format": number, "kernlore": "9.1"}
    return [entry(MANIFEST, json.dumps(values).encode()), *members[1:]]


HOSTILE = {
    "symbolic link": lambda m: [*m, entry("runs/x", type=tarfile.SYMTYPE, linkname="/etc")],
    "hard link": lambda m: [*m, entry("runs/x", type=tarfile.LNKTYPE, linkname=MANIFEST)],
    "pipe": lambda m: [*m, entry("runs/x", type=tarfile.FIFOTYPE)],
    "folder": lambda m: [*m, entry("runs/x", type=tarfile.DIRTYPE)],
    "path outside": lambda m: [*m, entry("../outside", b"x")],
    "path outside through a folder": lambda m: [*m, entry("runs/../../outside", b"x")],
    "absolute path": lambda m: [*m, entry("/tmp/outside", b"x")],
    "another name": lambda m: [*m, entry("service.json", b"x")],
    "another spelling": lambda m: [*m, entry("runs/./x", b"x")],
    "backslash": lambda m: [*m, entry("runs/..\\x", b"x")],
    "blob in a wrong folder": lambda m: [*m, entry(f"blobs/00/{'1' * 64}", b"x")],
    "one name twice": lambda m: [*m, entry("catalog.sqlite", b"x")],
    "manifest not first": lambda m: [*m[1:], m[0]],
    "no manifest": lambda m: m[1:],
    "no catalog": lambda m: [m[0], *m[2:]],
    "manifest of nothing": lambda m: [entry(MANIFEST, b"{}"), *m[1:]],
    "newer format": lambda m: of_format(m, 2),
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
def test_unknown_format_is_refused_before_writing(
    backup: Path, tmp_path: Path, change: Callable[[list[Member]], list[Member]]
) -> None:
    rewrite(backup, lambda members: members)
    verify_backup(backup)  # so that only the change below is refused
    rewrite(backup, change)
    before = sorted(tmp_path.rglob("*"))
    for refusing in (
        verify_backup,
        lambda file: restore_backup(file, settings_of(tmp_path / "new")),
    ):
        with pytest.raises(StoreError) as refused:
            refusing(backup)
        assert refused.value.hint
        newer = change is HOSTILE["newer format"]
        assert ("made by Kernlore 9.1" in refused.value.message) == newer
    assert sorted(tmp_path.rglob("*")) == before


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def catalog_at(data: bytes) -> int:
    return data.index(b"SQLite format 3\0")


DAMAGE = {
    "nothing": lambda data: b"",
    "no tar": lambda data: b"not a tar " * 1000,
    "cut in the catalog": lambda data: data[: catalog_at(data) + 1000],
    "cut at half": lambda data: data[: len(data) // 2],
    "cut before the checksums": lambda data: data[: data.rindex(SUMS.encode())],
    "cut in the checksums": lambda data: data[: data.rindex(SUMS.encode()) + 560],
    "a bit of the catalog": lambda data: flipped(data, catalog_at(data) + 5000),
    "a bit of a blob": lambda data: flipped(data, data.index(b"A tile of 64 rows")),
    "a bit of the manifest": lambda data: flipped(data, data.index(b'"revision": ') + 12),
    "a bit of a header": lambda data: flipped(data, data.index(b"devices/cpu.json") + 3),
    "a bit of the checksums": lambda data: flipped(data, data.rindex(SUMS.encode()) + 520),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damaged_file_is_refused_before_writing(
    backup: Path, tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    backup.write_bytes(damage(backup.read_bytes()))
    for refusing in (
        verify_backup,
        lambda file: restore_backup(file, settings_of(tmp_path / "new")),
    ):
        with pytest.raises(StoreError, match="not a whole backup"):
            refusing(backup)
    assert not (tmp_path / "new").exists()


def test_damaged_compressed_file_is_refused(store: Store, backup: Path, tmp_path: Path) -> None:
    file = write_backup(settings_of(store.data_dir), tmp_path / "backup.tar.gz").path
    whole = file.read_bytes()
    half = len(whole) // 2
    # The decompressor may ignore a single bit; 64 bytes it does not.
    torn = (
        whole[:half] + bytes(byte ^ 0xFF for byte in whole[half : half + 64]) + whole[half + 64 :]
    )
    for damaged in (whole[:half], torn):
        file.write_bytes(damaged)
        with pytest.raises(StoreError, match="not a whole backup"):
            restore_backup(file, settings_of(tmp_path / "new"))
    assert not (tmp_path / "new").exists()


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"none\.tar"):
        verify_backup(tmp_path / "none.tar")


# -- atomicity


def test_directory_with_files_is_refused(store: Store, backup: Path, tmp_path: Path) -> None:
    before = rows_of(store.catalog.path), files_of(store.data_dir)
    with pytest.raises(Conflict, match="holds a store") as refused:
        restore_backup(backup, settings_of(store.data_dir))
    assert "--data-dir" in refused.value.hint
    assert (rows_of(store.catalog.path), files_of(store.data_dir)) == before
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("mine")
    with pytest.raises(Conflict, match=r"not empty \(thesis.txt\)"):
        restore_backup(backup, settings_of(tmp_path / "other"))
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["thesis.txt"]
    (tmp_path / "empty").mkdir(mode=0o755)
    restore_backup(backup, settings_of(tmp_path / "empty"))
    assert (tmp_path / "empty").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("made", [True, False])
def test_failed_restore_leaves_nothing(backup: Path, tmp_path: Path, made: bool) -> None:
    def unreadable(members: list[Member]) -> list[Member]:
        return [m if m[0].name != "catalog.sqlite" else entry(m[0].name, b"x") for m in members]

    rewrite(backup, unreadable)
    with pytest.raises(StoreError, match="its catalog cannot be opened"):
        verify_backup(backup)
    data_dir = tmp_path / "new"
    if not made:
        data_dir.mkdir()
    with pytest.raises(StoreError, match="its catalog cannot be opened"):
        restore_backup(backup, settings_of(data_dir))
    assert data_dir.exists() != made
    assert made or list(data_dir.iterdir()) == []


# Kills the process at the Nth call of this operating-system function below the folder.
KILLED = """
import os, signal, sys
from pathlib import Path
from kb.backup import restore_backup
from kb.backup import write_backup
from kb.settings import Settings
what, event, number, source, target = sys.argv[1:]
calls = []
def watch(name, arguments):
    if name == event and target in str(arguments[0]):
        calls.append(name)
        if len(calls) == int(number):
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(watch)
if what == "restore":
    restore_backup(Path(source), Settings(data_dir=target))
else:
    write_backup(Settings(data_dir=source), Path(target) / "backup.tar")
print(len(calls))
"""


def killed(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", KILLED, *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow(seconds=5)
@pytest.mark.parametrize(
    ("event", "number"),
    # Four entries are moved before the catalog.
    [("open", 6), ("os.rename", 1), ("os.rename", 5)],
)
def test_killed_restore_is_not_a_store(
    backup: Path, tmp_path: Path, event: str, number: int
) -> None:
    data_dir = tmp_path / "new"
    assert killed("restore", event, str(number), backup, data_dir).returncode == -signal.SIGKILL
    assert (data_dir / STAGING).exists() and not (data_dir / "catalog.sqlite").exists()
    with pytest.raises(Conflict, match="was interrupted") as refused:
        restore_backup(backup, settings_of(data_dir))
    assert "remove the folder" in refused.value.hint
    assert not (data_dir / "catalog.sqlite").exists()


@pytest.mark.slow
def test_killed_backup_leaves_no_file_of_its_name(store: Store, tmp_path: Path) -> None:
    store.submit("tiles.md", MANUAL)
    target = tmp_path / "backups"
    target.mkdir()
    ended = killed("backup", "os.rename", "1", store.data_dir, target)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert not (target / "backup.tar").exists()
    written = write_backup(settings_of(store.data_dir), target / "backup.tar")
    assert verify_backup(written.path) == written.contents


# -- destination


def refusals() -> Iterator[Any]:
    yield pytest.param("backup.tar", Conflict, "is not overwritten", id="there-already")
    yield pytest.param("none/backup.tar", InvalidRequest, "there is no folder", id="no-folder")


@pytest.mark.parametrize(("name", "kind", "words"), refusals())
def test_invalid_destination_is_refused(
    store: Store, backup: Path, tmp_path: Path, name: str, kind: type[KernloreError], words: str
) -> None:
    before = backup.read_bytes()
    with pytest.raises(kind, match=words):
        write_backup(settings_of(store.data_dir), tmp_path / name)
    assert backup.read_bytes() == before


def test_backup_in_folder_is_named_by_time(store: Store, tmp_path: Path) -> None:
    written = write_backup(settings_of(store.data_dir), tmp_path)
    day = written.contents.manifest.taken_at[:10]
    assert written.path.name.startswith(f"kernlore-{day}T") and written.path.suffix == ".tar"


def test_folder_without_store_is_refused_and_unchanged(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no store in"):
        write_backup(settings_of(tmp_path / "data"), tmp_path / "backup.tar")
    assert list(tmp_path.iterdir()) == []


def test_damaged_catalog_is_not_copied(store: Store, tmp_path: Path) -> None:
    store.submit("tiles.md", MANUAL)
    store.catalog.close()
    path = store.catalog.path
    path.write_bytes(path.read_bytes()[:20_000] + b"\xff" * 30_000)
    with pytest.raises(StoreError, match="cannot be copied"):
        write_backup(settings_of(store.data_dir), tmp_path / "backup.tar")
    assert not (tmp_path / "backup.tar").exists()


def test_manifest_equals_the_contents(backup: Path) -> None:
    contents = verify_backup(backup)
    assert members_of(backup)[0][1] == manifest_text(contents.manifest)
    assert contents.files == len(members_of(backup)) - 2


# -- foreign objects in the catalog of a backup

KEY_OF_A_PATH = "../../../../etc/passwd"
FOREIGN = {
    "trigger": "CREATE TRIGGER more AFTER INSERT ON work BEGIN DELETE FROM documents; END",
    "view": "CREATE VIEW seen AS SELECT * FROM documents",
    "table": "CREATE TABLE notes (id INTEGER PRIMARY KEY)",
    "index": "CREATE INDEX strange ON documents (title)",
}


def changed_backup(backup: Path, target: Path, *statements: str) -> Path:
    """A backup that differs only in its catalog, with matching checksums."""
    members = members_of(backup)
    catalog = target.with_suffix(".sqlite")
    catalog.write_bytes(next(data for entry, data in members if entry.name == "catalog.sqlite"))
    with closing(sqlite3.connect(catalog)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()
    data = catalog.read_bytes()
    contents = {entry.name: content for entry, content in members} | {"catalog.sqlite": data}
    sums = {name: sha256(content) for name, content in contents.items() if name != SUMS}
    contents[SUMS] = sums_text(sums)
    with tarfile.open(target, "w") as tar:
        for name, content in contents.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return target


@pytest.mark.parametrize("kind", FOREIGN)
def test_catalog_with_foreign_objects_is_refused(backup: Path, tmp_path: Path, kind: str) -> None:
    changed = changed_backup(backup, tmp_path / "changed.tar", FOREIGN[kind])
    target = tmp_path / "restored"
    for refusing in (verify_backup, lambda file: restore_backup(file, settings_of(target))):
        with pytest.raises(StoreError, match=f"a {kind} '.*' that Kernlore does not create"):
            refusing(changed)
    assert not target.exists()


@pytest.mark.parametrize(
    ("statements", "reason"),
    [
        (("ALTER TABLE documents ADD COLUMN extra TEXT",), "'documents' that differs"),
        (
            (
                "PRAGMA writable_schema = ON",
                "UPDATE sqlite_master SET sql = replace(sql, 'NOT NULL', 'NOT NULL CHECK (1)')"
                " WHERE name = 'documents'",
            ),
            "'documents' that differs",
        ),
        (("DROP TABLE evidence",), "no (table|index) '.*evidence"),
        (("DROP TABLE alembic_version",), "its catalog cannot be opened: no such table"),
    ],
)
def test_catalog_with_changed_table_is_refused(
    backup: Path, tmp_path: Path, statements: tuple[str, ...], reason: str
) -> None:
    changed = changed_backup(backup, tmp_path / "changed.tar", *statements)
    with pytest.raises(StoreError, match=reason):
        restore_backup(changed, settings_of(tmp_path / "restored"))


def test_path_as_blob_key_in_catalog_is_refused(backup: Path, tmp_path: Path) -> None:
    update = f"UPDATE document_versions SET blob_key = '{KEY_OF_A_PATH}'"
    changed = changed_backup(backup, tmp_path / "changed.tar", update)
    with pytest.raises(StoreError, match="no hash"):
        restore_backup(changed, settings_of(tmp_path / "restored"))


def test_unchanged_copy_is_restored(backup: Path, tmp_path: Path) -> None:
    same = changed_backup(backup, tmp_path / "same.tar", "ANALYZE")
    assert restore_backup(same, settings_of(tmp_path / "restored")).schema


def test_blob_store_refuses_path_as_key(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    blobs = Blobs((tmp_path / "blobs").as_uri())
    blobs.put(b"data")
    for read in (blobs.get, blobs.get_unchecked, blobs.delete):
        with pytest.raises(NotFound, match="no hash"):
            read("../../secret")
    assert (tmp_path / "secret").exists()
