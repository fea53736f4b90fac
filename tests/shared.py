"""Read-only data that takes long to make: made once for all workers of a test session."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from api.cli.search import plain_lines
from api.cli.target import CommandTarget, read_settings
from ingestion.builtin.precomputed import READINGS_FILE, VECTORS_FILE
from kb.embedding import DEFAULT_MODEL, open_embedder
from optimizer.evaluation.problem.load import SHIPPED
from tests import postgresql, store_servers
from tests.catalogs import builtin_data_dir, copy_data_dir, fresh_data_dir
from tests.known_device import store_ceilings
from tests.places import SHARED

BUILTIN = Path(__file__).resolve().parent.parent / "hw_manuals"


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """The folder of this name, filled by the first worker that needs it. Read-only afterwards. With
    stores on servers each worker has separate servers, and so a separate folder.
    """
    base = factory.getbasetemp()
    alone = "PYTEST_XDIST_WORKER" not in os.environ
    own = alone or postgresql.EVERYWHERE or store_servers.EVERYWHERE
    root = base if own else base.parent
    folder, finished = root / name, root / f"{name}.finished"
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not finished.exists():
            shutil.rmtree(folder, ignore_errors=True)  # left by a failed worker
            folder.mkdir()
            make(folder)
            finished.touch()
    return folder


def read_builtin_knowledge(data_dir: Path) -> None:
    """All shipped knowledge with its vectors, as after a first search."""
    place_models(data_dir, exported_models())
    local = CommandTarget(read_settings(store_ceilings(data_dir)))
    try:
        local.load_knowledge(lambda _: None)
    finally:
        local.close()


FINISHED_CANDIDATES = 3
SMALL_CASES = {
    "count = 262_144, table_size = 16_384": "count = 4096, table_size = 512",
    "count = 300_000, table_size = 3000": "count = 5000, table_size = 300",
}


def small_map_id(folder: Path) -> Path:
    """The shipped map_id, in a folder of this name below `folder`, with cases whose calls take some
    ten microseconds. Most searches are not about the problem, and with the shipped cases each
    process of a run computes the reference for a second.
    """
    place = folder / "map_id"
    shutil.copytree(SHIPPED / "map_id", place, ignore=shutil.ignore_patterns("__pycache__"))
    described = place / "problem.toml"
    text = described.read_text(encoding="utf-8")
    for shipped, small in SMALL_CASES.items():
        assert text.count(shipped) == 1, shipped
        text = text.replace(shipped, small)
    described.write_text(text, encoding="utf-8")
    return place


def finished_run(factory: pytest.TempPathFactory, data_dir: Path) -> str:
    """Fill `data_dir` with a real finished run: map_id in C++ with three candidates of recipes,
    without knowledge. Returns the run's id.
    """
    made = once(factory, "finished-run", _finish_a_run)
    copy_data_dir(made / "data", data_dir)
    return (made / "run").read_text(encoding="utf-8")


def _finish_a_run(folder: Path) -> None:
    # Imported here, because few tests need it.
    from optimizer.search.goal import Goal
    from optimizer.search.runs.optimize import optimize

    local = CommandTarget(read_settings(store_ceilings(fresh_data_dir(folder / "data"))))
    try:
        goal = Goal(language="cpp", candidates=FINISHED_CANDIDATES, knowledge=False)
        finished = optimize(local.services, Path("map_id"), goal, "auto", plain_lines(goal))
    finally:
        local.close()
    assert len(finished.tree) == FINISHED_CANDIDATES + 1
    (folder / "run").write_text(finished.run.id, encoding="utf-8")


@cache
def exported_models() -> Path:
    """The folder of the query model, made once for all runs."""
    folder = SHARED / "models"
    folder.mkdir(parents=True, exist_ok=True)
    with (SHARED / "models.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        opened = open_embedder(DEFAULT_MODEL, folder)
        if not opened.onnx_file.exists():
            opened.encode_query("this exports it")
    return folder


def place_models(data_dir: Path, model_cache: Path) -> Path:
    """A directory with the exported query model and a catalog; returns it. A new one has the
    built-in hardware and skills, which a first start takes half a second to store.
    """
    if data_dir.exists():
        fresh_data_dir(data_dir)
    else:
        builtin_data_dir(data_dir)
    (data_dir / "models").symlink_to(model_cache)
    return data_dir


def copy_knowledge(folder: Path, documents: tuple[str, ...], *, vectors: bool = True) -> Path:
    """All chips, few documents, and their shipped readings, because reading and embedding take
    time. Storing the vectors takes half a second, and 11 MB.
    """
    chips = [path.relative_to(BUILTIN) for path in (BUILTIN / "hardware").glob("*/hardware.toml")]
    for name in (
        *chips,
        *map(Path, documents),
        *([Path(VECTORS_FILE)] if vectors else []),
        Path(READINGS_FILE),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(BUILTIN / name, folder / name)
    return folder
