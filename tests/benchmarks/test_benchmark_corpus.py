"""Selection of the documents of a benchmark, and the report of the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.retrieval.corpus import MANIFEST, load_corpus
from kb.errors import InvalidRequest
from tests.benchmarks.conftest import Small


def test_manifest_gives_hardware_and_relative_paths(small: Small) -> None:
    corpus = load_corpus(small.corpus)
    assert corpus.hardware == ("omega-2", "zeta-1")
    names = {(file.hardware, file.name) for file in corpus.files}
    assert (("zeta-1",), "zeta_one/guide/memory.md") in names
    assert (corpus.missing, corpus.extra) == ((), ())


def test_missing_and_unlisted_files_are_reported(small: Small) -> None:
    (small.corpus / "omega/overview.md").unlink()
    (small.corpus / "LICENSE.txt").write_text("do as you like", encoding="utf-8")
    corpus = load_corpus(small.corpus)
    assert corpus.missing == ("omega/overview.md",)
    assert corpus.extra == ("LICENSE.txt",)
    message = "\n".join(corpus.lines())
    assert "1 files listed but missing: omega/overview.md" in message
    assert "1 files not listed: LICENSE.txt" in message


def test_top_folder_is_the_hardware_without_manifest(small: Small) -> None:
    (small.corpus / MANIFEST).unlink()
    (small.corpus / "LICENSES").mkdir()
    (small.corpus / "LICENSES/omega.txt").write_text("do as you like", encoding="utf-8")
    corpus = load_corpus(small.corpus)
    assert corpus.hardware == ("omega", "zeta_one")
    assert {file.name for file in corpus.files} == {"guide/memory.md", "errors.md", "overview.md"}
    assert corpus.extra == ("LICENSES/omega.txt",)


def test_part_of_corpus_by_hardware(small: Small) -> None:
    assert len(load_corpus(small.corpus).only({"zeta-1"}).files) == 2
    with pytest.raises(InvalidRequest, match="nothing about gamma"):
        load_corpus(small.corpus).only({"gamma"})


def test_invalid_manifest_line_is_named(small: Small) -> None:
    (small.corpus / MANIFEST).write_text('{"path": "a.md"}\n', encoding="utf-8")
    with pytest.raises(InvalidRequest, match=r"MANIFEST\.jsonl, line 1"):
        load_corpus(small.corpus)


def test_empty_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="no documents"):
        load_corpus(tmp_path)
