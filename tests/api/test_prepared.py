"""A new data directory is a copy of the prepared store, or is read and built."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import structlog

from api.cli.target import CommandTarget
from api.prepared import COPY, PARTS, _copy, copy_prepared, prepare, prepared_store
from kb.catalog import open_catalog
from kb.errors import StoreError
from kb.settings import Settings
from retrieval.request import RetrieveRequest
from tests.api.conftest import small_knowledge

pytestmark = [pytest.mark.slow(seconds=10), pytest.mark.in_data_dir, pytest.mark.embedded]
REQUEST = RetrieveRequest(signal="memory_bound", hardware="h100", query="shared memory of a block")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Settings of a small installation with a prepared store."""
    folder = tmp_path_factory.mktemp("installation")
    stores = folder / "prepared"
    settings = Settings(
        data_dir=folder / "unused",
        knowledge_dir=small_knowledge(folder / "knowledge"),
        prepared_dir=stores,
        skills_withheld_share=0,  # drawn by the id of a retrieval
    )
    (stores / "store-of-another-version").mkdir(parents=True)
    assert prepare(settings) == prepare(settings) == prepared_store(settings)
    assert list(stores.iterdir()) == [prepared_store(settings)]
    return settings


@pytest.fixture
def new(prepared: Settings, tmp_path: Path) -> Settings:
    return prepared.model_copy(update={"data_dir": tmp_path / "data"})


def segments(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "snapshot").glob("*.segment"))


def test_copy_answers_like_a_built_store(new: Settings, tmp_path: Path) -> None:
    update = {"data_dir": tmp_path / "built", "prepared_dir": tmp_path / "none"}
    answers = []
    for settings in (new, new.model_copy(update=update)):
        target = CommandTarget(settings)
        target.ensure_documents()
        answer = target.services.retriever.retrieve(REQUEST)
        # Passages of equal scores come in the order of their ids, which each store draws.
        context = sorted(re.sub(r"psg_\w+", "psg", answer.context).split("\n\n"))
        answers.append((context, [e.score for e in answer.excerpts], answer.hints))
        target.close()
    assert answers[0] == answers[1] and answers[0][0]
    assert segments(new.data_dir) == segments(prepared_store(new))  # not built again
    assert segments(new.data_dir) != segments(tmp_path / "built")


def test_knowledge_of_another_version_is_reported(
    new: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for settings, said in (
        (new, False),
        (new.model_copy(update={"knowledge_dir": small_knowledge(tmp_path / "knowledge")}), True),
    ):
        target = CommandTarget(settings)
        target.ensure_documents()
        target.close()
        assert ("of another version; `kernlore serve`" in capsys.readouterr().err) == said


def test_copies_are_private_and_have_their_own_ids(new: Settings, tmp_path: Path) -> None:
    other = new.model_copy(update={"data_dir": tmp_path / "other"})
    assert copy_prepared(new) and copy_prepared(other) and not copy_prepared(new)
    ids = set()
    for folder in (new.data_dir, other.data_dir, prepared_store(new)):
        catalog = open_catalog(folder)
        ids.add(catalog.store_id())
        catalog.close()
        manifest = json.loads((folder / "snapshot" / "manifest.json").read_text())
        assert manifest["store"] in ids
    assert len(ids) == 3
    rights = {stat.S_IMODE(path.stat().st_mode) for path in new.data_dir.rglob("*")}
    assert rights == {0o600, 0o700}


def test_another_version_or_a_server_is_not_copied(new: Settings, tmp_path: Path) -> None:
    for given in ({"catalog": "postgresql+psycopg://h/d"}, {"blob_url": "s3://bucket"}):
        assert not copy_prepared(new.model_copy(update=given))
    knowledge = shutil.copytree(new.knowledge_dir, tmp_path / "knowledge")
    changed = new.model_copy(update={"knowledge_dir": knowledge})
    with structlog.testing.capture_logs() as logs:
        assert not copy_prepared(changed)
    assert "no store of this version is prepared" in logs[0]["event"]
    assert not new.data_dir.exists()


@pytest.mark.parametrize("moved", range(len(PARTS)))
def test_interrupted_copy_is_made_again(new: Settings, moved: int) -> None:
    folder = new.data_dir
    _copy(prepared_store(new), folder / COPY)
    for name in PARTS[:moved]:
        (folder / COPY / name).rename(folder / name)
    shutil.rmtree(folder / COPY / "models", ignore_errors=True)  # as if it was not complete
    assert copy_prepared(new)
    assert not (folder / COPY).exists() and (folder / "models").is_dir()


def test_store_that_lost_its_catalog_stays(new: Settings) -> None:
    assert copy_prepared(new)
    (new.data_dir / "catalog.sqlite").unlink()
    assert not copy_prepared(new)
    with pytest.raises(StoreError, match="lost"):
        open_catalog(new.data_dir)


def test_two_starts_make_one_copy(new: Settings) -> None:
    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(lambda _: copy_prepared(new), range(4))) == [False] * 3 + [True]
    assert not (new.data_dir / COPY).exists()


def test_full_disk_leaves_an_empty_directory(
    new: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    copyfile = shutil.copyfile

    def failing(source: Path, target: Path) -> None:
        if source.name == "manifest.json":
            raise OSError(28, os.strerror(28))
        copyfile(source, target)

    monkeypatch.setattr(shutil, "copyfile", failing)
    with structlog.testing.capture_logs() as logs:
        assert not copy_prepared(new)
    assert "No space left" in logs[0]["reason"]
    assert [path.name for path in new.data_dir.iterdir()] == ["locks"]
    open_catalog(new.data_dir).close()
