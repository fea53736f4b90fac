"""What stays of torch's compiler between processes, and who may not change it."""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from optimizer.evaluation.isolation.launch import kept_folder
from optimizer.evaluation.runner import confine, inductor
from optimizer.evaluation.runner import inductor as kept
from optimizer.evaluation.runner.inductor import kept_files, own_folder


def fill(parent: Path, name: str = "avx2.so", content: bytes = b"library") -> Path:
    with kept_files(parent, "a compiler") as folder:
        assert folder is not None
        (folder / name).write_bytes(content)
    return folder / name


def names(parent: Path, decided_by: str = "a compiler") -> list[str]:
    with kept_files(parent, decided_by) as folder:
        return [path.name for path in folder.glob("*.so")] if folder else ["no folder"]


def test_half_of_what_a_killed_process_built_is_not_taken_for_whole(tmp_path: Path) -> None:
    fill(tmp_path)
    with pytest.raises(KeyboardInterrupt), kept_files(tmp_path, "a compiler") as folder:
        assert folder is not None
        (folder / "amx.so").write_bytes(b"lib")
        raise KeyboardInterrupt
    assert names(tmp_path) == ["avx2.so"]


def test_a_file_that_is_not_what_was_built_is_built_again(tmp_path: Path) -> None:
    library = fill(tmp_path)
    library.write_bytes(b"another")
    assert names(tmp_path) == []
    assert not library.exists()


def test_a_link_or_a_file_that_nobody_built_is_not_taken(tmp_path: Path) -> None:
    library = fill(tmp_path)
    target = library.rename(tmp_path / "elsewhere.so")
    library.symlink_to(target)
    (library.parent / "amx.so").write_bytes(b"planted")
    assert names(tmp_path) == []
    assert target.read_bytes() == b"library"


def test_what_another_compiler_built_is_not_taken(tmp_path: Path) -> None:
    fill(tmp_path)
    assert names(tmp_path, "another compiler") == []
    assert names(tmp_path) == ["avx2.so"]


def test_what_is_kept_is_bounded(tmp_path: Path) -> None:
    fill(tmp_path)
    for other in range(kept.KEPT_FOLDERS):
        assert names(tmp_path, f"compiler {other}") == []
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == kept.KEPT_FOLDERS
    assert names(tmp_path) == []


def test_who_keeps_a_lock_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A candidate can lock whatever it may read, Inductor's own locks too."""
    library = fill(tmp_path)
    monkeypatch.setattr(kept, "LOCK_SECONDS", 0.1)
    (library.parent / "library.lock").touch()
    with (library.parent / "library.lock").open() as inner, (tmp_path / kept.LOCK).open() as outer:
        fcntl.flock(inner, fcntl.LOCK_EX)
        assert names(tmp_path) == ["avx2.so"]
        assert not (library.parent / "library.lock").exists()
        fcntl.flock(outer, fcntl.LOCK_EX)
        assert names(tmp_path) == ["no folder"]
    assert names(tmp_path) == ["avx2.so"]


def test_a_folder_that_others_may_write_to_keeps_nothing(tmp_path: Path) -> None:
    shared, link = tmp_path / "shared", tmp_path / "link"
    shared.mkdir()
    shared.chmod(0o777)
    link.symlink_to(tmp_path)
    for folder in (shared, link, tmp_path / "no" / "such"):
        assert own_folder(folder) is None
        assert names(folder) == ["no folder"]


def test_what_decides_what_is_built_has_compiler_torch_and_processor() -> None:
    parts: dict[str, Any] = json.loads(inductor.decided_by())
    path, version = parts["compiler"]
    assert os.access(path, os.X_OK) and "version" in version
    assert all(parts["torch"]) and parts["capability"]
    assert any("flags" in line or "Features" in line for line in parts["processor"])


@pytest.mark.parametrize("abi", [0, 2])
def test_where_the_system_does_not_forbid_writing_nothing_is_kept(
    abi: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before version 3 of Landlock a candidate could truncate a file that it may only read."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(confine, "landlock_abi", lambda: abi)
    assert kept_folder() == ""
    folders = []
    monkeypatch.setattr(inductor, "OFTEN_NEEDED", ())
    monkeypatch.setattr(
        inductor,
        "_probe_vector_instructions",
        lambda instructions: folders.append(Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])),
    )
    inductor.prepare_compiler.__wrapped__(kept_folder())
    assert len(folders) == 1 and not folders[0].exists()
    assert list(tmp_path.iterdir()) == []
