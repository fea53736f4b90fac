"""Typed ids: text with a prefix for the kind of object; derived from content if repeated work must
find the same row.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import NewType

DocumentId = NewType("DocumentId", str)  # doc_
VersionId = NewType("VersionId", str)  # ver_
SectionId = NewType("SectionId", str)  # sec_
PassageId = NewType("PassageId", str)  # psg_
MoveId = NewType("MoveId", str)  # mv_
SkillId = NewType("SkillId", str)  # sk_
JobId = NewType("JobId", str)  # job_
KeyId = NewType("KeyId", str)  # key_


def new_id(prefix: str) -> str:
    """A fresh random id, `prefix_` and 16 hex digits."""
    return f"{prefix}_{secrets.token_hex(8)}"


def derived_id(prefix: str, *parts: object) -> str:
    """The id of an object that `parts` determine: equal parts give equal ids."""
    text = "\x1f".join(str(part) for part in parts)
    return f"{prefix}_{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def sha256(data: bytes | str) -> str:
    """The SHA-256 of bytes, or of text as UTF-8, in hexadecimal."""
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()
