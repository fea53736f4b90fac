"""A corpus of three documents about two invented chips, with three gold rows."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kb.settings import Settings
from tests.catalogs import fresh_data_dir
from tests.shared import BUILTIN, place_models

SCORER = Path(__file__).with_name("small_scorer.py")
DOCUMENTS = {
    "zeta_one/guide/memory.md": (
        "# Scratchpad\n\nThe scratchpad of a lane holds 96 KiB and is read in four cycles.\n\n"
        "## Coalescing\n\nNeighbouring lanes should read neighbouring words: the memory"
        " controller joins them into one burst of 128 bytes, which is what saturates the memory"
        " bandwidth.\n"
    ),
    "zeta_one/errors.md": (
        "# Errors of the zcc compiler\n\n## ZCC-417 lane file exhausted\n\nZCC-417 means that a"
        " lane needs more registers than it has; split the loop or lower the unroll factor.\n"
    ),
    "omega/overview.md": (
        "# Omega overview\n\nThe omega chip has 12 clusters, and each cluster schedules warps of"
        " sixteen threads over one shared pipe.\n"
    ),
}
HARDWARE = {path: "omega-2" if path.startswith("omega") else "zeta-1" for path in DOCUMENTS}
GOLD = (
    ("g1", "question", "zeta-1", "How large is the scratchpad of a lane?", "holds 96 KiB"),
    ("g2", "error", "zeta-1", "zcc: error ZCC-417 in kernel", "split the loop"),
    ("g3", "signal", "zeta-1", "memory_bound", "one burst of 128 bytes"),
)


@dataclass(frozen=True)
class Small:
    """Paths of the small corpus, its gold rows and their scorer; `answers` and `data` are unused
    paths.
    """

    corpus: Path
    gold: Path
    scorer: Path
    answers: Path
    data: Path


def write_corpus(folder: Path) -> Path:
    for path, text in DOCUMENTS.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    rows = [{"path": path, "hardware": HARDWARE[path]} for path in DOCUMENTS]
    manifest = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "MANIFEST.jsonl").write_text(manifest, encoding="utf-8")
    return folder


def write_gold(path: Path) -> Path:
    names = ("id", "kind", "hardware", "query", "evidence")
    rows = [dict(zip(names, row, strict=True)) for row in GOLD]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def _small(folder: Path, model_cache: Path) -> Small:
    return Small(
        write_corpus(folder / "corpus"),
        write_gold(folder / "gold.jsonl"),
        SCORER,
        folder / "answers.jsonl",
        # Empty: some services have chips and skills already.
        place_models(fresh_data_dir(folder / "data"), model_cache),
    )


@pytest.fixture
def small(tmp_path: Path, model_cache: Path) -> Small:
    return _small(tmp_path, model_cache)


@pytest.fixture(scope="module")
def shared_small(tmp_path_factory: pytest.TempPathFactory, model_cache: Path) -> Small:
    return _small(tmp_path_factory.mktemp("benchmark"), model_cache)


@pytest.fixture(scope="module")
def without_builtin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The services of this module start with one document and one skill, so that little is
    embedded.
    """
    knowledge, skills = (tmp_path_factory.mktemp(name) for name in ("knowledge", "skills"))
    (knowledge / "constraints").mkdir()
    shutil.copy(BUILTIN / "constraints/alignment.md", knowledge / "constraints")
    name = "any-split-k-skinny-matmul"
    shutil.copytree(Settings().skills_dir / name, skills / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNLORE_KNOWLEDGE_DIR", str(knowledge))
        patch.setenv("KERNLORE_SKILLS_DIR", str(skills))
        yield
