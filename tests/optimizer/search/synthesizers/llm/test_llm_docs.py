"""docs/llm.md agrees with the code, and states that no commercial model was used yet."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from pathlib import Path

from optimizer.search.propose import CONTEXT_TOKENS, SILENT_IN_A_ROW
from optimizer.search.synthesizers.llm.client import LONGEST_WAIT_S
from optimizer.search.synthesizers.llm.settings import LlmSettings

ROOT = Path(__file__).parents[5]
TEXT = (ROOT / "docs" / "llm.md").read_text(encoding="utf-8")
IN_WORDS = {"": MISSING, "environment": None, "no limit": None, "off": False}


def test_every_setting_is_in_table_with_its_default() -> None:
    documented: dict[str, object] = {}
    for names, default in re.findall(r"^\| (`[^|]+`) \| ([^|]*?) ?\|", TEXT, re.M):
        each = [part.strip() for part in default.split(",")]
        keys = re.findall(r"`(\w+)`", names)
        documented |= dict(zip(keys, each * len(keys), strict=False))
    assert set(documented) == {field.name for field in fields(LlmSettings)}
    for field in fields(LlmSettings):
        default = str(documented[field.name])
        assert field.default == (IN_WORDS[default] if default in IN_WORDS else float(default)), (
            field.name
        )


def test_documented_limits_equal_code() -> None:
    assert f"budget of {CONTEXT_TOKENS:,} tokens" in TEXT
    assert f"up to {LONGEST_WAIT_S:g} s" in TEXT
    assert SILENT_IN_A_ROW == 8 and "Eight attempts in a row" in TEXT


def test_docs_state_that_no_commercial_model_was_used() -> None:
    for text in (TEXT, (ROOT / "README.md").read_text(encoding="utf-8")):
        assert "has not yet been run with a commercial model" in text
