"""The cache of torch's compiler shared by processes, and its protection."""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from optimizer.evaluation.isolation.launch import compiler_cache
from optimizer.evaluation.runner import confine, inductor
from optimizer.evaluation.runner.inductor import build_cache, own_folder


def fill(parent: Path, name: str = "avx2.so", content: bytes = b"library") -> Path:
    with build_cache(parent, "a compiler") as folder:
        assert folder is not None
        (folder / name).write_bytes(content)
    return folder / name


def names(parent: Path, key: str = "a compiler") -> list[str]:
    with build_cache(parent, key) as folder:
        return [path.name for path in folder.glob("*.so")] if folder else ["no folder"]


def test_partial_build_of_a_killed_process_is_not_used(tmp_path: Path) -> None:
    fill(tmp_path)
    with pytest.raises(KeyboardInterrupt), build_cache(tmp_path, "a compiler") as folder:
        assert folder is not None
        (folder / "amx.so").write_bytes(b"lib")
        raise KeyboardInterrupt
    assert names(tmp_path) == ["avx2.so"]


def test_changed_file_is_built_again(tmp_path: Path) -> None:
    library = fill(tmp_path)
    library.write_bytes(b"another")
    assert names(tmp_path) == []
    assert not library.exists()


def test_links_and_planted_files_are_not_used(tmp_path: Path) -> None:
    library = fill(tmp_path)
    target = library.rename(tmp_path / "elsewhere.so")
    library.symlink_to(target)
    (library.parent / "amx.so").write_bytes(b"planted")
    assert names(tmp_path) == []
    assert target.read_bytes() == b"library"


def test_files_of_another_compiler_are_not_used(tmp_path: Path) -> None:
    fill(tmp_path)
    assert names(tmp_path, "another compiler") == []
    assert names(tmp_path) == ["avx2.so"]


def test_number_of_caches_is_bounded(tmp_path: Path) -> None:
    fill(tmp_path)
    for other in range(inductor.MAX_CACHES):
        assert names(tmp_path, f"compiler {other}") == []
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == inductor.MAX_CACHES
    assert names(tmp_path) == []


def test_held_lock_does_not_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A candidate can lock any file that it can read, including Inductor's locks."""
    library = fill(tmp_path)
    monkeypatch.setattr(inductor, "LOCK_SECONDS", 0.1)
    (library.parent / "library.lock").touch()
    with (
        (library.parent / "library.lock").open() as inner,
        (tmp_path / inductor.LOCK).open() as outer,
    ):
        fcntl.flock(inner, fcntl.LOCK_EX)
        assert names(tmp_path) == ["avx2.so"]
        assert not (library.parent / "library.lock").exists()
        fcntl.flock(outer, fcntl.LOCK_EX)
        assert names(tmp_path) == ["no folder"]
    assert names(tmp_path) == ["avx2.so"]


def test_folder_writable_by_others_is_not_used(tmp_path: Path) -> None:
    shared, link = tmp_path / "shared", tmp_path / "link"
    shared.mkdir()
    shared.chmod(0o777)
    link.symlink_to(tmp_path)
    for folder in (shared, link, tmp_path / "no" / "such"):
        assert own_folder(folder) is None
        assert names(folder) == ["no folder"]


def test_cache_key_has_compiler_torch_and_processor() -> None:
    parts: dict[str, Any] = json.loads(inductor.cache_key())
    path, version = parts["compiler"]
    assert os.access(path, os.X_OK) and "version" in version
    assert all(parts["torch"]) and parts["capability"]
    assert any("flags" in line or "Features" in line for line in parts["processor"])


@pytest.mark.parametrize("abi", [0, 2])
def test_cache_needs_landlock(abi: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before version 3 of Landlock a candidate could truncate a file that it can only read."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(confine, "landlock_abi", lambda: abi)
    assert compiler_cache() == ""
    folders = []
    for prepared in ("OFTEN_NEEDED", "FIRST_IMPORTED", "FIRST_COMPUTED"):
        monkeypatch.setattr(inductor, prepared, ())
    monkeypatch.setattr(
        inductor,
        "_detect_vector_instructions",
        lambda instructions: folders.append(Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])),
    )
    inductor.prepare_compiler.__wrapped__(compiler_cache())
    assert len(folders) == 1 and not folders[0].exists()
    assert list(tmp_path.iterdir()) == []
