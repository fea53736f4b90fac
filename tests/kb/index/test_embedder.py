"""The embedding model: unit vectors, no silent truncation, one space for passages and queries."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kb.embedding import (
    DEFAULT_MODEL,
    FEW,
    MAX_HEADER_BYTES,
    LocalEmbedder,
    embedding_text,
    header_text,
    open_embedder,
)
from kb.errors import InvalidRequest, Unavailable

pytestmark = pytest.mark.slow(seconds=10)

ROOT = Path(__file__).resolve().parents[3]
QUERIES = [
    "shared memory bank conflicts on H100",
    "s_waitcnt vmcnt(0)",
    "What limits occupancy when every thread needs 255 registers and a block has 1024 threads?",
]


def test_passages_over_window_are_refused(embedder: LocalEmbedder) -> None:
    fits = "tile " * (embedder.window - 2)
    assert embedder.count_tokens(fits) == embedder.window
    assert embedder.encode([fits]).shape == (1, embedder.dimension)
    with pytest.raises(InvalidRequest, match="1 of 2 texts exceed") as refused:
        embedder.encode(["short", fits + "tile"])
    assert refused.value.details["first"].startswith("tile")


def test_onnx_vectors_equal_those_of_torch(model_cache: Path) -> None:
    fresh = open_embedder.__wrapped__(DEFAULT_MODEL, model_cache)  # no model loaded yet
    many = [*QUERIES, *["tile"] * FEW]
    few, passages = fresh.encode(QUERIES), fresh.encode(many)[: len(QUERIES)]
    queries = np.stack([fresh.encode_query(query) for query in QUERIES])
    assert np.allclose(np.linalg.norm(passages, axis=1), 1, atol=1e-3)
    for vectors in (few, queries):
        assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
        assert ((passages * vectors).sum(1) > 0.999).all()
    assert not np.array_equal(few, passages)  # another order, or bfloat16


def test_long_query_is_cut_to_window(embedder: LocalEmbedder) -> None:
    vector = embedder.encode_query("why is this slow? " * 300)
    assert vector.shape == (embedder.dimension,) and np.isfinite(vector).all()


def test_empty_input_gives_no_vectors(embedder: LocalEmbedder) -> None:
    assert embedder.encode([]).shape == (0, embedder.dimension)


def test_fingerprint_names_model_dimension_and_weights(
    embedder: LocalEmbedder, tmp_path: Path
) -> None:
    assert embedder.fingerprint.startswith("all-minilm-l6-v2-384-")
    assert open_embedder(DEFAULT_MODEL, tmp_path).fingerprint == embedder.fingerprint


def test_queries_and_few_passages_do_not_import_torch(
    embedder: LocalEmbedder, model_cache: Path
) -> None:
    embedder.encode_query("exports the model when it is not there yet")
    script = (
        "import sys; from pathlib import Path; from kb.embedding import open_embedder;"
        f"opened = open_embedder({DEFAULT_MODEL!r}, Path(sys.argv[1])); opened.encode_query('x');"
        "opened.encode(['a tile', 'a tile that is longer']);"
        "print('torch' in sys.modules)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script, str(model_cache)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.strip() == "False"


PREPARED = """
import sys, time
from pathlib import Path
from kb.embedding import DEFAULT_MODEL, open_embedder
embedder = open_embedder(DEFAULT_MODEL, Path(sys.argv[1]))
began = time.monotonic()
embedder.prepare()
asked = time.monotonic() - began
vector = embedder.encode_query("shared memory bank conflicts")
assert abs(float(vector @ vector) - 1) < 1e-5
assert asked < (time.monotonic() - began) / 2, "preparing waits for the model"
assert "torch" not in sys.modules
"""


def test_query_model_is_exported_next_to_other_files(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", PREPARED, str(tmp_path)], cwd=ROOT, check=True)
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".onnx", ".weights"]


def test_folder_without_model_is_refused_at_first_use(tmp_path: Path) -> None:
    folder = tmp_path / "broken"
    folder.mkdir()
    (folder / "config.json").write_text('{"hidden_size": 8, "model_type": "none"}')
    embedder = LocalEmbedder(folder, tmp_path / "cache")
    embedder.prepare()  # not used yet
    with pytest.raises(Unavailable, match="the query model cannot be exported") as refused:
        embedder._run([[1, 2, 3]])
    assert "sentence-transformers folder" in (refused.value.hint or "")


def test_unknown_model_error_names_offline_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(Unavailable) as refused:
        open_embedder("nobody/no-such-model-here", tmp_path)
    assert DEFAULT_MODEL in refused.value.hint


def test_header_has_innermost_headings_and_is_bounded(embedder: LocalEmbedder) -> None:
    assert header_text(("Manual", "Memory", "Shared", "Banks")) == "Memory > Shared > Banks"
    assert embedding_text((), "", "body") == "body"
    assert embedding_text(("A",), "| h |", "| 1 |") == "A. | h |\n| 1 |"
    for heading in ("x" * 400, "각" * 400, "é🙂" * 200):
        header = header_text((heading,))
        assert len(header.encode()) <= MAX_HEADER_BYTES
        assert embedder.count_tokens(header) < embedder.window * 3 / 4
