"""What an upload is, what it is called, and what is refused before anything is parsed."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestion.uploads import MAX_NAME, Upload, files_under, safe_name, title_from_name
from kb.errors import (
    InvalidRequest,
    KernloreError,
    PayloadTooLarge,
    UnknownHardware,
    UnsupportedFormat,
)

if TYPE_CHECKING:
    from tests.conftest import Store

MANUAL = "# Manual\n\nOne block may take 227 KiB.\n"


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("manual.pdf", "manual.pdf"),
        ("guides/h100.md", "guides/h100.md"),
        ("../../etc/passwd", "etc/passwd"),
        ("/etc/passwd", "etc/passwd"),
        ("C:\\Users\\me\\manual.pdf", "C_/Users/me/manual.pdf"),
        ("..\\..\\boot.ini", "boot.ini"),
        ("a/../b/./c.md", "a/b/c.md"),
        ("evil\x00.md", "evil_.md"),
        ("line\nbreak.md", "line_break.md"),
        ("ann\u202efdp.md", "ann_fdp.md"),  # turned writing direction
        ("broken\udcff.md", "broken?.md".replace("?", "_")),  # a name that is not UTF-8
        ("Gru\u0308ße.md", "Grüße.md"),
        ("...hidden", "hidden"),
        ("con .md ", "con .md"),
    ],
)
def test_hostile_names_become_labels(name: str, label: str) -> None:
    assert safe_name(name) == label


@pytest.mark.parametrize("name", ["", "/", "..", "../..", "\\", "   ", "\x00", "./."])
def test_a_name_without_anything_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="unusable file name"):
        safe_name(name)


@given(st.text(st.characters(exclude_categories=()), max_size=300))
def test_no_name_leaves_its_place(name: str) -> None:
    try:
        label = safe_name(name)
    except InvalidRequest:
        return
    label.encode()
    parts = PurePosixPath(label).parts
    assert 0 < len(label) <= MAX_NAME
    assert not label.startswith("/") and ".." not in parts
    assert not any(ord(c) < 32 or c == "\\" for c in label)
    assert safe_name(label) == label


def test_the_title_is_readable() -> None:
    assert title_from_name("guides/h100_tuning__guide.pdf") == "h100 tuning guide"


def test_every_outcome_says_what_the_upload_is(store: Store) -> None:
    first = store.submit("manual.md", MANUAL)
    assert first.outcome == "created" and first.job_id
    again = store.submit("manual.md", MANUAL)
    assert (again.outcome, again.document_id, again.job_id) == (
        "unchanged",
        first.document_id,
        None,
    )
    changed = store.submit("manual.md", MANUAL + "More.\n")
    assert (changed.outcome, changed.document_id) == ("new_version", first.document_id)
    twin = store.submit("copy.md", MANUAL + "More.\n")
    assert (twin.outcome, twin.document_id, twin.job_id) == (
        "duplicate_of",
        first.document_id,
        None,
    )


def test_the_same_bytes_for_another_chip_are_another_document(store: Store) -> None:
    ids = {
        store.submit("manual.md", MANUAL, hardware=scope).document_id
        for scope in ((), ("h100",), ("H200",), ("h100", "h200"))
    }
    assert len(ids) == 4


def test_the_source_key_names_the_document_not_the_file(store: Store) -> None:
    first = store.submit("v1.md", MANUAL, source_key="tuning-guide")
    second = store.submit("v2.md", MANUAL + "More.\n", source_key="tuning-guide")
    assert second.document_id == first.document_id and second.outcome == "new_version"


def test_another_pipeline_reads_the_same_bytes_again(store: Store) -> None:
    store.submit("manual.md", MANUAL)
    newer = store.uploads_of("another pipeline")
    again = newer.submit(Upload("manual.md", MANUAL.encode()))
    assert again.outcome == "new_version" and again.job_id
    assert newer.submit(Upload("manual.md", MANUAL.encode())).outcome == "unchanged"


@pytest.mark.parametrize(
    ("upload", "error", "hint"),
    [
        (Upload("a.md", b""), KernloreError, ""),
        (Upload("a.bin", b"\x00\x01\x02\x03" * 64), UnsupportedFormat, ""),
        (Upload("a.md", b"x" * 5000), PayloadTooLarge, "KERNLORE_MAX_FILE_BYTES"),
        (Upload("a.md", b"# A", hardware=("h10",)), UnknownHardware, "h100"),
        (Upload("a.md", b"# A", category="hardwares"), InvalidRequest, "hardware"),
        (Upload("a.md", b"# A", category="hardware"), InvalidRequest, "hardware"),
        (Upload("a.md", b"# A", languages=("tri ton!",)), InvalidRequest, "triton"),
        (Upload("..", b"# A"), InvalidRequest, "plain name"),
    ],
)
def test_what_can_be_refused_is_refused_at_once(
    store: Store, upload: Upload, error: type[KernloreError], hint: str
) -> None:
    with pytest.raises(error) as refused:
        store.uploads_of("p", max_bytes=4096).submit(upload)
    assert refused.value.hint and hint in refused.value.hint
    assert store.rows("documents") == store.rows("jobs") == 0


def test_a_directory_is_read_in_order_without_its_caches(tmp_path: Path) -> None:
    for name in ("b.md", "a/c.md", ".git/config", "a/__pycache__/x.pyc", ".hidden.md", "a/.b.md"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("# T")
    assert [file.name for file in files_under([tmp_path])] == ["a/c.md", "b.md"]
    assert [file.name for file in files_under([tmp_path / "b.md"])] == ["b.md"]
    outside = tmp_path.parent / "secret.md"
    outside.write_text("# Secret")
    (tmp_path / "p.md").symlink_to(outside)
    (tmp_path / "twin.md").symlink_to(tmp_path / "b.md")
    names = [file.name for file in files_under([tmp_path])]
    assert names == ["a/c.md", "b.md", "twin.md"]  # no link that leads out of the folder
    with pytest.raises(InvalidRequest, match="no file or folder"):
        list(files_under([tmp_path / "missing"]))
