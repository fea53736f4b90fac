"""Signatures of judgements."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kb.errors import InvalidRequest
from optimizer.evaluation.judge import read_key, signature, verify


def test_changed_judgement_is_detected(tmp_path: Path) -> None:
    key, path = b"0123456789abcdef", tmp_path / "judgement.json"
    record = {"verdict": "correct", "evaluation": {"speedup": {"value": 1.25}}}
    signed = {**record, "signature": signature(record, key)}
    path.write_text(json.dumps(signed, indent=2))
    assert verify(path, key)["verdict"] == "correct"
    with pytest.raises(InvalidRequest, match="signed with HMAC-SHA256, not with SHA-256"):
        verify(path, None)
    path.write_text(json.dumps({**signed, "verdict": "rejected"}))
    with pytest.raises(InvalidRequest, match="does not match"):
        verify(path, key)
    forged = {**record, "signature": signature(record, None)}
    path.write_text(json.dumps(forged))
    with pytest.raises(InvalidRequest, match="signed with SHA-256, not with HMAC-SHA256"):
        verify(path, key)


def test_short_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("short\n")
    with pytest.raises(InvalidRequest, match="has 5 bytes"):
        read_key(path)
