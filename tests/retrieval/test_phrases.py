"""Vectors of phrases are encoded once per data directory, and those that ship are not encoded."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from kb.embedding import LocalEmbedder, Vectors
from retrieval.knowledge_base import phrase_vectors, signal_phrases
from tests.shared import BUILTIN

pytestmark = pytest.mark.slow(seconds=3)
PHRASES = ("the kernel waits for memory", "too few warps are resident")


class Counted:
    """The embedder with a count of its queries."""

    def __init__(self, embedder: LocalEmbedder) -> None:
        self._embedder = embedder
        self.asked: Counter[str] = Counter()

    def __getattr__(self, name: str) -> object:
        return getattr(self._embedder, name)

    def encode_query(self, text: str) -> Vectors:
        self.asked[text] += 1
        return self._embedder.encode_query(text)


def test_later_process_reads_stored_phrase_vectors(embedder: LocalEmbedder, tmp_path: Path) -> None:
    first, second = Counted(embedder), Counted(embedder)
    encoded = phrase_vectors(first, PHRASES, tmp_path / "models")  # type: ignore[arg-type]
    read = phrase_vectors(second, PHRASES, tmp_path / "models")  # type: ignore[arg-type]
    assert first.asked == Counter(PHRASES) and not second.asked
    for phrase in PHRASES:
        assert np.array_equal(read[phrase], embedder.encode_query(phrase))
        assert np.array_equal(read[phrase], encoded[phrase])
    assert [path.name for path in (tmp_path / "models").iterdir()] == [
        f"{embedder.fingerprint}.phrases.npz"
    ]


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 no archive"])
def test_new_phrase_or_damaged_file_is_encoded_again(
    embedder: LocalEmbedder, tmp_path: Path, damage: bytes
) -> None:
    phrase_vectors(embedder, PHRASES[:1], tmp_path)
    again = Counted(embedder)
    assert phrase_vectors(again, PHRASES, tmp_path).keys() == set(PHRASES)  # type: ignore[arg-type]
    assert again.asked == Counter(PHRASES[1:])
    [path] = tmp_path.iterdir()
    path.write_bytes(damage)
    again = Counted(embedder)
    phrase_vectors(again, PHRASES, tmp_path)  # type: ignore[arg-type]
    assert again.asked == Counter(PHRASES)


def test_shipped_phrases_are_not_encoded(embedder: LocalEmbedder, tmp_path: Path) -> None:
    ship, data = tmp_path / "shipped", tmp_path / "models"
    expected = phrase_vectors(embedder, PHRASES[:1], ship)
    counted = Counted(embedder)
    found = phrase_vectors(counted, PHRASES[:1], data, ship)  # type: ignore[arg-type]
    assert not counted.asked and not data.exists()
    assert np.array_equal(found[PHRASES[0]], expected[PHRASES[0]])
    phrase_vectors(counted, PHRASES, data, ship)  # type: ignore[arg-type]
    assert counted.asked == Counter(PHRASES[1:])


def test_phrases_of_signals_ship(embedder: LocalEmbedder) -> None:
    """Run `kernlore knowledge vectors` where too many are missing. Few only cost their time."""
    phrases = set(signal_phrases())
    with np.load(BUILTIN / f"{embedder.fingerprint}.phrases.npz") as shipped:
        assert len(phrases & set(shipped["phrases"].tolist())) > 0.9 * len(phrases)


def test_read_only_folder_costs_only_time(embedder: LocalEmbedder, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    assert len(phrase_vectors(embedder, PHRASES, tmp_path / "file" / "models")) == 2
