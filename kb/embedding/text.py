"""What the embedder reads for a passage: where it stands, then what it says.

One function for ingestion and for re-embedding with another model, so that both see the same text.
"""

from __future__ import annotations

from collections.abc import Sequence

HEADINGS = (
    3  # the innermost say what the passage is about; outer ones repeat the title of the manual
)
MAX_HEADER_BYTES = 160  # of UTF-8: a Hangul syllable is one character and three word pieces


def header_text(path: Sequence[str]) -> str:
    """The innermost headings, cut to a length that leaves the window to the passage."""
    joined = " > ".join(heading for heading in path[-HEADINGS:] if heading)
    return joined.encode()[-MAX_HEADER_BYTES:].decode(errors="ignore")


def embedding_text(path: Sequence[str], lead: str, text: str) -> str:
    """`headings. body`; `lead` is a table piece's caption and header rows."""
    header = header_text(path)
    body = f"{lead}\n{text}" if lead else text
    return f"{header}. {body}" if header else body
