"""Values of texts that ship are those that would be computed, and are used for no other text."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from kb.catalog import open_catalog
from kb.prompt_tokens import count_once
from kb.tokens import shadow
from retrieval.snapshot import store
from retrieval.snapshot.lexicon import SectionTexts
from retrieval.snapshot.store import TEXTS_FILE, TextValues, write_text_values
from tests.shared import BUILTIN

TEXT = "The scratchpad has 32 banks of 4 bytes."
DEFINITION = "QBUF is the on-chip memory of the core."


def sections(text: str) -> Sequence[SectionTexts]:
    return [SectionTexts("sec_1", ["Memory"], []), SectionTexts("sec_2", ["Memory"], [text])]


def values_of(values: TextValues, text: str = TEXT) -> list[Any]:
    return [values.words(text), values.tokens(text), values.terms(sections(text))]


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """A file with wrong values of TEXT, so that their use shows."""
    values = TextValues()
    values_of(values)
    wrong = {str: "planted", int: 1, list: [["RAM", "scratchpad", "name", "", 1]]}
    values.computed = {key: wrong[type(value)] for key, value in values.computed.items()}
    values.write(tmp_path / TEXTS_FILE)
    return tmp_path / TEXTS_FILE


def test_values_are_those_of_the_text() -> None:
    words, tokens, _ = values_of(TextValues())
    assert words == shadow(TEXT) and tokens == count_once(TEXT)
    [term] = TextValues().terms(sections(DEFINITION))
    assert (term.term, term.how, term.section_id) == ("QBUF", "definition", "sec_2")


def test_written_values_are_read_back(tmp_path: Path) -> None:
    values = TextValues()
    expected = [*values_of(values), *values_of(values, DEFINITION)]
    values.write(tmp_path / TEXTS_FILE)
    again = TextValues(tmp_path / TEXTS_FILE)
    assert [*values_of(again), *values_of(again, DEFINITION)] == expected


def test_shipped_value_is_used_for_its_text_only(planted: Path) -> None:
    words, tokens, [term] = values_of(TextValues(planted))
    assert (words, tokens, term.term, term.section_id) == ("planted", 1, "RAM", "sec_2")
    changed = TEXT + " Pad the rows."
    assert values_of(TextValues(planted), changed) == values_of(TextValues(), changed)


def test_values_are_computed_after_a_change_of_the_code(
    planted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_text_code", lambda: b"another tokenizer")
    assert values_of(TextValues(planted)) == values_of(TextValues())


@pytest.mark.parametrize("content", [b"", b"no archive", zlib.compress(b"no JSON")])
def test_values_are_computed_where_file_is_damaged(tmp_path: Path, content: bytes) -> None:
    (tmp_path / TEXTS_FILE).write_bytes(content)
    assert values_of(TextValues(tmp_path / TEXTS_FILE)) == values_of(TextValues())


@pytest.mark.slow(seconds=15)
def test_shipped_values_equal_computed_values(read_builtin: Path, tmp_path: Path) -> None:
    """Run `kernlore knowledge vectors` where too many are missing. Few only cost their time."""
    catalog = open_catalog(read_builtin)
    write_text_values(catalog, tmp_path)
    catalog.close()
    shipped, computed = (
        orjson.loads(zlib.decompress((folder / TEXTS_FILE).read_bytes()))
        for folder in (BUILTIN, tmp_path)
    )
    present = shipped.keys() & computed.keys()
    assert len(computed) > 10_000 and len(present) > 0.9 * len(computed)
    assert all(shipped[key] == computed[key] for key in present)
